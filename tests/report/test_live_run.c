/* What the live page is told: everything at first, then what is new, and no more than a page can take, with 10,000
 * steps of 64 ranks as with ten. The timeline is that of the events that happened. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/file.h"
#include "base/record/hooks.h"
#include "observe/attribution.h"
#include "report/live/live_run.h"
#include "report/live/step_recorder.h"

enum { RANKS = 64, STEPS = 10000 };

typedef struct site {
    char folder[64];
    live_run *live;
    rank_snapshot ranks[RANKS];
    exposed_events events;
} site;

static int open_site(void **state)
{
    site *s = *state = calloc(1, sizeof *s);
    exposed_rank ranks[RANKS] = {{0}};
    int64_t planned[RANKS * MEMORY_USES] = {0};
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (exposed_rank){.node = i / 8, .memory_limit_bytes = 1 << 30};
        planned[MEMORY_USES * i + MEMORY_PARAMETERS] = 1000;
        planned[MEMORY_USES * i + MEMORY_ACTIVATIONS] = 500 + i;
    }
    snprintf(s->folder, sizeof s->folder, "/tmp/fsdp-live-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    s->events = (exposed_events){.checkpoint_time = 1, .validation_loss = NAN};
    live_config c = {.folder = s->folder,
                     .checkpoints = s->folder,
                     .model = "a model",
                     .strategy = "full",
                     .device = "a device",
                     .ranks = ranks,
                     .planned = planned,
                     .n_ranks = RANKS,
                     .steps = STEPS,
                     .restarts = 3,
                     .events = s->events};
    assert_int_equal(live_run_open(&c, &s->live), FSDP_OK);
    return 0;
}

static int close_site(void **state)
{
    site *s = *state;
    live_run_close(s->live);
    assert_int_equal(file_remove_tree(s->folder), FSDP_OK);
    free(s);
    return 0;
}

static double loss_at(int64_t step)
{
    return step == 5000 ? 50 : 3 + 1 / (double)step + 0.001 * (double)(step % 5);
}

static void train(site *s, int64_t step)
{
    for (int r = 0; r < RANKS; r++) {
        s->ranks[r].step = step;
        s->ranks[r].seconds[LAP_FORWARD] = (float)(r + 1);
        s->ranks[r].memory_peak_bytes = 1400 + r;
        s->ranks[r].uses[MEMORY_OPTIMIZER] = 700 + r;
        snprintf(s->ranks[r].collective, sizeof s->ranks[r].collective, "all_gather of layers.%d", r % 4);
    }
    attribution times = attribution_of(s->ranks, RANKS);
    step_figures f = {.step = step,
                      .loss = loss_at(step),
                      .grad_norm = 1,
                      .lr = 1e-3,
                      .tokens = 640,
                      .samples = 64,
                      .seconds = 2,
                      .flops = 4e12,
                      .peak_flops = 8e12,
                      .validation_loss = NAN,
                      .times = &times};
    live_run_step(s->live, &f, s->ranks, &s->events);
}

/* The event's JSON; NULL: there was none. */
static json_t *message(site *s, int64_t cursor[LIVE_CURSOR], bool last, size_t *bytes)
{
    char *text = live_run_message(s->live, cursor, last, bytes);
    if (!text)
        return NULL;
    assert_memory_equal(text, "data: ", 6);
    assert_string_equal(text + *bytes - 2, "\n\n");
    assert_ptr_equal(strchr(text, '\n'), text + *bytes - 2); /* one line: an event ends with an empty one */
    json_t *all = json_loadb(text + 6, *bytes - 8, 0, NULL);
    free(text);
    assert_non_null(all);
    return all;
}

static size_t points(const json_t *m)
{
    return json_array_size(json_object_get(json_object_get(m, "curves"), "step"));
}

static double figure_of(const json_t *m, const char *name, size_t i)
{
    return json_number_value(json_array_get(json_object_get(json_object_get(m, "curves"), name), i));
}

