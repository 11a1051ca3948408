/* Names, retention and replacement of checkpoints in their directory. */
#include "ckpt/fixture.h"

#include <fcntl.h>
#include <fsdp/checkpoint.h>
#include <sys/stat.h>

/* The steps that are there, newest first, as "30 20 10". */
static const char *steps_in(const char *directory)
{
    static char text[512];
    ckpt_listing listing;
    text[0] = 0;
    assert_ok(ckpt_directory_list(directory, &listing));
    for (int i = 0; i < listing.n_entries; i++) {
        ckpt_entry_check(&listing.entries[i]);
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%s%lld%s", used ? " " : "", (long long)listing.entries[i].step,
                 listing.entries[i].condition == CKPT_COMPLETE ? "" : "?");
    }
    ckpt_listing_free(&listing);
    return text;
}

static void save_of(const char *run, const char *directory, int64_t step, int keep, int64_t keep_every)
{
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    fixture_fill(f, step);
    ckpt_save_config config = fixture_config(directory, FSDP_CKPT_SHARDED, step);
    config.run = run;
    config.keep = keep;
    config.keep_every = keep_every;
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    fixture_free(f);
}

static void save_kept(const char *directory, int64_t step, int keep, int64_t keep_every)
{
    save_of(NULL, directory, step, keep, keep_every);
}

static void the_newest_k_and_every_m_th_are_kept(void **state)
{
    (void)state;
    const char *directory = scratch_path("keep");
    for (int64_t step = 10; step <= 100; step += 10)
        save_kept(directory, step, 2, 40);
    assert_string_equal(steps_in(directory), "100 90 80 40");
    save_kept(directory, 110, 1, 0);
    assert_string_equal(steps_in(directory), "110");
    save_kept(directory, 120, 0, 0);
    assert_string_equal(steps_in(directory), "120 110");
}

/* A run that went back to an earlier step: what it wrote last is the newest, whatever the steps are. */
static void what_was_written_last_is_the_newest_below_higher_steps(void **state)
{
    (void)state;
    const char *directory = scratch_path("higher");
    save_kept(directory, 100, 0, 0);
    save_kept(directory, 90, 0, 0);
    save_kept(directory, 10, 2, 0);
    assert_string_equal(steps_in(directory), "90 10");
    save_kept(directory, 20, 1, 0);
    assert_string_equal(steps_in(directory), "20");
    save_kept(directory, 30, 2, 0);
    assert_string_equal(steps_in(directory), "30 20");
}

static void what_another_run_wrote_is_neither_counted_nor_removed(void **state)
{
    (void)state;
    const char *directory = scratch_path("runs");
    save_of("theirs", directory, 100, 0, 0);
    save_of("theirs", directory, 20, 0, 0);
    for (int64_t step = 10; step <= 50; step += 10)
        if (step != 20)
            save_of("ours", directory, step, 1, 0);
    assert_string_equal(steps_in(directory), "100 50 20");
    save_of("theirs", directory, 110, 1, 0);
    assert_string_equal(steps_in(directory), "110 50");
}

/* Clocks and steps aside: the newest is the last commit, of the run that asks where it has one. */
static void the_newest_is_by_run_and_commit(void **state)
{
    (void)state;
    ckpt_listing listing;
    const char *directory = scratch_path("newest");
    save_of("ours", directory, 80, 0, 0);
    save_of("ours", directory, 40, 0, 0);
    save_of("theirs", directory, 60, 0, 0);
    assert_ok(ckpt_directory_list(directory, &listing));
    ckpt_listing_by_commit(&listing, NULL);
    assert_int_equal(listing.entries[0].step, 60);
    assert_int_equal(listing.entries[1].step, 40);
    ckpt_listing_free(&listing);
    assert_ok(ckpt_directory_list(directory, &listing));
    ckpt_listing_by_commit(&listing, "ours");
    assert_int_equal(listing.entries[0].step, 40);
    assert_int_equal(listing.entries[1].step, 80);
    ckpt_listing_free(&listing);
}

static void a_damaged_newest_one_does_not_count(void **state)
{
    (void)state;
    const char *directory = scratch_path("damaged");
    char path[1300];
    save_kept(directory, 10, 0, 0);
    save_kept(directory, 20, 0, 0);
    save_kept(directory, 30, 0, 0);
    snprintf(path, sizeof path, "%s/step-00000030/COMMIT", directory);
    assert_int_equal(unlink(path), 0);
    ckpt_prune_result result;
    assert_ok(ckpt_directory_prune(directory, 1, 0, -1, NULL, NULL, false, &result));
    assert_int_equal(result.n_kept, 1);
    assert_int_equal(result.n_removed, 1);
    assert_non_null(strstr(result.removed[0], "step-00000010"));
    ckpt_prune_result_free(&result);
    assert_string_equal(steps_in(directory), "30? 20");
}

