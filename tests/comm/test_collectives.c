/* Collectives through shared memory: results, order, groups, memory. What happens when ranks fail is in
 * test_failures.c. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <unistd.h>

#include "base/record/hooks.h"
#include "base/host/threads.h"
#include "cases.h"

static void every_case(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    RANK_CHECK(cases_run_all(c, comm_world(c)) > 300);
    comm_close(c);
}

static void check_every_case(int n, comm_progress progress)
{
    ranks all = ranks_make(n);
    all.progress = progress;
    bool good = ranks_run(&all, every_case, NULL);
    ranks_free(&all);
    assert_true(good);
}

static void two_ranks_match_a_serial_loop_bit_for_bit(void **state)
{
    (void)state;
    check_every_case(2, COMM_PROGRESS_INLINE);
}

static void three_ranks_match_a_serial_loop_bit_for_bit(void **state)
{
    (void)state;
    check_every_case(3, COMM_PROGRESS_INLINE);
}

static void four_ranks_with_progress_threads_match_a_serial_loop_bit_for_bit(void **state)
{
    (void)state;
    check_every_case(4, COMM_PROGRESS_THREAD);
}

static void eight_ranks_match_a_serial_loop_bit_for_bit(void **state)
{
    (void)state;
    check_every_case(8, COMM_PROGRESS_INLINE);
}

static void one_rank_alone_gives_the_same_results(void **state)
{
    (void)state;
    ranks all = ranks_make(1);
    all.backend = "self";
    bool good = ranks_run(&all, every_case, NULL);
    all.backend = "shm";
    good = good && ranks_run(&all, every_case, NULL);
    ranks_free(&all);
    assert_true(good);
}

/* Large enough for streaming stores and many chunks. Values whose sums are exact, so that any order would do here. */
static void large_buffers(ranks *all, int rank, void *context)
{
    enum { PART = (1 << 20) + 5 };
    threads_set(*(const int *)context, 1);
    comm *c = ranks_open(all, rank);
    comm_group *g = comm_world(c);
    int n = all->n;
    void *memory;
    size_t bytes = (size_t)(n + 1) * PART * sizeof(float);
    RANK_CHECK(comm_allocate(c, bytes, &memory) == FSDP_OK);
    float *full = memory, *part = full + (size_t)n * PART, *private_full = malloc(bytes);
    comm_request r = COMM_REQUEST_INIT;
    for (int shared = 0; shared < 2; shared++) {
        float *source = shared ? part : private_full + (size_t)n * PART, *whole = shared ? full : private_full;
        for (int64_t i = 0; i < PART; i++)
            source[i] = (float)(rank * 1000 + i % 1000);
        comm_span gather = {.send = {source, FSDP_F32}, .recv = {whole, FSDP_F32}, .count = PART};
        comm_op op = {.unit = "large", .n_spans = 1, .spans = &gather};
        RANK_CHECK(comm_all_gather(g, &op, &r) == FSDP_OK && comm_wait(&r, NULL) == FSDP_OK);
        for (int64_t i = 0; i < (int64_t)n * PART; i++)
            RANK_CHECK(whole[i] == (float)(i / PART * 1000 + i % PART % 1000));
        RANK_CHECK(comm_wait_sent(&r, NULL) == FSDP_OK);

        comm_span scatter = {.send = {whole, FSDP_F32}, .recv = {source, FSDP_F32}, .count = PART};
        op.spans = &scatter;
        RANK_CHECK(comm_reduce_scatter(g, &op, &r) == FSDP_OK && comm_wait(&r, NULL) == FSDP_OK);
        for (int64_t i = 0; i < PART; i++)
            RANK_CHECK(source[i] == (float)n * (float)(rank * 1000 + i % 1000));
        RANK_CHECK(comm_wait_sent(&r, NULL) == FSDP_OK);

        comm_span reduce = {.send = {whole, FSDP_F32}, .recv = {whole, FSDP_F32}, .count = (int64_t)n * PART};
        op.spans = &reduce;
        RANK_CHECK(comm_all_reduce(g, &op, &r) == FSDP_OK && comm_wait(&r, NULL) == FSDP_OK);
        for (int64_t i = 0; i < (int64_t)n * PART; i++)
            RANK_CHECK(whole[i] == (float)n * (float)(i / PART * 1000 + i % PART % 1000));
    }
    free(private_full);
    comm_close(c);
}

