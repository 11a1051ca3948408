/* Opens what a job reads: its tokenizer, its data, and data to validate with. Long texts become a token file in the
 * user's cache folder, made once and shared by the ranks of a host. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "format/hub/hub.h"
#include "format/hub/hub_fetch.h"
#include "train/run.h"
#include "settings/settings_table.h"
#include "settings/settings_used.h"

static const double seconds_between_lines = 5;
static const int64_t stream_by_default_from = (int64_t)1 << 30; /* bytes on disk */

/* Reading text that takes long says how far it is. */
typedef struct reading {
    train_run *run;
    double began, said;
} reading;

static bool reads_text(const fsdp_settings *s)
{
    return fsdp_model_is_decoder(s->model_type) || s->model_type == FSDP_MODEL_T5;
}

static bool has_file(const char *folder, const char *name)
{
    char *path = file_join(folder, name);
    bool found = path && file_exists(path);
    free(path);
    return found;
}

/* The tokenizer in the folder of the model's weights or configuration, when none is named. If it cannot be read, that
 * is an error only for a run that reads text; run->no_tokenizer keeps the reason. */
static fsdp_status open_models_tokenizer(train_run *run)
{
    static const char *const others[] = {"tokenizer.model", "spiece.model", "vocab.json", "tokenizer_config.json"};
    const char *const places[] = {run->used.init_from, run->used.model_config};
    for (size_t i = 0; i < 2; i++) {
        const char *folder = places[i];
        if (!folder || !file_is_directory(folder))
            continue;
        if (has_file(folder, "tokenizer.json")) {
            fsdp_status status = fsdp_tokenizer_load(folder, &run->tokenizer);
            if (status == FSDP_OK)
                settings_take_tokenizer(&run->used, folder);
            else
                snprintf(run->no_tokenizer, sizeof run->no_tokenizer, "%s", fsdp_last_error());
            return status == FSDP_ERR_MEMORY ? status : FSDP_OK;
        }
        for (size_t k = 0; k < sizeof others / sizeof *others; k++) {
            if (has_file(folder, others[k])) {
                snprintf(run->no_tokenizer, sizeof run->no_tokenizer,
                         "%s has %s and no tokenizer.json, which is what is read: make one (transformers writes it "
                         "with save_pretrained of a fast tokenizer), or name one with --tokenizer",
                         folder, others[k]);
                return FSDP_OK;
            }
        }
    }
    return fsdp_tokenizer_byte(&run->tokenizer);
}

static fsdp_status open_tokenizer(train_run *run)
{
    const fsdp_settings *s = run->settings;
    if (!reads_text(s))
        return FSDP_OK;
    if (!s->tokenizer)
        return open_models_tokenizer(run);
    char *path = NULL;
    FSDP_TRY(hub_find(HUB_MODEL, s->tokenizer, NULL, &path));
    fsdp_status status = fsdp_tokenizer_load(path, &run->tokenizer);
    free(path);
    return status;
}

static void say_reading(void *context, int64_t bytes, int64_t tokens, double part)
{
    reading *r = context;
    double now = clock_seconds();
    if (now - r->said < seconds_between_lines)
        return;
    r->said = now;
    run_say(r->run, FSDP_LINE_PROGRESS, "Reading data: %.0f%%, %.2f GB, %.1f M tokens, %.1f MB/s, left: %.0f s",
            100 * part, 1e-9 * (double)bytes, 1e-6 * (double)tokens, 1e-6 * (double)bytes / (now - r->began),
            part > 0 ? (now - r->began) * (1 - part) / part : 0);
}

/* Text is streamed where it is long and nothing needs its length. */
static int64_t stream_from(const fsdp_settings *s)
{
    bool open_end = s->epochs == 0 && s->validation_split == 0 && s->max_samples == 0 && s->checkpoint_epochs == 0;
    if (s->stream == FSDP_STREAM_ON)
        return 1;
    return s->stream == FSDP_STREAM_AUTO && open_end && s->model_type != FSDP_MODEL_T5 ? stream_by_default_from : 0;
}

