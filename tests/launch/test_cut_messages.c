/* The link between two launchers is cut at every message that passes between them and the store, one job for each: the
 * job goes on, or, where the link stays cut, both launchers end. Nobody waits for ever. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/host/job.h"
#include "comm/ports.h"
#include "launch/support_cut_link.h"
#include "launch/support_launched.h"
#include "meet/meeting.h"
#include "meet/secret.h"

enum { MOST_JOBS = 160 };

/* Far more than any of it takes on an idle machine, and less than the minutes that a forgotten wait takes. */
static const double bound_seconds = 60;

typedef struct cut_job {
    cut_link link;
    cut_kind kind;
    int direction, at;
    launched *nodes; /* (2), the second behind the link */
    bool ended[2];
} cut_job;

static cut_job jobs[MOST_JOBS];
static launched nodes[MOST_JOBS][2];
static int n_jobs;

/* What a rank of these jobs does: meets the other, twice. */
static int be_rank(void)
{
    job j;
    meeting *m;
    client_parts parts;
    if (job_from_environment(&j) != FSDP_OK || meeting_open(&j, 5, &m) != FSDP_OK)
        return 1;
    bool met = meeting_gather(m, "who", &j.rank, sizeof j.rank, &parts) == FSDP_OK;
    if (met)
        client_parts_free(&parts);
    met = met && meeting_barrier(m, "end") == FSDP_OK;
    meeting_close(m);
    return met ? 0 : 1;
}

/* An address of this host for each job: the port, free just now, is then nobody else's soon. */
static endpoint own_endpoint(void)
{
    static int n;
    endpoint e = {.port = free_port()};
    snprintf(e.host, sizeof e.host, "127.%d.%d.%d", 1 + (int)getpid() % 250, n / 200, 1 + n % 200);
    n++;
    return e;
}

static void start(cut_job *c, cut_kind kind, int direction, int at)
{
    static const char *const meets[] = {"/proc/self/exe", "rank", NULL}, *const alone[] = {"sleep", "0.3", NULL};
    char texts[2][ENDPOINT_TEXT_BYTES];
    endpoint place = own_endpoint();
    c->kind = kind;
    c->direction = direction;
    c->at = at;
    cut_link_open(&c->link, &place, kind, direction, at);
    endpoint_text(&place, texts[0]);
    endpoint_text(&c->link.at, texts[1]);
    for (int i = 0; i < 2; i++) {
        fsdp_launch_config config = ranks(1);
        config.command = kind == CUT_FOR_GOOD ? alone : meets;
        config.min_nodes = config.max_nodes = 2, config.node = i, config.endpoint = texts[i];
        config.join_timeout_seconds = kind == CUT_FOR_GOOD ? 2 : 10;
        config.max_restarts = kind == CUT_FOR_GOOD ? 1 : 4;
        c->nodes[i].text[0] = 0;
        launch(&c->nodes[i], config, NULL);
    }
}

/* Takes what a launcher says until it has ended; false when it has not by the deadline. */
static bool ends_by(launched *l, double deadline)
{
    for (;;) {
        double left = deadline - clock_seconds();
        struct pollfd p = {.fd = l->output, .events = POLLIN};
        if (poll(&p, 1, left > 0 ? (int)(left * 1e3) + 1 : 0) == 0)
            return false;
        ssize_t got = read(l->output, l->text + l->bytes, sizeof l->text - 1 - l->bytes);
        if (got <= 0) {
            join(l);
            return true;
        }
        l->bytes += (size_t)got;
        l->text[l->bytes] = 0;
    }
}

static void end_all(cut_job *all, int n, double deadline)
{
    for (int i = 0; i < 2 * n; i++) {
        launched *l = &all[i / 2].nodes[i % 2];
        all[i / 2].ended[i % 2] = ends_by(l, deadline);
        if (!all[i / 2].ended[i % 2]) {
            kill(l->pid, SIGKILL);
            join(l);
        }
    }
}

/* How many of its launchers did not end as they should; their words are shown. */
static int judge(cut_job *c)
{
    int wrong = 0, cut_at = atomic_load(&c->link.progress->kind);
    for (int k = 0; k < 2; k++) {
        bool well = c->ended[k] && (c->kind == CUT_FOR_GOOD || c->nodes[k].exit_code == 0);
        if (!well)
            print_error("cut at message %d (kind %d) %s the store: launcher %d %s %d:\n%s", c->at, cut_at,
                        c->direction == TO_STORE ? "to" : "from", k, c->ended[k] ? "ends with" : "does not end",
                        c->nodes[k].exit_code, c->nodes[k].text);
        wrong += !well;
    }
    cut_link_close(&c->link);
    return wrong;
}

/* One job that nobody disturbs tells how many messages there are; then one is cut at each. All run at once: most of
 * their time is waiting. */
static int cut_all(void **state)
{
    int n_messages[CUT_KINDS][DIRECTIONS];
    (void)state;
    if (!secret_can_prove())
        return 0; /* launchers are then not joined */
    for (int i = 0; i < MOST_JOBS; i++)
        jobs[i].nodes = nodes[i];
    for (int kind = 0; kind < CUT_KINDS; kind++)
        start(&jobs[kind], (cut_kind)kind, TO_STORE, 0);
    end_all(jobs, CUT_KINDS, clock_seconds() + bound_seconds);
    for (int kind = 0; kind < CUT_KINDS; kind++) {
        for (int d = 0; d < DIRECTIONS; d++)
            n_messages[kind][d] = atomic_load(&jobs[kind].link.progress->messages[d]);
        if (judge(&jobs[kind]) > 0 || n_messages[kind][0] < 4 || n_messages[kind][1] < 4)
            return -1;
    }
    double begun = clock_seconds();
    for (int kind = 0; kind < CUT_KINDS; kind++)
        for (int d = 0; d < DIRECTIONS; d++)
            for (int at = 1; at <= n_messages[kind][d] && n_jobs < MOST_JOBS; at++)
                start(&jobs[n_jobs++], (cut_kind)kind, d, at);
    end_all(jobs, n_jobs, begun + bound_seconds);
    print_message("%d jobs, %.1f s\n", n_jobs, clock_seconds() - begun);
    return 0;
}

static void judge_all(cut_kind kind)
{
    int n = 0, wrong = 0;
    if (!secret_can_prove())
        skip();
    for (int i = 0; i < n_jobs; i++)
        if (jobs[i].kind == kind) {
            n++;
            wrong += judge(&jobs[i]);
        }
    assert_true(n >= 8);
    assert_int_equal(wrong, 0);
}

static void after_a_short_cut_the_job_goes_on(void **state)
{
    (void)state;
    judge_all(CUT_SHORT);
}

static void after_a_long_cut_launchers_meet_again(void **state)
{
    (void)state;
    judge_all(CUT_LONG);
}

static void a_launcher_that_comes_again_takes_the_place_it_had(void **state)
{
    (void)state;
    judge_all(CUT_ONE_SIDE);
}

static void launchers_that_hear_nothing_more_end(void **state)
{
    (void)state;
    judge_all(CUT_FOR_GOOD);
}

int main(int n, char **arguments)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(after_a_short_cut_the_job_goes_on),
        cmocka_unit_test(after_a_long_cut_launchers_meet_again),
        cmocka_unit_test(a_launcher_that_comes_again_takes_the_place_it_had),
        cmocka_unit_test(launchers_that_hear_nothing_more_end),
    };
    if (n > 1 && strcmp(arguments[1], "rank") == 0)
        return be_rank();
    return cmocka_run_group_tests(tests, cut_all, NULL);
}
