/* NCCL between processes that share the first GPU (each says it is a host of its own, so NCCL goes over sockets): what
 * collectives compute, in place and on registered memory, in the world and in split groups, and how they end when a
 * rank takes another path, does not come, leaves or dies. Skipped without a GPU. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "base/record/hooks.h"
#include "comm/gpu_ranks.h"
#include "comm/nccl/backend.h"
#include "meet/meeting.h"

static gpu_rank gpu_open_with(const ranks *all, int rank, fsdp_comm_memory memory, int ctas)
{
    gpu_rank g = {NULL, NULL, NULL};
    comm_config config = gpu_config(all, rank, &g);
    config.memory = memory;
    config.ctas = ctas;
    fsdp_status status = comm_open(&config, &g.comm);
    RANK_CHECK(status == FSDP_OK || (status == FSDP_ERR_UNSUPPORTED && memory != FSDP_COMM_MEMORY_PLAIN));
    return g;
}

static gpu_rank gpu_open(const ranks *all, int rank)
{
    return gpu_open_with(all, rank, FSDP_COMM_MEMORY_PLAIN, 0);
}

/* ---- what they compute ---- */

enum { PART = 1000 };

static float value(int rank, int64_t i)
{
    return (float)(rank + 1) * 0.5f + (float)(i % 13);
}

static fsdp_status gather_in_place(gpu_rank *g, comm_group *group, float *full, int64_t part, int64_t step)
{
    comm_span span = {
        .send = {full + comm_group_rank(group) * part, FSDP_F32}, .recv = {full, FSDP_F32}, .count = part};
    comm_op op = {.unit = "layers.4", .step = step, .n_spans = 1, .spans = &span, .stream = g->stream};
    comm_request r = COMM_REQUEST_INIT;
    fsdp_status status = comm_all_gather(group, &op, &r);
    return status == FSDP_OK ? comm_wait(&r, NULL) : status;
}

static void check_gather(gpu_rank *g, comm_group *group, float *memory)
{
    int n = comm_group_size(group);
    float host[8 * PART];
    for (int64_t i = 0; i < n * PART; i++)
        host[i] = i / PART == comm_group_rank(group) ? value(comm_group_world_rank(group, (int)(i / PART)), i) : -1;
    put(g, memory, host, (size_t)n * PART * sizeof(float));
    RANK_CHECK(gather_in_place(g, group, memory, PART, 1) == FSDP_OK);
    put(g, host, memory, (size_t)n * PART * sizeof(float));
    for (int64_t i = 0; i < n * PART; i++)
        RANK_CHECK(host[i] == value(comm_group_world_rank(group, (int)(i / PART)), i));
}

/* In place: this rank's part of the sum, or of the mean, lies where its part of the data lay. */
static void check_reduce_scatter(gpu_rank *g, comm_group *group, float *memory)
{
    int n = comm_group_size(group), me = comm_group_rank(group);
    float host[8 * PART];
    for (int64_t i = 0; i < n * PART; i++)
        host[i] = value(comm_group_world_rank(group, me), i);
    put(g, memory, host, (size_t)n * PART * sizeof(float));
    comm_span span = {.send = {memory, FSDP_F32}, .recv = {memory + me * PART, FSDP_F32}, .count = PART};
    comm_op op = {.unit = "layers.5", .n_spans = 1, .spans = &span, .stream = g->stream};
    comm_request r = COMM_REQUEST_INIT;
    RANK_CHECK(comm_reduce_scatter(group, &op, &r) == FSDP_OK);
    RANK_CHECK(comm_wait(&r, g->stream) == FSDP_OK);
    put(g, host, memory, (size_t)n * PART * sizeof(float));
    for (int64_t i = me * PART; i < (me + 1) * PART; i++) {
        double sum = 0;
        for (int k = 0; k < n; k++)
            sum += (double)value(comm_group_world_rank(group, k), i);
        RANK_CHECK(fabs((double)host[i] - sum) < 1e-5 * fabs(sum));
    }
}

static _Atomic int64_t allocated;

static void count_memory(void *context, const hook_event *e)
{
    (void)context;
    if (e->kind == HOOK_MEMORY)
        atomic_fetch_add(&allocated, e->bytes);
}

