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

enum { MOST_JOBS = 160, AT_ONCE = 16 };

/* For each job. Far more than any takes on an idle machine, and less than the minutes that a forgotten wait takes. */
static const double bound_seconds = 60;

typedef struct cut_job {
    cut_link link;
    cut_kind kind;
    int direction, at;
    launched *nodes; /* (2), the second behind the link */
    bool ended[2];   /* and nothing more is read from it */
    bool late[2];    /* it had to be killed */
    double deadline;
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

static void add(cut_kind kind, int direction, int at)
{
    jobs[n_jobs] = (cut_job){.kind = kind, .direction = direction, .at = at, .nodes = nodes[n_jobs]};
    n_jobs++;
}

static void start(cut_job *c)
{
    static const char *const meets[] = {"/proc/self/exe", "rank", NULL}, *const alone[] = {"sleep", "0.3", NULL};
    char texts[2][ENDPOINT_TEXT_BYTES];
    endpoint place = own_endpoint();
    cut_link_open(&c->link, &place, c->kind, c->direction, c->at);
    endpoint_text(&place, texts[0]);
    endpoint_text(&c->link.at, texts[1]);
    for (int i = 0; i < 2; i++) {
        fsdp_launch_config config = ranks(1);
        config.command = c->kind == CUT_FOR_GOOD ? alone : meets;
        config.min_nodes = config.max_nodes = 2, config.node = i, config.endpoint = texts[i];
        config.join_timeout_seconds = c->kind == CUT_FOR_GOOD ? 2 : 10;
        config.max_restarts = c->kind == CUT_FOR_GOOD ? 1 : 4;
        c->ended[i] = c->late[i] = false;
        c->nodes[i].text[0] = 0;
        launch(&c->nodes[i], config, NULL);
    }
    c->deadline = clock_seconds() + bound_seconds;
}

static bool is_over(const cut_job *c)
{
    return c->ended[0] && c->ended[1];
}

/* Takes what a launcher has said; true when that was its last word. */
static bool hear_last(launched *l)
{
    ssize_t got = read(l->output, l->text + l->bytes, sizeof l->text - 1 - l->bytes);
    if (got <= 0)
        return true;
    l->bytes += (size_t)got;
    l->text[l->bytes] = 0;
    return false;
}

/* Waits a moment for words of the launchers of these jobs. */
static void attend(cut_job *all, int n)
{
    struct pollfd polls[2 * MOST_JOBS];
    for (int i = 0; i < 2 * n; i++)
        polls[i] =
            (struct pollfd){.fd = all[i / 2].ended[i % 2] ? -1 : all[i / 2].nodes[i % 2].output, .events = POLLIN};
    poll(polls, (nfds_t)(2 * n), 100);
    for (int i = 0; i < 2 * n; i++) {
        cut_job *c = &all[i / 2];
        launched *l = &c->nodes[i % 2];
        if (c->ended[i % 2])
            continue;
        bool last = polls[i].revents && hear_last(l);
        if (!last && clock_seconds() > c->deadline) {
            c->late[i % 2] = true;
            kill(l->pid, SIGKILL);
        }
        if (last || c->late[i % 2]) {
            c->ended[i % 2] = true;
            join(l);
        }
    }
}

/* To the end of all; so many at once that they mostly wait, and few enough that none waits for a core for long. */
static void run_all(cut_job *all, int n)
{
    for (int started = 0, open = 0; started < n || open > 0;) {
        for (; started < n && open < AT_ONCE; open++)
            start(&all[started++]);
        attend(all, started);
        open = 0;
        for (int i = 0; i < started; i++)
            open += !is_over(&all[i]);
    }
}

/* How many of its launchers did not end as they should; their words are shown. */
static int judge(cut_job *c)
{
    int wrong = 0, cut_at = atomic_load(&c->link.progress->kind);
    for (int k = 0; k < 2; k++) {
        bool well = !c->late[k] && (c->kind == CUT_FOR_GOOD || c->nodes[k].exit_code == 0);
        if (!well)
            print_error("cut at message %d (kind %d) %s the store: launcher %d %s %d:\n%s", c->at, cut_at,
                        c->direction == TO_STORE ? "to" : "from", k, c->late[k] ? "does not end" : "ends with",
                        c->nodes[k].exit_code, c->nodes[k].text);
        wrong += !well;
    }
    cut_link_close(&c->link);
    return wrong;
}

/* One job of each kind that nobody disturbs tells how many messages there are; then one is cut at each. */
static int cut_all(void **state)
{
    int n_messages[CUT_KINDS][DIRECTIONS];
    (void)state;
    if (!secret_can_prove())
        return 0; /* launchers are then not joined */
    for (int kind = 0; kind < CUT_KINDS; kind++)
        add((cut_kind)kind, TO_STORE, 0);
    run_all(jobs, n_jobs);
    for (int kind = 0; kind < CUT_KINDS; kind++) {
        for (int d = 0; d < DIRECTIONS; d++)
            n_messages[kind][d] = atomic_load(&jobs[kind].link.progress->messages[d]);
        if (judge(&jobs[kind]) > 0 || n_messages[kind][0] < 4 || n_messages[kind][1] < 4)
            return -1;
    }
    n_jobs = 0;
    double begun = clock_seconds();
    for (int kind = 0; kind < CUT_KINDS; kind++)
        for (int d = 0; d < DIRECTIONS; d++)
            for (int at = 1; at <= n_messages[kind][d] && n_jobs < MOST_JOBS; at++)
                add((cut_kind)kind, d, at);
    run_all(jobs, n_jobs);
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
