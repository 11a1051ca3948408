/* The table of kernels that only note. Streams and events are one and the same: nothing ever runs. */
#include "device/noting.h"

#include <stdlib.h>

#include "base/error.h"

struct noting_device {
    device base;
    const device *like;
    noting_listener listen;
    void *context;
};

/* The device stands for its streams: that is all a kernel gets to see. */
static noting_device *of_stream(stream *s)
{
    return (noting_device *)(void *)s;
}

static const noting_device *of_device(const device *d)
{
    return (const noting_device *)(const void *)d;
}

#define NOTED(entry, args)                                                                                             \
    static fsdp_status note_##entry(stream *s, const args *a)                                                          \
    {                                                                                                                  \
        kernel_work work;                                                                                              \
        kernel_work_of(KERNEL_##entry, a, &work);                                                                      \
        return of_stream(s)->listen(of_stream(s)->context, &work);                                                     \
    }
#define NOTED_WITH_WORKSPACE(entry, args)                                                                              \
    NOTED(entry, args)                                                                                                 \
    static size_t size_##entry(const device *d, const args *a)                                                         \
    {                                                                                                                  \
        return of_device(d)->like->kernels->entry##_workspace(of_device(d)->like, a);                                  \
    }
KERNELS(NOTED, NOTED_WITH_WORKSPACE)

#define ENTER(entry, args) .entry = note_##entry,
#define ENTER_WITH_WORKSPACE(entry, args) .entry = note_##entry, .entry##_workspace = size_##entry,
static const kernel_table noting_kernels = {KERNELS(ENTER, ENTER_WITH_WORKSPACE)};

static fsdp_status note_bytes(stream *s, double bytes)
{
    kernel_work work = kernel_work_of_copy(bytes);
    return of_stream(s)->listen(of_stream(s)->context, &work);
}

static fsdp_status note_copy(stream *s, void *to, const void *from, size_t bytes)
{
    (void)to, (void)from;
    return note_bytes(s, 2 * (double)bytes);
}

static fsdp_status note_zero(stream *s, void *to, size_t bytes)
{
    (void)to;
    return note_bytes(s, (double)bytes);
}

static fsdp_status nothing_to_wait_for(stream *s, event *e)
{
    (void)s, (void)e;
    return FSDP_OK;
}

static fsdp_status no_event(device *d, event **out)
{
    *out = (event *)(void *)d;
    return FSDP_OK;
}

static void nothing_to_free(event *e)
{
    (void)e;
}

/* An address that stands for memory: never read or written. */
static fsdp_status pretend_to_allocate(device *d, memory_kind kind, size_t bytes, void **out)
{
    (void)d, (void)kind, (void)bytes;
    *out = (void *)((uintptr_t)1 << 46);
    return FSDP_OK;
}

static void nothing_to_release(device *d, memory_kind kind, void *memory, size_t bytes)
{
    (void)d, (void)kind, (void)memory, (void)bytes;
}

static void *no_native_stream(stream *s)
{
    (void)s;
    return NULL;
}

fsdp_status noting_device_open(const device *like, noting_listener listen, void *context, noting_device **out)
{
    noting_device *d = calloc(1, sizeof *d);
    *out = d;
    if (!d)
        return error_set(FSDP_ERR_MEMORY, "noting a step: out of host memory");
    d->base = *like;
    d->like = like;
    d->listen = listen;
    d->context = context;
    d->base.kernels = &noting_kernels;
    d->base.allocate = pretend_to_allocate;
    d->base.release = nothing_to_release;
    d->base.copy = note_copy;
    d->base.zero = note_zero;
    d->base.event_record = nothing_to_wait_for;
    d->base.stream_wait = nothing_to_wait_for;
    d->base.event_create = no_event;
    d->base.event_free = nothing_to_free;
    d->base.native_stream = no_native_stream;
    return FSDP_OK;
}

void noting_device_close(noting_device *d)
{
    free(d);
}

device *noting_device_base(noting_device *d)
{
    return &d->base;
}

stream *noting_device_stream(noting_device *d)
{
    return (stream *)(void *)d;
}
