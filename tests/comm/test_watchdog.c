/* The watchdog over plain sockets, between forked ranks and without a GPU: every rank learns of a different call, a
 * rank that does not come, one that died and one that failed, with the same words and in time. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/error.h"
#include "comm/engine.h"
#include "comm/ranks.h"
#include "comm/watch/watchdog.h"
#include "meet/meeting.h"

/* What a rank knows of the job. */
typedef struct member {
    meeting *meeting;
    watchdog *watchdog;
    int n;
    uint32_t sequence;
    atomic_int status; /* of the failure heard; FSDP_OK: none */
    char text[RANKS_TEXT];
} member;

static void heard(void *context, fsdp_status status, const char *text)
{
    member *m = context;
    snprintf(m->text, sizeof m->text, "%s", text);
    atomic_store(&m->status, (int)status);
}

static job job_of(const ranks *all, int rank)
{
    job j = job_single();
    j.rank = j.local_rank = rank;
    j.world_size = j.local_world_size = all->n;
    j.master_port = all->port;
    snprintf(j.token, sizeof j.token, "%s", all->token);
    return j;
}

static void member_open(const ranks *all, int rank, member *m)
{
    int members[RANKS_MAX];
    job own = job_of(all, rank);
    *m = (member){.n = all->n};
    error_set_rank(rank, all->n);
    RANK_CHECK(meeting_open(&own, all->timeout, &m->meeting) == FSDP_OK);
    RANK_CHECK(meeting_barrier(m->meeting, "all are here") == FSDP_OK);
    watchdog_config config = {.meeting = m->meeting,
                              .rank = rank,
                              .world_size = all->n,
                              .timeout_seconds = all->timeout,
                              .fail = heard,
                              .context = m};
    RANK_CHECK(watchdog_open(&config, &m->watchdog) == FSDP_OK);
    RANK_CHECK(watchdog_begin(m->watchdog) == FSDP_OK);
    for (int i = 0; i < all->n; i++)
        members[i] = i;
    RANK_CHECK(watchdog_group(m->watchdog, 0, members, all->n) == FSDP_OK);
}

static void member_close(member *m)
{
    watchdog_close(m->watchdog);
    meeting_close(m->meeting);
}

static void call(member *m, comm_kind kind, const char *unit, int64_t step, int64_t elements)
{
    float data[1];
    comm_group g = {.size = m->n};
    comm_span span = {.send = {data, FSDP_F32}, .recv = {data, FSDP_F32}, .count = elements};
    comm_request r = {.op = {.unit = unit, .step = step, .n_spans = 1, .spans = &span}, .kind = kind, .group = &g};
    signature what;
    signature_make(&r, &what);
    RANK_CHECK(watchdog_call(m->watchdog, 0, 0, m->sequence++, &what) == FSDP_OK);
}

/* Until a failure is heard; leaves what it said and how long it took. */
static void expect_failure(ranks *all, int rank, member *m, fsdp_status wanted, double start)
{
    while (atomic_load(&m->status) == FSDP_OK && clock_seconds() - start < 20)
        sleep_seconds(0.005);
    all->shared->seconds[rank] = clock_seconds() - start;
    ranks_say(all, rank, m->text);
    RANK_CHECK(atomic_load(&m->status) == (int)wanted);
    double closing = clock_seconds();
    member_close(m);
    RANK_CHECK(clock_seconds() - closing < 3);
}

static void assert_all_say(ranks *all, int except, const char *wanted, double seconds)
{
    for (int rank = 0; rank < all->n; rank++) {
        if (rank == except)
            continue;
        if (all->statuses[rank] != 0)
            fail_msg("rank %d ended with %d", rank, all->statuses[rank]);
        if (!strstr(all->shared->text[rank], wanted))
            fail_msg("rank %d says \"%s\", not \"%s\"", rank, all->shared->text[rank], wanted);
        if (all->shared->seconds[rank] > seconds)
            fail_msg("rank %d took %.2f s", rank, all->shared->seconds[rank]);
    }
}

/* ---- the same path ---- */

