/* Resolves patterns to options of parameters, and parameters to spans of ranges. Neighbours with the same options are
 * one span, so that few patterns cost few passes. */
#include "shard/step/groups.h"

#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>

#include "base/checked.h"
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

/* Adds what goes with slot `index` of the segment to the spans of its range. Muon's matrices have a span each, and all
 * that is Adafactor's. */
static void add_slot(const fsdp_optimizer_config *c, const unit_segment *segment, int index, update_range *r)
{
    const layout_slot *slot = &segment->layout->slots[index];
    const fsdp_parameter *p = slot->parameter;
    int64_t at, n, end = segment->first + segment->numel;
    layout_extent(segment->layout, index, segment->first, end, &at, &n);
    if (n == 0)
        return;
    update_span *last = r->n_spans ? &r->spans[r->n_spans - 1] : NULL, span = resolve(c, p->name, p->decay);
    span.end = at + n - segment->first;
    span.muon = update_is_muon(c->kind, p);
    span.factored = update_is_factored(c->kind, p);
    bool alone = span.muon || c->kind == FSDP_ADAFACTOR;
    if (alone) {
        span.used = min_i64(slot->offset + p->numel, end) - segment->first;
        span.from = at - slot->offset;
        span.parameter = p;
    }
    if (last && !last->parameter && !alone && last->lr_factor == span.lr_factor &&
        last->weight_decay == span.weight_decay)
        last->end = span.end;
    else
        r->spans[r->n_spans++] = span;
}

fsdp_status groups_place(const fsdp_model *m, const fsdp_optimizer_config *config, update_range *ranges, int n_ranges,
                         update_span **memory)
{
    int used = 0;
    *memory = NULL;
    if (config->n_groups < 0 || (config->n_groups > 0 && !config->groups))
        return error_set(FSDP_ERR_INPUT, "%d parameter groups, but none are there", config->n_groups);
    for (int i = 0; i < config->n_groups; i++)
        FSDP_TRY(check(m, &config->groups[i]));
    if (config->n_groups == 0 && config->kind != FSDP_MUON && config->kind != FSDP_ADAFACTOR)
        return FSDP_OK;
    update_span *spans = malloc(((size_t)m->contents.n_parameters + 1) * sizeof *spans);
    if (!spans)
        return error_set(FSDP_ERR_MEMORY, "parameter groups: out of host memory");
    for (int i = 0; i < n_ranges; i++) {
        const unit_segment *segment = &m->units[model_range_unit(m, i)].segments[0];
        ranges[i].spans = spans + used;
        for (int k = 0; k < segment->layout->n_slots; k++)
            add_slot(config, segment, k, &ranges[i]);
        used += ranges[i].n_spans;
    }
    *memory = spans;
    return FSDP_OK;
}
