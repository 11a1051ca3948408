/* Committed checkpoints that something happened to: each damage is found and named, and resume goes on to the one
 * before. Bytes all over the files of a checkpoint are flipped in turn. */
#include "ckpt/fixture.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <fsdp/checkpoint.h>

#include "base/log.h"

static char log_text[8192];

static void keep_log(void *context, fsdp_log_level level, const char *line)
{
    (void)context, (void)level;
    size_t used = strlen(log_text);
    snprintf(log_text + used, sizeof log_text - used, "%s\n", line);
}

static void two_checkpoints(const char *directory)
{
    assert_ok(file_remove_tree(directory));
    assert_ok(fixture_save(directory, FSDP_CKPT_SHARDED, 10));
    assert_ok(fixture_save(directory, FSDP_CKPT_SHARDED, 20));
    log_text[0] = 0;
    fsdp_log_set_sink(keep_log, NULL, FSDP_LOG_INFO);
}

static const char *in_step(const char *directory, int step, const char *file)
{
    static char path[1400];
    snprintf(path, sizeof path, "%s/step-%08d/%s", directory, step, file);
    return path;
}

static void flip(const char *path, int64_t byte)
{
    int fd = open(path, O_RDWR);
    uint8_t value;
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &value, 1, byte), 1);
    value ^= 0x10;
    assert_int_equal(pwrite(fd, &value, 1, byte), 1);
    close(fd);
}

static int64_t size_of(const char *path)
{
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    return info.st_size;
}

/* Resume passes the newest over, says why, and takes the one before; verify finds it too. */
static void expect_passed_over(const char *directory, const char *reason)
{
    assert_int_equal(fixture_resumed_step(directory), 10);
    if (!strstr(log_text, "skipped") || !strstr(log_text, "step-00000020") || !strstr(log_text, reason))
        fail_msg("\"%s\" is not in the log: %s", reason, log_text);
    char *report;
    assert_int_equal(fsdp_checkpoint_verify(directory, false, &report), FSDP_ERR_INPUT);
    assert_non_null(strstr(report, "step-00000010: good"));
    assert_non_null(strstr(report, "step-00000020: 1 problem\n"));
    free(report);
}

static void a_flipped_byte_of_data_is_found(void **state)
{
    (void)state;
    const char *directory = scratch_path("flip");
    two_checkpoints(directory);
    const char *path = in_step(directory, 20, "rank-00000.safetensors");
    flip(path, size_of(path) - 5);
    expect_passed_over(directory, "checksum does not hold");
}

static void flipped_bytes_all_over_a_checkpoint_are_found(void **state)
{
    (void)state;
    static const char *const files[] = {"rank-00000.safetensors", "checkpoint.json", "COMMIT"};
    const char *directory = scratch_path("each");
    two_checkpoints(directory);
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_INFO);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[1400];
        snprintf(path, sizeof path, "%s", in_step(directory, 20, files[i]));
        /* Closely where structure is, with gaps in what is all data. */
        int64_t bytes = size_of(path);
        for (int64_t byte = 0; byte < bytes; byte += bytes < 100 ? 1 : byte < 4096 ? 17 : 997) {
            flip(path, byte);
            int64_t step = fixture_resumed_step(directory);
            if (step != 10)
                fail_msg("%s, byte %lld flipped: resumes from %lld", files[i], (long long)byte, (long long)step);
            flip(path, byte);
        }
    }
    assert_int_equal(fixture_resumed_step(directory), 20);
}

static void a_truncated_shard_is_found(void **state)
{
    (void)state;
    const char *directory = scratch_path("truncated");
    two_checkpoints(directory);
    const char *path = in_step(directory, 20, "rank-00000.safetensors");
    assert_int_equal(truncate(path, size_of(path) - 4), 0);
    expect_passed_over(directory, "bytes, not the");
}

static void a_missing_shard_is_named(void **state)
{
    (void)state;
    const char *directory = scratch_path("missing");
    two_checkpoints(directory);
    assert_int_equal(unlink(in_step(directory, 20, "rank-00000.safetensors")), 0);
    expect_passed_over(directory, "rank-00000.safetensors is missing");
}

static void a_missing_commit_marker_is_found(void **state)
{
    (void)state;
    const char *directory = scratch_path("marker");
    two_checkpoints(directory);
    assert_int_equal(unlink(in_step(directory, 20, "COMMIT")), 0);
    expect_passed_over(directory, "no commit marker");
}