/* NCCL may be too old for symmetric memory; it then says so on all ranks. */
static bool is_unsupported(gpu_rank *g)
{
    if (!g->comm)
        printf("%s\n", fsdp_last_error());
    return !g->comm;
}

static void computing(ranks *all, int rank, void *context)
{
    const fsdp_comm_memory memory = *(const fsdp_comm_memory *)context;
    double start = clock_seconds();
    gpu_rank g = gpu_open_with(all, rank, memory, memory == FSDP_COMM_MEMORY_PLAIN ? 0 : 4);
    double opened = clock_seconds();
    if (is_unsupported(&g))
        return;
    comm_group *shard, *replica;
    void *early, *late;
    size_t bytes = (size_t)all->n * PART * sizeof(float);
    RANK_CHECK(comm_barrier(comm_world(g.comm), "start", 0) == FSDP_OK);
    hooks_add(count_memory, NULL);
    int64_t before = atomic_load(&allocated);
    RANK_CHECK(comm_allocate(g.comm, bytes, &early) == FSDP_OK); /* registered with the groups to come */
    RANK_CHECK(atomic_load(&allocated) - before == (int64_t)comm_allocated_bytes(&g.comm->config, bytes));
    RANK_CHECK(comm_group_split_by_size(g.comm, 2, &shard, &replica) == FSDP_OK);
    RANK_CHECK(comm_allocate(g.comm, bytes, &late) == FSDP_OK);
    comm_group *groups[] = {comm_world(g.comm), shard, replica};
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2 && comm_group_size(groups[i]) > 1; k++) {
            float *data = k ? late : early;
            check_gather(&g, groups[i], data);
            check_reduce_scatter(&g, groups[i], data);
        }
    comm_release(g.comm, early);
    check_gather(&g, shard, late);
    comm_group_free(shard);
    check_gather(&g, comm_world(g.comm), late);
    double closing = clock_seconds();
    gpu_close(&g); /* the rest is the comm's to free */
    if (rank == 0)
        printf("%d ranks: opened in %.2f s, closed in %.2f s\n", all->n, opened - start, clock_seconds() - closing);
}

static void in_place_collectives_on_registered_memory_compute_what_they_should(void **state)
{
    (void)state;
    for (int n = 2; n <= 4; n += 2)
        for (fsdp_comm_memory m = FSDP_COMM_MEMORY_PLAIN; m <= FSDP_COMM_MEMORY_COPY_ENGINE; m++) {
            ranks all = ranks_make(n);
            bool good = ranks_run(&all, computing, &m);
            ranks_free(&all);
            assert_true(good);
        }
}

/* A window has one size on all ranks; memory of several sizes is used without one, also by groups that come later. */
static void sharing_unevenly(ranks *all, int rank, void *context)
{
    (void)context;
    gpu_rank g = gpu_open_with(all, rank, FSDP_COMM_MEMORY_SYMMETRIC, 0);
    size_t bytes = (size_t)all->n * PART * sizeof(float);
    void *uneven, *even, *none;
    comm_group *shard, *replica;
    if (is_unsupported(&g))
        return;
    RANK_CHECK(comm_allocate(g.comm, bytes + (size_t)rank * NCCL_PAGE, &uneven) == FSDP_OK);
    RANK_CHECK(comm_allocate(g.comm, rank ? bytes : 0, &none) == FSDP_OK);
    RANK_CHECK((none == NULL) == (rank == 0));
    RANK_CHECK(comm_allocate(g.comm, bytes, &even) == FSDP_OK);
    RANK_CHECK(comm_group_split_by_size(g.comm, all->n, &shard, &replica) == FSDP_OK);
    comm_group *groups[] = {comm_world(g.comm), shard};
    for (int i = 0; i < 2; i++) {
        check_gather(&g, groups[i], uneven);
        check_reduce_scatter(&g, groups[i], even);
    }
    comm_release(g.comm, uneven);
    check_gather(&g, shard, even);
    gpu_close(&g);
}

static void symmetric_memory_may_differ_in_size(void **state)
{
    (void)state;
    ranks all = ranks_make(2);
    bool good = ranks_run(&all, sharing_unevenly, NULL);
    ranks_free(&all);
    assert_true(good);
}

