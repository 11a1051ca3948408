/* A bar for the whole repository, rewritten in place on a terminal, a line every few seconds otherwise; above it a line
 * per file. */
#include "download.h"

#include <stdio.h>
#include <time.h>

#include <fsdp/log.h>

#include "terminal.h"

typedef struct download_bar {
    terminal terminal;
    const char *command;
    double started, shown; /* started 0: no byte has come */
    int64_t first;         /* bytes that were there before */
} download_bar;

static double now_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void show_progress(void *context, const char *file, int64_t bytes, int64_t total)
{
    download_bar *bar = context;
    double now = now_seconds();
    bool live = bar->terminal.live;
    if (bar->started == 0) {
        bar->started = now;
        bar->first = bytes;
        bar->shown = live ? 0 : now; /* a terminal sees it at once */
    }
    if (now - bar->shown < (live ? 0.1 : 5) && !(live && bytes == total))
        return;
    bar->shown = now;
    double part = total > 0 ? (double)bytes / (double)total : 1;
    double rate = (double)(bytes - bar->first) / (now - bar->started + 1e-9);
    char line[256], cells[25], left[32] = "";
    terminal_bar(cells, part);
    if (rate > 0 && bytes < total)
        snprintf(left, sizeof left, ", left: %.0f s", (double)(total - bytes) / rate);
    snprintf(line, sizeof line, "[%s] %3.0f%%  %.1f of %.1f MB, %.1f MB/s%s  %.100s", cells, 100 * part,
             1e-6 * (double)bytes, 1e-6 * (double)total, 1e-6 * rate, left, file);
    terminal_progress(&bar->terminal, line);
}

static void show_log(void *context, fsdp_log_level level, const char *text)
{
    download_bar *bar = context;
    char line[2048];
    snprintf(line, sizeof line, "fsdp %s: %s%s", bar->command, level >= FSDP_LOG_WARNING ? "warning: " : "", text);
    terminal_line(&bar->terminal, line);
}

fsdp_status download_shown(const char *command, fsdp_fetch_config *config, fsdp_fetch_result *result)
{
    download_bar bar = {.terminal = terminal_open(stderr), .command = command};
    config->progress = show_progress;
    config->context = &bar;
    fsdp_log_set_sink(show_log, &bar, FSDP_LOG_INFO);
    fsdp_status status = fsdp_fetch(config, result);
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_ERROR);
    terminal_close(&bar.terminal);
    return status;
}

fsdp_status download(const char *command, fsdp_fetch_kind kind, const char *name, const char *config_name)
{
    fsdp_fetch_config config = FSDP_FETCH_CONFIG_INIT;
    config.kind = kind;
    config.name = name;
    config.config_name = config_name;
    config.prefer_local = true;
    return name ? download_shown(command, &config, NULL) : FSDP_OK;
}
