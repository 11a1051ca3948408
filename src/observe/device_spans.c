/* Operations of kernels: by the time at which the host asked for them, or by their place among kernels of the same name
 * in a step where that is known. */
#include "observe/device_spans.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SPANS = 1 << 20, FIRST_ROW = 64 };

typedef struct device_span {
    trace_event event;
    int64_t launched_ns;
    int step; /* -1: outside of all */
    bool named;
} device_span;

static int row_of(device_spans *d, uint32_t stream)
{
    int i = 0;
    while (i < d->n_streams && d->streams[i] != stream)
        i++;
    if (i == TRACE_STREAMS) /* further ones share the last */
        return i - 1;
    if (i == d->n_streams)
        d->streams[d->n_streams++] = stream;
    return i;
}

void device_spans_add(device_spans *d, const trace_device_span *s)
{
    if (d->n == d->room) {
        size_t wanted = d->room ? 2 * d->room : 1024;
        device_span *grown = wanted <= MOST_SPANS ? realloc(d->list, wanted * sizeof *grown) : NULL;
        if (!grown) {
            d->dropped++;
            return;
        }
        d->list = grown;
        d->room = wanted;
    }
    device_span *new = &d->list[d->n++];
    *new = (device_span){.launched_ns = s->launched_ns,
                         .step = -1,
                         .event = {.begin_ns = s->begin_ns,
                                   .end_ns = s->end_ns > s->begin_ns ? s->end_ns : s->begin_ns,
                                   .bytes = s->bytes,
                                   .kind = (uint8_t)s->kind,
                                   .form = TRACE_SPAN,
                                   .row = (uint8_t)(FIRST_ROW + row_of(d, s->stream)),
                                   .lane = TRACE_DEVICE_LANE}};
    snprintf(new->event.name, sizeof new->event.name, "%s", s->name);
}

static int by_begin(const void *a, const void *b)
{
    const trace_event *x = *(const trace_event *const *)a, *y = *(const trace_event *const *)b;
    return x->begin_ns < y->begin_ns ? -1 : x->begin_ns > y->begin_ns;
}

/* The one in which `time` lies, of spans in order that do not overlap; -1: none. */
static int64_t around(const trace_event **spans, size_t n, int64_t time)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (spans[middle]->begin_ns <= time)
            low = middle + 1;
        else
            high = middle;
    }
    return low > 0 && time <= spans[low - 1]->end_ns ? (int64_t)low - 1 : -1;
}

static void name_after(device_span *s, const trace_event *op)
{
    snprintf(s->event.detail, sizeof s->event.detail, "%.24s.%.20s", op->name, op->detail);
    memcpy(s->event.where, op->where, sizeof s->event.where);
    s->named = true;
}

/* By step, by name, by time. */
static int in_families(const void *a, const void *b)
{
    const device_span *x = *(device_span *const *)a, *y = *(device_span *const *)b;
    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    int names = strcmp(x->event.name, y->event.name);
    if (names != 0)
        return names;
    return x->event.begin_ns < y->event.begin_ns ? -1 : x->event.begin_ns > y->event.begin_ns;
}

/* The first of a family of kernels with one name in one step, and how many they are. */
static size_t family(device_span **sorted, size_t n, size_t from)
{
    size_t i = from + 1;
    while (i < n && sorted[i]->step == sorted[from]->step &&
           strcmp(sorted[i]->event.name, sorted[from]->event.name) == 0)
        i++;
    return i - from;
}

/* A step runs the same kernels in the same order every time: where a family has as many members as in the step that is
 * known, the members are the same in order. */
static void name_alike(device_span **known, size_t n_known, device_span **sorted, size_t n)
{
    for (size_t i = 0, k = 0, members, others; i < n; i += members) {
        members = family(sorted, n, i);
        while (k < n_known && strcmp(known[k]->event.name, sorted[i]->event.name) < 0)
            k += family(known, n_known, k);
        if (k == n_known || strcmp(known[k]->event.name, sorted[i]->event.name) != 0)
            continue;
        others = family(known, n_known, k);
        for (size_t j = 0; j < members && members == others; j++) {
            if (sorted[i + j]->named || !known[k + j]->named)
                continue;
            memcpy(sorted[i + j]->event.detail, known[k + j]->event.detail, TRACE_DETAIL_BYTES);
            memcpy(sorted[i + j]->event.where, known[k + j]->event.where, TRACE_WHERE_BYTES);
            sorted[i + j]->named = true;
        }
    }
}

/* The first step in which most kernels have a name is the one to learn from. */
static void name_by_step(device_span **sorted, size_t n, int n_steps)
{
    device_span **known = NULL;
    size_t n_known = 0;
    for (size_t at = 0, end; at < n; at = end) {
        size_t named = 0;
        for (end = at; end < n && sorted[end]->step == sorted[at]->step; end++)
            named += sorted[end]->named;
        if (sorted[at]->step < 0 || sorted[at]->step >= n_steps)
            continue;
        if (known)
            name_alike(known, n_known, sorted + at, end - at);
        else if (2 * named > end - at)
            known = sorted + at, n_known = end - at;
    }
}

void device_spans_name(device_spans *d, const trace_event **ops, size_t n_ops, const trace_event **steps,
                       size_t n_steps)
{
    device_span **sorted = calloc(d->n + 1, sizeof *sorted);
    if (d->n == 0) {
        free(sorted);
        return;
    }
    qsort(ops, n_ops, sizeof *ops, by_begin);
    qsort(steps, n_steps, sizeof *steps, by_begin);
    for (size_t i = 0; i < d->n; i++) {
        device_span *s = &d->list[i];
        int64_t op = s->launched_ns ? around(ops, n_ops, s->launched_ns) : -1;
        s->step = (int)around(steps, n_steps, s->event.begin_ns);
        if (op >= 0)
            name_after(s, ops[op]);
        if (sorted)
            sorted[i] = s;
    }
    if (sorted) { /* without memory, what is not named stays so */
        qsort(sorted, d->n, sizeof *sorted, in_families);
        name_by_step(sorted, d->n, (int)n_steps);
    }
    free(sorted);
}

trace_event device_spans_row(const device_spans *d, int stream)
{
    return (trace_event){.form = TRACE_ROW,
                         .row = (uint8_t)(FIRST_ROW + stream),
                         .lane = TRACE_DEVICE_LANE,
                         .bytes = d->streams[stream]};
}

trace_event device_spans_at(const device_spans *d, size_t i)
{
    return d->list[i].event;
}

void device_spans_free(device_spans *d)
{
    free(d->list);
    *d = (device_spans){.list = NULL};
}
