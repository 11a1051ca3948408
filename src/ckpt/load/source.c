/* Opens checkpoints and model folders for reading and finds tensors in them. Which of them are wanted is load.c's. */
#include "ckpt/load/source.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "ckpt/load/dcp_source.h"
#include "format/weights/model_folder.h"

struct ckpt_source {
    arena *memory;
    const char *path;
    manifest *manifest;   /* a checkpoint of ours: its files are open below */
    safetensors **files;  /* (manifest->n_files) */
    model_folder *folder; /* otherwise, */
    dcp_folder *dcp;      /* or this */
    int64_t steps;        /* dcp: of its optimizer; -1: none */
    int n_tensors;
    source_tensor *tensors;
    const source_tensor **by_name; /* sorted by role and name */
    ckpt_source *adopted;          /* whose tensors are among them; NULL: none */
};

static fsdp_status out_of_memory(const char *path)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory while opening", path);
}

/* ---- Checkpoints of ours ---- */

static fsdp_status open_files(ckpt_source *s)
{
    fsdp_status status = FSDP_OK;
    s->files = arena_alloc(s->memory, ((size_t)s->manifest->n_files + 1) * sizeof *s->files);
    if (!s->files)
        return out_of_memory(s->path);
    for (int i = 0; i < s->manifest->n_files && status == FSDP_OK; i++) {
        char *path = file_join(s->path, s->manifest->files[i].name);
        status = path ? safetensors_open(path, &s->files[i]) : out_of_memory(s->path);
        free(path);
    }
    return status;
}

static fsdp_status find_piece(const ckpt_source *s, const manifest_tensor *tensor, const manifest_piece *piece,
                              char *key, size_t key_bytes, source_piece *out)
{
    fsdp_checkpoint_kind kind = s->manifest->kind;
    manifest_key(kind, tensor->role, tensor->name, piece->first, key, key_bytes);
    const safetensors_tensor *stored = safetensors_find(s->files[piece->file], key);
    if (!stored)
        return error_set(FSDP_ERR_INPUT, "%s: %s has no tensor %s, though the manifest says so", s->path,
                         s->manifest->files[piece->file].name, key);
    int64_t wanted = kind == FSDP_CKPT_FULL ? tensor->numel : piece->count;
    bool may_be_bf16 = CKPT_ROLE_BIT(tensor->role) & CKPT_ROLES_OPTIMIZER;
    if ((stored->dtype != FSDP_F32 && !(may_be_bf16 && stored->dtype == FSDP_BF16)) || stored->numel != wanted)
        return error_set(FSDP_ERR_INPUT,
                         "%s: tensor %s in %s is %" PRId64 " elements of %s; %" PRId64 " of F32%s are expected",
                         s->path, key, s->manifest->files[piece->file].name, stored->numel, stored->dtype_name, wanted,
                         may_be_bf16 ? " or BF16" : "");
    *out = (source_piece){.first = piece->first,
                          .count = piece->count,
                          .stored = stored,
                          .at = kind == FSDP_CKPT_FULL ? piece->first : 0,
                          .has_checksum = true,
                          .checksum = piece->checksum};
    return FSDP_OK;
}

static fsdp_status take_tensor(ckpt_source *s, const manifest_tensor *from, source_tensor *to)
{
    *to = (source_tensor){.name = from->name, .role = from->role, .n_dims = from->n_dims, .numel = from->numel};
    memcpy(to->shape, from->shape, sizeof to->shape);
    to->pieces = arena_alloc(s->memory, ((size_t)from->n_pieces + 1) * sizeof *to->pieces);
    size_t key_bytes = strlen(from->name) + 64;
    char *key = malloc(key_bytes);
    fsdp_status status = to->pieces && key ? FSDP_OK : out_of_memory(s->path);
    for (int i = 0; i < from->n_pieces && status == FSDP_OK; i++)
        status = find_piece(s, from, &from->pieces[i], key, key_bytes, &to->pieces[to->n_pieces++]);
    free(key);
    return status;
}

static fsdp_status open_checkpoint(ckpt_source *s)
{
    FSDP_TRY(manifest_read(s->path, &s->manifest));
    FSDP_TRY(open_files(s));
    s->tensors = arena_alloc(s->memory, ((size_t)s->manifest->n_tensors + 1) * sizeof *s->tensors);
    if (!s->tensors)
        return out_of_memory(s->path);
    for (int i = 0; i < s->manifest->n_tensors; i++)
        FSDP_TRY(take_tensor(s, &s->manifest->tensors[i], &s->tensors[s->n_tensors++]));
    return FSDP_OK;
}

/* ---- Model folders ---- */

