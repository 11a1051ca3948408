/* Three parts of the description grow as chunks and values are written: what there is, where it came from in the nested
 * dicts, and where it lies. */
#include "format/torch/dcp_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "format/weights/safetensors.h"
#include "format/torch/dcp_folder.h"

#define METADATA "torch.distributed.checkpoint.metadata"

typedef struct data_file {
    file_writer *writer;
    char name[32];
    uint64_t end;
} data_file;

struct dcp_writer {
    char *folder;
    data_file *files;
    int n_files;
    pickle_writer described, paths, places; /* items of the three dicts */
    pickle_writer chunk_pickle;

    char key[1024]; /* of the tensor in hand */
    const torch_element *element;
    int n_dims;
    bool in_tensor;

    zip_writer *zip; /* of the chunk in hand; NULL: none */
    data_file *file;
    uint64_t begin, left;
    int64_t offsets[SAFETENSORS_MAX_DIMS];
};

static void put_class(pickle_writer *w, const char *module, const char *name)
{
    pickle_put_global(w, module, name);
    pickle_put(w, ")\x81");
}

static fsdp_status open_files(dcp_writer *w)
{
    for (int i = 0; i < w->n_files; i++) {
        snprintf(w->files[i].name, sizeof w->files[i].name, "__%d_0.distcp", i);
        char *path = file_join(w->folder, w->files[i].name);
        fsdp_status status = path ? file_writer_create(path, &w->files[i].writer)
                                  : error_set(FSDP_ERR_MEMORY, "%s: out of memory", w->folder);
        free(path);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

fsdp_status dcp_writer_create(const char *folder, int n_files, dcp_writer **out)
{
    *out = NULL;
    dcp_writer *w = calloc(1, sizeof *w);
    if (w) {
        w->folder = strdup(folder);
        w->files = calloc((size_t)n_files, sizeof *w->files);
    }
    fsdp_status status = w && w->folder && w->files ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of memory", folder);
    if (status == FSDP_OK) {
        w->n_files = n_files;
        status = open_files(w);
    }
    if (status != FSDP_OK) {
        dcp_writer_abort(w);
        return status;
    }
    *out = w;
    return FSDP_OK;
}

/* ---- Keys ---- */

static bool is_number(const char *key)
{
    return *key && strspn(key, "0123456789") == strlen(key) && strlen(key) < 9;
}

/* Joins the path into w->key, and keeps the path. */
static fsdp_status take_key(dcp_writer *w, const char *const *path, int n_path)
{
    size_t used = 0;
    for (int i = 0; i < n_path && used < sizeof w->key; i++)
        used += (size_t)snprintf(w->key + used, sizeof w->key - used, "%s%s", i ? "." : "", path[i]);
    if (used >= sizeof w->key)
        return error_set(FSDP_ERR_INPUT, "%s: a name of %zu bytes is too long", w->folder, used);
    pickle_put_text(&w->paths, w->key);
    pickle_put(&w->paths, "(");
    for (int i = 0; i < n_path; i++) {
        if (is_number(path[i]))
            pickle_put_int(&w->paths, strtol(path[i], NULL, 10));
        else
            pickle_put_text(&w->paths, path[i]);
    }
    pickle_put(&w->paths, "t");
    return FSDP_OK;
}

/* {MetadataIndex: _StorageInfo} */
static void put_place(dcp_writer *w, const data_file *file, const int64_t *offsets, uint64_t begin)
{
    pickle_writer *p = &w->places;
    put_class(p, METADATA, "MetadataIndex");
    pickle_put(p, "}(");
    pickle_put_text(p, "fqn");
    pickle_put_text(p, w->key);
    pickle_put_text(p, "offset");
    if (offsets)
        pickle_put_size(p, offsets, w->n_dims);
    else
        pickle_put(p, "N");
    pickle_put_text(p, "index");
    pickle_put(p, "Nub");
    put_class(p, "torch.distributed.checkpoint.filesystem", "_StorageInfo");
    pickle_put(p, "}(");
    pickle_put_text(p, "relative_path");
    pickle_put_text(p, file->name);
    pickle_put_text(p, "offset");
    pickle_put_int(p, (int64_t)begin);
    pickle_put_text(p, "length");
    pickle_put_int(p, (int64_t)(file->end - begin));
    pickle_put(p, "ub");
}

/* ---- Tensors ---- */

/* (dtype, layout, requires_grad, memory format, pinned) */
static void put_properties(pickle_writer *p, const torch_element *element)
{
    put_class(p, METADATA, "TensorProperties");
    pickle_put(p, "(");
    pickle_put_dotted(p, element->dtype);
    pickle_put_global(p, "torch.serialization", "_get_layout");
    pickle_put_text(p, "torch.strided");
    pickle_put(p, "\x85R");
    pickle_put_bool(p, false);
    pickle_put_global(p, METADATA, "_MEM_FORMAT_ENCODING");
    pickle_put_int(p, 0);
    pickle_put(p, "\x85R");
    pickle_put_bool(p, false);
    pickle_put(p, "tb");
}

/* Ends the list of chunks. */
static void end_tensor(dcp_writer *w)
{
    if (w->in_tensor)
        pickle_put(&w->described, "eub");
    w->in_tensor = false;
}

fsdp_status dcp_writer_tensor(dcp_writer *w, const char *const *path, int n_path, const torch_element *element,
                              int n_dims, const int64_t *shape)
{
    pickle_writer *p = &w->described;
    end_tensor(w);
    FSDP_TRY(take_key(w, path, n_path));
    w->element = element;
    w->n_dims = n_dims;
    w->in_tensor = true;
    pickle_put_text(p, w->key);
    put_class(p, METADATA, "TensorStorageMetadata");
    pickle_put(p, "}(");
    pickle_put_text(p, "properties");
    put_properties(p, element);
    pickle_put_text(p, "size");
    pickle_put_size(p, shape, n_dims);
    pickle_put_text(p, "chunks");
    pickle_put(p, "](");
    return FSDP_OK;
}

static fsdp_status end_chunk(dcp_writer *w)
{
    fsdp_status status = archive_finish(w->zip, &w->file->end);
    w->zip = NULL;
    if (status == FSDP_OK)
        put_place(w, w->file, w->offsets, w->begin);
    return status;
}

fsdp_status dcp_writer_chunk(dcp_writer *w, int file, const int64_t *offsets, const int64_t *sizes)
{
    pickle_writer *p = &w->described;
    uint64_t bytes = (uint64_t)w->element->bytes;
    if (w->zip)
        return error_set(FSDP_ERR_STATE, "%s: a chunk begins before the last is whole", w->key);
    for (int i = 0; i < w->n_dims; i++)
        bytes *= (uint64_t)sizes[i];
    put_class(p, METADATA, "ChunkStorageMetadata");
    pickle_put(p, "}(");
    pickle_put_text(p, "offsets");
    pickle_put_size(p, offsets, w->n_dims);
    pickle_put_text(p, "sizes");
    pickle_put_size(p, sizes, w->n_dims);
    pickle_put(p, "ub");
    pickle_begin(&w->chunk_pickle);
    pickle_put_tensor(&w->chunk_pickle, w->element, "0", w->n_dims, sizes);
    FSDP_TRY(pickle_end(&w->chunk_pickle));
    w->file = &w->files[file];
    w->begin = w->file->end;
    w->left = bytes;
    memcpy(w->offsets, offsets, (size_t)w->n_dims * sizeof *offsets);
    FSDP_TRY(archive_begin(w->file->writer, w->begin, &w->chunk_pickle, &w->zip));
    FSDP_TRY(archive_storage(w->zip, 0, bytes));
    return bytes == 0 ? end_chunk(w) : FSDP_OK;
}

fsdp_status dcp_writer_write(dcp_writer *w, const void *data, size_t bytes)
{
    if (!w->zip || bytes > w->left)
        return error_set(FSDP_ERR_STATE, "%s: more bytes than its chunk has", w->key);
    FSDP_TRY(zip_writer_write(w->zip, data, bytes));
    w->left -= bytes;
    return w->left == 0 ? end_chunk(w) : FSDP_OK;
}

fsdp_status dcp_writer_value(dcp_writer *w, const char *const *path, int n_path, const pickle_writer *value)
{
    data_file *file = &w->files[0];
    zip_writer *zip;
    uint64_t begin = file->end;
    end_tensor(w);
    FSDP_TRY(take_key(w, path, n_path));
    pickle_put_text(&w->described, w->key);
    put_class(&w->described, METADATA, "BytesStorageMetadata");
    FSDP_TRY(archive_begin(file->writer, begin, value, &zip));
    FSDP_TRY(archive_finish(zip, &file->end));
    put_place(w, file, NULL, begin);
    return FSDP_OK;
}

/* ---- The end ---- */

static void put_dict(pickle_writer *out, const char *name, const pickle_writer *items)
{
    pickle_put_text(out, name);
    pickle_put(out, "}(");
    pickle_put_all(out, items);
    pickle_put(out, "u");
}

static fsdp_status write_metadata(dcp_writer *w)
{
    pickle_writer all = {0};
    end_tensor(w);
    pickle_begin(&all);
    put_class(&all, METADATA, "Metadata");
    pickle_put(&all, "}(");
    put_dict(&all, "state_dict_metadata", &w->described);
    put_dict(&all, "planner_data", &w->paths);
    put_dict(&all, "storage_data", &w->places);
    pickle_put(&all, "ub");
    fsdp_status status = pickle_end(&all);
    char *path = file_join(w->folder, DCP_METADATA_NAME);
    if (status == FSDP_OK)
        status = path ? file_write_atomic(path, all.data, all.bytes)
                      : error_set(FSDP_ERR_MEMORY, "%s: out of memory", w->folder);
    free(path);
    pickle_writer_free(&all);
    return status;
}

fsdp_status dcp_writer_commit(dcp_writer *w)
{
    fsdp_status status = w->zip ? error_set(FSDP_ERR_STATE, "%s: its last chunk is not whole", w->key) : FSDP_OK;
    for (int i = 0; i < w->n_files && status == FSDP_OK; i++) {
        status = file_writer_commit(w->files[i].writer);
        w->files[i].writer = NULL;
    }
    if (status == FSDP_OK)
        status = write_metadata(w);
    dcp_writer_abort(w);
    return status;
}

void dcp_writer_abort(dcp_writer *w)
{
    if (!w)
        return;
    zip_writer_free(w->zip);
    for (int i = 0; w->files && i < w->n_files; i++)
        file_writer_abort(w->files[i].writer);
    pickle_writer_free(&w->described);
    pickle_writer_free(&w->paths);
    pickle_writer_free(&w->places);
    pickle_writer_free(&w->chunk_pickle);
    free(w->files);
    free(w->folder);
    free(w);
}
