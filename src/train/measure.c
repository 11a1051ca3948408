/* `fsdp eval`: the validation of training, for models that lie in folders. Opens the parts of a run that validation
 * needs, one model after the other, in one world. */
#include <fsdp/measure.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/sized.h"
#include "ckpt/format/manifest.h"
#include "settings/settings_table.h"
#include "train/agree.h"
#include "train/record.h"
#include "train/run.h"

/* What decides the numbers of a validation. None is a path: a manifest may come from anyone. */
static const char *const kept_flags[] = {
    "max_context_width", "max_target_width", "val_batch_size", "param_dtype", "buffer_dtype",
    "source_field",      "target_field",     "source_prefix",  "chat",        "packing"};

static char *text_of(const json_t *value)
{
    char *text = NULL;
    if (json_is_string(value))
        return strdup(json_string_value(value));
    if (json_is_boolean(value))
        return strdup(json_is_true(value) ? "true" : "false");
    if (json_is_integer(value) && asprintf(&text, "%lld", (long long)json_integer_value(value)) >= 0)
        return text;
    return NULL;
}

/* Flags of the checkpoint at `path`, where the user gave none. Without a manifest there is nothing to take. */
static fsdp_status take_flags(const char *path, fsdp_settings *s, fsdp_measurement *out)
{
    manifest *m;
    fsdp_status status = FSDP_OK;
    char *file = file_is_directory(path) ? file_join(path, MANIFEST_NAME) : NULL;
    bool there = file && file_exists(file);
    free(file);
    if (!there)
        return FSDP_OK;
    FSDP_TRY(manifest_read(path, &m));
    out->step = m->step;
    for (int i = 0; i < m->n_tensors; i++)
        out->average |= m->tensors[i].role == CKPT_AVERAGE;
    const json_t *flags = json_object_get(m->extra, "flags");
    for (size_t i = 0; i < sizeof kept_flags / sizeof *kept_flags && status == FSDP_OK; i++) {
        char *value = fsdp_settings_given(s, kept_flags[i]) ? NULL : text_of(json_object_get(flags, kept_flags[i]));
        if (value)
            status = fsdp_flags_set(settings_table, s, &s->state, kept_flags[i], value, FSDP_FROM_FILE);
        free(value);
    }
    manifest_free(m);
    return status == FSDP_OK ? FSDP_OK : error_prefix(status, "%s: ", path);
}

