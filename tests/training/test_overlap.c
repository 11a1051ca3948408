/* Communication under compute, seen through hooks on two ranks: with prefetch a unit's gather is started while the unit
 * before it computes and waited for after, the first ones while the optimizer of the step before updates the others;
 * without, nothing computes in between. Collectives run beside, not inside, the computing thread. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <fsdp/models.h>
#include <fsdp/optim.h>

#include "base/error.h"
#include "base/record/hooks.h"
#include "observe/overlap.h"
#include "training/support_ranks.h"

enum {
    LAYERS = 4, /* layers.3 is the last */
    WIDTH = 24,
    VOCABULARY = 67,
    STEPS = 3,
    MAX_EVENTS = 4096
};

typedef struct event {
    hook_kind kind;
    hook_moment moment;
    char name[32], detail[32];
    bool elsewhere; /* on another thread than the one that computes */
} event;

/* From the optimizer of the last step but one to the end. */
typedef struct record {
    pthread_mutex_t lock;
    pthread_t computing;
    bool listening;
    int n;
    event events[MAX_EVENTS];
    overlap_times times;
} record;

static void remember(void *context, const hook_event *e)
{
    record *r = context;
    pthread_mutex_lock(&r->lock);
    if (r->listening && r->n < MAX_EVENTS) {
        event *to = &r->events[r->n++];
        to->kind = e->kind;
        to->moment = e->moment;
        to->elsewhere = !pthread_equal(pthread_self(), r->computing);
        snprintf(to->name, sizeof to->name, "%s", e->name ? e->name : "");
        snprintf(to->detail, sizeof to->detail, "%s", e->detail ? e->detail : "");
    }
    pthread_mutex_unlock(&r->lock);
}

static void listen(record *r, bool on)
{
    pthread_mutex_lock(&r->lock);
    r->listening = on;
    pthread_mutex_unlock(&r->lock);
}

static fsdp_status train(fsdp_world *w, const fsdp_config *config, overlap_meter *meter, record *r)
{
    fsdp_llama_config c = FSDP_LLAMA_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_module *net;
    fsdp_model *m;
    fsdp_optimizer *o;
    int32_t ids[WIDTH];
    int64_t shape[] = {1, WIDTH};
    for (int i = 0; i < WIDTH; i++)
        ids[i] = (i * 7 + fsdp_world_rank(w)) % VOCABULARY;
    c.vocabulary = VOCABULARY, c.hidden = 32, c.intermediate = 48, c.layers = LAYERS, c.heads = c.kv_heads = 4,
    c.head_dim = 8, c.positions = WIDTH;
    FSDP_TRY(fsdp_llama_new(&c, &net));
    FSDP_TRY(fsdp_shard(w, net, config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &oc, &o));
    for (int step = 0; step < STEPS; step++) {
        overlap_meter_take(meter);
        fsdp_tape *t = fsdp_begin(m);
        fsdp_loss loss =
            fsdp_llama_loss(net, t, fsdp_input(t, FSDP_I32, 2, shape, ids), fsdp_input(t, FSDP_I32, 2, shape, ids));
        FSDP_TRY(fsdp_backward(t, loss, true));
        listen(r, step >= STEPS - 2);
        FSDP_TRY(fsdp_step(o, NULL));
    }
    listen(r, false);
    r->times = overlap_meter_take(meter);
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    return FSDP_OK;
}

typedef struct setting {
    fsdp_config config;
    bool comm_thread;
    record *records; /* (2), shared */
} setting;

static fsdp_status run_rank(int rank, void *context)
{
    setting *s = context;
    record *r = &s->records[rank];
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_world *w;
    overlap_meter *meter;
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 30, wc.comm_thread = s->comm_thread;
    pthread_mutex_init(&r->lock, NULL);
    r->computing = pthread_self();
    FSDP_TRY(hooks_add(remember, r));
    FSDP_TRY(overlap_meter_start(&meter));
    FSDP_TRY(fsdp_world_open(&wc, &w));
    FSDP_TRY(train(w, &s->config, meter, r));
    fsdp_world_close(w);
    overlap_meter_free(meter);
    hooks_remove(remember, r);
    return FSDP_OK;
}

