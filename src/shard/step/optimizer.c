/* One optimizer step of a sharded model: finish the gradients, clip by the global norm, update every unit's range: on
 * the device here, in host memory by the offload's thread. */
#include "shard/step/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/record/hooks.h"
#include "base/rng.h"
#include "base/sized.h"
#include "shard/build/codes.h"
#include "shard/offload/offload.h"
#include "shard/step/average.h"
#include "shard/step/early.h"
#include "shard/step/groups.h"

/* A step that overflows with so small a scale has another reason: many bad samples in a row would leave a scale with
 * which every gradient becomes 0 in fp16. */
#define LEAST_SCALE 1
#define SCALE_GROWTH_INTERVAL 2000 /* steps without overflow before the fp16 loss scale doubles */

/* What the host knows of a step's numbers. */
static void host_numbers(const fsdp_optimizer *o, optimizer_scalars *out)
{
    update_scalars(o->update, o->lr, o->steps + 1, out);
    if (o->steps == o->average_from)
        out->average_decay = 0;
}

/* As the clip kernel has it, with the count of the step before. */
static float unclipped_scale(const fsdp_optimizer *o, double unscale)
{
    double divisor = o->model->config.gradient_divisor;
    return (float)(unscale / (divisor > 0 ? divisor : o->last_count));
}

static double unscale_of(const fsdp_model *m)
{
    return m->expected_count / m->loss_scale;
}

static void guess_scalars(void *context, optimizer_scalars *out)
{
    const fsdp_optimizer *o = context;
    host_numbers(o, out);
    out->gradient_scale = unclipped_scale(o, unscale_of(o->model));
}

/* Weights that are kept as codes are measured by the pass that updates them. */
static fsdp_status place_magnitudes(fsdp_optimizer *o, const fsdp_model *m, update_range *ranges, int n)
{
    int used = 0, all = codes_trained(m);
    if (all > 0 && !(o->magnitudes = malloc((size_t)all * sizeof *o->magnitudes)))
        return error_set(FSDP_ERR_MEMORY, "creating an optimizer: out of host memory");
    for (int i = 0; i < n && all > 0; i++) {
        ranges[i].magnitudes = o->magnitudes + used;
        ranges[i].n_magnitudes = codes_magnitudes(&m->units[model_range_unit(m, i)].segments[0], o->magnitudes + used);
        used += ranges[i].n_magnitudes;
    }
    return FSDP_OK;
}

fsdp_status fsdp_optimizer_new(fsdp_model *m, const fsdp_optimizer_config *config, fsdp_optimizer **out)
{
    SIZED_READ(fsdp_optimizer_config, FSDP_OPTIMIZER_CONFIG_INIT, full, config);
    int n = model_ranges(m);
    fsdp_optimizer *o = calloc(1, sizeof *o);
    update_range *ranges = calloc((size_t)n + 1, sizeof *ranges);
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!o || !ranges) {
        error_set(status, "creating an optimizer: out of host memory");
        goto done;
    }
    for (int i = 0; i < n; i++) {
        model_range s = model_range_at(m, i);
        rng_key key = rng_key_fold_text(rng_key_fold_text(rng_key_make(m->config.seed), "moments"), s.unit);
        ranges[i] = (update_range){.parameter = s.parameter,
                                   .gradient = s.gradient,
                                   .gradient_dtype = m->config.gradient_dtype,
                                   .copy = s.copy,
                                   .copy_half = s.offloaded && model_splits_masters(m, s.copy.dtype),
                                   .low = s.low,
                                   .n = s.n,
                                   .decay_end = s.decay_end,
                                   .place = s.offloaded ? 1 : 0,
                                   .key = {key.k[0], key.k[1]},
                                   .element = (uint64_t)s.first};
    }
    TRY_OR(done, offload_check_optimizer(m, full.kind));
    TRY_OR(done, groups_place(m, &full, ranges, n, &o->spans));
    TRY_OR(done, place_magnitudes(o, m, ranges, n));
    full.groups = NULL; /* the caller's */
    full.n_groups = 0;
    const update_memory places[] = {
        /* moments that nobody has are not noted as the device's */
        {.dev = m->dev, .s = m->compute, .home = m->dev, .kind = m->carrier ? MEMORY_HOST : MEMORY_DEVICE},
        {.dev = offload_host(m), .s = offload_host_stream(m), .home = m->dev, .kind = MEMORY_HOST}};
    o->model = m;
    o->config = full;
    o->lr = full.lr;
    if (full.kind == FSDP_MUON)
        TRY_OR(done, muon_create(m, ranges, n, &o->muon));
    if (full.kind == FSDP_ADAFACTOR)
        TRY_OR(done, adafactor_create(m, &full, ranges, n, &o->adafactor));
    TRY_OR(done, update_create(places, m->offload ? 2 : 1, &full, ranges, n, &o->update));
    if (m->offload && split_wanted(m))
        TRY_OR(done, split_create(m, o->update, &full, &o->split));
    if (m->offload && m->config.cpu_offload_ahead)
        status = ahead_create(m, o->update, &full, guess_scalars, o, &o->ahead);
