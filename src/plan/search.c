/* Going through strategies, in order of what they cost in time. */
#include "plan/search.h"

#include <stdio.h>

#include "base/error.h"

static bool applies(fsdp_strategy s, const fsdp_config *c, int n_ranks, int ranks_per_node)
{
    if (s != FSDP_HYBRID && s != FSDP_HYBRID_ZERO2)
        return true;
    int size = c->shard_group_size ? c->shard_group_size : ranks_per_node;
    return size >= 1 && size < n_ranks && n_ranks % size == 0;
}

fsdp_status plan_strategies(const workload *w, const fsdp_config *config, device *dev, int n_ranks, int ranks_per_node,
                            plan_entry *entries)
{
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        fsdp_config c = *config;
        c.strategy = (fsdp_strategy)s;
        entries[s] = (plan_entry){.strategy = c.strategy,
                                  .checkpointing = c.checkpointing,
                                  .cpu_offload = c.cpu_offload,
                                  .planned = applies(c.strategy, &c, n_ranks, ranks_per_node)};
        if (entries[s].planned)
            FSDP_TRY(workload_plan(w, &c, dev, n_ranks, ranks_per_node, &entries[s].plan));
    }
    return FSDP_OK;
}

double plan_update_seconds(const memory_plan *p, int ranks_per_node)
{
    return (double)p->host_update_bytes * (ranks_per_node < 1 ? 1 : ranks_per_node) / (HOST_GIGABYTES * 1e9);
}

const char *plan_entry_flags(const plan_entry *e, char *text, size_t bytes)
{
    static const char *const levels[] = {"none", "full", "selective"};
    snprintf(text, bytes, "--sharding_strategy %s --activation_checkpointing %s%s", fsdp_strategy_name(e->strategy),
             levels[e->checkpointing], e->cpu_offload ? " --cpu_offload" : "");
    return text;
}

/* Of the settings that differ in strategy and checkpointing only; the smallest total is kept in *smallest. */
static fsdp_status fit_among(const workload *w, const fsdp_config *config, device *dev, int n_ranks, int ranks_per_node,
                             size_t limit, size_t *smallest, bool *found, plan_entry *out)
{
    /* More communication costs less than computing forward again, where it runs under compute: so checkpointing comes
     * last. */
    static const fsdp_strategy strategies[] = {FSDP_NO_SHARD,      FSDP_SHARD_OP, FSDP_HYBRID_ZERO2,
                                               FSDP_SHARD_GRAD_OP, FSDP_HYBRID,   FSDP_FULL};
    static const fsdp_checkpointing levels[] = {FSDP_CHECKPOINT_NONE, FSDP_CHECKPOINT_SELECTIVE, FSDP_CHECKPOINT_FULL};
    for (int l = 0; l < 3; l++) {
        for (int s = 0; s < 6; s++) {
            fsdp_config c = *config;
            c.strategy = strategies[s];
            c.checkpointing = levels[l];
            if (!applies(c.strategy, &c, n_ranks, ranks_per_node) || (l > 0 && c.wrap.kind != FSDP_WRAP_TYPE))
                continue;
            *out = (plan_entry){.strategy = c.strategy,
                                .checkpointing = c.checkpointing,
                                .cpu_offload = c.cpu_offload,
                                .planned = true};
            FSDP_TRY(workload_plan(w, &c, dev, n_ranks, ranks_per_node, &out->plan));
            *found = out->plan.total <= limit;
            if (*found)
                return FSDP_OK;
            *smallest = out->plan.total < *smallest ? out->plan.total : *smallest;
        }
    }
    return FSDP_OK;
}

fsdp_status plan_fit(const workload *w, const fsdp_config *config, device *dev, int n_ranks, int ranks_per_node,
                     size_t limit, bool may_offload, plan_entry *out)
{
    size_t smallest = SIZE_MAX;
    bool found = false;
    fsdp_config offloaded = *config;
    offloaded.cpu_offload = true;
    offloaded.n_cpu_offload_units = 0;
    FSDP_TRY(fit_among(w, config, dev, n_ranks, ranks_per_node, limit, &smallest, &found, out));
    if (!found && may_offload)
        FSDP_TRY(fit_among(w, &offloaded, dev, n_ranks, ranks_per_node, limit, &smallest, &found, out));
    if (found)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT,
                     "nothing fits %.2f GiB a rank: the smallest setting takes %.2f GiB; use more ranks, a smaller "
                     "batch or a shorter context",
                     (double)limit / (1 << 30), (double)smallest / (1 << 30));
}
