/* Collectives over MPI: the same cases as through shared memory, against the same serial loop, hence the same bits.
 * Started by hand or by ctest, the program starts itself under mpirun with 2, 3 and 4 ranks; exit code 77 (skipped)
 * without mpirun. Failures are tried in worlds of their own, since they end the job. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/host/environment.h"
#include "cases.h"

/* ---- under mpirun ---- */

static comm *open_mpi(double timeout)
{
    comm_config config = COMM_CONFIG_INIT;
    comm *c = NULL;
    config.backend = "mpi";
    config.job = job_single();
    config.timeout_seconds = timeout;
    config.staging_bytes = 64 << 10;
    const char *thread = environment_text("FSDP_TEST_PROGRESS");
    config.progress = thread ? COMM_PROGRESS_THREAD : COMM_PROGRESS_INLINE;
    RANK_CHECK(comm_open(&config, &c) == FSDP_OK);
    ranks_self = comm_rank(c);
    return c;
}

static void run_cases(void)
{
    comm *c = open_mpi(60);
    int n = comm_world_size(c), rank = comm_rank(c);
    int64_t nodes = 1; /* test_two_hosts.sh has two, with half of the ranks each */
    environment_int("FSDP_TEST_NODES", &nodes);
    RANK_CHECK(comm_local_rank(c) == rank % (n / nodes));
    RANK_CHECK(cases_run_all(c, comm_world(c)) > 300);
    if (n == 4) {
        comm_group *shard, *replica;
        RANK_CHECK(comm_group_split_by_size(c, 2, &shard, &replica) == FSDP_OK);
        RANK_CHECK(cases_run_all(c, replica) > 300);
        comm_group_free(replica);
        comm_group_free(shard);
    }
    char all[RANKS_MAX][16];
    size_t bytes[RANKS_MAX];
    for (int round = 0; round < 20; round++) {
        RANK_CHECK(comm_exchange(comm_world(c), "words", "abcdefgh", (size_t)rank, 16, all, bytes) == FSDP_OK);
        for (int i = 0; i < n; i++)
            RANK_CHECK(bytes[i] == (size_t)i && memcmp(all[i], "abcdefgh", (size_t)i) == 0);
    }
    comm_close(c);
}

/* One gather of `unit`. */
static fsdp_status gather_unit(comm *c, const char *unit)
{
    static float send[5], recv[5 * RANKS_MAX];
    comm_span span = {.send = {send, FSDP_F32}, .recv = {recv, FSDP_F32}, .count = 5};
    comm_op op = {.unit = unit, .step = 7, .n_spans = 1, .spans = &span};
    comm_request r = COMM_REQUEST_INIT;
    FSDP_TRY(comm_all_gather(comm_world(c), &op, &r));
    return comm_wait(&r, NULL);
}

/* Prints what this rank heard, for the parent to read, and leaves with 0: whoever failed a check leaves with 1. */
static void run_failure(const char *kind)
{
    comm *c = open_mpi(strcmp(kind, "late") == 0 ? 0.7 : 20);
    int rank = comm_rank(c);
    RANK_CHECK(gather_unit(c, "layers.6") == FSDP_OK);
    fsdp_status status = FSDP_OK;
    double start = clock_seconds();
    if (strcmp(kind, "late") == 0) {
        if (rank == 1)
            sleep_seconds(1.2);
        status = gather_unit(c, "layers.7");
    } else if (strcmp(kind, "path") == 0) {
        status = gather_unit(c, rank == 1 ? "layers.8" : "layers.7");
    } else if (rank == 1) {
        sleep_seconds(0.2);
        comm_abort(c, "the loss is not a number");
        status = comm_check(c);
    } else {
        status = gather_unit(c, "layers.7");
    }
    RANK_CHECK(status == FSDP_ERR_PEER || status == FSDP_ERR_TIMEOUT);
    RANK_CHECK(clock_seconds() - start < 5);
    printf("heard %s\n", fsdp_last_error());
    fflush(stdout);
    comm_close(c);
}

/* ---- the parent ---- */

static char program[4096];

/* Runs this program under mpirun; `out` gets what the ranks print. Returns mpirun's exit status. */
static int under_mpirun(int n, const char *what, bool thread, char *out, size_t bytes)
{
    char command[5000];
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 1);
    setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* Open MPI's own, at its end */
    snprintf(command, sizeof command, "%s mpirun --oversubscribe -n %d '%s' %s 2>&1",
             thread ? "FSDP_TEST_PROGRESS=1" : "", n, program, what);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t got = fread(out, 1, bytes - 1, pipe);
    out[got] = 0;
    return pclose(pipe);
}

static void check_cases(int n, bool thread)
{
    static char out[1 << 16];
    int status = under_mpirun(n, "cases", thread, out, sizeof out);
    if (status != 0)
        fail_msg("%d ranks: mpirun ended with %x: %s", n, (unsigned)status, out);
}

static void two_ranks_give_the_bits_of_shared_memory(void **state)
{
    (void)state;
    check_cases(2, false);
}

static void three_ranks_with_progress_threads_give_the_bits_of_shared_memory(void **state)
{
    (void)state;
    check_cases(3, true);
}

static void four_ranks_and_groups_of_them_give_the_bits_of_shared_memory(void **state)
{
    (void)state;
    check_cases(4, false);
}

static int count_text(const char *in, const char *text)
{
    int n = 0;
    for (const char *at = strstr(in, text); at; at = strstr(at + 1, text))
        n++;
    return n;
}

static void check_failure(const char *kind, const char *wanted)
{
    static char out[1 << 16];
    under_mpirun(3, kind, false, out, sizeof out);
    if (count_text(out, "heard ") != 3 || count_text(out, wanted) < 3)
        fail_msg("%s: three ranks should have heard '%s', but: %s", kind, wanted, out);
}

static void a_late_rank_is_named(void **state)
{
    (void)state;
    check_failure("late", "all_gather of unit layers.7 timed out after 0.7 s: rank 1 last reached layers.6 (step 7)");
}

static void a_rank_on_another_path_is_named(void **state)
{
    (void)state;
    check_failure("path", "rank 1 called all_gather of unit layers.8 where rank 0 called all_gather of unit layers.7");
}

static void an_abort_reaches_every_rank(void **state)
{
    (void)state;
    check_failure("abort", "the loss is not a number");
}

int main(int argc, char **argv)
{
    if (argc == 2 && environment_text("OMPI_COMM_WORLD_RANK")) {
        if (strcmp(argv[1], "cases") == 0)
            run_cases();
        else
            run_failure(argv[1]);
        return 0;
    }
    if (system("command -v mpirun >/dev/null 2>&1") != 0)
        return 77;
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks_give_the_bits_of_shared_memory),
        cmocka_unit_test(three_ranks_with_progress_threads_give_the_bits_of_shared_memory),
        cmocka_unit_test(four_ranks_and_groups_of_them_give_the_bits_of_shared_memory),
        cmocka_unit_test(a_late_rank_is_named),
        cmocka_unit_test(a_rank_on_another_path_is_named),
        cmocka_unit_test(an_abort_reaches_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
