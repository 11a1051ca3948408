/* Adapters of an open model: read whole, written by name, saved as peft has them, and merged into its weights. */
#include "state/adapter.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/sized.h"
#include "ckpt/save/save_task.h"
#include "models/config.h"

/* All ranks end the same way. */
static fsdp_status agree(fsdp_model *m, const char *what, fsdp_status status)
{
    return ckpt_agree(comm_world(m->world->comm), what, status, fsdp_last_error());
}

/* "X" of the parameter "X.weight". */
static void layer_name(const fsdp_parameter *weight, char out[1024])
{
    size_t n = strlen(weight->name), end = strlen(".weight");
    snprintf(out, 1024, "%.*s", (int)(n > end ? n - end : n), weight->name);
}

static bool is_input_major(const fsdp_parameter *p)
{
    return p->linear == LINEAR_INPUT_MAJOR;
}

static const fsdp_parameter *first_adapted(const fsdp_model *m)
{
    for (int i = 0; i < m->contents.n_parameters; i++) {
        if (m->contents.parameters[i]->lora.b)
            return m->contents.parameters[i];
    }
    return NULL;
}

/* What adapter_config.json says; the names of layers where the model does not know what it was adapted with. */
static fsdp_status describe(const fsdp_model *m, const fsdp_parameter *first, adapter_config *out)
{
    const model_config *known = model_config_of(m->module);
    *out = (adapter_config){.lora = FSDP_LORA_CONFIG_INIT, .input_major = is_input_major(first)};
    if (known && known->lora.rank > 0) {
        out->lora = known->lora;
        return FSDP_OK;
    }
    out->lora.rank = first->lora.a->shape[0];
    out->lora.alpha = (double)first->lora.scale * (double)out->lora.rank;
    size_t used = 0;
    for (int i = 0; i < m->contents.n_parameters && used < sizeof out->lora.targets; i++) {
        char name[1024];
        layer_name(m->contents.parameters[i], name);
        if (m->contents.parameters[i]->lora.b)
            used += (size_t)snprintf(out->lora.targets + used, sizeof out->lora.targets - used, "%s%s", used ? "," : "",
                                     name);
    }
    return used < sizeof out->lora.targets
               ? FSDP_OK
               : error_set(FSDP_ERR_INPUT, "the names of the adapted layers take more than %zu characters",
                           sizeof out->lora.targets);
}

fsdp_status adapter_of_model(fsdp_model *m, adapter **out)
{
    const fsdp_parameter *first = first_adapted(m);
    adapter_config config;
    *out = NULL;
    if (!first)
        return FSDP_OK;
    FSDP_TRY(describe(m, first, &config));
    fsdp_status status = adapter_create(&config, out);
    for (int i = 0; i < m->contents.n_parameters && status == FSDP_OK; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        adapter_pair *pair = NULL;
        char name[1024];
        if (!p->lora.b)
            continue;
        layer_name(p, name);
        status = adapter_add_pair(*out, name, p->lora.a->shape[1], p->lora.b->shape[0], &pair);
        if (status == FSDP_OK)
            status = fsdp_parameter_read(m, p->lora.a->name, 0, p->lora.a->numel, pair->a);
        if (status == FSDP_OK)
            status = fsdp_parameter_read(m, p->lora.b->name, 0, p->lora.b->numel, pair->b);
    }
    if (status != FSDP_OK) {
        adapter_free(*out);
        *out = NULL;
    }
    return status;
}

fsdp_status fsdp_adapter_config(const char *folder, fsdp_lora_config *config)
{
    adapter *a;
    SIZED_CHECK(fsdp_lora_config, FSDP_LORA_CONFIG_INIT, config);
    FSDP_TRY(adapter_open(folder, &a));
    sized_write(config, &a->config.lora, sizeof a->config.lora);
    adapter_free(a);
    return FSDP_OK;
}

/* ---- Loading ---- */

/* The layers of the model and of the folder are the same, with the same sizes. */
static fsdp_status check_fit(const fsdp_model *m, const char *folder, const adapter *a)
{
    int adapted = 0;
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        if (!p->lora.b)
            continue;
        const adapter_pair *pair = adapter_find(a, p->name);
        adapted++;
        if (!pair)
            return error_set(FSDP_ERR_INPUT, "%s: has no adapter for %s", folder, p->name);
        if (p->lora.a->shape[0] != a->config.lora.rank || p->lora.a->shape[1] != pair->inputs ||
            p->lora.b->shape[0] != pair->outputs)
            return error_set(FSDP_ERR_INPUT,
                             "%s: its adapter for %s has rank %lld, %lld inputs and %lld outputs; the "
                             "model's has %lld, %lld and %lld",
                             folder, p->name, (long long)a->config.lora.rank, (long long)pair->inputs,
                             (long long)pair->outputs, (long long)p->lora.a->shape[0], (long long)p->lora.a->shape[1],
                             (long long)p->lora.b->shape[0]);
    }
    for (int i = 0; i < a->n_pairs; i++) {
        char name[1100];
        snprintf(name, sizeof name, "%s.weight", a->pairs[i].layer);
        const fsdp_parameter *p = module_find_parameter(&m->contents, name);
        if (!p || !p->lora.b)
            return error_set(FSDP_ERR_INPUT, "%s: has an adapter for %s, which the model %s", folder, a->pairs[i].layer,
                             p ? "does not adapt" : "does not have");
    }
    return adapted > 0 ? FSDP_OK : error_set(FSDP_ERR_STATE, "%s: the model has no adapters to load it into", folder);
}

