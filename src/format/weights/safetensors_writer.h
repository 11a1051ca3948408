/* Writer of safetensors files that never holds the data: declare every tensor, begin, then write slices in any order.
 * The file appears under its name on commit, complete, or not at all. The same calls give the same bytes.
 *
 *     safetensors_writer_create(path, &w);
 *     safetensors_writer_add(w, "embed.weight", FSDP_F32, 2, shape, &index);
 *     safetensors_writer_begin(w);
 *     safetensors_writer_write(w, index, 0, data, bytes);
 *     safetensors_writer_commit(w);
 *
 * Data lies in the order of declaration, wider element types first, so that every tensor is aligned to its type.
 * A writer belongs to one thread at a time. */
#ifndef FORMAT_WEIGHTS_SAFETENSORS_WRITER_H
#define FORMAT_WEIGHTS_SAFETENSORS_WRITER_H

#include <stddef.h>
#include <stdint.h>

#include <fsdp/dtype.h>
#include <fsdp/status.h>

typedef struct safetensors_writer safetensors_writer;

/* The caller ends *out by commit or abort. */
fsdp_status safetensors_writer_create(const char *path, safetensors_writer **out);

/* Before begin. Copies the name and the shape. `index` (may be NULL) receives the tensor's number: 0, 1, ... in the
 * order of declaration. */
fsdp_status safetensors_writer_add(safetensors_writer *w, const char *name, fsdp_dtype dtype, int n_dims,
                                   const int64_t *shape, size_t *index);

/* Writes the header, padded with spaces so that the data begins at a multiple of 8 bytes. */
fsdp_status safetensors_writer_begin(safetensors_writer *w);
/* Size of the whole file; valid after begin. */
uint64_t safetensors_writer_file_bytes(const safetensors_writer *w);

/* Bytes of the tensor's data from `offset` on; a byte written twice has the later value. */
fsdp_status safetensors_writer_write(safetensors_writer *w, size_t index, uint64_t offset, const void *data,
                                     size_t bytes);

/* Frees w, also on failure. Refuses, and leaves no file, when bytes of any tensor were never written. */
fsdp_status safetensors_writer_commit(safetensors_writer *w);
void safetensors_writer_abort(safetensors_writer *w); /* NULL is legal */

/* Data begins at a multiple of this, so that tensors whose sizes are multiples too can be copied to and from the file
 * by whole cache lines: the kernel's copy takes up to four times as long otherwise. */
#define SAFETENSORS_DATA_ALIGNMENT 64

/* What a header of `text_bytes` is padded to, with spaces; its length in front does not count. */
uint64_t safetensors_padded_header(size_t text_bytes);

#endif
