/* What people read: the line of progress, the tables that close a run, units, and the log of a rank. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "base/record/hooks.h"
#include "observe/board.h"
#include "observe/memory.h"
#include "observe/progress.h"
#include "observe/rank_log.h"
#include "observe/step_times.h"
#include "observe/summary.h"
#include "observe/table.h"
#include "observe/units.h"
#include "temporary.h"

static step_figures some_figures(int64_t step)
{
    return (step_figures){
        .step = step, .loss = 2.5, .grad_norm = NAN, .lr = 3e-4, .samples = 8, .seconds = 0.5, .validation_loss = NAN};
}

static void the_line_begins_as_hang_detectors_expect(void **state)
{
    (void)state;
    char text[512];
    progress p = progress_begin(0);
    step_figures f = some_figures(12);
    progress_add(&p, &f);
    progress_line(&p, &f, text, sizeof text);
    assert_string_equal(text, "Batch 12 Loss: 2.50000, Speed: 16.00 samples/sec, lr: 0.0003");
}

static void speed_is_that_of_the_steps_since_the_last_line(void **state)
{
    (void)state;
    char text[512];
    progress p = progress_begin(100);
    step_figures f = some_figures(1);
    f.tokens = 8 * 256;
    f.flops = 1e12;
    f.peak_flops = 8e12;
    f.grad_norm = 0.75;
    f.memory_bytes = 3 << 20;
    progress_add(&p, &f);
    progress_line(&p, &f, text, sizeof text);
    for (f.step = 2; f.step <= 3; f.step++) {
        f.seconds = 0.25;
        progress_add(&p, &f);
    }
    f.step = 3;
    progress_live(&p, &f, text, sizeof text);
    assert_non_null(strstr(text, "Batch 3/"));
    assert_non_null(strstr(text, ", loss 2.5000, 8.19k tokens/s, left: "));
    progress_line(&p, &f, text, sizeof text);
    assert_non_null(strstr(text, "Batch 3 Loss: 2.50000, Speed: 32.00 samples/sec, lr: 0.0003, left: "));
    assert_non_null(strstr(text, "8.19k tokens/s"));
    assert_non_null(strstr(text, "4 TFLOP/s (50.0% of peak)"));
    assert_non_null(strstr(text, "memory: 3.00 MiB"));
    assert_non_null(strstr(text, ", grad norm: 0.7500"));
    assert_int_equal(p.samples, 0);
}

static void a_line_that_does_not_fit_is_cut(void **state)
{
    (void)state;
    char text[32];
    progress p = progress_begin(1000);
    step_figures f = some_figures(1);
    f.grad_norm = 1;
    progress_add(&p, &f);
    progress_line(&p, &f, text, sizeof text);
    assert_int_equal(strlen(text), 31);
}

static void units_are_those_people_use(void **state)
{
    (void)state;
    char text[UNITS_TEXT];
    assert_string_equal(units_bytes(text, 512), "512 B");
    assert_string_equal(units_bytes(text, 3LL << 29), "1.50 GiB");
    assert_string_equal(units_bytes(text, -2048), "-2.00 KiB");
    assert_string_equal(units_count(text, 950), "950");
    assert_string_equal(units_count(text, 12345), "12.3k");
    assert_string_equal(units_count(text, 1235814400), "1.24B");
    assert_string_equal(units_duration(text, 0.4213), "0.42 s");
    assert_string_equal(units_duration(text, 185), "3:05");
    assert_string_equal(units_duration(text, 3723), "1:02:03");
    assert_string_equal(units_duration(text, 2 * 86400 + 10800), "2 d 3:00:00");
    assert_string_equal(units_duration(text, INFINITY), "?");
    assert_string_equal(units_json(text, 0.1), "0.1");
    assert_string_equal(units_json(text, 1.0 / 3), "0.3333333333333333");
    assert_string_equal(units_json(text, 0.1 + 0.2), "0.30000000000000004");
    assert_string_equal(units_json(text, NAN), "null");
}

static void tables_line_up_and_drop_empty_columns(void **state)
{
    (void)state;
    table *t;
    char *text;
    assert_int_equal(table_new("rank|bytes|nothing|time", &t), FSDP_OK);
    assert_int_equal(table_row(t, "%d|%s||%d", 0, "12345678", 1), FSDP_OK);
    assert_int_equal(table_row(t, "%s|%d", "eleven", 5), FSDP_OK);
    assert_int_equal(table_text(t, &text), FSDP_OK);
    assert_string_equal(text, "rank       bytes  time\n"
                              "0       12345678     1\n"
                              "eleven         5");
    free(text);
    table_free(t);
    table_free(NULL);
}

static void the_memory_meter_knows_the_peak(void **state)
{
    (void)state;
    fsdp_memory_meter *m;
    assert_int_equal(fsdp_memory_meter_start(&m), FSDP_OK);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "a", NULL, 1000, 0);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "b", NULL, 2000, 0);
    HOOK(HOOK_OP, HOOK_INSTANT, "c", NULL, 5000, 0);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "a", NULL, -1000, 0);
    assert_int_equal(fsdp_memory_meter_bytes(m), 2000);
    assert_int_equal(fsdp_memory_meter_peak(m), 3000);
    fsdp_memory_meter_reset(m);
    assert_int_equal(fsdp_memory_meter_peak(m), 2000);
    fsdp_memory_meter_free(m);
    fsdp_memory_meter_free(NULL);
    assert_false(hooks_enabled);
}

static void host_memory_beside_a_device_counts_apart(void **state)
{
    (void)state;
    fsdp_memory_meter *m;
    assert_int_equal(fsdp_memory_meter_start(&m), FSDP_OK);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "checkpoint snapshot", NULL, 100, 0); /* on a CPU, so far */
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "checkpoint snapshot", NULL, -100, 0);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "cuda", NULL, 1000, 0);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "cuda.host", NULL, 7000, 0);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "checkpoint snapshot", NULL, 200, 0);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "cuda.host", NULL, -7000, 0);
    assert_int_equal(fsdp_memory_meter_peak(m), 1000);
    assert_int_equal(fsdp_memory_meter_host_peak(m), 7200);
    fsdp_memory_meter_free(m);
}

