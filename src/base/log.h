/* Log lines for a sink. The library itself never prints: without a sink, lines are dropped. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

typedef enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARNING, LOG_ERROR } log_level;

typedef void (*log_sink)(void *context, log_level level, const char *line);

/* Lines are whole and fit for a terminal: control characters in them are escaped (base/printable.h).
 * One sink per process; NULL turns logging off. The sink may be called from any thread, one call at a time. */
void log_set_sink(log_sink sink, void *context, log_level least);
void log_write(log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
