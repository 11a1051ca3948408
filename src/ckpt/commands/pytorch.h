/* Writes what a checkpoint or model folder holds in PyTorch's own formats. */
#ifndef CKPT_COMMANDS_PYTORCH_H
#define CKPT_COMMANDS_PYTORCH_H

#include "ckpt/load/source.h"

/* The state dict of the model, rounded to `dtype`, as a file that torch.load(weights_only=True) reads. It appears
 * complete or not at all; a path that is taken is refused. */
fsdp_status pytorch_write_file(const ckpt_source *source, fsdp_dtype dtype, const char *path);

/* A folder that torch.distributed.checkpoint loads at any world size, in `n_files` files, each with an even share of
 * the rows: {"model": state dict, "optim": state and param_groups} as get_state_dict gives them, the groups in both of
 * its forms. Parameters are rounded to `dtype`, optimizer state stays fp32. A folder that is not empty is refused. */
fsdp_status pytorch_write_folder(const ckpt_source *source, fsdp_dtype dtype, int n_files, const char *folder);

#endif