static void buffers_larger_than_the_caches_arrive_whole(void **state)
{
    (void)state;
    /* threads that share the work of a collective inside a wait */
    for (int threads = 1; threads <= 3; threads += 2) {
        ranks all = ranks_make(3);
        all.progress = COMM_PROGRESS_INLINE;
        bool good = ranks_run(&all, large_buffers, &threads);
        ranks_free(&all);
        assert_true(good);
    }
}

/* ---- what opening takes ---- */

static void add_memory(void *context, const hook_event *e)
{
    *(int64_t *)context += e->bytes;
}

static void open_and_close(ranks *all, int rank, void *context)
{
    (void)context;
    int64_t held = 0;
    comm_config config = ranks_config(all, rank);
    size_t overhead = comm_overhead(&config);
    comm *c;
    RANK_CHECK(hooks_add_kind(HOOK_MEMORY, add_memory, &held) == FSDP_OK);
    RANK_CHECK(comm_open(&config, &c) == FSDP_OK);
    RANK_CHECK(overhead > config.staging_bytes && held == (int64_t)overhead);
    comm_close(c);
    RANK_CHECK(held == 0);
    hooks_remove(add_memory, &held);
}

static void memory_of_opening_is_foreseen_and_reported_to_the_byte(void **state)
{
    (void)state;
    ranks all = ranks_make(3);
    bool good = ranks_run(&all, open_and_close, NULL);
    ranks_free(&all);
    assert_true(good);
    comm_config alone = COMM_CONFIG_INIT;
    alone.job = job_single();
    assert_int_equal(comm_overhead(&alone), 0);
}

/* Context: {cores to be bound to, 0 for all; threads; whether a progress thread is expected}. */
static void choose_progress(ranks *all, int rank, void *context)
{
    const int *c = context;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = 0; i < c[0]; i++)
        CPU_SET(i, &set);
    if (c[0])
        RANK_CHECK(sched_setaffinity(0, sizeof set, &set) == 0);
    threads_set(c[1], all->n);
    comm *opened = ranks_open(all, rank);
    RANK_CHECK(comm_has_progress_thread(opened) == c[2]);
    comm_close(opened);
}

