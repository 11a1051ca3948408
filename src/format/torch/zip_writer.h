/* Writes a zip archive of files that are stored as they are, as torch.save does: each begins at a multiple of 64 bytes,
 * so that tensors can be mapped. The archive may begin anywhere in a file; several may follow each other. Sizes beyond
 * 4 GiB are written as zip64. */
#ifndef FORMAT_TORCH_ZIP_WRITER_H
#define FORMAT_TORCH_ZIP_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "base/file.h"

typedef struct zip_writer zip_writer;

/* Borrows `file` until finish or free; the archive begins at its byte `begin`. */
fsdp_status zip_writer_create(file_writer *file, uint64_t begin, zip_writer **out);

/* The next file, of exactly `bytes`, which follow by write in order. The name is copied. */
fsdp_status zip_writer_start(zip_writer *zip, const char *name, uint64_t bytes);
fsdp_status zip_writer_write(zip_writer *zip, const void *data, size_t bytes);
/* Both in one call. */
fsdp_status zip_writer_add(zip_writer *zip, const char *name, const void *data, size_t bytes);

/* Writes the directory. *end: the byte of the file after the archive. */
fsdp_status zip_writer_finish(zip_writer *zip, uint64_t *end);
void zip_writer_free(zip_writer *zip); /* NULL is legal */

#endif
