/* What a model folder's weights say that its configuration does not. Loading them is fsdp_weights_load. */
#ifndef STATE_WEIGHTS_H
#define STATE_WEIGHTS_H

#include <fsdp/state.h>

#include "ckpt/format/state.h"
#include "comm/comm.h"
#include "models/config.h"

/* A model that its configuration calls tied, whose files have a head of their own that differs from the embedding, is
 * untied, as transformers does it. Whatever else is wrong with the files is fsdp_weights_load's to say. */
fsdp_status weights_settle_head(const char *path, model_config *config);

/* The sum over all ranks of what each has of a digest. Collective. */
fsdp_status weights_sum_digest(comm_group *world, uint64_t mine, uint64_t *sum);
/* The digest of the base as the model keeps it, which may be in fewer bits than its file has. Collective. */
fsdp_status weights_kept_digest(comm_group *world, const ckpt_state *state, uint64_t *sum);

#endif
