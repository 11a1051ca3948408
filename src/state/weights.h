/* Weights of a checkpoint, a Hugging Face folder or a single safetensors file into a sharded model, slice by slice. */
#ifndef STATE_WEIGHTS_H
#define STATE_WEIGHTS_H

#include <fsdp/shard.h>

#include "models/config.h"

/* Missing, extra and mis-shaped names are all listed in one error. Each rank reads only its own slices. */
fsdp_status weights_load(fsdp_model *m, const char *path);

/* A model that its configuration calls tied, whose files have a head of their own that differs from the embedding, is
 * untied, as transformers does it. Whatever else is wrong with the files is weights_load's to say. */
fsdp_status weights_settle_head(const char *path, model_config *config);

#endif
