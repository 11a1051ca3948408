/* Opens both kinds of file, finds storages, and turns the calls that a pickle records into tensors. */
#include "format/torch/torch_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "format/mapped_file.h"
#include "format/torch/names.h"
#include "format/torch/zip.h"

/* The old stream begins with a pickled magic number: LONG1 of ten bytes, and STOP. */
static const uint8_t legacy_magic[] = {0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, 0x2e};
enum { PROTO_BYTES = 2, FRAME_BYTES = 9, FRAME = 0x95, LEGACY_VERSION = 1001 };

enum { MAX_PICKLE_BYTES = 512 << 20 };
enum { LEGACY_COUNT_BYTES = 8 };

/* Bytes of the file by the key that the pickle uses for them. */
typedef struct storage {
    const char *key;
    const uint8_t *data;
    size_t bytes;
} storage;

struct torch_file {
    mapped_file base;
    size_t offset;
    pickle_value *root;
    storage *storages; /* by key */
    size_t n_storages;
};

static fsdp_status out_of_memory(const torch_file *file)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory while reading it", file->base.path);
}

/* How long the first pickle of an old stream is; 0: it is none. Protocol 4 puts a frame around it. */
static size_t legacy_head(const uint8_t *data, size_t bytes)
{
    size_t at = bytes > PROTO_BYTES && data[PROTO_BYTES] == FRAME ? PROTO_BYTES + FRAME_BYTES : PROTO_BYTES;
    bool is = bytes >= at + sizeof legacy_magic && data[0] == 0x80 &&
              memcmp(data + at, legacy_magic, sizeof legacy_magic) == 0;
    return is ? at + sizeof legacy_magic : 0;
}

bool torch_file_looks_like(const void *data, size_t bytes)
{
    return (bytes >= 4 && memcmp(data, "PK\3\4", 4) == 0) || legacy_head(data, bytes) > 0;
}

static int by_key(const void *left, const void *right)
{
    return strcmp(((const storage *)left)->key, ((const storage *)right)->key);
}

/* ---- The zip archive ---- */

static bool ends_with(const char *name, const char *ending)
{
    size_t length = strlen(name), n = strlen(ending);
    return length >= n && strcmp(name + length - n, ending) == 0;
}

/* All records lie under one folder, whose name is the file's; which one, data.pkl says. */
static fsdp_status find_pickle(const torch_file *file, const zip_archive *zip, const zip_entry **out, size_t *prefix)
{
    *out = NULL, *prefix = 0;
    for (size_t i = 0; i < zip->n_entries; i++) {
        if (ends_with(zip->entries[i].name, "/constants.pkl"))
            return error_set(FSDP_ERR_INPUT,
                             "%s: is a TorchScript program; save the weights by torch.save(model.state_dict(), ...)",
                             file->base.path);
        if (ends_with(zip->entries[i].name, "/data.pkl"))
            *out = &zip->entries[i];
    }
    if (!*out || !(*out)->data || (*out)->bytes > MAX_PICKLE_BYTES)
        return error_set(FSDP_ERR_INPUT, "%s: a zip archive, but not one of torch.save: it has no plain data.pkl",
                         file->base.path);
    *prefix = strlen((*out)->name) - strlen("data.pkl");
    return FSDP_OK;
}

static fsdp_status check_byte_order(const torch_file *file, const zip_archive *zip, const char *prefix, size_t length)
{
    char *name = arena_alloc(file->base.memory, length + sizeof "byteorder");
    if (!name)
        return out_of_memory(file);
    memcpy(name, prefix, length);
    strcpy(name + length, "byteorder");
    const zip_entry *order = zip_find(zip, name);
    if (order && (!order->data || order->bytes != 6 || memcmp(order->data, "little", 6) != 0))
        return error_set(FSDP_ERR_INPUT, "%s: was written on a big-endian machine, which is not supported",
                         file->base.path);
    return FSDP_OK;
}

static fsdp_status open_zip(torch_file *file)
{
    zip_archive zip;
    const zip_entry *pickle;
    size_t prefix;
    FSDP_TRY(zip_read(file->base.path, file->base.bytes.data, file->base.bytes.bytes, file->base.memory, &zip));
    FSDP_TRY(find_pickle(file, &zip, &pickle, &prefix));
    FSDP_TRY(check_byte_order(file, &zip, pickle->name, prefix));
    file->storages = arena_alloc(file->base.memory, (zip.n_entries + 1) * sizeof *file->storages);
    if (!file->storages)
        return out_of_memory(file);
    for (size_t i = 0; i < zip.n_entries; i++) {
        const zip_entry *entry = &zip.entries[i];
        if (strncmp(entry->name, pickle->name, prefix) == 0 && strncmp(entry->name + prefix, "data/", 5) == 0)
            file->storages[file->n_storages++] =
                (storage){.key = entry->name + prefix + 5, .data = entry->data, .bytes = entry->bytes};
    }
    return pickle_read(file->base.path, pickle->data, pickle->bytes, torch_globals, file->base.memory, &file->root,
                       NULL);
}

