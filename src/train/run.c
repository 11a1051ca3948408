/* Opening a job in the order in which its parts need each other, and closing it in reverse. */
#include "train/run.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/host/environment.h"
#include "base/host/torch_variables.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text/printable.h"
#include "base/sized.h"
#include "ckpt/commands/report.h"
#include "data/loader.h"
#include "format/hub/hub.h"
#include "train/agree.h"
#include "plan/fit.h"
#include "train/paths.h"
#include "train/record.h"
#include "settings/settings_table.h"
#include "settings/settings_used.h"
#include "settings/shape.h"

void run_say(train_run *run, fsdp_line kind, const char *format, ...)
{
    char *text = NULL;
    size_t bytes;
    va_list arguments;
    if ((run->rank != 0 && kind != FSDP_LINE_WARNING) || run->settings->json)
        return;
    FILE *out = open_memstream(&text, &bytes);
    if (!out)
        return; /* nothing depends on a line that is lost */
    if (run->rank != 0)
        fprintf(out, "rank %d: ", run->rank);
    va_start(arguments, format);
    vfprintf(out, format, arguments);
    va_end(arguments);
    /* Tables have lines; a warning is one. */
    char *shown = fclose(out) == 0 ? printable_copy(text, kind == FSDP_LINE_INFO) : NULL;
    if (shown && run->callbacks.line)
        run->callbacks.line(run->callbacks.context, kind, shown);
    if (shown && run->report && kind != FSDP_LINE_PROGRESS)
        report_said(run->report, kind == FSDP_LINE_WARNING, shown);
    free(shown);
    free(text);
}

/* A hub name where a model is wanted, its configuration, and the architecture that this names. */
fsdp_status run_find_model(train_run *run)
{
    if (run->used.init_from) {
        char *path;
        FSDP_TRY(hub_find(HUB_MODEL, run->used.init_from, NULL, &path));
        run->hub_model = strcmp(path, run->used.init_from) != 0 ? run->used.init_from : NULL;
        bool several = report_is_directory_of_checkpoints(path);
        fsdp_status status = several ? report_resolve(path, &run->init_from) : FSDP_OK; /* the newest of them */
        if (several)
            free(path);
        else
            run->init_from = path;
        FSDP_TRY(status);
        run->used.init_from = run->init_from;
    }
    run_show_warnings(run, true); /* names fields that are not known */
    fsdp_status status = assemble_source(run->settings, &run->source);
    run_show_warnings(run, false);
    FSDP_TRY(status);
    return run->source.json ? settings_take_type(&run->used, &run->source.config) : FSDP_OK;
}

plan_world run_plan_world(const train_run *run)
{
    return (plan_world){run->described ? run->described : run->world->dev, run->n_ranks,
                        run->world->job.local_world_size};
}

static void settle_activations(train_run *run)
{
    fsdp_config *c = &run->sharding.config;
    if (!c->offload_activations || run_plan_world(run).dev->own_memory)
        return;
    run_say(run, FSDP_LINE_INFO,
            "--offload_activations has no effect on the CPU: activations are in host memory already");
    c->offload_activations = false;
}

static bool settle_offload(train_run *run)
{
    if (!assemble_drops_offload(&run->sharding.config, run_plan_world(run).dev))
        return false;
    run->used.cpu_offload_units = (fsdp_text_list){NULL, 0}; /* settings.json, read again, must not contradict itself */
    return true;
}

/* What belongs to --cpu_offload, where nothing is offloaded. */
static void say_idle_offload(train_run *run)
{
    static const char *const flags[] = {"cpu_offload_split", "cpu_offload_ahead", "cpu_offload_resident"};
    const fsdp_settings *s = run->settings;
    const bool set[] = {s->cpu_offload_split, s->cpu_offload_ahead, s->cpu_offload_resident != 0};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (set[i])
            run_say(run, FSDP_LINE_INFO, "--%s has no effect: nothing is offloaded", flags[i]);
}

/* A dry run without data plans validation by the settings alone. */
static bool plans_validation(const train_run *run)
{
    const fsdp_settings *s = run->settings;
    return run->validation || (!run->data && (s->validation_dataset.n > 0 || s->validation_split > 0));
}

static fsdp_status fit_memory(train_run *run, int64_t n_parameters)
{
    const fsdp_dataset_info *validation = run->validation ? &run->validation_info : &run->info;
    run->work = assemble_workload(run->settings, &run->model_config, &run->info,
                                  plans_validation(run) ? validation : NULL, run->n_ranks);
    run->work.backend = run->described ? NULL : fsdp_world_backend(run->world);
    fit_request request = {.settings = run->settings,
                           .work = &run->work,
                           .world = run_plan_world(run),
                           .free = assemble_freedom(run->settings, run_plan_world(run).dev),
                           .n_parameters = n_parameters};
    FSDP_TRY(fit_limit(request.world.dev, request.world.ranks_per_node, comm_world(run->world->comm), &request.limit));
    if (run->described)
        request.limit.host = 0; /* this host is not the one that has such a GPU */
    return fit_sharding(&request, &run->sharding);
}

