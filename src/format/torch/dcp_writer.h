/* Writes a checkpoint that torch.distributed.checkpoint loads: chunks of tensors and other values into files
 * (__0_0.distcp, __1_0.distcp, ...), then the description of all (.metadata). The folder is whole once that is there.
 *
 *     dcp_writer_create(folder, 2, &w);
 *     dcp_writer_tensor(w, (const char *[]){"model", "embed.weight"}, 2, element, 2, shape);
 *     dcp_writer_chunk(w, 0, offsets, sizes);            // rows of it, into __0_0.distcp
 *     dcp_writer_write(w, data, bytes);                  // until the chunk is whole
 *     dcp_writer_value(w, path, 4, &pickle);             // "optim.param_groups.0.lr"
 *     dcp_writer_commit(w); */
#ifndef FORMAT_TORCH_DCP_WRITER_H
#define FORMAT_TORCH_DCP_WRITER_H

#include "format/torch/archive.h"

typedef struct dcp_writer dcp_writer;

/* The folder is there. The caller ends *out by commit or abort. */
fsdp_status dcp_writer_create(const char *folder, int n_files, dcp_writer **out);

/* The tensor that the next chunks are of, under nested keys; a key that is a number is one in the file. */
fsdp_status dcp_writer_tensor(dcp_writer *w, const char *const *path, int n_path, const torch_element *element,
                              int n_dims, const int64_t *shape);
/* Begins a chunk, a box of the tensor; the last one must be whole. */
fsdp_status dcp_writer_chunk(dcp_writer *w, int file, const int64_t *offsets, const int64_t *sizes);
fsdp_status dcp_writer_write(dcp_writer *w, const void *data, size_t bytes);

/* Any other value, pickled and ended. Goes into the first file. */
fsdp_status dcp_writer_value(dcp_writer *w, const char *const *path, int n_path, const pickle_writer *value);

/* Frees w, also on failure: then there is no .metadata. */
fsdp_status dcp_writer_commit(dcp_writer *w);
void dcp_writer_abort(dcp_writer *w); /* NULL is legal */

#endif
