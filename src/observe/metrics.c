/* Appends lines of metrics. Floats are written in the shortest form that reads back as the same number; what is not
 * finite becomes null. */
#include "observe/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "observe/attribution.h"
#include "observe/units.h"

enum { LINE_BYTES = 2048, PAGE_BYTES = 4096, NEXT_IS_LONGER = 512 };

struct metrics {
    char *path;
    int fd;
};

/* A write that a full disk or a signal cuts short is tried again from where it stopped. */
static fsdp_status append(metrics *m, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t written = write(m->fd, text, bytes);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return error_set_errno(FSDP_ERR_IO, "%s: cannot append a line of metrics", m->path);
        text += written;
        bytes -= (size_t)written;
    }
    return FSDP_OK;
}

/* The system copies a write page by page and looks for SIGKILL in between: what lies in one page is written whole or
 * not at all. So where the next line might not fit after this one, spaces in front of the newline fill the page.
 * `line` has room for two lines and ends with its newline. */
static fsdp_status append_line(metrics *m, char *line, size_t bytes)
{
    off_t end = lseek(m->fd, 0, SEEK_END);
    size_t after = end < 0 ? 0 : ((size_t)end + bytes) % PAGE_BYTES, room = after == 0 ? 0 : PAGE_BYTES - after;
    if (room > 0 && room < bytes + NEXT_IS_LONGER && bytes + room <= 2 * LINE_BYTES) {
        memset(line + bytes - 1, ' ', room);
        bytes += room;
        line[bytes - 1] = '\n';
    }
    return append(m, line, bytes);
}

static fsdp_status make_folder_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash || slash == path)
        return FSDP_OK;
    char *folder = strndup(path, (size_t)(slash - path));
    if (!folder)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    fsdp_status status = file_make_directories(folder);
    free(folder);
    return status;
}

static fsdp_status end_torn_line(metrics *m)
{
    char last;
    off_t end = lseek(m->fd, 0, SEEK_END);
    if (end <= 0 || pread(m->fd, &last, 1, end - 1) != 1 || last == '\n')
        return FSDP_OK;
    return append(m, "\n", 1);
}

/* The number after "step" in a line; -1: it has none. */
static int64_t step_of(const char *line, size_t bytes)
{
    static const char key[] = "\"step\":";
    const char *found = memmem(line, bytes, key, sizeof key - 1);
    char digits[24] = "";
    if (!found)
        return -1;
    found += sizeof key - 1;
    size_t left = bytes - (size_t)(found - line);
    memcpy(digits, found, left < sizeof digits - 1 ? left : sizeof digits - 1);
    return strtoll(digits, NULL, 10);
}

/* Where the lines at the end begin that are of later steps, or the torn one. Lines without a step go with those around
 * them. */
static size_t find_cut(const char *text, size_t bytes, int64_t step)
{
    const char *last = bytes > 0 ? memrchr(text, '\n', bytes) : NULL;
    size_t cut = last ? (size_t)(last - text) + 1 : 0;
    for (size_t end = cut; end > 0;) {
        const char *before = end > 1 ? memrchr(text, '\n', end - 1) : NULL;
        size_t begin = before ? (size_t)(before - text) + 1 : 0;
        int64_t of_line = step_of(text + begin, end - begin);
        if (of_line >= 0 && of_line <= step)
            break;
        if (of_line > step)
            cut = begin;
        end = begin;
    }
    return cut;
}

fsdp_status metrics_cut(const char *path, int64_t step)
{
    file_map map;
    if (!file_exists(path))
        return FSDP_OK;
    FSDP_TRY(file_map_open(path, &map));
    size_t bytes = map.bytes, cut = find_cut((const char *)map.data, bytes, step);
    file_map_close(&map);
    if (cut < bytes && truncate(path, (off_t)cut) != 0)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot be cut back to step %lld", path, (long long)step);
    return FSDP_OK;
}

fsdp_status metrics_rewind(metrics *m, int64_t step)
{
    return metrics_cut(m->path, step);
}

