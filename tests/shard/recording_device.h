/* The CPU device with graphs, so that mistakes with recorded work show without a GPU. Between graph_begin and graph_end
 * kernels, copies and clears are noted down with their arguments instead of run; a launch runs them. What CUDA refuses
 * while it records (allocating, waiting for a stream, work of a stream that is not joined again) is refused here too.
 * Its name is not "cpu", so inputs are staged and offloaded units have memory of their own, as on a GPU.
 *
 *     assert_ok(recording_world_open(&config, &w));     a world like fsdp_world_open's, on this device
 *     recording_device *d = recording_device_of(w->dev);
 *     d->launches                                       so many graphs were launched
 *     d->fail_in = 3                                    the third kernel from now on fails
 *     recording_split_masters(w->dev)                   before a model is made: bf16 masters are kept as halves */
#ifndef TESTS_SHARD_RECORDING_DEVICE_H
#define TESTS_SHARD_RECORDING_DEVICE_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/float_bits.h"
#include "comm/engine.h"
#include "comm/world.h"
#include "device/device.h"
#include "device/halves.h"

typedef struct recording_stream recording_stream;
typedef struct recording_event recording_event;
typedef struct recording_graph recording_graph;

/* Runs one call on the real device; `arguments` is what was noted down. */
typedef fsdp_status (*recorded_call)(recording_stream *s, const void *arguments);

typedef struct recording_note {
    recorded_call run;
    recording_stream *on;
    void *arguments;
    struct recording_note *next;
} recording_note;

struct recording_graph {
    recording_note *first, **end;
};

typedef struct recording_device {
    device base;
    device *real;
    kernel_table kernels;
    recording_stream *streams;
    recording_graph *open; /* being recorded; NULL: none */
    recording_stream *origin;
    pthread_t recorder;            /* the thread that records */
    int graphs, launches, moments; /* the last: events that are part of graphs */
    int fail_in;                   /* the kernel that fails, counted from now on, recorded or run; 0: none does */
} recording_device;

struct recording_stream {
    recording_device *device;
    stream *real;
    recording_graph *graph; /* its work goes there; NULL: it runs */
    int noted, joined;      /* notes of this stream in the graph; those that the origin waited for */
    recording_stream *next;
};

struct recording_event {
    recording_device *device;
    event *real;
    recording_graph *graph; /* recorded into; NULL: a plain event */
    recording_stream *of;
    int noted;
};

static inline recording_device *recording_device_of(device *d)
{
    return (recording_device *)(void *)d;
}

static inline recording_stream *recording_stream_of(stream *s)
{
    return (recording_stream *)(void *)s;
}

/* Noted down while the stream records, else run at once. */
static inline fsdp_status recording_call(stream *given, recorded_call run, const void *arguments, size_t bytes)
{
    recording_stream *s = recording_stream_of(given);
    if (!s->graph)
        return run(s, arguments);
    recording_note *n = calloc(1, sizeof *n);
    void *copy = malloc(bytes);
    if (!n || !copy) {
        free(n);
        free(copy);
        return error_set(FSDP_ERR_MEMORY, "recording a call: out of host memory");
    }
    *n = (recording_note){.run = run, .on = s, .arguments = memcpy(copy, arguments, bytes)};
    *s->graph->end = n;
    s->graph->end = &n->next;
    s->noted++;
    return FSDP_OK;
}

static inline fsdp_status recording_maybe_fail(recording_device *d, const char *kernel)
{
    if (d->fail_in > 0 && --d->fail_in == 0)
        return error_set(FSDP_ERR_DEVICE, "%s: made to fail", kernel);
    return FSDP_OK;
}

