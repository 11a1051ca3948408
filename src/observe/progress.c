/* Formats the line of progress. Where it appears, and how often, is the caller's. */
#include "observe/progress.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "observe/attribution.h"
#include "observe/units.h"

/* A step's share in the moving average: the last ten or so decide. */
static const double smoothing = 0.1;

progress progress_begin(int64_t total_steps)
{
    return (progress){.total_steps = total_steps};
}

void progress_add(progress *p, const step_figures *f)
{
    p->step_seconds = p->step_seconds == 0 ? f->seconds : (1 - smoothing) * p->step_seconds + smoothing * f->seconds;
    p->loss = p->steps++ == 0 || !isfinite(p->loss) ? f->loss : (1 - smoothing) * p->loss + smoothing * f->loss;
    p->seconds += f->seconds;
    p->flops += f->flops;
    p->samples += f->samples;
    p->tokens += f->tokens;
}

static void __attribute__((format(printf, 3, 4))) append(char *text, size_t bytes, const char *format, ...)
{
    size_t used = strlen(text);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + used, bytes - used, format, arguments);
    va_end(arguments);
}

static void progress_peek(const progress *p, const step_figures *f, char *text, size_t bytes)
{
    char number[UNITS_TEXT];
    double seconds = p->seconds > 0 ? p->seconds : 1e-9;
    snprintf(text, bytes, "Batch %lld Loss: %.5f, Speed: %.2f samples/sec, lr: %.6g", (long long)f->step, f->loss,
             (double)p->samples / seconds, f->lr);
    /* What a narrow terminal must not cut off comes first. */
    if (p->total_steps > f->step)
        append(text, bytes, ", left: %s", units_duration(number, p->step_seconds * (double)(p->total_steps - f->step)));
    if (f->times && f->times->slow.rank >= 0)
        append(text, bytes, ", slow: rank %d (%s, +%.0f ms a step)", f->times->slow.rank,
               lap_name(f->times->slow.phase), 1e3 * f->times->slow.seconds);
    if (!isnan(f->grad_norm))
        append(text, bytes, ", grad norm: %.4f", f->grad_norm);
    if (p->tokens)
        append(text, bytes, ", %s tokens/s", units_count(number, (double)p->tokens / seconds));
    if (p->flops > 0) {
        append(text, bytes, ", %.3g TFLOP/s", p->flops / seconds * 1e-12);
        if (f->peak_flops > 0)
            append(text, bytes, " (%.1f%% of peak)", 100 * p->flops / seconds / f->peak_flops);
    }
    if (f->memory_bytes)
        append(text, bytes, ", memory: %s", units_bytes(number, f->memory_bytes));
    if (f->memory_peak_bytes)
        append(text, bytes, " (peak %s)", units_bytes(number, f->memory_peak_bytes));
}

void progress_live(const progress *p, const step_figures *f, char *text, size_t bytes)
{
    char number[UNITS_TEXT];
    double seconds = p->seconds > 0 ? p->seconds : 1e-9;
    snprintf(text, bytes, "Batch %lld", (long long)f->step);
    if (p->total_steps > 0 && p->total_steps < INT64_MAX)
        append(text, bytes, "/%lld", (long long)p->total_steps);
    append(text, bytes, ", loss %.4f", p->loss);
    append(text, bytes, ", %s %s/s", units_count(number, (double)(p->tokens ? p->tokens : p->samples) / seconds),
           p->tokens ? "tokens" : "samples");
    if (p->total_steps > f->step && p->total_steps < INT64_MAX)
        append(text, bytes, ", left: %s", units_duration(number, p->step_seconds * (double)(p->total_steps - f->step)));
    if (f->memory_bytes)
        append(text, bytes, ", memory: %s", units_bytes(number, f->memory_bytes));
}

void progress_line(progress *p, const step_figures *f, char *text, size_t bytes)
{
    progress_peek(p, f, text, bytes);
    p->seconds = p->flops = 0;
    p->samples = p->tokens = 0;
}