static ncclResult_t never_register(const ncclComm_t handle, void *start, size_t bytes, void **out)
{
    (void)handle, (void)start, (void)bytes, (void)out;
    return ncclSystemError;
}

static int count_registrations(const comm_group *g)
{
    int n = 0;
    for (const nccl_registration *r = ((const nccl_group *)g->backend)->registrations; r; r = r->next)
        n++;
    return n;
}

/* Memory that one rank cannot register is registered nowhere, whether the group or the memory was there first. */
static void registering_on_all_but_one(ranks *all, int rank, void *context)
{
    (void)context;
    gpu_rank g = gpu_open(all, rank);
    size_t bytes = (size_t)all->n * PART * sizeof(float);
    void *early, *late;
    comm_group *shard, *replica;
    RANK_CHECK(comm_allocate(g.comm, bytes, &early) == FSDP_OK);
    int possible = count_registrations(comm_world(g.comm)); /* 0 where NCCL has registration turned off */
    nccl_api *api = &nccl_world_of(g.comm)->api;
    __typeof__(api->ncclCommRegister) kept = api->ncclCommRegister;
    if (rank == 1 && kept)
        api->ncclCommRegister = never_register;
    RANK_CHECK(comm_allocate(g.comm, bytes, &late) == FSDP_OK);
    RANK_CHECK(count_registrations(comm_world(g.comm)) == possible);
    RANK_CHECK(comm_group_split_by_size(g.comm, all->n, &shard, &replica) == FSDP_OK);
    RANK_CHECK(count_registrations(shard) == 0);
    api->ncclCommRegister = kept;
    check_gather(&g, comm_world(g.comm), late);
    check_gather(&g, shard, early);
    check_gather(&g, shard, late);
    gpu_close(&g);
}

static void memory_is_registered_on_all_ranks_or_none(void **state)
{
    (void)state;
    ranks all = ranks_make(2);
    bool good = ranks_run(&all, registering_on_all_but_one, NULL);
    ranks_free(&all);
    assert_true(good);
}

/* More hybrid models than there are slots for groups, one after the other. */
static void groups_in_turn(ranks *all, int rank, void *context)
{
    (void)context;
    gpu_rank g = gpu_open(all, rank);
    void *memory;
    RANK_CHECK(comm_allocate(g.comm, (size_t)all->n * PART * sizeof(float), &memory) == FSDP_OK);
    for (int round = 0; round < 10; round++) {
        comm_group *shard, *replica;
        RANK_CHECK(comm_group_split_by_size(g.comm, round % 2 ? 1 : 2, &shard, &replica) == FSDP_OK);
        check_gather(&g, round % 2 ? replica : shard, memory);
        comm_group_free(replica);
        comm_group_free(shard);
    }
    gpu_close(&g);
}

/* ---- what NCCL takes for itself ---- */

/* Free bytes of the card while no rank does anything. */
static double free_bytes(ranks *all, int rank, gpu_rank *g, int phase)
{
    struct timespec pause = {.tv_nsec = 1000000};
    double bytes = 0, deadline = clock_seconds() + 60;
    RANK_CHECK(g->device->stream_synchronize(g->stream) == FSDP_OK);
    for (int k = 0; k < 2; k++) { /* all are here; all have looked */
        all->shared->flags[rank] = 2 * phase + k;
        for (int i = 0; i < all->n; nanosleep(&pause, NULL)) {
            RANK_CHECK(clock_seconds() < deadline);
            i += all->shared->flags[i] >= 2 * phase + k;
        }
        bytes = k == 0 ? (double)g->device->available(g->device) / 0.98 : bytes; /* see gpu_usable */
    }
    return bytes;
}

/* A sum of 16-bit values, which go from every rank to every other. */
static void send_to_all(gpu_rank *g, void *memory)
{
    comm_span span = {.send = {memory, FSDP_BF16}, .recv = {memory, FSDP_BF16}, .count = PART};
    comm_op op = {.unit = "layers.6", .n_spans = 1, .spans = &span, .stream = g->stream};
    comm_request r = COMM_REQUEST_INIT;
    RANK_CHECK(comm_all_reduce(comm_world(g->comm), &op, &r) == FSDP_OK);
    RANK_CHECK(comm_wait(&r, NULL) == FSDP_OK);
}

