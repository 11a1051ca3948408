/* Saving: what a checkpoint remembers beside tensors, synchronous and background saves, exports. Files and their commit
 * are ckpt's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/host/host_memory.h"
#include "base/log.h"
#include "ckpt/format/base_reference.h"
#include "ckpt/save/save_task.h"
#include "data/loader.h"
#include "shard/step/average.h"
#include "state/adapter.h"
#include "state/state_internal.h"

/* ---- What a save says beside tensors ---- */

static bool set(json_t *object, const char *key, json_t *value)
{
    return value && json_object_set_new(object, key, value) == 0;
}

/* Layers whose products left 8 bits; NULL: none did. */
static json_t *list_fallen_back(const fsdp_model *m)
{
    json_t *list = NULL;
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        if (p->fp8_fell_back && (list || (list = json_array())))
            json_array_append_new(list, json_string(p->name));
    }
    return list;
}

/* NULL when out of memory. */
static json_t *describe_extra(const fsdp_state *s, int64_t step)
{
    state_scalars v = state_scalars_of(s);
    json_t *extra = json_pack("{s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:I}", "step", (json_int_t)step, "optimizer_steps",
                              (json_int_t)v.optimizer_steps, "good_steps", (json_int_t)v.good_steps, "micro_batches",
                              (json_int_t)v.micro_batches, "loss_scale", v.loss_scale, "expected_count",
                              v.expected_count, "lr", v.lr, "seed", (json_int_t)s->model->config.seed);
    bool good = extra != NULL;
    if (good && s->optimizer && s->optimizer->config.average > 0)
        good = set(extra, "average_from", json_integer(s->optimizer->average_from));
    if (good && s->optimizer && s->optimizer->config.state_dtype != FSDP_F32)
        good = set(extra, "optimizer_state", json_string(fsdp_dtype_name(s->optimizer->config.state_dtype)));
    json_t *fell_back = good ? list_fallen_back(s->model) : NULL;
    if (good && fell_back)
        good = set(extra, "fp8_fell_back", fell_back);
    if (good && s->position.get)
        good = set(extra, "position", json_integer(s->position.get(s->position.context)));
    if (good && s->notes.loader) {
        json_t *data = NULL;
        good = loader_describe(s->notes.loader, &data) == FSDP_OK && (!data || set(extra, "data", data));
    }
    if (good && s->values.n > 0)
        good = set(extra, "values", value_list_json(&s->values));
    if (good && s->notes.flags)
        good = set(extra, "flags", json_incref((json_t *)(uintptr_t)s->notes.flags));
    if (good && s->notes.step_samples > 0)
        good = set(extra, "step_samples", json_integer(s->notes.step_samples));
    if (good && s->notes.fingerprint && *s->notes.fingerprint)
        good = set(extra, "fingerprint", json_string(s->notes.fingerprint));
    if (good && s->notes.lineage)
        good = set(extra, "lineage", json_incref((json_t *)(uintptr_t)s->notes.lineage));
    if (good)
        return extra;
    json_decref(extra);
    return NULL;
}

/* The tensors that a checkpoint of that kind holds. A full one is a model folder that others open: it is whole. */
static model_state *saved_tensors(const fsdp_state *s, fsdp_checkpoint_kind kind)
{
    return s->adapters && s->model->base_known && kind != FSDP_CKPT_FULL ? s->adapters : s->tensors;
}

/* The base that is left out. */
static bool refer_to_base(const fsdp_state *s, json_t *extra)
{
    const ckpt_state *all = model_state_describe(s->tensors);
    json_t *names = json_array();
    bool good = names != NULL;
    for (int i = 0; i < all->n_tensors && good; i++)
        good = !all->tensors[i].base || json_array_append_new(names, json_string(all->tensors[i].name)) == 0;
    const char *name = *s->base ? s->base : s->model->base_name ? s->model->base_name : "";
    if (good)
        return set(extra, BASE_KEY, base_reference_json(name, s->model->base_digest, names));
    json_decref(names);
    return false;
}

/* Sets what the state points to for a save; undone by forget_notes. */
static fsdp_status make_notes(const fsdp_state *s, model_state *saved, int64_t step)
{
    ckpt_state *state = model_state_describe(saved);
    device *d = s->model->dev;
    char *autotune = NULL;
    json_t *extra = describe_extra(s, step);
    if (extra && saved == s->adapters && !refer_to_base(s, extra)) {
        json_decref(extra);
        extra = NULL;
    }
    state->extra = extra;
    if (!state->extra)
        return error_set(FSDP_ERR_MEMORY, "describing a checkpoint: out of host memory");
    if (!d->autotune_export)
        return FSDP_OK;
    fsdp_status status = d->autotune_export(d, &autotune, &state->autotune_bytes);
    state->autotune = autotune;
    return status;
}

