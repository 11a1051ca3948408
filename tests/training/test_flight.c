/* What `fsdp debug` says of ranks that hung, died or went different ways: real collectives on forked ranks, their
 * flight files, and files that are damaged. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>

#include <fsdp/debug.h>

#include "base/file.h"
#include "base/record/hooks.h"
#include "comm/ranks.h"
#include "support/draw.h"

enum { N = 3, STEPS = 5 };

static int make_folder(void **state)
{
    char name[] = "/tmp/fsdp-flight-XXXXXX";
    if (!mkdtemp(name))
        return -1;
    *state = strdup(name);
    return 0;
}

static int remove_folder(void **state)
{
    fsdp_status status = file_remove_tree(*state);
    free(*state);
    return status != FSDP_OK;
}

static comm *open_rank(ranks *all, int rank, const char *folder)
{
    unsetenv("FSDP_FLIGHT_DIR");
    ring_open(rank, all->n);
    ring_set_folder(folder);
    ring_save_on_signal();
    return ranks_open(all, rank);
}

static fsdp_status sum(comm *c, const char *label, int64_t step)
{
    double value = 1;
    crash_note_step(step);
    return comm_all_reduce_f64(comm_world(c), label, step, FSDP_REDUCE_SUM, &value, 1);
}

static char *report(const char *folder)
{
    char *text = NULL;
    assert_int_equal(fsdp_debug_report(folder, &text), FSDP_OK);
    assert_non_null(text);
    return text;
}

static void expect(const char *text, const char *words)
{
    if (!strstr(text, words))
        fail_msg("\"%s\" is not in:\n%s", words, text);
}

/* Rank 1 stops coming in its data phase; the others time out. */
static void go_missing(ranks *all, int rank, void *context)
{
    comm *c = open_rank(all, rank, context);
    for (int step = 1; step <= STEPS; step++)
        RANK_CHECK(sum(c, "loss", step) == FSDP_OK);
    if (rank == 1) {
        HOOK(HOOK_PHASE, HOOK_BEGIN, "data", NULL, 0, 0);
        while (!all->shared->flags[0] || !all->shared->flags[2])
            sleep_seconds(0.02);
        ring_save_own(NULL);
        _exit(0);
    }
    RANK_CHECK(sum(c, "norm", STEPS + 1) != FSDP_OK); /* whoever times out first tells the other */
    all->shared->flags[rank] = 1;
    _exit(0);
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    ranks all = ranks_make(N);
    all.timeout = 1.5;
    assert_true(ranks_run(&all, go_missing, *state));
    char *text = report(*state);
    expect(text, "3 of 3 ranks");
    expect(text, "rank 1 is behind: it has not called all_reduce of norm (number 6 of group world, ");
    expect(text, "step 6)");
    expect(text, "its last call there was all_reduce of loss (number 5 of group world");
    expect(text, "it is in phase data");
    expect(text, "ranks 0 and 2 wait in all_reduce of norm");
    expect(text, "timed out after 1.5 s");
    assert_null(strstr(text, "differ"));
    free(text);
    ranks_free(&all);
}

/* Rank 2 dies where nobody can write its file: there is no launcher. */
static void die(ranks *all, int rank, void *context)
{
    comm *c = open_rank(all, rank, context);
    RANK_CHECK(sum(c, "loss", 1) == FSDP_OK);
    if (rank == 2)
        kill(getpid(), SIGKILL);
    RANK_CHECK(sum(c, "loss", 2) != FSDP_OK);
    _exit(0);
}

static void a_rank_without_a_file_is_named(void **state)
{
    ranks all = ranks_make(N);
    assert_false(ranks_run(&all, die, *state));
    assert_true(all.statuses[0] == 0 && all.statuses[1] == 0);
    char *text = report(*state);
    expect(text, "2 of 3 ranks");
    expect(text, "rank 2 left no file");
    free(text);
    ranks_free(&all);
}

static void go_another_way(ranks *all, int rank, void *context)
{
    comm *c = open_rank(all, rank, context);
    RANK_CHECK(sum(c, "loss", 1) == FSDP_OK);
    if (rank == 1)
        RANK_CHECK(comm_barrier(comm_world(c), "end of epoch", 2) != FSDP_OK);
    else
        RANK_CHECK(sum(c, "loss", 2) != FSDP_OK);
    _exit(0);
}

