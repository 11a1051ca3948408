/* Weights by names from files of any kind into a sharded model: which name of the file each tensor of the model has,
 * and which tensors of the file may be left over. Every name is checked before the first value is read
 * (ckpt/load/match.c).
 */
#include "state/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "base/sized.h"
#include "ckpt/load/base.h"
#include "ckpt/load/load.h"
#include "ckpt/load/names.h"
#include "ckpt/commands/report.h"
#include "ckpt/save/save_task.h"
#include "ckpt/load/source.h"
#include "shard/model.h"
#include "state/model_state.h"

enum { DIGEST_CHUNK = 1 << 18 }; /* elements read at a time */

/* ---- Tensors that may be left over ---- */

/* Names that files carry though nothing is computed from them: counters, rotary frequencies, GPT-2's masks, and a bias
 * that T5's first files have and its attention to the encoder does not use. */
static const char *const known_extras[] = {"*num_batches_tracked", "*rotary_emb.inv_freq",
                                           "*attn.bias",           "*attn.masked_bias",
                                           "*crossattention.bias", "*EncDecAttention.relative_attention_bias.weight"};

static bool ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), n = strlen(ending);
    return length >= n && strcmp(name + length - n, ending) == 0;
}

/* Whether two tensors hold the same numbers. */
static fsdp_status compare(const source_tensor *a, const source_tensor *b, bool *same)
{
    enum { AT_ONCE = 1 << 16 };
    fsdp_status status = FSDP_OK;
    *same = a->n_dims == b->n_dims && memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof a->shape[0]) == 0;
    if (!*same)
        return FSDP_OK;
    float *values = malloc(2 * AT_ONCE * sizeof *values);
    if (!values)
        return error_set(FSDP_ERR_MEMORY, "comparing %s with %s: out of host memory", a->name, b->name);
    for (int64_t first = 0; first < a->numel && *same && status == FSDP_OK; first += AT_ONCE) {
        int64_t n = min_i64(AT_ONCE, a->numel - first);
        status = source_read(a, first, n, values);
        if (status == FSDP_OK)
            status = source_read(b, first, n, values + AT_ONCE);
        for (int64_t i = 0; i < n && *same && status == FSDP_OK; i++)
            *same = values[i] == values[AT_ONCE + i];
    }
    free(values);
    return status;
}

/* Files may repeat the embedding under the names of what shares it. What is under such a name and differs would be
 * lost. */
static fsdp_status repeats_embedding(void *context, const ckpt_source *source, const source_tensor *tensor, bool *fine)
{
    (void)context;
    const source_tensor *embedding = names_embedding(source);
    bool shared = ends_with(tensor->name, "lm_head.weight") || ends_with(tensor->name, "embed_tokens.weight");
    return shared && embedding ? compare(tensor, embedding, fine) : FSDP_OK;
}

fsdp_status weights_settle_head(const char *path, model_config *config)
{
    bool *tied = config->type == MODEL_DECODER ? &config->decoder.tied
                 : config->type == MODEL_T5    ? &config->t5.tied
                                               : NULL;
    ckpt_source *source;
    if (!tied || !*tied || source_open(path, &source) != FSDP_OK)
        return FSDP_OK;
    const source_tensor *head = source_find(source, CKPT_PARAMETER, "lm_head.weight"),
                        *embedding = names_embedding(source);
    fsdp_status status = head && embedding && !source_manifest(source) ? compare(head, embedding, tied) : FSDP_OK;
    if (status == FSDP_OK && !*tied)
        log_write(FSDP_LOG_WARNING,
                  "%s: its configuration ties the head to the embedding, its weights do not: not tied", path);
    source_close(source);
    return status;
}

/* ---- Names ---- */

/* What the rule makes of `name`, malloc'd; NULL when it is not for that name. */
static fsdp_status rename_by(const fsdp_weight_name *rule, const char *name, char **out)
{
    const char *star = strchr(rule->model, '*'), *put = strchr(rule->file, '*');
    *out = NULL;
    if ((star == NULL) != (put == NULL) || (star && (strchr(star + 1, '*') || strchr(put + 1, '*'))))
        return error_set(FSDP_ERR_INPUT, "names of weights: \"%s\" and \"%s\" must both have one '*', or none",
                         rule->model, rule->file);
    if (!star) {
        if (strcmp(rule->model, name) != 0)
            return FSDP_OK;
        *out = strdup(rule->file);
    } else {
        size_t before = (size_t)(star - rule->model), after = strlen(star + 1), length = strlen(name);
        if (length < before + after || strncmp(name, rule->model, before) != 0 ||
            strcmp(name + length - after, star + 1) != 0)
            return FSDP_OK;
        if (asprintf(out, "%.*s%.*s%s", (int)(put - rule->file), rule->file, (int)(length - before - after),
                     name + before, put + 1) < 0)
            *out = NULL;
    }
    return *out ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "names of weights: out of host memory");
}