static void a_progress_thread_wants_a_core_to_spare(void **state)
{
    (void)state;
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    /* Two ranks that may run everywhere have half the cores each; bound to some, those. */
    const int cases[][3] = {{0, cores, false}, {0, 1, cores / 2 > 1}, {1, 1, false}, {2, 1, cores > 2}, {2, 2, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (cases[i][0] > threads_cores() || (cases[i][0] && threads_cores() != cores))
            continue; /* we are bound ourselves */
        ranks all = ranks_make(2);
        all.progress = COMM_PROGRESS_AUTO;
        bool good = ranks_run(&all, choose_progress, (void *)(uintptr_t)cases[i]);
        ranks_free(&all);
        assert_true(good);
    }
}

/* ---- groups ---- */

static void hybrid_groups(ranks *all, int rank, void *context)
{
    int size = *(int *)context;
    comm *c = ranks_open(all, rank);
    comm_group *shard, *replica, *odd;
    RANK_CHECK(comm_group_split_by_size(c, 3, &shard, &replica) == FSDP_ERR_INPUT);
    RANK_CHECK(comm_group_split_by_size(c, size, &shard, &replica) == FSDP_OK);
    RANK_CHECK(comm_group_size(shard) == size && comm_group_size(replica) == all->n / size);
    RANK_CHECK(comm_group_rank(shard) == rank % size && comm_group_rank(replica) == rank / size);
    for (int i = 0; i < comm_group_size(replica); i++)
        RANK_CHECK(comm_group_world_rank(replica, i) == i * size + rank % size);

    /* The key turns the order around. */
    RANK_CHECK(comm_group_split(c, "odd", rank & 1, -rank, &odd) == FSDP_OK);
    RANK_CHECK(comm_group_rank(odd) == comm_group_size(odd) - 1 - rank / 2);

    for (int round = 0; round < 30; round++) {
        int64_t one = rank + 1, other = rank + 1, third = rank + 1, wanted = 0;
        RANK_CHECK(comm_all_reduce_i64(shard, "shards", round, FSDP_REDUCE_SUM, &one, 1) == FSDP_OK);
        RANK_CHECK(comm_all_reduce_i64(replica, "replicas", round, FSDP_REDUCE_SUM, &other, 1) == FSDP_OK);
        RANK_CHECK(comm_all_reduce_i64(odd, "odd", round, FSDP_REDUCE_MAX, &third, 1) == FSDP_OK);
        for (int i = 0; i < size; i++)
            wanted += comm_group_world_rank(shard, i) + 1;
        RANK_CHECK(one == wanted);
        wanted = 0;
        for (int i = 0; i < comm_group_size(replica); i++)
            wanted += comm_group_world_rank(replica, i) + 1;
        RANK_CHECK(other == wanted);
        RANK_CHECK(third == (all->n - 1) / 2 * 2 + (rank & 1) + 1 || third == (all->n - 2) / 2 * 2 + (rank & 1) + 1);
    }
    comm_group_free(odd);
    cases_run_all(c, shard);
    comm_group_free(shard);
    comm_group_free(replica);
    comm_close(c);
}

static void shard_and_replica_groups_work_beside_each_other(void **state)
{
    (void)state;
    ranks all = ranks_make(4);
    int size = 2;
    bool good = ranks_run(&all, hybrid_groups, &size);
    ranks_free(&all);
    assert_true(good);
    all = ranks_make(8);
    size = 4;
    good = ranks_run(&all, hybrid_groups, &size);
    ranks_free(&all);
    assert_true(good);
}

/* Groups come and go with models. Members change from round to round, so that a slot that is used again has other
 * counts behind it on every rank; ranks run ahead of each other by different times. */
static void groups_in_turn(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    comm_group *kept;
    RANK_CHECK(comm_group_split(c, "kept", 0, 0, &kept) == FSDP_OK);
    for (int round = 0; round < 60; round++) {
        comm_group *shard, *replica, *odd;
        RANK_CHECK(comm_group_split_by_size(c, round % 3 == 0 ? 1 : 2, &shard, &replica) == FSDP_OK);
        RANK_CHECK(comm_group_split(c, "odd", round % 2 ? rank == 0 : rank / 3, -rank, &odd) == FSDP_OK);
        comm_group *groups[] = {shard, replica, odd, kept};
        for (int i = 0; i < 4; i++)
            for (int k = 0; k < 1 + (round + i) % 5; k++) {
                int64_t sum = rank + 1, wanted = 0;
                for (int member = 0; member < comm_group_size(groups[i]); member++)
                    wanted += comm_group_world_rank(groups[i], member) + 1;
                RANK_CHECK(comm_all_reduce_i64(groups[i], "sum", round, FSDP_REDUCE_SUM, &sum, 1) == FSDP_OK &&
                           sum == wanted);
            }
        if ((round + rank) % 7 == 0)
            sleep_seconds(0.002);
        comm_group_free(round % 2 ? shard : odd);
        comm_group_free(replica);
        comm_group_free(round % 2 ? odd : shard);
    }
    comm_group *groups[COMM_MAX_GROUPS];
    for (int i = 1; i < COMM_MAX_GROUPS; i++)
        RANK_CHECK(comm_group_split(c, "many", 0, 0, &groups[i]) == FSDP_OK);
    RANK_CHECK(comm_group_split(c, "one too many", 0, 0, &groups[0]) == FSDP_ERR_STATE);
    comm_group_free(groups[COMM_MAX_GROUPS / 2]);
    RANK_CHECK(comm_group_split(c, "again", 0, 0, &groups[0]) == FSDP_OK);
    RANK_CHECK(comm_barrier(groups[0], "end", 0) == FSDP_OK);
    comm_close(c);
}

static void groups_that_are_freed_make_room_for_others(void **state)
{
    (void)state;
    for (int thread = 0; thread < 2; thread++) {
        ranks all = ranks_make(4);
        all.progress = thread ? COMM_PROGRESS_THREAD : COMM_PROGRESS_INLINE;
        bool good = ranks_run(&all, groups_in_turn, NULL);
        ranks_free(&all);
        assert_true(good);
    }
}

static void bytes_of_groups(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    comm_group *g = comm_world(c);
    float send[30] = {0}, recv[30];
    comm_span span = {.send = {send, FSDP_F32}, .recv = {recv, FSDP_F32}, .count = 10};
    comm_op op = {.unit = "u", .n_spans = 1, .spans = &span};
    comm_request r = COMM_REQUEST_INIT;
    int64_t before = comm_group_bytes(g);
    RANK_CHECK(comm_all_gather(g, &op, &r) == FSDP_OK && comm_wait(&r, NULL) == FSDP_OK);
    RANK_CHECK(comm_group_bytes(g) - before == 80);
    RANK_CHECK(comm_reduce_scatter(g, &op, &r) == FSDP_OK && comm_wait(&r, NULL) == FSDP_OK);
    RANK_CHECK(comm_group_bytes(g) - before == 160);
    RANK_CHECK(comm_all_reduce(g, &op, &r) == FSDP_OK && comm_wait(&r, NULL) == FSDP_OK);
    RANK_CHECK(comm_group_bytes(g) - before == 160 + 53);
    comm_close(c);
}

static void received_bytes_are_counted_per_group(void **state)
{
    (void)state;
    ranks all = ranks_make(3);
    bool good = ranks_run(&all, bytes_of_groups, NULL);
    ranks_free(&all);
    assert_true(good);
}

/* ---- asynchrony and reuse of sources ---- */

enum { UNITS = 12, UNIT_NUMEL = 4000 };

/* What the engine does: gathers prefetched, gradients reduced while later ones are made, shards updated when all have
 * read them. A shard overwritten too early, or a gradient buffer refilled too early, shows up as a wrong number. */
static void training_like(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    comm_group *g = comm_world(c);
    int n = all->n;
    void *memory;
    RANK_CHECK(comm_allocate(c, (size_t)(UNITS + n) * UNIT_NUMEL * 2 * sizeof(float), &memory) == FSDP_OK);
    float *shards = memory, *gradients = shards + UNITS * UNIT_NUMEL;
    float *full = malloc((size_t)n * UNIT_NUMEL * 3 * sizeof *full), *reduced = calloc(UNIT_NUMEL, sizeof *reduced);
    comm_request gathers[UNITS] = {0}, reductions[2] = {0};
    comm_span gather_spans[UNITS], reduce_spans[2];
    char names[UNITS][32];
    for (int u = 0; u < UNITS; u++)
        snprintf(names[u], sizeof names[u], "layers.%d", u);

    for (int step = 0; step < 20; step++) {
        for (int u = 0; u < UNITS; u++) {
            RANK_CHECK(comm_wait_sent(&gathers[u], NULL) == FSDP_OK);
            for (int i = 0; i < UNIT_NUMEL; i++)
                shards[u * UNIT_NUMEL + i] = (float)(step * 1000 + u * 10 + rank);
        }
        for (int u = 0; u < UNITS + 2; u++) {
            if (u < UNITS) {
                gather_spans[u] = (comm_span){.send = {shards + u * UNIT_NUMEL, FSDP_F32},
                                              .recv = {full + u % 3 * n * UNIT_NUMEL, FSDP_F32},
                                              .count = UNIT_NUMEL};
                comm_op op = {.unit = names[u], .step = step, .n_spans = 1, .spans = &gather_spans[u]};
                RANK_CHECK(comm_all_gather(g, &op, &gathers[u]) == FSDP_OK);
            }
            if (u < 2)
                continue;
            int done = u - 2, slot = done & 1;
            RANK_CHECK(comm_wait(&gathers[done], NULL) == FSDP_OK);
            for (int i = 0; i < n * UNIT_NUMEL; i += 97)
                RANK_CHECK(full[done % 3 * n * UNIT_NUMEL + i] == (float)(step * 1000 + done * 10 + i / UNIT_NUMEL));
            RANK_CHECK(comm_wait_sent(&reductions[slot], NULL) == FSDP_OK);
            float *gradient = gradients + slot * n * UNIT_NUMEL;
            for (int i = 0; i < n * UNIT_NUMEL; i++)
                gradient[i] = (float)(step + done + rank);
            reduce_spans[slot] =
                (comm_span){.send = {gradient, FSDP_F32}, .recv = {reduced, FSDP_F32}, .count = UNIT_NUMEL};
            comm_op op = {.unit = names[done], .step = step, .n_spans = 1, .spans = &reduce_spans[slot]};
            RANK_CHECK(comm_reduce_scatter(g, &op, &reductions[slot]) == FSDP_OK);
            if (done % 3 == rank % 3) { /* ranks wait at different times */
                RANK_CHECK(comm_wait(&reductions[slot], NULL) == FSDP_OK);
                for (int i = 0; i < UNIT_NUMEL; i++)
                    RANK_CHECK(reduced[i] == (float)(n * (step + done) + n * (n - 1) / 2));
            }
        }
    }
    for (int slot = 0; slot < 2; slot++) /* who leaves before would be missed by those who have not run them yet */
        RANK_CHECK(comm_wait(&reductions[slot], NULL) == FSDP_OK);
    comm_close(c);
    free(full);
    free(reduced);
}

static void sources_are_not_overwritten_while_peers_read_them(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n++) {
        for (int progress = COMM_PROGRESS_THREAD; progress <= COMM_PROGRESS_INLINE; progress++) {
            ranks all = ranks_make(n);
            all.progress = (comm_progress)progress;
            bool good = ranks_run(&all, training_like, NULL);
            ranks_free(&all);
            assert_true(good);
        }
    }
}