static fsdp_dataset_config data_options(const train_run *run, reading *progress)
{
    const fsdp_settings *s = run->settings;
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    o.names = s->dataset.items;
    o.n_names = (size_t)s->dataset.n;
    o.tokenizer = run->tokenizer;
    o.width = s->max_context_width;
    o.target_width = s->max_target_width;
    o.pairs = s->model_type == FSDP_MODEL_T5;
    if (run->source.json && o.pairs) { /* else the model's are made from the tokenizer's */
        o.pad_id = run->source.config.t5.pad_id;
        o.start_id = run->source.config.t5.decoder_start_id;
    }
    if (s->source_field)
        o.source_field = s->source_field;
    if (s->target_field)
        o.target_field = s->target_field;
    o.source_prefix = s->source_prefix;
    o.config_name = s->dataset_config_name;
    o.part = FSDP_PART_TRAINING;
    o.strict = s->strict_data;
    o.chat = s->chat;
    o.chat_template = s->chat_template;
    o.max_samples = s->max_samples;
    o.stream_from_bytes = stream_from(s);
    o.packing = (fsdp_packing)s->packing;
    o.vocabulary = s->vocab_size > 0 ? s->vocab_size : s->tokenizer ? fsdp_tokenizer_vocab_size(run->tokenizer) : 0;
    o.download = s->download;
    o.progress = say_reading;
    o.progress_context = progress;
    return o;
}

/* Validation data: as named, or a part held back, or the data set's own validation files, where it has some. */
static fsdp_status open_validation(train_run *run, fsdp_dataset_config *options)
{
    const fsdp_settings *s = run->settings;
    options->max_samples = 0; /* --max_samples is about training */
    options->stream_from_bytes = 0;
    options->weights = NULL; /* packed as it is trained on: a document sees no other there either */
    if (s->validation_batches > 0 && s->validation_split == 0 &&
        options->packing == FSDP_PACK_ROW) /* they are the first ones: no more is tokenized */
        options->max_samples = s->validation_batches * s->val_batch_size * run->n_ranks;
    if (s->validation_dataset.n > 0) {
        options->part = FSDP_PART_NAMED_VALIDATION;
        options->names = s->validation_dataset.items;
        options->n_names = (size_t)s->validation_dataset.n;
        return fsdp_dataset_open(options, &run->validation);
    }
    if (s->validation_split > 0) {
        int64_t n = fsdp_dataset_count(run->data), held = (int64_t)((double)n * s->validation_split);
        return fsdp_dataset_hold_back(run->data, max_i64(1, held), &run->validation);
    }
    options->part = FSDP_PART_VALIDATION;
    FSDP_TRY(fsdp_dataset_open(options, &run->validation));
    if (!run->validation && run->rank == 0 && s->validation_freq > 0)
        run_say(run, FSDP_LINE_WARNING,
                "nothing is validated: the data set has no validation files of its own; name some with "
                "--validation_dataset, or hold back a part with --validation_split");
    return FSDP_OK;
}

/* Where the weight of "NAME=WEIGHT" begins; NULL: there is none. A file may be called anything. */
static const char *weight_in(const char *item, double *weight)
{
    const char *sign = strrchr(item, '=');
    char *end = NULL;
    if (sign == NULL || sign == item || file_exists(item))
        return NULL;
    *weight = strtod(sign + 1, &end);
    return end > sign + 1 && *end == '\0' ? sign : NULL;
}

/* Sources with weights are mixed; either all have one or none has. */
static fsdp_status read_weights(train_run *run, fsdp_dataset_config *o)
{
    const fsdp_text_list *given = &run->settings->dataset;
    size_t n_weights = 0, n = (size_t)given->n;
    run->mix_names = calloc(n, sizeof *run->mix_names);
    run->mix_weights = calloc(n, sizeof *run->mix_weights);
    if (!run->mix_names || !run->mix_weights)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < n; i++) {
        const char *sign = weight_in(given->items[i], &run->mix_weights[i]);
        n_weights += sign != NULL;
        run->mix_names[i] = sign ? strndup(given->items[i], (size_t)(sign - given->items[i])) : strdup(given->items[i]);
        if (!run->mix_names[i])
            return error_set(FSDP_ERR_MEMORY, "out of memory");
    }
    if (n_weights == 0)
        return FSDP_OK;
    if (n_weights < n)
        return error_set(FSDP_ERR_INPUT, "--dataset: %zu of %zu sources have a weight: give all of them one, or none",
                         n_weights, n);
    o->names = (const char *const *)run->mix_names;
    o->weights = run->mix_weights;
    return FSDP_OK;
}

