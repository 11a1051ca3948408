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

enum { AT_ONCE = 24 };

/* Far more than any of it takes on an idle machine, and less than the minutes that a forgotten wait takes. */
static const double bound_seconds = 60;

typedef struct cut_job {
    cut_link link;
    int direction, at;
    launched *nodes; /* (2), the second behind the link */
    bool ended[2];
} cut_job;

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

static void start(cut_job *c, cut_kind kind, int direction, int at)
{
    static const char *const meets[] = {"/proc/self/exe", "rank", NULL}, *const alone[] = {"sleep", "0.3", NULL};
    char endpoints[2][64];
    int port = free_port();
    c->direction = direction;
    c->at = at;
    c->ended[0] = c->ended[1] = false;
    cut_link_open(&c->link, port, kind, direction, at);
    snprintf(endpoints[0], sizeof endpoints[0], "127.0.0.1:%d", port);
    snprintf(endpoints[1], sizeof endpoints[1], "127.0.0.1:%d", c->link.port);
    for (int i = 0; i < 2; i++) {
        fsdp_launch_config config = ranks(1);
        config.command = kind == CUT_FOR_GOOD ? alone : meets;
        config.min_nodes = config.max_nodes = 2, config.node = i, config.endpoint = endpoints[i];
        config.join_timeout_seconds = kind == CUT_FOR_GOOD ? 2 : 20;
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
        if (left <= 0 || poll(&p, 1, (int)(left * 1e3) + 1) == 0)
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

static void end_all(cut_job *jobs, int n, double deadline)
{
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < 2; k++) {
            jobs[i].ended[k] = ends_by(&jobs[i].nodes[k], deadline);
            if (!jobs[i].ended[k]) {
                kill(jobs[i].nodes[k].pid, SIGKILL);
                join(&jobs[i].nodes[k]);
            }
        }
    }
}

/* What became of one job, and of its launchers' words where that is not as it should be. */
static int judge(cut_job *c, cut_kind kind)
{
    int wrong = 0, cut_at = atomic_load(&c->link.progress->kind);
    for (int k = 0; k < 2; k++) {
        bool well = c->ended[k] && (kind == CUT_FOR_GOOD || c->nodes[k].exit_code == 0);
        if (!well)
            print_error("cut at message %d (kind %d) %s the store: launcher %d %s %d:\n%s", c->at, cut_at,
                        c->direction == TO_STORE ? "to" : "from", k, c->ended[k] ? "ends with" : "does not end",
                        c->nodes[k].exit_code, c->nodes[k].text);
        wrong += !well;
    }
    cut_link_close(&c->link);
    return wrong;
}

static void cut_at_every_message(cut_kind kind)
{
    static cut_job jobs[DIRECTIONS * AT_ONCE];
    static launched nodes[DIRECTIONS * AT_ONCE][2];
    int wrong = 0, n_messages[DIRECTIONS], n = 1;
    if (!secret_can_prove())
        skip(); /* launchers are then not joined */
    for (int i = 0; i < DIRECTIONS * AT_ONCE; i++)
        jobs[i].nodes = nodes[i];
    start(&jobs[0], kind, TO_STORE, 0);
    end_all(jobs, 1, clock_seconds() + bound_seconds);
    for (int d = 0; d < DIRECTIONS; d++) {
        n_messages[d] = atomic_load(&jobs[0].link.progress->messages[d]);
        assert_in_range(n_messages[d], 5, AT_ONCE);
    }
    assert_int_equal(judge(&jobs[0], kind), 0);
    double begun = clock_seconds();
    for (int d = n = 0; d < DIRECTIONS; d++)
        for (int at = 1; at <= n_messages[d]; at++)
            start(&jobs[n++], kind, d, at);
    end_all(jobs, n, begun + bound_seconds);
    print_message("%d messages, %.1f s\n", n, clock_seconds() - begun);
    for (int i = 0; i < n; i++)
        wrong += judge(&jobs[i], kind);
    assert_int_equal(wrong, 0);
}

static void after_a_short_cut_the_job_goes_on(void **state)
{
    (void)state;
    cut_at_every_message(CUT_SHORT);
}

static void after_a_long_cut_launchers_meet_again(void **state)
{
    (void)state;
    cut_at_every_message(CUT_LONG);
}

static void a_launcher_that_comes_again_takes_the_place_it_had(void **state)
{
    (void)state;
    cut_at_every_message(CUT_ONE_SIDE);
}

static void launchers_that_hear_nothing_more_end(void **state)
{
    (void)state;
    cut_at_every_message(CUT_FOR_GOOD);
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
    return cmocka_run_group_tests(tests, NULL, NULL);
}
