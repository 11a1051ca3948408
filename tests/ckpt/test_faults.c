/* System calls fail while a checkpoint is written: at the n-th call for every n, with every errno that disks give. Each
 * time the save says so clearly and what was committed before is still there. */
#include "ckpt/fixture.h"

#include <fsdp/checkpoint.h>
#include <sched.h>

#include "ckpt/faults.h"

/* ---- One rank ---- */

static fsdp_status save_async(const char *directory, fsdp_checkpoint_kind kind, int64_t step)
{
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    fixture_fill(f, step);
    ckpt_save_config config = fixture_config(directory, kind, step);
    ckpt_saver *saver;
    fsdp_status status = ckpt_saver_create(&f->state, kind == FSDP_CKPT_LOCAL, &saver);
    if (status == FSDP_OK) {
        status = ckpt_saver_start(saver, &config, &f->state, NULL);
        if (status == FSDP_OK)
            status = ckpt_saver_wait(saver, NULL, NULL);
        ckpt_saver_free(saver);
    }
    fixture_free(f);
    return status;
}

/* Kind local: what a rank had replaced stays until all have theirs, or until a later save is well. */
static int count_old(const char *directory, fsdp_checkpoint_kind kind)
{
    int n = 0;
    DIR *folder = opendir(directory);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        n += strstr(entry->d_name, ".old-") != NULL;
    closedir(folder);
    assert_true(n == 0 || kind == FSDP_CKPT_LOCAL);
    return n;
}

/* Every call of a save fails once, until a save has no more calls to fail. */
static int check_every_call(fsdp_checkpoint_kind kind, int number, bool stays, bool async)
{
    char name[64];
    snprintf(name, sizeof name, "fault-%s-%d-%d-%d", ckpt_kind_name(kind), number, stays, async);
    const char *directory = scratch_path(name);
    assert_ok(fixture_save(directory, kind, 10));
    int n = 1;
    for (;; n++) {
        assert_true(n < 1000);
        fault_set(n, number, stays);
        fsdp_status status = async ? save_async(directory, kind, 20) : fixture_save(directory, kind, 20);
        bool tripped = atomic_load(&fault.tripped);
        fault_set(0, 0, false);
        if (!tripped) {
            assert_int_equal(status, FSDP_OK);
            break;
        }
        /* Removing old checkpoints comes after the commit, so a fault there is no failed save. */
        if (status == FSDP_OK) {
            assert_int_equal(fixture_resumed_step(directory), 20);
            continue;
        }
        if (!strstr(fsdp_last_error(), strerror(number)) || !strstr(fsdp_last_error(), name))
            fail_msg("call %d: the message does not say what and where: %s", n, fsdp_last_error());
        int64_t step = fixture_resumed_step(directory);
        if (step != 10 && step != 20) /* 20: the sync of the parent failed, after everything was in place */
            fail_msg("call %d: resumes from %lld: %s", n, (long long)step, fsdp_last_error());
        assert_true(fixture_count_entries(directory) - count_old(directory, kind) <= 2);
    }
    assert_int_equal(fixture_resumed_step(directory), 20);
    assert_int_equal(fixture_count_entries(directory), 2);
    return n - 1;
}

static void every_failing_call_of_every_kind_leaves_the_last_checkpoint(void **state)
{
    (void)state;
    static const int numbers[] = {ENOSPC, EIO, EDQUOT};
    for (int kind = 0; kind < CKPT_N_KINDS; kind++)
        for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
            int n_calls = check_every_call((fsdp_checkpoint_kind)kind, numbers[i], i == 0, false);
            assert_true(n_calls > 10);
        }
}

static void failures_in_the_background_are_reported_by_wait(void **state)
{
    (void)state;
    assert_true(check_every_call(FSDP_CKPT_SHARDED, ENOSPC, true, true) > 10);
    assert_true(check_every_call(FSDP_CKPT_FULL, EIO, false, true) > 10);
}

