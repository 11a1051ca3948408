/* A checkpoint of PyTorch (torch.distributed.checkpoint) as tensors with roles: what is a parameter, what a moment. */
#ifndef CKPT_LOAD_DCP_SOURCE_H
#define CKPT_LOAD_DCP_SOURCE_H

#include "base/arena.h"
#include "ckpt/load/source.h"
#include "format/torch/dcp_folder.h"

/* Tensors of the model are named by the last key of their path; those under "state" are the optimizer's, by parameter
 * name (exp_avg and momentum_buffer: moment1, exp_avg_sq: moment2), as get_state_dict gives them, nested or flat.
 * *steps is the optimizer's count, -1 where there is none. What is neither is left out, with a warning. */
fsdp_status dcp_source_list(const char *path, const dcp_folder *folder, arena *memory, source_tensor **out, int *n,
                            int64_t *steps);

#endif
