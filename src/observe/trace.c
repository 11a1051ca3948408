/* Pairs begins with ends while they come in, keeps what is complete in a ring, and finds which operation used what was
 * gathered. Every (lane, thread) with events is a row of the picture: two threads on one lane would otherwise overlap.
 */
#include "observe/trace.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "base/record/memory_use.h"
#include "observe/device_spans.h"

enum { DEFAULT_CAPACITY = 1 << 16, MAX_ROWS = 48, MAX_DEPTH = 16, MAX_CLASSES = 24 };

/* A thread with events on a lane, and what it has begun and not ended. */
typedef struct trace_row {
    pthread_t thread;
    int lane;
    int depth;
    trace_event open[MAX_DEPTH];
} trace_row;

typedef struct memory_class {
    char name[TRACE_NAME_BYTES];
    int64_t bytes;
} memory_class;

struct trace {
    pthread_mutex_t lock;
    bool listening, linked;
    trace_event *ring;
    size_t capacity, count, next, dropped;
    int n_classes;
    memory_class classes[MAX_CLASSES];
    int n_rows;
    trace_row rows[MAX_ROWS];
    device_spans device;
};

/* Rows are few: when they run out, further threads share the last. */
static int row_of(trace *t, int lane)
{
    pthread_t self = pthread_self();
    for (int i = 0; i < t->n_rows; i++)
        if (t->rows[i].lane == lane && pthread_equal(t->rows[i].thread, self))
            return i;
    if (t->n_rows < MAX_ROWS)
        t->n_rows++;
    trace_row *row = &t->rows[t->n_rows - 1];
    row->thread = self;
    row->lane = lane;
    return t->n_rows - 1;
}

static void keep(trace *t, const trace_event *event)
{
    t->ring[t->next] = *event;
    t->next = (t->next + 1) % t->capacity;
    if (t->count < t->capacity)
        t->count++;
    else
        t->dropped++;
}

static void begin(trace *t, int row, const trace_event *event)
{
    trace_row *r = &t->rows[row];
    if (r->depth < MAX_DEPTH)
        r->open[r->depth++] = *event;
    else
        t->dropped++;
}

/* The innermost open event of this name on the row; -1 when there is none. */
static int find_open(const trace_row *row, const trace_event *event)
{
    for (int i = row->depth - 1; i >= 0; i--)
        if (strcmp(row->open[i].name, event->name) == 0 && strcmp(row->open[i].detail, event->detail) == 0)
            return i;
    return -1;
}

/* An end usually comes on the thread of its begin; a collective may end on another thread of its lane. */
static void end(trace *t, int row, const trace_event *event)
{
    int at = find_open(&t->rows[row], event), lane = t->rows[row].lane;
    for (int i = 0; at < 0 && i < t->n_rows; i++) {
        if (t->rows[i].lane != lane)
            continue;
        at = find_open(&t->rows[i], event);
        row = i;
    }
    if (at < 0)
        return; /* begun before we listened */
    trace_row *r = &t->rows[row];
    trace_event whole = r->open[at];
    memmove(&r->open[at], &r->open[at + 1], (size_t)(r->depth - at - 1) * sizeof *r->open);
    r->depth--;
    whole.end_ns = event->end_ns;
    whole.row = (uint8_t)row;
    if (event->bytes)
        whole.bytes = event->bytes;
    keep(t, &whole);
}

/* The running sum of a class of memory. */
static void count_memory(trace *t, const char *name, int64_t bytes, int64_t now)
{
    trace_event event = {.begin_ns = now, .end_ns = now, .kind = HOOK_MEMORY, .form = TRACE_COUNTER};
    int i = 0;
    snprintf(event.name, sizeof event.name, "%s", name);
    while (i < t->n_classes && strcmp(t->classes[i].name, event.name) != 0)
        i++;
    if (i == MAX_CLASSES)
        return;
    if (i == t->n_classes) {
        memcpy(t->classes[i].name, event.name, sizeof event.name);
        t->n_classes++;
    }
    event.bytes = t->classes[i].bytes += bytes;
    keep(t, &event);
}

/* What fits, ended by a NUL; printf would cost more than the rest of noting an event. NULL: "". */
static void copy_text(char *to, size_t bytes, const char *from)
{
    if (!memccpy(to, from ? from : "", 0, bytes))
        to[bytes - 1] = 0;
}

static void on_event(void *context, const hook_event *e)
{
    trace *t = context;
    trace_event event = {.begin_ns = e->time_ns, .end_ns = e->time_ns, .bytes = e->bytes, .kind = (uint8_t)e->kind};
    copy_text(event.name, sizeof event.name, e->name);
    copy_text(event.detail, sizeof event.detail, e->detail);
    if (e->call) {
        event.sequence = e->call->sequence;
        copy_text(event.where, sizeof event.where, e->call->where);
    }
    pthread_mutex_lock(&t->lock);
    int row = row_of(t, e->lane >= 0 && e->lane < TRACE_LANES ? e->lane : 0);
    event.row = (uint8_t)row;
    event.lane = (uint8_t)t->rows[row].lane;
    if (e->kind == HOOK_MEMORY_USE) {
        count_memory(t, event.name, e->bytes, e->time_ns);
    } else if (e->kind == HOOK_MEMORY) {
        if (strcmp(event.name, "checkpoint snapshot") == 0) /* other memory is told of by its use */
            count_memory(t, event.name, e->bytes, e->time_ns);
    } else if (e->moment == HOOK_BEGIN) {
        begin(t, row, &event);
    } else if (e->moment == HOOK_END) {
        end(t, row, &event);
    } else {
        event.form = TRACE_INSTANT;
        keep(t, &event);
    }
    pthread_mutex_unlock(&t->lock);
}