static fsdp_status open_folder(ckpt_source *s)
{
    FSDP_TRY(model_folder_open(s->path, &s->folder));
    size_t n = model_folder_count(s->folder);
    s->tensors = arena_alloc(s->memory, (n + 1) * sizeof *s->tensors);
    source_piece *pieces = arena_alloc(s->memory, (n + 1) * sizeof *pieces);
    if (!s->tensors || !pieces)
        return out_of_memory(s->path);
    for (size_t i = 0; i < n; i++) {
        const safetensors_tensor *stored = model_folder_at(s->folder, i);
        pieces[i] = (source_piece){.count = stored->numel, .stored = stored};
        s->tensors[i] = (source_tensor){.name = stored->name,
                                        .role = CKPT_PARAMETER,
                                        .n_dims = stored->n_dims,
                                        .numel = stored->numel,
                                        .n_pieces = stored->numel > 0,
                                        .pieces = &pieces[i]};
        memcpy(s->tensors[i].shape, stored->shape, sizeof s->tensors[i].shape);
    }
    s->n_tensors = (int)n;
    return FSDP_OK;
}

/* ---- PyTorch's checkpoints ---- */

static fsdp_status open_dcp(ckpt_source *s)
{
    FSDP_TRY(dcp_folder_open(s->path, &s->dcp));
    return dcp_source_list(s->path, s->dcp, s->memory, &s->tensors, &s->n_tensors, &s->steps);
}

/* ---- All of them ---- */

static int tensor_order(const void *left, const void *right)
{
    const source_tensor *a = *(const source_tensor *const *)left, *b = *(const source_tensor *const *)right;
    return ckpt_role_order(a->role, a->name, b->role, b->name);
}

static void sort_by_name(ckpt_source *s)
{
    for (int i = 0; i < s->n_tensors; i++)
        s->by_name[i] = &s->tensors[i];
    qsort(s->by_name, (size_t)s->n_tensors, sizeof *s->by_name, tensor_order);
}

static fsdp_status open_any(ckpt_source *s)
{
    char *path = file_join(s->path, MANIFEST_NAME), *marker = file_join(s->path, MARKER_NAME);
    bool ours = path && file_exists(path), marked = marker && file_exists(marker);
    fsdp_status status = path && marker ? FSDP_OK : out_of_memory(s->path);
    free(path);
    free(marker);
    FSDP_TRY(status);
    if (marked && !ours) /* a full one without it would pass for a model folder, unchecked */
        return error_set(FSDP_ERR_INPUT,
                         "%s: " MANIFEST_NAME " is missing: this was a checkpoint; to take its weights alone, remove "
                         "its file " MARKER_NAME,
                         s->path);
    bool dcp = !ours && dcp_folder_is(s->path) && !model_folder_has_weights(s->path);
    FSDP_TRY(ours ? open_checkpoint(s) : dcp ? open_dcp(s) : open_folder(s));
    s->by_name = arena_alloc(s->memory, ((size_t)s->n_tensors + 1) * sizeof *s->by_name);
    if (!s->by_name)
        return out_of_memory(s->path);
    sort_by_name(s);
    return FSDP_OK;
}

fsdp_status source_open(const char *path, ckpt_source **out)
{
    *out = NULL;
    ckpt_source *s = calloc(1, sizeof *s);
    fsdp_status status = s ? arena_create(0, &s->memory) : out_of_memory(path);
    if (status == FSDP_OK && !(s->path = arena_strdup(s->memory, path)))
        status = out_of_memory(path);
    if (status == FSDP_OK)
        status = open_any(s);
    if (status != FSDP_OK) {
        source_close(s);
        return status;
    }
    *out = s;
    return FSDP_OK;
}

fsdp_status source_adopt(ckpt_source *s, ckpt_source *other, const source_tensor *tensors, int n)
{
    size_t all = (size_t)s->n_tensors + (size_t)n;
    source_tensor *grown = arena_alloc(s->memory, (all + 1) * sizeof *grown);
    const source_tensor **by_name = arena_alloc(s->memory, (all + 1) * sizeof *by_name);
    if (!grown || !by_name)
        return out_of_memory(s->path);
    memcpy(grown, s->tensors, (size_t)s->n_tensors * sizeof *grown);
    memcpy(grown + s->n_tensors, tensors, (size_t)n * sizeof *grown);
    s->tensors = grown;
    s->by_name = by_name;
    s->n_tensors = (int)all;
    s->adopted = other;
    sort_by_name(s);
    return FSDP_OK;
}

void source_close(ckpt_source *s)
{
    if (!s)
        return;
    for (int i = 0; s->files && i < s->manifest->n_files; i++)
        safetensors_close(s->files[i]);
    manifest_free(s->manifest);
    model_folder_close(s->folder);
    dcp_folder_close(s->dcp);
    source_close(s->adopted);
    arena_free(s->memory);
    free(s);
}

