/* Finds and opens the weight files of a model folder and joins their tensors into one sorted list. Each file is checked
 * by its own reader (weight_file.h); here only the index is. */
#include "format/weights/model_folder.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "format/weights/weight_file.h"

/* What the weights of a folder are in: the first that is there. */
static const struct {
    const char *name;
    bool is_index;
} weight_names[] = {{"model.safetensors", false},
                    {"model.safetensors.index.json", true},
                    {"pytorch_model.bin", false},
                    {"pytorch_model.bin.index.json", true}};
enum { N_WEIGHT_NAMES = sizeof weight_names / sizeof *weight_names };

typedef struct part {
    const char *name;
    weight_file *file; /* NULL: missing, and reported as such */
} part;

struct model_folder {
    arena *memory;
    const char *path;
    part *parts; /* by name */
    size_t n_parts;
    const safetensors_tensor **tensors; /* by name */
    size_t n_tensors;
};

/* A list for an error message, cut where the message would be. */
typedef struct complaint {
    char text[1600];
    size_t used, n;
} complaint;

static void __attribute__((format(printf, 2, 3))) complain(complaint *c, const char *format, ...)
{
    va_list arguments;
    size_t room = sizeof c->text - c->used;
    va_start(arguments, format);
    if (room > 2 && c->n > 0) {
        memcpy(c->text + c->used, ", ", 3);
        c->used += 2;
        room -= 2;
    }
    int length = vsnprintf(c->text + c->used, room, format, arguments);
    c->used += length < 0 ? 0 : (size_t)length < room ? (size_t)length : room - 1;
    c->n++;
    va_end(arguments);
}

static fsdp_status out_of_memory(const char *path)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory while opening the weights", path);
}

static int tensor_by_name(const void *left, const void *right)
{
    return strcmp((*(const safetensors_tensor *const *)left)->name, (*(const safetensors_tensor *const *)right)->name);
}

static int name_against_tensor(const void *name, const void *tensor)
{
    return strcmp(name, (*(const safetensors_tensor *const *)tensor)->name);
}

static int part_by_name(const void *left, const void *right)
{
    return strcmp(((const part *)left)->name, ((const part *)right)->name);
}

static fsdp_status open_single(model_folder *folder, const char *path)
{
    folder->parts = arena_alloc(folder->memory, sizeof *folder->parts);
    if (!folder->parts)
        return out_of_memory(path);
    folder->n_parts = 1;
    FSDP_TRY(weight_file_open(path, &folder->parts[0].file));
    const weight_file *file = folder->parts[0].file;
    folder->n_tensors = weight_file_count(file);
    folder->tensors = arena_alloc(folder->memory, (folder->n_tensors + 1) * sizeof *folder->tensors);
    if (!folder->tensors)
        return out_of_memory(path);
    for (size_t i = 0; i < folder->n_tensors; i++)
        folder->tensors[i] = weight_file_at(file, i);
    return FSDP_OK;
}

/* The index may not lead out of its folder. */
static fsdp_status check_part_name(const char *index_path, const char *tensor, const json_t *value)
{
    const char *name = json_string_value(value);
    if (!name)
        return error_set(FSDP_ERR_INPUT, "%s: weight_map entry %s is not a string", index_path, tensor);
    if (!*name || strchr(name, '/') || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return error_set(FSDP_ERR_INPUT, "%s: weight_map entry %s: \"%s\" is not the name of a file in this folder",
                         index_path, tensor, name);
    return FSDP_OK;
}

static fsdp_status list_parts(model_folder *folder, const char *index_path, json_t *weight_map)
{
    const char *tensor;
    json_t *value;
    folder->parts = arena_alloc(folder->memory, (json_object_size(weight_map) + 1) * sizeof *folder->parts);
    if (!folder->parts)
        return out_of_memory(index_path);
    size_t n = 0;
    json_object_foreach(weight_map, tensor, value)
    {
        FSDP_TRY(check_part_name(index_path, tensor, value));
        folder->parts[n].name = arena_strdup(folder->memory, json_string_value(value));
        if (!folder->parts[n++].name)
            return out_of_memory(index_path);
    }
    qsort(folder->parts, n, sizeof *folder->parts, part_by_name);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(folder->parts[i].name, folder->parts[folder->n_parts - 1].name) != 0)
            folder->parts[folder->n_parts++] = folder->parts[i];
    return FSDP_OK;
}

