/* Variables that jobs of PyTorch set for its process groups and its launcher, and what they are here. Two are taken
 * over by whoever has the flag: NCCL_TIMEOUT as --comm_timeout, TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC as `fsdp run
 * --watchdog`. */
#ifndef BASE_HOST_TORCH_VARIABLES_H
#define BASE_HOST_TORCH_VARIABLES_H

typedef enum torch_reader { TORCH_RANK = 1, TORCH_LAUNCHER = 2 } torch_reader;

/* One warning that names those for this reader that are set and have no effect, with what does the same; nothing when
 * none is. */
void torch_variables_check(torch_reader reader);

#endif