/* ---- Several ranks: one of them cannot write ---- */

typedef struct scenario {
    const char *directory;
    int failing_rank, countdown;
    bool async;
} scenario;

static void save_with_fault(ranks *all, int rank, void *context)
{
    const scenario *s = context;
    comm *c = ranks_open(all, rank);
    fixture *f = fixture_make(CUT_FLAT, rank, all->n, false);
    fixture_fill(f, 20);
    ckpt_save_config config = fixture_config(s->directory, FSDP_CKPT_SHARDED, 20);
    ckpt_saver *saver;
    RANK_CHECK(ckpt_saver_create(&f->state, false, &saver) == FSDP_OK);
    fault_set(rank == s->failing_rank ? s->countdown : 0, ENOSPC, true);
    fsdp_status status;
    if (s->async) {
        status = ckpt_saver_start(saver, &config, &f->state, comm_world(c));
        if (status == FSDP_OK)
            status = ckpt_saver_wait(saver, comm_world(c), NULL);
    } else {
        status = ckpt_save(&config, &f->state, comm_world(c), NULL);
    }
    RANK_CHECK(status != FSDP_OK);
    RANK_CHECK(strstr(fsdp_last_error(), strerror(ENOSPC)) != NULL);
    fault_set(0, 0, false);
    ckpt_saver_free(saver);
    fixture_free(f);
    RANK_CHECK(comm_barrier(comm_world(c), "end", 0) == FSDP_OK); /* the failure did not break the job */
    comm_close(c);
}

static void a_rank_that_cannot_write_fails_the_save_on_all_ranks(void **state)
{
    (void)state;
    const char *directory = scratch_path("ranks");
    assert_ok(fixture_save(directory, FSDP_CKPT_SHARDED, 10));
    for (int failing = 0; failing < 3; failing++)
        for (int n = 1; n <= 5; n++) {
            scenario s = {.directory = directory, .failing_rank = failing, .countdown = n, .async = n % 2 == 0};
            ranks all = ranks_make(3);
            double before = clock_seconds();
            assert_true(ranks_run(&all, save_with_fault, &s));
            assert_true(clock_seconds() - before < 10); /* nobody waits for a part that does not come */
            ranks_free(&all);
            assert_int_equal(fixture_resumed_step(directory), 10);
            assert_int_equal(fixture_count_entries(directory), 1);
        }
}

static void save_with_late_fault(ranks *all, int rank, void *context)
{
    const scenario *s = context;
    comm *c = ranks_open(all, rank);
    fixture *f = fixture_make(CUT_FLAT, rank, all->n, false);
    ckpt_saver *saver;
    fixture_fill(f, 20);
    ckpt_save_config config = fixture_config(s->directory, FSDP_CKPT_SHARDED, 20);
    config.keep = 1;
    RANK_CHECK(ckpt_saver_create(&f->state, false, &saver) == FSDP_OK);
    fault_set(rank == s->failing_rank ? s->countdown : 0, EIO, false);
    fsdp_status status = ckpt_saver_start(saver, &config, &f->state, comm_world(c));
    if (status == FSDP_OK)
        status = ckpt_saver_wait(saver, comm_world(c), NULL);
    all->shared->flags[0] |= atomic_load(&fault.tripped);
    fault_set(0, 0, false);
    all->shared->flags[1] = status == FSDP_OK;
    ckpt_saver_free(saver);
    fixture_free(f);
    comm_close(c);
}

/* Rank 0 commits in the background as soon as it sees the others' lists: a rank may not call its part failed after. */
static void a_save_that_is_reported_as_failed_is_not_there(void **state)
{
    (void)state;
    bool tripped = true;
    for (int n = 1; tripped; n++) {
        char name[64];
        snprintf(name, sizeof name, "late-%d", n);
        scenario s = {.directory = scratch_path(name), .failing_rank = 1, .countdown = n};
        assert_ok(fixture_save(s.directory, FSDP_CKPT_SHARDED, 10));
        ranks all = ranks_make(2);
        assert_true(ranks_run(&all, save_with_late_fault, &s));
        tripped = all.shared->flags[0] != 0;
        assert_int_equal(fixture_resumed_step(s.directory), all.shared->flags[1] ? 20 : 10);
        ranks_free(&all);
        assert_true(n < 100);
    }
}

