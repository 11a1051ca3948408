/* Reads the description, maps the files it names, and looks into each chunk for where its elements lie. */
#include "format/torch/dcp_folder.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "format/torch/names.h"
#include "format/torch/torch_file.h"

enum { MAX_METADATA_BYTES = 512 << 20 };

/* One file of data, mapped when it is first needed. */
typedef struct data_file {
    const char *name, *path;
    file_map map;
    struct data_file *next;
} data_file;

/* Where something was written. */
typedef struct place {
    const char *key;
    const pickle_value *offset; /* of the chunk; NULL or None for what is no tensor */
    const pickle_value *info;   /* the state of _StorageInfo */
} place;

struct dcp_folder {
    arena *memory;
    const char *path, *metadata;
    data_file *files;
    place *places; /* by key */
    size_t n_places;
    dcp_tensor *tensors;
    int n_tensors;
};

static fsdp_status out_of_memory(const dcp_folder *folder)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory while reading it", folder->path);
}

static fsdp_status bad(const dcp_folder *folder, const char *key, const char *why)
{
    return error_set(FSDP_ERR_INPUT, "%s: %s: %s", folder->metadata, key, why);
}

/* The attribute of a pickled dataclass; NULL: absent. */
static const pickle_value *field(const pickle_value *object, const char *name)
{
    return pickle_is(object, PICKLE_OBJECT) ? pickle_find(object->state, name) : NULL;
}

static bool is_a(const pickle_value *value, const char *class_name)
{
    if (!pickle_is(value, PICKLE_OBJECT))
        return false;
    const char *dot = strrchr(value->global->name, '.');
    return dot && strcmp(dot + 1, class_name) == 0;
}

/* ---- Places ---- */

static int by_key(const void *left, const void *right)
{
    return strcmp(((const place *)left)->key, ((const place *)right)->key);
}

static fsdp_status list_places(dcp_folder *folder, const pickle_value *root)
{
    const pickle_value *storage = field(root, "storage_data");
    if (!pickle_is(storage, PICKLE_DICT))
        return bad(folder, "storage_data", "is missing: not a checkpoint of PyTorch's file system writer");
    folder->places = arena_alloc(folder->memory, (storage->n_items / 2 + 1) * sizeof *folder->places);
    if (!folder->places)
        return out_of_memory(folder);
    for (size_t i = 0; i < storage->n_items; i += 2) {
        const pickle_value *key = field(storage->items[i], "fqn");
        const pickle_value *info = is_a(storage->items[i + 1], "_StorageInfo") ? storage->items[i + 1]->state : NULL;
        if (!pickle_is(key, PICKLE_TEXT) || !pickle_is(info, PICKLE_DICT))
            return bad(folder, "storage_data", "has an entry of an unknown form");
        folder->places[folder->n_places++] =
            (place){.key = key->bytes, .offset = field(storage->items[i], "offset"), .info = info};
    }
    qsort(folder->places, folder->n_places, sizeof *folder->places, by_key);
    return FSDP_OK;
}

static bool same_sizes(const pickle_value *value, const int64_t *sizes, int n_dims)
{
    int64_t other[SAFETENSORS_MAX_DIMS];
    int n;
    return torch_sizes(value, other, &n) && n == n_dims && memcmp(other, sizes, (size_t)n * sizeof *sizes) == 0;
}

/* The chunk of `key` at `offsets`; NULL: it was not written. */
static const place *find_place(const dcp_folder *folder, const char *key, const int64_t *offsets, int n_dims)
{
    place wanted = {.key = key};
    const place *end = folder->places + folder->n_places,
                *found =
                    folder->n_places ? bsearch(&wanted, folder->places, folder->n_places, sizeof wanted, by_key) : NULL;
    if (!found)
        return NULL;
    while (found > folder->places && strcmp(found[-1].key, key) == 0)
        found--;
    for (; found < end && strcmp(found->key, key) == 0; found++)
        if (same_sizes(found->offset, offsets, n_dims))
            return found;
    return NULL;
}

/* ---- Files ---- */