/* Rank 0's record; the caller frees it. */
static record *run(bool prefetch, bool comm_thread)
{
    record *shared = mmap(NULL, 2 * sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    setting s = {.config = FSDP_CONFIG_INIT, .comm_thread = comm_thread, .records = shared};
    assert_true(shared != MAP_FAILED);
    s.config.wrap = fsdp_wrap_by_type("llama_block");
    if (!prefetch) {
        s.config.forward_prefetch = false;
        s.config.backward_prefetch = FSDP_PREFETCH_NONE;
        s.config.gather_buffers = 1;
    }
    assert_true(ranks_run(2, run_rank, &s));
    record *first = malloc(sizeof *first);
    assert_non_null(first);
    memcpy(first, shared, sizeof *first);
    munmap(shared, 2 * sizeof *shared);
    assert_in_range(first->n, 1, MAX_EVENTS - 1);
    return first;
}

/* The next event from `from` on; -1 when there is none. NULL fits every text. */
static int find(const record *r, int from, hook_kind kind, const char *name, const char *detail)
{
    for (int i = from < 0 ? r->n : from; i < r->n; i++) {
        const event *e = &r->events[i];
        if (e->kind == kind && (!name || strcmp(e->name, name) == 0) && (!detail || strcmp(e->detail, detail) == 0))
            return i;
    }
    return -1;
}

static int operations(const record *r, int from, int to)
{
    int n = 0;
    for (int i = from; i < to; i++)
        n += r->events[i].kind == HOOK_OP && r->events[i].moment == HOOK_BEGIN;
    return n;
}

/* One stay of a layer in memory: where its gather is started, waited for, and its parameters given up again. */
typedef struct stay {
    const char *unit;
    int started, there, given_up;
} stay;

/* Those of the layers, in the order in which they are started. */
static int find_stays(const record *r, stay *out)
{
    int n = 0;
    for (int i = find(r, 0, HOOK_UNIT, NULL, "GATHERING"); i >= 0; i = find(r, i + 1, HOOK_UNIT, NULL, "GATHERING")) {
        const char *unit = r->events[i].name;
        if (!strstr(unit, "layers."))
            continue;
        stay s = {unit, i, find(r, i, HOOK_UNIT, unit, "FULL"), -1};
        if (s.there < 0)
            continue; /* for a step that never comes */
        s.given_up = find(r, s.there, HOOK_UNIT, unit, "SHARDED");
        assert_true(s.started < s.there && s.there < s.given_up);
        assert_true(n < 2 * LAYERS);
        out[n++] = s;
    }
    return n;
}

static int count_stays(const stay *stays, int n, const char *unit)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += strstr(stays[i].unit, unit) != NULL;
    return count;
}

static void with_prefetch_a_unit_is_gathered_while_the_one_before_computes(void **state)
{
    (void)state;
    record *r = run(true, true);
    stay stays[2 * LAYERS];
    int n = find_stays(r, stays);
    for (int i = 1; i < n; i++) {
        assert_true(stays[i].started < stays[i - 1].given_up);
        assert_true(operations(r, stays[i].started, stays[i].there) > 0);
        int wait = find(r, stays[i].started, HOOK_WAIT, "all_gather", stays[i].unit);
        assert_true(wait < 0 || wait > stays[i].there || operations(r, stays[i].started, wait) > 0);
    }
    free(r);
}

static void the_layer_at_the_turn_is_not_gathered_again(void **state)
{
    (void)state;
    record *r = run(true, true);
    stay stays[2 * LAYERS];
    int n = find_stays(r, stays);
    assert_int_equal(n, 2 * LAYERS - 1);
    assert_int_equal(count_stays(stays, n, "layers.0"), 2);
    assert_int_equal(count_stays(stays, n, "layers.3"), 1);
    free(r);
}