static void a_client_is_told_everything_and_then_what_is_new(void **state)
{
    site *s = *state;
    int64_t cursor[LIVE_CURSOR] = {0};
    size_t bytes;
    for (int64_t i = 1; i <= 10; i++)
        train(s, i);
    json_t *m = message(s, cursor, false, &bytes);
    assert_true(json_is_true(json_object_get(m, "whole")));
    assert_int_equal(points(m), 10);
    assert_float_equal(figure_of(m, "loss", 3), loss_at(4), 1e-7);
    assert_float_equal(figure_of(m, "tokens_per_s", 0), 320, 0);
    assert_float_equal(figure_of(m, "utilization", 0), 0.25, 0);
    const json_t *live = json_object_get(m, "live"), *run = json_object_get(m, "run"), *rank;
    assert_int_equal(json_integer_value(json_object_get(live, "step")), 10);
    assert_int_equal(json_integer_value(json_object_get(live, "restarts")), 3);
    assert_float_equal(json_number_value(json_object_get(live, "left")), 2.0 * (STEPS - 10), 1e-6);
    assert_int_equal(json_array_size(json_object_get(live, "places")), RANKS);
    rank = json_array_get(json_object_get(run, "ranks"), 5);
    assert_int_equal(json_integer_value(json_object_get(rank, "planned")), 1505);
    assert_int_equal(json_integer_value(json_object_get(rank, "measured")), 1405);
    const json_t *taken = json_array_get(json_object_get(rank, "taken"), 0);
    assert_string_equal(json_string_value(json_array_get(taken, 0)), "optimizer");
    assert_int_equal(json_integer_value(json_array_get(taken, 1)), 705);
    json_decref(m);
    assert_null(live_run_message(s->live, cursor, false, &bytes));
    train(s, 11);
    live_run_validation(s->live, 11, 2.5, NAN);
    live_run_say(s->live, true, "two\nlines");
    m = message(s, cursor, false, &bytes);
    assert_false(json_is_true(json_object_get(m, "whole")));
    assert_int_equal(points(m), 1);
    json_decref(m);
    assert_null(live_run_message(s->live, cursor, false, &bytes));
    m = message(s, cursor, true, &bytes);
    assert_true(json_is_true(json_object_get(json_object_get(m, "live"), "ended")));
    json_decref(m);
}

static void ten_thousand_steps_of_64_ranks_stay_small(void **state)
{
    site *s = *state;
    int64_t cursor[LIVE_CURSOR] = {0};
    size_t bytes, told = 0, whole = 0;
    for (int64_t i = 1; i <= STEPS; i++) {
        train(s, i);
        if (i % 100 != 0)
            continue;
        json_t *m = message(s, cursor, false, &bytes);
        if (json_is_true(json_object_get(m, "whole")))
            whole++;
        else
            assert_true(bytes < 128 << 10);
        assert_true(bytes < 1 << 20);
        told = json_is_true(json_object_get(m, "whole")) ? points(m) : told + points(m);
        assert_true(told <= 4100);
        json_decref(m);
    }
    assert_true(whole <= 4); /* the first, and when steps were thinned */
    char *text = live_run_document(s->live, false, &bytes);
    assert_true(bytes < 1 << 20);
    json_t *all = json_loads(text, 0, NULL), *run = json_array_get(json_object_get(all, "runs"), 0);
    free(text);
    assert_true(points(run) <= 4000 && points(run) >= 1000);
    bool spike = false;
    for (size_t i = 0; i < points(run); i++)
        spike |= figure_of(run, "loss", i) == 50;
    assert_true(spike);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(run, "spikes"), 0)), 5000);
    /* However thin the curves, the newest figures are those of the newest step. */
    const json_t *newest = json_object_get(json_object_get(all, "live"), "newest");
    assert_float_equal(json_number_value(json_object_get(newest, "loss")), loss_at(STEPS), 1e-7);
    assert_true(json_is_null(json_object_get(newest, "predicted_seconds")));
    assert_float_equal(figure_of(run, "step", points(run) - 1), STEPS, 0);
    assert_float_equal(figure_of(run, "loss", points(run) - 1), loss_at(STEPS), 1e-7);
    json_decref(all);
}