static fsdp_status find_file(dcp_folder *folder, const char *key, const char *name, const data_file **out)
{
    *out = NULL;
    if (!*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return bad(folder, key, "lies in a file outside this folder");
    for (const data_file *file = folder->files; file && !*out; file = file->next)
        if (strcmp(file->name, name) == 0)
            *out = file;
    if (*out)
        return FSDP_OK;
    data_file *file = arena_alloc(folder->memory, sizeof *file);
    char *path = file_join(folder->path, name);
    if (file && path)
        file->path = arena_strdup(folder->memory, path);
    free(path);
    if (!file || !file->path)
        return out_of_memory(folder);
    file->name = name;
    FSDP_TRY(file_map_open(file->path, &file->map));
    file->next = folder->files;
    folder->files = file;
    *out = file;
    return FSDP_OK;
}

/* The archive that was written at a place. */
static fsdp_status open_place(dcp_folder *folder, const place *where, const data_file **file, torch_file **out)
{
    const pickle_value *name = pickle_find(where->info, "relative_path"), *offset = pickle_find(where->info, "offset"),
                       *length = pickle_find(where->info, "length"),
                       *transforms = pickle_find(where->info, "transform_descriptors");
    *file = NULL, *out = NULL;
    if (!pickle_is(name, PICKLE_TEXT) || !pickle_is(offset, PICKLE_INT) || !pickle_is(length, PICKLE_INT))
        return bad(folder, where->key, "has no place in a file");
    if (transforms && transforms->kind != PICKLE_NONE)
        return bad(folder, where->key, "was compressed by an extension, which is not read");
    FSDP_TRY(find_file(folder, where->key, name->bytes, file));
    size_t bytes = (*file)->map.bytes;
    if (offset->integer < 0 || length->integer < 0 || (uint64_t)offset->integer > bytes ||
        (uint64_t)length->integer > bytes - (size_t)offset->integer)
        return error_set(FSDP_ERR_INPUT, "%s: ends before %s: is the file cut?", (*file)->path, where->key);
    return torch_file_open_memory((*file)->path, (*file)->map.data + offset->integer, (size_t)length->integer,
                                  (size_t)offset->integer, out);
}

/* ---- Tensors ---- */

/* Keeps what the chunk says of its elements; the archive around them is needed no more. */
static fsdp_status open_chunk(dcp_folder *folder, const dcp_tensor *tensor, dcp_chunk *chunk)
{
    const data_file *file;
    torch_file *archive;
    const place *where = find_place(folder, tensor->key, chunk->offsets, tensor->n_dims);
    if (!where)
        return bad(folder, tensor->key, "a chunk of it was not written");
    FSDP_TRY(open_place(folder, where, &file, &archive));
    safetensors_tensor *stored = &chunk->stored;
    fsdp_status status = torch_file_tensor(archive, torch_file_root(archive), tensor->key, stored);
    if (status == FSDP_OK && stored->strides) {
        int64_t *strides = arena_alloc(folder->memory, sizeof chunk->sizes);
        if (strides)
            memcpy(strides, stored->strides, (size_t)stored->n_dims * sizeof *strides);
        else
            status = out_of_memory(folder);
        stored->strides = strides;
    }
    stored->path = file->path;
    torch_file_close(archive);
    FSDP_TRY(status);
    if (stored->n_dims != tensor->n_dims ||
        memcmp(stored->shape, chunk->sizes, (size_t)tensor->n_dims * sizeof *chunk->sizes) != 0)
        return bad(folder, tensor->key, "a chunk has another shape than its description");
    return FSDP_OK;
}

static fsdp_status read_chunk(dcp_folder *folder, const dcp_tensor *tensor, const pickle_value *value, dcp_chunk *chunk)
{
    int n_offsets = -1, n_sizes = -1;
    bool good = torch_sizes(field(value, "offsets"), chunk->offsets, &n_offsets) &&
                torch_sizes(field(value, "sizes"), chunk->sizes, &n_sizes) && n_offsets == tensor->n_dims &&
                n_sizes == tensor->n_dims;
    for (int i = 0; i < tensor->n_dims && good; i++)
        good = chunk->offsets[i] <= tensor->shape[i] && chunk->sizes[i] <= tensor->shape[i] - chunk->offsets[i];
    return good ? open_chunk(folder, tensor, chunk) : bad(folder, tensor->key, "a chunk does not lie within it");
}

static fsdp_status read_tensor(dcp_folder *folder, const char *key, const pickle_value *value, dcp_tensor *tensor)
{
    const pickle_value *chunks = field(value, "chunks");
    int64_t numel = 1, covered = 0;
    tensor->key = key;
    if (!torch_sizes(field(value, "size"), tensor->shape, &tensor->n_dims) || !pickle_is(chunks, PICKLE_LIST))
        return bad(folder, key, "is not described as a tensor is");
    for (int i = 0; i < tensor->n_dims; i++)
        if (checked_mul_i64(numel, tensor->shape[i], &numel))
            return bad(folder, key, "the product of its shape overflows");
    tensor->chunks = arena_alloc(folder->memory, (chunks->n_items + 1) * sizeof *tensor->chunks);
    if (!tensor->chunks)
        return out_of_memory(folder);
    for (size_t i = 0; i < chunks->n_items; i++) {
        FSDP_TRY(read_chunk(folder, tensor, chunks->items[i], &tensor->chunks[tensor->n_chunks]));
        if (__builtin_add_overflow(covered, tensor->chunks[tensor->n_chunks++].stored.numel, &covered))
            return bad(folder, key, "its chunks overlap");
    }
    return covered == numel ? FSDP_OK : bad(folder, key, "its chunks do not cover it once");
}

/* The keys of the dicts around a tensor: as the planner kept them, or the flat key alone. */
static fsdp_status read_path(dcp_folder *folder, const pickle_value *planner, dcp_tensor *tensor)
{
    const pickle_value *keys = pickle_find(planner, tensor->key);
    int n = pickle_is(keys, PICKLE_TUPLE) ? (int)keys->n_items : 0;
    const char **path = arena_alloc(folder->memory, ((size_t)n + 1) * sizeof *path);
    if (!path)
        return out_of_memory(folder);
    tensor->path = path;
    tensor->n_path = n > 0 ? n : 1;
    path[0] = tensor->key;
    for (int i = 0; i < n; i++) {
        const pickle_value *key = keys->items[i];
        char number[32];
        if (key->kind != PICKLE_TEXT && key->kind != PICKLE_INT)
            return bad(folder, tensor->key, "its path holds something that is no key");
        snprintf(number, sizeof number, "%" PRId64, key->kind == PICKLE_INT ? key->integer : 0);
        path[i] = key->kind == PICKLE_TEXT ? key->bytes : arena_strdup(folder->memory, number);
        if (!path[i])
            return out_of_memory(folder);
    }
    return FSDP_OK;
}

static fsdp_status read_tensors(dcp_folder *folder, const pickle_value *root)
{
    const pickle_value *all = field(root, "state_dict_metadata"), *planner = field(root, "planner_data");
    if (!pickle_is(all, PICKLE_DICT))
        return bad(folder, "state_dict_metadata", "is missing: not a checkpoint of PyTorch");
    folder->tensors = arena_alloc(folder->memory, (all->n_items / 2 + 1) * sizeof *folder->tensors);
    if (!folder->tensors)
        return out_of_memory(folder);
    for (size_t i = 0; i < all->n_items; i += 2) {
        if (all->items[i]->kind != PICKLE_TEXT)
            return bad(folder, "state_dict_metadata", "has a key that is no text");
        if (!is_a(all->items[i + 1], "TensorStorageMetadata"))
            continue;
        dcp_tensor *tensor = &folder->tensors[folder->n_tensors++];
        FSDP_TRY(read_tensor(folder, all->items[i]->bytes, all->items[i + 1], tensor));
        FSDP_TRY(read_path(folder, planner, tensor));
    }
    return FSDP_OK;
}

/* ---- Opening ---- */

static fsdp_status read_folder(dcp_folder *folder)
{
    char *data = NULL;
    size_t bytes;
    pickle_value *root = NULL;
    FSDP_TRY(file_read_at_most(folder->metadata, MAX_METADATA_BYTES, &data, &bytes));
    fsdp_status status = pickle_read(folder->metadata, data, bytes, torch_globals, folder->memory, &root, NULL);
    free(data);
    FSDP_TRY(status);
    if (!is_a(root, "Metadata"))
        return bad(folder, "its pickle", "is no Metadata of torch.distributed.checkpoint");
    FSDP_TRY(list_places(folder, root));
    return read_tensors(folder, root);
}

bool dcp_folder_is(const char *path)
{
    char *metadata = file_join(path, DCP_METADATA_NAME);
    bool is = metadata && file_exists(metadata) && !file_is_directory(metadata);
    free(metadata);
    return is;
}

fsdp_status dcp_folder_open(const char *path, dcp_folder **out)
{
    arena *memory;
    const char *own_path;
    void *owner;
    *out = NULL;
    FSDP_TRY(arena_create_owned(path, sizeof(dcp_folder), &memory, &owner, &own_path));
    dcp_folder *folder = owner;
    char *metadata = file_join(path, DCP_METADATA_NAME);
    folder->memory = memory;
    folder->path = own_path;
    folder->metadata = metadata ? arena_strdup(memory, metadata) : NULL;
    free(metadata);
    if (!folder->metadata) {
        arena_free(memory);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    }
    fsdp_status status = read_folder(folder);
    if (status != FSDP_OK) {
        dcp_folder_close(folder);
        return status;
    }
    *out = folder;
    return FSDP_OK;
}

void dcp_folder_close(dcp_folder *folder)
{
    if (!folder)
        return;
    for (data_file *file = folder->files; file; file = file->next)
        file_map_close(&file->map);
    arena_free(folder->memory);
}

int dcp_folder_count(const dcp_folder *folder)
{
    return folder->n_tensors;
}

const dcp_tensor *dcp_folder_at(const dcp_folder *folder, int index)
{
    return &folder->tensors[index];
}

bool dcp_folder_number(dcp_folder *folder, const char *ending, double *out)
{
    for (size_t i = 0; i < folder->n_places; i++) {
        const place *where = &folder->places[i];
        size_t length = strlen(where->key), n = strlen(ending);
        const data_file *file;
        torch_file *archive;
        if (length < n || strcmp(where->key + length - n, ending) != 0 ||
            open_place(folder, where, &file, &archive) != FSDP_OK)
            continue;
        const pickle_value *root = torch_file_root(archive);
        bool found = root->kind == PICKLE_FLOAT || root->kind == PICKLE_INT;
        if (found)
            *out = root->kind == PICKLE_FLOAT ? root->number : (double)root->integer;
        torch_file_close(archive);
        if (found)
            return true;
    }
    return false;
}
