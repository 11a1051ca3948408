#include "bench/waits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/record/hooks.h"

/* Made before the steps: while one runs, making an event may hold up the host for longer than a collective takes. */
enum { FIRST_LAPS = 2048 };

typedef struct wait_lap {
    char name[FSDP_BENCH_NAME];
    event *begin, *end;
} wait_lap;

struct bench_waits {
    device *dev;
    stream *stream;
    wait_lap *laps;
    int n, room;
    bool open; /* the last one has begun */
    fsdp_status status;
};

static fsdp_status add_room(bench_waits *w)
{
    int room = w->room ? 2 * w->room : FIRST_LAPS;
    wait_lap *laps = realloc(w->laps, (size_t)room * sizeof *laps);
    if (!laps)
        return error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
    w->laps = laps;
    for (; w->room < room; w->room++) {
        wait_lap *l = &w->laps[w->room];
        *l = (wait_lap){.begin = NULL};
        FSDP_TRY(w->dev->event_create(w->dev, &l->begin));
        fsdp_status status = w->dev->event_create(w->dev, &l->end);
        if (status != FSDP_OK) {
            w->dev->event_free(l->begin);
            return status;
        }
    }
    return FSDP_OK;
}

static fsdp_status add_lap(bench_waits *w, const hook_event *e)
{
    if (w->n == w->room)
        FSDP_TRY(add_room(w));
    wait_lap *l = &w->laps[w->n++];
    snprintf(l->name, sizeof l->name, "%s %s", e->name, e->detail ? e->detail : "");
    return w->dev->event_record(w->stream, l->begin);
}

static void listen(void *context, const hook_event *e)
{
    bench_waits *w = context;
    if (w->status != FSDP_OK)
        return;
    if (e->moment == HOOK_BEGIN)
        w->status = add_lap(w, e);
    else if (e->moment == HOOK_END && w->open)
        w->status = w->dev->event_record(w->stream, w->laps[w->n - 1].end);
    w->open = e->moment == HOOK_BEGIN;
}

static void waits_free(bench_waits *w)
{
    for (int i = 0; i < w->room; i++) {
        w->dev->event_free(w->laps[i].begin);
        w->dev->event_free(w->laps[i].end);
    }
    free(w->laps);
    free(w);
}

fsdp_status bench_waits_start(device *d, stream *s, bench_waits **out)
{
    bench_waits *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
    w->dev = d;
    w->stream = s;
    fsdp_status status = add_room(w);
    if (status == FSDP_OK)
        status = hooks_add_kind(HOOK_WAIT, listen, w);
    if (status != FSDP_OK) {
        waits_free(w);
        return status;
    }
    *out = w;
    return FSDP_OK;
}

/* Laps of one name become one part. */
static fsdp_status add_up(const bench_waits *w, int steps, fsdp_bench_part *parts, int *n)
{
    for (int i = 0, k; i < w->n; i++) {
        double milliseconds;
        FSDP_TRY(w->dev->event_elapsed(w->laps[i].begin, w->laps[i].end, &milliseconds));
        for (k = 0; k < *n && strcmp(parts[k].name, w->laps[i].name) != 0; k++)
            ;
        if (k == *n)
            memcpy(parts[(*n)++].name, w->laps[i].name, sizeof parts->name);
        parts[k].milliseconds += milliseconds / steps;
        parts[k].count++;
    }
    return FSDP_OK;
}

static int longest_first(const void *a, const void *b)
{
    const fsdp_bench_part *x = a, *y = b;
    return (x->milliseconds < y->milliseconds) - (x->milliseconds > y->milliseconds);
}

static fsdp_status report(const bench_waits *w, int steps, fsdp_bench_result *r)
{
    int n = 0;
    fsdp_bench_part *parts = calloc((size_t)w->n + 1, sizeof *parts);
    if (!parts)
        return error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
    fsdp_status status = add_up(w, steps, parts, &n);
    qsort(parts, (size_t)n, sizeof *parts, longest_first);
    for (int i = 0; i < n && status == FSDP_OK; i++) {
        parts[i].count /= steps;
        r->waits_ms += parts[i].milliseconds;
        if (i < FSDP_BENCH_WAITS)
            r->waits[r->n_waits++] = parts[i];
    }
    free(parts);
    return status;
}

fsdp_status bench_waits_end(bench_waits *w, int steps, fsdp_bench_result *r)
{
    hooks_remove(listen, w);
    fsdp_status status = w->status == FSDP_OK && steps > 0 ? report(w, steps, r) : w->status;
    waits_free(w);
    return status;
}