fsdp_status metrics_open(const char *path, metrics **out)
{
    fsdp_status status;
    *out = NULL;
    metrics *m = calloc(1, sizeof *m);
    if (!m)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    m->fd = -1;
    m->path = strdup(path);
    TRY_OR(fail, m->path ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of memory", path));
    TRY_OR(fail, make_folder_of(path));
    m->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (m->fd < 0) {
        bool wrong_path = errno == ENOENT || errno == EACCES || errno == EISDIR || errno == ENOTDIR || errno == EROFS;
        status = error_set_errno(wrong_path ? FSDP_ERR_INPUT : FSDP_ERR_IO, "%s: cannot open for metrics", path);
        goto fail;
    }
    TRY_OR(fail, end_torn_line(m));
    *out = m;
    return FSDP_OK;
fail:
    metrics_close(m);
    return status;
}

static int put_spread(char *text, size_t room, const char *before, const char *name, const lap_spread *s)
{
    return snprintf(text, room, "%s\"%s\": {\"min\": %.4g, \"mean\": %.4g, \"max\": %.4g, \"rank\": %d}", before, name,
                    s->min, s->mean, s->max, s->rank);
}

/* Returns the bytes that it took. */
static int put_times(char *text, size_t room, const attribution *a)
{
    int n = put_spread(text, room, ", \"times\": {", "exposed", &a->exposed);
    for (int i = 0; i < LAP_COUNT; i++)
        if (a->laps[i].max > 0)
            n += put_spread(text + n, room - (size_t)n, ", ", lap_name((lap)i), &a->laps[i]);
    n += snprintf(text + n, room - (size_t)n, "}");
    if (a->core_wait.max > 0)
        n += put_spread(text + n, room - (size_t)n, ", ", "core_wait", &a->core_wait);
    if (a->n_ranks > 1)
        n += snprintf(text + n, room - (size_t)n, ", \"waited_for\": {\"rank\": %d, \"phase\": \"%s\"}", a->waited_for,
                      lap_name(a->waited_phase));
    if (a->slow.rank >= 0)
        n += snprintf(text + n, room - (size_t)n,
                      ", \"slow_rank\": {\"rank\": %d, \"phase\": \"%s\", \"seconds\": %.4g}", a->slow.rank,
                      lap_name(a->slow.phase), a->slow.seconds);
    return n;
}

fsdp_status metrics_step(metrics *m, const step_figures *f)
{
    char line[2 * LINE_BYTES], loss[UNITS_TEXT], norm[UNITS_TEXT], lr[UNITS_TEXT], rate[UNITS_TEXT],
        seconds[UNITS_TEXT];
    char number[UNITS_TEXT];
    double per_second = f->seconds > 0 ? (double)f->tokens / f->seconds : 0;
    int n = snprintf(
        line, LINE_BYTES,
        "{\"step\": %lld, \"loss\": %s, \"grad_norm\": %s, \"lr\": %s, \"samples\": %lld, \"tokens\": %lld, "
        "\"seconds\": %s, \"tokens_per_s\": %s, \"memory\": %lld, \"memory_peak\": %lld, \"epoch\": %s",
        (long long)f->step, units_json(loss, f->loss), units_json(norm, f->grad_norm), units_json(lr, f->lr),
        (long long)f->samples, (long long)f->tokens, units_json(seconds, f->seconds), units_json(rate, per_second),
        (long long)f->memory_bytes, (long long)f->memory_peak_bytes, units_json(number, f->epoch));
    if (f->flops > 0 && f->seconds > 0)
        n += snprintf(line + n, LINE_BYTES - (size_t)n, ", \"tflops\": %s",
                      units_json(number, f->flops / f->seconds * 1e-12));
    if (f->flops > 0 && f->seconds > 0 && f->peak_flops > 0)
        n += snprintf(line + n, LINE_BYTES - (size_t)n, ", \"utilization\": %s",
                      units_json(number, f->flops / f->seconds / f->peak_flops));
    if (f->predicted_seconds > 0) {
        n += snprintf(line + n, LINE_BYTES - (size_t)n, ", \"predicted_seconds\": %s",
                      units_json(number, f->predicted_seconds));
        n += snprintf(line + n, LINE_BYTES - (size_t)n, ", \"predicted_exposed\": %s",
                      units_json(number, f->predicted_exposed));
    }
    if (f->loss_scale > 0)
        n += snprintf(line + n, LINE_BYTES - (size_t)n, ", \"loss_scale\": %s", units_json(number, f->loss_scale));
    if (!isnan(f->validation_loss))
        n += snprintf(line + n, LINE_BYTES - (size_t)n, ", \"validation_loss\": %s, \"perplexity\": %s",
                      units_json(number, f->validation_loss), units_json(norm, exp(f->validation_loss)));
    if (f->times)
        n += put_times(line + n, LINE_BYTES - (size_t)n, f->times);
    n += snprintf(line + n, LINE_BYTES - (size_t)n, "}\n");
    return append_line(m, line, (size_t)n);
}

fsdp_status metrics_validation(metrics *m, int64_t step, double loss, double accuracy)
{
    char line[2 * LINE_BYTES], number[UNITS_TEXT], other[UNITS_TEXT];
    bool text = isnan(accuracy);
    int n = snprintf(line, LINE_BYTES, "{\"step\": %lld, \"validation_loss\": %s, \"%s\": %s}\n", (long long)step,
                     units_json(number, loss), text ? "perplexity" : "accuracy",
                     units_json(other, text ? exp(loss) : accuracy));
    return append_line(m, line, (size_t)n);
}

fsdp_status metrics_close(metrics *m)
{
    if (!m)
        return FSDP_OK;
    fsdp_status status = FSDP_OK;
    if (m->fd >= 0 && close(m->fd) != 0)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot close", m->path);
    free(m->path);
    free(m);
    return status;
}