static bool has_tensor(const ckpt_state *state, const char *name)
{
    for (int i = 0; i < state->n_tensors; i++) {
        if (strcmp(state->tensors[i].name, name) == 0)
            return true;
    }
    return false;
}

static fsdp_status name_in_file(const fsdp_weights_config *config, const ckpt_source *source, const ckpt_tensor *tensor,
                                bool tied, char **out)
{
    *out = NULL;
    for (int i = 0; i < config->n_names && !*out; i++)
        FSDP_TRY(rename_by(&config->names[i], tensor->name, out));
    if (!*out)
        *out = strdup(names_find(source, tensor->role, tied, tensor->name));
    return *out ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "names of weights: out of host memory");
}

static void free_names(char **names, int n)
{
    for (int i = 0; names && i < n; i++)
        free(names[i]);
    free(names);
}

static fsdp_status make_names(const fsdp_weights_config *config, const char *path, const ckpt_state *state, char ***out)
{
    bool tied = !has_tensor(state, "lm_head.weight");
    ckpt_source *source = NULL;
    fsdp_status status = FSDP_OK;
    *out = calloc((size_t)state->n_tensors + 1, sizeof **out);
    if (!*out)
        return error_set(FSDP_ERR_MEMORY, "names of weights: out of host memory");
    if (source_open(path, &source) != FSDP_OK || base_join(source, config->base) != FSDP_OK) {
        source_close(source); /* loading says what is wrong with it */
        source = NULL;
    }
    for (int i = 0; i < state->n_tensors && status == FSDP_OK; i++)
        status = name_in_file(config, source, &state->tensors[i], tied, &(*out)[i]);
    source_close(source);
    return status;
}

/* ---- Loading ---- */

static void fill_report(const ckpt_fit *fit, fsdp_load_report *report)
{
    fsdp_load_report full = {
        .loaded = fit->loaded, .missing = fit->missing, .unexpected = fit->unexpected, .mismatched = fit->mismatched};
    snprintf(full.text, sizeof full.text, "%s", fit->text);
    sized_write(report, &full, sizeof full);
}

fsdp_status weights_sum_digest(comm_group *world, uint64_t mine, uint64_t *sum)
{
    size_t n = (size_t)comm_group_size(world);
    uint64_t *all = calloc(n, sizeof *all);
    size_t *bytes = calloc(n, sizeof *bytes);
    fsdp_status status = all && bytes ? comm_exchange(world, "digest", &mine, sizeof mine, sizeof mine, all, bytes)
                                      : error_set(FSDP_ERR_MEMORY, "comparing weights: out of host memory");
    *sum = 0;
    for (size_t i = 0; i < n && status == FSDP_OK; i++)
        *sum += all[i];
    free(bytes);
    free(all);
    return status;
}

static fsdp_status add_kept(const ckpt_state *state, const ckpt_slice *slice, float *values, uint64_t *digest)
{
    const char *name = state->tensors[slice->tensor].name;
    for (int64_t first = 0, n; first < slice->count; first += n) {
        n = min_i64(DIGEST_CHUNK, slice->count - first);
        if (!slice->data)
            FSDP_TRY(state->read(state->context, slice, first, n, values));
        *digest += base_digest(name, slice->first + first, n, slice->data ? slice->data + first : values);
    }
    return FSDP_OK;
}

fsdp_status weights_kept_digest(comm_group *world, const ckpt_state *state, uint64_t *sum)
{
    uint64_t digest = 0;
    float *values = malloc(DIGEST_CHUNK * sizeof *values);
    fsdp_status status = values ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "comparing weights: out of host memory");
    for (int i = 0; i < state->n_slices && status == FSDP_OK; i++) {
        const ckpt_slice *slice = &state->slices[i];
        if (state->tensors[slice->tensor].base && slice->writes)
            status = add_kept(state, slice, values, &digest);
    }
    free(values);
    status = ckpt_agree(world, "weights", status, fsdp_last_error());
    return status == FSDP_OK ? weights_sum_digest(world, digest, sum) : status;
}