static void taking(ranks *all, int rank, void *context)
{
    (void)context;
    gpu_rank g = {NULL, NULL, NULL};
    comm_config config = gpu_config(all, rank, &g);
    comm_group *more[2];
    void *memory;
    double before = free_bytes(all, rank, &g, 1);
    RANK_CHECK(comm_open(&config, &g.comm) == FSDP_OK);
    RANK_CHECK(comm_allocate(g.comm, (size_t)all->n * PART * sizeof(float), &memory) == FSDP_OK);
    check_gather(&g, comm_world(g.comm), memory);
    check_reduce_scatter(&g, comm_world(g.comm), memory);
    double world = free_bytes(all, rank, &g, 2);
    for (int i = 0; i < 2; i++) {
        RANK_CHECK(comm_group_split(g.comm, "more", 0, rank, &more[i]) == FSDP_OK);
        check_gather(&g, more[i], memory);
    }
    double groups = free_bytes(all, rank, &g, 3);
    send_to_all(&g, memory);
    double sends = free_bytes(all, rank, &g, 4);
    double planned = (double)comm_library_bytes(&config, 1), each = (double)comm_library_bytes(&config, 2) - planned;
    double took = (before - world) / all->n, took_each = (world - groups) / all->n / 2;
    all->shared->seconds[rank] = fabs(took - planned) < planned / 4 && fabs(took_each - each) < each / 2;
    snprintf(all->shared->text[rank], RANKS_TEXT,
             "%.0f MiB and %.1f a group, planned %.0f and %.1f; sends between %d ranks %.1f", took / 1048576,
             took_each / 1048576, planned / 1048576, each / 1048576, all->n, (groups - sends) / all->n / 1048576);
    for (int i = 0; i < 2; i++)
        comm_group_free(more[i]);
    gpu_close(&g);
}

/* Others may use the card: one undisturbed try is enough. */
static void nccl_takes_for_itself_what_is_planned(void **state)
{
    (void)state;
    bool as_planned = false;
    for (int k = 0; k < 5 && !as_planned; k++) {
        ranks all = ranks_make(2);
        assert_true(ranks_run(&all, taking, NULL));
        as_planned = all.shared->seconds[0] != 0;
        print_message("%s\n", all.shared->text[0]);
        ranks_free(&all);
    }
    assert_true(as_planned);
}

static void groups_that_are_freed_make_room_for_others(void **state)
{
    (void)state;
    ranks all = ranks_make(2);
    bool good = ranks_run(&all, groups_in_turn, NULL);
    ranks_free(&all);
    assert_true(good);
}

/* ---- how they end ---- */

typedef enum mishap { OTHER_UNIT, OTHER_SIZE, DOES_NOT_COME, LEAVES, IS_KILLED } mishap;

static float *work_memory(gpu_rank *g, int n)
{
    void *memory;
    RANK_CHECK(comm_allocate(g->comm, (size_t)n * 2 * PART * sizeof(float), &memory) == FSDP_OK);
    return memory;
}

static fsdp_status gather_other(gpu_rank *g, float *memory, int64_t step)
{
    comm_span span = {.send = {memory, FSDP_F32}, .recv = {memory, FSDP_F32}, .count = PART};
    comm_op op = {.unit = "layers.9", .step = step, .n_spans = 1, .spans = &span, .stream = g->stream};
    comm_request r = COMM_REQUEST_INIT;
    fsdp_status status = comm_all_reduce(comm_world(g->comm), &op, &r);
    return status == FSDP_OK ? comm_wait(&r, NULL) : status;
}

