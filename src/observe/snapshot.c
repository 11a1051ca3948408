/* Keeps the newest snapshot under a lock. */
#include "observe/snapshot.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/record/hooks.h"

struct run_snapshot {
    pthread_mutex_t lock;
    int n;
    bool filled;
    step_figures figures;
    rank_snapshot ranks[];
};

fsdp_status snapshot_new(int n_ranks, run_snapshot **out)
{
    *out = calloc(1, sizeof **out + (size_t)n_ranks * sizeof(rank_snapshot));
    if (!*out)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a snapshot of %d ranks", n_ranks);
    (*out)->n = n_ranks;
    pthread_mutex_init(&(*out)->lock, NULL);
    return FSDP_OK;
}

void snapshot_free(run_snapshot *s)
{
    if (s)
        pthread_mutex_destroy(&s->lock);
    free(s);
}

void snapshot_put(run_snapshot *s, const step_figures *f, const rank_snapshot *ranks)
{
    pthread_mutex_lock(&s->lock);
    s->figures = *f;
    s->figures.times = NULL; /* the caller's */
    memcpy(s->ranks, ranks, (size_t)s->n * sizeof *ranks);
    s->filled = true;
    pthread_mutex_unlock(&s->lock);
}

bool snapshot_read(run_snapshot *s, step_figures *f, rank_snapshot *ranks)
{
    pthread_mutex_lock(&s->lock);
    bool filled = s->filled;
    *f = s->figures;
    memcpy(ranks, s->ranks, (size_t)s->n * sizeof *ranks);
    pthread_mutex_unlock(&s->lock);
    return filled;
}

/* The newest collective that this rank has called; it is among the last few events. */
static void find_collective(const ring *r, rank_snapshot *out)
{
    uint64_t next = atomic_load(&r->next);
    for (uint64_t back = 1; back <= 64 && back <= next; back++) {
        ring_event e;
        uint64_t words[RING_WORDS];
        const _Atomic uint64_t *from = r->events[(next - back) % RING_EVENTS];
        for (int i = 0; i < RING_WORDS; i++)
            words[i] = atomic_load_explicit(&from[i], memory_order_acquire);
        memcpy(&e, words, sizeof e);
        if (e.number != next - back + 1 || e.same_number != e.number || e.kind != HOOK_COLLECTIVE ||
            e.moment != HOOK_INSTANT)
            continue;
        size_t name = strnlen(e.name, sizeof e.name), subject = strnlen(e.subject, sizeof e.subject);
        memcpy(out->collective, e.name, name);
        if (subject) {
            memcpy(out->collective + name, " of ", 4);
            memcpy(out->collective + name + 4, e.subject, subject);
        }
        return;
    }
}

rank_snapshot snapshot_of_rank(int64_t step)
{
    rank_snapshot s;
    int64_t laps[LAP_COUNT];
    const ring *r = ring_own();
    memset(&s, 0, sizeof s); /* it travels: padding, too */
    s.step = step;
    laps_take(laps);
    for (int i = 0; i < LAP_COUNT; i++)
        s.seconds[i] = (float)((double)laps[i] * 1e-9);
    if (!r)
        return s;
    s.n_events = atomic_load(&r->next);
    s.sequence = atomic_load(&r->groups[0].called);
    find_collective(r, &s);
    return s;
}
