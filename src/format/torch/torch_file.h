/* Files of torch.save: a zip archive with a pickle and the bytes of its storages, or the stream of pickles that PyTorch
 * wrote before 1.6. The pickle is read as data (pickle.h); tensors are views into the file, which is mapped, and may be
 * strided, share memory and overlap. Everything is checked when a tensor is asked for: shape, strides and storage must
 * lie within the file. */
#ifndef FORMAT_TORCH_TORCH_FILE_H
#define FORMAT_TORCH_TORCH_FILE_H

#include <stdbool.h>

#include "format/weights/safetensors.h"
#include "format/torch/pickle.h"

typedef struct torch_file torch_file;

/* Whether the first bytes are those of such a file. */
bool torch_file_looks_like(const void *data, size_t bytes);

/* The caller closes *out. */
fsdp_status torch_file_open(const char *path, torch_file **out);
/* The same over memory that the caller keeps until close: `data` begins at byte `offset` of the file `path`. */
fsdp_status torch_file_open_memory(const char *path, const void *data, size_t bytes, size_t offset, torch_file **out);
void torch_file_close(torch_file *file); /* NULL is legal */

/* What was saved. */
const pickle_value *torch_file_root(const torch_file *file);
const char *torch_file_path(const torch_file *file);
arena *torch_file_memory(torch_file *file); /* lives as long as the file is open */

bool torch_is_tensor(const pickle_value *value);
/* The tensor, which lives as long as the file is open; its name is `name`, borrowed. */
fsdp_status torch_file_tensor(torch_file *file, const pickle_value *value, const char *name, safetensors_tensor *out);

/* The tensors of a state dict, as files of training hold it: at the top, or under "model", "state_dict" or the like;
 * what wrappers put into names ("module.", "_orig_mod.") is taken out. Everything else in the file is left out, with a
 * warning that names it. The list lives as long as the file. */
fsdp_status torch_file_state_dict(torch_file *file, safetensors_tensor **out, size_t *n);

/* A tuple of whole numbers from 0 on, as torch.Size or plain; at most SAFETENSORS_MAX_DIMS. False: anything else. */
bool torch_sizes(const pickle_value *value, int64_t *sizes, int *n_dims);

/* `name` without what FSDP, DDP's compile and checkpoint wrappers put into it; in place. */
void torch_clean_name(char *name);

#endif
