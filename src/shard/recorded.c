/* Recording and launching of graphs, and the cutting of programs into stretches that can be recorded. */
#include "shard/recorded.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/hooks.h"

/* A launch of a graph costs about as much as this many launches of kernels. */
enum { SHORTEST_RECORDED = 3 };

void recorded_forget(device *dev, recorded_work *r)
{
    if (r->graph)
        dev->graph_free(r->graph);
    *r = (recorded_work){NULL, false};
}

fsdp_status recorded_run(device *dev, stream *s, recorded_work *r, recordable work, void *context)
{
    if (!dev->graph_begin || hooks_kinds >> HOOK_OP & 1)
        return work(context);
    if (!r->graph && !r->ran) {
        r->ran = true;
        return work(context);
    }
    if (!r->graph) {
        FSDP_TRY(dev->graph_begin(s));
        fsdp_status status = work(context), ended = dev->graph_end(s, &r->graph);
        FSDP_TRY(status);
        FSDP_TRY(ended);
    }
    return dev->graph_launch(s, r->graph);
}

static bool stays_outside(const instruction *step)
{
    return !step->n || step->n->op->meets_peers;
}

/* Where the stretch that begins with instruction `first` ends; *next: the first event behind `first`. */
static int stretch_end(const program *p, const schedule *s, int first, int *next)
{
    int end = first + 1;
    while (*next < s->n_events && s->events[*next].index <= first)
        (*next)++;
    int limit = *next < s->n_events ? s->events[*next].index : program_length(p);
    bool outside = stays_outside(program_at(p, first));
    while (end < limit && !outside && !stays_outside(program_at(p, end)))
        end++;
    return end;
}

fsdp_status stretches_cut(const program *p, const schedule *s, stretches *out)
{
    int length = program_length(p), next = 0;
    *out = (stretches){calloc((size_t)length + 1, sizeof *out->list), 0};
    if (!out->list)
        return error_set(FSDP_ERR_MEMORY, "cutting a program of %d instructions: out of host memory", length);
    for (int first = 0, end; first < length; first = end) {
        end = stretch_end(p, s, first, &next);
        bool worth = end - first >= SHORTEST_RECORDED && !stays_outside(program_at(p, first));
        out->list[out->n++] = (stretch){.first = first, .end = end, .recordable = worth};
    }
    return FSDP_OK;
}

void stretches_forget(device *dev, stretches *s)
{
    for (int i = 0; i < s->n; i++) {
        recorded_forget(dev, &s->list[i].work[0]);
        recorded_forget(dev, &s->list[i].work[1]);
    }
}

void stretches_free(device *dev, stretches *s)
{
    stretches_forget(dev, s);
    free(s->list);
    *s = (stretches){NULL, 0};
}