/* ---- Kind local: ranks commit each for itself ---- */

static void save_local(ranks *all, int rank, void *context)
{
    const scenario *s = context;
    comm *c = ranks_open(all, rank);
    fixture *f = fixture_make(CUT_FLAT, rank, all->n, false);
    for (int64_t step = 10; step <= 20; step += 10) {
        fixture_fill(f, step);
        ckpt_save_config config = fixture_config(s->directory, FSDP_CKPT_LOCAL, step);
        config.keep = 1;
        fault_set(step == 20 && rank == s->failing_rank ? s->countdown : 0, EIO, true);
        fsdp_status status = ckpt_save(&config, &f->state, comm_world(c), NULL);
        bool tripped = atomic_load(&fault.tripped);
        fault_set(0, 0, false);
        RANK_CHECK(step == 20 || status == FSDP_OK);
        if (tripped)
            all->shared->flags[0] = 1;
    }
    ckpt_load_config load = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    RANK_CHECK(ckpt_resume(s->directory, &load, &f->state, comm_world(c), &result) == FSDP_OK);
    RANK_CHECK(result.step == 10 || result.step == 20);
    RANK_CHECK(fixture_holds(f, result.step, CKPT_ROLES_ALL));
    ckpt_load_result_free(&result);
    fixture_free(f);
    comm_close(c);
}

/* One rank has committed the new step when the other fails: the step that both have must still be there. */
static void a_local_save_that_fails_on_one_rank_keeps_the_step_before(void **state)
{
    (void)state;
    bool tripped = true;
    for (int n = 1; tripped; n++) {
        char name[64];
        snprintf(name, sizeof name, "local-%d", n);
        scenario s = {.directory = scratch_path(name), .failing_rank = n % 2, .countdown = (n + 1) / 2};
        ranks all = ranks_make(2);
        assert_true(ranks_run(&all, save_local, &s));
        tripped = all.shared->flags[0] != 0;
        ranks_free(&all);
        assert_true(n < 200);
    }
}

typedef struct local_mixture {
    const char *directory;
    int64_t step, tag, found; /* saves `tag` as `step`; a step of -1 resumes, and must find `found` */
} local_mixture;

static void save_or_resume_local(ranks *all, int rank, void *context)
{
    const local_mixture *x = context;
    comm *c = ranks_open(all, rank);
    fixture *f = fixture_make(CUT_FLAT, rank, all->n, false);
    fixture_fill(f, x->tag);
    ckpt_save_config config = fixture_config(x->directory, FSDP_CKPT_LOCAL, x->step);
    ckpt_load_config load = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    if (x->step >= 0) {
        RANK_CHECK(ckpt_save(&config, &f->state, comm_world(c), NULL) == FSDP_OK);
    } else {
        RANK_CHECK(ckpt_resume(x->directory, &load, &f->state, comm_world(c), &result) == FSDP_OK);
        RANK_CHECK(result.step == x->found);
        ckpt_load_result_free(&result);
    }
    fixture_free(f);
    comm_close(c);
}

static void run_local(local_mixture x)
{
    ranks all = ranks_make(2);
    assert_true(ranks_run(&all, save_or_resume_local, &x));
    ranks_free(&all);
}

