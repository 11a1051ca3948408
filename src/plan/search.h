/* Plans side by side, and the fastest that fits. */
#ifndef PLAN_SEARCH_H
#define PLAN_SEARCH_H

#include "plan/workload.h"

typedef struct plan_entry {
    fsdp_strategy strategy;
    fsdp_checkpointing checkpointing;
    bool planned; /* false: this strategy does not apply to this world (hybrid on one node) */
    memory_plan plan;
} plan_entry;

/* One entry per strategy with the configuration's own checkpointing. `entries` has FSDP_STRATEGY_COUNT places. */
fsdp_status plan_strategies(const workload *w, const fsdp_config *config, device *dev, int n_ranks, int ranks_per_node,
                            plan_entry *entries);

/* The fastest setting whose total is at most `limit`: least communication first, then least recomputation.
 * FSDP_ERR_INPUT, with the smallest total found, when none is. */
fsdp_status plan_fit(const workload *w, const fsdp_config *config, device *dev, int n_ranks, int ranks_per_node,
                     size_t limit, plan_entry *out);

#endif
