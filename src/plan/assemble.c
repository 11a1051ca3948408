/* Turns settings into the configurations of the parts. */
#include "plan/assemble.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "ckpt/save/save.h"
#include "models/family.h"
#include "nn/module.h"
#include "observe/units.h"
#include "optim/update.h"
#include "settings/settings_table.h"
#include "settings/shape.h"
#include "state/weights.h"

/* The configuration file of a model folder; NULL when there is none. malloc'd. */
static char *config_of(const char *folder)
{
    char *path = folder && file_is_directory(folder) ? file_join(folder, "config.json") : NULL;
    if (path && !file_exists(path)) {
        free(path);
        path = NULL;
    }
    return path;
}

/* What the flags leave open about images is the data set's. */
static void images_from_flags(const fsdp_settings *s, const fsdp_dataset_info *images, model_config *out)
{
    fsdp_cnn_config *c = &out->cnn;
    c->channels = s->image_channels ? s->image_channels : images ? images->channels : 1;
    c->height = s->image_height ? s->image_height : images ? images->height : 28;
    c->width = s->image_width ? s->image_width : images ? images->image_width : 28;
    c->classes = s->num_classes ? s->num_classes : images ? images->n_classes : 10;
    out->mlp.inputs = c->channels * c->height * c->width;
    out->mlp.outputs = c->classes;
}

/* Of the families that have it: what is dropped is a matter of training, not of the shape. */
static void set_dropout(const fsdp_settings *s, model_config *out)
{
    if (out->type == MODEL_T5)
        out->t5.dropout = (float)s->dropout;
    if (out->type == MODEL_DECODER && out->decoder.family == FSDP_FAMILY_GPT2)
        out->decoder.embedding_dropout = out->decoder.residual_dropout = out->decoder.attention_dropout =
            (float)s->dropout;
}

static void model_from_flags(const fsdp_settings *s, const fsdp_dataset_info *images, model_config *out)
{
    static const fsdp_family families[] = {
        [FSDP_MODEL_MISTRAL] = FSDP_FAMILY_MISTRAL, [FSDP_MODEL_QWEN2] = FSDP_FAMILY_QWEN2,
        [FSDP_MODEL_QWEN3] = FSDP_FAMILY_QWEN3,     [FSDP_MODEL_GEMMA3] = FSDP_FAMILY_GEMMA3,
        [FSDP_MODEL_GPT2] = FSDP_FAMILY_GPT2,       [FSDP_MODEL_PHI3] = FSDP_FAMILY_PHI3};
    fsdp_decoder_config *decoder = &out->decoder;
    shape_from_flags(s, out);
    decoder->positions = s->max_context_width;
    decoder->padding_id = -1;
    decoder->family = families[s->model_type];
    const fsdp_decoder_config *defaults = &family_of(decoder->family)->defaults;
    decoder->function = defaults->function;
    decoder->rope_local_base = decoder->window > 0 ? defaults->rope_local_base : 0;
    if (decoder->window > 0)
        decoder_default_layers(decoder);
    if (out->t5.decoder_layers == 0)
        out->t5.decoder_layers = out->t5.layers;
    out->t5.scale_decoder_outputs = out->t5.tied;
    images_from_flags(s, images, out);
}

fsdp_status assemble_source(const fsdp_settings *s, model_source *out)
{
    char *inside = s->model_config ? NULL : config_of(s->init_from);
    const char *path = s->model_config ? s->model_config : inside;
    *out = (model_source){.json = NULL};
    fsdp_status status = path ? model_config_open(path, &out->config, &out->json) : FSDP_OK;
    if (status == FSDP_OK && path && !(out->path = strdup(path)))
        status = error_set(FSDP_ERR_MEMORY, "reading %s: out of host memory", path);
    if (status == FSDP_OK && path && s->init_from)
        status = weights_settle_head(s->init_from, &out->config);
    free(inside);
    if (status != FSDP_OK)
        model_source_free(out);
    return status;
}

void model_source_free(model_source *source)
{
    json_decref(source->json);
    free(source->path);
    *source = (model_source){.json = NULL};
}