/* ---- The old stream: magic, version, system, pickle, list of keys, then each storage with its count ---- */

static fsdp_status next_pickle(const torch_file *file, size_t *at, pickle_value **out)
{
    size_t used, left = file->base.bytes.bytes - *at;
    FSDP_TRY(pickle_read(file->base.path, file->base.bytes.data + *at,
                         left < MAX_PICKLE_BYTES ? left : MAX_PICKLE_BYTES, torch_globals, file->base.memory, out,
                         &used));
    *at += used;
    return FSDP_OK;
}

/* Sizes of elements are only in the ids that the pickle uses, and a storage that is used twice has one id each time. */
static int element_bytes_of(const pickle_value *value, const char *key, int depth, int64_t *left)
{
    enum { MAX_DEPTH = 16 };
    int bytes = 0;
    if (depth > MAX_DEPTH || --*left < 0)
        return 0;
    if (value->kind == PICKLE_PERSISTENT) {
        const pickle_value *name = pickle_item(value->id, 2);
        const torch_element *element = torch_element_of(pickle_item(value->id, 1));
        return element && pickle_is(name, PICKLE_TEXT) && strcmp(name->bytes, key) == 0 ? element->bytes : 0;
    }
    if (value->kind == PICKLE_OBJECT)
        return element_bytes_of(value->arguments, key, depth + 1, left);
    if (value->kind == PICKLE_TUPLE || value->kind == PICKLE_LIST || value->kind == PICKLE_DICT)
        for (size_t i = 0; i < value->n_items && bytes == 0; i++)
            bytes = element_bytes_of(value->items[i], key, depth + 1, left);
    return bytes;
}

static fsdp_status take_storage(torch_file *file, const pickle_value *key, size_t *at, int64_t *steps)
{
    uint64_t count;
    size_t bytes;
    int width = pickle_is(key, PICKLE_TEXT) ? element_bytes_of(file->root, key->bytes, 0, steps) : 0;
    if (width == 0)
        return error_set(FSDP_ERR_INPUT, "%s: lists a storage that no tensor uses", file->base.path);
    if (file->base.bytes.bytes - *at < LEGACY_COUNT_BYTES)
        return error_set(FSDP_ERR_INPUT, "%s: ends before storage %s: is the file cut?", file->base.path, key->bytes);
    memcpy(&count, file->base.bytes.data + *at, LEGACY_COUNT_BYTES);
    *at += LEGACY_COUNT_BYTES;
    if (checked_mul((size_t)count, (size_t)width, &bytes) || bytes > file->base.bytes.bytes - *at)
        return error_set(FSDP_ERR_INPUT, "%s: ends within storage %s: is the file cut?", file->base.path, key->bytes);
    file->storages[file->n_storages++] =
        (storage){.key = key->bytes, .data = file->base.bytes.data + *at, .bytes = bytes};
    *at += bytes;
    return FSDP_OK;
}

static fsdp_status open_legacy(torch_file *file)
{
    pickle_value *version, *system, *keys;
    size_t at = legacy_head(file->base.bytes.data, file->base.bytes.bytes);
    int64_t steps = 1 << 28; /* looking for keys: enough for five thousand tensors */
    FSDP_TRY(next_pickle(file, &at, &version));
    if (!pickle_is(version, PICKLE_INT) || version->integer != LEGACY_VERSION)
        return error_set(FSDP_ERR_INPUT, "%s: is of an unknown version of PyTorch's old format", file->base.path);
    FSDP_TRY(next_pickle(file, &at, &system));
    const pickle_value *little = pickle_find(system, "little_endian");
    if (!pickle_is(little, PICKLE_BOOL) || !little->integer)
        return error_set(FSDP_ERR_INPUT, "%s: was not written on a little-endian machine", file->base.path);
    FSDP_TRY(next_pickle(file, &at, &file->root));
    FSDP_TRY(next_pickle(file, &at, &keys));
    if (!pickle_is(keys, PICKLE_LIST))
        return error_set(FSDP_ERR_INPUT, "%s: the list of its storages is %s", file->base.path, pickle_kind_text(keys));
    file->storages = arena_alloc(file->base.memory, (keys->n_items + 1) * sizeof *file->storages);
    if (!file->storages)
        return out_of_memory(file);
    for (size_t i = 0; i < keys->n_items; i++)
        FSDP_TRY(take_storage(file, keys->items[i], &at, &steps));
    qsort(file->storages, file->n_storages, sizeof *file->storages, by_key);
    return FSDP_OK;
}

