/* Lays out the files of a full checkpoint: which tensor in which file at which byte, the safetensors headers that say
 * so, and the index over several files. Data is part.c's. */
#include "ckpt/format/full_layout.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/file.h"
#include "ckpt/format/manifest.h"
#include "format/weights/safetensors_writer.h"

static fsdp_status out_of_memory(void)
{
    return error_set(FSDP_ERR_MEMORY, "out of memory for the layout of a full checkpoint");
}

fsdp_dtype full_layout_dtype(const full_layout *l, const ckpt_tensor *tensor)
{
    return CKPT_ROLES_MODEL & CKPT_ROLE_BIT(tensor->role) ? l->dtype : tensor->dtype;
}

void full_layout_free(full_layout *l)
{
    if (!l)
        return;
    for (int i = 0; i < l->n_files; i++) {
        free(l->files[i].name);
        free(l->files[i].header);
    }
    free(l->files);
    free(l->places);
    free(l);
}

/* Puts the tensors of `roles` into files from l->n_files on; full_file.bytes counts data only as yet. */
static void place_tensors(full_layout *l, const ckpt_state *state, unsigned roles, int64_t max_file_bytes)
{
    bool open = false;
    for (int i = 0; i < state->n_tensors; i++) {
        const ckpt_tensor *tensor = &state->tensors[i];
        if (!(roles & CKPT_ROLE_BIT(tensor->role)))
            continue;
        int64_t bytes = ckpt_tensor_numel(tensor) * (int64_t)fsdp_dtype_size(full_layout_dtype(l, tensor));
        if (!open || (l->files[l->n_files - 1].bytes > 0 && l->files[l->n_files - 1].bytes + bytes > max_file_bytes)) {
            l->n_files++;
            open = true;
        }
        full_file *file = &l->files[l->n_files - 1];
        l->places[i] = (full_place){.file = l->n_files - 1, .offset = file->bytes};
        file->bytes += bytes;
    }
}

static fsdp_status name_files(full_layout *l, int first, int end, const char *stem)
{
    for (int i = first; i < end; i++) {
        int length = end - first == 1
                         ? asprintf(&l->files[i].name, "%s.safetensors", stem)
                         : asprintf(&l->files[i].name, "%s-%05d-of-%05d.safetensors", stem, i - first + 1, end - first);
        if (length < 0) {
            l->files[i].name = NULL;
            return out_of_memory();
        }
    }
    return FSDP_OK;
}

static fsdp_status add_header_entry(json_t *header, const full_layout *l, const ckpt_tensor *tensor, int64_t begin)
{
    char key_room[512], *key = key_room;
    size_t key_bytes = strlen(tensor->name) + 64;
    if (key_bytes > sizeof key_room && !(key = malloc(key_bytes)))
        return out_of_memory();
    manifest_key(FSDP_CKPT_FULL, tensor->role, tensor->name, 0, key, key_bytes);
    fsdp_dtype dtype = full_layout_dtype(l, tensor);
    json_t *shape = json_array();
    for (int i = 0; i < tensor->n_dims; i++)
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    json_t *entry =
        json_pack("{s:s, s:o, s:[I, I]}", "dtype", fsdp_dtype_safetensors_name(dtype), "shape", shape, "data_offsets",
                  (json_int_t)begin, (json_int_t)(begin + ckpt_tensor_numel(tensor) * (int64_t)fsdp_dtype_size(dtype)));
    fsdp_status status = FSDP_OK;
    if (json_object_get(header, key)) {
        json_decref(entry);
        status =
            error_set(FSDP_ERR_STATE, "%s: a parameter and a buffer cannot share this name in a full checkpoint", key);
    } else if (json_object_set_new(header, key, entry) != 0) {
        status = error_set(FSDP_ERR_STATE, "%s: this name is not valid UTF-8, or memory ran out", key);
    }
    if (key != key_room)
        free(key);
    return status;
}

static fsdp_status print_header(full_file *file, const json_t *header)
{
    char *text = json_dumps(header, JSON_COMPACT);
    if (!text)
        return out_of_memory();
    size_t length = strlen(text);
    uint64_t padded = safetensors_padded_header(length);
    file->header = malloc(sizeof padded + padded);
    if (file->header) {
        memcpy(file->header, &padded, sizeof padded);
        memcpy(file->header + sizeof padded, text, length);
        memset(file->header + sizeof padded + length, ' ', padded - length);
        file->header_bytes = (int64_t)(sizeof padded + padded);
    }
    free(text);
    return file->header ? FSDP_OK : out_of_memory();
}

