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

enum { TRACE_NAME_BYTES = 40, TRACE_DETAIL_BYTES = 48, TRACE_WHERE_BYTES = 72 };

/* Lanes of hooks, and one more for what ran on a device: its rows are streams. */
enum { TRACE_DEVICE_LANE = 3, TRACE_LANES, TRACE_STREAMS = 32 };

/* Kinds of a trace's events beside hook_kind, which may grow. */
enum { TRACE_KERNEL = 32, TRACE_COPY, TRACE_KINDS };

/* What there is to draw. */
typedef enum trace_form {
    TRACE_SPAN,
    TRACE_INSTANT,
    TRACE_COUNTER, /* `bytes` of class `name` are taken from now on */
    TRACE_ROW,     /* there is a row: its lane in `lane`; of a device: the number of the stream in `bytes` */
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

/* Listens from now on; `capacity` events are kept (0: 65536). `uses` (MEMORY_USES) is memory that is taken already;
 * NULL: none. Started and stopped while no work runs. The caller frees *out. */
fsdp_status trace_start(size_t capacity, const int64_t *uses, trace **out);
/* Stops listening, where it has not yet. What was heard stays until trace_free. */
void trace_stop(trace *t);
void trace_free(trace *t); /* stops, too; NULL is legal */

/* From now on, between steps: without operations, so that steps may run as graphs. */
fsdp_status trace_skip_operations(trace *t);

typedef struct trace_device_span {
    const char *name;
    int kind; /* TRACE_KERNEL, TRACE_COPY, or HOOK_WAIT: the stream waited for a collective */
    int64_t begin_ns, end_ns;
    int64_t launched_ns; /* when the host asked for it; 0: not known */
    int64_t bytes;
    uint32_t stream;
} trace_device_span;

/* After trace_stop, before trace_take: what ran on the device, by the clock of hooks. */
void trace_add_device(trace *t, const trace_device_span *s);

/* After trace_stop: takes up to `room` of what there is to draw, from *at on, which begins with 0. Returns how many; 0:
 * that was all. */
size_t trace_take(trace *t, size_t *at, trace_event *out, size_t room);

#endif
