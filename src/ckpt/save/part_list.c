/* Reads the lists of pieces that ranks leave for the commit. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "ckpt/save/part.h"

static fsdp_status bad(const char *path)
{
    return error_set(FSDP_ERR_IO, "%s: not a list of pieces: it was damaged after it was written", path);
}

static fsdp_status read_files(const char *path, const json_t *array, arena *memory, part_list *out)
{
    out->files = arena_alloc(memory, (json_array_size(array) + 1) * sizeof *out->files);
    for (size_t i = 0; out->files && i < json_array_size(array); i++) {
        const json_t *entry = json_array_get(array, i);
        manifest_file *file = &out->files[out->n_files++];
        FSDP_TRY(json_get_string(path, entry, "name", &file->name));
        FSDP_TRY(json_get_int(path, entry, "bytes", &file->bytes));
        file->name = arena_strdup(memory, file->name);
    }
    return out->files ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
}

static fsdp_status read_pieces(const char *path, const json_t *array, arena *memory, part_list *out)
{
    out->pieces = arena_alloc(memory, (json_array_size(array) + 1) * sizeof *out->pieces);
    if (!out->pieces)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", path);
    for (size_t i = 0; i < json_array_size(array); i++) {
        const json_t *row = json_array_get(array, i);
        const char *checksum = json_string_value(json_array_get(row, 4));
        if (json_array_size(row) != 5 || !checksum)
            return bad(path);
        out->pieces[out->n_pieces++] = (part_piece){
            .tensor = (int)json_integer_value(json_array_get(row, 0)),
            .file = (int)json_integer_value(json_array_get(row, 1)),
            .first = json_integer_value(json_array_get(row, 2)),
            .count = json_integer_value(json_array_get(row, 3)),
            .checksum = strtoull(checksum, NULL, 16),
        };
    }
    return FSDP_OK;
}

fsdp_status part_list_read(const char *path, arena *memory, part_list *out)
{
    json_t *root = NULL;
    *out = (part_list){0};
    FSDP_TRY(json_read_file(path, &root));
    const json_t *files = json_object_get(root, "files"), *pieces = json_object_get(root, "pieces");
    fsdp_status status = json_is_array(files) && json_is_array(pieces) ? FSDP_OK : bad(path);
    if (status == FSDP_OK)
        status = read_files(path, files, memory, out);
    if (status == FSDP_OK)
        status = read_pieces(path, pieces, memory, out);
    json_decref(root);
    return status;
}
