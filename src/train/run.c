/* Opening a job in the order in which its parts need each other, and closing it in reverse. */
#include "train/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/threads.h"
#include "data/hub.h"
#include "train/fit.h"
#include "train/record.h"
#include "train/weights.h"

void run_say(train_run *run, fsdp_line kind, const char *format, ...)
{
    char text[8192];
    va_list arguments;
    if (!run->callbacks.line || (run->rank != 0 && kind != FSDP_LINE_WARNING))
        return;
    size_t used = run->rank != 0 ? (size_t)snprintf(text, sizeof text, "rank %d: ", run->rank) : 0;
    va_start(arguments, format);
    vsnprintf(text + used, sizeof text - used, format, arguments);
    va_end(arguments);
    run->callbacks.line(run->callbacks.context, kind, text);
}

static bool reads_text(const fsdp_settings *s)
{
    return fsdp_model_is_llama(s->model_type) || s->model_type == FSDP_MODEL_T5;
}

static fsdp_status open_tokenizer(train_run *run)
{
    const fsdp_settings *s = run->settings;
    if (!reads_text(s))
        return FSDP_OK;
    if (!s->tokenizer)
        return fsdp_tokenizer_byte(&run->tokenizer);
    char *path = NULL;
    FSDP_TRY(hub_find(HUB_MODEL, s->tokenizer, NULL, &path));
    fsdp_status status = fsdp_tokenizer_load(path, &run->tokenizer);
    free(path);
    return status;
}

static dataset_options data_options(const train_run *run, source_part part)
{
    const fsdp_settings *s = run->settings;
    dataset_options o = DATASET_OPTIONS_INIT;
    o.tokenizer = run->tokenizer;
    o.width = s->max_context_width;
    o.target_width = s->max_target_width;
    o.pairs = s->model_type == FSDP_MODEL_T5;
    if (s->source_field)
        o.source_field = s->source_field;
    if (s->target_field)
        o.target_field = s->target_field;
    o.source_prefix = s->source_prefix;
    o.config_name = s->dataset_config_name;
    o.part = part;
    o.strict = s->strict_data;
    o.max_samples = s->max_samples;
    o.n_threads = threads_count();
    return o;
}

/* Validation data: as named, or the data set's own validation files, or a part held back. */
static fsdp_status open_data(train_run *run)
{
    const fsdp_settings *s = run->settings;
    if (s->dataset.n == 0)
        return error_set(FSDP_ERR_INPUT, "no data: name files, folders or a data set with --dataset");
    dataset_options training = data_options(run, SOURCE_TRAINING), validation = data_options(run, SOURCE_VALIDATION);
    FSDP_TRY(dataset_open(s->dataset.items, (size_t)s->dataset.n, &training, &run->data));
    if (s->validation_dataset.n > 0) {
        validation.part = SOURCE_ALL;
        FSDP_TRY(
            dataset_open(s->validation_dataset.items, (size_t)s->validation_dataset.n, &validation, &run->validation));
    } else if (s->validation_split > 0) {
        int64_t n = dataset_describe(run->data).n_samples, held = (int64_t)((double)n * s->validation_split);
        FSDP_TRY(dataset_hold_back(run->data, max_i64(1, held), &run->validation));
    } else if (s->validation_freq > 0) {
        FSDP_TRY(dataset_open(s->dataset.items, (size_t)s->dataset.n, &validation, &run->validation));
    }
    run->info = dataset_describe(run->data);
    if (run->validation)
        run->validation_info = dataset_describe(run->validation);
    return FSDP_OK;
}

/* On the CPU everything lies in host memory already. */
static fsdp_status check_offload(train_run *run)
{
    const fsdp_settings *s = run->settings;
    if (!s->cpu_offload && !s->offload_activations)
        return FSDP_OK;
    const char *flag = s->cpu_offload ? "--cpu_offload" : "--offload_activations";
    if (run->world->dev->graph_begin)
        return error_set(
            FSDP_ERR_UNSUPPORTED,
            "%s is not there yet on GPUs: use --activation_checkpointing full, more ranks, or a smaller batch", flag);
    run_say(run, FSDP_LINE_INFO, "%s: on the CPU everything lies in host memory already", flag);
    return FSDP_OK;
}

