/* Resuming: tensors from the newest checkpoint that is whole, and everything that training remembers beside them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"
#include "ckpt/load/load.h"
#include "ckpt/save/save_task.h"
#include "data/loader.h"
#include "state/state_internal.h"
#include "state/weights.h"

/* The scalars of a checkpoint, read and checked before any is used. */
typedef struct loaded_scalars {
    int64_t optimizer_steps, good_steps, average_from, micro_batches, position, seed;
    double loss_scale, expected_count, lr;
} loaded_scalars;

static fsdp_status read_scalars(const fsdp_state *s, const char *path, const json_t *extra, loaded_scalars *out)
{
    state_scalars now = state_scalars_of(s);
    *out = (loaded_scalars){.seed = (int64_t)s->model->config.seed,
                            .loss_scale = now.loss_scale,
                            .expected_count = now.expected_count,
                            .lr = now.lr};
    if (s->optimizer)
        FSDP_TRY(json_get_int(path, extra, "optimizer_steps", &out->optimizer_steps));
    if (s->position.set)
        FSDP_TRY(json_get_int(path, extra, "position", &out->position));
    FSDP_TRY(json_opt_int(path, extra, "good_steps", &out->good_steps));
    FSDP_TRY(json_opt_int(path, extra, "average_from", &out->average_from));
    FSDP_TRY(json_opt_int(path, extra, "micro_batches", &out->micro_batches));
    FSDP_TRY(json_opt_int(path, extra, "seed", &out->seed));
    FSDP_TRY(json_opt_number(path, extra, "loss_scale", &out->loss_scale));
    FSDP_TRY(json_opt_number(path, extra, "expected_count", &out->expected_count));
    FSDP_TRY(json_opt_number(path, extra, "lr", &out->lr));
    return isfinite((float)out->lr) ? FSDP_OK : error_set(FSDP_ERR_INPUT, "%s: a learning rate of %g", path, out->lr);
}

/* Layers that left 8 bits before the checkpoint stay out of them, and those that did since are back. */
static void take_fallen_back(fsdp_model *m, const json_t *names)
{
    model_fp8_fall_back(m, NULL);
    for (size_t i = 0; i < json_array_size(names); i++)
        if (json_is_string(json_array_get(names, i)))
            model_fp8_fall_back(m, json_string_value(json_array_get(names, i)));
}

static fsdp_status take_scalars(fsdp_state *s, const char *path, int64_t step, const loaded_scalars *v,
                                const json_t *data, const json_t *fell_back)
{
    fsdp_model *m = s->model;
    m->step = step;
    m->micro_total = (uint64_t)v->micro_batches;
    m->loss_scale = v->loss_scale;
    m->expected_count = v->expected_count;
    take_fallen_back(m, fell_back);
    if (s->optimizer) {
        s->optimizer->steps = v->optimizer_steps;
        s->optimizer->good_steps = v->good_steps;
        s->optimizer->lr = (float)v->lr;
    }
    if (v->seed != (int64_t)m->config.seed)
        log_write(FSDP_LOG_WARNING,
                  "%s was written with seed %lld, this model has %lld: dropout goes on with other masks", path,
                  (long long)v->seed, (long long)m->config.seed);
    if (s->loader)
        return loader_restore(s->loader, path, data, v->position);
    return s->position.set ? s->position.set(s->position.context, v->position) : FSDP_OK;
}

/* Moments were converted as they were read: exactly into fp32, to the nearest into bf16. */
static void tell_state_dtype(const fsdp_state *s, const char *path, const json_t *extra)
{
    const char *stored = json_string_value(json_object_get(extra, "optimizer_state"));
    fsdp_dtype own = s->optimizer->config.state_dtype, from = FSDP_F32;
    if ((stored && fsdp_dtype_parse(stored, &from) != FSDP_OK) || from == own)
        return;
    log_write(FSDP_LOG_INFO, "%s has the optimizer's moments in %s: they go on in %s%s", path, fsdp_dtype_name(from),
              fsdp_dtype_name(own), own == FSDP_F32 ? "" : ", rounded to the nearest");
}

/* A run goes on with the kernels that were chosen for it, not with what would be timed now. A model that has computed
 * keeps those it has. */
static fsdp_status take_autotune(fsdp_state *s, const ckpt_load_result *found)
{
    device *d = s->model->dev;
    if (!d->autotune_import || found->autotune_bytes == 0 || s->model->micro_total > 0)
        return FSDP_OK;
    return d->autotune_import(d, found->path, found->autotune, found->autotune_bytes);
}

/* A checkpoint that has nothing but tensors (an imported one) has no scalars either. */
static fsdp_status take_rest(fsdp_state *s, const ckpt_load_result *found)
{
    loaded_scalars scalars;
    const json_t *values = json_object_get(found->extra, "values");
    FSDP_TRY(read_scalars(s, found->path, found->extra, &scalars));
    FSDP_TRY(value_list_check(&s->values, found->path, values));
    FSDP_TRY(take_autotune(s, found));
    FSDP_TRY(take_scalars(s, found->path, found->step, &scalars, json_object_get(found->extra, "data"),
                          json_object_get(found->extra, "fp8_fell_back")));
    if (s->optimizer) { /* without an average in the checkpoint it begins now */
        bool has_average = !(found->absent & CKPT_ROLE_BIT(CKPT_AVERAGE));
        s->optimizer->average_from = has_average ? scalars.average_from : s->optimizer->steps;
        s->optimizer->swapped = false;
        tell_state_dtype(s, found->path, found->extra);
    }
    value_list_take(&s->values, values);
    return FSDP_OK;
}

