/* Warnings of the library, kept for a test to look at, around the scratch folder's setup and teardown. */
#ifndef TESTS_DATA_LOG_LINES_H
#define TESTS_DATA_LOG_LINES_H

#include <stdio.h>
#include <string.h>

#include "base/log.h"

static char log_lines[4096];

static inline void log_lines_keep(void *context, fsdp_log_level level, const char *line)
{
    (void)context;
    if (level >= FSDP_LOG_WARNING)
        snprintf(log_lines + strlen(log_lines), sizeof log_lines - strlen(log_lines), "%s\n", line);
}

static inline int log_lines_setup(void **state)
{
    log_lines[0] = '\0';
    fsdp_log_set_sink(log_lines_keep, NULL, FSDP_LOG_WARNING);
    return scratch_setup(state);
}

static inline int log_lines_teardown(void **state)
{
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_ERROR);
    return scratch_teardown(state);
}

#endif
