/* What ranks hear when one of them is late, stopped, killed, gone, aborts or takes another path: each case ends on
 * every other rank, soon, with a message that names the culprit; and nothing is left behind. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>

#include "ranks.h"

/* One gather of `unit` at `step`; what came of it is left in the rank's text. */
static fsdp_status gather_unit(comm_group *g, const char *unit, int64_t step, int64_t count)
{
    static float send[64], recv[64 * RANKS_MAX];
    comm_span span = {.send = {send, FSDP_F32}, .recv = {recv, FSDP_F32}, .count = count};
    comm_op op = {.unit = unit, .step = step, .n_spans = 1, .spans = &span};
    comm_request r = COMM_REQUEST_INIT;
    FSDP_TRY(comm_all_gather(g, &op, &r));
    return comm_wait(&r, NULL);
}

static void expect_failure(ranks *all, int rank, comm *c, fsdp_status got, fsdp_status wanted, double since)
{
    ranks_say(all, rank, fsdp_last_error());
    all->shared->seconds[rank] = clock_seconds() - since;
    RANK_CHECK(got == wanted);
    /* The comm stays failed, with the same message, and closes at once. */
    char first[RANKS_TEXT];
    snprintf(first, sizeof first, "%s", fsdp_last_error());
    RANK_CHECK(comm_barrier(comm_world(c), "after", 0) == wanted && strcmp(first, fsdp_last_error()) == 0);
    RANK_CHECK(comm_check(c) == wanted);
    double closing = clock_seconds();
    comm_close(c);
    RANK_CHECK(clock_seconds() - closing < 5);
}

static void assert_ended(const ranks *all, int rank)
{
    if (all->statuses[rank] != 0)
        fail_msg("rank %d ended with status %x", rank, (unsigned)all->statuses[rank]);
}

static void assert_says(const ranks *all, int rank, const char *text)
{
    if (!strstr(all->shared->text[rank], text))
        fail_msg("rank %d said '%s', which lacks '%s'", rank, all->shared->text[rank], text);
}

/* ---- late, stopped ---- */

static void late_rank(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    RANK_CHECK(gather_unit(comm_world(c), "layers.6", 120, 5) == FSDP_OK);
    if (rank == 1) {
        sleep_seconds(1.5);
        RANK_CHECK(gather_unit(comm_world(c), "layers.7", 120, 5) == FSDP_ERR_PEER);
        ranks_say(all, rank, fsdp_last_error());
        comm_close(c);
        return;
    }
    double start = clock_seconds();
    fsdp_status status = gather_unit(comm_world(c), "layers.7", 120, 5);
    /* Both others time out at nearly the same moment; the slower of them may hear of it from the faster. */
    bool told = status == FSDP_ERR_PEER && strstr(fsdp_last_error(), "failed: all_gather of unit layers.7 timed out");
    expect_failure(all, rank, c, status, told ? FSDP_ERR_PEER : FSDP_ERR_TIMEOUT, start);
}

static void a_late_rank_is_named_with_where_it_was_last(void **state)
{
    (void)state;
    for (int progress = COMM_PROGRESS_THREAD; progress <= COMM_PROGRESS_INLINE; progress++) {
        ranks all = ranks_make(3);
        all.timeout = 0.7;
        all.progress = (comm_progress)progress;
        ranks_run(&all, late_rank, NULL);
        for (int rank = 0; rank < 3; rank++) {
            assert_ended(&all, rank);
            assert_says(&all, rank,
                        "all_gather of unit layers.7 timed out after 0.7 s: rank 1 last reached layers.6 (step 120)");
        }
        assert_true(all.shared->seconds[0] > 0.5 && all.shared->seconds[0] < 10);
        ranks_free(&all);
    }
}

/* Ranks 0 and 1 are a group, 1 and 2 another: 0 waits for 1, which waits for 2, which is the one to name. */
static void chain_of_waits(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    comm_group *first, *second;
    RANK_CHECK(comm_group_split(c, "first", rank == 2, 0, &first) == FSDP_OK);
    RANK_CHECK(comm_group_split(c, "second", rank == 0, 0, &second) == FSDP_OK);
    fsdp_status status = FSDP_OK;
    double start = clock_seconds();
    if (rank == 2) {
        sleep_seconds(1.8);
        comm_close(c);
        return;
    }
    if (rank == 1) {
        sleep_seconds(0.3); /* its wait begins later, so rank 0 times out first */
        status = gather_unit(second, "deep", 1, 5);
    } else {
        status = gather_unit(first, "shallow", 1, 5);
    }
    expect_failure(all, rank, c, status, rank == 0 ? FSDP_ERR_TIMEOUT : FSDP_ERR_PEER, start);
}

