/* Parameter groups: which elements of a rank's ranges have options of their own, or are Muon's or Adafactor's. */
#ifndef SHARD_STEP_GROUPS_H
#define SHARD_STEP_GROUPS_H

#include <fsdp/optim.h>

#include "optim/update.h"
#include "shard/model.h"

/* Sets the spans of every range; *memory holds them all and is the caller's to free(), after the ranges. Without
 * groups, Muon and Adafactor nothing is done. A pattern that matches no trained parameter is FSDP_ERR_INPUT. */
fsdp_status groups_place(const fsdp_model *m, const fsdp_optimizer_config *config, update_range *ranges, int n_ranges,
                         update_span **memory);

#endif
