/* Plans side by side, and the fastest that fits. */
#ifndef PLAN_SEARCH_H
#define PLAN_SEARCH_H

#include "plan/workload.h"

typedef struct plan_entry {
    fsdp_strategy strategy;
    fsdp_checkpointing checkpointing;
    bool cpu_offload;
    bool planned; /* false: this strategy does not apply to this world (hybrid on one node) */
    memory_plan plan;
} plan_entry;

/* One entry per strategy with the configuration's own checkpointing. `entries` has FSDP_STRATEGY_COUNT places. */
fsdp_status plan_strategies(const workload *w, const fsdp_config *config, device *dev, int n_ranks, int ranks_per_node,
                            plan_entry *entries);

/* The fastest setting whose total is at most `limit`: least communication first, then least recomputation; with all
 * units offloaded to the host only when nothing else fits, and where that is allowed. FSDP_ERR_INPUT, with the smallest
 * total found, when none is. */
fsdp_status plan_fit(const workload *w, const fsdp_config *config, device *dev, int n_ranks, int ranks_per_node,
                     size_t limit, bool may_offload, plan_entry *out);

/* What the update of offloaded units takes in a step: the host's memory is read and written once, by all its ranks. An
 * estimate for a server with HOST_GIGABYTES a second. */
#define HOST_GIGABYTES 120
double plan_update_seconds(const memory_plan *p, int ranks_per_node);

/* An entry as the flags that choose it: "--sharding_strategy full --activation_checkpointing none --cpu_offload". */
const char *plan_entry_flags(const plan_entry *e, char *text, size_t bytes);
enum { PLAN_FLAGS = 128 };

#endif
