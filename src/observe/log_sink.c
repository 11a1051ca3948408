/* The public face of base/log.h. */
#include <fsdp/log.h>

#include <stddef.h>

#include "base/log.h"

_Static_assert((int)FSDP_LOG_DEBUG == (int)LOG_DEBUG && (int)FSDP_LOG_ERROR == (int)LOG_ERROR, "levels are the same");

/* The process's sink, as base/log.c has one: changed only under its lock, by taking the old one away first. */
static struct {
    fsdp_log_sink sink;
    void *context;
} current;

static void pass_on(void *context, log_level level, const char *line)
{
    (void)context;
    current.sink(current.context, (fsdp_log_level)level, line);
}

void fsdp_log_set_sink(fsdp_log_sink sink, void *context, fsdp_log_level least)
{
    log_set_sink(NULL, NULL, LOG_ERROR);
    current.sink = sink;
    current.context = context;
    if (sink)
        log_set_sink(pass_on, NULL, (log_level)least);
}
