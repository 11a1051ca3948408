/* Notes events between the begin and the end of a step, and turns them into spans when they are taken. */
#include "report/live/step_recorder.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/record/hooks.h"
#include "report/run_files.h"

enum { MOST_EVENTS = 8192, MOST_UNITS = 64, MOST_OPEN = 16, NAME_BYTES = 48 };

typedef struct note {
    int64_t time;
    hook_kind kind;
    hook_moment moment;
    char name[NAME_BYTES], detail[NAME_BYTES];
} note;

typedef enum recording { IDLE, ASKED, NOTING, NOTED } recording;

struct step_recorder {
    atomic_int state;     /* recording; IDLE and NOTED: events are not for us */
    pthread_mutex_t lock; /* of the notes while NOTING */
    int n;
    note notes[MOST_EVENTS];
};

static void on_event(void *context, const hook_event *e)
{
    step_recorder *r = context;
    int state = atomic_load_explicit(&r->state, memory_order_acquire);
    if (state == IDLE || state == NOTED)
        return;
    bool of_step = e->kind == HOOK_PHASE && strcmp(e->name, "step") == 0;
    if (state == ASKED && !(of_step && e->moment == HOOK_BEGIN))
        return;
    pthread_mutex_lock(&r->lock);
    if (of_step && e->moment == HOOK_BEGIN) {
        r->n = 0;
        atomic_store(&r->state, NOTING);
    }
    if (r->n < MOST_EVENTS && atomic_load(&r->state) == NOTING) {
        note *to = &r->notes[r->n++];
        to->time = e->time_ns;
        to->kind = e->kind;
        to->moment = e->moment;
        snprintf(to->name, sizeof to->name, "%s", e->name ? e->name : "");
        snprintf(to->detail, sizeof to->detail, "%s", e->detail ? e->detail : "");
    }
    if (of_step && e->moment == HOOK_END)
        atomic_store_explicit(&r->state, NOTED, memory_order_release);
    pthread_mutex_unlock(&r->lock);
}

fsdp_status step_recorder_open(step_recorder **out)
{
    static const hook_kind kinds[] = {HOOK_PHASE, HOOK_WAIT, HOOK_COLLECTIVE, HOOK_UNIT};
    step_recorder *r = *out = calloc(1, sizeof *r);
    if (!r)
        return error_set(FSDP_ERR_MEMORY, "noting the events of a step: out of host memory");
    pthread_mutex_init(&r->lock, NULL);
    for (int i = 0; i < 4; i++)
        FSDP_TRY(hooks_add_kind(kinds[i], on_event, r));
    return FSDP_OK;
}

