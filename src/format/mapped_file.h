/* What readers of files in place begin with: the name, the bytes, and one arena for the reader and all that it says
 * about them. The reader's struct has a mapped_file as its first member. */
#ifndef FORMAT_MAPPED_FILE_H
#define FORMAT_MAPPED_FILE_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/file.h"

typedef struct mapped_file {
    arena *memory;
    const char *path;
    file_map bytes;
    bool borrowed; /* the bytes are the caller's, who keeps them until the reader is closed */
} mapped_file;

/* A reader of `reader_bytes`, zeroed but for its beginning. `given` NULL: the file at `path` is mapped; otherwise
 * `path` is only a name for messages. */
fsdp_status mapped_file_open(const char *path, const file_map *given, size_t reader_bytes, void **reader);
/* Frees the reader too. NULL is legal. */
void mapped_file_close(void *reader);

#endif
