/* Appends lines to the report. */
#include "launch/job_report.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/error.h"
#include "base/log.h"

struct job_report {
    char *path;
};

fsdp_status job_report_open(const fsdp_launch_config *config, job_report **out)
{
    *out = NULL;
    if (!config->report_file && !config->log_dir)
        return FSDP_OK;
    job_report *r = calloc(1, sizeof *r);
    int length = r ? config->report_file ? asprintf(&r->path, "%s", config->report_file)
                                         : asprintf(&r->path, "%s/report.jsonl", config->log_dir)
                   : -1;
    if (length < 0) {
        free(r);
        return error_set(FSDP_ERR_MEMORY, "no memory for the report");
    }
    *out = r;
    return FSDP_OK;
}

/* One write a line: two launchers of one job on one host may both have held the store. */
static bool append(const char *path, const char *line)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    size_t n = strlen(line);
    bool written = fd >= 0 && write(fd, line, n) == (ssize_t)n;
    if (fd >= 0)
        written = close(fd) == 0 && written;
    return written;
}

void job_report_write(void *report, int round, const char *reason, const char *what_follows)
{
    job_report *r = report;
    char when[32];
    time_t now = time(NULL);
    struct tm utc;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    json_t *entry =
        json_pack("{s:s, s:i, s:s, s:s}", "time", when, "round", round, "reason", reason, "then", what_follows);
    char *text = entry ? json_dumps(entry, JSON_COMPACT | JSON_ENSURE_ASCII) : NULL, *line = NULL;
    if (!text || asprintf(&line, "%s\n", text) < 0 || !append(r->path, line))
        log_write(FSDP_LOG_WARNING, "%s: the report could not be written", r->path);
    free(line);
    free(text);
    json_decref(entry);
}

void job_report_close(job_report *r)
{
    if (!r)
        return;
    free(r->path);
    free(r);
}