static void forget_notes(model_state *saved)
{
    ckpt_state *state = model_state_describe(saved);
    json_decref((json_t *)(uintptr_t)state->extra);
    free((void *)(uintptr_t)state->autotune);
    state->extra = NULL;
    state->autotune = NULL;
    state->autotune_bytes = 0;
}

static ckpt_save_config make_config(const fsdp_state *s, const char *directory, fsdp_checkpoint_kind kind, int64_t step)
{
    ckpt_save_config c = CKPT_SAVE_CONFIG_INIT;
    c.directory = directory;
    c.kind = kind;
    c.step = step;
    c.run = s->notes.run;
    c.strategy = fsdp_strategy_name(s->model->config.strategy);
    c.model = s->notes.model;
    c.tokenizer = s->notes.tokenizer;
    c.tokenizer_name = s->notes.tokenizer_name;
    if (s->max_file_bytes > 0)
        c.max_file_bytes = s->max_file_bytes;
    return c;
}

/* ---- Saves ---- */

earlier_save state_finish_save(fsdp_state *s)
{
    ckpt_save_result r = {.path = ""};
    earlier_save earlier = {.status = s->saver ? ckpt_saver_wait(s->saver, s->world, &r) : FSDP_OK};
    if (earlier.status != FSDP_OK)
        snprintf(earlier.message, sizeof earlier.message, "%s", fsdp_last_error());
    else if (r.path[0])
        snprintf(s->path, sizeof s->path, "%s", r.path);
    return earlier;
}

fsdp_status state_tell_earlier(const earlier_save *earlier, fsdp_status now)
{
    if (earlier->status == FSDP_OK)
        return now;
    char message[1024];
    snprintf(message, sizeof message, "%s", now == FSDP_OK ? "" : fsdp_last_error());
    if (now != FSDP_OK)
        return error_set(now, "%s; and an earlier checkpoint was not saved: %s", message, earlier->message);
    return error_set(earlier->status, "an earlier checkpoint was not saved (what was asked for now is done): %s",
                     earlier->message);
}

static fsdp_status check_step(const fsdp_state *s, const char *directory, int64_t step)
{
    (void)s;
    if (!directory)
        return error_set(FSDP_ERR_INPUT, "a save needs a directory: set `directory` of the state's configuration");
    if (step < 0)
        return error_set(FSDP_ERR_INPUT, "%s: step %lld cannot be saved", directory, (long long)step);
    return FSDP_OK;
}

/* The tensors as they are to be saved: no update is under way, and the weights are in their place. */
static fsdp_status settle_home(fsdp_state *s)
{
    if (s->optimizer)
        FSDP_TRY(average_before_save(s->optimizer));
    return model_state_settle(s->tensors);
}

/* A synchronous save, here and now. */
static fsdp_status save_now(fsdp_state *s, const ckpt_save_config *config)
{
    ckpt_save_result r = {.path = ""};
    model_state *saved = saved_tensors(s, config->kind);
    fsdp_status status = settle_home(s);
    if (status == FSDP_OK)
        status = make_notes(s, saved, config->step);
    status = ckpt_agree(s->world, "state", status, fsdp_last_error());
    if (status == FSDP_OK)
        status = ckpt_save(config, model_state_describe(saved), s->world, &r);
    forget_notes(saved);
    if (status == FSDP_OK)
        snprintf(s->path, sizeof s->path, "%s", r.path);
    return status;
}

static fsdp_status start_save(fsdp_state *s, const ckpt_save_config *config, ckpt_saver **saver)
{
    model_state *saved = saved_tensors(s, config->kind);
    ckpt_state *state = model_state_describe(saved);
    fsdp_status status = settle_home(s);
    if (status == FSDP_OK)
        status = make_notes(s, saved, config->step);
    if (status == FSDP_OK && !*saver)
        status = ckpt_saver_create(state, config->kind == FSDP_CKPT_LOCAL, saver);
    status = ckpt_agree(s->world, "state", status, fsdp_last_error());
    if (status == FSDP_OK)
        status = ckpt_saver_start(*saver, config, state, s->world);
    forget_notes(saved);
    return status;
}

static ckpt_save_config own_config(const fsdp_state *s, int64_t step)
{
    ckpt_save_config config = make_config(s, s->directory, s->kind, step);
    config.keep = s->keep;
    config.keep_every = s->keep_every;
    return config;
}

fsdp_status fsdp_save(fsdp_state *s, int64_t step)
{
    FSDP_TRY(check_step(s, s->directory, step));
    earlier_save earlier = state_finish_save(s);
    ckpt_save_config config = own_config(s, step);
    return state_tell_earlier(&earlier, save_now(s, &config));
}

fsdp_status fsdp_save_async(fsdp_state *s, int64_t step)
{
    FSDP_TRY(check_step(s, s->directory, step));
    earlier_save earlier = state_finish_save(s);
    ckpt_save_config config = own_config(s, step);
    /* The caller may end because of the failure that it is told now: this one is then the last, and whole. */
    return state_tell_earlier(&earlier,
                              earlier.status == FSDP_OK ? start_save(s, &config, &s->saver) : save_now(s, &config));
}