/* The embedding is needed before the first layer, so its gather comes first. */
static void gathers_are_started_in_the_order_of_their_use(void **state)
{
    (void)state;
    record *r = run(true, true);
    int first = find(r, 0, HOOK_UNIT, NULL, "GATHERING");
    assert_null(strstr(r->events[first].name, "layers."));
    free(r);
}

static void the_first_gathers_begin_in_the_optimizer_of_the_step_before(void **state)
{
    (void)state;
    for (int prefetch = 0; prefetch < 2; prefetch++) {
        record *r = run(prefetch, true);
        int end = find(r, find(r, 0, HOOK_PHASE, "optimizer", NULL) + 1, HOOK_PHASE, "optimizer", NULL), early = 0;
        assert_true(end > 0 && r->events[end].moment == HOOK_END);
        for (int i = find(r, 0, HOOK_UNIT, NULL, "GATHERING"); i >= 0 && i < end; early++)
            i = find(r, i + 1, HOOK_UNIT, NULL, "GATHERING");
        assert_int_equal(early, prefetch ? 2 : 0); /* as many as gather_buffers */
        free(r);
    }
}

static void without_prefetch_nothing_computes_while_a_unit_is_gathered(void **state)
{
    (void)state;
    record *r = run(false, true);
    stay stays[2 * LAYERS];
    int n = find_stays(r, stays);
    assert_int_equal(n, 2 * LAYERS);
    for (int i = 0; i < n; i++)
        assert_int_equal(operations(r, stays[i].started, stays[i].there), 0);
    free(r);
}

static void a_reduction_is_waited_for_after_the_next_unit_has_computed(void **state)
{
    (void)state;
    record *r = run(true, true);
    int n = 0;
    for (int i = find(r, 0, HOOK_UNIT, NULL, "gradients REDUCING"); i >= 0;
         i = find(r, i + 1, HOOK_UNIT, NULL, "gradients REDUCING")) {
        int reduced = find(r, i, HOOK_UNIT, r->events[i].name, "gradients SHARDED");
        int wait = find(r, i, HOOK_WAIT, "reduce_scatter", r->events[i].name);
        assert_true(reduced > i);
        if (!strstr(r->events[i].name, "layers."))
            continue; /* nothing computes after the last */
        assert_true(operations(r, i, reduced) > 0);
        assert_true(wait < 0 || operations(r, i, wait) > 0);
        n++;
    }
    assert_int_equal(n, LAYERS);
    free(r);
}

static void collectives_run_beside_the_computing_thread_or_inside_its_waits(void **state)
{
    (void)state;
    for (int thread = 0; thread < 2; thread++) {
        record *r = run(true, thread);
        int n = 0;
        for (int i = 0; i < r->n; i++) {
            if (r->events[i].kind == HOOK_WAIT || r->events[i].kind == HOOK_OP)
                assert_false(r->events[i].elsewhere);
            if (r->events[i].kind != HOOK_COLLECTIVE)
                continue;
            assert_int_equal(r->events[i].elsewhere, thread);
            n++;
        }
        assert_true(n > 2 * 3 * LAYERS); /* begin and end of two gathers and a reduction a layer */
        assert_true(r->times.communication_ns > 0);
        if (!thread) /* all of it is exposed then; a thread of its own may hide all */
            assert_true(r->times.exposed_ns >= r->times.communication_ns);
        free(r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_prefetch_a_unit_is_gathered_while_the_one_before_computes),
        cmocka_unit_test(the_layer_at_the_turn_is_not_gathered_again),
        cmocka_unit_test(gathers_are_started_in_the_order_of_their_use),
        cmocka_unit_test(the_first_gathers_begin_in_the_optimizer_of_the_step_before),
        cmocka_unit_test(without_prefetch_nothing_computes_while_a_unit_is_gathered),
        cmocka_unit_test(a_reduction_is_waited_for_after_the_next_unit_has_computed),
        cmocka_unit_test(collectives_run_beside_the_computing_thread_or_inside_its_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
