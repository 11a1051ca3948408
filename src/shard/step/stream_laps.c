/* A ring of marks on a stream. Those that the stream has passed are added up when the ring is full, all of them when
 * the step ends. */
#include "shard/step/stream_laps.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* More than the work that a stream takes before the host has to wait. */
enum { MAX_MARKS = 1024 };

typedef struct stream_mark {
    event *at;
    lap opens, then; /* `then`: from `inner` on */
    inner_mark *inner;
} stream_mark;

struct stream_laps {
    device *dev;
    stream *on;
    bool open;            /* laps of a step are being marked */
    uint64_t first, next; /* marks: those from `first` on are not added up yet */
    double milliseconds[LAP_COUNT];
    int n_events;
    stream_mark marks[MAX_MARKS]; /* mark i lies at i % MAX_MARKS */
};

fsdp_status stream_laps_new(device *d, stream *s, stream_laps **out)
{
    *out = NULL;
    if (!d->own_memory)
        return FSDP_OK;
    *out = calloc(1, sizeof **out);
    if (!*out)
        return error_set(FSDP_ERR_MEMORY, "measuring a stream: out of host memory");
    (*out)->dev = d;
    (*out)->on = s;
    return FSDP_OK;
}

void stream_laps_free(stream_laps *l)
{
    if (!l)
        return;
    laps_unfollow(l);
    for (int i = 0; i < l->n_events; i++)
        l->dev->event_free(l->marks[i].at);
    free(l);
}

static void give_up(stream_laps *l)
{
    laps_unfollow(l);
    l->open = false;
}

static stream_mark *mark_at(stream_laps *l, uint64_t number)
{
    return &l->marks[number % MAX_MARKS];
}

/* From the mark `number` to the next one. */
static fsdp_status add_up(stream_laps *l, uint64_t number)
{
    const stream_mark *from = mark_at(l, number);
    inner_mark *inner = from->inner;
    double whole, until;
    FSDP_TRY(l->dev->event_elapsed(from->at, mark_at(l, number + 1)->at, &whole));
    if (!inner) {
        l->milliseconds[from->opens] += whole;
        return FSDP_OK;
    }
    inner->undivided_ms += whole;
    if (inner->newest != number)
        return FSDP_OK;
    FSDP_TRY(l->dev->event_elapsed(from->at, inner->at, &until));
    double share = until <= 0 || whole <= 0 ? 0 : until < whole ? until / whole : 1;
    l->milliseconds[from->opens] += inner->undivided_ms * share;
    l->milliseconds[from->then] += inner->undivided_ms * (1 - share);
    inner->undivided_ms = 0;
    return FSDP_OK;
}

/* What the stream has passed. */
static fsdp_status add_up_passed(stream_laps *l)
{
    bool passed = true;
    while (passed && l->first + 1 < l->next) {
        FSDP_TRY(l->dev->event_done(mark_at(l, l->first + 1)->at, &passed));
        if (passed)
            FSDP_TRY(add_up(l, l->first++));
    }
    return FSDP_OK;
}

/* Where no event is left, the time goes on belonging to the lap before. */
static fsdp_status mark(stream_laps *l, lap opens)
{
    if (l->next - l->first == MAX_MARKS)
        FSDP_TRY(add_up_passed(l));
    if (l->next - l->first == MAX_MARKS || (l->dev->is_recording && l->dev->is_recording(l->on)))
        return FSDP_OK;
    stream_mark *m = mark_at(l, l->next);
    if (!m->at) {
        FSDP_TRY(l->dev->event_create(l->dev, &m->at));
        l->n_events++;
    }
    m->opens = opens;
    m->inner = NULL;
    FSDP_TRY(l->dev->event_record(l->on, m->at));
    l->next++;
    return FSDP_OK;
}

static void on_lap(void *context, lap opens)
{
    if (mark(context, opens) != FSDP_OK)
        give_up(context);
}

void stream_laps_begin(stream_laps *l)
{
    if (!l || l->open)
        return;
    l->first = l->next = 0;
    memset(l->milliseconds, 0, sizeof l->milliseconds);
    l->open = true;
    l->open = laps_follow(on_lap, l) && l->open; /* the first mark may have failed */
}

void stream_laps_divide(stream_laps *l, inner_mark *inner, lap first, lap second)
{
    if (!l || !l->open || !inner->at || l->next == 0 || mark_at(l, l->next - 1)->opens != first)
        return;
    stream_mark *m = mark_at(l, l->next - 1);
    m->inner = inner;
    m->then = second;
    inner->newest = l->next - 1;
}

void stream_laps_end(stream_laps *l)
{
    if (l && l->open)
        on_lap(l, LAP_OTHER);
    if (l)
        laps_unfollow(l);
}

void stream_laps_settle(stream_laps *l)
{
    int64_t nanoseconds[LAP_COUNT];
    if (!l || !l->open)
        return;
    while (l->first + 1 < l->next) {
        if (add_up(l, l->first++) != FSDP_OK) {
            give_up(l);
            return;
        }
    }
    for (int i = 0; i < LAP_COUNT; i++)
        nanoseconds[i] = (int64_t)(l->milliseconds[i] * 1e6);
    l->open = false;
    laps_settle(nanoseconds);
}

fsdp_status inner_mark_record(device *d, stream *s, inner_mark *m)
{
    if (!m->at)
        FSDP_TRY(d->event_create(d, &m->at));
    return d->event_record_in_graph(s, m->at);
}

void inner_mark_free(device *d, inner_mark *m)
{
    if (m->at)
        d->event_free(m->at);
    *m = (inner_mark){.at = NULL};
}