void run_say_sources(train_run *run)
{
    fsdp_source_use use = FSDP_SOURCE_USE_INIT;
    bool mixed = run->settings->dataset.n > 0 && run->mix_weights && run->mix_weights[0] > 0;
    for (int i = 0; mixed && fsdp_loader_source(run->loader, i, &use) == FSDP_OK; i++)
        run_say(run, FSDP_LINE_INFO, "source           %s: %.3f%% of the samples, %lld so far%s%.3g%s",
                run->mix_names[i], 100 * use.share, (long long)use.samples,
                use.length > 0 ? ", epochs: " : ", in its first epoch (",
                use.length > 0 ? (double)use.samples / (double)use.length : (double)use.samples,
                use.length > 0 ? "" : " samples)");
    if (run->settings->packing == FSDP_PACK_BEST_FIT && fsdp_loader_source(run->loader, 0, &use) == FSDP_OK)
        run_say(run, FSDP_LINE_INFO, "packing          best fit: %.2f%% of the tokens are padding", 100 * use.padding);
}

static fsdp_status check_stream(train_run *run)
{
    const fsdp_settings *s = run->settings;
    fsdp_dataset_info info = FSDP_DATASET_INFO_INIT;
    FSDP_TRY(fsdp_dataset_describe(run->data, &info));
    if (!info.stream && s->stream == FSDP_STREAM_ON)
        return error_set(FSDP_ERR_INPUT, "--stream on: only text can be streamed, not conversations, tokens or images");
    if (!info.stream)
        return FSDP_OK;
    if (s->epochs > 0 || s->checkpoint_epochs > 0 || s->validation_split > 0)
        return error_set(FSDP_ERR_INPUT, "streams, mixed sources and best-fit packing have no length that is known "
                                         "before their end: give --max_steps, and neither --epochs, "
                                         "--checkpoint_epochs nor --validation_split");
    if (run->mix_weights[0] > 0)
        return FSDP_OK;
    run_say(run, FSDP_LINE_INFO,
            "Text is streamed: tokenized while training, shuffled within windows of about half a million tokens "
            "(--stream off tokenizes all of it first)");
    return FSDP_OK;
}

/* Of packed data, samples are counted by packing them. */
static fsdp_status describe_validation(train_run *run)
{
    run->validation_info.size = sizeof run->validation_info;
    FSDP_TRY(fsdp_dataset_describe(run->validation, &run->validation_info));
    return run->validation_info.stream ? run_count_validation(run) : FSDP_OK;
}

/* Validation data alone. */
static fsdp_status open_measured(train_run *run)
{
    double now = clock_seconds();
    reading progress = {run, now, now};
    fsdp_dataset_config options = data_options(run, &progress);
    fsdp_status status = open_validation(run, &options);
    if (status == FSDP_ERR_INPUT && run->no_tokenizer[0])
        return error_prefix(status, "%s: ", run->no_tokenizer);
    FSDP_TRY(status);
    return describe_validation(run);
}

/* The tiny preset names text of this repository; elsewhere the text that is built in takes its place. The settings keep
 * the preset's names: the path of a file in memory means nothing to another process. */
static fsdp_status take_builtin_text(train_run *run, fsdp_dataset_config *options)
{
    const fsdp_settings *s = run->settings;
    const fsdp_flag *flag = fsdp_flags_find(settings_table, "dataset");
    bool all = true;
    for (int i = 0; i < s->dataset.n; i++)
        all = all && file_exists(s->dataset.items[i]);
    if (s->preset != FSDP_PRESET_TINY || s->state.origin[flag - settings_table] != FSDP_FROM_PRESET || all)
        return FSDP_OK;
    FSDP_TRY(builtin_text_open(&run->builtin_text, run->builtin_path));
    run->builtin_items[0] = run->builtin_path;
    options->names = run->builtin_items;
    options->n_names = 1;
    return FSDP_OK;
}