/* ---- Snapshots ---- */

fsdp_status state_open_snapshots(fsdp_state *s, const job *j)
{
    int64_t bytes = ckpt_state_bytes(model_state_describe(saved_tensors(s, FSDP_CKPT_LOCAL)), true);
    return ckpt_hot_open(j, bytes, s->world, &s->hot);
}

fsdp_status state_check_snapshots(fsdp_state *s)
{
    return ckpt_hot_check_room(s->hot, s->world);
}

int64_t state_newest_snapshot(const fsdp_state *s, const char **run)
{
    return ckpt_hot_newest(s->hot, s->world, run);
}

bool state_is_snapshotting(const fsdp_state *s)
{
    return s->hot_saver && ckpt_saver_active(s->hot_saver);
}

fsdp_status state_finish_snapshot(fsdp_state *s)
{
    ckpt_save_result r;
    if (!state_is_snapshotting(s))
        return FSDP_OK;
    fsdp_status status = ckpt_saver_wait(s->hot_saver, s->world, &r);
    ckpt_hot_settle(s->hot, status == FSDP_OK ? r.save : 0);
    return status;
}

fsdp_status state_snapshot(fsdp_state *s, int64_t step)
{
    char message[1024];
    ckpt_save_config config = make_config(s, NULL, FSDP_CKPT_LOCAL, step);
    ckpt_hot_configure(s->hot, &config);
    fsdp_status before = state_finish_snapshot(s);
    snprintf(message, sizeof message, "%s", fsdp_last_error());
    FSDP_TRY(start_save(s, &config, &s->hot_saver));
    return before == FSDP_OK ? FSDP_OK : error_set(before, "%s", message);
}

fsdp_status fsdp_save_wait(fsdp_state *s)
{
    earlier_save earlier = state_finish_save(s);
    return earlier.status == FSDP_OK ? FSDP_OK : error_set(earlier.status, "%s", earlier.message);
}

fsdp_status fsdp_save_as(fsdp_state *s, const char *directory, fsdp_checkpoint_kind kind, int64_t step)
{
    FSDP_TRY(check_step(s, directory, step));
    if ((unsigned)kind > FSDP_CKPT_LOCAL)
        return error_set(FSDP_ERR_INPUT, "%d is no kind of checkpoint", (int)kind);
    earlier_save earlier = state_finish_save(s);
    ckpt_save_config config = make_config(s, directory, kind, step);
    return state_tell_earlier(&earlier, save_now(s, &config));
}

/* The base's file, for what the model keeps in fewer bits than the file. NULL: there is none, or no longer; an export
 * at the end of a run does not fail for that. */
static ckpt_source *open_base(const fsdp_state *s)
{
    ckpt_source *base = NULL;
    if (!s->model->base_known)
        return NULL;
    fsdp_status status = source_open(s->model->base_name, &base);
    if (ckpt_agree(s->world, "base", status, fsdp_last_error()) == FSDP_OK)
        return base;
    log_write(FSDP_LOG_WARNING, "export: the adapters are merged into the weights as they were kept in training: %s",
              fsdp_last_error());
    source_close(base);
    return NULL;
}

/* Adapters are merged into the weights: what is exported is a model like any other. */
static fsdp_status export_merged(fsdp_state *s, ckpt_save_config *config, const adapter *adapters)
{
    model_state *view = NULL;
    json_t *model = config->model ? json_deep_copy(config->model) : NULL;
    ckpt_source *base = open_base(s);
    fsdp_status status = model_state_create(
        s->model, NULL, &(model_view){.without_adapters = true, .merged = adapters, .base = base}, &view);
    if (status == FSDP_OK && config->model && !model)
        status = error_set(FSDP_ERR_MEMORY, "%s: out of host memory", config->directory);
    status = ckpt_agree(s->world, "export", status, fsdp_last_error());
    json_object_del(model, ADAPTER_KEY);
    config->model = model;
    if (status == FSDP_OK)
        status = ckpt_export(config, model_state_describe(view), FSDP_F32, s->world);
    json_decref(model);
    model_state_free(view);
    source_close(base);
    return status;
}

fsdp_status fsdp_export(fsdp_state *s, const char *folder)
{
    ckpt_save_config config = make_config(s, folder, FSDP_CKPT_FULL, 0);
    earlier_save earlier = state_finish_save(s);
    adapter *adapters = NULL;
    fsdp_status status = model_state_settle(s->tensors);
    if (status == FSDP_OK)
        status = adapter_of_model(s->model, &adapters);
    status = ckpt_agree(s->world, "state", status, fsdp_last_error());
    if (status == FSDP_OK)
        status = adapters ? export_merged(s, &config, adapters)
                          : ckpt_export(&config, model_state_describe(s->tensors), FSDP_F32, s->world);
    adapter_free(adapters);
    return state_tell_earlier(&earlier, status);
}