done:
    free(ranges);
    if (status != FSDP_OK) {
        if (o) {
            split_free(o->split);
            update_free(o->update);
            muon_free(o->muon);
            adafactor_free(o->adafactor);
            free(o->magnitudes);
            free(o->spans);
        }
        free(o);
        return status;
    }
    *out = o;
    return FSDP_OK;
}

void fsdp_optimizer_free(fsdp_optimizer *o)
{
    if (!o)
        return;
    (void)offload_settle(o->model); /* its failure is reported by the next call that uses the model */
    recorded_forget(o->model->dev, &o->recorded);
    muon_free(o->muon);
    adafactor_free(o->adafactor);
    ahead_free(o->ahead);
    split_free(o->split);
    update_free(o->update);
    free(o->magnitudes);
    free(o->spans);
    free(o);
}

void fsdp_optimizer_set_lr(fsdp_optimizer *o, float lr)
{
    o->lr = lr;
}

/* fp16: halve after an overflow, double after a long run without. All ranks see the same norm, so all do the same. */
static void adjust_loss_scale(fsdp_optimizer *o, bool skipped)
{
    fsdp_model *m = o->model;
    if (!model_scales_loss(m))
        return;
    if (skipped) {
        m->loss_scale = m->loss_scale > LEAST_SCALE ? fmax(m->loss_scale / 2, LEAST_SCALE) : m->loss_scale;
        o->good_steps = 0;
    } else if (++o->good_steps % SCALE_GROWTH_INTERVAL == 0) {
        m->loss_scale *= 2;
    }
}

static fsdp_status put_scalars(fsdp_optimizer *o)
{
    fsdp_model *m = o->model;
    optimizer_scalars *host = &model_host_scalars(m)->optimizer;
    host_numbers(o, host);
    return m->dev->copy(m->compute, &m->scalars->optimizer, host, sizeof *host);
}

/* What differs between two steps, beyond what lies in device memory. */
typedef struct close_facts {
    double unscale;
} close_facts;

static fsdp_status update_one(const fsdp_optimizer *o, int range)
{
    fsdp_model *m = o->model;
    if (o->muon && muon_has(o->muon, range))
        return FSDP_OK;
    FSDP_TRY(model_before_update(m, range));
    return model_range_at(m, range).offloaded ? FSDP_OK
                                              : update_apply(o->update, range, m->compute, &m->scalars->optimizer);
}

/* Units that the next forward needs first are updated first, and gathered while the others are. */
static fsdp_status update_all(const fsdp_optimizer *o)
{
    fsdp_model *m = o->model;
    const schedule *next = m->last_training->schedule;
    for (int at = 0, which; (which = early_next(m, next, &at)) >= 0;) {
        int range = model_unit_range(m, which);
        if (next->units[which].coded)
            continue; /* codes follow all updates */
        if (range >= 0)
            FSDP_TRY(update_one(o, range));
        FSDP_TRY(early_gather(m, which));
    }
    for (int i = 0; i < model_ranges(m); i++)
        if (!m->units[model_range_unit(m, i)].early)
            FSDP_TRY(update_one(o, i));
    return FSDP_OK;
}

static fsdp_status gather_coded(fsdp_model *m)
{
    const schedule *next = m->last_training->schedule;
    for (int at = 0, which; (which = early_next(m, next, &at)) >= 0;)
        if (next->units[which].coded)
            FSDP_TRY(early_gather(m, which));
    return FSDP_OK;
}

