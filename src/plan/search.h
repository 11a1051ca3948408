/* Plans side by side, and the fastest that fits. */
#ifndef PLAN_SEARCH_H
#define PLAN_SEARCH_H

#include "plan/workload.h"

typedef struct plan_entry {
    fsdp_config config; /* as it was planned: strategy, checkpointing and offload are the search's */
    bool planned;       /* false: this strategy does not apply to this world (hybrid on one node) */
    memory_plan plan;
} plan_entry;

/* Whether the strategy means something of its own in this world: hybrid ones want several groups. */
bool plan_strategy_applies(fsdp_strategy s, const fsdp_config *c, const plan_world *world);

/* One entry per strategy with the configuration's own checkpointing. `entries` has FSDP_STRATEGY_COUNT places. */
fsdp_status plan_strategies(const workload *w, const fsdp_config *config, const plan_world *world, plan_entry *entries);

/* What one rank may take; 0: not known, anything fits. On a device without memory of its own both are one, and
 * `device` is the limit of all. */
typedef struct plan_limit {
    size_t device, host;
} plan_limit;

bool plan_fits(const memory_plan *p, const device *dev, plan_limit limit);

/* What the search may choose; what it may not stays as the configuration has it. */
typedef struct plan_freedom {
    bool strategy, checkpointing, offload_activations, cpu_offload;
    bool cpu_offload_resident; /* at the end: how much of what is offloaded stays nevertheless */
    bool fp8_weights;          /* at the end: whether weights are kept in 8 bits everywhere */
} plan_freedom;

typedef struct plan_search {
    const workload *work;
    const fsdp_config *config;
    plan_world world;
    plan_limit limit;
    plan_freedom free;
} plan_search;

typedef struct plan_found {
    plan_entry fit;
    plan_entry faster; /* the next faster one, which does not fit; not planned when there is none */
    bool too_large;    /* everything was planned, and nothing fits */
} plan_found;

/* The fastest setting that fits: least communication first, then least recomputation, then activations on the host;
 * with units offloaded to the host only when nothing else fits, and then as few as it takes. FSDP_ERR_INPUT, with the
 * smallest setting found, when nothing does. */
fsdp_status plan_fit(const plan_search *s, plan_found *out);

/* Sets c->cpu_offload_resident, where units are offloaded, to the largest percentage with which the plan still leaves a
 * sixteenth of the device's limit free; 0 where that is not known. */
fsdp_status plan_residents(const workload *w, const plan_world *world, plan_limit limit, fsdp_config *c);

/* Has weights rounded to 8 bits once a step everywhere, where the plan with them still leaves a sixteenth of the
 * device's limit free, or that limit is not known; leaves c as it is where that is not so. */
fsdp_status plan_codes(const workload *w, const plan_world *world, plan_limit limit, fsdp_config *c);

/* The fewest ranks, up to `most`, on which something fits; world.n_ranks is ignored, and no node has more than
 * world.ranks_per_node. FSDP_ERR_INPUT when `most` are too few. */
fsdp_status plan_fewest_ranks(const plan_search *s, int most, int *n_ranks);

/* What the update of offloaded units takes in a step: the host's memory is read and written once, by all its ranks. An
 * estimate for a server with HOST_GIGABYTES a second. */
#define HOST_GIGABYTES 120
double plan_update_seconds(const memory_plan *p, int ranks_per_node);

/* A configuration as the flags that choose it, whatever else was given: "--sharding_strategy full
 * --activation_checkpointing none", with --offload_activations and --cpu_offload, or their negations where `given` (the
 * configuration that the user's flags make) has them, and --cpu_offload_resident where it differs from that. */
const char *plan_flags(const fsdp_config *c, const fsdp_config *given, char *text, size_t bytes);
enum { PLAN_FLAGS = 192 };

#endif
