/* Log lines for a sink. The library itself never prints: without a sink, lines are dropped. */
#ifndef BASE_LOG_H
#define BASE_LOG_H

#include <fsdp/log.h>

/* The sink gets whole lines, fit for a terminal: control characters in them are escaped (base/text/printable.h). */
void log_write(fsdp_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
