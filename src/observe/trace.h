/* A timeline of what lower layers report (base/record/hooks.h), for Perfetto or chrome://tracing: operations with
 * shapes and modules, collectives, states of units and memory, in lanes for compute, communication and copies. Memory
 * is bounded: when the ring is full the oldest events make room. Events of all ranks are written into one file
 * (trace_file.h). */
#ifndef OBSERVE_TRACE_H
#define OBSERVE_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

enum { TRACE_NAME_BYTES = 40, TRACE_DETAIL_BYTES = 48, TRACE_WHERE_BYTES = 72, TRACE_LANES = 3 };

/* What there is to draw. */
typedef enum trace_form {
    TRACE_SPAN,
    TRACE_INSTANT,
    TRACE_COUNTER, /* `bytes` of class `name` are taken from now on */
    TRACE_ROW,     /* there is a row: its lane in `lane` */
    TRACE_ABOUT,   /* of the trace itself: events in `bytes`, those that were dropped in `flow` */
} trace_form;

/* Plain data that travels between ranks. */
typedef struct trace_event {
    char name[TRACE_NAME_BYTES], detail[TRACE_DETAIL_BYTES];
    char where[TRACE_WHERE_BYTES]; /* module and shape of an operation */
    int64_t begin_ns, end_ns;      /* equal for what has no duration */
    int64_t bytes;
    uint32_t sequence; /* of a collective in its group; 0: none */
    uint32_t flow;     /* a gather and the operation that first uses it have the same; 0: none */
    uint8_t kind, form, row, lane;
} trace_event;

typedef struct trace trace;

/* Listens from now on; `capacity` events are kept (0: 65536). `memory_bytes` are taken already. Started and stopped
 * while no work runs. The caller frees *out. */
fsdp_status trace_start(size_t capacity, int64_t memory_bytes, trace **out);
/* Stops listening, where it has not yet. What was heard stays until trace_free. */
void trace_stop(trace *t);
void trace_free(trace *t); /* stops, too; NULL is legal */

/* After trace_stop: takes up to `room` of what there is to draw, from *at on, which begins with 0. Returns how many; 0:
 * that was all. */
size_t trace_take(trace *t, size_t *at, trace_event *out, size_t room);

#endif