int64_t run_vocabulary(const train_run *run)
{
    /* Bytes are the tokens of text when no tokenizer is named; data that is tokens already has nothing to do with them.
     */
    bool tokens = run->data ? run->info.tokens : run->validation_info.tokens;
    bool reads_text = run->tokenizer && (run->settings->tokenizer || !tokens);
    int64_t vocabulary = reads_text ? fsdp_tokenizer_vocab_size(run->tokenizer) : 0;
    return max_i64(vocabulary, max_i64(run->info.vocabulary, run->validation_info.vocabulary));
}

/* The model and its sharding, as shapes and choices; nothing is allocated for them yet. */
static fsdp_status choose_model(train_run *run)
{
    const fsdp_settings *s = run->settings;
    bool has_data = run->data != NULL;
    int64_t n_parameters;
    FSDP_TRY(
        assemble_model_from(s, &run->source, run_vocabulary(run), has_data ? &run->info : NULL, &run->model_config));
    if (!run->source.json && run->tokenizer) {
        fsdp_t5_config *t5 = &run->model_config.t5;
        t5->pad_id = t5->decoder_start_id = (int32_t)max_i64(0, fsdp_tokenizer_pad(run->tokenizer));
    }
    FSDP_TRY(shape_to_flags(&run->used, &run->model_config));
    if (has_data)
        FSDP_TRY(record_check("the data set", &run->model_config, &run->info));
    if (run->validation)
        FSDP_TRY(record_check("the validation data", &run->model_config, &run->validation_info));
    FSDP_TRY(assemble_count(&run->model_config, &n_parameters));
    FSDP_TRY(assemble_sharding(s, &run->model_config, n_parameters, run->n_ranks, &run->sharding));
    bool offload_activations = run->sharding.config.offload_activations;
    settle_activations(run);
    bool offloads_in_vain = settle_offload(run);
    fsdp_status fit = fit_memory(run, n_parameters);
    if (fit == FSDP_ERR_INPUT && s->dry_run)
        snprintf(run->misfit, sizeof run->misfit, "%.*s", (int)sizeof run->misfit - 1, fsdp_last_error());
    else
        FSDP_TRY(fit);
    if (offloads_in_vain)
        run_say(run, FSDP_LINE_INFO, ASSEMBLE_IDLE_OFFLOAD);
    else if (!run->sharding.config.cpu_offload)
        say_idle_offload(run);
    fsdp_config chosen = run->sharding.config;
    chosen.offload_activations = offload_activations; /* also on a CPU, which has no use for it */
    settings_take_sharding(&run->used, &chosen);
    return FSDP_OK;
}

static int64_t get_position(void *context)
{
    return ((const train_run *)context)->position;
}

/* The loader is opened later, where the run then stands. */
static fsdp_status set_position(void *context, int64_t position)
{
    ((train_run *)context)->position = position;
    return FSDP_OK;
}

static fsdp_status open_state(train_run *run)
{
    const fsdp_settings *s = run->settings;
    fsdp_state_config c = FSDP_STATE_CONFIG_INIT;
    c.model = run->model;
    c.optimizer = run->optimizer;
    c.directory = run->folder.checkpoints;
    c.kind = (fsdp_checkpoint_kind)s->checkpoint_kind;
    c.keep = (int)s->keep_checkpoints;
    c.keep_every = s->keep_every;
    c.position = (fsdp_data_position){get_position, set_position, run};
    if (run->model_config.lora.rank > 0 && s->init_from && !s->checkpoint_base)
        c.base = run->hub_model ? run->hub_model : "";
    if (s->export_part_size > 0)
        c.max_file_bytes = s->export_part_size;
    return fsdp_state_open(&c, &run->state);
}

static fsdp_status open_model(train_run *run)
{
    const fsdp_settings *s = run->settings;
    fsdp_module *net;
    FSDP_TRY(model_create(&run->model_config, &net));
    run->model_config.lora = model_config_of(net)->lora; /* with the names of the layers that were found */
    fsdp_status status = fsdp_shard(run->world, net, &run->sharding.config, &run->model);
    if (status != FSDP_OK) {
        fsdp_module_free(net);
        return status;
    }
    fsdp_weights_config weights = FSDP_WEIGHTS_CONFIG_INIT;
    weights.base = s->base;
    if (s->init_from)
        FSDP_TRY(fsdp_weights_load(run->model, s->init_from, &weights, NULL));
    if (s->adapter)
        FSDP_TRY(fsdp_adapter_load(run->model, s->adapter));
    void *groups = NULL;
    fsdp_optimizer_config optimizer = assemble_optimizer(s);
    status = assemble_groups(s, &optimizer, &groups);
    if (status == FSDP_OK)
        status = fsdp_optimizer_new(run->model, &optimizer, &run->optimizer);
    free(groups);
    return status == FSDP_OK ? open_state(run) : status;
}