static void many_in_flight(ranks *all, int rank, void *context)
{
    (void)context;
    enum { MANY = 100 };
    comm *c = ranks_open(all, rank);
    comm_request requests[MANY] = {0};
    comm_span spans[MANY];
    static float send[MANY][5], recv[MANY][40];
    for (int i = 0; i < MANY; i++) {
        for (int k = 0; k < 5; k++)
            send[i][k] = (float)(i * 10 + rank);
        spans[i] = (comm_span){.send = {send[i], FSDP_F32}, .recv = {recv[i], FSDP_F32}, .count = 5};
        comm_op op = {.unit = "many", .step = i, .n_spans = 1, .spans = &spans[i]};
        RANK_CHECK(comm_all_gather(comm_world(c), &op, &requests[i]) == FSDP_OK);
        if (i == 0 && all->progress == COMM_PROGRESS_INLINE)
            RANK_CHECK(comm_all_gather(comm_world(c), &op, &requests[i]) == FSDP_ERR_STATE);
    }
    RANK_CHECK(comm_wait(&requests[MANY - 1], NULL) == FSDP_OK);
    for (int i = 0; i < MANY; i++) {
        RANK_CHECK(comm_wait(&requests[i], NULL) == FSDP_OK);
        for (int k = 0; k < 5 * all->n; k++)
            RANK_CHECK(recv[i][k] == (float)(i * 10 + k / 5));
    }
    comm_close(c);
}