/* Two saves of one step, each of which only the other rank finished: parts of different saves are no checkpoint. */
static void parts_of_two_local_saves_are_not_one_checkpoint(void **state)
{
    (void)state;
    const char *a = scratch_path("mixture-a"), *b = scratch_path("mixture-b");
    char from[1300], to[1300];
    run_local((local_mixture){.directory = a, .step = 5, .tag = 5});
    run_local((local_mixture){.directory = a, .step = 10, .tag = 10});
    run_local((local_mixture){.directory = b, .step = 10, .tag = 11});
    run_local((local_mixture){.directory = a, .step = -1, .found = 10});
    snprintf(to, sizeof to, "%s/step-00000010.rank-00001", a);
    snprintf(from, sizeof from, "%s/step-00000010.rank-00001", b);
    assert_ok(file_remove_tree(to));
    assert_int_equal(rename(from, to), 0);
    run_local((local_mixture){.directory = a, .step = -1, .found = 5});
    /* Nor does a prune by hand take it for one, and remove what is. */
    char *text;
    fsdp_checkpoint_prune_config prune = FSDP_CHECKPOINT_PRUNE_CONFIG_INIT;
    prune.directory = a;
    prune.keep = 1;
    assert_ok(fsdp_checkpoint_prune(&prune, &text));
    free(text);
    run_local((local_mixture){.directory = a, .step = -1, .found = 5});
}

/* ---- Other troubles ---- */

static void a_failing_device_read_fails_the_save(void **state)
{
    (void)state;
    const char *directory = scratch_path("device");
    fixture *f = fixture_make(CUT_FLAT, 0, 1, true);
    fixture_fill(f, 20);
    f->fail_read = FSDP_ERR_DEVICE;
    ckpt_save_config config = fixture_config(directory, FSDP_CKPT_SHARDED, 20);
    assert_fails(FSDP_ERR_DEVICE, ckpt_save(&config, &f->state, NULL, NULL), "the device does not answer");
    ckpt_saver *saver;
    assert_ok(ckpt_saver_create(&f->state, false, &saver));
    assert_ok(ckpt_saver_start(saver, &config, &f->state, NULL));
    assert_fails(FSDP_ERR_DEVICE, ckpt_saver_wait(saver, NULL, NULL), "the device does not answer");
    f->fail_read = FSDP_OK;
    assert_ok(ckpt_saver_start(saver, &config, &f->state, NULL));
    assert_ok(ckpt_saver_wait(saver, NULL, NULL));
    ckpt_saver_free(saver);
    fixture_free(f);
    assert_int_equal(fixture_count_entries(directory), 1);
    assert_int_equal(fixture_resumed_step(directory), 20);
}

/* The next save is made, and is whole, whatever became of the one before. */
static void a_save_that_failed_in_the_background_does_not_cost_the_next(void **state)
{
    (void)state;
    const char *directory = scratch_path("next");
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_saver *saver;
    assert_ok(ckpt_saver_create(&f->state, false, &saver));
    for (int64_t step = 10; step <= 40; step += 10) {
        fixture_fill(f, step);
        ckpt_save_config config = fixture_config(directory, FSDP_CKPT_SHARDED, step);
        while (ckpt_saver_active(saver) && !ckpt_saver_done(saver))
            sched_yield();
        bool fails = step == 20 || step == 30;
        fault_set(fails, EIO, true);
        fault.background = true;
        assert_ok(ckpt_saver_start(saver, &config, &f->state, NULL));
        while (!ckpt_saver_done(saver))
            sched_yield();
        fault_set(0, 0, false);
        if (step == 10)
            assert_ok(ckpt_saver_wait(saver, NULL, NULL));
        assert_int_equal(fixture_resumed_step(directory), fails ? 10 : step);
    }
    assert_ok(ckpt_saver_wait(saver, NULL, NULL));
    ckpt_saver_free(saver);
    fixture_free(f);
    assert_int_equal(fixture_count_entries(directory), 2);
}

/* Root may write anywhere, so the check runs as nobody. */
static void as_nobody(ranks *all, int rank, void *context)
{
    (void)all, (void)rank;
    RANK_CHECK(geteuid() != 0 || (setgid(65534) == 0 && setuid(65534) == 0));
    RANK_CHECK(fixture_save(context, FSDP_CKPT_SHARDED, 20) == FSDP_ERR_INPUT);
    RANK_CHECK(strstr(fsdp_last_error(), strerror(EACCES)) != NULL);
    RANK_CHECK(strstr(fsdp_last_error(), context) != NULL);
}