static fsdp_status put(fsdp_model *m, const adapter *a)
{
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        const adapter_pair *pair = p->lora.b ? adapter_find(a, p->name) : NULL;
        if (!pair)
            continue;
        FSDP_TRY(fsdp_parameter_write(m, p->lora.a->name, 0, p->lora.a->numel, pair->a));
        FSDP_TRY(fsdp_parameter_write(m, p->lora.b->name, 0, p->lora.b->numel, pair->b));
    }
    return FSDP_OK;
}

fsdp_status fsdp_adapter_load(fsdp_model *m, const char *folder)
{
    adapter *a = NULL;
    fsdp_status status = adapter_open(folder, &a);
    if (status == FSDP_OK)
        status = check_fit(m, folder, a);
    status = agree(m, "an adapter", status);
    if (status == FSDP_OK)
        status = put(m, a);
    adapter_free(a);
    return status;
}

/* ---- Merging ---- */

enum { CHUNK = 1 << 18 };

typedef struct merging {
    const adapter *adapter;
    float *values; /* (CHUNK) */
    int found;
} merging;

static fsdp_status merge_slice(fsdp_model *m, const model_slice *slice, void *context)
{
    merging *g = context;
    const fsdp_parameter *p = slice->parameter;
    const adapter_pair *pair = p->linear == LINEAR_NONE ? NULL : adapter_find(g->adapter, p->name);
    for (int64_t done = 0, n; pair && done < slice->n; done += n) {
        n = slice->n - done < CHUNK ? slice->n - done : CHUNK;
        FSDP_TRY(model_read_slice(m, slice, done, n, g->values));
        FSDP_TRY(adapter_add_product(g->adapter, pair, p->shape, slice->first + done, n, g->values));
        FSDP_TRY(model_write_slice(m, slice, done, n, g->values));
    }
    return FSDP_OK;
}

static fsdp_status check_layers(const fsdp_model *m, const char *folder, const adapter *a)
{
    for (int i = 0; i < a->n_pairs; i++) {
        char name[1100];
        snprintf(name, sizeof name, "%s.weight", a->pairs[i].layer);
        const fsdp_parameter *p = module_find_parameter(&m->contents, name);
        if (!p || p->linear == LINEAR_NONE)
            return error_set(FSDP_ERR_INPUT, "%s: has an adapter for %s, which %s", folder, a->pairs[i].layer,
                             p ? "cannot be adapted" : "the model does not have");
        if (is_input_major(p) != a->config.input_major)
            return error_set(FSDP_ERR_INPUT, "%s: fan_in_fan_out is %s, the weight of %s is stored otherwise", folder,
                             a->config.input_major ? "true" : "false", a->pairs[i].layer);
        int64_t sizes[] = {a->pairs[i].outputs, a->pairs[i].inputs};
        if (p->shape[0] != sizes[is_input_major(p)] || p->shape[1] != sizes[!is_input_major(p)])
            return error_set(FSDP_ERR_INPUT,
                             "%s: its adapter for %s has %lld inputs and %lld outputs, the layer others", folder,
                             a->pairs[i].layer, (long long)sizes[1], (long long)sizes[0]);
    }
    return FSDP_OK;
}

fsdp_status fsdp_adapter_merge(fsdp_model *m, const char *folder)
{
    adapter *a = NULL;
    merging g = {.values = malloc(CHUNK * sizeof(float))};
    fsdp_status status = g.values ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of host memory", folder);
    if (status == FSDP_OK && first_adapted(m))
        status = error_set(FSDP_ERR_STATE, "%s: the model has adapters of its own; merge into one without", folder);
    if (status == FSDP_OK)
        status = adapter_open(folder, &a);
    if (status == FSDP_OK)
        status = check_layers(m, folder, a);
    if (status == FSDP_OK)
        status = model_before_writes(m);
    status = agree(m, "an adapter", status);
    g.adapter = a;
    if (status == FSDP_OK)
        status = model_for_each_slice(m, merge_slice, &g);
    if (status == FSDP_OK)
        status = model_refresh_copies(m);
    free(g.values);
    adapter_free(a);
    return status;
}

/* ---- Saving ---- */

fsdp_status fsdp_adapter_save(fsdp_model *m, const char *folder, const char *base)
{
    const model_config *known = model_config_of(m->module);
    const char *task = !known ? NULL : known->type == MODEL_T5 ? "SEQ_2_SEQ_LM" : "CAUSAL_LM";
    adapter *a = NULL;
    fsdp_status status = adapter_of_model(m, &a);
    if (status == FSDP_OK && !a)
        status = error_set(FSDP_ERR_STATE, "%s: the model has no adapters to save", folder);
    if (status == FSDP_OK && comm_rank(m->world->comm) == 0)
        status = adapter_write(a, folder, task, base ? base : m->base_name);
    adapter_free(a);
    return agree(m, "an adapter", status);
}
