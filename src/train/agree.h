/* Ranks that were started with different batches, data or recipes are told so before they train. What makes the model
 * is compared by fsdp_shard. */
#ifndef TRAIN_AGREE_H
#define TRAIN_AGREE_H

#include "train/run.h"

/* After the data is open. FSDP_ERR_PEER names the first rank that differs from rank 0, the flag and both values; every
 * rank says the same. */
fsdp_status run_agree(const train_run *run);

#endif
