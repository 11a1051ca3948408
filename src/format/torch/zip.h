/* Finds the files in a zip archive (zip64 included) that lies in memory. Only files that are stored as they are can be
 * read: torch.save writes no others. Checksums are not compared: PyTorch does not, and may write none. */
#ifndef FORMAT_TORCH_ZIP_H
#define FORMAT_TORCH_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "base/arena.h"

typedef struct zip_entry {
    const char *name;
    const uint8_t *data; /* NULL: compressed or encrypted */
    size_t bytes;
} zip_entry;

typedef struct zip_archive {
    zip_entry *entries; /* by name */
    size_t n_entries;
} zip_archive;

/* The list of entries, in `memory`. `name` stands for the file in messages. */
fsdp_status zip_read(const char *name, const void *data, size_t bytes, arena *memory, zip_archive *out);
/* NULL when absent. */
const zip_entry *zip_find(const zip_archive *zip, const char *name);

#endif
