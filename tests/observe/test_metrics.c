/* metrics.jsonl: whole lines, numbers that read back as they were, and a file that survives its writer. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "observe/attribution.h"
#include "observe/metrics.h"
#include "temporary.h"

static step_figures some_figures(int64_t step)
{
    return (step_figures){.step = step,
                          .loss = 10.0 / 3 + 1e-15 * (double)step,
                          .grad_norm = 0.1,
                          .lr = 1e-4 / 3,
                          .samples = 8,
                          .tokens = 2048,
                          .seconds = 0.3,
                          .memory_bytes = 5000000000,
                          .validation_loss = NAN};
}

/* Checks that every line is an object of its own; returns how many there are. */
static int count_whole_lines(const char *path)
{
    char *text, *rest, *line;
    size_t bytes;
    int n = 0;
    assert_int_equal(file_read(path, &text, &bytes), FSDP_OK);
    assert_true(bytes == 0 || text[bytes - 1] == '\n');
    rest = text;
    while ((line = strsep(&rest, "\n")) && *line) {
        json_t *object;
        assert_int_equal(json_parse(path, line, strlen(line), &object), FSDP_OK);
        assert_true(json_is_integer(json_object_get(object, "step")));
        json_decref(object);
        n++;
    }
    free(text);
    return n;
}

static void numbers_read_back_as_the_same_bits(void **state)
{
    char *path = file_join(*state, "deeper/metrics.jsonl");
    metrics *m;
    step_figures f = some_figures(7);
    f.validation_loss = 2.0 / 7;
    assert_int_equal(metrics_open(path, &m), FSDP_OK);
    assert_int_equal(metrics_step(m, &f), FSDP_OK);
    assert_int_equal(metrics_close(m), FSDP_OK);
    json_t *object;
    assert_int_equal(json_read_file(path, &object), FSDP_OK);
    assert_true(json_number_value(json_object_get(object, "loss")) == f.loss);
    assert_true(json_number_value(json_object_get(object, "lr")) == f.lr);
    assert_true(json_number_value(json_object_get(object, "grad_norm")) == 0.1);
    assert_true(json_number_value(json_object_get(object, "tokens_per_s")) == 2048 / 0.3);
    assert_true(json_number_value(json_object_get(object, "validation_loss")) == 2.0 / 7);
    assert_int_equal(json_integer_value(json_object_get(object, "step")), 7);
    assert_int_equal(json_integer_value(json_object_get(object, "tokens")), 2048);
    assert_int_equal(json_integer_value(json_object_get(object, "memory")), 5000000000);
    json_decref(object);
    free(path);
}

static void what_is_not_finite_is_null_and_still_json(void **state)
{
    char *path = file_join(*state, "nan.jsonl");
    metrics *m;
    step_figures f = some_figures(1);
    f.loss = INFINITY;
    f.grad_norm = NAN;
    assert_int_equal(metrics_open(path, &m), FSDP_OK);
    assert_int_equal(metrics_step(m, &f), FSDP_OK);
    metrics_close(m);
    json_t *object;
    assert_int_equal(json_read_file(path, &object), FSDP_OK);
    assert_true(json_is_null(json_object_get(object, "loss")));
    assert_true(json_is_null(json_object_get(object, "grad_norm")));
    assert_null(json_object_get(object, "validation_loss"));
    json_decref(object);
    free(path);
}

static void a_second_run_appends_and_a_torn_line_is_ended(void **state)
{
    char *path = file_join(*state, "metrics.jsonl");
    for (int run = 0; run < 2; run++) {
        metrics *m;
        assert_int_equal(metrics_open(path, &m), FSDP_OK);
        for (int64_t step = 1; step <= 3; step++) {
            step_figures f = some_figures(step);
            assert_int_equal(metrics_step(m, &f), FSDP_OK);
        }
        assert_int_equal(metrics_close(m), FSDP_OK);
    }
    assert_int_equal(count_whole_lines(path), 6);
    int fd = open(path, O_WRONLY | O_APPEND);
    assert_int_equal(write(fd, "{\"step\": 9", 10), 10);
    close(fd);
    metrics *m;
    step_figures f = some_figures(10);
    assert_int_equal(metrics_open(path, &m), FSDP_OK);
    assert_int_equal(metrics_step(m, &f), FSDP_OK);
    metrics_close(m);
    char *text;
    size_t bytes;
    assert_int_equal(file_read(path, &text, &bytes), FSDP_OK);
    assert_non_null(strstr(text, "{\"step\": 9\n{\"step\": 10, "));
    free(text);
    free(path);
}

