/* Unfinished saves belong to somebody: neither another job on the same folder nor a prune by hand removes one whose
 * owner lives, and one whose owner died is removed at once. */
#include "ckpt/fixture.h"

#include <fcntl.h>
#include <fsdp/checkpoint.h>
#include <sys/stat.h>

#include "ckpt/save/owner.h"

/* ---- A save that stands still until it is told to go on ---- */

typedef struct slow_job {
    const char *directory;
    fsdp_checkpoint_kind kind;
    volatile int *go, *stands;
} slow_job;

static volatile int *slow_go, *slow_stands;

static fsdp_status slow_read(void *context, const ckpt_slice *slice, int64_t first, int64_t n, float *out)
{
    *slow_stands = 1;
    for (int i = 0; !*slow_go; i++) {
        RANK_CHECK(i < 60000);
        usleep(1000);
    }
    return fixture_read(context, slice, first, n, out);
}

/* In a process of its own: saves step 20. */
static void save_slowly(ranks *all, int rank, void *context)
{
    const slow_job *j = context;
    (void)all, (void)rank;
    fixture *f = fixture_make(CUT_FLAT, 0, 1, true);
    fixture_fill(f, 20);
    slow_go = j->go;
    slow_stands = j->stands;
    f->state.read = slow_read;
    ckpt_save_config config = fixture_config(j->directory, j->kind, 20);
    RANK_CHECK(ckpt_save(&config, &f->state, NULL, NULL) == FSDP_OK);
    fixture_free(f);
}

/* Names in the directory that hold `part`. */
static int count_named(const char *directory, const char *part)
{
    int n = 0;
    DIR *folder = opendir(directory);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        n += strstr(entry->d_name, part) != NULL;
    if (folder)
        closedir(folder);
    return n;
}

static void start_slow(ranks *all, slow_job *j)
{
    j->stands = &all->shared->flags[0];
    j->go = &all->shared->flags[1];
    ranks_start(all, save_slowly, j);
    for (int i = 0; i < 20000 && !*j->stands; i++)
        usleep(1000);
    assert_true(*j->stands);
    assert_int_equal(count_named(j->directory, ".tmp-"), 1);
}

static int prune_by_hand(const char *directory)
{
    char *text;
    fsdp_checkpoint_prune_config config = FSDP_CHECKPOINT_PRUNE_CONFIG_INIT;
    config.directory = directory;
    config.keep = 1;
    assert_ok(fsdp_checkpoint_prune(&config, &text));
    free(text);
    return count_named(directory, ".tmp-");
}

static void a_running_save_is_not_removed_by_others(void **state)
{
    (void)state;
    static const fsdp_checkpoint_kind kinds[] = {FSDP_CKPT_SHARDED, FSDP_CKPT_FULL, FSDP_CKPT_LOCAL};
    for (int k = 0; k < 3; k++) {
        slow_job j = {.directory = scratch_path(ckpt_kind_name(kinds[k])), .kind = kinds[k]};
        assert_ok(fixture_save(j.directory, kinds[k], 10));
        ranks all = ranks_make(1);
        start_slow(&all, &j);
        assert_int_equal(prune_by_hand(j.directory), 1);
        /* A second job saves, another step and the same one; its retention leaves the first job's save alone. */
        assert_ok(fixture_save(j.directory, kinds[k], 15));
        assert_int_equal(count_named(j.directory, ".tmp-"), 1);
        assert_ok(fixture_save(j.directory, kinds[k], 20));
        assert_int_equal(count_named(j.directory, ".tmp-"), 1);
        *j.go = 1;
        ranks_join(&all);
        assert_true(WIFEXITED(all.statuses[0]) && WEXITSTATUS(all.statuses[0]) == 0);
        ranks_free(&all);
        assert_int_equal(count_named(j.directory, ".tmp-"), 0);
        assert_int_equal(fixture_resumed_step(j.directory), 20);
        char path[1300];
        snprintf(path, sizeof path, "%s/step-00000020%s/" OWNER_NAME, j.directory,
                 kinds[k] == FSDP_CKPT_LOCAL ? ".rank-00000" : "");
        assert_false(file_exists(path));
    }
}

static void a_save_whose_owner_was_killed_is_removed_at_once(void **state)
{
    (void)state;
    slow_job j = {.directory = scratch_path("killed"), .kind = FSDP_CKPT_SHARDED};
    assert_ok(fixture_save(j.directory, FSDP_CKPT_SHARDED, 10));
    ranks all = ranks_make(1);
    start_slow(&all, &j);
    kill(all.shared->pids[0], SIGKILL);
    ranks_join(&all);
    ranks_free(&all);
    assert_int_equal(count_named(j.directory, ".tmp-"), 1);
    assert_int_equal(prune_by_hand(j.directory), 0);
    assert_int_equal(fixture_resumed_step(j.directory), 10);
}

