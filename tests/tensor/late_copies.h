/* The CPU device with copies as late as a stream of their own allows: what is enqueued on it happens when another
 * stream waits for it, and not before. Together with the CPU's own, which copies at once, both ends of what a GPU may
 * do. */
#ifndef TESTS_TENSOR_LATE_COPIES_H
#define TESTS_TENSOR_LATE_COPIES_H

#include "tensor/rig.h"

#define LATE_MAX_COPIES 256

typedef struct late_copy {
    void *to;
    const void *from;
    size_t bytes;
    const event *done;
} late_copy;

typedef struct late_device {
    device base;
    device *real;
    const stream *late;
    late_copy queue[LATE_MAX_COPIES];
    int n_queued, n_copied;
} late_device;

/* The device table takes no context: one test at a time. */
static late_device late;

static inline fsdp_status late_enqueue(stream *s, void *to, const void *from, size_t bytes)
{
    if (s != late.late)
        return late.real->copy(s, to, from, bytes);
    assert_true(late.n_queued < LATE_MAX_COPIES);
    late.queue[late.n_queued++] = (late_copy){to, from, bytes, NULL};
    return FSDP_OK;
}

static inline fsdp_status late_event_record(stream *s, event *e)
{
    if (s == late.late && late.n_queued > late.n_copied)
        late.queue[late.n_queued - 1].done = e;
    return late.real->event_record(s, e);
}

/* Copies happen in order, up to the last one that the event stands behind. */
static inline fsdp_status late_stream_wait(stream *s, event *e)
{
    int until = late.n_copied;
    for (int i = late.n_copied; i < late.n_queued && s != late.late; i++) {
        if (late.queue[i].done == e)
            until = i + 1;
    }
    for (; late.n_copied < until; late.n_copied++)
        memcpy(late.queue[late.n_copied].to, late.queue[late.n_copied].from, late.queue[late.n_copied].bytes);
    return FSDP_OK;
}

/* Valid until the next call. */
static inline device *late_copies(device *real, const stream *transfers)
{
    late = (late_device){.base = *real, .real = real, .late = transfers};
    late.base.copy = late_enqueue;
    late.base.event_record = late_event_record;
    late.base.stream_wait = late_stream_wait;
    return &late.base;
}

#endif