static void meeting_a_mishap(ranks *all, int rank, void *context)
{
    mishap what = *(const mishap *)context;
    gpu_rank g = gpu_open(all, rank);
    comm_group *world = comm_world(g.comm);
    float *memory = work_memory(&g, all->n);
    for (int step = 0; step < 3; step++)
        RANK_CHECK(gather_in_place(&g, world, memory, PART, step) == FSDP_OK);
    double start = clock_seconds();
    fsdp_status status = FSDP_OK;
    bool odd = rank == 1;
    if (odd && what == IS_KILLED) {
        sleep_seconds(0.2);
        kill(getpid(), SIGKILL);
    } else if (odd && what == LEAVES) {
        gpu_close(&g);
        return;
    } else if (odd && what == DOES_NOT_COME) {
        while ((status = comm_check(g.comm)) == FSDP_OK && clock_seconds() - start < 30)
            sleep_seconds(0.01);
    } else if (odd && what == OTHER_UNIT) {
        status = gather_other(&g, memory, 3);
    } else {
        status = gather_in_place(&g, world, memory, odd && what == OTHER_SIZE ? 2 * PART : PART, 3);
        while (what == OTHER_SIZE && status == FSDP_OK && clock_seconds() - start < 5) { /* NCCL may end it before */
            sleep_seconds(0.005);
            status = comm_check(g.comm);
        }
    }
    ranks_say(all, rank, fsdp_last_error());
    RANK_CHECK(status == (what == DOES_NOT_COME ? FSDP_ERR_TIMEOUT : FSDP_ERR_PEER));
    RANK_CHECK(gather_in_place(&g, world, memory, PART, 4) == status); /* it stays so */
    gpu_close(&g);
    all->shared->seconds[rank] = clock_seconds() - start;
}

static void every_rank_ends_in_time_and_says_why(void **state)
{
    (void)state;
    static const struct {
        mishap what;
        const char *wanted, *too;
        double timeout, seconds;
    } cases[] = {
        /* Beside it stands one of the others, whichever was compared with it first. */
        {OTHER_UNIT, "rank 1 called all_reduce of unit layers.9", "called all_gather of unit layers.4", 60, 15},
        {OTHER_SIZE, "with 4000 elements", "with 2000 elements", 60, 15},
        {DOES_NOT_COME, "all_gather of unit layers.4 (step 3) timed out after 3 s",
         "rank 1 did not come, it last reached layers.4 (step 2)", 3, 18},
        {LEAVES, "rank 1 left, but rank ", "waits for it in all_gather of unit layers.4 (step 3)", 60, 15},
        {IS_KILLED, "stopped because rank 1 failed: its connection broke", "last reached layers.4 (step 2)", 60, 15},
    };
    for (int n = 2; n <= 4; n += 2)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            mishap what = cases[i].what;
            if (n > 2 && what != OTHER_UNIT && what != IS_KILLED)
                continue; /* every one of them with two ranks is enough */
            ranks all = ranks_make(n);
            all.timeout = cases[i].timeout;
            ranks_run(&all, meeting_a_mishap, &what);
            print_message("%d ranks: %.2f s: %s\n", n, all.shared->seconds[0], all.shared->text[0]);
            for (int rank = 0; rank < n; rank++) {
                if (rank == 1 && (what == LEAVES || what == IS_KILLED))
                    continue;
                if (all.statuses[rank] != 0)
                    fail_msg("rank %d ended with %d", rank, all.statuses[rank]);
                if (!strstr(all.shared->text[rank], cases[i].wanted) || !strstr(all.shared->text[rank], cases[i].too))
                    fail_msg("rank %d says \"%s\"", rank, all.shared->text[rank]);
                if (all.shared->seconds[rank] > cases[i].seconds)
                    fail_msg("rank %d took %.1f s", rank, all.shared->seconds[rank]);
            }
            ranks_free(&all);
        }
}

static void missing_from_the_start(ranks *all, int rank, void *context)
{
    (void)context;
    if (rank == 1)
        return;
    gpu_rank g = {NULL, NULL, NULL};
    comm_config config = gpu_config(all, rank, &g);
    double start = clock_seconds();
    RANK_CHECK(comm_open(&config, &g.comm) == FSDP_ERR_TIMEOUT);
    ranks_say(all, rank, fsdp_last_error());
    all->shared->seconds[rank] = clock_seconds() - start;
}

static void a_rank_that_never_starts_is_named(void **state)
{
    (void)state;
    ranks all = ranks_make(2);
    all.timeout = 2;
    bool good = ranks_run(&all, missing_from_the_start, NULL);
    print_message("2 ranks: %.2f s: %s\n", all.shared->seconds[0], all.shared->text[0]);
    bool named = strstr(all.shared->text[0], "rank 1") != NULL;
    ranks_free(&all);
    assert_true(good && named);
}

