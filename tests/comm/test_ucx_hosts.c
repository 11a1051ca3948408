/* UCX with several ranks a host, as far as it knows: ranks of a node count as one. Any placement and any collective
 * give the bits of a serial loop, and failures name the rank, its last place and the call, across hosts as within one.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "cases.h"
#include "support/draw.h"

static ranks make(int n, int per_host, bool turns, comm_progress progress)
{
    ranks all = ranks_make(n);
    all.backend = "ucx";
    all.per_host = per_host;
    all.turns = turns;
    all.progress = progress;
    return all;
}

static void run_cases(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    RANK_CHECK(strcmp(comm_backend_name(c), "ucx") == 0);
    RANK_CHECK(cases_run_all(c, comm_world(c)) > 300);
    RANK_CHECK(comm_barrier(comm_world(c), "end", 0) == FSDP_OK);
    comm_close(c);
}

static void check_cases(int n, int per_host, bool turns, comm_progress progress)
{
    ranks all = make(n, per_host, turns, progress);
    bool good = ranks_run(&all, run_cases, NULL);
    ranks_free(&all);
    if (!good)
        fail_msg("%d ranks, %d a host, %s", n, per_host, turns ? "in turns" : "in order");
}

static void hosts_of_different_sizes_give_the_bits_of_a_serial_loop(void **state)
{
    (void)state;
    check_cases(5, 3, false, COMM_PROGRESS_THREAD);
}

static void ranks_in_turns_over_hosts_give_the_bits_of_a_serial_loop(void **state)
{
    (void)state;
    check_cases(5, 2, true, COMM_PROGRESS_INLINE);
}

/* ---- random collectives on random groups ---- */

static collective_case draw_case(uint64_t *random)
{
    static const comm_kind kinds[] = {COMM_ALL_GATHER, COMM_REDUCE_SCATTER, COMM_ALL_REDUCE};
    static const fsdp_dtype narrow[] = {FSDP_F32, FSDP_BF16, FSDP_F16}, same[] = {FSDP_F64, FSDP_I32, FSDP_I64};
    static const int64_t ranges[] = {9, 700, 30000};
    collective_case k = {.kind = kinds[draw_word(random) % 3], .n_spans = 1 + (int)(draw_word(random) % CASE_PIECES)};
    k.count = 1 + (int64_t)(draw_word(random) % (uint64_t)ranges[draw_word(random) % 3]);
    k.shared = draw_word(random) % 2;
    k.in_place = draw_word(random) % 3 == 0;
    k.unequal = (k.kind == COMM_ALL_GATHER || k.kind == COMM_REDUCE_SCATTER) && draw_word(random) % 2;
    bool wide = draw_word(random) % 4 == 0;
    k.from = wide ? same[draw_word(random) % 3] : narrow[draw_word(random) % 3];
    k.to = wide || k.in_place || !case_is_reduction(&k) ? k.from : narrow[draw_word(random) % 3];
    bool integer = k.from == FSDP_I32 || k.from == FSDP_I64;
    k.add = case_is_reduction(&k) && !k.in_place && !integer && draw_word(random) % 3 == 0;
    k.reduction = !case_is_reduction(&k) || integer ? FSDP_REDUCE_SUM : (fsdp_reduction)(draw_word(random) % 3);
    return k;
}

static void run_random(ranks *all, int rank, void *context)
{
    uint64_t random = *(uint64_t *)context; /* the same draws on every rank */
    comm *c = ranks_open(all, rank);
    case_memory m = {.shared_bytes = (size_t)12 << 20};
    void *memory;
    RANK_CHECK(comm_allocate(c, m.shared_bytes, &memory) == FSDP_OK);
    m.shared = memory;
    for (int round = 0, step = 0; round < 6; round++) {
        int colors[RANKS_MAX], keys[RANKS_MAX];
        for (int i = 0; i < all->n; i++) {
            colors[i] = (int)(draw_word(&random) % 2);
            keys[i] = (int)(draw_word(&random) % 100);
        }
        comm_group *g;
        RANK_CHECK(comm_group_split(c, "random", colors[rank], keys[rank], &g) == FSDP_OK);
        for (int i = 0; i < 25; i++) {
            collective_case k = draw_case(&random);
            case_run(&k, draw_word(&random) % 3 == 0 ? comm_world(c) : g, &m, step++);
        }
        comm_group_free(g);
    }
    RANK_CHECK(comm_barrier(comm_world(c), "end", 0) == FSDP_OK);
    comm_close(c);
}

static void random_collectives_on_random_groups_give_the_bits_of_a_serial_loop(void **state)
{
    (void)state;
    uint64_t seed = 20260;
    for (int i = 0; i < 4; i++) {
        int n = 3 + i, per_host = 1 + (int)(draw_word(&seed) % 3);
        ranks all = make(n, per_host, i % 2, i < 2 ? COMM_PROGRESS_THREAD : COMM_PROGRESS_INLINE);
        all.timeout = 60;
        bool good = ranks_run(&all, run_random, &seed);
        ranks_free(&all);
        if (!good)
            fail_msg("round %d: %d ranks, %d a host", i, n, per_host);
    }
}

/* ---- failures ---- */

enum trouble { LATE, OTHER_PATH, OTHER_COUNT, KILLED, LEAVES, ABORTS };

typedef struct story {
    enum trouble trouble;
    int culprit;
} story;