const char *source_path(const ckpt_source *s)
{
    return s->path;
}

const manifest *source_manifest(const ckpt_source *s)
{
    return s->manifest;
}

const char *source_form(const ckpt_source *s)
{
    return s->manifest ? ckpt_kind_name(s->manifest->kind) : s->dcp ? "PyTorch checkpoint" : "model folder";
}

bool source_optimizer(const ckpt_source *s, int64_t *steps, double *lr)
{
    if (!s->dcp || !source_has_role(s, CKPT_MOMENT1))
        return false;
    *steps = max_i64(0, s->steps);
    return dcp_folder_number(s->dcp, "lr", lr) || (*lr = 0, true);
}

int source_count(const ckpt_source *s)
{
    return s->n_tensors;
}

const source_tensor *source_at(const ckpt_source *s, int index)
{
    return &s->tensors[index];
}

static const source_tensor *find_exactly(const ckpt_source *s, ckpt_role role, const char *name)
{
    source_tensor wanted = {.name = name, .role = role};
    const source_tensor *key = &wanted;
    const source_tensor *const *found =
        bsearch(&key, s->by_name, (size_t)s->n_tensors, sizeof *s->by_name, tensor_order);
    return found ? *found : NULL;
}

const source_tensor *source_find(const ckpt_source *s, ckpt_role role, const char *name)
{
    const source_tensor *found = find_exactly(s, role, name);
    if (!found && role == CKPT_BUFFER)
        found = find_exactly(s, CKPT_PARAMETER, name);
    if (!found && role == CKPT_PARAMETER)
        found = find_exactly(s, CKPT_BUFFER, name);
    return found;
}

bool source_has_role(const ckpt_source *s, ckpt_role role)
{
    for (int i = 0; i < s->n_tensors; i++)
        if (s->tensors[i].role == role)
            return true;
    return false;
}

fsdp_status source_take_average(ckpt_source *s)
{
    int kept = 0;
    if (!source_has_role(s, CKPT_AVERAGE))
        return error_set(FSDP_ERR_INPUT, "%s: has no average of the weights: it was trained without --ema", s->path);
    bool *replaced = calloc((size_t)s->n_tensors, sizeof *replaced);
    if (!replaced)
        return out_of_memory(s->path);
    for (int i = 0; i < s->n_tensors; i++) /* those that were not trained have none, and stay */
        replaced[i] = s->tensors[i].role == CKPT_PARAMETER && find_exactly(s, CKPT_AVERAGE, s->tensors[i].name);
    for (int i = 0; i < s->n_tensors; i++) {
        if (replaced[i])
            continue;
        s->tensors[kept] = s->tensors[i];
        if (s->tensors[kept].role == CKPT_AVERAGE)
            s->tensors[kept].role = CKPT_PARAMETER;
        kept++;
    }
    free(replaced);
    s->n_tensors = kept;
    sort_by_name(s);
    return FSDP_OK;
}

/* ---- Data ---- */

static int64_t width(const safetensors_tensor *stored)
{
    return stored->numel > 0 ? (int64_t)stored->bytes / stored->numel : 0;
}

int64_t source_piece_offset(const source_piece *piece)
{
    return (int64_t)piece->stored->offset + piece->at * width(piece->stored);
}

int64_t source_piece_bytes(const source_piece *piece)
{
    return piece->count * width(piece->stored);
}

fsdp_status source_checksum_error(const source_tensor *tensor, const source_piece *piece)
{
    return error_set(FSDP_ERR_INPUT,
                     "%s: %s %s, elements %" PRId64 " to %" PRId64 ": the checksum does not hold: the file is damaged",
                     piece->stored->path, ckpt_role_name(tensor->role), tensor->name, piece->first,
                     piece->first + piece->count - 1);
}

fsdp_status source_read(const source_tensor *tensor, int64_t first, int64_t n, float *out)
{
    for (int i = 0; i < tensor->n_pieces && n > 0; i++) {
        const source_piece *piece = &tensor->pieces[i];
        if (piece->first + piece->count <= first)
            continue;
        if (piece->first > first)
            break;
        int64_t skip = first - piece->first, now = min_i64(n, piece->count - skip);
        FSDP_TRY(safetensors_read_f32(piece->stored, piece->at + skip, now, out));
        first += now;
        n -= now;
        out += now;
    }
    if (n == 0)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT, "%s %s: element %" PRId64 " is not in this checkpoint",
                     ckpt_role_name(tensor->role), tensor->name, first);
}