static void without_a_complete_one_nothing_is_removed(void **state)
{
    (void)state;
    const char *directory = scratch_path("nothing");
    char path[1300];
    save_kept(directory, 10, 0, 0);
    snprintf(path, sizeof path, "%s/step-00000010/COMMIT", directory);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/step-00000020.tmp-1", directory);
    assert_ok(file_make_directories(path));
    assert_ok(ckpt_directory_prune(directory, 1, 0, -1, NULL, NULL, false, NULL));
    assert_string_equal(steps_in(directory), "20? 10?");
}

static void what_unfinished_saves_left_is_removed_after_the_next_commit(void **state)
{
    (void)state;
    const char *directory = scratch_path("stale");
    char path[1300];
    save_kept(directory, 10, 1, 0);
    snprintf(path, sizeof path, "%s/step-00000020.tmp-0000/inside", directory);
    assert_ok(file_make_directories(path));
    /* It says nothing of an owner, so it must be some minutes old: it could have been made this instant. */
    *strrchr(path, '/') = '\0';
    save_kept(directory, 10, 1, 0);
    assert_string_equal(steps_in(directory), "20? 10");
    assert_int_equal(utimensat(AT_FDCWD, path, (struct timespec[]){{.tv_sec = 1}, {.tv_sec = 1}}, 0), 0);
    snprintf(path, sizeof path, "%s/step-00000005.gone-0/inside", directory);
    assert_ok(file_make_directories(path));
    snprintf(path, sizeof path, "%s/notes", directory); /* not ours */
    assert_ok(file_make_directories(path));
    save_kept(directory, 20, 0, 0);
    assert_string_equal(steps_in(directory), "20 10");
    assert_true(file_is_directory(path));
}

static void a_step_saved_again_replaces_the_old_one(void **state)
{
    (void)state;
    const char *directory = scratch_path("again");
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_save_config config = fixture_config(directory, FSDP_CKPT_SHARDED, 10);
    fixture_fill(f, 9);
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    fixture_fill(f, 10);
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    fixture_free(f);
    assert_int_equal(fixture_count_entries(directory), 1);
    assert_int_equal(fixture_resumed_step(directory), 10);
}

/* Killed between the two renames of file systems that cannot exchange names: the old one is still found. */
static void a_checkpoint_that_was_being_replaced_is_found(void **state)
{
    (void)state;
    const char *directory = scratch_path("replaced");
    char from[1300], to[1300];
    save_kept(directory, 10, 0, 0);
    save_kept(directory, 20, 0, 0);
    snprintf(from, sizeof from, "%s/step-00000020", directory);
    snprintf(to, sizeof to, "%s/step-00000020.old-0123456789abcdef", directory);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(fixture_resumed_step(directory), 20);
    save_kept(directory, 20, 0, 0);
    assert_string_equal(steps_in(directory), "20 10");
}

static void names_that_are_not_ours_are_left_out(void **state)
{
    (void)state;
    static const char *const names[] = {
        "step-1",     "step-0000001x", "step-00000010.rank-1", "step-00000010.rank-00001x", "step-99999999999999999999",
        "checkpoint", "step-",         "step-00000010x"};
    const char *directory = scratch_path("names");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[1300];
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        assert_ok(file_make_directories(path));
    }
    assert_string_equal(steps_in(directory), "");
}

static void prune_by_hand_says_what_it_does(void **state)
{
    (void)state;
    const char *directory = scratch_path("hand");
    for (int64_t step = 1; step <= 4; step++)
        save_kept(directory, step, 0, 0);
    fsdp_checkpoint_prune_config config = FSDP_CHECKPOINT_PRUNE_CONFIG_INIT;
    char *text;
    config.directory = directory;
    config.keep = 1;
    config.keep_every = 2;
    config.dry_run = true;
    assert_ok(fsdp_checkpoint_prune(&config, &text));
    assert_non_null(strstr(text, "would remove"));
    free(text);
    assert_string_equal(steps_in(directory), "4 3 2 1");
    config.dry_run = false;
    config.json = true;
    assert_ok(fsdp_checkpoint_prune(&config, &text));
    assert_non_null(strstr(text, "\"kept\": 2"));
    free(text);
    assert_string_equal(steps_in(directory), "4 2");
    config.keep = 0;
    assert_fails(FSDP_ERR_INPUT, fsdp_checkpoint_prune(&config, &text), "at least one");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newest_k_and_every_m_th_are_kept),
        cmocka_unit_test(what_was_written_last_is_the_newest_below_higher_steps),
        cmocka_unit_test(what_another_run_wrote_is_neither_counted_nor_removed),
        cmocka_unit_test(the_newest_is_by_run_and_commit),
        cmocka_unit_test(a_damaged_newest_one_does_not_count),
        cmocka_unit_test(without_a_complete_one_nothing_is_removed),
        cmocka_unit_test(what_unfinished_saves_left_is_removed_after_the_next_commit),
        cmocka_unit_test(a_step_saved_again_replaces_the_old_one),
        cmocka_unit_test(a_checkpoint_that_was_being_replaced_is_found),
        cmocka_unit_test(names_that_are_not_ours_are_left_out),
        cmocka_unit_test(prune_by_hand_says_what_it_does),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
