/* Chooses the scalars that TensorBoard shows; format/event_file.h writes them. Flushed every few seconds, so that a
 * board that is open follows the run. */
#include "observe/board.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "format/event_file.h"

static const double flush_seconds = 5;

struct board {
    event_file *file;
    double flushed;
};

/* Indented by four: Markdown then shows it as it is. */
static fsdp_status write_settings(board *b, const char *settings)
{
    size_t lines = 1;
    for (const char *c = settings; *c; c++)
        lines += *c == '\n';
    char *text = malloc(strlen(settings) + 4 * lines + 1), *end = text;
    if (!text)
        return error_set(FSDP_ERR_MEMORY, "out of memory for the settings in TensorBoard");
    for (const char *c = settings; *c; c++) {
        if (c == settings || c[-1] == '\n')
            end += sprintf(end, "    ");
        *end++ = *c;
    }
    *end = 0;
    fsdp_status status = event_file_text(b->file, "settings", 0, text);
    free(text);
    return status;
}

fsdp_status board_open(const char *folder, const char *settings, int64_t after, board **out)
{
    fsdp_status status;
    *out = NULL;
    board *b = calloc(1, sizeof *b);
    if (!b)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for TensorBoard's file", folder);
    TRY_OR(fail, event_file_open(folder, &b->file));
    if (after > 0)
        TRY_OR(fail, event_file_session(b->file, after + 1));
    if (settings)
        TRY_OR(fail, write_settings(b, settings));
    TRY_OR(fail, event_file_flush(b->file));
    *out = b;
    return FSDP_OK;
fail:
    board_close(b);
    return status;
}

fsdp_status board_rewind(board *b, int64_t step)
{
    FSDP_TRY(event_file_session(b->file, step + 1));
    return event_file_flush(b->file);
}

static double wall_seconds(void)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    return (double)wall.tv_sec + 1e-9 * (double)wall.tv_nsec;
}

fsdp_status board_validation(board *b, int64_t step, double loss, double accuracy)
{
    double now = wall_seconds();
    FSDP_TRY(event_file_scalar(b->file, "validation/loss", step, now, loss));
    if (isnan(accuracy))
        FSDP_TRY(event_file_scalar(b->file, "validation/perplexity", step, now, exp(loss)));
    else
        FSDP_TRY(event_file_scalar(b->file, "validation/accuracy", step, now, accuracy));
    return event_file_flush(b->file);
}

fsdp_status board_step(board *b, const step_figures *f)
{
    double seconds = f->seconds > 0 ? f->seconds : 1e-9;
    const struct {
        const char *tag;
        bool wanted;
        double value;
    } scalars[] = {
        {"train/loss", true, f->loss},
        {"train/grad_norm", !isnan(f->grad_norm), f->grad_norm},
        {"train/lr", true, f->lr},
        {"train/epoch", f->epoch > 0, f->epoch},
        {"train/loss_scale", f->loss_scale > 0, f->loss_scale},
        {"speed/samples_per_s", true, (double)f->samples / seconds},
        {"speed/tokens_per_s", f->tokens > 0, (double)f->tokens / seconds},
        {"speed/tflops", f->flops > 0, f->flops / seconds * 1e-12},
        {"speed/utilization", f->flops > 0 && f->peak_flops > 0, f->flops / seconds / f->peak_flops},
        {"memory/bytes", f->memory_bytes > 0, (double)f->memory_bytes},
        {"memory/peak_bytes", f->memory_peak_bytes > 0, (double)f->memory_peak_bytes},
    };
    double now = wall_seconds();
    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++)
        if (scalars[i].wanted)
            FSDP_TRY(event_file_scalar(b->file, scalars[i].tag, f->step, now, scalars[i].value));
    if (!isnan(f->validation_loss))
        FSDP_TRY(board_validation(b, f->step, f->validation_loss, NAN));
    if (clock_seconds() - b->flushed < flush_seconds)
        return FSDP_OK;
    b->flushed = clock_seconds();
    return event_file_flush(b->file);
}

fsdp_status board_close(board *b)
{
    if (!b)
        return FSDP_OK;
    fsdp_status status = event_file_close(b->file);
    free(b);
    return status;
}
