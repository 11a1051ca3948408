/* Opening, checking and looking up in safetensors files. Everything that the header claims is checked here, once;
 * safetensors_read.c converts elements and relies on that. */
#include "format/weights/safetensors.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/json.h"
#include "format/mapped_file.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensor data is used in place, as little endian");

#define LENGTH_BYTES 8
#define MAX_HEADER_BYTES 100000000u
#define METADATA_KEY "__metadata__"

struct safetensors {
    mapped_file base;
    const uint8_t *data; /* after the header */
    size_t data_begin;   /* byte of the file where that is */
    size_t data_bytes;
    safetensors_tensor *tensors; /* by place in the data */
    safetensors_tensor **by_name;
    size_t n_tensors;
};

/* Element types of the format. A name that is not here is taken as it stands: its size cannot be checked. */
static const struct {
    const char *name;
    int bits;
    fsdp_dtype dtype;
} element_types[] = {
    {"F32", 32, FSDP_F32},
    {"BF16", 16, FSDP_BF16},
    {"F16", 16, FSDP_F16},
    {"F64", 64, FSDP_F64},
    {"I32", 32, FSDP_I32},
    {"I64", 64, FSDP_I64},
    {"U8", 8, FSDP_U8},
    {"BOOL", 8, FSDP_DTYPE_COUNT},
    {"I8", 8, FSDP_DTYPE_COUNT},
    {"I16", 16, FSDP_DTYPE_COUNT},
    {"U16", 16, FSDP_DTYPE_COUNT},
    {"U32", 32, FSDP_DTYPE_COUNT},
    {"U64", 64, FSDP_DTYPE_COUNT},
    {"C64", 64, FSDP_DTYPE_COUNT},
    {"F8_E4M3", 8, FSDP_DTYPE_COUNT},
    {"F8_E5M2", 8, FSDP_DTYPE_COUNT},
    {"F8_E4M3FNUZ", 8, FSDP_DTYPE_COUNT},
    {"F8_E5M2FNUZ", 8, FSDP_DTYPE_COUNT},
    {"F8_E8M0", 8, FSDP_DTYPE_COUNT},
    {"F6_E2M3", 6, FSDP_DTYPE_COUNT},
    {"F6_E3M2", 6, FSDP_DTYPE_COUNT},
    {"F4", 4, FSDP_DTYPE_COUNT},
};

static fsdp_status out_of_memory(const safetensors *file)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory while reading the header", file->base.path);
}

static fsdp_status read_dtype(safetensors *file, safetensors_tensor *tensor, const json_t *info, int *bits)
{
    const json_t *value = json_object_get(info, "dtype");
    if (!json_is_string(value))
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s: \"dtype\" is missing or not a string", file->base.path,
                         tensor->name);
    tensor->dtype_name = arena_strdup(file->base.memory, json_string_value(value));
    if (!tensor->dtype_name)
        return out_of_memory(file);
    tensor->dtype = FSDP_DTYPE_COUNT;
    *bits = 0;
    for (size_t i = 0; i < sizeof element_types / sizeof element_types[0]; i++) {
        if (strcmp(element_types[i].name, tensor->dtype_name) == 0) {
            tensor->dtype = element_types[i].dtype;
            *bits = element_types[i].bits;
        }
    }
    return FSDP_OK;
}

static fsdp_status read_shape(const safetensors *file, safetensors_tensor *tensor, const json_t *info)
{
    const json_t *dims = json_object_get(info, "shape");
    if (!json_is_array(dims))
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s: \"shape\" is missing or not a list", file->base.path,
                         tensor->name);
    if (json_array_size(dims) > SAFETENSORS_MAX_DIMS)
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s has %zu dimensions; at most %d are supported", file->base.path,
                         tensor->name, json_array_size(dims), SAFETENSORS_MAX_DIMS);
    tensor->n_dims = (int)json_array_size(dims);
    tensor->numel = 1;
    for (int i = 0; i < tensor->n_dims; i++) {
        const json_t *dim = json_array_get(dims, (size_t)i);
        if (!json_is_integer(dim) || json_integer_value(dim) < 0)
            return error_set(FSDP_ERR_INPUT, "%s: tensor %s: dimension %d of its shape is not a whole number >= 0",
                             file->base.path, tensor->name, i);
        tensor->shape[i] = json_integer_value(dim);
        if (checked_mul_i64(tensor->numel, tensor->shape[i], &tensor->numel))
            return error_set(FSDP_ERR_INPUT, "%s: tensor %s: the product of its shape overflows", file->base.path,
                             tensor->name);
    }
    return FSDP_OK;
}