/* Texts of this job are no longer than --max_context_width, and tables of positions need not be. */
static fsdp_status limit_positions(const fsdp_settings *s, const model_source *source, fsdp_decoder_config *c)
{
    bool stretches = c->rope_scaling == FSDP_ROPE_DYNAMIC; /* beyond what the file says is what it is for */
    if (!stretches && s->max_context_width > c->positions && fsdp_settings_given(s, "max_context_width"))
        return error_set(FSDP_ERR_INPUT, "--max_context_width %lld is more than the %lld positions of %s",
                         (long long)s->max_context_width, (long long)c->positions, source->path);
    if (s->max_context_width > 0)
        decoder_limit_positions(c, stretches && fsdp_settings_given(s, "max_context_width")
                                       ? s->max_context_width
                                       : min_i64(c->positions, s->max_context_width));
    return FSDP_OK;
}

/* Adapters: those of --adapter, those of the flags, or those of the checkpoint that --init_from names. */
static fsdp_status set_lora(const fsdp_settings *s, fsdp_lora_config *out)
{
    fsdp_lora_config c = FSDP_LORA_CONFIG_INIT;
    size_t used = 0;
    if (s->adapter) {
        FSDP_TRY(fsdp_adapter_config(s->adapter, &c));
        if (s->lora_rank > 0 && s->lora_rank != c.rank)
            return error_set(FSDP_ERR_INPUT, "--lora_rank is %lld, the adapter in %s has rank %lld",
                             (long long)s->lora_rank, s->adapter, (long long)c.rank);
        if (fsdp_settings_given(s, "lora_dropout"))
            c.dropout = s->lora_dropout;
        *out = c;
        return FSDP_OK;
    }
    if (s->lora_rank == 0)
        return FSDP_OK;
    c.rank = s->lora_rank;
    c.alpha = s->lora_alpha;
    c.dropout = s->lora_dropout;
    c.rslora = s->lora_rslora;
    for (int i = 0; i < s->lora_targets.n && used < sizeof c.targets; i++)
        used +=
            (size_t)snprintf(c.targets + used, sizeof c.targets - used, "%s%s", i ? "," : "", s->lora_targets.items[i]);
    if (used >= sizeof c.targets)
        return error_set(FSDP_ERR_INPUT, "--lora_targets: the list is longer than %zu characters", sizeof c.targets);
    *out = c;
    return FSDP_OK;
}

/* A configuration file has its vocabulary, often a little more than the tokenizer's. */
static fsdp_status fit_vocabulary(const fsdp_settings *s, bool from_file, int64_t needed, int64_t *vocabulary)
{
    if (*vocabulary == 0 || (needed > 0 && !from_file && !fsdp_settings_given(s, "vocab_size") && s->tokenizer))
        *vocabulary = needed;
    if (*vocabulary < needed)
        return error_set(FSDP_ERR_INPUT,
                         "the tokenizer or data has %lld tokens, the model's vocabulary %lld: raise --vocab_size or "
                         "choose the tokenizer that belongs to the model",
                         (long long)needed, (long long)*vocabulary);
    return FSDP_OK;
}

fsdp_status assemble_model_from(const fsdp_settings *s, const model_source *source, int64_t vocabulary,
                                const fsdp_dataset_info *images, model_config *out)
{
    bool found = source->json != NULL;
    model_type type = fsdp_model_is_decoder(s->model_type) ? MODEL_DECODER
                      : s->model_type == FSDP_MODEL_T5     ? MODEL_T5
                      : s->model_type == FSDP_MODEL_CNN    ? MODEL_CNN
                                                           : MODEL_MLP;
    *out = found ? source->config : model_config_default(type);
    if (!found)
        model_from_flags(s, images, out);
    else if (out->type == MODEL_DECODER)
        FSDP_TRY(limit_positions(s, source, &out->decoder));
    if (fsdp_settings_given(s, "dropout"))
        set_dropout(s, out);
    FSDP_TRY(set_lora(s, &out->lora));
    if (s->export_adapter && out->lora.rank == 0)
        return error_set(FSDP_ERR_INPUT, "--export_adapter: there is no adapter; set --lora_rank or --adapter");
    if (s->lora_base && out->lora.rank == 0)
        return error_set(FSDP_ERR_INPUT,
                         "--lora_base=int8: all weights are trained, so none can be kept in 8 bits; set "
                         "--lora_rank or --adapter");
    if (out->type == MODEL_DECODER)
        return fit_vocabulary(s, found, vocabulary, &out->decoder.vocabulary);
    if (out->type == MODEL_T5)
        return fit_vocabulary(s, found, vocabulary, &out->t5.vocabulary);
    return FSDP_OK;
}