void step_recorder_close(step_recorder *r)
{
    if (!r)
        return;
    hooks_remove(on_event, r);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void step_recorder_ask(step_recorder *r)
{
    int idle = IDLE;
    atomic_compare_exchange_strong(&r->state, &idle, ASKED);
}

/* ---- From events to spans ---- */

/* A row of the picture, with what has begun on it and not ended. A unit's parameters are drawn in the upper half of
 * its row, its gradients in the lower. */
typedef struct track {
    char name[NAME_BYTES];
    json_t *spans;
    int64_t gather, whole, gradients, reduce; /* when it began; 0: it has not */
} track;

typedef struct picture {
    int64_t begin, end;
    track thread, others, units[MOST_UNITS];
    int n_units;
    const note *open[MOST_OPEN]; /* phases and waits */
    int n_open;
} picture;

static void add_span(const picture *p, track *t, int64_t from, int64_t to, const char *name, const char *detail,
                     int half)
{
    if (!t->spans)
        t->spans = json_array();
    json_array_append_new(t->spans, json_pack("[f, f, s, o, i]", (double)(from - p->begin) / 1e6,
                                              (double)(to - p->begin) / 1e6, name, shown_text(detail), half));
}

static track *unit_track(picture *p, const char *name, bool make)
{
    for (int i = 0; i < p->n_units; i++)
        if (strcmp(p->units[i].name, name) == 0)
            return &p->units[i];
    if (!make || p->n_units == MOST_UNITS)
        return NULL;
    track *t = &p->units[p->n_units++];
    snprintf(t->name, sizeof t->name, "%s", name);
    return t;
}

/* Ends a span that began at *since, if it did. */
static void end_span(const picture *p, track *t, int64_t *since, int64_t now, const char *name, int half)
{
    if (*since)
        add_span(p, t, *since, now, name, "", half);
    *since = 0;
}

static void draw_unit(picture *p, const note *e)
{
    track *t = unit_track(p, e->name, true);
    if (!t)
        return;
    if (strcmp(e->detail, "FULL") == 0)
        t->whole = e->time;
    else if (strcmp(e->detail, "SHARDED") == 0)
        end_span(p, t, &t->whole, e->time, "whole", 1);
    else if (strcmp(e->detail, "gradients FULL") == 0 && !t->gradients)
        t->gradients = e->time;
    else if (strcmp(e->detail, "gradients REDUCING") == 0)
        end_span(p, t, &t->gradients, e->time, "full gradient", 2);
}

static void draw_collective(picture *p, const note *e)
{
    bool gathers = strcmp(e->name, "all_gather") == 0, begins = e->moment == HOOK_BEGIN;
    track *t = unit_track(p, e->detail, gathers);
    if (t) {
        int64_t *since = gathers ? &t->gather : &t->reduce;
        if (begins)
            *since = e->time;
        else
            end_span(p, t, since, e->time, gathers ? "gather" : "reduce", gathers ? 1 : 2);
        return;
    }
    if (begins)
        p->others.reduce = e->time;
    else if (p->others.reduce) {
        add_span(p, &p->others, p->others.reduce, e->time, "other collective", e->detail[0] ? e->detail : e->name, 0);
        p->others.reduce = 0;
    }
}

/* Of phases and waits, which nest. */
static void draw_thread(picture *p, const note *e)
{
    if (e->moment == HOOK_BEGIN) {
        if (p->n_open < MOST_OPEN)
            p->open[p->n_open++] = e;
        return;
    }
    for (int i = p->n_open - 1; i >= 0; i--) {
        const note *begun = p->open[i];
        if (begun->kind != e->kind || strcmp(begun->name, e->name) != 0)
            continue;
        p->n_open = i;
        if (strcmp(e->name, "step") != 0)
            add_span(p, &p->thread, begun->time, e->time, e->kind == HOOK_WAIT ? "wait" : e->name, e->detail, 0);
        return;
    }
}

static void put_track(json_t *tracks, track *t, const char *name)
{
    if (t->spans)
        json_array_append_new(tracks, json_pack("{s:o, s:o}", "name", shown_text(name), "spans", t->spans));
}

/* Phases end after the waits in them: they are put before them, so that waits are drawn on top. */
static json_t *phases_first(json_t *spans)
{
    json_t *sorted = json_array(), *span;
    size_t i;
    for (int waits = 0; waits < 2; waits++)
        json_array_foreach(spans, i, span)
        {
            if ((strcmp(json_string_value(json_array_get(span, 2)), "wait") == 0) == waits)
                json_array_append(sorted, span);
        }
    json_decref(spans);
    return sorted;
}

static json_t *spans_of(const step_recorder *r)
{
    picture *p = calloc(1, sizeof *p);
    if (!p || r->n < 2) {
        free(p);
        return NULL;
    }
    json_t *tracks = json_array();
    p->begin = r->notes[0].time;
    p->end = r->notes[r->n - 1].time;
    for (int i = 0; i < r->n; i++) {
        const note *e = &r->notes[i];
        if (e->kind == HOOK_UNIT)
            draw_unit(p, e);
        else if (e->kind == HOOK_COLLECTIVE)
            draw_collective(p, e);
        else
            draw_thread(p, e);
    }
    for (int i = 0; i < p->n_units; i++) {
        end_span(p, &p->units[i], &p->units[i].whole, p->end, "whole", 1);
        end_span(p, &p->units[i], &p->units[i].gradients, p->end, "full gradient", 2);
    }
    if (p->thread.spans)
        p->thread.spans = phases_first(p->thread.spans);
    put_track(tracks, &p->thread, "training thread");
    for (int i = 0; i < p->n_units; i++)
        put_track(tracks, &p->units[i], p->units[i].name);
    put_track(tracks, &p->others, "other collectives");
    json_t *all = json_pack("{s:f, s:o}", "length", (double)(p->end - p->begin) / 1e6, "tracks", tracks);
    free(p);
    return all;
}

json_t *step_recorder_take(step_recorder *r)
{
    if (atomic_load_explicit(&r->state, memory_order_acquire) != NOTED)
        return NULL;
    json_t *spans = spans_of(r);
    atomic_store_explicit(&r->state, IDLE, memory_order_release);
    return spans;
}