static fsdp_status read_offsets(const safetensors *file, safetensors_tensor *tensor, const json_t *info)
{
    const json_t *offsets = json_object_get(info, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s: \"data_offsets\" is not a pair of whole numbers",
                         file->base.path, tensor->name);
    long long first = json_integer_value(begin), last = json_integer_value(end);
    if (first < 0 || last < first || (unsigned long long)last > file->data_bytes)
        return error_set(FSDP_ERR_INPUT,
                         "%s: tensor %s: data_offsets [%lld, %lld] do not lie within the file's %zu bytes of data "
                         "(is the file truncated?)",
                         file->base.path, tensor->name, first, last, file->data_bytes);
    tensor->data = file->data + first;
    tensor->offset = file->data_begin + (size_t)first;
    tensor->bytes = (size_t)(last - first);
    return FSDP_OK;
}

static fsdp_status check_bytes(const safetensors *file, const safetensors_tensor *tensor, int bits)
{
    char shape[128];
    size_t total_bits;
    if (bits == 0)
        return FSDP_OK;
    if (checked_mul((size_t)tensor->numel, (size_t)bits, &total_bits))
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s: the size of its shape overflows", file->base.path,
                         tensor->name);
    if (total_bits % 8 != 0 || total_bits / 8 != tensor->bytes)
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s: %s of shape %s takes %zu bytes, but its data_offsets span %zu",
                         file->base.path, tensor->name, tensor->dtype_name,
                         safetensors_shape_text(tensor->n_dims, tensor->shape, shape, sizeof shape), total_bits / 8,
                         tensor->bytes);
    return FSDP_OK;
}

static fsdp_status read_tensor(safetensors *file, const char *name, const json_t *info, safetensors_tensor *tensor)
{
    int bits = 0;
    tensor->path = file->base.path;
    tensor->name = arena_strdup(file->base.memory, name);
    if (!tensor->name)
        return out_of_memory(file);
    if (!json_is_object(info))
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s: its entry in the header is not an object", file->base.path,
                         name);
    FSDP_TRY(read_dtype(file, tensor, info, &bits));
    FSDP_TRY(read_shape(file, tensor, info));
    FSDP_TRY(read_offsets(file, tensor, info));
    return check_bytes(file, tensor, bits);
}

static fsdp_status check_metadata(const safetensors *file, json_t *object)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return error_set(FSDP_ERR_INPUT, "%s: " METADATA_KEY " is not an object", file->base.path);
    json_object_foreach(object, key, value)
    {
        if (!json_is_string(value))
            return error_set(FSDP_ERR_INPUT, "%s: " METADATA_KEY " entry %s is not a string", file->base.path, key);
    }
    return FSDP_OK;
}

/* Empty tensors come before the one that begins at the same byte; names decide the rest, so the order is one. */
static int by_place(const void *left, const void *right)
{
    const safetensors_tensor *a = left, *b = right;
    if (a->data != b->data)
        return a->data < b->data ? -1 : 1;
    if (a->bytes != b->bytes)
        return a->bytes < b->bytes ? -1 : 1;
    return strcmp(a->name, b->name);
}

static int by_name(const void *left, const void *right)
{
    return strcmp((*(safetensors_tensor *const *)left)->name, (*(safetensors_tensor *const *)right)->name);
}

static int name_against_tensor(const void *name, const void *tensor)
{
    return strcmp(name, (*(safetensors_tensor *const *)tensor)->name);
}

/* The tensors, in order, must tile the data: no byte twice, none unowned. */
static fsdp_status check_tiling(const safetensors *file)
{
    size_t covered = 0;
    for (size_t i = 0; i < file->n_tensors; i++) {
        const safetensors_tensor *tensor = &file->tensors[i];
        size_t begin = (size_t)(tensor->data - file->data);
        if (begin < covered)
            return error_set(FSDP_ERR_INPUT, "%s: tensors %s and %s overlap", file->base.path,
                             file->tensors[i - 1].name, tensor->name);
        if (begin > covered)
            return error_set(FSDP_ERR_INPUT, "%s: %zu bytes of data before tensor %s belong to no tensor",
                             file->base.path, begin - covered, tensor->name);
        covered += tensor->bytes;
    }
    if (covered != file->data_bytes)
        return error_set(FSDP_ERR_INPUT, "%s: the last %zu bytes belong to no tensor", file->base.path,
                         file->data_bytes - covered);
    return FSDP_OK;
}