/* It meets the others and is stopped then: NCCL's own set-up would wait for it for ever. */
static void stopped_after_the_meeting(ranks *all, int rank, void *context)
{
    (void)context;
    gpu_rank g = {NULL, NULL, NULL};
    comm_config config = gpu_config(all, rank, &g);
    double start = clock_seconds();
    if (rank == 1) { /* comes as a rank does, and then says nothing */
        uint64_t mine = meeting_host_id(), hosts[2];
        ncclUniqueId id;
        meeting *m;
        RANK_CHECK(meeting_open(&config.job, 20, &m) == FSDP_OK);
        RANK_CHECK(meeting_gather_equal(m, "hosts", &mine, sizeof mine, hosts) == FSDP_OK);
        RANK_CHECK(meeting_share(m, "NCCL's id", &id, sizeof id) == FSDP_OK);
        for (int i = 0; i < 1500 && !all->shared->flags[0]; i++)
            sleep_seconds(0.01);
        _exit(0);
    }
    fsdp_status status = comm_open(&config, &g.comm);
    ranks_say(all, rank, fsdp_last_error());
    all->shared->seconds[rank] = clock_seconds() - start;
    all->shared->flags[0] = 1;
    RANK_CHECK(status == FSDP_ERR_TIMEOUT);
}

static void a_rank_that_is_silent_after_the_meeting_is_named(void **state)
{
    (void)state;
    ranks all = ranks_make(2);
    all.timeout = 2;
    bool good = ranks_run(&all, stopped_after_the_meeting, NULL);
    print_message("2 ranks: %.2f s: %s\n", all.shared->seconds[0], all.shared->text[0]);
    bool named = strstr(all.shared->text[0], "opening of group world") && strstr(all.shared->text[0], "rank 1");
    ranks_free(&all);
    assert_true(good && named);
}

static void closing_while_under_way(ranks *all, int rank, void *context)
{
    (void)context;
    gpu_rank g = gpu_open(all, rank);
    float *memory = work_memory(&g, all->n);
    RANK_CHECK(gather_in_place(&g, comm_world(g.comm), memory, PART, 0) == FSDP_OK);
    comm_span span = {.send = {memory, FSDP_F32}, .recv = {memory, FSDP_F32}, .count = PART};
    comm_op op = {.unit = "u", .n_spans = 1, .spans = &span, .stream = g.stream};
    comm_request r = COMM_REQUEST_INIT;
    if (rank == 0)
        RANK_CHECK(comm_all_reduce(comm_world(g.comm), &op, &r) == FSDP_OK); /* the other never comes */
    sleep_seconds(0.3);
    double start = clock_seconds();
    gpu_close(&g);
    all->shared->seconds[rank] = clock_seconds() - start;
    RANK_CHECK(clock_seconds() - start < 15);
}

static void closing_does_not_wait_for_what_is_under_way(void **state)
{
    (void)state;
    ranks all = ranks_make(2);
    bool good = ranks_run(&all, closing_while_under_way, NULL);
    print_message("closed in %.2f s\n", all.shared->seconds[0]);
    ranks_free(&all);
    assert_true(good);
}

/* With an argument, only the tests that match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_place_collectives_on_registered_memory_compute_what_they_should),
        cmocka_unit_test(symmetric_memory_may_differ_in_size),
        cmocka_unit_test(memory_is_registered_on_all_ranks_or_none),
        cmocka_unit_test(groups_that_are_freed_make_room_for_others),
        cmocka_unit_test(nccl_takes_for_itself_what_is_planned),
        cmocka_unit_test(every_rank_ends_in_time_and_says_why),
        cmocka_unit_test(a_rank_that_never_starts_is_named),
        cmocka_unit_test(a_rank_that_is_silent_after_the_meeting_is_named),
        cmocka_unit_test(closing_does_not_wait_for_what_is_under_way),
    };
    int missing = gpu_missing();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return missing ? missing : cmocka_run_group_tests_name("collectives over NCCL", tests, NULL, NULL);
}
