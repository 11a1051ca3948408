/* Finds the peak of a step, sums up what stands there, and plans the remedies. */
#include "plan/detail.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

const char *const picture_class_names[PICTURE_CLASSES] = {
    [PICTURE_GATHERED] = "gathered units",
    [PICTURE_FULL_GRADIENTS] = "full gradients",
    [PICTURE_INPUTS] = "inputs",
    [PICTURE_ACTIVATIONS] = "activations",
    [PICTURE_RECOMPUTED] = "recomputed activations",
    [PICTURE_ACTIVATION_GRADIENTS] = "gradients of activations",
    [PICTURE_WORKSPACE] = "workspace",
};

const char *const plan_resident_names[PLAN_RESIDENTS] = {"parameters", "low-precision copies", "gradients", "optimizer",
                                                         "buffers",    "communication",        "validation"};

size_t plan_resident(const memory_plan *p, int index)
{
    const size_t bytes[PLAN_RESIDENTS] = {
        p->parameters, p->copies, p->gradients, p->optimizer, p->buffers, p->communication, p->validation + p->shadow};
    return bytes[index];
}

static void find_peak(plan_detail *d)
{
    for (int i = 0; i <= d->picture.length; i++) {
        int64_t sum = 0;
        for (int k = 0; k < PICTURE_CLASSES; k++)
            sum += d->series[i * PICTURE_CLASSES + k];
        if ((size_t)sum > d->peak_bytes) {
            d->peak_bytes = (size_t)sum;
            d->peak = i;
        }
    }
}

static int by_kind(const void *a, const void *b)
{
    const peak_value *x = a, *y = b;
    return x->class != y->class ? (int)x->class - (int)y->class : strcmp(x->name, y->name);
}

static int by_bytes(const void *a, const void *b)
{
    const peak_value *x = a, *y = b;
    return x->bytes != y->bytes ? (x->bytes < y->bytes ? 1 : -1) : by_kind(a, b);
}

static fsdp_status list_values(plan_detail *d)
{
    int n = 0;
    d->values = calloc((size_t)d->picture.n_lives + 1, sizeof *d->values);
    if (!d->values)
        return error_set(FSDP_ERR_MEMORY, "planning: out of host memory");
    for (int i = 0; i < d->picture.n_lives; i++) {
        const picture_life *l = &d->picture.lives[i];
        if (l->first <= d->peak && d->peak <= l->last)
            d->values[n++] = (peak_value){l->class, l->name, 1, l->bytes};
    }
    qsort(d->values, (size_t)n, sizeof *d->values, by_kind);
    for (int i = 0; i < n; i++) {
        peak_value *last = d->n_values ? &d->values[d->n_values - 1] : NULL;
        if (last && by_kind(last, &d->values[i]) == 0) {
            last->count++;
            last->bytes += d->values[i].bytes;
        } else {
            d->values[d->n_values++] = d->values[i];
        }
    }
    qsort(d->values, (size_t)d->n_values, sizeof *d->values, by_bytes);
    return FSDP_OK;
}

/* Plans one change. What cannot be planned (a group that does not divide the ranks, Muon over host memory) is no
 * remedy; running out of memory is a failure. */
static fsdp_status try_remedy(plan_detail *d, const workload *work, const fsdp_config *config, const plan_world *world,
                              const char *flags)
{
    memory_plan plan;
    fsdp_status status = workload_plan(work, config, world, &plan);
    if (status == FSDP_ERR_INPUT || status == FSDP_ERR_UNSUPPORTED)
        return FSDP_OK;
    FSDP_TRY(status);
    bool saves =
        plan.total < d->plan.total && (world->dev->own_memory || plan.total + plan.host < d->plan.total + d->plan.host);
    if (!saves || d->n_remedies == PLAN_REMEDIES)
        return FSDP_OK;
    plan_remedy *r = &d->remedies[d->n_remedies++];
    *r = (plan_remedy){.total = plan.total, .host = plan.host, .fits = plan_fits(&plan, world->dev, d->limit)};
    snprintf(r->flags, sizeof r->flags, "%s", flags);
    return FSDP_OK;
}

static fsdp_status try_strategies(plan_detail *d)
{
    char flags[64];
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        fsdp_config c = *d->config;
        c.strategy = (fsdp_strategy)s;
        if (s == (int)d->config->strategy || !plan_strategy_applies(c.strategy, &c, &d->world))
            continue;
        snprintf(flags, sizeof flags, "--sharding_strategy %s", fsdp_strategy_name(c.strategy));
        FSDP_TRY(try_remedy(d, d->work, &c, &d->world, flags));
    }
    return FSDP_OK;
}

