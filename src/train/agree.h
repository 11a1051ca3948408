/* What all ranks must have in common: before they train, the batches, data, models and recipes they were started with;
 * while they train, the numbers they go by and the replicas they hold. How the model is sharded is compared by
 * fsdp_shard. */
#ifndef TRAIN_AGREE_H
#define TRAIN_AGREE_H

#include "train/run.h"

/* After the data is open, and once more when the model's own files are `known`, with all of the model's numbers and a
 * fingerprint of the data. FSDP_ERR_PEER names the first rank that differs from rank 0, the flag and both values; every
 * rank says the same. Not compared: the weights that ranks begin with, tokenizers and templates where samples come out
 * the same. */
fsdp_status run_agree(const train_run *run, bool model_known);

/* Called after each step; compares in every AGREE_EVERY-th step and in the `last`: the data's position, the scalars of
 * the optimizer and the schedule, the model's buffers, and, where ranks hold the same shard (no_shard, hybrid), its
 * parameters and moments: a part each time, all of them in AGREE_PARTS times. FSDP_ERR_PEER names the rank that differs
 * from most, and what differs; every rank returns the same message. Collective. */
enum { AGREE_EVERY = 16, AGREE_PARTS = 256 };
fsdp_status run_agree_still(train_run *run, bool last);

#endif