static void the_rank_at_the_end_of_a_chain_of_waits_is_named(void **state)
{
    (void)state;
    ranks all = ranks_make(3);
    all.timeout = 1;
    ranks_run(&all, chain_of_waits, NULL);
    for (int rank = 0; rank < 3; rank++)
        assert_ended(&all, rank);
    assert_says(&all, 0,
                "all_gather of unit shallow timed out after 1 s: rank 1 waits for rank 2: rank 2 last reached");
    assert_says(&all, 1, "all_gather of unit deep stopped because rank 0 failed");
    ranks_free(&all);
}

static void stopped_rank(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    RANK_CHECK(gather_unit(comm_world(c), "embedding", 3, 5) == FSDP_OK);
    if (rank == 2)
        kill(getpid(), SIGSTOP);
    double start = clock_seconds();
    fsdp_status status = gather_unit(comm_world(c), "layers.0", 3, 5);
    if (rank == 2) { /* continued by the test when all is over */
        comm_close(c);
        return;
    }
    expect_failure(all, rank, c, status, status == FSDP_ERR_PEER ? FSDP_ERR_PEER : FSDP_ERR_TIMEOUT, start);
    all->shared->flags[rank] = 1;
}

static void a_stopped_rank_is_named_after_the_timeout(void **state)
{
    (void)state;
    ranks all = ranks_make(3);
    all.timeout = 0.6;
    ranks_start(&all, stopped_rank, NULL);
    for (int i = 0; i < 1000 && !(all.shared->flags[0] && all.shared->flags[1]); i++)
        sleep_seconds(0.01);
    kill(all.shared->pids[2], SIGCONT);
    ranks_join(&all);
    for (int rank = 0; rank < 2; rank++) {
        assert_ended(&all, rank);
        assert_says(&all, rank, "rank 2 last reached embedding (step 3)");
        assert_true(all.shared->seconds[rank] < 8);
    }
    ranks_free(&all);
}

/* ---- dead, gone ---- */

static void dying_rank(ranks *all, int rank, void *context)
{
    int signal_number = *(int *)context;
    comm *c = ranks_open(all, rank);
    RANK_CHECK(gather_unit(comm_world(c), "layers.2", 9, 5) == FSDP_OK);
    if (rank == 1) {
        if (signal_number)
            kill(getpid(), signal_number);
        _exit(3);
    }
    double start = clock_seconds();
    fsdp_status status = gather_unit(comm_world(c), "layers.3", 9, 5);
    expect_failure(all, rank, c, status, FSDP_ERR_PEER, start);
}

static void check_death(int n, int signal_number, comm_progress progress)
{
    ranks all = ranks_make(n);
    all.timeout = 60;
    all.progress = progress;
    ranks_run(&all, dying_rank, &signal_number);
    for (int rank = 0; rank < n; rank++) {
        if (rank == 1)
            continue;
        assert_ended(&all, rank);
        assert_says(&all, rank, "rank 1 has ended (killed or exited); it last reached layers.2 (step 9)");
        assert_true(all.shared->seconds[rank] < 8);
    }
    ranks_free(&all);
}

static void a_killed_rank_is_named_at_once(void **state)
{
    (void)state;
    check_death(2, SIGKILL, COMM_PROGRESS_INLINE);
    check_death(4, SIGKILL, COMM_PROGRESS_THREAD);
}

static void a_rank_that_exits_early_is_named_at_once(void **state)
{
    (void)state;
    check_death(3, 0, COMM_PROGRESS_INLINE);
}

static void leaving_rank(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    RANK_CHECK(gather_unit(comm_world(c), "layers.2", 9, 5) == FSDP_OK);
    if (rank == 0) {
        comm_close(c); /* finished its data, say, and goes home */
        sleep_seconds(1);
        return;
    }
    double start = clock_seconds();
    expect_failure(all, rank, c, gather_unit(comm_world(c), "layers.3", 9, 5), FSDP_ERR_PEER, start);
}