/* A copy with texts of its own, to which the checkpoint's flags can be added. */
static fsdp_status copy_given(const fsdp_settings *given, fsdp_settings *out)
{
    FSDP_TRY(fsdp_settings_init(out));
    for (const fsdp_flag *flag = settings_table; flag->name; flag++) {
        char *value = fsdp_settings_given(given, flag->name) ? fsdp_flags_value(flag, given) : NULL;
        fsdp_status status = value ? fsdp_settings_set(out, flag->name, value) : FSDP_OK;
        free(value);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

/* Texts no longer than the model's positions, unless a length was asked for. */
static void limit_width(train_run *run)
{
    const model_config *c = &run->source.config;
    if (c->type == MODEL_DECODER && !fsdp_settings_given(&run->used, "max_context_width"))
        run->used.max_context_width = min_i64(run->used.max_context_width, c->decoder.positions);
}

/* Nothing is trained: every parameter is frozen, so that no gradient has memory. */
static fsdp_status open_model(train_run *run, bool average)
{
    static const char *const all[] = {"*"};
    const fsdp_settings *s = run->settings;
    fsdp_config *c = &run->sharding.config;
    fsdp_weights_config weights = FSDP_WEIGHTS_CONFIG_INIT;
    fsdp_module *net;
    *c = (fsdp_config)FSDP_CONFIG_INIT;
    c->strategy = run->n_ranks > 1 ? FSDP_FULL : FSDP_NO_SHARD;
    if (model_block_type(&run->model_config))
        c->wrap = fsdp_wrap_by_type(model_block_type(&run->model_config));
    c->param_dtype = (fsdp_dtype)s->param_dtype;
    c->buffer_dtype = (fsdp_dtype)s->buffer_dtype;
    c->freeze = all;
    c->n_freeze = 1;
    FSDP_TRY(model_create(&run->model_config, &net));
    fsdp_status status = fsdp_shard(run->world, net, c, &run->model);
    if (status != FSDP_OK) {
        fsdp_module_free(net);
        return status;
    }
    weights.average = average;
    weights.base = s->base;
    return fsdp_weights_load(run->model, s->init_from, &weights, NULL);
}

static fsdp_status open_parts(train_run *run, fsdp_measurement *out)
{
    FSDP_TRY(run_download(run));
    FSDP_TRY(run_find_model(run));
    if (!run->source.json)
        return error_set(FSDP_ERR_INPUT, "%s: neither a model folder with a config.json nor a checkpoint of a model",
                         run->used.init_from);
    snprintf(out->path, sizeof out->path, "%s", run->used.init_from);
    FSDP_TRY(take_flags(run->used.init_from, &run->used, out));
    FSDP_TRY(fsdp_settings_check(&run->used));
    limit_width(run);
    FSDP_TRY(run_open_data(run));
    FSDP_TRY(assemble_model_from(run->settings, &run->source, run_vocabulary(run), NULL, &run->model_config));
    FSDP_TRY(run_agree(run, true));
    FSDP_TRY(record_check("the data set", &run->model_config, &run->validation_info));
    FSDP_TRY(assemble_count(&run->model_config, &out->parameters));
    return open_model(run, out->average);
}

static int64_t samples_of(const train_run *run)
{
    const fsdp_settings *s = run->settings;
    int64_t n = run->validation_info.n_samples;
    return s->validation_batches > 0 ? min_i64(n, s->validation_batches * s->val_batch_size * run->n_ranks) : n;
}

static fsdp_status measure(train_run *run, fsdp_measurement *out)
{
    validation_means v;
    FSDP_TRY(open_parts(run, out));
    double begun = clock_seconds();
    FSDP_TRY(run_validate(run, &v));
    out->seconds = clock_seconds() - begun;
    out->samples = samples_of(run);
    out->predictions = (int64_t)v.count;
    out->loss = v.loss;
    out->accuracy = v.accuracy;
    out->images = run->validation_info.kind == FSDP_DATASET_IMAGES;
    return FSDP_OK;
}

static fsdp_status measure_one(const fsdp_settings *given, const char *model, const fsdp_train_callbacks *callbacks,
                               fsdp_world *world, fsdp_measurement *out)
{
    train_run run = {
        .callbacks = *callbacks, .world = world, .measures = true, .builtin_text = -1, .folder_locks = {-1, -1}};
    run.settings = &run.used;
    run.rank = fsdp_world_rank(world);
    run.n_ranks = fsdp_world_size(world);
    *out = (fsdp_measurement){.size = sizeof *out, .step = -1, .rank = run.rank, .world_size = run.n_ranks};
    fsdp_status status = copy_given(given, &run.used);
    if (status == FSDP_OK)
        status = fsdp_settings_set(&run.used, "init_from", model);
    if (status == FSDP_OK)
        status = measure(&run, out);
    run.world = NULL; /* the next model's too */
    fsdp_flag_state state = run.used.state;
    run_close(&run);
    fsdp_flags_free(&state);
    return status;
}

/* The caller's array has elements of the size that its headers know. */
static fsdp_measurement *result_at(fsdp_measurement *results, int i)
{
    return results ? (fsdp_measurement *)((char *)results + (size_t)i * results->size) : NULL;
}

fsdp_status fsdp_measure(const fsdp_settings *settings, const char *const *models, int n_models,
                         const fsdp_train_callbacks *callbacks, fsdp_measurement *results)
{
    fsdp_train_callbacks full = FSDP_TRAIN_CALLBACKS_INIT;
    if (callbacks)
        FSDP_TRY(sized_read(&full, sizeof full, callbacks, "fsdp_train_callbacks", "FSDP_TRAIN_CALLBACKS_INIT"));
    FSDP_TRY(settings_check_size(settings));
    if (n_models < 1)
        return error_set(FSDP_ERR_INPUT, "nothing to evaluate: name a model folder, a run or a checkpoint");
    for (int i = 0; i < n_models; i++)
        SIZED_CHECK(fsdp_measurement, FSDP_MEASUREMENT_INIT, result_at(results, i));
    if (settings->validation_dataset.n == 0)
        return error_set(FSDP_ERR_INPUT, "no data: name files, folders or a data set with --dataset");
    fsdp_world_config config;
    fsdp_world *world;
    fsdp_status status = FSDP_OK;
    assemble_world(settings, &config);
    FSDP_TRY(fsdp_world_open(&config, &world));
    for (int i = 0; i < n_models && status == FSDP_OK; i++) {
        fsdp_measurement one;
        status = measure_one(settings, models[i], &full, world, &one);
        if (status == FSDP_OK)
            sized_write(result_at(results, i), &one, sizeof one);
    }
    if (status != FSDP_OK)
        fsdp_world_abort(world);
    fsdp_world_close(world);
    return status;
}