/* What the run has of the steps `first` to `last` in its folder, and of one validation. */
static void write_files(const site *s, int64_t first, int64_t last, int64_t validated)
{
    char path[96], *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    for (int64_t i = first; i <= last; i++)
        fprintf(out, "{\"step\": %lld, \"loss\": %.17g}\n", (long long)i, loss_at(i));
    assert_int_equal(fclose(out), 0);
    snprintf(path, sizeof path, "%s/metrics.jsonl", s->folder);
    assert_int_equal(file_write_atomic(path, text, bytes), FSDP_OK);
    bytes = (size_t)sprintf(text, "{\"step\": %lld, \"validation_loss\": 2.5}\n", (long long)validated);
    snprintf(path, sizeof path, "%s/validation.jsonl", s->folder);
    assert_int_equal(file_write_atomic(path, text, bytes), FSDP_OK);
    free(text);
}

/* Its undone steps leave nothing: no point, no spike, no validation. */
static void a_run_that_goes_back_is_told_anew(void **state)
{
    site *s = *state;
    int64_t cursor[LIVE_CURSOR] = {0};
    size_t bytes;
    for (int64_t i = 4951; i <= 5010; i++)
        train(s, i);
    live_run_validation(s->live, 4970, 2.5, NAN);
    live_run_validation(s->live, 5005, 9, NAN);
    json_t *m = message(s, cursor, false, &bytes), *run = json_object_get(m, "run");
    assert_int_equal(json_array_size(json_object_get(run, "spikes")), 1);
    json_decref(m);
    write_files(s, 4951, 4990, 4970);
    live_run_rewind(s->live, 4990);
    m = message(s, cursor, false, &bytes);
    run = json_object_get(m, "run");
    assert_true(json_is_true(json_object_get(m, "whole")));
    assert_int_equal(points(m), 40);
    assert_int_equal(json_integer_value(json_object_get(run, "steps")), 40);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(m, "live"), "step")), 4990);
    assert_int_equal(json_array_size(json_object_get(run, "spikes")), 0);
    const json_t *validated = json_object_get(json_object_get(run, "validation"), "step");
    assert_int_equal(json_array_size(validated), 1);
    assert_int_equal(json_integer_value(json_array_get(validated, 0)), 4970);
    json_decref(m);
    for (int64_t i = 4991; i <= 5001; i++) /* the same spike again is the only one */
        train(s, i);
    m = message(s, cursor, false, &bytes);
    run = json_object_get(m, "run");
    assert_false(json_is_true(json_object_get(m, "whole")));
    assert_int_equal(points(m), 11);
    assert_int_equal(json_integer_value(json_object_get(run, "steps")), 51);
    assert_int_equal(json_array_size(json_object_get(run, "spikes")), 1);
    json_decref(m);
}

/* However many there were, the newest is shown. */
static void of_many_validations_the_newest_is_there(void **state)
{
    site *s = *state;
    for (int64_t i = 1; i <= 9001; i++) {
        live_run_validation(s->live, i, (double)i, NAN);
        if (i % 500 > 1 && i % 1000 != 999)
            continue;
        size_t bytes;
        char *text = live_run_document(s->live, true, &bytes);
        json_t *all = json_loads(text, 0, NULL), *run = json_array_get(json_object_get(all, "runs"), 0),
               *steps = json_object_get(json_object_get(run, "validation"), "step");
        size_t n = json_array_size(steps);
        assert_true(n > 0 && n <= 4000);
        assert_int_equal(json_integer_value(json_array_get(steps, n - 1)), i);
        json_decref(all);
        free(text);
    }
}

static void what_other_ranks_warn_of_is_in_the_log(void **state)
{
    static const char text[] =
        "2026-11-16T08:09:54.368Z info: nothing\n2026-11-16T08:09:55.000Z warning: disk \033[2J full\n";
    site *s = *state;
    int64_t cursor[LIVE_CURSOR] = {0};
    size_t bytes;
    char path[96];
    snprintf(path, sizeof path, "%s/rank-7.log", s->folder);
    assert_int_equal(file_write_atomic(path, text, sizeof text - 1), FSDP_OK);
    live_run_say(s->live, false, "said");
    json_t *m = message(s, cursor, false, &bytes), *log = json_object_get(json_object_get(m, "live"), "log");
    assert_int_equal(json_array_size(log), 2);
    const json_t *warned = json_array_get(log, 0);
    assert_int_equal(json_integer_value(json_array_get(warned, 1)), 7);
    assert_string_equal(json_string_value(json_array_get(warned, 3)), "disk \\x1b[2J full");
    assert_string_equal(json_string_value(json_array_get(json_array_get(log, 1), 3)), "said");
    json_decref(m);
}

