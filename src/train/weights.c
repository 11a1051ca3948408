/* Loading of named weights: every name is checked before the first value is read. */
#include "train/weights.h"

#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "format/model_folder.h"
#include "shard/model.h"

/* A list of complaints that is cut when it gets too long to read. */
typedef struct complaints {
    char text[6000];
    size_t used;
    int n;
} complaints;

static void complain(complaints *c, const char *what, const char *name, const char *detail)
{
    c->n++;
    if (c->used < sizeof c->text - 1)
        c->used += (size_t)snprintf(c->text + c->used, sizeof c->text - c->used, "%s%s %s%s", c->n > 1 ? ", " : "",
                                    what, name, detail);
    if (c->used >= sizeof c->text)
        c->used = sizeof c->text - 1;
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

/* Names that files carry though the model has no use for them: tied heads, counters, rotary frequencies. */
static bool is_known_extra(const char *name)
{
    static const char *const endings[] = {"lm_head.weight", "num_batches_tracked", "rotary_emb.inv_freq",
                                          "embed_tokens.weight"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t n = strlen(endings[i]);
        if (length >= n && strcmp(name + length - n, endings[i]) == 0)
            return true;
    }
    return false;
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
            complain(&c, "extra", name, "");
    }
    if (c.n > 0)
        return error_set(FSDP_ERR_INPUT, "%s does not fit the model, %d names: %s", model_folder_path(folder), c.n,
                         c.text);
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

fsdp_status weights_load(fsdp_model *m, const char *path)
{
    model_folder *folder;
    FSDP_TRY(model_folder_open(path, &folder));
    fsdp_status status = check_names(m, folder);
    if (status == FSDP_OK)
        status = model_fill(m, read_slice, folder);
    if (status == FSDP_OK)
        status = load_buffers(m, folder);
    model_folder_close(folder);
    return status;
}
