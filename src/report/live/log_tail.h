/* The last lines that a run has said or logged, of all ranks whose files are in reach. */
#ifndef REPORT_LIVE_LOG_TAIL_H
#define REPORT_LIVE_LOG_TAIL_H

#include <stdbool.h>

#include <jansson.h>

typedef struct log_tail log_tail;

log_tail *log_tail_new(const char *folder, int n_ranks); /* NULL: out of memory */
void log_tail_free(log_tail *t);                         /* NULL is legal */

/* A line of rank 0; any thread. */
void log_tail_say(log_tail *t, bool warning, const char *text);
/* Lines of rank 0, and what other ranks' log files end with of warnings and errors, by time: array of [time, rank,
 * level, text]. One thread at a time. */
json_t *log_tail_json(log_tail *t);

#endif
