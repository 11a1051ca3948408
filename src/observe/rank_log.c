/* Writes log lines with the time in front, a line a call, so that they survive the process. */
#include "observe/rank_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"

enum { LINE_BYTES = 2304 };

struct rank_log {
    rank_log_config config;
    char *path;
    int fd;
};

static const char *const level_names[] = {"debug", "info", "warning", "error"};

static void write_line(const rank_log *log, fsdp_log_level level, const char *line)
{
    char text[LINE_BYTES], now[CLOCK_UTC_BYTES];
    size_t n = (size_t)snprintf(text, sizeof text, "%s %s: %s", clock_utc(now), level_names[level], line);
    if (n > sizeof text - 2)
        n = sizeof text - 2;
    text[n++] = '\n';
    /* A log that cannot be written must not end a run: what fails here is lost. */
    if (write(log->fd, text, n) < 0)
        return;
}

static void on_line(void *context, fsdp_log_level level, const char *line)
{
    const rank_log *log = context;
    const rank_log_config *c = &log->config;
    if (log->fd >= 0)
        write_line(log, level, line);
    if (!c->show || level < c->least_shown || (c->rank != 0 && level < FSDP_LOG_WARNING))
        return;
    if (c->rank == 0) {
        c->show(c->context, level, line);
        return;
    }
    char text[LINE_BYTES];
    snprintf(text, sizeof text, "rank %d: %s", c->rank, line);
    c->show(c->context, level, text);
}

static fsdp_status open_file(rank_log *log)
{
    char name[32];
    snprintf(name, sizeof name, "rank-%d.log", log->config.rank);
    FSDP_TRY(file_make_directories(log->config.folder));
    log->path = file_join(log->config.folder, name);
    if (!log->path)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", log->config.folder);
    log->fd = open(log->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return log->fd >= 0 ? FSDP_OK : error_set_errno(FSDP_ERR_INPUT, "%s: cannot open for logging", log->path);
}

fsdp_status rank_log_open(const rank_log_config *config, rank_log **out)
{
    *out = NULL;
    rank_log *log = calloc(1, sizeof *log);
    if (!log)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a log");
    log->config = *config;
    log->fd = -1;
    fsdp_status status = config->folder ? open_file(log) : FSDP_OK;
    if (status != FSDP_OK) {
        rank_log_close(log);
        return status;
    }
    log->config.folder = NULL; /* borrowed for the opening only */
    fsdp_log_set_sink(on_line, log, FSDP_LOG_DEBUG);
    *out = log;
    return FSDP_OK;
}

void rank_log_close(rank_log *log)
{
    if (!log)
        return;
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_ERROR);
    if (log->fd >= 0)
        close(log->fd);
    free(log->path);
    free(log);
}
