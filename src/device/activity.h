/* What ran on a device and when: kernels, copies and clears with the times that they took there, on the host's clock.
 * A recorder asks the device's own records (CUPTI) where there are any; otherwise it times the operations of one stream
 * with events. For traces: nobody records unless one is wanted. */
#ifndef DEVICE_ACTIVITY_H
#define DEVICE_ACTIVITY_H

#include "device/device.h"

typedef enum activity_kind {
    ACTIVITY_KERNEL,
    ACTIVITY_COPY, /* and clears */
    ACTIVITY_WAIT, /* the stream waited for a collective; from events alone */
} activity_kind;

struct device_activity {
    activity_kind kind;
    const char *name;         /* of a kernel as its library calls it, of an operation: "linear.forward" */
    int64_t begin_ns, end_ns; /* clock_nanoseconds() */
    int64_t launched_ns;      /* when the host asked for it; 0: not known */
    int64_t bytes;            /* of copies and clears */
    uint32_t stream;          /* a number, from 0 */
    bool in_graph;
};

typedef struct activity_recorder activity_recorder;

/* Between steps. *out is NULL where the stream's work is the host's (CPU). `s`: the stream that computes. */
fsdp_status activity_start(device *d, stream *s, activity_recorder **out);
/* "CUPTI", or "events" with the reason why. */
const char *activity_source(const activity_recorder *r);
/* It has the device's own records, in which graphs show their kernels; events only see operations that run plainly. */
bool activity_has_records(const activity_recorder *r);
/* Between steps: gives out what was recorded, in any order, and frees r, whatever happens. NULL is legal. Without a
 * sink nothing is given out, and nothing is waited for: the device may have failed. */
fsdp_status activity_stop(activity_recorder *r, activity_sink sink, void *context);

/* Readings of two clocks at the same moment, at the beginning and at the end of a recording. */
typedef struct clock_pair {
    int64_t theirs, ours;
} clock_pair;

/* A time of theirs as one of ours; the clocks may run at slightly different speeds. */
int64_t clock_map(clock_pair begin, clock_pair end, int64_t theirs);

/* The name of a function without its parameters, of a symbol of C++ or of C: "cutlass::device_kernel". Fits `bytes`. */
void activity_plain_name(const char *symbol, char *out, size_t bytes);

#endif
