/* What Prometheus is told: the run's figures from one node only, each node's own ranks, NaN as NaN, and whole texts
 * while steps are added. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "observe/attribution.h"
#include "observe/serve/exposition.h"

enum { RANKS = 4 };

typedef struct shown {
    run_snapshot *snapshot;
    exposition *e;
    char *text;
} shown;

/* Ranks 0 and 1 are on node 0, 2 and 3 on node 1. */
static void open_shown(shown *s, int node)
{
    exposed_rank ranks[RANKS] = {{.node = 0}, {.node = 0}, {.node = 1}, {.node = 1, .memory_limit_bytes = 1000}};
    assert_int_equal(snapshot_new(RANKS, &s->snapshot), FSDP_OK);
    exposition_config c = {.snapshot = s->snapshot,
                           .ranks = ranks,
                           .n_ranks = RANKS,
                           .node = node,
                           .steps = 100,
                           .restarts = 2,
                           .run = "a \"name\" \\ with\nall",
                           .strategy = "full",
                           .device = "cpu"};
    assert_int_equal(exposition_new(&c, &s->e), FSDP_OK);
    s->text = NULL;
}

static void close_shown(shown *s)
{
    exposition_free(s->e);
    snapshot_free(s->snapshot);
    free(s->text);
}

static void add(shown *s, int64_t step, double loss, int slow)
{
    rank_snapshot ranks[RANKS] = {{.step = step}};
    for (int r = 0; r < RANKS; r++) {
        ranks[r].step = step;
        ranks[r].seconds[LAP_FORWARD] = 0.5F;
        ranks[r].seconds[LAP_DATA] = r == slow ? 2 : 0;
        ranks[r].core_wait = r == 2 ? -1 : 0.25F;
    }
    attribution times = attribution_of(ranks, RANKS);
    times.slow = (slow_rank){slow, LAP_DATA, 2};
    step_figures f = {.step = step,
                      .loss = loss,
                      .grad_norm = 1,
                      .tokens = 10,
                      .seconds = 1,
                      .validation_loss = NAN,
                      .times = &times};
    exposed_events events = {.checkpoint_step = 3, .checkpoint_time = 1e9, .validation_loss = NAN};
    snapshot_put(s->snapshot, &f, ranks);
    exposition_add(s->e, &f, ranks, &events);
}

static void read_text(shown *s)
{
    size_t bytes;
    free(s->text);
    s->text = exposition_text(s->e, &bytes);
    assert_non_null(s->text);
    assert_int_equal(strlen(s->text), bytes);
}

static void expect(const shown *s, const char *line, bool there)
{
    char whole[256];
    snprintf(whole, sizeof whole, "\n%s\n", line);
    if ((strstr(s->text, whole) != NULL) != there)
        fail_msg("\"%s\" is%s in:\n%s", line, there ? " not" : "", s->text);
}

static void before_the_first_step_there_is_no_loss(void **state)
{
    (void)state;
    shown s;
    open_shown(&s, 0);
    read_text(&s);
    expect(&s, "fsdp_step 0", true);
    expect(&s, "fsdp_restarts 2", true);
    expect(&s, "fsdp_run_info{run=\"a \\\"name\\\" \\\\ with\\nall\",strategy=\"full\",device=\"cpu\"} 1", true);
    assert_null(strstr(s.text, "fsdp_loss"));
    close_shown(&s);
}

static void each_node_shows_its_ranks_and_one_the_run(void **state)
{
    (void)state;
    for (int node = 0; node < 2; node++) {
        shown s;
        open_shown(&s, node);
        add(&s, 7, 2.5, 3);
        add(&s, 8, 1.5, 3);
        read_text(&s);
        expect(&s, "fsdp_loss 1.5", node == 0);
        expect(&s, "fsdp_tokens_total 20", node == 0);
        expect(&s, "fsdp_slow_rank_seconds{rank=\"0\"} 0", node == 0);
        expect(&s, "fsdp_lap_seconds_total{rank=\"1\",lap=\"forward\",kind=\"work\"} 1", node == 0);
        expect(&s, "fsdp_lap_seconds_total{rank=\"3\",lap=\"data\",kind=\"work\"} 4", node == 1);
        expect(&s, "fsdp_lap_seconds{rank=\"3\",lap=\"data\",kind=\"work\"} 2", node == 1);
        expect(&s, "fsdp_slow_rank_seconds{rank=\"3\",phase=\"data\"} 2", node == 1);
        expect(&s, "fsdp_waited_for_total{rank=\"3\"} 2", node == 1);
        expect(&s, "fsdp_core_wait_seconds_total{rank=\"3\"} 0.5", node == 1);
        expect(&s, "fsdp_core_wait_seconds_total{rank=\"2\"}", false); /* that rank does not know */
        expect(&s, "fsdp_memory_limit_bytes{rank=\"3\"} 1000", node == 1);
        close_shown(&s);
    }
}

static void what_is_not_finite_is_said_and_counted(void **state)
{
    (void)state;
    shown s;
    open_shown(&s, 0);
    add(&s, 1, NAN, -1);
    read_text(&s);
    expect(&s, "fsdp_loss NaN", true);
    expect(&s, "fsdp_not_finite_steps_total 1", true);
    add(&s, 2, INFINITY, -1);
    read_text(&s);
    expect(&s, "fsdp_loss +Inf", true);
    add(&s, 3, 1, -1);
    read_text(&s);
    expect(&s, "fsdp_not_finite_steps_total 2", true);
    close_shown(&s);
}

typedef struct reader {
    shown *s;
    atomic_bool stop;
    atomic_int n;
} reader;

static void *read_often(void *context)
{
    reader *r = context;
    double before = 0;
    while (!atomic_load(&r->stop)) {
        size_t bytes;
        char *text = exposition_text(r->s->e, &bytes);
        const char *found = text ? strstr(text, "\nfsdp_steps_total ") : NULL;
        double steps = found ? strtod(found + strlen("\nfsdp_steps_total "), NULL) : -1;
        free(text);
        if (steps < before)
            return "a counter went back";
        before = steps;
        atomic_fetch_add(&r->n, 1);
    }
    return NULL;
}

static void texts_are_whole_while_steps_are_added(void **state)
{
    (void)state;
    shown s;
    pthread_t thread;
    void *complaint;
    open_shown(&s, 0);
    reader r = {.s = &s};
    assert_int_equal(pthread_create(&thread, NULL, read_often, &r), 0);
    for (int64_t step = 1; step <= 2000 || atomic_load(&r.n) < 20; step++)
        add(&s, step, 1, -1);
    atomic_store(&r.stop, true);
    pthread_join(thread, &complaint);
    assert_null(complaint);
    close_shown(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(before_the_first_step_there_is_no_loss),
        cmocka_unit_test(each_node_shows_its_ranks_and_one_the_run),
        cmocka_unit_test(what_is_not_finite_is_said_and_counted),
        cmocka_unit_test(texts_are_whole_while_steps_are_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