static void the_manifest_of_another_checkpoint_is_found(void **state)
{
    (void)state;
    const char *directory = scratch_path("manifest");
    char *text;
    size_t bytes;
    two_checkpoints(directory);
    assert_ok(file_read(in_step(directory, 10, "checkpoint.json"), &text, &bytes));
    assert_ok(file_write_atomic(in_step(directory, 20, "checkpoint.json"), text, bytes));
    free(text);
    expect_passed_over(directory, "does not vouch for it");
}

/* Manifest and marker both of another step: sizes and names fit, only checksums tell. */
static void manifest_and_marker_of_another_checkpoint_are_found(void **state)
{
    (void)state;
    static const char *const files[] = {"checkpoint.json", "COMMIT"};
    const char *directory = scratch_path("both");
    two_checkpoints(directory);
    for (size_t i = 0; i < 2; i++) {
        char *text;
        size_t bytes;
        assert_ok(file_read(in_step(directory, 10, files[i]), &text, &bytes));
        assert_ok(file_write_atomic(in_step(directory, 20, files[i]), text, bytes));
        free(text);
    }
    assert_int_equal(fixture_resumed_step(directory), 10);
    assert_non_null(strstr(log_text, "its manifest says step 10"));
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    char path[1400];
    snprintf(path, sizeof path, "%s/step-00000020", directory);
    assert_fails(FSDP_ERR_INPUT, ckpt_load(path, &config, &f->state, NULL, &result), "checksum does not hold", path);
    fixture_free(f);
}

/* Another model's checkpoint is no damage: resuming from an older one would hide the mistake. */
static void a_checkpoint_of_another_model_is_an_error_not_passed_over(void **state)
{
    (void)state;
    const char *directory = scratch_path("model");
    two_checkpoints(directory);
    fixture *f = fixture_make_sized(CUT_FLAT, 0, 1, false, 38);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    assert_fails(FSDP_ERR_INPUT, ckpt_resume(directory, &config, &f->state, NULL, &result), "does not fit the model",
                 "model.embed_tokens.weight has shape [97, 37], the model wants [97, 38]");
    fixture_free(f);
}

static void when_all_are_damaged_resume_is_an_error(void **state)
{
    (void)state;
    const char *directory = scratch_path("all");
    two_checkpoints(directory);
    for (int step = 10; step <= 20; step += 10) {
        const char *path = in_step(directory, step, "rank-00000.safetensors");
        flip(path, size_of(path) - 1);
    }
    assert_int_equal(fixture_resumed_step(directory), -2);
    assert_non_null(strstr(fsdp_last_error(), "all 2 checkpoints there are damaged"));
}

static void without_checkpoints_training_starts_from_scratch(void **state)
{
    (void)state;
    const char *directory = scratch_path("none");
    log_text[0] = 0;
    fsdp_log_set_sink(keep_log, NULL, FSDP_LOG_INFO);
    assert_int_equal(fixture_resumed_step(directory), -1);
    assert_non_null(strstr(log_text, "starting from scratch"));
    assert_ok(file_make_directories(directory));
    assert_int_equal(fixture_resumed_step(directory), -1);
    /* What an unfinished first save left is named, and does not count. */
    char path[1400];
    snprintf(path, sizeof path, "%s/step-00000010.tmp-0123456789abcdef", directory);
    assert_ok(file_make_directories(path));
    assert_int_equal(fixture_resumed_step(directory), -1);
    assert_non_null(strstr(log_text, "step-00000010.tmp-0123456789abcdef is incomplete"));
}

static int log_off(void **state)
{
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_INFO);
    return scratch_teardown(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_flipped_byte_of_data_is_found),
        cmocka_unit_test(flipped_bytes_all_over_a_checkpoint_are_found),
        cmocka_unit_test(a_truncated_shard_is_found),
        cmocka_unit_test(a_missing_shard_is_named),
        cmocka_unit_test(a_missing_commit_marker_is_found),
        cmocka_unit_test(the_manifest_of_another_checkpoint_is_found),
        cmocka_unit_test(manifest_and_marker_of_another_checkpoint_are_found),
        cmocka_unit_test(a_checkpoint_of_another_model_is_an_error_not_passed_over),
        cmocka_unit_test(when_all_are_damaged_resume_is_an_error),
        cmocka_unit_test(without_checkpoints_training_starts_from_scratch),
    };
    return cmocka_run_group_tests(tests, fixture_setup_one_thread, log_off);
}