fsdp_status assemble_model(const fsdp_settings *s, int64_t vocabulary, const fsdp_dataset_info *images,
                           model_config *out)
{
    model_source source;
    FSDP_TRY(assemble_source(s, &source));
    fsdp_status status = assemble_model_from(s, &source, vocabulary, images, out);
    model_source_free(&source);
    return status;
}

void assemble_world(const fsdp_settings *s, fsdp_world_config *out)
{
    static const char *const backends[] = {NULL, "self", "shm", "mpi", "nccl", "ucx"};
    *out = (fsdp_world_config)FSDP_WORLD_CONFIG_INIT;
    if (s->device)
        out->device = s->device;
    if (s->products)
        out->products = s->products;
    out->backend = backends[s->comm_backend];
    out->threads = (int)s->threads;
    out->comm_timeout = s->comm_timeout;
    out->comm_thread = s->comm_thread;
    out->comm_ctas = s->comm_ctas;
    out->comm_memory = (fsdp_comm_memory)s->comm_memory;
    out->reduce_accumulation = (fsdp_reduce_accumulation)s->reduce_accumulation;
}

static int64_t count_tree(const fsdp_module *m)
{
    int64_t n = 0;
    for (int i = 0; i < m->n_parameters; i++)
        n += m->parameters[i]->numel;
    for (int i = 0; i < m->n_children; i++)
        n += count_tree(m->children[i]);
    return n;
}

fsdp_status assemble_count(const model_config *model, int64_t *n_parameters)
{
    model_config small = *model;
    decoder_limit_positions(&small.decoder, 1); /* rotary tables are not parameters */
    fsdp_module *net;
    FSDP_TRY(model_create(&small, &net));
    *n_parameters = count_tree(net);
    fsdp_module_free(net);
    return FSDP_OK;
}

/* Chooses by model size, and gives the reason. What the user set stays. */
static void recommend(const fsdp_settings *s, assembled_sharding *out, int64_t n_parameters, int world_size)
{
    const struct {
        double below;
        fsdp_strategy strategy;
        bool offload;
        const char *range;
    } guide[] = {{1e9, FSDP_NO_SHARD, false, "under 1B"},
                 {10e9, FSDP_SHARD_GRAD_OP, true, "1B to 10B"},
                 {70e9, FSDP_FULL, true, "10B to 70B"},
                 {1e30, FSDP_FULL, true, "above 70B"}};
    char count[UNITS_TEXT];
    fsdp_config *c = &out->config;
    int i = 0;
    while ((double)n_parameters >= guide[i].below)
        i++;
    c->strategy = guide[i].strategy;
    bool declined = fsdp_settings_given(s, "offload_activations") ||
                    (fsdp_settings_given(s, "activation_checkpointing") && c->checkpointing == FSDP_CHECKPOINT_NONE);
    if (guide[i].offload && !declined) {
        c->offload_activations = true;
        if (c->checkpointing == FSDP_CHECKPOINT_NONE)
            c->checkpointing = FSDP_CHECKPOINT_FULL;
    }
    bool as_guided = c->offload_activations == guide[i].offload;
    const char *offload = c->offload_activations ? " with activation offload" : " without activation offload";
    snprintf(out->reason, sizeof out->reason, "strategy %s%s: recommended for %s parameters (%s) on %d rank%s%s",
             fsdp_strategy_name(c->strategy), as_guided ? offload : "", units_count(count, (double)n_parameters),
             guide[i].range, world_size, world_size == 1 ? "" : "s", as_guided ? "" : "; activation offload as given");
}

