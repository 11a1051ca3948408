/* The recorder: the device's own records, or events around the operations of one stream. Clocks and names, too. */
#include "device/activity.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"

enum { NAME_BYTES = 64, MAX_DEPTH = 8, MAX_SPANS = 1 << 16 };

/* An operation or a wait on the stream, between two events. */
typedef struct timed_span {
    char name[NAME_BYTES];
    activity_kind kind;
    int64_t launched_ns;
    event *begin, *end; /* NULL where recording failed */
} timed_span;

struct activity_recorder {
    device *dev;
    stream *on;
    char source[320];
    bool by_events, failed;
    pthread_t owner; /* other threads (a save) do not use the stream */
    event *zero;     /* recorded when the host's clock said zero_ns */
    int64_t zero_ns;
    timed_span *spans;
    int n_spans, capacity;
    int open[MAX_DEPTH], depth; /* spans that have not ended */
};

/* ---- clocks and names ---- */

int64_t clock_map(clock_pair begin, clock_pair end, int64_t theirs)
{
    int64_t span = end.theirs - begin.theirs, passed = theirs - begin.theirs;
    if (span <= 0)
        return begin.ours + passed;
    double drift = (double)(end.ours - begin.ours - span) / (double)span;
    return begin.ours + passed + (int64_t)(drift * (double)passed);
}

/* One length-prefixed identifier of a mangled name, appended to `out`; NULL: there is none at `at`. */
static const char *take_identifier(const char *at, char *out, size_t bytes)
{
    char *end;
    if (*at < '1' || *at > '9')
        return NULL;
    unsigned long length = strtoul(at, &end, 10);
    if (length > strlen(end))
        return NULL;
    bool anonymous = length >= 10 && strncmp(end, "_GLOBAL__N", 10) == 0;
    size_t used = strlen(out);
    if (!anonymous)
        snprintf(out + used, bytes - used, "%s%.*s", used ? "::" : "", (int)length, end);
    return end + length;
}

/* Enough of the Itanium mangling for names of kernels: _Z3addPf, _ZN7cutlass6KernelI...; what follows is left out. */
void activity_plain_name(const char *symbol, char *out, size_t bytes)
{
    const char *at = symbol;
    out[0] = 0;
    if (strncmp(at, "_Z", 2) == 0) {
        bool nested = at[2] == 'N';
        at += nested ? 3 : 2;
        at += *at == 'L'; /* of this file alone */
        do
            at = take_identifier(at, out, bytes);
        while (at && nested);
    }
    if (!out[0])
        snprintf(out, bytes, "%.*s", (int)strcspn(symbol, "(<"), symbol);
}

/* ---- events ---- */

static fsdp_status open_span(activity_recorder *r, const hook_event *e)
{
    if (r->n_spans == r->capacity) {
        int wanted = r->capacity ? 2 * r->capacity : 1024;
        timed_span *grown = realloc(r->spans, (size_t)wanted * sizeof *grown);
        if (!grown)
            return error_set(FSDP_ERR_MEMORY, "timing operations: out of host memory");
        r->spans = grown;
        r->capacity = wanted;
    }
    timed_span *s = &r->spans[r->n_spans];
    *s = (timed_span){.kind = e->kind == HOOK_WAIT ? ACTIVITY_WAIT : ACTIVITY_KERNEL, .launched_ns = e->time_ns};
    bool op = e->kind == HOOK_OP && e->detail; /* a wait has the name of the collective, whichever unit's it is */
    snprintf(s->name, sizeof s->name, "%.40s%s%.20s", e->name, op ? "." : "", op ? e->detail : "");
    r->open[r->depth++] = r->n_spans++;
    FSDP_TRY(r->dev->event_create(r->dev, &s->begin));
    return r->dev->event_record(r->on, s->begin);
}

static fsdp_status close_span(activity_recorder *r)
{
    timed_span *s = &r->spans[r->open[--r->depth]];
    FSDP_TRY(r->dev->event_create(r->dev, &s->end));
    return r->dev->event_record(r->on, s->end);
}