static void a_directory_without_permission_is_a_clear_error(void **state)
{
    (void)state;
    char directory[600];
    snprintf(directory, sizeof directory, "%s", scratch_path("forbidden"));
    assert_ok(fixture_save(directory, FSDP_CKPT_SHARDED, 10));
    assert_int_equal(chmod(scratch_folder, 0755), 0);
    assert_int_equal(chmod(directory, 0555), 0);
    ranks all = ranks_make(1);
    assert_true(ranks_run(&all, as_nobody, directory));
    ranks_free(&all);
    assert_int_equal(chmod(directory, 0755), 0);
    assert_int_equal(fixture_resumed_step(directory), 10);
}

static void a_file_in_place_of_the_directory_is_a_clear_error(void **state)
{
    (void)state;
    const char *path = scratch_path("a-file");
    assert_ok(file_write_atomic(path, "x", 1));
    assert_fails(FSDP_ERR_INPUT, fixture_save(path, FSDP_CKPT_SHARDED, 10), path);
}

/* More than any disk has: refused before anything is written. */
static void a_checkpoint_larger_than_the_disk_is_refused_at_once(void **state)
{
    (void)state;
    const char *directory = scratch_path("huge");
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    fixture_add_tensor(f, CKPT_OTHER, "huge", 2, (int64_t[]){1 << 30, 1 << 20});
    ckpt_save_config config = fixture_config(directory, FSDP_CKPT_SHARDED, 20);
    assert_fails(FSDP_ERR_IO, ckpt_save(&config, &f->state, NULL, NULL), "are free there", directory);
    assert_int_equal(fixture_count_entries(directory), 0);
    fixture_free(f);
}

/* Ranks whose slices leave a hole, or overlap, do not get a checkpoint that looks whole. */
static void slices_that_do_not_tile_a_tensor_are_refused(void **state)
{
    (void)state;
    const char *directory = scratch_path("holes");
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    fixture_fill(f, 20);
    f->slices[0].count -= 1;
    ckpt_save_config config = fixture_config(directory, FSDP_CKPT_SHARDED, 20);
    assert_fails(FSDP_ERR_STATE, ckpt_save(&config, &f->state, NULL, NULL), "missing", "model.embed_tokens.weight");
    f->slices[0].count += 1;
    f->slices[1].tensor = 0;
    assert_fails(FSDP_ERR_STATE, ckpt_save(&config, &f->state, NULL, NULL), "overlap", "model.embed_tokens.weight");
    assert_int_equal(fixture_count_entries(directory), 0);
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_failing_call_of_every_kind_leaves_the_last_checkpoint),
        cmocka_unit_test(failures_in_the_background_are_reported_by_wait),
        cmocka_unit_test(a_rank_that_cannot_write_fails_the_save_on_all_ranks),
        cmocka_unit_test(a_save_that_is_reported_as_failed_is_not_there),
        cmocka_unit_test(a_local_save_that_fails_on_one_rank_keeps_the_step_before),
        cmocka_unit_test(parts_of_two_local_saves_are_not_one_checkpoint),
        cmocka_unit_test(a_failing_device_read_fails_the_save),
        cmocka_unit_test(a_save_that_failed_in_the_background_does_not_cost_the_next),
        cmocka_unit_test(a_directory_without_permission_is_a_clear_error),
        cmocka_unit_test(a_file_in_place_of_the_directory_is_a_clear_error),
        cmocka_unit_test(a_checkpoint_larger_than_the_disk_is_refused_at_once),
        cmocka_unit_test(slices_that_do_not_tile_a_tensor_are_refused),
    };
    return cmocka_run_group_tests(tests, fixture_setup_one_thread, scratch_teardown);
}