static fsdp_status open_data(train_run *run)
{
    const fsdp_settings *s = run->settings;
    if (run->measures)
        return open_measured(run);
    if (s->dataset.n == 0 && s->dry_run) {
        run->info = (fsdp_dataset_info){.n_samples = 1,
                                        .width = s->max_context_width,
                                        .target_width = s->max_target_width,
                                        .documents = s->packing == FSDP_PACK_BEST_FIT};
        return FSDP_OK;
    }
    if (s->dataset.n == 0)
        return error_set(FSDP_ERR_INPUT, "no data: name files, folders or a data set with --dataset");
    double now = clock_seconds();
    reading progress = {run, now, now};
    fsdp_dataset_config options = data_options(run, &progress);
    fsdp_status status = read_weights(run, &options);
    if (status == FSDP_OK)
        status = take_builtin_text(run, &options);
    if (status == FSDP_OK)
        status = fsdp_dataset_open(&options, &run->data);
    if (status == FSDP_OK)
        status = check_stream(run);
    if (status == FSDP_OK)
        status = open_validation(run, &options);
    if (status == FSDP_ERR_INPUT && run->no_tokenizer[0])
        return error_prefix(status, "%s: ", run->no_tokenizer);
    FSDP_TRY(status);
    run->info.size = run->validation_info.size = sizeof run->info;
    FSDP_TRY(fsdp_dataset_describe(run->data, &run->info));
    return run->validation ? describe_validation(run) : FSDP_OK;
}

/* All ranks read the same: one of them complains. */
static void show_early(void *context, fsdp_log_level level, const char *line)
{
    train_run *run = context;
    if (run->rank == 0 && level >= (fsdp_log_level)run->settings->log_level)
        run_say(run, level >= FSDP_LOG_WARNING ? FSDP_LINE_WARNING : FSDP_LINE_INFO, "%s", line);
}

void run_show_warnings(train_run *run, bool shown)
{
    fsdp_log_set_sink(shown ? show_early : NULL, run, shown ? FSDP_LOG_WARNING : FSDP_LOG_ERROR);
}

static fsdp_status fetch_one(fsdp_fetch_kind kind, const char *name, const atomic_bool *stop)
{
    fsdp_fetch_config config = FSDP_FETCH_CONFIG_INIT;
    config.kind = kind;
    config.name = name;
    config.prefer_local = true;
    return name != NULL ? hub_fetch(&config, NULL, stop) : FSDP_OK;
}

/* Data comes when it is opened, or while it is read. */
static fsdp_status fetch_all(train_run *run, const atomic_bool *stop)
{
    const fsdp_settings *s = run->settings;
    FSDP_TRY(fetch_one(FSDP_FETCH_MODEL, s->init_from, stop));
    FSDP_TRY(fetch_one(FSDP_FETCH_MODEL, s->base, stop));
    return fetch_one(FSDP_FETCH_TOKENIZER, s->tokenizer, stop);
}

static fsdp_status open_text(train_run *run, const atomic_bool *stop)
{
    (void)stop; /* who is not needed any more is ended by whoever started it */
    FSDP_TRY(open_tokenizer(run));
    return open_data(run);
}

static fsdp_status work_aloud(train_run *run, const char *doing, together_work work)
{
    run_show_warnings(run, true);
    if (run->settings->download) /* names each file: this takes long */
        fsdp_log_set_sink(show_early, run, FSDP_LOG_INFO);
    fsdp_status status = run_together(run, doing, work);
    run_show_warnings(run, false);
    return status;
}

fsdp_status run_download(train_run *run)
{
    return run->settings->download ? work_aloud(run, "downloading", fetch_all) : FSDP_OK;
}

fsdp_status run_open_data(train_run *run)
{
    return work_aloud(run, "reading data", open_text);
}
