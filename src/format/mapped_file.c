/* Opening and closing; what the bytes mean is the readers'. */
#include "format/mapped_file.h"

fsdp_status mapped_file_open(const char *path, const file_map *given, size_t reader_bytes, void **reader)
{
    arena *memory;
    const char *own_path;
    void *owner;
    FSDP_TRY(arena_create_owned(path, reader_bytes, &memory, &owner, &own_path));
    mapped_file *file = owner;
    *file = (mapped_file){.memory = memory, .path = own_path, .borrowed = given != NULL};
    fsdp_status status = FSDP_OK;
    if (given)
        file->bytes = *given;
    else
        status = file_map_open(path, &file->bytes);
    if (status != FSDP_OK)
        arena_free(memory);
    else
        *reader = owner;
    return status;
}

void mapped_file_close(void *reader)
{
    mapped_file *file = reader;
    if (!file)
        return;
    if (!file->borrowed)
        file_map_close(&file->bytes);
    arena_free(file->memory);
}