static void the_process_sees_its_own_memory(void **state)
{
    (void)state;
    size_t bytes = 64 << 20;
    process_memory before = process_memory_read();
    char *block = malloc(bytes);
    memset(block, 1, bytes);
    process_memory after = process_memory_read();
    assert_int_equal(block[bytes / 2], 1);
    free(block);
    assert_true(before.rss_bytes > 0);
    assert_true(after.rss_bytes - before.rss_bytes > (int64_t)bytes / 2);
    assert_true(after.rss_peak_bytes >= after.rss_bytes / 2);
}

static void the_memory_report_adds_up_over_ranks(void **state)
{
    (void)state;
    memory_row rows[2] = {
        {.rank = 0, .plan_bytes = 1 << 20, .measured_bytes = 1 << 20, .process = {.pss_bytes = 3 << 20}},
        {.rank = 1, .plan_bytes = 1 << 20, .measured_bytes = 1 << 20, .process = {.pss_bytes = 1 << 20}}};
    char *text;
    assert_int_equal(memory_report(rows, 2, &text), FSDP_OK);
    assert_string_equal(text, "rank   planned  measured  proportional\n"
                              "0     1.00 MiB  1.00 MiB      3.00 MiB\n"
                              "1     1.00 MiB  1.00 MiB      1.00 MiB\n"
                              "all   2.00 MiB  2.00 MiB      4.00 MiB");
    free(text);
}

/* A slow first step and a slow one in the middle, a validation's share, are not what a step takes. */
static void the_median_step_is_not_moved_by_slow_ones(void **state)
{
    (void)state;
    step_times *t = calloc(1, sizeof *t);
    assert_true(step_times_median(t).seconds == 0);
    for (int i = 0; i < 100000; i++)
        step_times_add(t, (step_time){i == 0 ? 60 : i % 4 == 3 ? 9 : 0.25, 8, i % 4 == 3 ? 1 : 2048});
    step_time median = step_times_median(t);
    assert_true(median.seconds == 0.25 && median.samples == 8 && median.tokens == 2048);
    assert_true(t->seconds > 200000 && t->seen == 100000 && t->n <= STEP_TIMES_KEPT && t->n >= STEP_TIMES_KEPT / 4);
    free(t);
}

static void the_summary_says_the_median_steps_rates_and_where_the_time_went(void **state)
{
    (void)state;
    run_summary s = {.steps = 10,
                     .seconds = 100,
                     .step_seconds = 20,
                     .starting_seconds = 30,
                     .validating_seconds = 10,
                     .saving_seconds = 40,
                     .median_seconds = 2,
                     .median_samples = 8,
                     .median_tokens = 4096,
                     .samples = 80,
                     .tokens = 40960,
                     .tflops = 47,
                     .peak_tflops = 100,
                     .loss = NAN,
                     .validation_loss = NAN};
    char *text;
    assert_int_equal(summary_text(&s, &text), FSDP_OK);
    assert_string_equal(text, "steps            10\n"
                              "time             1:40: steps 20 s, starting 30 s, validating 10 s, saving 40 s\n"
                              "samples          80\n"
                              "tokens           41.0k\n"
                              "median step      2.00 s, 4.00 samples/s, 2.05k tokens/s\n"
                              "model rate       47 TFLOP/s in the median step, utilization 47.0% of 100");
    free(text);
}

