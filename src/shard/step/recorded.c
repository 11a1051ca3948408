/* Recording and launching of graphs, and the cutting of programs into stretches that can be recorded. */
#include "shard/step/recorded.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/record/hooks.h"

/* A launch of a graph costs about as much as this many launches of kernels. */
enum { SHORTEST_RECORDED = 3 };

static void forget(device *dev, recorded_graph *one)
{
    if (one->graph)
        dev->graph_free(one->graph);
    *one = (recorded_graph){.ran = false};
}

void recorded_forget(device *dev, recorded_work *r)
{
    for (int i = 0; i < RECORDED_MAX; i++)
        forget(dev, &r->list[i]);
    r->oldest = 0;
}

/* The recording for these facts; otherwise a free place, or that of the oldest. */
static recorded_graph *find(device *dev, recorded_work *r, recorded_facts facts)
{
    uint64_t key = hash_bytes(HASH_START, facts.bytes, facts.n);
    for (int i = 0; i < RECORDED_MAX; i++) {
        if (r->list[i].ran && r->list[i].key == key)
            return &r->list[i];
    }
    recorded_graph *place = NULL;
    for (int i = 0; i < RECORDED_MAX && !place; i++)
        place = r->list[i].ran ? NULL : &r->list[i];
    if (!place) {
        place = &r->list[r->oldest];
        r->oldest = (r->oldest + 1) % RECORDED_MAX;
        forget(dev, place);
    }
    place->key = key;
    return place;
}

static fsdp_status record(device *dev, stream *s, recorded_graph *one, recordable work, const void *fixed,
                          const void *facts)
{
    char cause[1024];
    FSDP_TRY(dev->graph_begin(s));
    fsdp_status status = work(fixed, facts);
    if (status != FSDP_OK)
        snprintf(cause, sizeof cause, "%s", fsdp_last_error());
    fsdp_status ended = dev->graph_end(s, &one->graph);
    return status == FSDP_OK ? ended : error_set(status, "%s", cause);
}

fsdp_status recorded_run(device *dev, stream *s, recorded_work *r, recordable work, const void *fixed,
                         recorded_facts facts)
{
    if (!dev->graph_begin || hooks_kinds >> HOOK_OP & 1)
        return work(fixed, facts.bytes);
    recorded_graph *one = find(dev, r, facts);
    bool plainly = !one->ran;
    fsdp_status status = FSDP_OK;
    one->ran = true;
    if (plainly)
        status = work(fixed, facts.bytes);
    else if (!one->graph)
        status = record(dev, s, one, work, fixed, facts.bytes);
    if (status == FSDP_OK && !plainly)
        status = dev->graph_launch(s, one->graph);
    if (status != FSDP_OK)
        forget(dev, one);
    return status;
}

static bool stays_outside(const instruction *step)
{
    return !step->n || step->n->op->meets_peers || step->n->op->outside_graphs;
}

bool program_is_recordable(const program *p)
{
    for (int i = 0; i < program_length(p); i++) {
        const instruction *step = program_at(p, i);
        if (step->n && step->n->op->outside_graphs)
            return false;
    }
    return true;
}

/* Where the stretch that begins with instruction `first` ends; *next: the first event after `first`. */
static int stretch_end(const program *p, const schedule *s, int turn, int first, int *next)
{
    int end = first + 1;
    while (*next < s->n_events && s->events[*next].index <= first)
        (*next)++;
    int limit = *next < s->n_events ? s->events[*next].index : program_length(p);
    if (first < turn && turn < limit)
        limit = turn;
    bool outside = stays_outside(program_at(p, first));
    while (end < limit && !outside && !stays_outside(program_at(p, end)))
        end++;
    return end;
}

fsdp_status stretches_cut(const program *p, const schedule *s, int turn, stretches *out)
{
    int length = program_length(p), next = 0;
    *out = (stretches){calloc((size_t)length + 1, sizeof *out->list), 0};
    if (!out->list)
        return error_set(FSDP_ERR_MEMORY, "cutting a program of %d instructions: out of host memory", length);
    for (int first = 0, end; first < length; first = end) {
        end = stretch_end(p, s, turn, first, &next);
        bool worth = end - first >= SHORTEST_RECORDED && !stays_outside(program_at(p, first));
        out->list[out->n++] = (stretch){.first = first, .end = end, .recordable = worth};
    }
    return FSDP_OK;
}

void stretches_forget(device *dev, stretches *s)
{
    for (int i = 0; i < s->n; i++)
        recorded_forget(dev, &s->list[i].work);
}

void stretches_free(device *dev, stretches *s)
{
    stretches_forget(dev, s);
    free(s->list);
    *s = (stretches){NULL, 0};
}
