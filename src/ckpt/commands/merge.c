/* Adapters of an export. Weights are read slice by slice, and the adapters' products are added to each slice, so
 * nothing but the adapters is ever held whole. */
#include "ckpt/commands/merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

static fsdp_status append(merge *m, adapter *a)
{
    adapter **grown = realloc(m->list, (size_t)(m->n + 1) * sizeof *grown);
    if (!grown) {
        adapter_free(a);
        return error_set(FSDP_ERR_MEMORY, "merging adapters: out of memory");
    }
    m->list = grown;
    m->list[m->n++] = a;
    return FSDP_OK;
}

/* Both matrices of the layer whose A this is. */
static fsdp_status read_pair(adapter *a, const ckpt_source *source, const source_tensor *t, size_t length)
{
    char layer[1024], partner[1100];
    adapter_pair *pair;
    int64_t rank = a->config.lora.rank;
    snprintf(layer, sizeof layer, "%.*s", (int)length, t->name);
    snprintf(partner, sizeof partner, "%s.lora_B.weight", layer);
    const source_tensor *b = source_find(source, CKPT_PARAMETER, partner);
    if (length >= sizeof layer || !b || t->n_dims != 2 || b->n_dims != 2 || t->shape[0] != rank || b->shape[1] != rank)
        return error_set(FSDP_ERR_INPUT, "%s: %s and its partner are no adapter of rank %lld", source_path(source),
                         t->name, (long long)rank);
    FSDP_TRY(adapter_add_pair(a, layer, t->shape[1], b->shape[0], &pair));
    FSDP_TRY(source_read(t, 0, t->numel, pair->a));
    return source_read(b, 0, b->numel, pair->b);
}

static fsdp_status read_own(const ckpt_source *source, const json_t *model, merge *out)
{
    adapter_config config;
    adapter *a;
    FSDP_TRY(adapter_config_parse(source_path(source), model, &config));
    FSDP_TRY(adapter_create(&config, &a));
    FSDP_TRY(append(out, a));
    for (int i = 0; i < source_count(source); i++) {
        const source_tensor *t = source_at(source, i);
        size_t length;
        bool is_b;
        if (t->role == CKPT_PARAMETER && adapter_layer_of(t->name, &length, &is_b) && !is_b)
            FSDP_TRY(read_pair(a, source, t, length));
    }
    return a->n_pairs > 0 ? FSDP_OK
                          : error_set(FSDP_ERR_INPUT, "%s: its config.json names adapters, but it holds none",
                                      source_path(source));
}

static fsdp_status check_layers(const ckpt_source *source, const char *folder, const adapter *a)
{
    for (int i = 0; i < a->n_pairs; i++) {
        char name[1100];
        snprintf(name, sizeof name, "%s.weight", a->pairs[i].layer);
        const source_tensor *t = source_find(source, CKPT_PARAMETER, name);
        if (!t || t->n_dims != 2)
            return error_set(FSDP_ERR_INPUT, "%s: has an adapter for %s, which %s does not have", folder,
                             a->pairs[i].layer, source_path(source));
        FSDP_TRY(adapter_add_product(a, &a->pairs[i], t->shape, 0, 0, NULL)); /* sizes */
    }
    return FSDP_OK;
}

static fsdp_status read_folders(const ckpt_source *source, const char *folders, merge *out)
{
    char *copy = strdup(folders), *rest = copy;
    fsdp_status status = copy ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "merging adapters: out of memory");
    for (char *folder; status == FSDP_OK && (folder = strsep(&rest, ","));) {
        adapter *a;
        status = adapter_open(folder, &a);
        if (status == FSDP_OK)
            status = append(out, a);
        if (status == FSDP_OK)
            status = check_layers(source, folder, a);
    }
    free(copy);
    return status;
}

fsdp_status merge_open(const ckpt_source *source, const json_t *model, const char *folders, merge *out)
{
    const json_t *own = json_object_get(model, ADAPTER_KEY);
    *out = (merge){0, NULL};
    fsdp_status status = own ? read_own(source, own, out) : FSDP_OK;
    if (status == FSDP_OK && folders)
        status = read_folders(source, folders, out);
    if (status != FSDP_OK)
        merge_close(out);
    return status;
}

fsdp_status merge_check_own(const merge *m, const ckpt_source *source, const json_t *model)
{
    const adapter *own = merge_own(m, model);
    return own ? check_layers(source, source_path(source), own) : FSDP_OK;
}

void merge_close(merge *m)
{
    for (int i = 0; i < m->n; i++)
        adapter_free(m->list[i]);
    free(m->list);
    *m = (merge){0, NULL};
}

bool merge_hides(const merge *m, const source_tensor *tensor)
{
    size_t length;
    bool is_b;
    return m->n > 0 && adapter_layer_of(tensor->name, &length, &is_b);
}

fsdp_status merge_add(const merge *m, const source_tensor *tensor, int64_t first, int64_t n, float *values)
{
    for (int i = 0; i < m->n && tensor->role == CKPT_PARAMETER; i++) {
        const adapter_pair *pair = adapter_find(m->list[i], tensor->name);
        if (pair && tensor->n_dims == 2)
            FSDP_TRY(adapter_add_product(m->list[i], pair, tensor->shape, first, n, values));
    }
    return FSDP_OK;
}

const adapter *merge_own(const merge *m, const json_t *model)
{
    return json_object_get(model, ADAPTER_KEY) ? m->list[0] : NULL;
}
