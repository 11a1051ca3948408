/* Lays out, writes and completes safetensors files. Keeps track of which bytes of each tensor were written, because a
 * file with holes would look valid; the atomic appearance under the final name is base/file.h's. */
#include "format/weights/safetensors_writer.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "format/weights/safetensors.h"
#include "format/weights/span_set.h"

typedef struct tensor_entry {
    char *name;
    fsdp_dtype dtype;
    int n_dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    uint64_t bytes;
    uint64_t begin; /* in the data; set by begin */
    span_set written;
} tensor_entry;

struct safetensors_writer {
    char *path;
    file_writer *file;
    tensor_entry *tensors;
    size_t n_tensors, capacity;
    uint64_t data_begin; /* 0 until begin: no file has its data at byte 0 */
    uint64_t data_bytes;
};

static void writer_free(safetensors_writer *w)
{
    for (size_t i = 0; i < w->n_tensors; i++) {
        free(w->tensors[i].name);
        span_set_free(&w->tensors[i].written);
    }
    free(w->tensors);
    free(w->path);
    free(w);
}

static fsdp_status out_of_memory(const safetensors_writer *w)
{
    return error_set(FSDP_ERR_MEMORY, "%s: out of memory while writing", w->path);
}

fsdp_status safetensors_writer_create(const char *path, safetensors_writer **out)
{
    *out = NULL;
    safetensors_writer *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory for a writer", path);
    w->path = strdup(path);
    fsdp_status status = w->path ? file_writer_create(path, &w->file)
                                 : error_set(FSDP_ERR_MEMORY, "%s: out of memory for a writer", path);
    if (status != FSDP_OK) {
        writer_free(w);
        return status;
    }
    *out = w;
    return FSDP_OK;
}

static fsdp_status check_declaring(const safetensors_writer *w)
{
    if (w->data_begin)
        return error_set(FSDP_ERR_STATE, "%s: tensors are declared before the data begins", w->path);
    return FSDP_OK;
}

static fsdp_status measure(const safetensors_writer *w, tensor_entry *entry, int n_dims, const int64_t *shape)
{
    int64_t bytes = (int64_t)fsdp_dtype_size(entry->dtype);
    for (int i = 0; i < n_dims; i++) {
        if (shape[i] < 0 || checked_mul_i64(bytes, shape[i], &bytes))
            return error_set(FSDP_ERR_INPUT, "%s: tensor %s: its shape is negative or too large", w->path, entry->name);
        entry->shape[i] = shape[i];
    }
    entry->n_dims = n_dims;
    entry->bytes = (uint64_t)bytes;
    return FSDP_OK;
}

fsdp_status safetensors_writer_add(safetensors_writer *w, const char *name, fsdp_dtype dtype, int n_dims,
                                   const int64_t *shape, size_t *index)
{
    FSDP_TRY(check_declaring(w));
    if (n_dims < 0 || n_dims > SAFETENSORS_MAX_DIMS || (unsigned)dtype >= FSDP_DTYPE_COUNT)
        return error_set(FSDP_ERR_INPUT, "%s: tensor %s: %d dimensions of element type %d cannot be written", w->path,
                         name, n_dims, (int)dtype);
    if (w->n_tensors == w->capacity) {
        size_t capacity = w->capacity ? 2 * w->capacity : 64;
        tensor_entry *tensors = realloc(w->tensors, capacity * sizeof *tensors);
        if (!tensors)
            return out_of_memory(w);
        w->tensors = tensors;
        w->capacity = capacity;
    }
    tensor_entry *entry = &w->tensors[w->n_tensors];
    *entry = (tensor_entry){.name = strdup(name), .dtype = dtype};
    if (!entry->name)
        return out_of_memory(w);
    fsdp_status status = measure(w, entry, n_dims, shape);
    if (status != FSDP_OK) {
        free(entry->name);
        return status;
    }
    if (index)
        *index = w->n_tensors;
    w->n_tensors++;
    return FSDP_OK;
}

/* Wider types first; within a width the order of declaration, which is the order of the pointers. */
static int by_width(const void *left, const void *right)
{
    const tensor_entry *a = *(tensor_entry *const *)left, *b = *(tensor_entry *const *)right;
    size_t a_bytes = fsdp_dtype_size(a->dtype), b_bytes = fsdp_dtype_size(b->dtype);
    if (a_bytes != b_bytes)
        return a_bytes > b_bytes ? -1 : 1;
    return a < b ? -1 : a > b;
}