static void agreeing(ranks *all, int rank, void *context)
{
    (void)context;
    member m;
    char unit[32];
    member_open(all, rank, &m);
    double start = clock_seconds();
    for (int i = 0; i < 20000; i++) {
        snprintf(unit, sizeof unit, "layers.%d", i % 32);
        call(&m, i % 3 ? COMM_ALL_GATHER : COMM_REDUCE_SCATTER, unit, i / 96, 1000 + i % 32);
    }
    all->shared->seconds[rank] = (clock_seconds() - start) / 20000;
    sleep_seconds(0.05 * rank); /* ranks end at different times, the first of them first */
    RANK_CHECK(atomic_load(&m.status) == FSDP_OK);
    member_close(&m);
    RANK_CHECK(atomic_load(&m.status) == FSDP_OK);
}

static void the_same_calls_pass_at_little_cost_and_the_end_is_no_failure(void **state)
{
    (void)state;
    ranks all = ranks_make(4);
    bool good = ranks_run(&all, agreeing, NULL);
    print_message("%.2f microseconds a call\n", all.shared->seconds[1] * 1e6);
    ranks_free(&all);
    assert_true(good);
}

/* ---- another path ---- */

typedef struct detour {
    comm_kind kind;
    const char *unit;
    int64_t step, elements;
    const char *wanted;
} detour;

static void other_path(ranks *all, int rank, void *context)
{
    const detour *d = context;
    member m;
    member_open(all, rank, &m);
    for (int i = 0; i < 50; i++)
        call(&m, COMM_ALL_GATHER, "layers.3", i, 5);
    double start = clock_seconds();
    if (rank == 1)
        call(&m, d->kind, d->unit, d->step, d->elements);
    else
        call(&m, COMM_ALL_GATHER, "layers.4", 7, 5);
    expect_failure(all, rank, &m, FSDP_ERR_PEER, start);
}

static void a_rank_on_another_path_is_named_on_every_rank_at_once(void **state)
{
    (void)state;
    detour detours[] = {
        {COMM_REDUCE_SCATTER, "layers.3", 7, 5,
         "rank 1 called reduce_scatter of unit layers.3 where rank 0 called all_gather of unit layers.4"},
        {COMM_ALL_GATHER, "layers.5", 7, 5,
         "rank 1 called all_gather of unit layers.5 where rank 0 called all_gather of unit layers.4"},
        {COMM_ALL_GATHER, "layers.4", 8, 5,
         "rank 1 called all_gather of unit layers.4 at step 8 where rank 0 called all_gather of unit layers.4 at step "
         "7"},
        {COMM_ALL_GATHER, "layers.4", 7, 6,
         "rank 1 called all_gather of unit layers.4 with 12 elements where rank 0 called all_gather of unit layers.4 "
         "with 10 elements"},
    };
    for (size_t i = 0; i < sizeof detours / sizeof *detours; i++) {
        ranks all = ranks_make(2);
        ranks_run(&all, other_path, &detours[i]);
        assert_all_say(&all, -1, detours[i].wanted, 2);
        ranks_free(&all);
    }
}

/* ---- a rank that does not come ---- */

static void late_rank(ranks *all, int rank, void *context)
{
    (void)context;
    member m;
    member_open(all, rank, &m);
    call(&m, COMM_ALL_GATHER, "layers.1", 3, 5);
    double start = clock_seconds();
    if (rank != 2)
        call(&m, COMM_ALL_GATHER, "layers.2", 3, 5);
    expect_failure(all, rank, &m, FSDP_ERR_TIMEOUT, start);
}

static void a_rank_that_does_not_come_is_named_with_the_collective_and_where_it_was(void **state)
{
    (void)state;
    ranks all = ranks_make(3);
    all.timeout = 0.6;
    ranks_run(&all, late_rank, NULL);
    assert_all_say(&all, -1,
                   "all_gather of unit layers.2 (step 3) timed out after 0.6 s: rank 2 did not come, it last reached "
                   "layers.1 (step 3)",
                   3);
    for (int rank = 0; rank < 3; rank++)
        assert_true(all.shared->seconds[rank] > 0.5);
    ranks_free(&all);
}

/* ---- a rank that dies, and one that fails ---- */

static void dying_rank(ranks *all, int rank, void *context)
{
    const int *dying = context;
    member m;
    member_open(all, rank, &m);
    call(&m, COMM_ALL_GATHER, "layers.6", 12, 5);
    sleep_seconds(0.2);
    double start = clock_seconds();
    if (rank == *dying)
        kill(getpid(), SIGKILL);
    expect_failure(all, rank, &m, FSDP_ERR_PEER, start);
}

