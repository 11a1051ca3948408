/* Loading of named weights: every name is checked before the first value is read. */
#include "state/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "ckpt/load.h"
#include "ckpt/manifest.h"
#include "format/model_folder.h"
#include "shard/model.h"
#include "state/model_state.h"

/* A list of complaints that is cut when it gets too long to read. */
typedef struct complaints {
    char text[1500];
    size_t used;
    int n, n_told;
} complaints;

static void complain(complaints *c, const char *what, const char *name, const char *detail)
{
    c->n++;
    if (c->n_told + 1 < c->n)
        return;
    int n =
        snprintf(c->text + c->used, sizeof c->text - c->used, "%s%s %s%s", c->n > 1 ? ", " : "", what, name, detail);
    if (c->used + (size_t)n >= sizeof c->text) {
        c->text[c->used] = '\0';
        return;
    }
    c->used += (size_t)n;
    c->n_told++;
}

static void check_tensor(complaints *c, const model_folder *folder, const char *name, int n_dims, const int64_t *shape)
{
    const safetensors_tensor *t = model_folder_find(folder, name);
    char detail[128], have[48], want[48];
    if (!t) {
        complain(c, "missing", name, "");
        return;
    }
    if (t->n_dims == n_dims && memcmp(t->shape, shape, (size_t)n_dims * sizeof shape[0]) == 0)
        return;
    snprintf(detail, sizeof detail, " %s instead of %s", safetensors_shape_text(t->n_dims, t->shape, have, sizeof have),
             safetensors_shape_text(n_dims, shape, want, sizeof want));
    complain(c, "mis-shaped", name, detail);
}

static bool ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), n = strlen(ending);
    return length >= n && strcmp(name + length - n, ending) == 0;
}

/* Names that files carry though nothing is computed from them: counters, rotary frequencies. */
static bool is_known_extra(const char *name)
{
    return ends_with(name, "num_batches_tracked") || ends_with(name, "rotary_emb.inv_freq");
}

/* Whether two tensors hold the same numbers. */
static fsdp_status compare(const safetensors_tensor *a, const safetensors_tensor *b, bool *same)
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
        status = safetensors_read_f32(a, first, n, values);
        if (status == FSDP_OK)
            status = safetensors_read_f32(b, first, n, values + AT_ONCE);
        for (int64_t i = 0; i < n && *same && status == FSDP_OK; i++)
            *same = values[i] == values[AT_ONCE + i];
    }
    free(values);
    return status;
}

/* The embedding, under either family's name; NULL: none. */
static const safetensors_tensor *embedding_of(const model_folder *folder)
{
    const safetensors_tensor *t = model_folder_find(folder, "shared.weight");
    return t ? t : model_folder_find(folder, "model.embed_tokens.weight");
}

/* Files may repeat the embedding under the names of what shares it. What is under such a name and differs would be
 * lost. */
static fsdp_status check_shared(complaints *c, const model_folder *folder, const char *name)
{
    const safetensors_tensor *embedding = embedding_of(folder);
    bool shared = ends_with(name, "lm_head.weight") || ends_with(name, "embed_tokens.weight"), same = false;
    if (shared && embedding)
        FSDP_TRY(compare(model_folder_find(folder, name), embedding, &same));
    if (!same)
        complain(c, "extra", name, shared && embedding ? " that differs from the embedding" : "");
    return FSDP_OK;
}

static fsdp_status check_names(const fsdp_model *m, const model_folder *folder)
{
    complaints c = {.n = 0};
    for (int i = 0; i < m->contents.n_parameters; i++) {
        const fsdp_parameter *p = m->contents.parameters[i];
        check_tensor(&c, folder, p->name, p->n_dims, p->shape);
    }
    for (int i = 0; i < m->contents.n_buffers; i++) {
        const fsdp_buffer *b = m->contents.buffers[i];
        if (b->persistent)
            check_tensor(&c, folder, b->name, b->n_dims, b->shape);
    }
    for (size_t i = 0; i < model_folder_count(folder); i++) {
        const char *name = model_folder_at(folder, i)->name;
        if (!module_find_parameter(&m->contents, name) && !module_find_buffer(&m->contents, name) &&
            !is_known_extra(name))
            FSDP_TRY(check_shared(&c, folder, name));
    }
    char more[40] = "";
    if (c.n > c.n_told)
        snprintf(more, sizeof more, ", and %d more", c.n - c.n_told);
    if (c.n > 0)
        return error_set(FSDP_ERR_INPUT, "%s does not fit the model, %d names: %s%s", model_folder_path(folder), c.n,
                         c.text, more);
    return FSDP_OK;
}

static fsdp_status read_slice(void *context, const fsdp_parameter *p, int64_t first, int64_t n, float *out)
{
    return safetensors_read_f32(model_folder_find(context, p->name), first, n, out);
}

static fsdp_status load_buffers(fsdp_model *m, const model_folder *folder)
{
    for (int i = 0; i < m->contents.n_buffers; i++) {
        fsdp_buffer *b = m->contents.buffers[i];
        if (!b->persistent)
            continue;
        FSDP_TRY(safetensors_read_f32(model_folder_find(folder, b->name), 0, b->numel, b->initial));
        FSDP_TRY(model_put(m, b->data, b->initial, (size_t)b->numel * sizeof(float)));
    }
    return FSDP_OK;
}

static bool is_checkpoint(const char *path)
{
    char *marker = file_join(path, MANIFEST_NAME);
    bool found = marker && file_exists(marker);
    free(marker);
    return found;
}

static fsdp_status load_checkpoint(fsdp_model *m, const char *path)
{
    model_state *state;
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result found = {.extra = NULL};
    config.roles = CKPT_ROLES_MODEL;
    FSDP_TRY(model_state_create(m, NULL, &state));
    fsdp_status status = ckpt_load(path, &config, model_state_describe(state), comm_world(m->world->comm), &found);
    if (status == FSDP_OK)
        status = model_state_loaded(state);
    ckpt_load_result_free(&found);
    model_state_free(state);
    return status;
}

fsdp_status weights_settle_head(const char *path, model_config *config)
{
    bool *tied = config->type == MODEL_LLAMA ? &config->llama.tied : config->type == MODEL_T5 ? &config->t5.tied : NULL;
    model_folder *folder;
    if (!tied || !*tied || is_checkpoint(path) || model_folder_open(path, &folder) != FSDP_OK)
        return FSDP_OK;
    const safetensors_tensor *head = model_folder_find(folder, "lm_head.weight"), *embedding = embedding_of(folder);
    fsdp_status status = head && embedding ? compare(head, embedding, tied) : FSDP_OK;
    if (status == FSDP_OK && !*tied)
        log_write(LOG_WARNING, "%s: its configuration ties the head to the embedding, its weights do not: not tied",
                  path);
    model_folder_close(folder);
    return status;
}

fsdp_status weights_load(fsdp_model *m, const char *path)
{
    model_folder *folder;
    if (is_checkpoint(path))
        return load_checkpoint(m, path);
    FSDP_TRY(model_folder_open(path, &folder));
    fsdp_status status = check_names(m, folder);
    if (status == FSDP_OK)
        status = model_fill(m, read_slice, folder);
    if (status == FSDP_OK)
        status = load_buffers(m, folder);
    model_folder_close(folder);
    return status;
}
