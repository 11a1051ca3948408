/* The strategies, described once: names, and what each does with parameters, gradients and optimizer state. */
#ifndef SHARD_BUILD_STRATEGY_H
#define SHARD_BUILD_STRATEGY_H

#include "shard/plan/schedule.h"

typedef struct strategy_traits {
    const char *name;
    const char *aliases[4];
    parameter_residency parameters; /* when there is more than one shard */
    bool shards_optimizer;          /* gradients' accumulator, master parameters and moments */
    bool holds_gradients;           /* full gradients of all units are kept until reduced */
    bool grouped;                   /* shards within a group of ranks, replicates across */
} strategy_traits;

const strategy_traits *strategy_of(fsdp_strategy s);

/* Into how many shards a strategy cuts units: a group's ranks (0: those of a node) or all. `whose` begins the error. */
fsdp_status strategy_count_shards(fsdp_strategy s, const char *whose, int group_size, int n_ranks, int ranks_per_node,
                                  int *out);

/* "GLOB=STRATEGY" of fsdp_config.unit_strategies: the pattern, and what matching units do. */
typedef struct strategy_rule {
    char glob[256];
    fsdp_strategy strategy;
} strategy_rule;
fsdp_status strategy_rule_parse(const char *text, strategy_rule *out);

#endif
