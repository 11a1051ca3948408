/* A timeline of what lower layers report (base/hooks.h), for Perfetto or chrome://tracing: operations, collectives,
 * states of units and memory, in lanes for compute, communication and copies. Memory is bounded: when the ring is full
 * the oldest events make room. */
#ifndef OBSERVE_TRACE_H
#define OBSERVE_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct trace trace;

/* Listens from now on; `capacity` events are kept (0: 65536). `rank` names the process in the picture. Started and
 * stopped while no work runs. The caller frees *out. */
fsdp_status trace_start(int rank, size_t capacity, trace **out);
/* Stops listening, where it has not yet. What was heard stays until trace_free. */
void trace_stop(trace *t);
/* Writes everything heard as a JSON array. */
fsdp_status trace_write(trace *t, const char *path);
void trace_free(trace *t); /* stops, too; NULL is legal */

#endif