static fsdp_status read_entries(safetensors *file, json_t *header)
{
    const char *name;
    json_t *info;
    size_t n = json_object_size(header);
    file->tensors = arena_alloc(file->base.memory, (n + 1) * sizeof *file->tensors);
    file->by_name = arena_alloc(file->base.memory, (n + 1) * sizeof *file->by_name);
    if (!file->tensors || !file->by_name)
        return out_of_memory(file);
    json_object_foreach(header, name, info)
    {
        if (strcmp(name, METADATA_KEY) == 0) {
            FSDP_TRY(check_metadata(file, info));
            continue;
        }
        FSDP_TRY(read_tensor(file, name, info, &file->tensors[file->n_tensors]));
        file->n_tensors++;
    }
    qsort(file->tensors, file->n_tensors, sizeof *file->tensors, by_place);
    for (size_t i = 0; i < file->n_tensors; i++)
        file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, file->n_tensors, sizeof *file->by_name, by_name);
    return check_tiling(file);
}

static fsdp_status read_header(safetensors *file)
{
    const uint8_t *data = file->base.bytes.data;
    size_t bytes = file->base.bytes.bytes;
    uint64_t header_bytes;
    json_t *header = NULL;
    if (bytes < LENGTH_BYTES)
        return error_set(FSDP_ERR_INPUT, "%s: %zu bytes long, too short for a safetensors file", file->base.path,
                         bytes);
    memcpy(&header_bytes, data, LENGTH_BYTES);
    if (header_bytes > MAX_HEADER_BYTES)
        return error_set(FSDP_ERR_INPUT,
                         "%s: states a header of %llu bytes (at most %u are read): not a safetensors file?",
                         file->base.path, (unsigned long long)header_bytes, MAX_HEADER_BYTES);
    if (header_bytes > bytes - LENGTH_BYTES)
        return error_set(FSDP_ERR_INPUT, "%s: states a header of %llu bytes, but ends after %zu: truncated?",
                         file->base.path, (unsigned long long)header_bytes, bytes - LENGTH_BYTES);
    const char *text = (const char *)data + LENGTH_BYTES;
    if (header_bytes == 0 || text[0] != '{')
        return error_set(FSDP_ERR_INPUT, "%s: the header does not begin with '{': not a safetensors file?",
                         file->base.path);
    file->data = data + LENGTH_BYTES + header_bytes;
    file->data_bytes = bytes - LENGTH_BYTES - (size_t)header_bytes;
    file->data_begin = LENGTH_BYTES + (size_t)header_bytes;
    FSDP_TRY(json_parse(file->base.path, text, (size_t)header_bytes, &header));
    fsdp_status status = json_is_object(header)
                             ? read_entries(file, header)
                             : error_set(FSDP_ERR_INPUT, "%s: the header is not an object", file->base.path);
    json_decref(header);
    return status;
}

static fsdp_status open_bytes(const char *path, const file_map *given, safetensors **out)
{
    void *reader;
    *out = NULL;
    FSDP_TRY(mapped_file_open(path, given, sizeof(safetensors), &reader));
    fsdp_status status = read_header(reader);
    if (status == FSDP_OK)
        *out = reader;
    else
        mapped_file_close(reader);
    return status;
}

fsdp_status safetensors_open(const char *path, safetensors **out)
{
    return open_bytes(path, NULL, out);
}

fsdp_status safetensors_open_memory(const char *name, const void *data, size_t bytes, safetensors **out)
{
    return open_bytes(name, &(file_map){data, bytes}, out);
}

void safetensors_close(safetensors *file)
{
    mapped_file_close(file);
}

size_t safetensors_count(const safetensors *file)
{
    return file->n_tensors;
}

const safetensors_tensor *safetensors_at(const safetensors *file, size_t index)
{
    return &file->tensors[index];
}

const safetensors_tensor *safetensors_find(const safetensors *file, const char *name)
{
    safetensors_tensor *const *found =
        bsearch(name, file->by_name, file->n_tensors, sizeof *file->by_name, name_against_tensor);
    return found ? *found : NULL;
}

fsdp_status safetensors_get(const safetensors *file, const char *name, const safetensors_tensor **out)
{
    *out = safetensors_find(file, name);
    if (!*out)
        return error_set(FSDP_ERR_INPUT, "%s: has no tensor %s", file->base.path, name);
    return FSDP_OK;
}