static fsdp_status try_checkpointing(plan_detail *d)
{
    static const struct {
        fsdp_checkpointing level;
        bool offload;
        const char *flags;
    } levels[] = {{FSDP_CHECKPOINT_SELECTIVE, false, "--activation_checkpointing selective"},
                  {FSDP_CHECKPOINT_FULL, false, "--activation_checkpointing full"},
                  {FSDP_CHECKPOINT_FULL, true, "--activation_checkpointing full --offload_activations"}};
    for (size_t i = 0; i < sizeof levels / sizeof *levels && d->config->wrap.kind == FSDP_WRAP_TYPE; i++) {
        fsdp_config c = *d->config;
        c.checkpointing = levels[i].level;
        c.offload_activations |= levels[i].offload;
        bool same =
            c.checkpointing == d->config->checkpointing && c.offload_activations == d->config->offload_activations;
        if (!same && (!levels[i].offload || d->world.dev->own_memory))
            FSDP_TRY(try_remedy(d, d->work, &c, &d->world, levels[i].flags));
    }
    return FSDP_OK;
}

static fsdp_status try_offload(plan_detail *d)
{
    fsdp_config c = *d->config;
    bool keeps = c.cpu_offload && c.cpu_offload_resident > 0;
    if (!d->world.dev->own_memory || (!keeps && (c.cpu_offload || c.n_cpu_offload_units > 0)))
        return FSDP_OK;
    c.cpu_offload = true;
    c.cpu_offload_resident = keeps ? 0 : c.cpu_offload_resident;
    return try_remedy(d, d->work, &c, &d->world, keeps ? "--cpu_offload_resident 0" : "--cpu_offload");
}

static fsdp_status try_smaller(plan_detail *d)
{
    char flags[64];
    for (int64_t batch = d->work->batch / 2; batch >= 1; batch = batch > 1 ? 1 : 0) {
        workload w = *d->work;
        w.batch = batch;
        w.validation_batch = min_i64(w.validation_batch, batch);
        snprintf(flags, sizeof flags, "--train_batch_size %lld", (long long)batch);
        FSDP_TRY(try_remedy(d, &w, d->config, &d->world, flags));
    }
    if (d->config->shard_weights)
        return FSDP_OK;
    plan_world twice = d->world;
    twice.n_ranks *= 2;
    snprintf(flags, sizeof flags, "--world_size %d", twice.n_ranks);
    return try_remedy(d, d->work, d->config, &twice, flags);
}

static int by_total(const void *a, const void *b)
{
    const plan_remedy *x = a, *y = b;
    return x->total != y->total ? (x->total < y->total ? -1 : 1) : strcmp(x->flags, y->flags);
}

fsdp_status plan_detail_make(plan_detail *d)
{
    FSDP_TRY(workload_picture(d->work, d->config, &d->world, &d->plan, &d->picture));
    fsdp_status status = plan_picture_series(&d->picture, &d->series);
    if (status == FSDP_OK) {
        find_peak(d);
        status = list_values(d);
    }
    if (status == FSDP_OK)
        status = try_strategies(d);
    if (status == FSDP_OK)
        status = try_checkpointing(d);
    if (status == FSDP_OK)
        status = try_offload(d);
    if (status == FSDP_OK)
        status = try_smaller(d);
    qsort(d->remedies, (size_t)d->n_remedies, sizeof *d->remedies, by_total);
    if (status != FSDP_OK)
        plan_detail_clear(d);
    return status;
}

void plan_detail_clear(plan_detail *d)
{
    plan_picture_clear(&d->picture);
    free(d->series);
    free(d->values);
    d->series = NULL;
    d->values = NULL;
}

const char *plan_detail_unit(const plan_detail *d)
{
    const char *unit = "";
    int nearest = -1;
    for (int i = 0; i < d->picture.n_lives; i++) {
        const picture_life *l = &d->picture.lives[i];
        bool computed = l->class >= PICTURE_ACTIVATIONS;
        if (computed && l->unit >= 0 && l->first <= d->peak && l->first > nearest) {
            nearest = l->first;
            unit = d->picture.units[l->unit].name;
        }
    }
    return unit;
}