static fsdp_status set_wrap(const fsdp_settings *s, const model_config *model, assembled_sharding *out)
{
    const char *block = model_block_type(model);
    if (s->wrap_policy == FSDP_WRAP_NONE)
        return FSDP_OK;
    if (s->wrap_policy == FSDP_WRAP_SIZE || (!block && s->wrap_types.n == 0)) {
        out->config.wrap = fsdp_wrap_by_size(s->min_num_params);
        return FSDP_OK;
    }
    size_t used = 0;
    if (s->wrap_types.n == 0)
        snprintf(out->wrap_types, sizeof out->wrap_types, "%s", block);
    for (int i = 0; i < (int)s->wrap_types.n && used < sizeof out->wrap_types; i++)
        used += (size_t)snprintf(out->wrap_types + used, sizeof out->wrap_types - used, "%s%s", i ? "," : "",
                                 s->wrap_types.items[i]);
    if (used >= sizeof out->wrap_types)
        return error_set(FSDP_ERR_INPUT, "--wrap_types: the list is too long");
    out->config.wrap = fsdp_wrap_by_type(out->wrap_types);
    return FSDP_OK;
}

static fsdp_status set_weights(const fsdp_settings *s, int world_size, assembled_sharding *out)
{
    if (s->shard_weights.n == 0)
        return FSDP_OK;
    if ((int)s->shard_weights.n != world_size || world_size > (int)(sizeof out->weights / sizeof out->weights[0]))
        return error_set(FSDP_ERR_INPUT, "--shard_weights has %d numbers for %d ranks", (int)s->shard_weights.n,
                         world_size);
    FSDP_TRY(settings_shard_weights(s, out->weights));
    out->config.shard_weights = out->weights;
    return FSDP_OK;
}

fsdp_status assemble_sharding(const fsdp_settings *s, const model_config *model, int64_t n_parameters, int world_size,
                              assembled_sharding *out)
{
    memset(out, 0, sizeof *out);
    fsdp_config *c = &out->config;
    *c = (fsdp_config)FSDP_CONFIG_INIT;
    c->param_dtype = (fsdp_dtype)s->param_dtype;
    c->reduce_dtype = (fsdp_dtype)s->reduce_dtype;
    c->gradient_dtype = (fsdp_dtype)s->gradient_dtype;
    c->buffer_dtype = (fsdp_dtype)s->buffer_dtype;
    c->seed = (uint64_t)s->seed;
    c->shard_group_size = (int)s->shard_group_size;
    c->unit_strategies = s->unit_strategies.items;
    c->n_unit_strategies = (int)s->unit_strategies.n;
    c->freeze = s->freeze.items;
    c->n_freeze = (int)s->freeze.n;
    c->fp8 = (fsdp_fp8)s->fp8;
    c->fp8_weights = (fsdp_fp8_weights)s->fp8_weights;
    c->fp8_check = s->fp8_check > 0 && s->fp8 != FSDP_FP8_OFF;
    c->fp8_skip = s->fp8_skip.items;
    c->n_fp8_skip = (int)s->fp8_skip.n;
    c->int8_frozen = s->lora_base != 0;
    c->bucket_bytes = s->bucket_mb << 20;
    c->gather_buffers = s->limit_all_gathers ? (int)max_i64(1, s->gather_buffers) : 1 << 20;
    c->forward_prefetch = s->forward_prefetch;
    c->backward_prefetch = (fsdp_prefetch)s->backward_prefetch;
    c->checkpointing = (fsdp_checkpointing)s->activation_checkpointing;
    c->recompute_cheap = s->recompute_cheap;
    c->offload_activations = s->offload_activations;
    c->cpu_offload = s->cpu_offload;
    c->cpu_offload_units = s->cpu_offload_units.items;
    c->n_cpu_offload_units = (int)s->cpu_offload_units.n;
    c->cpu_offload_split = s->cpu_offload_split;
    c->cpu_offload_ahead = s->cpu_offload_ahead;
    c->cpu_offload_resident = (int)max_i64(s->cpu_offload_resident, 0); /* auto: fit.c finds it */
    c->sync_each_micro_batch = s->sync_each_micro_batch;
    c->deterministic = s->deterministic;
    c->loss_scale = (float)s->loss_scale;
    c->decay_vectors = s->optimizer == FSDP_ADAM || s->optimizer == FSDP_SGD;
    FSDP_TRY(set_wrap(s, model, out));
    FSDP_TRY(set_weights(s, world_size, out));
    if (s->sharding_strategy >= 0)
        c->strategy = (fsdp_strategy)s->sharding_strategy;
    else if (s->sharding_strategy == FSDP_STRATEGY_RECOMMENDED)
        recommend(s, out, n_parameters, world_size);
    return FSDP_OK; /* auto: fit.c decides when it knows the memory */
}