static void more_collectives_than_the_queue_holds_may_be_started(void **state)
{
    (void)state;
    for (int progress = COMM_PROGRESS_THREAD; progress <= COMM_PROGRESS_INLINE; progress++) {
        ranks all = ranks_make(3);
        all.progress = (comm_progress)progress;
        bool good = ranks_run(&all, many_in_flight, NULL);
        ranks_free(&all);
        assert_true(good);
    }
}

/* ---- small objects ---- */

static void exchange_objects(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    char mine[64], got[RANKS_MAX][100];
    size_t bytes[RANKS_MAX];
    for (int round = 0; round < 50; round++) {
        int length = snprintf(mine, sizeof mine, "%.*s%d", rank * 7 + round % 3, "abcdefghijklmnopqrstuvwxyz", round);
        if (round == 7 && rank == 1)
            length = 0;
        RANK_CHECK(comm_exchange(comm_world(c), "greeting", mine, (size_t)length, 100, got, bytes) == FSDP_OK);
        for (int i = 0; i < all->n; i++) {
            char wanted[64];
            int size =
                snprintf(wanted, sizeof wanted, "%.*s%d", i * 7 + round % 3, "abcdefghijklmnopqrstuvwxyz", round);
            if (round == 7 && i == 1)
                size = 0;
            RANK_CHECK(bytes[i] == (size_t)size && memcmp(got[i], wanted, (size_t)size) == 0);
        }
        RANK_CHECK(comm_barrier(comm_world(c), "round", round) == FSDP_OK);
    }
    RANK_CHECK(comm_exchange(comm_world(c), "x", mine, 101, 100, got, bytes) == FSDP_ERR_INPUT);
    double value = rank == 0 ? 1e16 : 1;
    RANK_CHECK(comm_all_reduce_f64(comm_world(c), "norm", 0, FSDP_REDUCE_SUM, &value, 1) == FSDP_OK);
    double wanted = 1e16;
    for (int i = 1; i < all->n; i++)
        wanted += 1;
    RANK_CHECK(value == wanted);
    comm_close(c);
}