static void a_killed_rank_is_named_at_once_with_where_it_was(void **state)
{
    (void)state;
    int dying = 2;
    ranks all = ranks_make(3);
    ranks_run(&all, dying_rank, &dying);
    assert_all_say(&all, dying,
                   "stopped because rank 2 failed: its connection broke: the process ended without a word; it last "
                   "reached layers.6 (step 12)",
                   2);
    ranks_free(&all);
}

static void without_rank_0_the_others_end_too(void **state)
{
    (void)state;
    int dying = 0;
    ranks all = ranks_make(3);
    ranks_run(&all, dying_rank, &dying);
    assert_all_say(&all, dying, "stopped because rank 0 failed: its connection broke", 2);
    ranks_free(&all);
}

static void failing_rank(ranks *all, int rank, void *context)
{
    const int *failing = context;
    member m;
    member_open(all, rank, &m);
    double start = clock_seconds();
    if (rank == *failing) {
        watchdog_fail(m.watchdog, FSDP_ERR_PEER, "the loss is not a number at step 12");
        sleep_seconds(0.1);
        member_close(&m);
        return;
    }
    expect_failure(all, rank, &m, FSDP_ERR_PEER, start);
}

static void a_failure_reaches_everybody_whoever_has_it(void **state)
{
    (void)state;
    for (int failing = 0; failing < 3; failing++) {
        char wanted[96];
        ranks all = ranks_make(3);
        snprintf(wanted, sizeof wanted, "stopped because rank %d failed: the loss is not a number at step 12", failing);
        ranks_run(&all, failing_rank, &failing);
        assert_all_say(&all, failing, wanted, 2);
        ranks_free(&all);
    }
}

static void leaving_rank(ranks *all, int rank, void *context)
{
    (void)context;
    member m;
    member_open(all, rank, &m);
    call(&m, COMM_ALL_GATHER, "layers.1", 3, 5);
    double start = clock_seconds();
    if (rank == 1) {
        member_close(&m);
        return;
    }
    call(&m, COMM_ALL_GATHER, "layers.2", 3, 5);
    expect_failure(all, rank, &m, FSDP_ERR_PEER, start);
}

static void a_rank_that_leaves_early_is_named(void **state)
{
    (void)state;
    ranks all = ranks_make(3);
    ranks_run(&all, leaving_rank, NULL);
    assert_all_say(&all, 1, "rank 1 left, but rank ", 2);
    assert_all_say(&all, 1, "waits for it in all_gather of unit layers.2 (step 3)", 2);
    ranks_free(&all);
}

/* A rank 0 that neither reads nor answers does not stop the others' calls. */
static void with_deaf_rank_0(ranks *all, int rank, void *context)
{
    (void)context;
    member m;
    member_open(all, rank, &m);
    if (rank == 0) {
        all->shared->flags[0] = 1;
        kill(getpid(), SIGSTOP);
        member_close(&m);
        return;
    }
    while (!all->shared->flags[0])
        sleep_seconds(0.005);
    sleep_seconds(0.05);
    double start = clock_seconds();
    for (int i = 0; i < 50000; i++) /* more than sockets hold */
        call(&m, COMM_ALL_GATHER, "layers.1", i, 5);
    RANK_CHECK(clock_seconds() - start < 5);
    kill(all->shared->pids[0], SIGCONT);
    member_close(&m);
}

static void a_stopped_rank_0_does_not_hold_up_those_who_call(void **state)
{
    (void)state;
    ranks all = ranks_make(2);
    bool good = ranks_run(&all, with_deaf_rank_0, NULL);
    ranks_free(&all);
    assert_true(good);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_calls_pass_at_little_cost_and_the_end_is_no_failure),
        cmocka_unit_test(a_rank_on_another_path_is_named_on_every_rank_at_once),
        cmocka_unit_test(a_rank_that_does_not_come_is_named_with_the_collective_and_where_it_was),
        cmocka_unit_test(a_killed_rank_is_named_at_once_with_where_it_was),
        cmocka_unit_test(without_rank_0_the_others_end_too),
        cmocka_unit_test(a_failure_reaches_everybody_whoever_has_it),
        cmocka_unit_test(a_rank_that_leaves_early_is_named),
        cmocka_unit_test(a_stopped_rank_0_does_not_hold_up_those_who_call),
    };
    return cmocka_run_group_tests_name("watchdog", tests, NULL, NULL);
}
