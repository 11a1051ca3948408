/* Queues, their threads, events, and the table of kernels that enqueue. */
#include "differential/support_queues.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/error.h"
#include "comm/engine.h"
#include "comm/world.h"
#include "device/device.h"
#include "differential/support_case.h"

enum { LATE_PERCENT = 3, LATEST_MICROSECONDS = 200 };

typedef struct queued_stream queued_stream;
typedef fsdp_status (*queued_call)(queued_stream *s, const void *arguments);

typedef struct queued_task {
    queued_call run;
    void *arguments;
    struct queued_task *next;
} queued_task;

/* What was taken from this device: copies out of it are ordered by streams, copies out of other memory happen at once.
 */
typedef struct queued_memory {
    const uint8_t *begin, *end;
    struct queued_memory *next;
} queued_memory;

typedef struct queued_device {
    device base;
    device *real;
    kernel_table kernels;
    uint64_t state;
    pthread_mutex_t lock; /* guards everything below, and streams and events */
    pthread_cond_t moved;
    queued_stream *streams;
    queued_memory *memory;
    fsdp_status status; /* of the first task that failed */
    char message[512];
} queued_device;

struct queued_stream {
    queued_device *device;
    stream *real;
    pthread_t thread;
    queued_task *first, **end;
    uint64_t enqueued, finished;
    bool quit;
    queued_stream *next;
};

typedef struct queued_event {
    queued_device *device;
    uint64_t recorded, reached; /* how often it was enqueued, and how often a stream came to it */
} queued_event;

static queued_device *device_of(device *d)
{
    return (queued_device *)(void *)d;
}

static queued_stream *stream_of(stream *s)
{
    return (queued_stream *)(void *)s;
}

/* ---- Queues ---- */

static void run_task(queued_stream *s, queued_task *t, bool late, long nanoseconds)
{
    queued_device *d = s->device;
    if (late)
        nanosleep(&(struct timespec){0, nanoseconds}, NULL);
    fsdp_status status = t->run(s, t->arguments);
    if (status == FSDP_OK)
        return;
    pthread_mutex_lock(&d->lock);
    if (d->status == FSDP_OK)
        snprintf(d->message, sizeof d->message, "%s", fsdp_last_error());
    d->status = d->status == FSDP_OK ? status : d->status;
    pthread_mutex_unlock(&d->lock);
}