/* Samples of one optimizer step, over all ranks. */
static int64_t step_samples(const train_run *run)
{
    return run->micro_samples * run->settings->gradient_accumulation_steps;
}

/* Steps of this world size from the data's position to the end of --epochs. A step does not reach into the next epoch.
 */
static int64_t steps_left(const train_run *run)
{
    int64_t n = run->info.n_samples, epoch = run->position / n;
    if (epoch >= run->settings->epochs)
        return 0;
    int64_t whole_epochs = run->settings->epochs - epoch - 1;
    return ceil_div(n - run->position % n, step_samples(run)) + whole_epochs * run->steps_per_epoch;
}

fsdp_status run_plan_length(train_run *run)
{
    const fsdp_settings *s = run->settings;
    run->steps_per_epoch = ceil_div(run->info.n_samples, step_samples(run));
    int64_t whole; /* steps of all epochs, as this world size counts */
    if (checked_mul_i64(s->epochs, run->steps_per_epoch, &whole))
        return error_set(FSDP_ERR_INPUT, "--epochs %lld of %lld steps each are more steps than can be counted",
                         (long long)s->epochs, (long long)run->steps_per_epoch);
    int64_t by_epochs = s->epochs > 0 ? run->step + steps_left(run) : INT64_MAX;
    run->n_steps = s->max_steps > 0 ? min_i64(s->max_steps, by_epochs) : by_epochs;
    run->schedule_offset = s->max_steps > 0 || s->epochs == 0 ? 0 : whole - by_epochs;
    run->lr = assemble_lr(s, run->n_steps + run->schedule_offset, run->steps_per_epoch);
    return fsdp_lr_check(&run->lr);
}

double run_epochs(const train_run *run)
{
    int64_t n = run->loader ? loader_epoch_samples(run->loader) : run->info.n_samples;
    return n < FSDP_ENDLESS ? (double)run->position / (double)n : 0;
}

static fsdp_status open_loader(train_run *run)
{
    const fsdp_settings *s = run->settings;
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    c.batch = run->micro_samples;
    c.seed = (uint64_t)s->seed;
    c.shuffle = s->shuffle;
    c.stop_at_epoch = s->epochs > 0;
    c.position = run->position;
    c.same_rows = run->info.kind != FSDP_DATASET_IMAGES;
    c.threads = (int)max_i64(1, s->loader_threads);
    c.prefetch = (int)max_i64(1, s->prefetch_batches);
    FSDP_TRY(fsdp_loader_new(run->world, run->data, &c, &run->loader));
    fsdp_loader_attach(run->loader, run->model);
    const json_t *loaded = state_loaded_extra(run->state);
    return loaded ? loader_restore(run->loader, fsdp_state_path(run->state), json_object_get(loaded, "data"),
                                   run->position)
                  : FSDP_OK;
}

/* Printed when everything is open, so that a failure before has one line, its own. */
static void say_choice(train_run *run)
{
    if (run->sharding.reason[0])
        run_say(run, FSDP_LINE_INFO, "%s", run->sharding.reason);
}

static fsdp_status open_world(train_run *run, fsdp_world_config *config)
{
    if (run->settings->dry_run && device_is_described(config->device)) {
        FSDP_TRY(device_describe(config->device, &run->described));
        config->device = "cpu";
        return fsdp_world_open(config, &run->world);
    }
    fsdp_status status = fsdp_world_open(config, &run->world);
    if (status == FSDP_ERR_UNSUPPORTED && strcmp(config->device, "cuda") == 0)
        return error_prefix(FSDP_ERR_INPUT, "--device cuda (--device auto takes the CPU where there is no GPU): ");
    return status;
}

/* A job that its launcher has started again with more or fewer ranks keeps its batch, and with it the order of samples:
 * the fewest micro-batches that are equally large and give no rank more samples than it was to have. */