static void ranks_whose_calls_differ_are_named(void **state)
{
    ranks all = ranks_make(N);
    assert_true(ranks_run(&all, go_another_way, *state));
    char *text = report(*state);
    expect(text, "The calls differ. ranks 0 and 2 called all_reduce of loss (number 2 of group world");
    expect(text, "but rank 1 called barrier of end of epoch (number 2");
    free(text);
    ranks_free(&all);
}

/* In a group of two of the three, with a thread for communication. */
static void hang_in_a_group(ranks *all, int rank, void *context)
{
    comm *c = open_rank(all, rank, context);
    comm_group *g;
    double value = 1;
    RANK_CHECK(comm_group_split(c, "pair", rank == 0, rank, &g) == FSDP_OK);
    if (rank == 2)
        RANK_CHECK(comm_all_reduce_f64(g, "only one", 1, FSDP_REDUCE_SUM, &value, 1) == FSDP_ERR_TIMEOUT);
    else
        while (!all->shared->flags[2])
            sleep_seconds(0.02);
    all->shared->flags[rank] = 1;
    ring_save_own(NULL);
    _exit(0);
}

static void a_group_is_judged_by_its_own_members(void **state)
{
    ranks all = ranks_make(N);
    all.timeout = 1.5;
    all.progress = COMM_PROGRESS_THREAD;
    assert_true(ranks_run(&all, hang_in_a_group, *state));
    char *text = report(*state);
    expect(text, "rank 1 is behind: it has not called all_reduce of only one (number 1 of group pair");
    expect(text, "rank 2 waits in all_reduce of only one");
    assert_null(strstr(text, "rank 0 is behind"));
    free(text);
    ranks_free(&all);
}

static void run_well(ranks *all, int rank, void *context)
{
    comm *c = open_rank(all, rank, context);
    for (int step = 1; step <= STEPS; step++)
        RANK_CHECK(sum(c, "loss", step) == FSDP_OK);
    ring_save_own(NULL);
    comm_close(c);
}

static void healthy_files_accuse_nobody(void **state)
{
    ranks all = ranks_make(N);
    assert_true(ranks_run(&all, run_well, *state));
    char *text = report(*state);
    expect(text, "No rank was behind and no call differs");
    free(text);
    ranks_free(&all);
}

/* Damage of any kind is refused or read as events; nothing in a file is believed. */
static void damaged_files_are_read_safely(void **state)
{
    const char *folder = *state;
    char *path = file_join(folder, "flight-0.bin"), *text = NULL, *bytes;
    size_t n;
    ranks all = ranks_make(N);
    assert_int_equal(fsdp_debug_report(folder, &text), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "no flight-RANK.bin"));
    assert_true(ranks_run(&all, run_well, *state));
    assert_int_equal(file_read(path, &bytes, &n), FSDP_OK);
    uint64_t seed = 42;
    for (int round = 0; round < 60; round++) {
        char *changed = malloc(n);
        size_t kept = round % 3 == 0 ? (size_t)(seed >> 33) % n : n;
        memcpy(changed, bytes, n);
        for (int i = 0; i < 400; i++) {
            draw_state(&seed);
            size_t room = i % 2 ? n : offsetof(ring, events) + 64 * sizeof(ring_event);
            size_t spared = offsetof(ring, taken_ns); /* else all are refused at once */
            changed[spared + (size_t)(seed >> 33) % (room - spared)] = (char)(seed >> 20);
        }
        assert_int_equal(file_write_atomic(path, changed, kept), FSDP_OK);
        fsdp_status status = fsdp_debug_report(folder, &text);
        assert_true(status == FSDP_OK || status == FSDP_ERR_INPUT);
        free(text);
        free(changed);
    }
    free(bytes);
    free(path);
    ranks_free(&all);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        CASE(a_rank_that_does_not_come_is_named), CASE(a_rank_without_a_file_is_named),
        CASE(ranks_whose_calls_differ_are_named), CASE(a_group_is_judged_by_its_own_members),
        CASE(healthy_files_accuse_nobody),        CASE(damaged_files_are_read_safely),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