static void *run_queue(void *argument)
{
    queued_stream *s = argument;
    queued_device *d = s->device;
    pthread_mutex_lock(&d->lock);
    while (!s->quit || s->first) {
        if (!s->first) {
            pthread_cond_wait(&d->moved, &d->lock);
            continue;
        }
        queued_task *t = s->first;
        bool late = chance(&d->state, LATE_PERCENT);
        long nanoseconds = 1000L * draw(&d->state, LATEST_MICROSECONDS);
        s->first = t->next;
        if (!s->first)
            s->end = &s->first;
        pthread_mutex_unlock(&d->lock);
        run_task(s, t, late, nanoseconds);
        free(t->arguments);
        free(t);
        pthread_mutex_lock(&d->lock);
        s->finished++;
        pthread_cond_broadcast(&d->moved);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

static fsdp_status enqueue(queued_stream *s, queued_call run, const void *arguments, size_t bytes)
{
    queued_task *t = calloc(1, sizeof *t);
    void *copy = malloc(bytes);
    if (!t || !copy) {
        free(t);
        free(copy);
        return error_set(FSDP_ERR_MEMORY, "enqueuing a call: out of host memory");
    }
    *t = (queued_task){run, memcpy(copy, arguments, bytes), NULL};
    pthread_mutex_lock(&s->device->lock);
    *s->end = t;
    s->end = &t->next;
    s->enqueued++;
    pthread_cond_broadcast(&s->device->moved);
    pthread_mutex_unlock(&s->device->lock);
    return FSDP_OK;
}

/* Returns when all that is enqueued now is done. Under the lock. */
static void drain(queued_stream *s)
{
    for (uint64_t until = s->enqueued; s->finished < until;)
        pthread_cond_wait(&s->device->moved, &s->device->lock);
}

static void drain_all(queued_device *d)
{
    pthread_mutex_lock(&d->lock);
    for (queued_stream *s = d->streams; s; s = s->next)
        drain(s);
    pthread_mutex_unlock(&d->lock);
}

static fsdp_status queued_synchronize(stream *given)
{
    queued_stream *s = stream_of(given);
    queued_device *d = s->device;
    pthread_mutex_lock(&d->lock);
    drain(s);
    fsdp_status status = d->status == FSDP_OK ? FSDP_OK : error_set(d->status, "%s", d->message);
    pthread_mutex_unlock(&d->lock);
    return status;
}

static fsdp_status queued_stream_create(device *given, int priority, stream **out)
{
    queued_device *d = device_of(given);
    queued_stream *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(FSDP_ERR_MEMORY, "creating a stream: out of host memory");
    s->device = d;
    s->end = &s->first;
    fsdp_status status = d->real->stream_create(d->real, priority, &s->real);
    if (status == FSDP_OK && pthread_create(&s->thread, NULL, run_queue, s) != 0)
        status = error_set(FSDP_ERR_MEMORY, "creating a stream: no thread");
    if (status != FSDP_OK) {
        free(s);
        return status;
    }
    pthread_mutex_lock(&d->lock);
    s->next = d->streams;
    d->streams = s;
    pthread_mutex_unlock(&d->lock);
    *out = (stream *)(void *)s;
    return FSDP_OK;
}

static void queued_stream_free(stream *given)
{
    queued_stream *s = stream_of(given), **link;
    if (!s)
        return;
    queued_device *d = s->device;
    pthread_mutex_lock(&d->lock);
    s->quit = true;
    pthread_cond_broadcast(&d->moved);
    pthread_mutex_unlock(&d->lock);
    pthread_join(s->thread, NULL);
    pthread_mutex_lock(&d->lock);
    for (link = &d->streams; *link != s; link = &(*link)->next) {
    }
    *link = s->next;
    pthread_mutex_unlock(&d->lock);
    d->real->stream_free(s->real);
    free(s);
}

/* ---- Kernels and transfers ---- */

#define QUEUED_KERNEL(entry, args)                                                                                     \
    static fsdp_status run_##entry(queued_stream *s, const void *a)                                                    \
    {                                                                                                                  \
        return s->device->real->kernels->entry(s->real, a);                                                            \
    }                                                                                                                  \
    static fsdp_status queued_##entry(stream *s, const args *a)                                                        \
    {                                                                                                                  \
        return enqueue(stream_of(s), run_##entry, a, sizeof *a);                                                       \
    }
#define QUEUED_KERNEL_WITH_WORKSPACE(entry, args)                                                                      \
    QUEUED_KERNEL(entry, args)                                                                                         \
    static size_t queued_##entry##_workspace(const device *d, const args *a)                                           \
    {                                                                                                                  \
        const device *real = ((const queued_device *)(const void *)d)->real;                                           \
        return real->kernels->entry##_workspace(real, a);                                                              \
    }
KERNELS(QUEUED_KERNEL, QUEUED_KERNEL_WITH_WORKSPACE)

#define QUEUED_ENTRY(entry, args) .entry = queued_##entry,
#define QUEUED_ENTRY_WITH_WORKSPACE(entry, args)                                                                       \
    .entry = queued_##entry, .entry##_workspace = queued_##entry##_workspace,
static const kernel_table queued_kernels = {KERNELS(QUEUED_ENTRY, QUEUED_ENTRY_WITH_WORKSPACE)};

typedef struct transfer {
    void *to;
    const void *from; /* NULL: zeros */
    size_t bytes;
} transfer;

static fsdp_status run_transfer(queued_stream *s, const void *arguments)
{
    const transfer *t = arguments;
    device *real = s->device->real;
    return t->from ? real->copy(s->real, t->to, t->from, t->bytes) : real->zero(s->real, t->to, t->bytes);
}

static bool is_ours(queued_device *d, const void *p)
{
    bool found = false;
    pthread_mutex_lock(&d->lock);
    for (const queued_memory *m = d->memory; m && !found; m = m->next)
        found = (const uint8_t *)p >= m->begin && (const uint8_t *)p < m->end;
    pthread_mutex_unlock(&d->lock);
    return found;
}

/* From memory that the device does not know, a copy has read everything when it returns, as CUDA's does. */
static fsdp_status queued_copy(stream *given, void *to, const void *from, size_t bytes)
{
    queued_stream *s = stream_of(given);
    transfer t = {to, from, bytes};
    if (bytes == 0)
        return FSDP_OK;
    FSDP_TRY(enqueue(s, run_transfer, &t, sizeof t));
    return is_ours(s->device, from) ? FSDP_OK : queued_synchronize(given);
}

static fsdp_status queued_zero(stream *s, void *to, size_t bytes)
{
    transfer t = {to, NULL, bytes};
    return bytes ? enqueue(stream_of(s), run_transfer, &t, sizeof t) : FSDP_OK;
}

/* ---- Memory ---- */

static fsdp_status queued_allocate(device *given, memory_kind kind, size_t bytes, void **out)
{
    queued_device *d = device_of(given);
    queued_memory *m = calloc(1, sizeof *m);
    *out = NULL;
    fsdp_status status = m ? d->real->allocate(d->real, kind, bytes, out) : FSDP_ERR_MEMORY;
    if (status != FSDP_OK) {
        free(m);
        return status;
    }
    memset(*out, 0xff, bytes); /* contents are undefined: nobody may count on anything */
    pthread_mutex_lock(&d->lock);
    *m = (queued_memory){*out, (const uint8_t *)*out + bytes, d->memory};
    d->memory = m;
    pthread_mutex_unlock(&d->lock);
    return FSDP_OK;
}

static void queued_release(device *given, memory_kind kind, void *memory, size_t bytes)
{
    queued_device *d = device_of(given);
    if (!memory)
        return;
    drain_all(d); /* as CUDA does before it takes memory back */
    pthread_mutex_lock(&d->lock);
    queued_memory **link = &d->memory;
    while (*link && (*link)->begin != memory)
        link = &(*link)->next;
    queued_memory *gone = *link;
    if (gone)
        *link = gone->next;
    pthread_mutex_unlock(&d->lock);
    free(gone);
    d->real->release(d->real, kind, memory, bytes);
}

/* ---- Events ---- */

typedef struct mark {
    queued_event *e;
    uint64_t number;
} mark;

static fsdp_status reach(queued_stream *s, const void *arguments)
{
    const mark *m = arguments;
    pthread_mutex_lock(&s->device->lock);
    m->e->reached = m->number;
    pthread_cond_broadcast(&s->device->moved);
    pthread_mutex_unlock(&s->device->lock);
    return FSDP_OK;
}

static fsdp_status wait_for(queued_stream *s, const void *arguments)
{
    const mark *m = arguments;
    pthread_mutex_lock(&s->device->lock);
    while (m->e->reached < m->number)
        pthread_cond_wait(&s->device->moved, &s->device->lock);
    pthread_mutex_unlock(&s->device->lock);
    return FSDP_OK;
}

static fsdp_status queued_event_create(device *d, event **out)
{
    queued_event *e = calloc(1, sizeof *e);
    *out = (event *)(void *)e;
    if (!e)
        return error_set(FSDP_ERR_MEMORY, "creating an event: out of host memory");
    e->device = device_of(d);
    return FSDP_OK;
}

static void queued_event_free(event *given)
{
    queued_event *e = (queued_event *)(void *)given;
    if (e)
        drain_all(e->device);
    free(e);
}

static fsdp_status queued_event_record(stream *s, event *given)
{
    queued_event *e = (queued_event *)(void *)given;
    pthread_mutex_lock(&e->device->lock);
    mark m = {e, ++e->recorded};
    pthread_mutex_unlock(&e->device->lock);
    return enqueue(stream_of(s), reach, &m, sizeof m);
}

/* For the last time that it was recorded; one that never was holds nobody up. */
static fsdp_status queued_stream_wait(stream *s, event *given)
{
    queued_event *e = (queued_event *)(void *)given;
    pthread_mutex_lock(&e->device->lock);
    mark m = {e, e->recorded};
    pthread_mutex_unlock(&e->device->lock);
    return enqueue(stream_of(s), wait_for, &m, sizeof m);
}

static fsdp_status queued_event_done(event *given, bool *done)
{
    queued_event *e = (queued_event *)(void *)given;
    pthread_mutex_lock(&e->device->lock);
    *done = e->reached == e->recorded;
    pthread_mutex_unlock(&e->device->lock);
    return FSDP_OK;
}

static fsdp_status queued_event_elapsed(event *from, event *to, double *milliseconds)
{
    (void)from, (void)to;
    *milliseconds = 0;
    return FSDP_OK;
}

/* ---- Opening ---- */

/* The backends of the CPU read and write memory themselves, and a peer may do so once a collective has been announced:
 * what was enqueued before it is done by then. */
static const comm_backend *real_backend;
static comm_backend draining_backend;

static fsdp_status start_collective(comm_request *r)
{
    drain_all(device_of(r->group->comm->config.device));
    return real_backend->start(r);
}

static void queued_close(device *given)
{
    queued_device *d = device_of(given);
    for (queued_memory *m = d->memory, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    device_close(d->real);
    pthread_cond_destroy(&d->moved);
    pthread_mutex_destroy(&d->lock);
    free(d);
}

static fsdp_status device_open(device *real, uint64_t seed, device **out)
{
    queued_device *d = calloc(1, sizeof *d);
    if (!d)
        return error_set(FSDP_ERR_MEMORY, "opening a queued device: out of host memory");
    d->real = real;
    d->state = seed;
    d->kernels = queued_kernels;
    d->base = *real;
    d->base.name = "queued";
    d->base.own_memory = true; /* treated as a GPU: the host does not touch what queues work on */
    d->base.kernels = &d->kernels;
    d->base.allocate = queued_allocate;
    d->base.release = queued_release;
    d->base.stream_create = queued_stream_create;
    d->base.stream_free = queued_stream_free;
    d->base.stream_synchronize = queued_synchronize;
    d->base.event_create = queued_event_create;
    d->base.event_free = queued_event_free;
    d->base.event_record = queued_event_record;
    d->base.stream_wait = queued_stream_wait;
    d->base.event_elapsed = queued_event_elapsed;
    d->base.event_done = queued_event_done;
    d->base.copy = queued_copy;
    d->base.zero = queued_zero;
    d->base.close = queued_close;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->moved, NULL);
    *out = &d->base;
    return FSDP_OK;
}

fsdp_status queued_world_open(const fsdp_world_config *given, uint64_t seed, fsdp_world **out)
{
    fsdp_world_config config = *given;
    fsdp_world *w;
    device *wrapped = NULL;
    config.device = "cpu";
    FSDP_TRY(fsdp_world_open(&config, &w));
    w->dev->stream_free(w->compute);
    w->compute = NULL;
    fsdp_status status = device_open(w->dev, seed, &wrapped);
    if (status == FSDP_OK) {
        w->dev = w->comm->config.device = wrapped;
        real_backend = w->comm->backend;
        draining_backend = *real_backend;
        if (real_backend->start)
            draining_backend.start = start_collective;
        w->comm->backend = &draining_backend;
        status = wrapped->stream_create(wrapped, 0, &w->compute);
    }
    if (status != FSDP_OK) {
        fsdp_world_close(w);
        return status;
    }
    *out = w;
    return FSDP_OK;
}