static void the_summary_leaves_out_what_is_not_known(void **state)
{
    (void)state;
    run_summary s = {.steps = 100,
                     .seconds = 50,
                     .step_seconds = 40,
                     .saving_seconds = 6.5,
                     .median_seconds = 0.5,
                     .median_samples = 16,
                     .samples = 800,
                     .loss = 2.25,
                     .first_loss = 5.5,
                     .validation_loss = NAN,
                     .peak_bytes = 1 << 30,
                     .output_dir = "fsdp_run"};
    char *text;
    assert_int_equal(summary_text(&s, &text), FSDP_OK);
    assert_string_equal(text, "steps            100\n"
                              "time             50 s: steps 40 s, saving 6.50 s\n"
                              "samples          800\n"
                              "median step      0.50 s, 32.00 samples/s\n"
                              "loss             2.25000 (5.50000 at the first step)\n"
                              "peak memory      1.00 GiB\n"
                              "files of the run fsdp_run");
    free(text);
}

typedef struct shown_lines {
    int n;
    char last[256];
} shown_lines;

static void show(void *context, fsdp_log_level level, const char *line)
{
    shown_lines *shown = context;
    (void)level;
    shown->n++;
    snprintf(shown->last, sizeof shown->last, "%s", line);
}

static void every_line_is_in_the_log_and_warnings_of_others_are_prefixed(void **state)
{
    shown_lines shown = {0};
    rank_log *log;
    rank_log_config config = {
        .folder = *state, .rank = 3, .world_size = 4, .least_shown = FSDP_LOG_INFO, .show = show, .context = &shown};
    assert_int_equal(rank_log_open(&config, &log), FSDP_OK);
    log_write(FSDP_LOG_DEBUG, "hidden");
    log_write(FSDP_LOG_INFO, "for rank 0 only");
    assert_int_equal(shown.n, 0);
    log_write(FSDP_LOG_WARNING, "record %d is bad", 7);
    assert_int_equal(shown.n, 1);
    assert_string_equal(shown.last, "rank 3: record 7 is bad");
    char *text;
    size_t bytes;
    char path[4096];
    snprintf(path, sizeof path, "%s/rank-3.log", (const char *)*state);
    assert_int_equal(file_read(path, &text, &bytes), FSDP_OK);
    assert_non_null(strstr(text, "Z debug: hidden\n"));
    assert_non_null(strstr(text, "Z info: for rank 0 only\n"));
    assert_non_null(strstr(text, "Z warning: record 7 is bad\n"));
    free(text);
    rank_log_close(log);
    log_write(FSDP_LOG_ERROR, "after the end");
    assert_int_equal(shown.n, 1);
    config.rank = 0;
    config.folder = NULL;
    assert_int_equal(rank_log_open(&config, &log), FSDP_OK);
    log_write(FSDP_LOG_INFO, "now shown");
    assert_string_equal(shown.last, "now shown");
    rank_log_close(log);
    rank_log_close(NULL);
}

static void the_board_holds_scalars_and_the_settings(void **state)
{
    board *b;
    char *folder = file_join(*state, "board");
    assert_int_equal(board_open(folder, "{\n\"lr\": 1\n}", 0, &b), FSDP_OK);
    for (int64_t step = 1; step <= 3; step++) {
        step_figures f = some_figures(step);
        f.validation_loss = step == 3 ? 2 : NAN;
        assert_int_equal(board_step(b, &f), FSDP_OK);
    }
    assert_int_equal(board_close(b), FSDP_OK);
    assert_int_equal(board_close(NULL), FSDP_OK);
    char command[512];
    snprintf(command, sizeof command, "cat '%s'/events.out.tfevents.* | tr -c '[:print:]\\n' ' ' > '%s/text'", folder,
             (char *)*state);
    assert_int_equal(system(command), 0);
    char *path = file_join(*state, "text"), *text;
    size_t bytes;
    assert_int_equal(file_read(path, &text, &bytes), FSDP_OK);
    assert_non_null(strstr(text, "train/loss"));
    assert_non_null(strstr(text, "validation/perplexity"));
    assert_non_null(strstr(text, "    \"lr\": 1\n"));
    assert_null(strstr(text, "train/grad_norm"));
    free(text);
    free(path);
    free(folder);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_line_begins_as_hang_detectors_expect),
        cmocka_unit_test(speed_is_that_of_the_steps_since_the_last_line),
        cmocka_unit_test(a_line_that_does_not_fit_is_cut),
        cmocka_unit_test(units_are_those_people_use),
        cmocka_unit_test(tables_line_up_and_drop_empty_columns),
        cmocka_unit_test(the_memory_meter_knows_the_peak),
        cmocka_unit_test(host_memory_beside_a_device_counts_apart),
        cmocka_unit_test(the_process_sees_its_own_memory),
        cmocka_unit_test(the_memory_report_adds_up_over_ranks),
        cmocka_unit_test(the_summary_leaves_out_what_is_not_known),
        cmocka_unit_test(the_median_step_is_not_moved_by_slow_ones),
        cmocka_unit_test(the_summary_says_the_median_steps_rates_and_where_the_time_went),
        TEST(every_line_is_in_the_log_and_warnings_of_others_are_prefixed),
        TEST(the_board_holds_scalars_and_the_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
