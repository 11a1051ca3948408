/* Hands log lines to the one sink of the process, one at a time. What becomes of them is the sink's affair. */
#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

#include "base/text/printable.h"

enum { LINE_BYTES = 2048, LEVEL_OFF = FSDP_LOG_ERROR + 1 };

/* The process-wide sink, guarded by `lock`; `threshold` is read before it so that dropped lines cost no lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static fsdp_log_sink current_sink;
static void *current_context;
static atomic_int threshold = LEVEL_OFF;

void fsdp_log_set_sink(fsdp_log_sink sink, void *context, fsdp_log_level least)
{
    pthread_mutex_lock(&lock);
    current_sink = sink;
    current_context = context;
    atomic_store(&threshold, sink ? (int)least : LEVEL_OFF);
    pthread_mutex_unlock(&lock);
}

void log_write(fsdp_log_level level, const char *format, ...)
{
    if ((int)level < atomic_load_explicit(&threshold, memory_order_relaxed))
        return;
    char text[LINE_BYTES], line[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    printable(text, false, line, sizeof line);
    pthread_mutex_lock(&lock);
    if (current_sink)
        current_sink(current_context, level, line);
    pthread_mutex_unlock(&lock);
}