static fsdp_status keep_batch(train_run *run)
{
    fsdp_settings *s = &run->used;
    int64_t first = run->world->job.first_world_size, samples, most = s->train_batch_size * run->n_ranks;
    run->micro_samples = most;
    if (first == 0 || first == run->n_ranks)
        return FSDP_OK;
    if (checked_mul_i64(s->train_batch_size * first, s->gradient_accumulation_steps, &samples))
        return error_set(FSDP_ERR_INPUT, "a step of %lld ranks has more samples than can be counted", (long long)first);
    int64_t n = ceil_div(samples, most);
    while (samples % n != 0)
        n++;
    run->micro_samples = samples / n;
    s->gradient_accumulation_steps = n;
    s->train_batch_size = ceil_div(run->micro_samples, run->n_ranks);
    run_say(run, FSDP_LINE_INFO,
            "%d rank%s instead of %lld: a step still has %lld samples, in %lld micro-batch%s of %lld", run->n_ranks,
            run->n_ranks == 1 ? "" : "s", (long long)first, (long long)samples, (long long)n, n == 1 ? "" : "es",
            (long long)run->micro_samples);
    if (n > 1 && s->gradient_dtype != FSDP_F32) { /* to which nothing can be added: the job would end here */
        run_say(run, FSDP_LINE_INFO, "--gradient_dtype %s is for steps of one micro-batch: gradients are fp32 here",
                fsdp_dtype_name((fsdp_dtype)s->gradient_dtype));
        s->gradient_dtype = FSDP_F32;
    }
    return FSDP_OK;
}

/* The name that PyTorch's jobs know it by, where the flag was not given. False: it is no number of seconds. */
static bool take_timeout(train_run *run)
{
    fsdp_settings *s = &run->used;
    const char *text = environment_text("NCCL_TIMEOUT");
    return !text || fsdp_settings_given(s, "comm_timeout") ||
           fsdp_flags_set(settings_table, s, &s->state, "comm_timeout", text, FSDP_FROM_OTHERS) == FSDP_OK;
}

static fsdp_status open_parts(train_run *run)
{
    const fsdp_settings *s = run->settings;
    fsdp_world_config world;
    FSDP_TRY(report_meter(&run->report));
    bool timeout_taken = take_timeout(run);
    assemble_world(s, &world);
    FSDP_TRY(open_world(run, &world));
    run->rank = fsdp_world_rank(run->world);
    run->n_ranks = fsdp_world_size(run->world);
    run_show_warnings(run, true);
    torch_variables_check(TORCH_RANK);
    if (!timeout_taken)
        log_write(FSDP_LOG_WARNING, "NCCL_TIMEOUT=%s is ignored: --comm_timeout takes seconds, above 0",
                  environment_text("NCCL_TIMEOUT"));
    run_show_warnings(run, false);
    FSDP_TRY(keep_batch(run));
    FSDP_TRY(run_folder_choose(run));
    if (!s->dry_run)
        FSDP_TRY(paths_check(s, run->folder.checkpoints));
    FSDP_TRY(run_download(run));
    FSDP_TRY(run_find_model(run));
    FSDP_TRY(run_open_data(run));
    FSDP_TRY(run_agree(run, false));
    FSDP_TRY(choose_model(run));
    if (!s->dry_run)
        FSDP_TRY(run_fingerprint(run));
    FSDP_TRY(run_agree(run, true));
    if (s->dry_run) {
        say_choice(run);
        return FSDP_OK;
    }
    FSDP_TRY(open_model(run));
    FSDP_TRY(run_resume(run));
    FSDP_TRY(run_plan_length(run));
    FSDP_TRY(open_loader(run));
    FSDP_TRY(run_folder_claim(run));
    FSDP_TRY(report_open(run, run->report));
    run_warn_vocabulary(run);
    return run_say_start(run);
}

fsdp_status run_open(const fsdp_settings *settings, const fsdp_train_callbacks *callbacks, train_run *run)
{
    fsdp_train_callbacks full = FSDP_TRAIN_CALLBACKS_INIT;
    if (callbacks)
        FSDP_TRY(sized_read(&full, sizeof full, callbacks, "fsdp_train_callbacks", "FSDP_TRAIN_CALLBACKS_INIT"));
    memset(run, 0, sizeof *run);
    run->callbacks = full;
    run->used = *settings; /* its texts stay the caller's */
    run->settings = &run->used;
    run->result = (fsdp_train_result)FSDP_TRAIN_RESULT_INIT;
    run->start = run->last_save = clock_seconds();
    run->last_saved_step = -1;
    run->builtin_text = -1;
    run->folder_locks[0] = run->folder_locks[1] = -1;
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
    report_leave_device(run->report);
    fsdp_loader_free(run->loader);
    for (int i = 0; run->mix_names && i < run->settings->dataset.n; i++)
        free(run->mix_names[i]);
    free(run->mix_names);
    free(run->mix_weights);
    fsdp_state_close(run->state);
    fsdp_optimizer_free(run->optimizer);
    fsdp_model_free(run->model);
    fsdp_dataset_free(run->validation);
    fsdp_dataset_free(run->data);
    if (run->builtin_text >= 0)
        close(run->builtin_text);
    fsdp_tokenizer_free(run->tokenizer);
    fsdp_world_close(run->world);
    device_close(run->described);
    run_folder_leave(run);
    json_decref(run->lineage);
    free(run->init_from);
    model_source_free(&run->source);
    report_close(run->report);
}
