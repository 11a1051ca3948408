/* Log lines of the library, for programs that want to show or keep them. The library itself never prints.
 *
 *     static void show(void *context, fsdp_log_level level, const char *line)
 *     {
 *         fprintf(context, "%s\n", line);
 *     }
 *     fsdp_log_set_sink(show, stderr, FSDP_LOG_WARNING); */
#ifndef FSDP_LOG_H
#define FSDP_LOG_H

#include <fsdp/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum fsdp_log_level { FSDP_LOG_DEBUG, FSDP_LOG_INFO, FSDP_LOG_WARNING, FSDP_LOG_ERROR } fsdp_log_level;

typedef void (*fsdp_log_sink)(void *context, fsdp_log_level level, const char *line);

/* One sink per process; NULL turns logging off. Called from any thread, one call at a time; fsdp_train sets its own. */
FSDP_API void fsdp_log_set_sink(fsdp_log_sink sink, void *context, fsdp_log_level least);

#ifdef __cplusplus
}
#endif
#endif
