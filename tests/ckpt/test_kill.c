/* A job that trains and saves without end is killed at random instants, again and again, and resumed each time: what it
 * had committed is never lost, and every resumed state has the bits of its step. */
#include "ckpt/fixture.h"

#include "base/rng.h"

enum { WIDTH = 1003 }; /* a few hundred kilobytes: a save takes about as long as the pauses between */

typedef struct progress {
    volatile int64_t committed; /* the last step whose save a rank knows to be done */
    volatile int64_t started;
} progress;

typedef struct scenario {
    const char *directory;
    fsdp_checkpoint_kind kind;
    bool async;
    progress *shared;
    double longest; /* seconds that a job may live */
} scenario;

/* Resumes, then saves every step; ends only by being killed. */
static void train_rank(ranks *all, int rank, void *context)
{
    const scenario *s = context;
    comm *c = ranks_open(all, rank);
    fixture *f = fixture_make_sized(CUT_FLAT, rank, all->n, false, WIDTH);
    ckpt_load_config load = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result loaded;
    ckpt_saver *saver;
    RANK_CHECK(ckpt_resume(s->directory, &load, &f->state, comm_world(c), &loaded) == FSDP_OK);
    RANK_CHECK(loaded.step < 0 ? s->shared->committed == 0 : loaded.step >= s->shared->committed);
    RANK_CHECK(loaded.step < 0 || fixture_holds(f, loaded.step, CKPT_ROLES_ALL));
    int64_t step = loaded.step < 0 ? 0 : loaded.step;
    ckpt_load_result_free(&loaded);
    RANK_CHECK(ckpt_saver_create(&f->state, s->kind == FSDP_CKPT_LOCAL, &saver) == FSDP_OK);
    for (;;) {
        step++;
        fixture_fill(f, step);
        ckpt_save_config config = fixture_config(s->directory, s->kind, step);
        config.keep = 1;
        if (rank == 0)
            s->shared->started = step;
        if (s->async) {
            RANK_CHECK(ckpt_saver_wait(saver, comm_world(c), NULL) == FSDP_OK);
            if (rank == 0 && step > 1)
                s->shared->committed = step - 1;
            RANK_CHECK(ckpt_saver_start(saver, &config, &f->state, comm_world(c)) == FSDP_OK);
        } else {
            RANK_CHECK(ckpt_save(&config, &f->state, comm_world(c), NULL) == FSDP_OK);
            if (rank == 0)
                s->shared->committed = step;
        }
    }
}

/* Starts the job, kills all of it after a random while, and looks at what is left. */
static void kill_once(const scenario *s, int n_ranks, uint64_t number)
{
    ranks all = ranks_make(n_ranks);
    rng_key key = rng_key_make(12345);
    ranks_start(&all, train_rank, (void *)(uintptr_t)s);
    sleep_seconds(0.005 + (double)(rng_word(key, 0, number) % 1000) * 1e-3 * s->longest);
    ranks_kill(&all);
    ranks_join(&all);
    for (int rank = 0; rank < n_ranks; rank++)
        if (!WIFSIGNALED(all.statuses[rank]) || WTERMSIG(all.statuses[rank]) != SIGKILL)
            fail_msg("kill %llu: a rank ended by itself", (unsigned long long)number);
    ranks_free(&all);
}

/* Whatever the instant, the newest checkpoint is whole, of a step that was saved, and not older than the last commit.
 */
static void check_left(const scenario *s, uint64_t number)
{
    fixture *f = fixture_make_sized(CUT_FLAT, 0, 1, false, WIDTH);
    ckpt_load_config load = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result loaded;
    assert_ok(ckpt_resume(s->directory, &load, &f->state, NULL, &loaded));
    if (loaded.step < s->shared->committed && s->shared->committed > 0)
        fail_msg("kill %llu: step %lld was committed, %lld is found", (unsigned long long)number,
                 (long long)s->shared->committed, (long long)loaded.step);
    assert_true(loaded.step <= s->shared->started);
    assert_true(loaded.step < 0 || fixture_holds(f, loaded.step, CKPT_ROLES_ALL));
    ckpt_load_result_free(&loaded);
    fixture_free(f);
}

static void check_kills(const char *name, fsdp_checkpoint_kind kind, bool async, int n_ranks, int n_kills)
{
    progress *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    scenario s = {.directory = scratch_path(name), .kind = kind, .async = async, .shared = shared};
    /* Long enough for a few saves on this disk. */
    double before = clock_seconds();
    assert_ok(fixture_save(scratch_path("timed"), kind, 1));
    s.longest = 0.1 + 5 * (clock_seconds() - before);
    for (int i = 0; i < n_kills; i++) {
        kill_once(&s, n_ranks, (uint64_t)i);
        if (kind != FSDP_CKPT_LOCAL)
            check_left(&s, (uint64_t)i);
    }
    assert_true(shared->committed > 0);
    munmap(shared, sizeof *shared);
}

static void killed_while_saving_in_the_background(void **state)
{
    (void)state;
    check_kills("async", FSDP_CKPT_SHARDED, true, 1, 60);
}

static void killed_while_saving(void **state)
{
    (void)state;
    check_kills("sync", FSDP_CKPT_SHARDED, false, 1, 30);
    check_kills("full", FSDP_CKPT_FULL, false, 1, 30);
}

static void all_ranks_killed_while_saving(void **state)
{
    (void)state;
    check_kills("ranks", FSDP_CKPT_SHARDED, true, 3, 30);
    check_kills("local", FSDP_CKPT_LOCAL, false, 2, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_while_saving_in_the_background),
        cmocka_unit_test(killed_while_saving),
        cmocka_unit_test(all_ranks_killed_while_saving),
    };
    return cmocka_run_group_tests(tests, fixture_setup_one_thread, scratch_teardown);
}
