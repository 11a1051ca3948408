/* Gives names and roles to the tensors of a DCP folder, and cuts their chunks, which are boxes, into runs. */
#include "ckpt/load/dcp_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "format/torch/torch_file.h"

enum { MAX_PIECES = 1 << 24 }; /* of a folder: a chunk that is cut along its last dimension is one for each row */

typedef enum meaning {
    IS_PARAMETER,
    IS_MOMENT1,
    IS_MOMENT2,
    IS_AVERAGE,
    IS_ROWS,
    IS_COLUMNS,
    IS_STEP,
    IS_OTHER
} meaning;

static const struct {
    const char *key;
    meaning is;
} optimizer_keys[] = {{"exp_avg", IS_MOMENT1},     {"momentum_buffer", IS_MOMENT1}, {"exp_avg_sq", IS_MOMENT2},
                      {"exp_avg_sq_row", IS_ROWS}, {"exp_avg_sq_col", IS_COLUMNS},  {"step", IS_STEP}};
enum { N_KEYS = sizeof optimizer_keys / sizeof *optimizer_keys };

typedef struct lister {
    const char *path;
    arena *memory;
    source_tensor *tensors;
    int n_tensors;
    int64_t n_pieces, steps;
    int n_left_out;
    const char *left_out; /* the first */
} lister;

static fsdp_status out_of_memory(const lister *l)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory while listing its tensors", l->path);
}

/* ---- Names ---- */

static meaning optimizer_meaning(const char *key)
{
    for (int i = 0; i < N_KEYS; i++)
        if (strcmp(optimizer_keys[i].key, key) == 0)
            return optimizer_keys[i].is;
    return IS_OTHER;
}

/* "optim.state.layer.weight.exp_avg" in one key, as flat state dicts have it: *name becomes "layer.weight". */
static meaning flat_meaning(char *key, char **name)
{
    char *state = strncmp(key, "state.", 6) == 0 ? key : strstr(key, ".state."), *last = strrchr(key, '.');
    if (!state)
        return IS_PARAMETER;
    state += *state == '.' ? strlen(".state.") : strlen("state.");
    meaning is = last && last > state ? optimizer_meaning(last + 1) : IS_OTHER;
    if (is == IS_OTHER)
        return IS_PARAMETER; /* a module may be called "state" */
    *last = '\0';
    *name = state;
    return is;
}

/* (..., "state", parameter, "exp_avg"), (..., parameter), or all in one key. */
static fsdp_status name_tensor(const lister *l, const dcp_tensor *tensor, meaning *is, char **name)
{
    int n = tensor->n_path;
    bool nested = n >= 3 && strcmp(tensor->path[n - 3], "state") == 0;
    *name = arena_strdup(l->memory, tensor->path[nested ? n - 2 : n - 1]);
    if (!*name)
        return out_of_memory(l);
    *is = nested ? optimizer_meaning(tensor->path[n - 1]) : flat_meaning(*name, name);
    if (*is == IS_PARAMETER && n == 2 && strcmp(tensor->path[0], "ema") == 0)
        *is = IS_AVERAGE;
    torch_clean_name(*name);
    return FSDP_OK;
}

/* ---- Pieces ---- */

static int by_first(const void *left, const void *right)
{
    const source_piece *a = left, *b = right;
    return a->first < b->first ? -1 : a->first > b->first;
}

/* The dimension after which a chunk is as wide as the tensor: what it holds of one index of it lies in a row. */
static int cut_dimension(const dcp_tensor *tensor, const dcp_chunk *chunk)
{
    int cut = tensor->n_dims - 1;
    while (cut > 0 && chunk->sizes[cut] == tensor->shape[cut])
        cut--;
    return cut;
}

static int64_t run_length(const dcp_tensor *tensor, const dcp_chunk *chunk, int cut)
{
    int64_t length = tensor->n_dims > 0 ? chunk->sizes[cut] : 1;
    for (int i = cut + 1; i < tensor->n_dims; i++)
        length *= tensor->shape[i];
    return length;
}

static void cut_chunk(const dcp_tensor *tensor, const dcp_chunk *chunk, source_tensor *out)
{
    int cut = cut_dimension(tensor, chunk);
    int64_t length = run_length(tensor, chunk, cut);
    for (int64_t at = 0; at < chunk->stored.numel; at += length) {
        int64_t first = 0, rest = at, scale = 1;
        for (int i = tensor->n_dims - 1; i >= 0; i--) {
            first += (chunk->offsets[i] + rest % chunk->sizes[i]) * scale;
            rest /= chunk->sizes[i];
            scale *= tensor->shape[i];
        }
        out->pieces[out->n_pieces++] =
            (source_piece){.first = first, .count = length, .stored = &chunk->stored, .at = at};
    }
}