/* ---- Opening ---- */

static fsdp_status read_file(torch_file *file, size_t offset)
{
    file->offset = offset;
    if (!torch_file_looks_like(file->base.bytes.data, file->base.bytes.bytes))
        return error_set(FSDP_ERR_INPUT,
                         "%s: neither a zip archive of torch.save nor its older stream (a tar of PyTorch 0.1, or a "
                         "plain pickle, is not read)",
                         file->base.path);
    return file->base.bytes.data[0] == 'P' ? open_zip(file) : open_legacy(file);
}

static fsdp_status open_bytes(const char *path, const file_map *given, size_t offset, torch_file **out)
{
    void *reader;
    *out = NULL;
    FSDP_TRY(mapped_file_open(path, given, sizeof(torch_file), &reader));
    fsdp_status status = read_file(reader, offset);
    if (status == FSDP_OK)
        *out = reader;
    else
        mapped_file_close(reader);
    return status;
}

fsdp_status torch_file_open(const char *path, torch_file **out)
{
    return open_bytes(path, NULL, 0, out);
}

fsdp_status torch_file_open_memory(const char *path, const void *data, size_t bytes, size_t offset, torch_file **out)
{
    return open_bytes(path, &(file_map){data, bytes}, offset, out);
}

void torch_file_close(torch_file *file)
{
    mapped_file_close(file);
}

const pickle_value *torch_file_root(const torch_file *file)
{
    return file->root;
}

const char *torch_file_path(const torch_file *file)
{
    return file->base.path;
}

arena *torch_file_memory(torch_file *file)
{
    return file->base.memory;
}

/* ---- Tensors ---- */

bool torch_sizes(const pickle_value *value, int64_t *sizes, int *n_dims)
{
    if (pickle_is(value, PICKLE_OBJECT) && value->global->tag == TORCH_SIZE)
        value = pickle_item(value->arguments, 0);
    if (!pickle_is(value, PICKLE_TUPLE) || value->n_items > SAFETENSORS_MAX_DIMS)
        return false;
    *n_dims = (int)value->n_items;
    for (int i = 0; i < *n_dims; i++) {
        if (value->items[i]->kind != PICKLE_INT || value->items[i]->integer < 0)
            return false;
        sizes[i] = value->items[i]->integer;
    }
    return true;
}

/* The call that makes the tensor, inside those that make a parameter of it; NULL: none. */
static const pickle_value *tensor_call(const pickle_value *value)
{
    for (int depth = 0; depth < 4 && pickle_is(value, PICKLE_OBJECT); depth++) {
        if (value->global->tag >= TORCH_TENSOR_V1 && value->global->tag <= TORCH_TENSOR_V3)
            return value;
        value = value->global->tag == TORCH_PARAMETER ? pickle_item(value->arguments, 0) : NULL;
    }
    return NULL;
}

bool torch_is_tensor(const pickle_value *value)
{
    return tensor_call(value) != NULL;
}

static fsdp_status bad_tensor(const torch_file *file, const char *name, const char *why)
{
    return error_set(FSDP_ERR_INPUT, "%s: tensor %s: %s", file->base.path, name, why);
}

/* ("storage", class, key, device, elements) */
static fsdp_status find_storage(const torch_file *file, const char *name, const pickle_value *value,
                                const torch_element **element, storage *out)
{
    const pickle_value *id = pickle_is(value, PICKLE_PERSISTENT) ? value->id : NULL;
    const pickle_value *kind = pickle_item(id, 0), *key = pickle_item(id, 2), *view = pickle_item(id, 5);
    *out = (storage){0};
    *element = torch_element_of(pickle_item(id, 1));
    if (!pickle_is(kind, PICKLE_TEXT) || strcmp(kind->bytes, "storage") != 0 || !*element ||
        !pickle_is(key, PICKLE_TEXT))
        return bad_tensor(file, name, "its storage is not described as torch.save does");
    if (view && view->kind != PICKLE_NONE)
        return bad_tensor(file, name, "its storage is a view of another, as only very old files have");
    storage wanted = {.key = key->bytes};
    const storage *found =
        file->n_storages ? bsearch(&wanted, file->storages, file->n_storages, sizeof wanted, by_key) : NULL;
    if (!found)
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s: storage %s is not in the file", file->base.path, name,
                         key->bytes);
    if (!found->data)
        return bad_tensor(file, name, "its storage is compressed or encrypted, which torch.save never does");
    *out = *found;
    return FSDP_OK;
}