/* What is appended next would be a part of it. */
static void a_torn_line_is_cut_with_later_steps(void **state)
{
    char *path = file_join(*state, "torn.jsonl"), *text;
    static const char *const ends[] = {"{\"step\": 2, \"lo", "{\"step\": 5, \"loss\": 1}\n{\"st", ""};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        FILE *f = fopen(path, "w");
        fprintf(f, "{\"step\": 1}\n%s", ends[i]);
        fclose(f);
        size_t bytes;
        assert_int_equal(metrics_cut(path, 3), FSDP_OK);
        assert_int_equal(file_read(path, &text, &bytes), FSDP_OK);
        assert_string_equal(text, "{\"step\": 1}\n");
        free(text);
    }
    free(path);
}

static void write_forever(const char *path)
{
    metrics *m;
    if (metrics_open(path, &m) != FSDP_OK)
        _exit(1);
    for (int64_t step = 1;; step++) {
        step_figures f = some_figures(step);
        if (metrics_step(m, &f) != FSDP_OK)
            _exit(1);
    }
}

static void a_writer_killed_at_any_instant_leaves_whole_lines(void **state)
{
    int lines = 0;
    for (int round = 0; round < 10; round++) {
        char name[32];
        snprintf(name, sizeof name, "killed-%d.jsonl", round);
        char *path = file_join(*state, name);
        pid_t child = fork();
        if (child == 0)
            write_forever(path);
        nanosleep(&(struct timespec){.tv_nsec = 3000000 + 777777 * round}, NULL);
        kill(child, SIGKILL);
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFSIGNALED(status));
        if (file_exists(path))
            lines += count_whole_lines(path);
        free(path);
    }
    assert_true(lines > 0);
}

/* A write across pages can be cut between them. */
static void no_line_crosses_a_page(void **state)
{
    char *path = file_join(*state, "pages.jsonl"), *text;
    metrics *m;
    size_t bytes, start = 0;
    assert_int_equal(metrics_open(path, &m), FSDP_OK);
    for (int step = 1; step <= 500; step++) {
        step_figures f = {.step = step,
                          .loss = 1.0 / (step % 7 + 1),
                          .grad_norm = step % 3 ? 1.0 / 3 : NAN,
                          .seconds = 0.1,
                          .flops = step % 5 ? 1e9 / 7 : 0,
                          .peak_flops = step % 2 ? 3e12 : 0,
                          .loss_scale = step % 11 ? 0 : 65536,
                          .validation_loss = step % 13 ? NAN : 2.0 / 7};
        assert_int_equal(metrics_step(m, &f), FSDP_OK);
    }
    metrics_close(m);
    assert_int_equal(count_whole_lines(path), 500);
    assert_int_equal(file_read(path, &text, &bytes), FSDP_OK);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] != '\n')
            continue;
        if (start / 4096 != i / 4096)
            fail_msg("the line at byte %zu ends at byte %zu", start, i);
        start = i + 1;
    }
    free(text);
    free(path);
}

static void a_validation_has_its_step_and_perplexity(void **state)
{
    char *path = file_join(*state, "validation.jsonl");
    metrics *m;
    assert_int_equal(metrics_open(path, &m), FSDP_OK);
    assert_int_equal(metrics_validation(m, 40, 1.5, NAN), FSDP_OK);
    metrics_close(m);
    json_t *object;
    assert_int_equal(json_read_file(path, &object), FSDP_OK);
    assert_int_equal(json_integer_value(json_object_get(object, "step")), 40);
    assert_true(json_number_value(json_object_get(object, "validation_loss")) == 1.5);
    assert_true(json_number_value(json_object_get(object, "perplexity")) == exp(1.5));
    json_decref(object);
    free(path);
}