static fsdp_status take(fsdp_state *s, ckpt_load_result *found)
{
    fsdp_status status = model_state_loaded(s->tensors);
    if (status == FSDP_OK)
        status = take_rest(s, found);
    status = ckpt_agree(s->world, "state", status, fsdp_last_error());
    if (status != FSDP_OK)
        return status;
    snprintf(s->path, sizeof s->path, "%s", found->path);
    json_decref(s->loaded);
    s->loaded = found->extra;
    snprintf(s->loaded_run, sizeof s->loaded_run, "%s", found->run);
    s->loaded_ranks = found->world_size;
    found->extra = NULL;
    return FSDP_OK;
}

/* "step-00000020" names one checkpoint, of kind local also where only "step-00000020.rank-00000" exist. */
static bool names_one(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return strncmp(name, "step-", 5) == 0 && name[5] && strspn(name + 5, "0123456789") == strlen(name + 5);
}

static bool keeps_fewer_bits(const fsdp_model *m)
{
    for (int i = 0; i < m->n_policies; i++)
        if (m->policies[i].param_dtype != FSDP_F32)
            return true;
    return m->config.int8_frozen;
}

/* Values of the base that the checkpoint held are now the model's. Where a file has the same, or the same in as few
 * bits as the model keeps (`kept`), checkpoints go on referring to it. */
static fsdp_status take_base(fsdp_state *s, const ckpt_load_result *found, uint64_t kept)
{
    fsdp_model *m = s->model;
    uint64_t digest;
    bool known = m->base_known;
    if (!found->has_base || !known)
        return FSDP_OK;
    FSDP_TRY(weights_sum_digest(s->world, found->digest, &digest));
    m->base_known = digest == m->base_digest || digest == kept;
    if (m->base_known || !s->adapters)
        return FSDP_OK;
    log_write(FSDP_LOG_WARNING, "%s: its base is another than %s: checkpoints of this run hold it, too", found->path,
              *s->base ? s->base : m->base_name);
    ckpt_saver_free(s->saver); /* made for adapters alone */
    ckpt_saver_free(s->hot_saver);
    s->saver = s->hot_saver = NULL;
    return FSDP_OK;
}

/* `path` NULL: from the state's snapshots. */
typedef fsdp_status (*tensor_loader)(const char *path, const ckpt_load_config *config, const ckpt_state *state,
                                     comm_group *world, ckpt_load_result *result);

static fsdp_status load_with(tensor_loader load, fsdp_state *s, const char *path, const char *run, int64_t above,
                             bool *found, int64_t *step)
{
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result = {.extra = NULL};
    uint64_t kept = s->model->base_digest;
    config.run = run;
    config.above = above;
    config.digest = s->model->base_known ? &s->model->base_digest : NULL;
    earlier_save earlier = state_finish_save(s);
    if (!s->optimizer)
        config.roles = CKPT_ROLES_MODEL;
    else if (!(s->optimizer->config.average > 0))
        config.roles &= ~CKPT_ROLE_BIT(CKPT_AVERAGE); /* one that is no longer kept */
    config.optional = CKPT_ROLE_BIT(CKPT_AVERAGE);    /* or not yet */
    fsdp_status status = model_state_before_load(s->tensors);
    status = ckpt_agree(s->world, "state", status, fsdp_last_error());
    /* Before a checkpoint's values take its place. */
    if (status == FSDP_OK && s->model->base_known && keeps_fewer_bits(s->model))
        status = weights_kept_digest(s->world, model_state_describe(s->tensors), &kept);
    if (status == FSDP_OK)
        status = path ? load(path, &config, model_state_describe(s->tensors), s->world, &result)
                      : ckpt_hot_resume(s->hot, &config, model_state_describe(s->tensors), s->world, &result);
    *found = status == FSDP_OK && result.step >= 0;
    *step = *found ? result.step : 0;
    if (*found)
        status = take_base(s, &result, kept);
    if (*found && status == FSDP_OK)
        status = take(s, &result);
    ckpt_load_result_free(&result);
    return state_tell_earlier(&earlier, status);
}

fsdp_status state_resume_from(fsdp_state *s, const char *path, const char *run, bool *found, int64_t *step)
{
    return load_with(ckpt_resume, s, path, run, CKPT_ANY_STEP, found, step);
}

fsdp_status state_resume_above(fsdp_state *s, const char *path, const char *run, bool *found, int64_t *step)
{
    return load_with(ckpt_resume, s, path, run, *step, found, step);
}

fsdp_status state_resume_snapshot(fsdp_state *s, bool *found, int64_t *step)
{
    return load_with(NULL, s, NULL, NULL, CKPT_ANY_STEP, found, step);
}

fsdp_status fsdp_resume(fsdp_state *s, int64_t *step)
{
    bool found;
    if (!s->directory)
        return error_set(FSDP_ERR_INPUT, "resuming needs a directory: set `directory` of the state's configuration");
    return state_resume_from(s, s->directory, NULL, &found, step);
}

fsdp_status fsdp_load(fsdp_state *s, const char *checkpoint, int64_t *step)
{
    bool found;
    int64_t loaded;
    FSDP_TRY(load_with(names_one(checkpoint) ? ckpt_load : ckpt_resume, s, checkpoint, NULL, CKPT_ANY_STEP, &found,
                       &loaded));
    if (step)
        *step = loaded;
    return found ? FSDP_OK : error_set(FSDP_ERR_INPUT, "%s: there is no checkpoint there", checkpoint);
}