static fsdp_status gather_unit(comm *c, const char *unit, int64_t count)
{
    static float send[8], recv[8 * RANKS_MAX];
    comm_span span = {.send = {send, FSDP_F32}, .recv = {recv, FSDP_F32}, .count = count};
    comm_op op = {.unit = unit, .step = 9, .n_spans = 1, .spans = &span};
    comm_request r = COMM_REQUEST_INIT;
    FSDP_TRY(comm_all_gather(comm_world(c), &op, &r));
    return comm_wait(&r, NULL);
}

static void live_through(ranks *all, int rank, void *context)
{
    const story *s = context;
    comm *c = ranks_open(all, rank);
    bool culprit = rank == s->culprit;
    RANK_CHECK(gather_unit(c, "layers.2", 5) == FSDP_OK);
    all->shared->flags[rank] = 1;
    for (int i = 0; culprit && i < all->n; i++) /* trouble begins when everybody has come so far */
        while (!all->shared->flags[i])
            sleep_seconds(0.01);
    if (culprit && s->trouble == KILLED)
        kill(getpid(), SIGKILL);
    if (culprit && s->trouble == LEAVES) {
        comm_close(c);
        sleep_seconds(3);
        return;
    }
    if (culprit && s->trouble == LATE)
        sleep_seconds(4);
    if (culprit && s->trouble == ABORTS)
        comm_abort(c, "the loss is not a number");
    double start = clock_seconds();
    fsdp_status status = gather_unit(c, culprit && s->trouble == OTHER_PATH ? "layers.4" : "layers.3",
                                     culprit && s->trouble == OTHER_COUNT ? 6 : 5);
    all->shared->seconds[rank] = clock_seconds() - start;
    ranks_say(all, rank, fsdp_last_error());
    RANK_CHECK(status == FSDP_ERR_PEER || status == FSDP_ERR_TIMEOUT);
    double closing = clock_seconds();
    comm_close(c);
    RANK_CHECK(clock_seconds() - closing < 5);
}

/* Four ranks on two hosts; everybody who can says `wanted`, within 15 seconds. */
static void check_story(enum trouble trouble, int culprit, const char *wanted)
{
    story s = {trouble, culprit};
    for (int progress = COMM_PROGRESS_THREAD; progress <= COMM_PROGRESS_INLINE; progress++) {
        ranks all = make(4, 2, false, (comm_progress)progress);
        all.timeout = trouble == LATE ? 1.5 : 60;
        ranks_run(&all, live_through, &s);
        for (int rank = 0; rank < 4; rank++) {
            bool silent = rank == culprit && (trouble == KILLED || trouble == LEAVES);
            if (silent)
                continue;
            if (all.statuses[rank] != 0 || !strstr(all.shared->text[rank], wanted) || all.shared->seconds[rank] > 15)
                fail_msg("rank %d: status %x, %.1f s, said '%s' instead of '%s'", rank, (unsigned)all.statuses[rank],
                         all.shared->seconds[rank], all.shared->text[rank], wanted);
        }
        ranks_free(&all);
    }
}

static void a_late_rank_is_named_on_every_host(void **state)
{
    (void)state;
    check_story(LATE, 3, "all_gather of unit layers.3 timed out after 1.5 s: rank 3 last reached layers.2 (step 9)");
}

static void a_rank_on_another_path_is_named_on_every_host(void **state)
{
    (void)state;
    check_story(OTHER_PATH, 1,
                "rank 1 called all_gather of unit layers.4 where rank 0 called all_gather of unit layers.3");
    check_story(OTHER_COUNT, 2, "rank 2 called all_gather of unit layers.3 with");
}

static void a_host_on_another_path_is_named(void **state)
{
    (void)state;
    ranks all = make(2, 0, false, COMM_PROGRESS_INLINE);
    story s = {OTHER_PATH, 1};
    ranks_run(&all, live_through, &s);
    for (int rank = 0; rank < 2; rank++)
        assert_non_null(strstr(all.shared->text[rank],
                               "rank 1 called all_gather of unit layers.4 where rank 0 called all_gather of unit"));
    ranks_free(&all);
}

static void a_killed_rank_is_named_on_every_host(void **state)
{
    (void)state;
    check_story(KILLED, 1, "rank 1");
    check_story(KILLED, 2, "last reached layers.2 (step 9)");
}

static void a_rank_that_leaves_early_is_named_on_every_host(void **state)
{
    (void)state;
    check_story(LEAVES, 3, "left the job");
}

static void an_abort_reaches_every_host(void **state)
{
    (void)state;
    check_story(ABORTS, 3, "the loss is not a number");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_of_different_sizes_give_the_bits_of_a_serial_loop),
        cmocka_unit_test(ranks_in_turns_over_hosts_give_the_bits_of_a_serial_loop),
        cmocka_unit_test(random_collectives_on_random_groups_give_the_bits_of_a_serial_loop),
        cmocka_unit_test(a_late_rank_is_named_on_every_host),
        cmocka_unit_test(a_rank_on_another_path_is_named_on_every_host),
        cmocka_unit_test(a_host_on_another_path_is_named),
        cmocka_unit_test(a_killed_rank_is_named_on_every_host),
        cmocka_unit_test(a_rank_that_leaves_early_is_named_on_every_host),
        cmocka_unit_test(an_abort_reaches_every_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