/* The first failure ends the recording, not the step. */
static void on_event(void *context, const hook_event *e)
{
    activity_recorder *r = context;
    fsdp_status status = FSDP_OK;
    if ((e->kind != HOOK_OP && e->kind != HOOK_WAIT) || e->lane != 0 || !pthread_equal(r->owner, pthread_self()) ||
        r->failed)
        return;
    if (e->moment == HOOK_BEGIN && r->depth < MAX_DEPTH && r->n_spans < MAX_SPANS)
        status = open_span(r, e);
    else if (e->moment == HOOK_END && r->depth > 0)
        status = close_span(r);
    r->failed = status != FSDP_OK;
}

static fsdp_status start_events(activity_recorder *r)
{
    device *d = r->dev;
    r->by_events = true;
    r->owner = pthread_self();
    FSDP_TRY(d->event_create(d, &r->zero));
    FSDP_TRY(d->stream_synchronize(r->on));
    int64_t before = clock_nanoseconds();
    FSDP_TRY(d->event_record(r->on, r->zero));
    FSDP_TRY(d->stream_synchronize(r->on));
    r->zero_ns = before + (clock_nanoseconds() - before) / 2;
    return hooks_add(on_event, r);
}

static fsdp_status give_out_spans(const activity_recorder *r, activity_sink sink, void *context)
{
    FSDP_TRY(r->dev->stream_synchronize(r->on));
    for (int i = 0; i < r->n_spans; i++) {
        const timed_span *s = &r->spans[i];
        double begin, end;
        if (!s->begin || !s->end)
            continue;
        FSDP_TRY(r->dev->event_elapsed(r->zero, s->begin, &begin));
        FSDP_TRY(r->dev->event_elapsed(r->zero, s->end, &end));
        device_activity a = {.kind = s->kind,
                             .name = s->name,
                             .begin_ns = r->zero_ns + (int64_t)(begin * 1e6),
                             .end_ns = r->zero_ns + (int64_t)(end * 1e6),
                             .launched_ns = s->launched_ns};
        sink(context, &a);
    }
    return FSDP_OK;
}

static void recorder_free(activity_recorder *r)
{
    if (r->by_events)
        hooks_remove(on_event, r);
    for (int i = 0; i < r->n_spans; i++) {
        if (r->spans[i].begin)
            r->dev->event_free(r->spans[i].begin);
        if (r->spans[i].end)
            r->dev->event_free(r->spans[i].end);
    }
    if (r->zero)
        r->dev->event_free(r->zero);
    free(r->spans);
    free(r);
}

/* ---- either ---- */

fsdp_status activity_start(device *d, stream *s, activity_recorder **out)
{
    *out = NULL;
    if (!d->own_memory)
        return FSDP_OK;
    activity_recorder *r = calloc(1, sizeof *r);
    if (!r)
        return error_set(FSDP_ERR_MEMORY, "recording what a device does: out of host memory");
    r->dev = d;
    r->on = s;
    if (d->activity_begin && d->activity_begin(d) == FSDP_OK) {
        snprintf(r->source, sizeof r->source, "CUPTI");
        *out = r;
        return FSDP_OK;
    }
    snprintf(r->source, sizeof r->source, "events (%.300s)", d->activity_begin ? fsdp_last_error() : "no records");
    fsdp_status status = start_events(r);
    if (status != FSDP_OK)
        recorder_free(r);
    else
        *out = r;
    return status;
}

const char *activity_source(const activity_recorder *r)
{
    return r->source;
}

bool activity_has_records(const activity_recorder *r)
{
    return !r->by_events;
}

fsdp_status activity_stop(activity_recorder *r, activity_sink sink, void *context)
{
    if (!r)
        return FSDP_OK;
    fsdp_status status = FSDP_OK;
    if (!r->by_events)
        status = r->dev->activity_end(r->dev, sink, context);
    else if (sink)
        status = give_out_spans(r, sink, context);
    recorder_free(r);
    return status;
}
