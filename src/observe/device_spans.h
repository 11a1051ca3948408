/* What ran on a device, for a trace: kernels and copies, each on a track of its stream, with the operation that asked
 * for it. Kernels of a launched graph were asked for by no operation; they are those of another step that ran plainly.
 */
#ifndef OBSERVE_DEVICE_SPANS_H
#define OBSERVE_DEVICE_SPANS_H

#include "observe/trace.h"

typedef struct device_spans {
    struct device_span *list; /* (n) */
    size_t n, room, dropped;
    uint32_t streams[TRACE_STREAMS];
    int n_streams;
} device_spans;

/* Finds a row for its stream. */
void device_spans_add(device_spans *d, const trace_device_span *s);
/* Names operations: `ops` and `steps` are spans of the host, in any order. */
void device_spans_name(device_spans *d, const trace_event **ops, size_t n_ops, const trace_event **steps,
                       size_t n_steps);
trace_event device_spans_row(const device_spans *d, int stream);
trace_event device_spans_at(const device_spans *d, size_t i);
void device_spans_free(device_spans *d);

#endif