static bool saves_beside(const fsdp_settings *s)
{
    return s->async_checkpoint &&
           (s->checkpoint_at_end || s->checkpoint_freq > 0 || s->checkpoint_minutes > 0 || s->checkpoint_epochs > 0);
}

/* Images of a batch that the data set cannot fill are recorded as far as there are any; texts have full shapes. */
static int64_t validation_rows(const fsdp_settings *s, const fsdp_dataset_info *validation, int n_ranks)
{
    int64_t batch = s->val_batch_size ? s->val_batch_size : s->train_batch_size;
    if (validation->kind != FSDP_DATASET_IMAGES || validation->n_samples == 0)
        return batch;
    return min_i64(batch, ceil_div(validation->n_samples, n_ranks));
}

workload assemble_workload(const fsdp_settings *s, const model_config *model, const fsdp_dataset_info *data,
                           const fsdp_dataset_info *validation, int n_ranks)
{
    fsdp_optimizer_config optimizer = assemble_optimizer(s);
    workload w = {.model = *model,
                  .batch = s->train_batch_size,
                  .width = data->width,
                  .target = data->target_width,
                  .documents = data->documents && model->type == MODEL_DECODER,
                  .moments = update_kept(&optimizer),
                  .optimizer = optimizer.kind,
                  .half_moments = update_halves(&optimizer),
                  .snapshot = saves_beside(s) ? ckpt_saver_room : NULL,
                  .hot = s->snapshot_freq > 0 ? ckpt_saver_room : NULL,
                  .comm_memory = (fsdp_comm_memory)s->comm_memory,
                  .micro_batches = s->gradient_accumulation_steps,
                  .reduce_accumulation = (fsdp_reduce_accumulation)s->reduce_accumulation,
                  .snapshot_of_all = s->checkpoint_kind == FSDP_CKPT_LOCAL};
    if (validation) {
        w.validation_batch = validation_rows(s, validation, n_ranks);
        w.validation_width = validation->width;
        w.validation_target = validation->target_width;
        w.validation_documents = validation->documents && model->type == MODEL_DECODER;
    }
    return w;
}

bool assemble_may_offload(const fsdp_settings *s, const device *dev)
{
    return dev->own_memory && update_is_local((fsdp_optimizer_kind)s->optimizer);
}

/* Who offloads activations has chosen checkpointing as well; who names units has chosen to offload those. */
plan_freedom assemble_freedom(const fsdp_settings *s, const device *dev)
{
    bool offloads = fsdp_settings_given(s, "offload_activations") && s->offload_activations;
    bool may_offload =
        assemble_may_offload(s, dev) && !fsdp_settings_given(s, "cpu_offload") && s->cpu_offload_units.n == 0;
    bool kept_open = s->cpu_offload_resident == FSDP_RESIDENT_AUTO ||
                     (may_offload && !fsdp_settings_given(s, "cpu_offload_resident"));
    return (plan_freedom){.strategy = s->sharding_strategy < 0,
                          .checkpointing = !fsdp_settings_given(s, "activation_checkpointing") && !offloads,
                          .offload_activations = dev->own_memory && !fsdp_settings_given(s, "offload_activations"),
                          .cpu_offload = may_offload,
                          .cpu_offload_resident = dev->own_memory && kept_open,
                          .fp8_weights = s->fp8 != FSDP_FP8_OFF && s->fp8_weights == FSDP_FP8_WEIGHTS_AUTO &&
                                         s->gradient_accumulation_steps > 1};
}

