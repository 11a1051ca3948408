/* Resolves patterns to options of parameters, and parameters to spans of ranges. Neighbours with the same options are
 * one span, so that few patterns cost few passes. */
#include "shard/step/groups.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>

#include "base/error.h"

static fsdp_status check(const fsdp_model *m, const fsdp_optimizer_group *group)
{
    int matched = 0;
    if (!group->pattern || !isfinite(group->lr_factor) || !isfinite(group->weight_decay))
        return error_set(FSDP_ERR_INPUT, "a parameter group needs a pattern and finite options");
    for (int i = 0; i < m->contents.n_parameters; i++)
        matched +=
            m->contents.parameters[i]->trainable && fnmatch(group->pattern, m->contents.parameters[i]->name, 0) == 0;
    if (matched == 0)
        return error_set(FSDP_ERR_INPUT, "parameter group: no trained parameter matches \"%s\"", group->pattern);
    return FSDP_OK;
}

/* The options of one parameter; `decays`: it has the optimizer's weight decay where no group says otherwise. */
static update_span resolve(const fsdp_optimizer_config *c, const char *name, bool decays)
{
    update_span span = {.lr_factor = -1, .weight_decay = -1};
    for (int i = 0; i < c->n_groups; i++) {
        const fsdp_optimizer_group *group = &c->groups[i];
        if (fnmatch(group->pattern, name, 0) != 0)
            continue;
        if (span.lr_factor < 0)
            span.lr_factor = group->lr_factor;
        if (span.weight_decay < 0)
            span.weight_decay = group->weight_decay;
    }
    span.lr_factor = span.lr_factor < 0 ? 1 : span.lr_factor;
    span.weight_decay = span.weight_decay < 0 ? (decays ? c->weight_decay : 0) : span.weight_decay;
    return span;
}

static int by_place(const void *left, const void *right)
{
    const model_slice *a = left, *b = right;
    if (a->range != b->range)
        return a->range < b->range ? -1 : 1;
    return a->at < b->at ? -1 : a->at > b->at;
}

/* Adds the slice to the spans of its range; padding between slices goes with what lies before it. */
static void add_slice(update_range *r, update_span *spans, update_span span, const model_slice *slice)
{
    update_span *last = r->n_spans ? &spans[r->n_spans - 1] : NULL;
    if (!last || last->lr_factor != span.lr_factor || last->weight_decay != span.weight_decay) {
        if (last)
            last->end = slice->at;
        spans[r->n_spans++] = span;
    }
    spans[r->n_spans - 1].end = r->n;
}

fsdp_status groups_place(const fsdp_model *m, const fsdp_optimizer_config *config, update_range *ranges, int n_ranges,
                         update_span **memory)
{
    int n = model_slices(m), used = 0;
    *memory = NULL;
    if (config->n_groups < 0 || (config->n_groups > 0 && !config->groups))
        return error_set(FSDP_ERR_INPUT, "%d parameter groups, but none are there", config->n_groups);
    for (int i = 0; i < config->n_groups; i++)
        FSDP_TRY(check(m, &config->groups[i]));
    if (config->n_groups == 0)
        return FSDP_OK;
    model_slice *slices = malloc(((size_t)n + 1) * sizeof *slices);
    update_span *spans = malloc(((size_t)n + 1) * sizeof *spans);
    if (!slices || !spans) {
        free(slices);
        free(spans);
        return error_set(FSDP_ERR_MEMORY, "parameter groups: out of host memory");
    }
    for (int i = 0; i < n; i++)
        slices[i] = model_slice_at(m, i);
    qsort(slices, (size_t)n, sizeof *slices, by_place);
    for (int i = 0; i < n; i++) {
        if (slices[i].range < 0 || slices[i].range >= n_ranges) /* frozen */
            continue;
        update_range *r = &ranges[slices[i].range];
        if (r->n_spans == 0)
            r->spans = spans + used;
        int before = r->n_spans;
        add_slice(r, spans + (r->spans - spans),
                  resolve(config, slices[i].parameter->name, slices[i].at < r->decay_end), &slices[i]);
        used += r->n_spans - before;
    }
    free(slices);
    *memory = spans;
    return FSDP_OK;
}
