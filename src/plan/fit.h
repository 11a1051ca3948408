/* Whether a job fits in free memory, found out before anything is allocated; and the choice that strategy auto leaves
 * open. */
#ifndef PLAN_FIT_H
#define PLAN_FIT_H

#include "comm/comm.h"
#include "plan/assemble.h"

typedef struct fit_request {
    const fsdp_settings *settings;
    const workload *work;
    plan_world world;
    plan_limit limit;
    plan_freedom free; /* what may be chosen */
    int64_t n_parameters;
} fit_request;

/* What one rank may take here, the same on all ranks of `all`: free memory of its device, and its share of what the
 * host still has, where the host has memory of its own. Collective. */
fsdp_status fit_limit(device *dev, int ranks_per_host, comm_group *all, plan_limit *out);

/* Strategy auto: takes the fastest setting that fits. Resident auto: finds the percentage. Recommended: takes another
 * only where the one by size does not fit. Otherwise FSDP_ERR_INPUT, naming flags that would fit, when the plan is
 * larger than what is available. sharding->reason says what was chosen and why. */
fsdp_status fit_sharding(const fit_request *r, assembled_sharding *sharding);

#endif