fsdp_optimizer_config assemble_optimizer(const fsdp_settings *s)
{
    fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
    c.kind = (fsdp_optimizer_kind)s->optimizer;
    c.lr = (float)s->lr;
    c.beta1 = (float)s->beta1;
    c.beta2 = (float)s->beta2;
    c.eps = (float)s->eps;
    c.weight_decay = (float)s->weight_decay;
    c.momentum = (float)s->momentum;
    c.muon_momentum = (float)s->muon_momentum;
    c.adafactor_decay = (float)s->adafactor_decay;
    c.adafactor_clip = (float)s->adafactor_clip;
    c.adafactor_scale = s->adafactor_scale;
    c.adafactor_relative_step = s->adafactor_relative_step;
    c.average = (float)s->ema;
    c.clip = (float)s->grad_clip;
    c.state_dtype = (fsdp_dtype)s->optimizer_state;
    return c;
}

/* "GLOB=X": the pattern, copied to `text`, and the number. */
static fsdp_status parse_group(const char *flag, const char *item, char *text, float *value)
{
    const char *equals = strrchr(item, '=');
    char *end = NULL;
    double number = equals ? strtod(equals + 1, &end) : 0;
    if (!equals || equals == item || !equals[1] || *end || !(number >= 0) || number > 1e6)
        return error_set(FSDP_ERR_INPUT, "--%s %s: write GLOB=X, a pattern of parameter names and a number from 0 on",
                         flag, item);
    memcpy(text, item, (size_t)(equals - item));
    text[equals - item] = '\0';
    *value = (float)number;
    return FSDP_OK;
}

fsdp_status assemble_groups(const fsdp_settings *s, fsdp_optimizer_config *c, void **memory)
{
    const fsdp_text_list *lists[] = {&s->lr_groups, &s->weight_decay_groups};
    static const char *const flags[] = {"lr_groups", "weight_decay_groups"};
    size_t n = (size_t)(s->lr_groups.n + s->weight_decay_groups.n), bytes = n * sizeof(fsdp_optimizer_group);
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < lists[k]->n; i++)
            bytes += strlen(lists[k]->items[i]) + 1;
    *memory = n > 0 ? malloc(bytes) : NULL;
    if (n == 0)
        return FSDP_OK;
    if (!*memory)
        return error_set(FSDP_ERR_MEMORY, "parameter groups: out of host memory");
    fsdp_optimizer_group *groups = *memory;
    char *text = (char *)(groups + n);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < lists[k]->n; i++) {
            fsdp_optimizer_group *group = &groups[c->n_groups++];
            *group = (fsdp_optimizer_group)FSDP_OPTIMIZER_GROUP_INIT;
            group->pattern = text;
            FSDP_TRY(
                parse_group(flags[k], lists[k]->items[i], text, k == 0 ? &group->lr_factor : &group->weight_decay));
            text += strlen(lists[k]->items[i]) + 1;
        }
    }
    c->groups = groups;
    return FSDP_OK;
}

fsdp_lr_config assemble_lr(const fsdp_settings *s, int64_t n_steps, int64_t steps_per_epoch)
{
    fsdp_lr_config c = FSDP_LR_CONFIG_INIT;
    c.decay = (fsdp_decay)s->lr_decay_style;
    c.lr = s->lr;
    c.min_lr = s->min_lr;
    c.warmup = fsdp_settings_warmup_steps(s, n_steps);
    c.total = s->lr_decay_iters ? s->lr_decay_iters : n_steps;
    c.gamma = s->lr_gamma;
    c.step_size = s->lr_step_size * (s->epochs > 0 && s->max_steps == 0 ? max_i64(1, steps_per_epoch) : 1);
    c.hold = s->plateau;
    return c;
}

bool assemble_drops_offload(fsdp_config *config, const device *dev)
{
    if (!config->cpu_offload || dev->own_memory)
        return false;
    config->cpu_offload = false; /* names of units stay: they are checked here, too */
    return true;
}