/* The element after the last that the tensor reaches; false: too large to say. */
static bool reach(const safetensors_tensor *tensor, int64_t offset, const int64_t *strides, int64_t *end)
{
    int64_t last = offset, way;
    for (int i = 0; i < tensor->n_dims; i++)
        if (checked_mul_i64(tensor->shape[i] - 1, strides[i], &way) || __builtin_add_overflow(last, way, &last))
            return false;
    return !__builtin_add_overflow(last, 1, end);
}

static bool is_contiguous(const safetensors_tensor *tensor, const int64_t *strides)
{
    int64_t expected = 1;
    for (int i = tensor->n_dims - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && strides[i] != expected)
            return false;
        expected *= tensor->shape[i];
    }
    return true;
}

static fsdp_status place(torch_file *file, const storage *where, int64_t offset, const int64_t *strides, int width,
                         safetensors_tensor *tensor)
{
    int64_t end = 0, bytes;
    tensor->numel = 1;
    for (int i = 0; i < tensor->n_dims; i++)
        if (checked_mul_i64(tensor->numel, tensor->shape[i], &tensor->numel))
            return bad_tensor(file, tensor->name, "the product of its shape overflows");
    if (checked_mul_i64(tensor->numel, width, &bytes))
        return bad_tensor(file, tensor->name, "its size overflows");
    if (tensor->numel > 0 && (!reach(tensor, offset, strides, &end) || end > (int64_t)(where->bytes / (size_t)width)))
        return bad_tensor(file, tensor->name, "it reaches beyond its storage (is the file cut?)");
    tensor->bytes = (size_t)bytes;
    tensor->data = tensor->numel > 0 ? where->data + (size_t)offset * (size_t)width : where->data;
    tensor->offset = file->offset + (size_t)(tensor->data - file->base.bytes.data);
    if (tensor->numel == 0 || is_contiguous(tensor, strides))
        return FSDP_OK;
    int64_t *kept = arena_alloc(file->base.memory, sizeof *kept * SAFETENSORS_MAX_DIMS);
    if (!kept)
        return out_of_memory(file);
    memcpy(kept, strides, sizeof *kept * (size_t)tensor->n_dims);
    tensor->strides = kept;
    return FSDP_OK;
}

/* Negative and conjugate views share the storage of what they negate. */
static bool is_as_stored(const pickle_value *call)
{
    const pickle_value *marks = pickle_item(call->arguments, call->global->tag == TORCH_TENSOR_V3 ? 7 : 6);
    static const char *const names[] = {"neg", "conj"};
    for (int i = 0; i < 2; i++) {
        const pickle_value *mark = pickle_is(marks, PICKLE_DICT) ? pickle_find(marks, names[i]) : NULL;
        if (mark && !(pickle_is(mark, PICKLE_BOOL) && !mark->integer))
            return false;
    }
    return true;
}

fsdp_status torch_file_tensor(torch_file *file, const pickle_value *value, const char *name, safetensors_tensor *out)
{
    const pickle_value *call = tensor_call(value);
    int64_t strides[SAFETENSORS_MAX_DIMS];
    int n_strides;
    storage where;
    const torch_element *element;
    *out = (safetensors_tensor){.name = name, .path = file->base.path};
    if (!call)
        return bad_tensor(file, name, "is no tensor");
    FSDP_TRY(find_storage(file, name, pickle_item(call->arguments, 0), &element, &where));
    const pickle_value *offset = pickle_item(call->arguments, 1);
    if (!pickle_is(offset, PICKLE_INT) || offset->integer < 0 ||
        !torch_sizes(pickle_item(call->arguments, 2), out->shape, &out->n_dims) ||
        !torch_sizes(pickle_item(call->arguments, 3), strides, &n_strides) || n_strides != out->n_dims)
        return bad_tensor(file, name, "its shape and strides are not described as torch.save does");
    if (!is_as_stored(call))
        return bad_tensor(file, name, "is a negative or conjugate view; save tensor.resolve_neg().resolve_conj()");
    if (call->global->tag == TORCH_TENSOR_V3)
        element = torch_element_of(pickle_item(call->arguments, 6));
    if (!element || !element->dtype)
        return bad_tensor(file, name, "its element type is not known");
    out->dtype_name = element->name;
    out->dtype = element->ours;
    return place(file, &where, offset->integer, strides, element->bytes, out);
}