static void a_rank_that_leaves_early_is_named(void **state)
{
    (void)state;
    ranks all = ranks_make(2);
    ranks_run(&all, leaving_rank, NULL);
    assert_ended(&all, 0);
    assert_ended(&all, 1);
    assert_says(&all, 1, "rank 0 has left the job");
    assert_true(all.shared->seconds[1] < 8);
    ranks_free(&all);
}

/* ---- another path ---- */

typedef struct detour {
    const char *unit;
    int64_t step, count;
    bool reduces;
    const char *wanted;
} detour;

static void other_path(ranks *all, int rank, void *context)
{
    const detour *d = context;
    comm *c = ranks_open(all, rank);
    comm_group *g = comm_world(c);
    double start = clock_seconds();
    fsdp_status status;
    if (rank == 1 && d->reduces) {
        float data[64] = {0};
        comm_span span = {.send = {data, FSDP_F32}, .recv = {data, FSDP_F32}, .count = 5};
        comm_op op = {.unit = d->unit, .step = d->step, .n_spans = 1, .spans = &span};
        comm_request r = COMM_REQUEST_INIT;
        status = comm_reduce_scatter(g, &op, &r);
        status = status == FSDP_OK ? comm_wait(&r, NULL) : status;
    } else if (rank == 1) {
        status = gather_unit(g, d->unit, d->step, d->count);
    } else {
        status = gather_unit(g, "layers.4", 7, 5);
    }
    expect_failure(all, rank, c, status, FSDP_ERR_PEER, start);
}

static void a_rank_on_another_path_is_named_at_once_on_every_rank(void **state)
{
    (void)state;
    detour detours[] = {
        {"layers.3", 7, 5, true,
         "rank 1 called reduce_scatter of unit layers.3 where rank 0 called all_gather of unit layers.4"},
        {"layers.5", 7, 5, false,
         "rank 1 called all_gather of unit layers.5 where rank 0 called all_gather of unit layers.4"},
        {"layers.4", 8, 5, false,
         "rank 1 called all_gather of unit layers.4 at step 8 where rank 0 called all_gather of unit layers.4 at step "
         "7"},
        {"layers.4", 7, 6, false,
         "rank 1 called all_gather of unit layers.4 with 18 elements where rank 0 called all_gather of unit layers.4 "
         "with 15 elements"},
    };
    for (size_t i = 0; i < sizeof detours / sizeof *detours; i++) {
        ranks all = ranks_make(3);
        all.progress = i % 2 ? COMM_PROGRESS_THREAD : COMM_PROGRESS_INLINE;
        ranks_run(&all, other_path, &detours[i]);
        for (int rank = 0; rank < 3; rank++) {
            assert_ended(&all, rank);
            assert_says(&all, rank, detours[i].wanted);
            assert_true(all.shared->seconds[rank] < 8);
        }
        ranks_free(&all);
    }
}

/* ---- abort ---- */

static void aborting_rank(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    double start = clock_seconds();
    if (rank == 2) {
        sleep_seconds(0.3);
        comm_abort(c, "the loss is not a number at step 12");
        expect_failure(all, rank, c, comm_check(c), FSDP_ERR_PEER, start);
        return;
    }
    expect_failure(all, rank, c, gather_unit(comm_world(c), "layers.1", 12, 5), FSDP_ERR_PEER, start);
}

static void an_abort_wakes_every_waiter_with_the_message(void **state)
{
    (void)state;
    for (int progress = COMM_PROGRESS_THREAD; progress <= COMM_PROGRESS_INLINE; progress++) {
        ranks all = ranks_make(4);
        all.progress = (comm_progress)progress;
        ranks_run(&all, aborting_rank, NULL);
        for (int rank = 0; rank < 4; rank++) {
            assert_ended(&all, rank);
            assert_says(&all, rank, "the loss is not a number at step 12");
            if (rank != 2)
                assert_says(&all, rank, "all_gather of unit layers.1 stopped because rank 2 failed: ");
            assert_true(all.shared->seconds[rank] < 8);
        }
        ranks_free(&all);
    }
}