static void emit_step(void)
{
    HOOK(HOOK_PHASE, HOOK_BEGIN, "step", NULL, 0, 0);
    HOOK(HOOK_COLLECTIVE, HOOK_BEGIN, "all_gather", "layers.0", 8, 1);
    HOOK(HOOK_PHASE, HOOK_BEGIN, "forward", NULL, 0, 0);
    HOOK(HOOK_WAIT, HOOK_BEGIN, "all_gather", "layers.0", 0, 0);
    HOOK(HOOK_COLLECTIVE, HOOK_END, "all_gather", "layers.0", 8, 1);
    HOOK(HOOK_WAIT, HOOK_END, "all_gather", "layers.0", 0, 0);
    HOOK(HOOK_UNIT, HOOK_INSTANT, "layers.0", "FULL", 8, 1);
    HOOK(HOOK_UNIT, HOOK_INSTANT, "layers.0", "gradients FULL", 8, 1);
    HOOK(HOOK_UNIT, HOOK_INSTANT, "layers.0", "SHARDED", 8, 1);
    HOOK(HOOK_PHASE, HOOK_END, "forward", NULL, 0, 0);
    HOOK(HOOK_UNIT, HOOK_INSTANT, "layers.0", "gradients REDUCING", 8, 1);
    HOOK(HOOK_COLLECTIVE, HOOK_BEGIN, "reduce_scatter", "layers.0", 8, 1);
    HOOK(HOOK_COLLECTIVE, HOOK_END, "reduce_scatter", "layers.0", 8, 1);
    HOOK(HOOK_COLLECTIVE, HOOK_BEGIN, "all_reduce", "loss", 8, 1);
    HOOK(HOOK_COLLECTIVE, HOOK_END, "all_reduce", "loss", 8, 1);
    HOOK(HOOK_PHASE, HOOK_END, "step", NULL, 0, 0);
}

/* "name: span span|..." of all tracks. */
static void tell(const json_t *timeline, char *text, size_t room)
{
    const json_t *track, *span;
    size_t i, k, used = 0;
    json_array_foreach(json_object_get(timeline, "tracks"), i, track)
    {
        used += (size_t)snprintf(text + used, room - used, "%s:", json_string_value(json_object_get(track, "name")));
        json_array_foreach(json_object_get(track, "spans"), k, span)
        {
            assert_true(json_number_value(json_array_get(span, 0)) <= json_number_value(json_array_get(span, 1)));
            assert_true(json_number_value(json_array_get(span, 0)) >= 0);
            used += (size_t)snprintf(text + used, room - used, " %s", json_string_value(json_array_get(span, 2)));
        }
        used += (size_t)snprintf(text + used, room - used, "|");
    }
}

static void a_step_is_noted_when_somebody_asked(void **state)
{
    step_recorder *r;
    char text[512] = "";
    (void)state;
    assert_int_equal(step_recorder_open(&r), FSDP_OK);
    emit_step();
    assert_null(step_recorder_take(r));
    HOOK(HOOK_PHASE, HOOK_BEGIN, "step", NULL, 0, 0);
    step_recorder_ask(r); /* in the middle of a step: the next whole one counts */
    HOOK(HOOK_PHASE, HOOK_END, "step", NULL, 0, 0);
    assert_null(step_recorder_take(r));
    emit_step();
    emit_step();
    json_t *timeline = step_recorder_take(r);
    assert_non_null(timeline);
    tell(timeline, text, sizeof text);
    assert_string_equal(text, "training thread: forward wait|layers.0: gather whole full gradient reduce|"
                              "other collectives: other collective|");
    assert_null(step_recorder_take(r));
    json_decref(timeline);
    step_recorder_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_client_is_told_everything_and_then_what_is_new, open_site, close_site),
        cmocka_unit_test_setup_teardown(ten_thousand_steps_of_64_ranks_stay_small, open_site, close_site),
        cmocka_unit_test_setup_teardown(a_run_that_goes_back_is_told_anew, open_site, close_site),
        cmocka_unit_test_setup_teardown(of_many_validations_the_newest_is_there, open_site, close_site),
        cmocka_unit_test_setup_teardown(what_other_ranks_warn_of_is_in_the_log, open_site, close_site),
        cmocka_unit_test(a_step_is_noted_when_somebody_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
