/* The average of the weights, which the optimizer's pass keeps (optim/update.h), in the place of the weights. */
#ifndef SHARD_STEP_AVERAGE_H
#define SHARD_STEP_AVERAGE_H

#include "shard/step/optimizer.h"

/* FSDP_ERR_STATE, saying what was to be done, while the two have changed places. */
fsdp_status average_check_home(const fsdp_optimizer *o, const char *what);

/* Both are at home, and an average that no step has begun yet is the weights. */
fsdp_status average_before_save(fsdp_optimizer *o);

#endif