/* Headers of all files; makes offsets and sizes count from the start of the file. */
static fsdp_status build_headers(full_layout *l, const ckpt_state *state)
{
    for (int f = 0; f < l->n_files; f++) {
        full_file *file = &l->files[f];
        /* "format" tells transformers which framework's tensors these are; it refuses a file without. */
        json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
        fsdp_status status = header ? FSDP_OK : out_of_memory();
        for (int i = 0; i < state->n_tensors && status == FSDP_OK; i++)
            if (l->places[i].file == f)
                status = add_header_entry(header, l, &state->tensors[i], l->places[i].offset);
        if (status == FSDP_OK)
            status = print_header(file, header);
        json_decref(header);
        FSDP_TRY(status);
        for (int i = 0; i < state->n_tensors; i++)
            if (l->places[i].file == f)
                l->places[i].offset += file->header_bytes;
        file->bytes += file->header_bytes;
        l->bytes += file->bytes;
    }
    return FSDP_OK;
}

fsdp_status full_layout_create(const ckpt_state *state, unsigned roles, fsdp_dtype dtype, int64_t max_file_bytes,
                               full_layout **out)
{
    fsdp_status status;
    size_t n = (size_t)state->n_tensors + 1;
    full_layout *l = calloc(1, sizeof *l);
    if (!l)
        return out_of_memory();
    l->dtype = dtype;
    l->files = calloc(n, sizeof *l->files);
    l->places = calloc(n, sizeof *l->places);
    if (!l->files || !l->places) {
        status = out_of_memory();
        goto fail;
    }
    for (int i = 0; i < state->n_tensors; i++)
        l->places[i].file = -1;
    place_tensors(l, state, roles & CKPT_ROLES_MODEL, max_file_bytes);
    l->n_model_files = l->n_files;
    place_tensors(l, state, roles & CKPT_ROLES_OPTIMIZER, max_file_bytes);
    TRY_OR(fail, name_files(l, 0, l->n_model_files, "model"));
    TRY_OR(fail, name_files(l, l->n_model_files, l->n_files, "optimizer"));
    TRY_OR(fail, build_headers(l, state));
    *out = l;
    return FSDP_OK;
fail:
    full_layout_free(l);
    return status;
}

static fsdp_status make_file(const full_file *file, const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return error_set_errno(FSDP_ERR_IO, "%s: cannot create", path);
    fsdp_status status = FSDP_OK;
    if (ftruncate(fd, file->bytes) != 0)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot set its size to %lld", path, (long long)file->bytes);
    for (int64_t done = 0; status == FSDP_OK && done < file->header_bytes;) {
        ssize_t written = pwrite(fd, file->header + done, (size_t)(file->header_bytes - done), done);
        if (written < 0 && errno != EINTR)
            status = error_set_errno(FSDP_ERR_IO, "%s: cannot write its header", path);
        else if (written > 0)
            done += written;
    }
    if (status == FSDP_OK && fsync(fd) != 0)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot sync", path);
    if (close(fd) != 0 && status == FSDP_OK)
        status = error_set_errno(FSDP_ERR_IO, "%s: cannot close", path);
    return status;
}

fsdp_status full_layout_make_files(const full_layout *l, const char *folder)
{
    for (int i = 0; i < l->n_files; i++) {
        char *path = file_join(folder, l->files[i].name);
        if (!path)
            return out_of_memory();
        fsdp_status status = make_file(&l->files[i], path);
        free(path);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

fsdp_status full_layout_write_index(const full_layout *l, const ckpt_state *state, const char *folder)
{
    if (l->n_model_files <= 1)
        return FSDP_OK;
    int64_t total = 0;
    json_t *map = json_object();
    for (int i = 0; i < state->n_tensors; i++) {
        if (l->places[i].file < 0 || l->places[i].file >= l->n_model_files)
            continue;
        const ckpt_tensor *tensor = &state->tensors[i];
        total += ckpt_tensor_numel(tensor) * (int64_t)fsdp_dtype_size(l->dtype);
        json_object_set_new(map, tensor->name, json_string(l->files[l->places[i].file].name));
    }
    json_t *index = json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    char *path = file_join(folder, "model.safetensors.index.json");
    fsdp_status status = index && path ? json_write_file(path, index) : out_of_memory();
    free(path);
    json_decref(index);
    return status;
}