/* The rules, case by case: file systems that this test does not have included. */
static void who_is_gone_follows_from_what_is_known(void **state)
{
    (void)state;
    static const struct {
        owner_facts facts;
        bool gone;
    } cases[] = {
        /* a disk of this host: the lock decides, age and process do not matter */
        {{.named = true, .locks_count = true, .locked = true, .age = 1e9}, false},
        {{.named = true, .locks_count = true, .age = 0}, true},
        {{.named = true, .locks_count = true, .same_host = true, .process_runs = true, .age = 0}, true},
        /* shared between hosts: a lock that is seen is held */
        {{.named = true, .locked = true, .age = 1e9}, false},
        {{.named = true, .locked = true, .same_host = true, .age = 1e9}, false},
        /* no lock is seen: the process decides where it can be, else the lease */
        {{.named = true, .same_host = true, .process_runs = true, .age = 1e9}, false},
        {{.named = true, .same_host = true, .age = 0}, true},
        {{.named = true, .age = OWNER_LEASE - 1}, false},
        {{.named = true, .age = OWNER_LEASE + 1}, true},
        {{.named = true, .age = -7200}, false}, /* a clock that runs ahead */
        /* nobody is named: just made, or of an earlier version */
        {{.locks_count = true, .age = OWNER_GRACE - 1}, false},
        {{.locks_count = true, .age = OWNER_GRACE + 1}, true},
        {{.age = OWNER_GRACE + 1}, false},
        {{.age = OWNER_LEASE + 1}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (owner_facts_gone(&cases[i].facts) != cases[i].gone)
            fail_msg("case %zu", i);
    static const long shared[] = {0x6969 /* NFS, EFS */,
                                  0x0bd00bd0 /* Lustre */,
                                  0x65735546 /* FUSE */,
                                  0xff534d42 /* CIFS */,
                                  0xfe534d42 /* SMB 2 */,
                                  0x00c36400 /* Ceph */,
                                  0x47504653 /* GPFS */,
                                  0x19830326 /* BeeGFS */,
                                  0x01021997 /* 9P */,
                                  0x12345678 /* not known */,
                                  0};
    for (size_t i = 0; i < sizeof shared / sizeof *shared; i++)
        assert_false(owner_filesystem_is_local(shared[i]));
    assert_true(owner_filesystem_is_local(0xef53));
    assert_true(owner_filesystem_is_local(0x01021994));
    assert_true(owner_filesystem_is_local((long)(int)0x9123683e)); /* as a statfs of 32 bits gives it */
}

static void an_owner_that_lives_is_told_from_one_that_does_not(void **state)
{
    (void)state;
    const char *folder = scratch_path("owned");
    char who[300], expected[64], path[1300];
    save_owner *owner;
    assert_ok(file_make_directories(folder));
    assert_ok(owner_take(folder, &owner));
    owner_renew(owner);
    assert_false(owner_is_gone(folder, who, sizeof who));
    snprintf(expected, sizeof expected, "process %ld on ", (long)getpid());
    assert_non_null(strstr(who, expected));
    owner_release(owner);
    assert_true(owner_is_gone(folder, who, sizeof who));
    /* A file that is damaged or nonsense counts as none: the directory's age decides. */
    snprintf(path, sizeof path, "%s/" OWNER_NAME, folder);
    assert_ok(file_write_atomic(path, "{\"pid\": -1}", 11));
    assert_false(owner_is_gone(folder, who, sizeof who));
    assert_int_equal(utimensat(AT_FDCWD, folder, (struct timespec[]){{.tv_sec = 1}, {.tv_sec = 1}}, 0), 0);
    assert_true(owner_is_gone(folder, who, sizeof who));
    assert_int_equal(count_named(scratch_folder, ".now-"), 0);
    assert_false(owner_is_gone(scratch_path("not-there"), who, sizeof who));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_running_save_is_not_removed_by_others),
        cmocka_unit_test(a_save_whose_owner_was_killed_is_removed_at_once),
        cmocka_unit_test(who_is_gone_follows_from_what_is_known),
        cmocka_unit_test(an_owner_that_lives_is_told_from_one_that_does_not),
    };
    return cmocka_run_group_tests(tests, fixture_setup_one_thread, scratch_teardown);
}