static void small_objects_of_different_sizes_are_exchanged(void **state)
{
    (void)state;
    ranks all = ranks_make(4);
    bool good = ranks_run(&all, exchange_objects, NULL);
    ranks_free(&all);
    assert_true(good);
}

static void wrong_arguments(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    comm_group *g = comm_world(c);
    float data[8];
    int64_t negative[] = {1, -1};
    comm_request r = COMM_REQUEST_INIT;
    comm_span p = {.send = {data, FSDP_F32}, .recv = {data, FSDP_BF16}, .count = 1};
    comm_op op = {.unit = "u", .n_spans = 1, .spans = &p};
    RANK_CHECK(comm_all_gather(g, &op, &r) == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "one dtype"));
    p.send.dtype = p.recv.dtype = FSDP_U8;
    RANK_CHECK(comm_all_reduce(g, &op, &r) == FSDP_ERR_INPUT);
    p.send.dtype = p.recv.dtype = FSDP_I64;
    p.counts = negative;
    RANK_CHECK(comm_all_gather(g, &op, &r) == FSDP_ERR_INPUT);
    p.counts = NULL;
    p.recv.p = NULL;
    RANK_CHECK(comm_all_gather(g, &op, &r) == FSDP_ERR_INPUT && strstr(fsdp_last_error(), "recv"));
    op.n_spans = COMM_MAX_PIECES + 1;
    RANK_CHECK(comm_all_gather(g, &op, &r) == FSDP_ERR_INPUT);
    RANK_CHECK(comm_barrier(g, "still whole", 0) == FSDP_OK);
    comm_close(c);
}

