/* Formats the table that closes a run. */
#include "observe/summary.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "observe/units.h"

enum { VALUE_BYTES = 4352 };

typedef struct summary_writer {
    char *text;
    size_t bytes, capacity;
    bool failed;
} summary_writer;

static void line(summary_writer *w, const char *key, const char *value)
{
    size_t needed = strlen(value) + 32;
    if (!value[0] || w->failed)
        return;
    if (w->capacity - w->bytes < needed) {
        size_t capacity = 2 * w->capacity + needed;
        char *grown = realloc(w->text, capacity);
        if (!grown) {
            w->failed = true;
            return;
        }
        w->text = grown;
        w->capacity = capacity;
    }
    w->bytes += (size_t)sprintf(w->text + w->bytes, "%s%-16s %s", w->bytes ? "\n" : "", key, value);
}

static void text_line(summary_writer *w, const char *key, const char *value)
{
    if (value)
        line(w, key, value);
}

/* "50 s: steps 40 s, starting 1.20 s, saving 6.30 s": where the time of the run went. */
static void time_line(summary_writer *w, const run_summary *s)
{
    const struct {
        const char *name;
        double seconds;
    } parts[] = {{"steps", s->step_seconds},
                 {"starting", s->starting_seconds},
                 {"validating", s->validating_seconds},
                 {"saving", s->saving_seconds}};
    char value[256], a[UNITS_TEXT];
    size_t n = (size_t)snprintf(value, sizeof value, "%s", units_duration(a, s->seconds));
    const char *between = ": ";
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i].seconds <= 0)
            continue;
        n += (size_t)snprintf(value + n, sizeof value - n, "%s%s %s", between, parts[i].name,
                              units_duration(a, parts[i].seconds));
        between = ", ";
    }
    line(w, "time", value);
}

/* What a step does without what happens beside it: the first one's preparations, saving, validation. */
static void median_lines(summary_writer *w, const run_summary *s)
{
    char value[256], a[UNITS_TEXT];
    if (s->median_seconds <= 0)
        return;
    size_t n = (size_t)snprintf(value, sizeof value, "%s", units_duration(a, s->median_seconds));
    if (s->median_samples)
        n += (size_t)snprintf(value + n, sizeof value - n, ", %.2f samples/s",
                              (double)s->median_samples / s->median_seconds);
    if (s->median_tokens)
        snprintf(value + n, sizeof value - n, ", %s tokens/s",
                 units_count(a, (double)s->median_tokens / s->median_seconds));
    line(w, "median step", value);
    if (s->predicted_seconds > 0) {
        snprintf(value, sizeof value, "%s, %+.1f%% of what was measured", units_duration(a, s->predicted_seconds),
                 100 * (s->predicted_seconds / s->median_seconds - 1));
        line(w, "predicted step", value);
    }
    if (s->tflops > 0) {
        n = (size_t)snprintf(value, sizeof value, "%.4g TFLOP/s in the median step", s->tflops);
        if (s->peak_tflops > 0)
            snprintf(value + n, sizeof value - n, ", utilization %.1f%% of %.4g", 100 * s->tflops / s->peak_tflops,
                     s->peak_tflops);
        line(w, "model rate", value);
    }
}

static void work_lines(summary_writer *w, const run_summary *s)
{
    char value[256], a[UNITS_TEXT];
    int n = snprintf(value, sizeof value, "%lld", (long long)s->steps);
    if (s->epochs > 0)
        snprintf(value + n, sizeof value - (size_t)n, " (%.3g epochs)", s->epochs);
    line(w, "steps", value);
    time_line(w, s);
    if (s->samples)
        line(w, "samples", units_count(a, (double)s->samples));
    if (s->tokens)
        line(w, "tokens", units_count(a, (double)s->tokens));
    median_lines(w, s);
}

static void loss_lines(summary_writer *w, const run_summary *s)
{
    char value[256];
    if (!isnan(s->loss)) {
        int n = snprintf(value, sizeof value, "%.5f", s->loss);
        if (!isnan(s->first_loss))
            snprintf(value + n, sizeof value - (size_t)n, " (%.5f at the first step)", s->first_loss);
        line(w, "loss", value);
    }
    if (!isnan(s->validation_loss)) {
        if (s->validation_accuracy > 0)
            snprintf(value, sizeof value, "%.5f (accuracy %.2f%%)", s->validation_loss, 100 * s->validation_accuracy);
        else
            snprintf(value, sizeof value, "%.5f (perplexity %.4g)", s->validation_loss, exp(s->validation_loss));
        line(w, "validation loss", value);
    }
}

fsdp_status summary_text(const run_summary *s, char **text)
{
    summary_writer w = {0};
    char number[UNITS_TEXT];
    text_line(&w, "model", s->model);
    text_line(&w, "sharding", s->strategy);
    text_line(&w, "ended", s->ended);
    work_lines(&w, s);
    loss_lines(&w, s);
    if (s->peak_bytes)
        line(&w, "peak memory", units_bytes(number, s->peak_bytes));
    text_line(&w, "files of the run", s->output_dir);
    text_line(&w, "checkpoint", s->checkpoint);
    text_line(&w, "model folder", s->export_dir);
    text_line(&w, "metrics", s->metrics);
    text_line(&w, "TensorBoard", s->tensorboard);
    text_line(&w, "trace", s->trace);
    if (w.failed || !w.text) {
        free(w.text);
        *text = NULL;
        return error_set(FSDP_ERR_MEMORY, "out of memory for the summary");
    }
    *text = w.text;
    return FSDP_OK;
}