static fsdp_status cut_tensor(lister *l, const dcp_tensor *tensor, source_tensor *out)
{
    int64_t n = 0, covered = 0;
    for (int i = 0; i < tensor->n_chunks; i++) {
        const dcp_chunk *chunk = &tensor->chunks[i];
        if (chunk->stored.numel > 0)
            n += chunk->stored.numel / run_length(tensor, chunk, cut_dimension(tensor, chunk));
        out->numel += chunk->stored.numel;
    }
    l->n_pieces += n;
    if (l->n_pieces > MAX_PIECES)
        return error_set(FSDP_ERR_INPUT, "%s: %s is cut into too many rows", l->path, tensor->key);
    out->pieces = arena_alloc(l->memory, ((size_t)n + 1) * sizeof *out->pieces);
    if (!out->pieces)
        return out_of_memory(l);
    for (int i = 0; i < tensor->n_chunks; i++)
        cut_chunk(tensor, &tensor->chunks[i], out);
    qsort(out->pieces, (size_t)out->n_pieces, sizeof *out->pieces, by_first);
    for (int i = 0; i < out->n_pieces; covered += out->pieces[i++].count)
        if (out->pieces[i].first != covered)
            return error_set(FSDP_ERR_INPUT, "%s: the chunks of %s overlap", l->path, tensor->key);
    return FSDP_OK;
}

/* ---- All tensors ---- */

static fsdp_status take_steps(lister *l, const dcp_tensor *tensor)
{
    float steps;
    if (tensor->n_chunks != 1 || tensor->chunks[0].stored.numel != 1 ||
        safetensors_read_f32(&tensor->chunks[0].stored, 0, 1, &steps) != FSDP_OK || !(steps >= 0 && steps < 0x1p48f))
        return error_set(FSDP_ERR_INPUT, "%s: %s is no count of steps", l->path, tensor->key);
    l->steps = max_i64(l->steps, (int64_t)steps);
    return FSDP_OK;
}

static fsdp_status take_tensor(lister *l, const dcp_tensor *tensor)
{
    static const ckpt_role roles[] = {
        [IS_PARAMETER] = CKPT_PARAMETER, [IS_MOMENT1] = CKPT_MOMENT1, [IS_MOMENT2] = CKPT_MOMENT2,
        [IS_AVERAGE] = CKPT_AVERAGE,     [IS_ROWS] = CKPT_ROWS,       [IS_COLUMNS] = CKPT_COLUMNS};
    meaning is = IS_OTHER;
    char *name = NULL;
    FSDP_TRY(name_tensor(l, tensor, &is, &name));
    if (is == IS_STEP)
        return take_steps(l, tensor);
    if (is == IS_OTHER) {
        l->left_out = l->n_left_out++ ? l->left_out : tensor->key;
        return FSDP_OK;
    }
    source_tensor *out = &l->tensors[l->n_tensors++];
    *out = (source_tensor){.name = name, .role = roles[is], .n_dims = tensor->n_dims};
    memcpy(out->shape, tensor->shape, sizeof out->shape);
    return cut_tensor(l, tensor, out);
}

static int by_role_and_name(const void *left, const void *right)
{
    const source_tensor *a = left, *b = right;
    return ckpt_role_order(a->role, a->name, b->role, b->name);
}

fsdp_status dcp_source_list(const char *path, const dcp_folder *folder, arena *memory, source_tensor **out, int *n,
                            int64_t *steps)
{
    int n_all = dcp_folder_count(folder);
    lister l = {.path = path, .memory = memory, .steps = -1};
    l.tensors = arena_alloc(memory, ((size_t)n_all + 1) * sizeof *l.tensors);
    if (!l.tensors)
        return out_of_memory(&l);
    for (int i = 0; i < n_all; i++)
        FSDP_TRY(take_tensor(&l, dcp_folder_at(folder, i)));
    qsort(l.tensors, (size_t)l.n_tensors, sizeof *l.tensors, by_role_and_name);
    for (int i = 1; i < l.n_tensors; i++)
        if (by_role_and_name(&l.tensors[i - 1], &l.tensors[i]) == 0)
            return error_set(FSDP_ERR_INPUT, "%s: has two tensors that would both be %s %s", path,
                             ckpt_role_name(l.tensors[i].role), l.tensors[i].name);
    if (l.n_left_out > 0)
        log_write(FSDP_LOG_WARNING, "%s: %d tensors of optimizer state are of an unknown kind and left out (%s, ...)",
                  path, l.n_left_out, l.left_out);
    *out = l.tensors;
    *n = l.n_tensors;
    *steps = l.steps;
    return FSDP_OK;
}
