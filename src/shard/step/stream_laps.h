/* Where a step's time goes on a device that works beside the host. The host only hands work out there, so its own laps
 * say nothing. Whenever another lap opens on the host (base/record/laps.h), an event is recorded on the compute stream;
 * the time between two events belongs to the lap that the first one opened: forward, backward, a collective that the
 * stream waits for, or the host if the stream ran out of work. The end of a step waits for the stream anyway, and the
 * events are read then. Nothing here makes training fail: without events, the host's laps stay. */
#ifndef SHARD_STEP_STREAM_LAPS_H
#define SHARD_STEP_STREAM_LAPS_H

#include "base/record/laps.h"
#include "device/device.h"

typedef struct stream_laps stream_laps;

/* A moment inside a graph. Every launch records the same event again, so that only the newest can be told: earlier
 * launches of a step are divided like it. */
typedef struct inner_mark {
    event *at;       /* NULL: not in any graph */
    uint64_t newest; /* mark whose launch recorded it last */
    double undivided_ms;
} inner_mark;

/* For a stream of the device; both must outlive *out. NULL where the stream's time is the host's. */
fsdp_status stream_laps_new(device *d, stream *s, stream_laps **out);
void stream_laps_free(stream_laps *l); /* NULL is legal here and below */

/* From now on, until stream_laps_end: if laps of this thread are measured. */
void stream_laps_begin(stream_laps *l);
/* The lap `first`, just opened, was a graph's: at `inner` it went over into `second`. */
void stream_laps_divide(stream_laps *l, inner_mark *inner, lap first, lap second);
void stream_laps_end(stream_laps *l);
/* After the stream has been waited for. */
void stream_laps_settle(stream_laps *l);

/* On a stream that is being recorded. */
fsdp_status inner_mark_record(device *d, stream *s, inner_mark *m);
void inner_mark_free(device *d, inner_mark *m);

#endif
