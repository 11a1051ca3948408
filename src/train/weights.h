/* Weights of a checkpoint, a Hugging Face folder or a single safetensors file into a sharded model, slice by slice. */
#ifndef TRAIN_WEIGHTS_H
#define TRAIN_WEIGHTS_H

#include <fsdp/shard.h>

/* Missing, extra and mis-shaped names are all listed in one error. Each rank reads only its own slices. */
fsdp_status weights_load(fsdp_model *m, const char *path);

#endif