/* Everything between the last gradient and the next step. */
static fsdp_status close_step(const void *fixed, const void *facts)
{
    const fsdp_optimizer *o = fixed;
    fsdp_model *m = o->model;
    clip_args clip = {.totals = m->scalars->totals,
                      .unscale = ((const close_facts *)facts)->unscale,
                      .divisor = m->config.gradient_divisor,
                      .max_norm = o->config.clip,
                      .report = m->scalars->report,
                      .scalars = &m->scalars->optimizer};
    FSDP_TRY(model_finish_gradients(m));
    FSDP_TRY(m->dev->kernels->clip(m->compute, &clip));
    FSDP_TRY(codes_before_update(m));
    if (o->muon)
        FSDP_TRY(muon_update(o->muon, o->update));
    if (o->adafactor)
        FSDP_TRY(adafactor_prepare(o->adafactor, o->update));
    FSDP_TRY(update_all(o));
    FSDP_TRY(codes_round_trained(m));
    return gather_coded(m);
}

fsdp_status optimizer_close_step(const fsdp_optimizer *o)
{
    close_facts facts = {1};
    return close_step(o, &facts);
}

static fsdp_status update_in_host_memory(void *context, int slice, offload_lanes lanes, int64_t *on_host)
{
    fsdp_optimizer *o = context;
    if (o->split)
        return split_update(o->split, slice, &o->host_scalars, lanes, on_host);
    return update_apply(o->update, slice, lanes.host, &o->host_scalars);
}

/* Whether updates that ran ahead of the norm were made with this step's numbers. */
static bool weigh_ahead(fsdp_optimizer *o, const model_scalars *known, double unscale)
{
    if (!o->ahead)
        return false;
    o->last_count = known->totals[2];
    bool clipped = known->optimizer.gradient_scale != unclipped_scale(o, unscale);
    return ahead_stands(o->ahead, &known->optimizer, !clipped && !known->optimizer.skip);
}

fsdp_status fsdp_step(fsdp_optimizer *o, fsdp_step_report *report)
{
    fsdp_model *m = o->model;
    HOOK(HOOK_PHASE, HOOK_BEGIN, "optimizer", NULL, 0, 0);
    close_facts facts = {unscale_of(m)};
    FSDP_TRY(average_check_home(o, "a step"));
    FSDP_TRY(model_start_settling(m));
    FSDP_TRY(put_scalars(o));
    FSDP_TRY(model_works_alone(m)
                 ? recorded_run(m->dev, m->compute, &o->recorded, close_step, o, (recorded_facts){&facts, sizeof facts})
                 : close_step(o, &facts));
    model_after_update(m);
    model_scalars scalars;
    stream_laps_end(m->laps);
    FSDP_TRY(model_fetch(m, &scalars, m->scalars, sizeof scalars));
    stream_laps_settle(m->laps); /* the stream is idle: all marks have their times */
    HOOK(HOOK_PHASE, HOOK_END, "optimizer", NULL, 0, 0);
    const float *values = scalars.report;
    bool skipped = values[3] != 0, stands = weigh_ahead(o, &scalars, facts.unscale);
    if (skipped)
        FSDP_TRY(offload_undo_ahead(m));
    if (isnan(values[2])) /* a device that does not show labels to the host says it this way */
        return error_set(FSDP_ERR_INPUT,
                         "step %lld: a label lies outside the vocabulary; this step changed nothing. Check the data "
                         "against the model's number of tokens or classes",
                         (long long)m->step - 1);
    if (m->offload && !skipped) {
        FSDP_TRY(offload_stop_ahead(m));
        FSDP_TRY(offload_wait(m)); /* for those that read what is written next */
        o->host_scalars = scalars.optimizer;
        if (o->split)
            FSDP_TRY(split_begin(o->split));
        FSDP_TRY(offload_update(m, update_in_host_memory, o, stands)); /* goes on during the next forward */
    }
    adjust_loss_scale(o, skipped);
    double lr = update_rate(o->update, o->lr, o->steps + 1);
    o->steps += !skipped;
    FSDP_TRY(model_share_autotune(m));
    if (report)
        *report = (fsdp_step_report){
            .loss = values[1], .gradient_norm = values[0], .count = values[2], .skipped = skipped, .lr = lr};
    return FSDP_OK;
}