static void closing_while_under_way(ranks *all, int rank, void *context)
{
    (void)context;
    comm *c = ranks_open(all, rank);
    float data[64];
    comm_span span = {.send = {data, FSDP_F32}, .recv = {data, FSDP_F32}, .count = 5};
    comm_op op = {.unit = "u", .n_spans = 1, .spans = &span};
    comm_request r = COMM_REQUEST_INIT;
    if (rank == 0)
        RANK_CHECK(comm_all_gather(comm_world(c), &op, &r) == FSDP_OK); /* the other never comes */
    sleep_seconds(0.1);
    double start = clock_seconds();
    comm_close(c);
    RANK_CHECK(clock_seconds() - start < 5);
}

/* A step that fails halfway: requests and buffers go before the connection does. */
static void free_while_under_way(ranks *all, int rank, void *context)
{
    (void)context;
    enum { REQUESTS = 3, PART = 5000 };
    comm *c = ranks_open(all, rank);
    comm_request *requests = calloc(REQUESTS, sizeof *requests);
    float *buffers = calloc(REQUESTS * (size_t)(all->n + 1), PART * sizeof *buffers);
    comm_span spans[REQUESTS];
    for (int i = 0; i < REQUESTS; i++) {
        float *full = buffers + (size_t)i * (size_t)(all->n + 1) * PART;
        spans[i] =
            (comm_span){.send = {full + (size_t)all->n * PART, FSDP_F32}, .recv = {full, FSDP_F32}, .count = PART};
        comm_op op = {.unit = "layers.1", .n_spans = 1, .spans = &spans[i]};
        if (rank == 0) /* its peer never comes */
            RANK_CHECK(comm_all_gather(comm_world(c), &op, &requests[i]) == FSDP_OK);
    }
    if (rank == 0) {
        double start = clock_seconds();
        comm_abort(c, "out of memory");
        for (int i = 0; i < REQUESTS; i++)
            comm_forget(&requests[i]);
        RANK_CHECK(clock_seconds() - start < 1);
        all->shared->flags[0] = 1;
    }
    while (!all->shared->flags[0]) /* one that leaves before would be what fails */
        sleep_seconds(0.01);
    free(buffers);
    free(requests);
    comm_close(c);
}

static void requests_and_buffers_may_go_once_they_are_forgotten(void **state)
{
    (void)state;
    for (int progress = COMM_PROGRESS_THREAD; progress <= COMM_PROGRESS_INLINE; progress++) {
        ranks all = ranks_make(2);
        all.progress = (comm_progress)progress;
        bool good = ranks_run(&all, free_while_under_way, NULL);
        ranks_free(&all);
        assert_true(good);
    }
}

static void closing_does_not_wait_for_collectives_under_way(void **state)
{
    (void)state;
    for (int progress = COMM_PROGRESS_THREAD; progress <= COMM_PROGRESS_INLINE; progress++) {
        ranks all = ranks_make(2);
        all.progress = (comm_progress)progress;
        bool good = ranks_run(&all, closing_while_under_way, NULL);
        ranks_free(&all);
        assert_true(good);
    }
}

/* ---- meeting ---- */

static void missing_rank(ranks *all, int rank, void *context)
{
    (void)context;
    if (rank == 2)
        return;
    comm_config config = ranks_config(all, rank);
    comm *c;
    fsdp_status status = comm_open(&config, &c);
    ranks_say(all, rank, fsdp_last_error());
    RANK_CHECK(status == FSDP_ERR_TIMEOUT);
}

static void a_rank_that_never_connects_is_named_on_all(void **state)
{
    (void)state;
    ranks all = ranks_make(4);
    all.timeout = 0.5;
    ranks_run(&all, missing_rank, NULL);
    for (int rank = 0; rank < 4; rank++) {
        assert_ended(&all, rank);
        if (rank != 2)
            assert_says(&all, rank, "rank 2 of 4 did not come within 0.5 s");
    }
    ranks_free(&all);
}

static void missing_first(ranks *all, int rank, void *context)
{
    (void)context;
    if (rank == 0)
        return;
    comm_config config = ranks_config(all, rank);
    comm *c;
    RANK_CHECK(comm_open(&config, &c) == FSDP_ERR_TIMEOUT);
    RANK_CHECK(strstr(fsdp_last_error(), "the rendezvous did not answer at 127.0.0.1:"));
}

static void without_rank_0_the_others_say_so(void **state)
{
    (void)state;
    ranks all = ranks_make(2);
    all.timeout = 0.3;
    bool good = ranks_run(&all, missing_first, NULL);
    ranks_free(&all);
    assert_true(good);
}

