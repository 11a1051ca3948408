/* What --resume_from_checkpoint may name when nothing was found there. */
#ifndef TRAIN_RESUME_PATH_H
#define TRAIN_RESUME_PATH_H

#include <fsdp/status.h>

#include "base/json.h"
#include "comm/comm.h"

/* `from` has no checkpoint that could be loaded. FSDP_OK when it is `own`, the folder that this run saves into, and
 * that is missing or has no checkpoint yet: recipes pass it on the first run too. A first save of kind local that was
 * cut off before it got its name on every rank is none; of one that failed on a rank, whose part is gone, nothing tells
 * it from one that lost a part. Everything else is FSDP_ERR_INPUT with what was found there instead and what
 * to do. Collective. */
fsdp_status resume_path_judge(const char *from, const char *own, comm_group *world);

/* FSDP_ERR_INPUT when the checkpoint that `from` leads to was written with flags that give the model other shapes than
 * `flags`, the run's, or another optimizer's state: they are named with both values, where loading would list every
 * tensor. */
fsdp_status resume_path_check_model(const char *from, const json_t *flags);

#endif