static void a_validation_of_images_has_its_accuracy(void **state)
{
    char *path = file_join(*state, "images.jsonl");
    metrics *m;
    assert_int_equal(metrics_open(path, &m), FSDP_OK);
    assert_int_equal(metrics_validation(m, 40, 0.5, 0.975), FSDP_OK);
    metrics_close(m);
    json_t *object;
    assert_int_equal(json_read_file(path, &object), FSDP_OK);
    assert_true(json_number_value(json_object_get(object, "accuracy")) == 0.975);
    assert_null(json_object_get(object, "perplexity"));
    json_decref(object);
    free(path);
}

static void a_path_that_cannot_be_opened_is_named(void **state)
{
    metrics *m;
    assert_int_equal(metrics_open(*state, &m), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), *state));
    assert_null(m);
    assert_int_equal(metrics_close(NULL), FSDP_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

/* With every field there can be, a line is still whole in a page. */
static void times_say_where_the_step_went(void **state)
{
    char *path = file_join(*state, "times.jsonl"), *text;
    size_t bytes;
    metrics *m;
    attribution times = {.n_ranks = 16384, .waited_for = 16383, .waited_phase = LAP_DATA};
    lap_spread spread = {.min = 1.23456789e-05, .mean = 2.3456789e-05, .max = 3.456789e-05, .rank = 16383};
    step_figures f = some_figures(7);
    for (int i = 0; i < LAP_COUNT; i++)
        times.laps[i] = spread;
    times.laps[LAP_SAVE] = (lap_spread){0};
    times.exposed = spread;
    times.slow = (slow_rank){16383, LAP_BACKWARD, 0.123456};
    f.times = &times;
    f.flops = f.peak_flops = 1e12;
    f.loss_scale = 65536;
    f.validation_loss = 10.0 / 3;
    assert_int_equal(metrics_open(path, &m), FSDP_OK);
    for (int i = 0; i < 20; i++)
        assert_int_equal(metrics_step(m, &f), FSDP_OK);
    assert_int_equal(metrics_close(m), FSDP_OK);
    assert_int_equal(count_whole_lines(path), 20);
    assert_int_equal(file_read(path, &text, &bytes), FSDP_OK);
    json_t *line;
    *strchr(text, '\n') = 0;
    assert_int_equal(json_parse(path, text, strlen(text), &line), FSDP_OK);
    const json_t *laps = json_object_get(line, "times"), *data = json_object_get(laps, "data");
    assert_float_equal(json_number_value(json_object_get(data, "max")), 3.457e-05, 1e-12);
    assert_int_equal(json_integer_value(json_object_get(data, "rank")), 16383);
    assert_non_null(json_object_get(laps, "exposed"));
    assert_null(json_object_get(laps, "save"));
    assert_string_equal(json_string_value(json_object_get(json_object_get(line, "waited_for"), "phase")), "data");
    assert_string_equal(json_string_value(json_object_get(json_object_get(line, "slow_rank"), "phase")), "backward");
    json_decref(line);
    free(text);
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(numbers_read_back_as_the_same_bits),
        TEST(what_is_not_finite_is_null_and_still_json),
        TEST(a_second_run_appends_and_a_torn_line_is_ended),
        TEST(a_torn_line_is_cut_with_later_steps),
        TEST(a_writer_killed_at_any_instant_leaves_whole_lines),
        TEST(no_line_crosses_a_page),
        TEST(a_validation_has_its_step_and_perplexity),
        TEST(a_validation_of_images_has_its_accuracy),
        TEST(times_say_where_the_step_went),
        TEST(a_path_that_cannot_be_opened_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