static void twins(ranks *all, int rank, void *context)
{
    (void)context;
    comm_config config = ranks_config(all, rank ? 1 : 0);
    config.job.world_size = config.job.local_world_size = 3;
    comm *c;
    fsdp_status status = comm_open(&config, &c);
    ranks_say(all, rank, fsdp_last_error());
    RANK_CHECK(status == FSDP_ERR_PEER);
}

static void two_processes_with_one_rank_are_refused(void **state)
{
    (void)state;
    ranks all = ranks_make(3);
    all.timeout = 5;
    ranks_run(&all, twins, NULL);
    for (int rank = 0; rank < 3; rank++) {
        assert_ended(&all, rank);
        assert_says(&all, rank, "two processes call themselves rank 1");
    }
    ranks_free(&all);
}

/* ---- nothing is left ---- */

static int count_open_files(void)
{
    int n = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

static int count_mappings_of_shared_memory(void)
{
    int n = 0;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        n += strstr(line, "memfd:fsdp") != NULL;
    fclose(maps);
    return n;
}

static void open_and_close(ranks *all, int rank, void *context)
{
    (void)context;
    int files = count_open_files();
    for (int round = 0; round < 5; round++) {
        comm *c = ranks_open(all, rank);
        void *memory, *other;
        comm_group *shard, *replica;
        RANK_CHECK(comm_allocate(c, (size_t)(rank + 1) * 10000, &memory) == FSDP_OK);
        RANK_CHECK(comm_allocate(c, rank == 0 ? 0 : 100, &other) == FSDP_OK);
        RANK_CHECK((other == NULL) == (rank == 0));
        RANK_CHECK(comm_group_split_by_size(c, 1, &shard, &replica) == FSDP_OK);
        RANK_CHECK(count_mappings_of_shared_memory() > 0);
        memset(memory, 1, (size_t)(rank + 1) * 10000);
        if (round % 2)
            comm_release(c, memory);
        RANK_CHECK(comm_barrier(comm_world(c), "end", round) == FSDP_OK);
        comm_close(c);
    }
    RANK_CHECK(count_open_files() == files);
    RANK_CHECK(count_mappings_of_shared_memory() == 0);
}

static int count_our_files(const char *path)
{
    int n = 0;
    DIR *folder = opendir(path);
    for (struct dirent *entry = folder ? readdir(folder) : NULL; entry; entry = readdir(folder))
        n += strstr(entry->d_name, "fsdp") != NULL;
    if (folder)
        closedir(folder);
    return n;
}

/* After a rank was killed, a job with the same token meets at the same name at once, and finds nothing of the last. */
static void nothing_is_left_behind(void **state)
{
    (void)state;
    int before = count_our_files("/dev/shm"), killed = SIGKILL;
    ranks all = ranks_make(3);
    ranks_run(&all, dying_rank, &killed);
    assert_ended(&all, 0);
    assert_ended(&all, 2);
    bool good = ranks_run(&all, open_and_close, NULL);
    ranks_free(&all);
    assert_true(good);
    assert_int_equal(count_our_files("/dev/shm"), before);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* no child is left */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_late_rank_is_named_with_where_it_was_last),
        cmocka_unit_test(the_rank_at_the_end_of_a_chain_of_waits_is_named),
        cmocka_unit_test(a_stopped_rank_is_named_after_the_timeout),
        cmocka_unit_test(a_killed_rank_is_named_at_once),
        cmocka_unit_test(a_rank_that_exits_early_is_named_at_once),
        cmocka_unit_test(a_rank_that_leaves_early_is_named),
        cmocka_unit_test(a_rank_on_another_path_is_named_at_once_on_every_rank),
        cmocka_unit_test(an_abort_wakes_every_waiter_with_the_message),
        cmocka_unit_test(requests_and_buffers_may_go_once_they_are_forgotten),
        cmocka_unit_test(closing_does_not_wait_for_collectives_under_way),
        cmocka_unit_test(a_rank_that_never_connects_is_named_on_all),
        cmocka_unit_test(without_rank_0_the_others_say_so),
        cmocka_unit_test(two_processes_with_one_rank_are_refused),
        cmocka_unit_test(nothing_is_left_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