static void wrong_arguments_are_refused_and_harm_nobody(void **state)
{
    (void)state;
    ranks all = ranks_make(2);
    bool good = ranks_run(&all, wrong_arguments, NULL);
    ranks_free(&all);
    assert_true(good);
    comm_config config = COMM_CONFIG_INIT;
    comm *c;
    config.job = job_single();
    config.backend = "carrier pigeon";
    assert_int_equal(comm_open(&config, &c), FSDP_ERR_INPUT);
    config.backend = "self";
    config.job.world_size = 2;
    assert_int_equal(comm_open(&config, &c), FSDP_ERR_INPUT);
    config.backend = "shm";
    config.timeout_seconds = 0.2; /* the others may be another launcher's, and late */
    config.job.master_port = free_port();
    assert_int_equal(comm_open(&config, &c), FSDP_ERR_TIMEOUT);
    assert_non_null(strstr(fsdp_last_error(), "rank 1 of 2 did not come"));
}

/* A device of which this is known: how often a sum was put on a stream. */
static int sums_enqueued;

static fsdp_status count_sum(struct stream *s, const axpby_args *a)
{
    (void)s, (void)a;
    sums_enqueued++;
    return FSDP_OK;
}

/* What the caller enqueues next must come behind it: a collective that is enqueued only when somebody waits for it
 * reads buffers that have been filled again, and streams that followed the caller's have passed it by. */
static void one_rank_on_a_device_enqueues_as_it_starts(void **state)
{
    (void)state;
    static const comm_progress ways[] = {COMM_PROGRESS_INLINE, COMM_PROGRESS_THREAD};
    kernel_table kernels = {.axpby = count_sum};
    device dev = {.name = "counting", .own_memory = true, .kernels = &kernels};
    float from[4] = {0}, to[4] = {0};
    comm_span span = {.send = {from, FSDP_F32}, .recv = {to, FSDP_F32}, .count = 4};
    comm_op op = {.label = "sum", .n_spans = 1, .spans = &span, .stream = (stream *)(void *)&dev};
    for (int i = 0; i < 2; i++) {
        comm_config config = COMM_CONFIG_INIT;
        comm_request r = COMM_REQUEST_INIT;
        comm *c;
        config.job = job_single();
        config.backend = "self";
        config.device = &dev;
        config.progress = ways[i];
        sums_enqueued = 0;
        assert_int_equal(comm_open(&config, &c), FSDP_OK);
        assert_int_equal(comm_reduce_scatter(comm_world(c), &op, &r), FSDP_OK);
        assert_int_equal(sums_enqueued, 1);
        assert_int_equal(comm_wait(&r, op.stream), FSDP_OK);
        assert_int_equal(sums_enqueued, 1);
        comm_close(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_on_a_device_enqueues_as_it_starts),
        cmocka_unit_test(one_rank_alone_gives_the_same_results),
        cmocka_unit_test(two_ranks_match_a_serial_loop_bit_for_bit),
        cmocka_unit_test(three_ranks_match_a_serial_loop_bit_for_bit),
        cmocka_unit_test(four_ranks_with_progress_threads_match_a_serial_loop_bit_for_bit),
        cmocka_unit_test(eight_ranks_match_a_serial_loop_bit_for_bit),
        cmocka_unit_test(buffers_larger_than_the_caches_arrive_whole),
        cmocka_unit_test(memory_of_opening_is_foreseen_and_reported_to_the_byte),
        cmocka_unit_test(a_progress_thread_wants_a_core_to_spare),
        cmocka_unit_test(shard_and_replica_groups_work_beside_each_other),
        cmocka_unit_test(groups_that_are_freed_make_room_for_others),
        cmocka_unit_test(received_bytes_are_counted_per_group),
        cmocka_unit_test(sources_are_not_overwritten_while_peers_read_them),
        cmocka_unit_test(more_collectives_than_the_queue_holds_may_be_started),
        cmocka_unit_test(small_objects_of_different_sizes_are_exchanged),
        cmocka_unit_test(wrong_arguments_are_refused_and_harm_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