static fsdp_status open_parts(model_folder *folder, complaint *missing)
{
    for (size_t i = 0; i < folder->n_parts; i++) {
        char *path = file_join(folder->path, folder->parts[i].name);
        if (!path)
            return out_of_memory(folder->path);
        fsdp_status status = FSDP_OK;
        if (file_exists(path))
            status = weight_file_open(path, &folder->parts[i].file);
        else
            complain(missing, "%s", folder->parts[i].name);
        free(path);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

static fsdp_status collect(model_folder *folder, json_t *weight_map, complaint *absent)
{
    const char *name;
    json_t *value;
    folder->tensors = arena_alloc(folder->memory, (json_object_size(weight_map) + 1) * sizeof *folder->tensors);
    if (!folder->tensors)
        return out_of_memory(folder->path);
    json_object_foreach(weight_map, name, value)
    {
        part wanted = {.name = json_string_value(value)};
        const part *found = bsearch(&wanted, folder->parts, folder->n_parts, sizeof wanted, part_by_name);
        if (!found || !found->file)
            continue;
        const safetensors_tensor *tensor = weight_file_find(found->file, name);
        if (tensor)
            folder->tensors[folder->n_tensors++] = tensor;
        else
            complain(absent, "%s (in %s)", name, found->name);
    }
    return FSDP_OK;
}

static fsdp_status join_parts(model_folder *folder, const char *index_path, json_t *index)
{
    complaint missing = {.n = 0}, absent = {.n = 0};
    json_t *weight_map = json_object_get(index, "weight_map");
    if (!json_is_object(weight_map))
        return error_set(FSDP_ERR_INPUT, "%s: \"weight_map\" is missing or not an object", index_path);
    FSDP_TRY(list_parts(folder, index_path, weight_map));
    FSDP_TRY(open_parts(folder, &missing));
    FSDP_TRY(collect(folder, weight_map, &absent));
    if (missing.n == 0 && absent.n == 0)
        return FSDP_OK;
    char counts[2][64] = {"", ""};
    if (missing.n)
        snprintf(counts[0], sizeof counts[0], ": missing files (%zu): ", missing.n);
    if (absent.n)
        snprintf(counts[1], sizeof counts[1], "%s tensors that their files do not have (%zu): ", missing.n ? ";" : ":",
                 absent.n);
    return error_set(FSDP_ERR_INPUT, "%s%s%s%s%s", index_path, counts[0], missing.text, counts[1], absent.text);
}

static fsdp_status open_indexed(model_folder *folder, const char *index_path)
{
    json_t *index = NULL;
    FSDP_TRY(json_read_file(index_path, &index));
    fsdp_status status = join_parts(folder, index_path, index);
    json_decref(index);
    return status;
}

/* The path of the file that `weight_names[index]` names, malloc'd. *there: it exists. NULL: out of memory. */
static char *weight_path(const char *folder, int index, bool *there)
{
    char *path = file_join(folder, weight_names[index].name);
    *there = path && file_exists(path);
    return path;
}

bool model_folder_has_weights(const char *path)
{
    bool there = false;
    for (int i = 0; i < N_WEIGHT_NAMES && !there; i++)
        free(weight_path(path, i, &there));
    return there;
}

static fsdp_status open_weights(model_folder *folder)
{
    if (!file_is_directory(folder->path))
        return open_single(folder, folder->path);
    for (int i = 0; i < N_WEIGHT_NAMES; i++) {
        bool there;
        char *path = weight_path(folder->path, i, &there);
        fsdp_status status = !path                      ? out_of_memory(folder->path)
                             : !there                   ? FSDP_OK
                             : weight_names[i].is_index ? open_indexed(folder, path)
                                                        : open_single(folder, path);
        free(path);
        if (there || status != FSDP_OK)
            return status;
    }
    return error_set(FSDP_ERR_INPUT, "%s: has neither model.safetensors nor pytorch_model.bin, nor the index of either",
                     folder->path);
}

fsdp_status model_folder_open(const char *path, model_folder **out)
{
    arena *memory;
    const char *own_path;
    void *owner;
    *out = NULL;
    FSDP_TRY(arena_create_owned(path, sizeof(model_folder), &memory, &owner, &own_path));
    model_folder *folder = owner;
    folder->memory = memory;
    folder->path = own_path;
    fsdp_status status = open_weights(folder);
    if (status != FSDP_OK) {
        model_folder_close(folder);
        return status;
    }
    qsort(folder->tensors, folder->n_tensors, sizeof *folder->tensors, tensor_by_name);
    *out = folder;
    return FSDP_OK;
}

void model_folder_close(model_folder *folder)
{
    if (!folder)
        return;
    for (size_t i = 0; i < folder->n_parts; i++)
        weight_file_close(folder->parts[i].file);
    arena_free(folder->memory);
}

size_t model_folder_count(const model_folder *folder)
{
    return folder->n_tensors;
}

const safetensors_tensor *model_folder_at(const model_folder *folder, size_t index)
{
    return folder->tensors[index];
}

const safetensors_tensor *model_folder_find(const model_folder *folder, const char *name)
{
    const safetensors_tensor *const *found =
        bsearch(name, folder->tensors, folder->n_tensors, sizeof *folder->tensors, name_against_tensor);
    return found ? *found : NULL;
}
