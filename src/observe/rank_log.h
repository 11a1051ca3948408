/* A log file per rank, and the choice of what is shown: the sink of base/log.h. Every line goes to the file; lines of
 * at least a level also go to whoever shows them, and of ranks other than 0 only warnings, with their number in front.
 */
#ifndef OBSERVE_RANK_LOG_H
#define OBSERVE_RANK_LOG_H

#include <fsdp/status.h>

#include "base/log.h"

typedef struct rank_log rank_log;

typedef struct rank_log_config {
    const char *folder; /* made where needed; the file is rank-<N>.log, appended to. NULL: no file */
    int rank, world_size;
    fsdp_log_level least_shown;
    void (*show)(void *context, fsdp_log_level level, const char *line); /* NULL: nothing is shown */
    void *context;
} rank_log_config;

/* Becomes the process's sink. The caller closes *out. */
fsdp_status rank_log_open(const rank_log_config *config, rank_log **out);
void rank_log_close(rank_log *log); /* gives the sink up; NULL is legal */

#endif
