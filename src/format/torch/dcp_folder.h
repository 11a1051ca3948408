/* A checkpoint of torch.distributed.checkpoint: a folder with a pickled description (.metadata) and files
 * (__0_0.distcp) in which every chunk of a tensor, and every other value, is a torch.save of its own. All of it is read
 * as data (torch_file.h). What a name means to training is for the caller to say. */
#ifndef FORMAT_TORCH_DCP_FOLDER_H
#define FORMAT_TORCH_DCP_FOLDER_H

#include <stdbool.h>

#include "format/weights/safetensors.h"

#define DCP_METADATA_NAME ".metadata"

typedef struct dcp_chunk {
    int64_t offsets[SAFETENSORS_MAX_DIMS], sizes[SAFETENSORS_MAX_DIMS]; /* the box of the tensor that it holds */
    safetensors_tensor stored;
} dcp_chunk;

typedef struct dcp_tensor {
    const char *key;         /* "optim.state.0.weight.exp_avg" */
    const char *const *path; /* the keys of the nested dicts, outermost first; numbers as text */
    int n_path;
    int n_dims;
    int64_t shape[SAFETENSORS_MAX_DIMS];
    dcp_chunk *chunks; /* boxes within the tensor, as many elements together as it has */
    int n_chunks;
} dcp_tensor;

typedef struct dcp_folder dcp_folder;

/* Whether a folder has the description. */
bool dcp_folder_is(const char *path);

/* Describes all tensors and opens their chunks. The caller closes *out. */
fsdp_status dcp_folder_open(const char *path, dcp_folder **out);
void dcp_folder_close(dcp_folder *folder); /* NULL is legal */

int dcp_folder_count(const dcp_folder *folder);
const dcp_tensor *dcp_folder_at(const dcp_folder *folder, int index);

/* The float or int that was saved under a key that ends so ("param_groups.0.lr"); false: there is none. */
bool dcp_folder_number(dcp_folder *folder, const char *ending, double *out);

#endif