static fsdp_status open_model(train_run *run)
{
    const fsdp_settings *s = run->settings;
    int64_t vocabulary = run->tokenizer ? fsdp_tokenizer_vocab_size(run->tokenizer) : 0, n_parameters;
    fsdp_module *net;
    FSDP_TRY(assemble_model(s, max_i64(vocabulary, run->info.vocabulary), &run->info, &run->model_config));
    FSDP_TRY(record_check(&run->model_config, &run->info));
    FSDP_TRY(assemble_count(&run->model_config, &n_parameters));
    FSDP_TRY(assemble_sharding(s, &run->model_config, n_parameters, run->n_ranks, &run->sharding));
    FSDP_TRY(fit_sharding(run));
    FSDP_TRY(check_offload(run));
    if (run->sharding.reason[0])
        run_say(run, FSDP_LINE_INFO, "%s", run->sharding.reason);
    FSDP_TRY(model_create(&run->model_config, &net));
    fsdp_status status = fsdp_shard(run->world, net, &run->sharding.config, &run->model);
    if (status != FSDP_OK) {
        fsdp_module_free(net);
        return status;
    }
    if (s->init_from)
        FSDP_TRY(weights_load(run->model, s->init_from));
    fsdp_optimizer_config optimizer = assemble_optimizer(s);
    FSDP_TRY(fsdp_optimizer_new(run->model, &optimizer, &run->optimizer));
    return model_state_create(run->model, run->optimizer, &run->state);
}

/* Samples of one optimizer step, over all ranks. */
static int64_t step_samples(const train_run *run)
{
    return run->settings->train_batch_size * run->n_ranks * run->settings->gradient_accumulation_steps;
}

static fsdp_status plan_length(train_run *run)
{
    const fsdp_settings *s = run->settings;
    run->steps_per_epoch = ceil_div(run->info.n_samples, step_samples(run));
    int64_t by_epochs = s->epochs > 0 ? s->epochs * run->steps_per_epoch : INT64_MAX;
    run->n_steps = s->max_steps > 0 ? min_i64(s->max_steps, by_epochs) : by_epochs;
    if (run->info.ordered)
        run->n_steps = min_i64(run->n_steps, max_i64(1, run->info.n_samples / step_samples(run)));
    run->lr = assemble_lr(s, run->n_steps, run->steps_per_epoch);
    return fsdp_lr_check(&run->lr);
}

static fsdp_status open_loader(train_run *run)
{
    const fsdp_settings *s = run->settings;
    loader_config c = LOADER_CONFIG_INIT;
    c.rank = run->rank;
    c.world_size = run->n_ranks;
    c.global_batch = s->train_batch_size * run->n_ranks;
    c.seed = (uint64_t)s->seed;
    c.shuffle = s->shuffle;
    c.stop_at_epoch = s->epochs > 0;
    c.position = run->position;
    c.n_threads = (int)max_i64(1, s->loader_threads);
    c.n_prefetch = (int)max_i64(1, s->prefetch_batches);
    return loader_create(run->data, &c, &run->loader);
}

static fsdp_status open_parts(train_run *run)
{
    const fsdp_settings *s = run->settings;
    fsdp_world_config world;
    FSDP_TRY(report_meter(&run->report));
    assemble_world(s, &world);
    FSDP_TRY(fsdp_world_open(&world, &run->world));
    run->rank = fsdp_world_rank(run->world);
    run->n_ranks = fsdp_world_size(run->world);
    run->checkpoint_dir = s->checkpoint_dir ? strdup(s->checkpoint_dir) : file_join(s->output_dir, "checkpoints");
    if (!run->checkpoint_dir)
        return error_set(FSDP_ERR_MEMORY, "opening a job: out of host memory");
    FSDP_TRY(open_tokenizer(run));
    FSDP_TRY(open_data(run));
    FSDP_TRY(open_model(run));
    FSDP_TRY(plan_length(run));
    FSDP_TRY(run_resume(run));
    FSDP_TRY(open_loader(run));
    return report_open(run, run->report);
}

fsdp_status run_open(const fsdp_settings *settings, const fsdp_train_callbacks *callbacks, train_run *run)
{
    memset(run, 0, sizeof *run);
    run->settings = settings;
    run->result = (fsdp_train_result)FSDP_TRAIN_RESULT_INIT;
    if (callbacks)
        memcpy(&run->callbacks, callbacks,
               callbacks->size < sizeof run->callbacks ? callbacks->size : sizeof run->callbacks);
    run->start = run->last_save = clock_seconds();
    run->last_saved_step = -1;
    fsdp_status status = open_parts(run);
    if (status != FSDP_OK) {
        if (run->world)
            fsdp_world_abort(run->world);
        run_close(run);
    }
    return status;
}

void run_close(train_run *run)
{
    loader_free(run->loader);
    ckpt_saver_free(run->saver);
    model_state_free(run->state);
    fsdp_optimizer_free(run->optimizer);
    fsdp_model_free(run->model);
    dataset_free(run->validation);
    dataset_free(run->data);
    fsdp_tokenizer_free(run->tokenizer);
    fsdp_world_close(run->world);
    free(run->checkpoint_dir);
    report_close(run->report);
}