#define RECORDING_KERNEL(entry, args)                                                                                  \
    static inline fsdp_status recording_run_##entry(recording_stream *s, const void *a)                                \
    {                                                                                                                  \
        return s->device->real->kernels->entry(s->real, a);                                                            \
    }                                                                                                                  \
    static inline fsdp_status recording_##entry(stream *s, const args *a)                                              \
    {                                                                                                                  \
        FSDP_TRY(recording_maybe_fail(recording_stream_of(s)->device, #entry));                                        \
        return recording_call(s, recording_run_##entry, a, sizeof *a);                                                 \
    }
#define RECORDING_KERNEL_WITH_WORKSPACE(entry, args)                                                                   \
    RECORDING_KERNEL(entry, args)                                                                                      \
    static inline size_t recording_##entry##_workspace(const device *d, const args *a)                                 \
    {                                                                                                                  \
        const device *real = ((const recording_device *)(const void *)d)->real;                                        \
        return real->kernels->entry##_workspace(real, a);                                                              \
    }
KERNELS(RECORDING_KERNEL, RECORDING_KERNEL_WITH_WORKSPACE)

#define RECORDING_ENTRY(entry, args) .entry = recording_##entry,
#define RECORDING_ENTRY_WITH_WORKSPACE(entry, args)                                                                    \
    .entry = recording_##entry, .entry##_workspace = recording_##entry##_workspace,
static const kernel_table recording_kernels = {KERNELS(RECORDING_ENTRY, RECORDING_ENTRY_WITH_WORKSPACE)};

typedef struct recording_transfer {
    void *to;
    const void *from; /* NULL: zeros */
    size_t bytes;
} recording_transfer;

static inline fsdp_status recording_run_transfer(recording_stream *s, const void *arguments)
{
    const recording_transfer *t = arguments;
    device *real = s->device->real;
    return t->from ? real->copy(s->real, t->to, t->from, t->bytes) : real->zero(s->real, t->to, t->bytes);
}

static inline fsdp_status recording_copy(stream *s, void *to, const void *from, size_t bytes)
{
    recording_transfer t = {to, from, bytes};
    return bytes ? recording_call(s, recording_run_transfer, &t, sizeof t) : FSDP_OK;
}

static inline fsdp_status recording_zero(stream *s, void *to, size_t bytes)
{
    recording_transfer t = {to, NULL, bytes};
    return bytes ? recording_call(s, recording_run_transfer, &t, sizeof t) : FSDP_OK;
}

/* ---- Memory, streams, events ---- */

static inline bool recording_here(const recording_device *d)
{
    return d->open && pthread_equal(d->recorder, pthread_self());
}

static inline fsdp_status recording_allocate(device *given, memory_kind kind, size_t bytes, void **out)
{
    recording_device *d = recording_device_of(given);
    *out = NULL;
    if (recording_here(d))
        return error_set(FSDP_ERR_STATE, "memory is allocated while a graph is recorded");
    FSDP_TRY(d->real->allocate(d->real, kind, bytes, out));
    memset(*out, 0xa5, bytes); /* contents are undefined: nobody may count on zeros */
    return FSDP_OK;
}

static inline void recording_release(device *d, memory_kind kind, void *memory, size_t bytes)
{
    device *real = recording_device_of(d)->real;
    real->release(real, kind, memory, bytes);
}

static inline fsdp_status recording_stream_create(device *given, int priority, stream **out)
{
    recording_device *d = recording_device_of(given);
    recording_stream *s = calloc(1, sizeof *s);
    if (!s)
        return error_set(FSDP_ERR_MEMORY, "creating a stream: out of host memory");
    fsdp_status status = d->real->stream_create(d->real, priority, &s->real);
    if (status != FSDP_OK) {
        free(s);
        return status;
    }
    s->device = d;
    s->next = d->streams;
    d->streams = s;
    *out = (stream *)(void *)s;
    return FSDP_OK;
}

static inline void recording_stream_free(stream *given)
{
    recording_stream *s = recording_stream_of(given), **link;
    if (!s)
        return;
    for (link = &s->device->streams; *link != s; link = &(*link)->next) {
    }
    *link = s->next;
    s->device->real->stream_free(s->real);
    free(s);
}

static inline fsdp_status recording_stream_synchronize(stream *s)
{
    if (recording_stream_of(s)->graph)
        return error_set(FSDP_ERR_STATE, "a stream is waited for while a graph is recorded on it");
    return FSDP_OK;
}

static inline fsdp_status recording_event_create(device *d, event **out)
{
    recording_event *e = calloc(1, sizeof *e);
    device *real = recording_device_of(d)->real;
    *out = (event *)(void *)e;
    if (!e)
        return error_set(FSDP_ERR_MEMORY, "creating an event: out of host memory");
    e->device = recording_device_of(d);
    return real->event_create(real, &e->real);
}

static inline void recording_event_free(event *given)
{
    recording_event *e = (recording_event *)(void *)given;
    if (e)
        e->device->real->event_free(e->real);
    free(e);
}

static inline fsdp_status recording_event_record(stream *on, event *given)
{
    recording_stream *s = recording_stream_of(on);
    recording_event *e = (recording_event *)(void *)given;
    e->graph = s->graph;
    e->of = s;
    e->noted = s->noted;
    return s->graph ? FSDP_OK : s->device->real->event_record(s->real, e->real);
}

/* A stream that waits for an event of the recording takes part in it from there on. */
static inline fsdp_status recording_stream_wait(stream *waiting, event *given)
{
    recording_stream *s = recording_stream_of(waiting);
    recording_event *e = (recording_event *)(void *)given;
    if (!e->graph && !s->graph)
        return FSDP_OK;
    if (!e->graph)
        return error_set(FSDP_ERR_STATE, "a stream that records waits for work outside its graph");
    if (e->graph != s->device->open)
        return error_set(FSDP_ERR_STATE, "a stream waits for an event of a graph that was recorded before");
    s->graph = e->graph;
    if (s == s->device->origin && e->noted > e->of->joined)
        e->of->joined = e->noted;
    return FSDP_OK;
}

static inline fsdp_status recording_event_elapsed(event *from, event *to, double *milliseconds)
{
    recording_event *first = (recording_event *)(void *)from, *second = (recording_event *)(void *)to;
    if (first->graph || second->graph)
        return error_set(FSDP_ERR_STATE, "time asked of an event of a graph");
    return first->device->real->event_elapsed(first->real, second->real, milliseconds);
}

static inline fsdp_status recording_event_done(event *e, bool *done)
{
    if (((recording_event *)(void *)e)->graph)
        return error_set(FSDP_ERR_STATE, "asking for an event of a graph");
    *done = true;
    return FSDP_OK;
}

/* ---- Graphs ---- */

static inline void recording_graph_free(graph *given)
{
    recording_graph *g = (recording_graph *)(void *)given;
    for (recording_note *n = g ? g->first : NULL, *next; n; n = next) {
        next = n->next;
        free(n->arguments);
        free(n);
    }
    free(g);
}

static inline fsdp_status recording_graph_begin(stream *given)
{
    recording_stream *s = recording_stream_of(given);
    recording_device *d = s->device;
    if (d->open)
        return error_set(FSDP_ERR_STATE, "a graph is already being recorded");
    recording_graph *g = calloc(1, sizeof *g);
    if (!g)
        return error_set(FSDP_ERR_MEMORY, "recording a graph: out of host memory");
    g->end = &g->first;
    d->open = s->graph = g;
    d->origin = s;
    d->recorder = pthread_self();
    return FSDP_OK;
}

static inline fsdp_status recording_graph_end(stream *given, graph **out)
{
    recording_stream *s = recording_stream_of(given);
    recording_device *d = s->device;
    if (!d->open || d->origin != s)
        return error_set(FSDP_ERR_STATE, "no graph is being recorded on this stream");
    recording_graph *g = d->open;
    bool apart = false;
    for (recording_stream *other = d->streams; other; other = other->next) {
        apart |= other != s && other->graph == g && other->joined < other->noted;
        other->graph = NULL;
        other->noted = other->joined = 0;
    }
    d->open = NULL;
    if (apart) {
        recording_graph_free((graph *)(void *)g);
        return error_set(FSDP_ERR_STATE, "a graph ends with work of a stream that nobody waits for");
    }
    d->graphs++;
    *out = (graph *)(void *)g;
    return FSDP_OK;
}

static inline bool recording_is_recording(const stream *s)
{
    return ((const recording_stream *)(const void *)s)->graph;
}

static inline fsdp_status recording_run_event(recording_stream *s, const void *arguments)
{
    return s->device->real->event_record(s->real, *(event *const *)arguments);
}

static inline fsdp_status recording_event_record_in_graph(stream *s, event *e)
{
    event *real = ((recording_event *)(void *)e)->real;
    if (!recording_stream_of(s)->graph)
        return error_set(FSDP_ERR_STATE, "an event is to be part of a graph, and none is being recorded");
    recording_stream_of(s)->device->moments++;
    return recording_call(s, recording_run_event, &real, sizeof(event *));
}

static inline fsdp_status recording_graph_launch(stream *given, graph *g)
{
    recording_device *d = recording_stream_of(given)->device;
    if (d->open)
        return error_set(FSDP_ERR_STATE, "a graph is launched while another is recorded");
    for (recording_note *n = ((recording_graph *)(void *)g)->first; n; n = n->next)
        FSDP_TRY(n->run(n->on, n->arguments));
    d->launches++;
    return FSDP_OK;
}

/* ---- Masters as halves ---- */

static inline void recording_split(int64_t n, const float *whole, uint16_t *high, uint16_t *low)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t rest;
        high[i] = (uint16_t)halves_split(float_bits_of(whole[i]), &rest);
        low[i] = (uint16_t)rest;
    }
}

static inline void recording_join(int64_t n, float *whole, const uint16_t *high, const uint16_t *low)
{
    for (int64_t i = 0; i < n; i++)
        whole[i] = float_bits_to(halves_join(high[i], low[i]));
}

static inline fsdp_status recording_run_halves(recording_stream *s, const void *arguments)
{
    const halves_args *a = arguments;
    (void)s;
    if (a->join)
        recording_join(a->n, a->whole, a->high, a->low);
    else
        recording_split(a->n, a->whole, a->high, a->low);
    return FSDP_OK;
}

static inline fsdp_status recording_halves(stream *s, const halves_args *a)
{
    return recording_call(s, recording_run_halves, a, sizeof *a);
}

/* The CPU's kernel knows whole masters only. */
static inline fsdp_status recording_run_split_optimizer(recording_stream *s, const void *arguments)
{
    const optimizer_args *a = arguments;
    optimizer_args whole = *a;
    if (!a->low || a->n == 0)
        return recording_run_optimizer(s, a);
    whole.parameter = malloc((size_t)a->n * sizeof *whole.parameter);
    if (!whole.parameter)
        return error_set(FSDP_ERR_MEMORY, "updating masters kept as halves: out of host memory");
    recording_join(a->n, whole.parameter, a->copy.p, a->low);
    whole.copy_half = true;
    whole.low = NULL;
    fsdp_status status = recording_run_optimizer(s, &whole);
    if (status == FSDP_OK)
        recording_split(a->n, whole.parameter, a->copy.p, a->low);
    free(whole.parameter);
    return status;
}

static inline fsdp_status recording_split_optimizer(stream *s, const optimizer_args *a)
{
    FSDP_TRY(recording_maybe_fail(recording_stream_of(s)->device, "optimizer"));
    return recording_call(s, recording_run_split_optimizer, a, sizeof *a);
}

static inline void recording_split_masters(device *given)
{
    recording_device *d = recording_device_of(given);
    d->base.halves = recording_halves;
    d->kernels.optimizer = recording_split_optimizer;
}

/* ---- Opening ---- */

static inline void recording_close(device *given)
{
    recording_device *d = recording_device_of(given);
    device_close(d->real);
    free(d);
}

/* Takes `real`, a CPU device, on success. */
static inline fsdp_status recording_device_open(device *real, device **out)
{
    recording_device *d = calloc(1, sizeof *d);
    if (!d)
        return error_set(FSDP_ERR_MEMORY, "opening a recording device: out of host memory");
    d->real = real;
    d->base = *real;
    d->base.name = "recording";
    d->base.own_memory = true; /* treated as a GPU: nothing of the host is read by recorded work */
    d->kernels = recording_kernels;
    d->base.kernels = &d->kernels;
    d->base.allocate = recording_allocate;
    d->base.release = recording_release;
    d->base.stream_create = recording_stream_create;
    d->base.stream_free = recording_stream_free;
    d->base.stream_synchronize = recording_stream_synchronize;
    d->base.event_create = recording_event_create;
    d->base.event_free = recording_event_free;
    d->base.event_record = recording_event_record;
    d->base.stream_wait = recording_stream_wait;
    d->base.event_elapsed = recording_event_elapsed;
    d->base.event_done = recording_event_done;
    d->base.copy = recording_copy;
    d->base.zero = recording_zero;
    d->base.graph_begin = recording_graph_begin;
    d->base.graph_end = recording_graph_end;
    d->base.graph_launch = recording_graph_launch;
    d->base.graph_free = recording_graph_free;
    d->base.is_recording = recording_is_recording;
    d->base.event_record_in_graph = recording_event_record_in_graph;
    d->base.close = recording_close;
    *out = &d->base;
    return FSDP_OK;
}

/* As fsdp_world_open with device "cpu", but everything above the device runs on a recording one. */
static inline fsdp_status recording_world_open(const fsdp_world_config *given, fsdp_world **out)
{
    fsdp_world_config config = *given;
    fsdp_world *w;
    config.device = "cpu";
    FSDP_TRY(fsdp_world_open(&config, &w));
    device *real = w->dev, *wrapped = NULL;
    fsdp_status status = recording_device_open(real, &wrapped);
    if (status == FSDP_OK) {
        real->stream_free(w->compute);
        w->compute = NULL;
        w->dev = w->comm->config.device = wrapped;
        status = wrapped->stream_create(wrapped, 0, &w->compute);
    }
    if (status != FSDP_OK) {
        fsdp_world_close(w);
        return status;
    }
    *out = w;
    return FSDP_OK;
}

#endif