static json_t *entry_json(const tensor_entry *entry)
{
    json_t *shape = json_array();
    for (int i = 0; i < entry->n_dims; i++)
        json_array_append_new(shape, json_integer(entry->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", fsdp_dtype_safetensors_name(entry->dtype), "shape", shape,
                     "data_offsets", (json_int_t)entry->begin, (json_int_t)(entry->begin + entry->bytes));
}

/* Gives each tensor its place and enters it in the header. */
static fsdp_status lay_out(safetensors_writer *w, tensor_entry **order, json_t *header)
{
    uint64_t end = 0;
    for (size_t i = 0; i < w->n_tensors; i++)
        order[i] = &w->tensors[i];
    qsort(order, w->n_tensors, sizeof(tensor_entry *), by_width);
    for (size_t i = 0; i < w->n_tensors; i++) {
        tensor_entry *entry = order[i];
        entry->begin = end;
        if (checked_add(end, entry->bytes, &end) || end > INT64_MAX / 2)
            return error_set(FSDP_ERR_INPUT, "%s: the tensors together are too large for a file", w->path);
        if (json_object_get(header, entry->name) || strcmp(entry->name, "__metadata__") == 0)
            return error_set(FSDP_ERR_INPUT, "%s: tensor %s: this name is taken", w->path, entry->name);
        if (json_object_set_new(header, entry->name, entry_json(entry)) != 0)
            return error_set(FSDP_ERR_INPUT, "%s: tensor %s: its name is not valid UTF-8, or memory ran out", w->path,
                             entry->name);
    }
    w->data_bytes = end;
    return FSDP_OK;
}

uint64_t safetensors_padded_header(size_t text_bytes)
{
    return round_up(sizeof(uint64_t) + text_bytes, SAFETENSORS_DATA_ALIGNMENT) - sizeof(uint64_t);
}

static fsdp_status write_header(safetensors_writer *w, const json_t *header)
{
    char spaces[SAFETENSORS_DATA_ALIGNMENT];
    char *text = json_dumps(header, JSON_COMPACT);
    if (!text)
        return out_of_memory(w);
    fsdp_status status;
    size_t bytes = strlen(text);
    uint64_t padded = safetensors_padded_header(bytes);
    memset(spaces, ' ', sizeof spaces);
    TRY_OR(done, file_writer_write(w->file, &padded, sizeof padded));
    TRY_OR(done, file_writer_write(w->file, text, bytes));
    TRY_OR(done, file_writer_write(w->file, spaces, padded - bytes));
    w->data_begin = sizeof padded + padded;
done:
    free(text);
    return status;
}

fsdp_status safetensors_writer_begin(safetensors_writer *w)
{
    fsdp_status status;
    FSDP_TRY(check_declaring(w));
    tensor_entry **order = malloc((w->n_tensors + 1) * sizeof *order);
    json_t *header = json_object();
    if (!order || !header) {
        status = out_of_memory(w);
        goto done;
    }
    TRY_OR(done, lay_out(w, order, header));
    status = write_header(w, header);
done:
    json_decref(header);
    free(order);
    return status;
}

uint64_t safetensors_writer_file_bytes(const safetensors_writer *w)
{
    return w->data_begin + w->data_bytes;
}

static fsdp_status check_begun(const safetensors_writer *w, size_t index)
{
    if (!w->data_begin)
        return error_set(FSDP_ERR_STATE, "%s: data was written before the header", w->path);
    if (index >= w->n_tensors)
        return error_set(FSDP_ERR_STATE, "%s: there is no tensor number %zu, only %zu", w->path, index, w->n_tensors);
    return FSDP_OK;
}

fsdp_status safetensors_writer_write(safetensors_writer *w, size_t index, uint64_t offset, const void *data,
                                     size_t bytes)
{
    FSDP_TRY(check_begun(w, index));
    tensor_entry *entry = &w->tensors[index];
    if (offset > entry->bytes || bytes > entry->bytes - offset)
        return error_set(FSDP_ERR_STATE, "%s: tensor %s: %zu bytes at byte %" PRIu64 " do not fit its %" PRIu64,
                         w->path, entry->name, bytes, offset, entry->bytes);
    if (bytes == 0)
        return FSDP_OK;
    FSDP_TRY(file_writer_write_at(w->file, w->data_begin + entry->begin + offset, data, bytes));
    return span_set_add(&entry->written, offset, offset + bytes) ? FSDP_OK : out_of_memory(w);
}

static fsdp_status check_complete(const safetensors_writer *w)
{
    size_t n_incomplete = 0;
    const tensor_entry *incomplete = NULL;
    if (!w->data_begin)
        return error_set(FSDP_ERR_STATE, "%s: committed before its header was written", w->path);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const tensor_entry *entry = &w->tensors[i];
        if (span_set_total(&entry->written) == entry->bytes)
            continue;
        if (n_incomplete++ == 0)
            incomplete = entry;
    }
    if (n_incomplete == 0)
        return FSDP_OK;
    return error_set(FSDP_ERR_STATE,
                     "%s: tensor %s: %" PRIu64 " of its %" PRIu64 " bytes were never written (%zu such tensors in all)",
                     w->path, incomplete->name, incomplete->bytes - span_set_total(&incomplete->written),
                     incomplete->bytes, n_incomplete);
}

fsdp_status safetensors_writer_commit(safetensors_writer *w)
{
    fsdp_status status = file_writer_finish(w->file, check_complete(w));
    writer_free(w);
    return status;
}

void safetensors_writer_abort(safetensors_writer *w)
{
    if (!w)
        return;
    file_writer_abort(w->file);
    writer_free(w);
}
