/* What each unit does: the model's defaults, as the configuration's callback changes them. */
#ifndef SHARD_BUILD_POLICY_H
#define SHARD_BUILD_POLICY_H

#include "shard/build/wrap.h"
#include "shard/model.h"

/* Asks for the policy of every unit and applies it to modules and parameters, before they are laid out. Fills
 * m->policies, m->offloaded and what the schedule needs. */
fsdp_status policy_apply(fsdp_model *m, const wrap_result *wrapped);
void policy_free(fsdp_model *m);

/* Joins what ranks must agree on to a hash. */
uint64_t policy_hash(const fsdp_model *m, uint64_t hash);

#endif