fsdp_status trace_start(size_t capacity, const int64_t *uses, trace **out)
{
    *out = NULL;
    trace *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a trace");
    t->capacity = capacity ? capacity : DEFAULT_CAPACITY;
    pthread_mutex_init(&t->lock, NULL);
    t->ring = calloc(t->capacity, sizeof *t->ring);
    for (int i = 0; t->ring && uses && i < MEMORY_USES; i++)
        if (uses[i] > 0)
            count_memory(t, memory_use_names[i], uses[i], clock_nanoseconds());
    fsdp_status status = t->ring ? hooks_add(on_event, t)
                                 : error_set(FSDP_ERR_MEMORY, "out of memory for %zu events of a trace", t->capacity);
    if (status != FSDP_OK) {
        trace_free(t);
        return status;
    }
    t->listening = true;
    *out = t;
    return FSDP_OK;
}

fsdp_status trace_skip_operations(trace *t)
{
    static const hook_kind others[] = {HOOK_MEMORY, HOOK_COLLECTIVE, HOOK_UNIT, HOOK_PHASE, HOOK_WAIT, HOOK_MEMORY_USE};
    hooks_remove(on_event, t);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        FSDP_TRY(hooks_add_kind(others[i], on_event, t));
    return FSDP_OK;
}

void trace_add_device(trace *t, const trace_device_span *s)
{
    device_spans_add(&t->device, s);
}

void trace_stop(trace *t)
{
    if (t->listening)
        hooks_remove(on_event, t);
    t->listening = false;
}

void trace_free(trace *t)
{
    if (!t)
        return;
    trace_stop(t);
    pthread_mutex_destroy(&t->lock);
    device_spans_free(&t->device);
    free(t->ring);
    free(t);
}

/* ---- from a gather to its use ---- */

static trace_event *event_at(trace *t, size_t i)
{
    return &t->ring[(t->next + t->capacity - t->count + i) % t->capacity];
}

/* The unit that this collective gathers is whole from here on; -1: not any more in this trace. */
static int64_t whole_after(trace *t, size_t from, const trace_event *gather)
{
    for (size_t i = from; i < t->count; i++) {
        const trace_event *e = event_at(t, i);
        if (e->kind == HOOK_UNIT && e->begin_ns >= gather->begin_ns && strcmp(e->name, gather->detail) == 0 &&
            strcmp(e->detail, "FULL") == 0)
            return e->begin_ns;
    }
    return -1;
}

/* Operations come in the order of their ends and do not nest: the first that begins after `time` uses the unit. */
static trace_event *operation_after(trace *t, size_t from, int64_t time)
{
    for (size_t i = from; i < t->count; i++) {
        trace_event *e = event_at(t, i);
        if (e->kind == HOOK_OP && e->lane == 0 && e->form == TRACE_SPAN && e->begin_ns >= time)
            return e;
    }
    return NULL;
}

static void link_gathers(trace *t)
{
    uint32_t flow = 0;
    for (size_t i = 0; i < t->count; i++) {
        trace_event *gather = event_at(t, i);
        if (gather->kind != HOOK_COLLECTIVE || strcmp(gather->name, "all_gather") != 0 || gather->form != TRACE_SPAN)
            continue;
        int64_t whole = whole_after(t, i, gather);
        trace_event *use = whole < 0 ? NULL : operation_after(t, i, whole);
        if (use && !use->flow)
            use->flow = ++flow;
        if (use)
            gather->flow = use->flow;
    }
}

static void name_device_spans(trace *t)
{
    const trace_event **ops = calloc(2 * t->count + 1, sizeof *ops), **steps = ops + t->count;
    size_t n_ops = 0, n_steps = 0;
    for (size_t i = 0; ops && i < t->count; i++) {
        const trace_event *e = event_at(t, i);
        if (e->form == TRACE_SPAN && e->kind == HOOK_OP && e->lane == 0)
            ops[n_ops++] = e;
        if (e->form == TRACE_SPAN && e->kind == HOOK_PHASE && strcmp(e->name, "step") == 0)
            steps[n_steps++] = e;
    }
    if (ops)
        device_spans_name(&t->device, ops, n_ops, steps, n_steps);
    free(ops);
}

/* The trace itself, its rows, those of the device, the events, those of the device. */
static trace_event drawn(trace *t, size_t at)
{
    size_t n_rows = (size_t)t->n_rows, n_streams = (size_t)t->device.n_streams;
    if (at == 0)
        return (trace_event){.form = TRACE_ABOUT,
                             .bytes = (int64_t)(t->count + t->device.n),
                             .flow = (uint32_t)(t->dropped + t->device.dropped)};
    if (--at < n_rows)
        return (trace_event){.form = TRACE_ROW, .row = (uint8_t)at, .lane = (uint8_t)t->rows[at].lane};
    if ((at -= n_rows) < n_streams)
        return device_spans_row(&t->device, (int)at);
    if ((at -= n_streams) < t->count)
        return *event_at(t, at);
    return device_spans_at(&t->device, at - t->count);
}

size_t trace_take(trace *t, size_t *at, trace_event *out, size_t room)
{
    size_t n = 0, all = 1 + (size_t)t->n_rows + (size_t)t->device.n_streams + t->count + t->device.n;
    if (!t->linked) {
        link_gathers(t);
        name_device_spans(t);
        t->linked = true;
    }
    for (; n < room && *at < all; n++, ++*at)
        out[n] = drawn(t, *at);
    return n;
}