/* What the model's frozen weights are now: the file's, or its base's. */
static fsdp_status note_base(fsdp_model *m, const ckpt_load_result *found, const fsdp_weights_config *config,
                             const ckpt_fit *fit)
{
    base_reference reference;
    uint64_t digest;
    bool refers = base_reference_read(found->extra, &reference), whole = fit->missing == 0 && fit->mismatched == 0;
    if (!found->has_base)
        return FSDP_OK;
    FSDP_TRY(weights_sum_digest(comm_world(m->world->comm), found->digest, &digest));
    if (refers && reference.digest != digest && (whole || model_state_has_base(m)))
        return base_is_another(found->path, &reference, digest);
    if (!model_state_has_base(m))
        return FSDP_OK;
    m->base_digest = digest;
    const char *name = !refers ? found->path : config->base ? config->base : reference.name;
    free(m->base_name);
    m->base_name = realpath(name, NULL); /* of a name of the hub: none */
    if (!m->base_name)
        m->base_name = strdup(name);
    m->base_known = m->base_name && whole;
    return FSDP_OK;
}

static fsdp_status load_from_file(fsdp_model *m, model_state *state, const char *path,
                                  const fsdp_weights_config *config, comm_group *world, ckpt_fit *fit)
{
    ckpt_load_config load = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result found = {.extra = NULL};
    char **names = NULL;
    fsdp_status status = make_names(config, path, model_state_describe(state), &names);
    if (status == FSDP_OK)
        status = model_state_before_load(state);
    status = ckpt_agree(world, "names of weights", status, fsdp_last_error());
    load.roles = CKPT_ROLES_MODEL;
    load.names = (const char *const *)names;
    load.average = config->average;
    load.partial = !config->strict;
    load.ignored = known_extras;
    load.n_ignored = (int)(sizeof known_extras / sizeof *known_extras);
    load.leaves = repeats_embedding;
    load.fit = fit;
    load.with_base = true;
    load.base = config->base;
    if (status == FSDP_OK)
        status = ckpt_load(path, &load, model_state_describe(state), world, &found);
    if (status == FSDP_OK)
        status = model_state_loaded(state);
    if (status == FSDP_OK)
        status = note_base(m, &found, config, fit);
    ckpt_load_result_free(&found);
    free_names(names, model_state_describe(state)->n_tensors);
    return status;
}

/* Whether the file has values for the model's adapters; most have none, and they keep those they begin with. */
static bool has_adapters(const fsdp_model *m, const char *path)
{
    const fsdp_parameter *first = NULL;
    ckpt_source *source;
    for (int i = 0; i < m->contents.n_parameters && !first; i++)
        first = m->contents.parameters[i]->adapter ? m->contents.parameters[i] : NULL;
    if (!first || source_open(path, &source) != FSDP_OK)
        return false; /* loading says what is wrong with it */
    bool found = source_find(source, CKPT_PARAMETER, first->name) != NULL;
    source_close(source);
    return found;
}

/* What of the model is loaded. A file that refers to a base must be loaded with that one, into whatever model. */
static model_view loaded_part(const fsdp_model *m, const char *path)
{
    model_view view = {.without_adapters = !has_adapters(m, path)};
    base_reference reference;
    ckpt_source *source = NULL;
    if (!model_state_has_base(m) && source_open(path, &source) == FSDP_OK)
        view.all_base = base_refers(source, &reference);
    source_close(source);
    return view;
}

fsdp_status fsdp_weights_load(fsdp_model *m, const char *path, const fsdp_weights_config *config,
                              fsdp_load_report *report)
{
    const fsdp_weights_config defaults = FSDP_WEIGHTS_CONFIG_INIT;
    SIZED_READ(fsdp_weights_config, FSDP_WEIGHTS_CONFIG_INIT, full, config ? config : &defaults);
    SIZED_CHECK(fsdp_load_report, FSDP_LOAD_REPORT_INIT, report);
    ckpt_fit fit = {.loaded = 0};
    model_state *state = NULL;
    char *newest = NULL;
    comm_group *world = comm_world(m->world->comm);
    fsdp_status status = report_is_directory_of_checkpoints(path) ? report_resolve(path, &newest) : FSDP_OK;
    if (status == FSDP_OK) {
        model_view view = loaded_part(m, newest ? newest : path);
        status = model_state_create(m, NULL, &view, &state);
    }
    status = ckpt_agree(world, "weights", status, fsdp_last_error());
    if (status == FSDP_OK)
        status = load_from_file(m, state, newest ? newest : path, &full, world, &fit);
    fill_report(&fit, report);
    model_state_free(state);
    free(newest);
    return status;
}
