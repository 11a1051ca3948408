/* Plans against what the device has. */
#include "train/fit.h"

#include <stdio.h>

#include "base/checked.h"
#include "base/error.h"
#include "optim/update.h"
#include "plan/search.h"

static const char *const checkpointing_names[] = {"none", "full", "selective"};

/* What one rank may take: ranks of a host share its memory, GPUs have their own. */
static size_t share(const train_run *run)
{
    device *dev = run->world->dev;
    size_t available = dev->available ? dev->available(dev) : 0;
    return dev->graph_begin ? available : available / (size_t)max_i64(1, run->world->job.local_world_size);
}

static workload workload_of(const train_run *run)
{
    fsdp_optimizer_config optimizer = assemble_optimizer(run->settings);
    return (workload){.model = run->model_config,
                      .batch = run->settings->train_batch_size,
                      .width = run->info.width,
                      .target = run->info.target_width,
                      .moments = update_moments(&optimizer)};
}

fsdp_status fit_sharding(train_run *run)
{
    workload work = workload_of(run);
    fsdp_config *c = &run->sharding.config;
    device *dev = run->world->dev;
    int per_node = run->world->job.local_world_size;
    double limit = (double)share(run);
    plan_entry entry;
    memory_plan plan;
    /* All ranks decide by the smallest: they must decide alike. */
    FSDP_TRY(comm_all_reduce_f64(comm_world(run->world->comm), "available memory", 0, COMM_MIN, &limit, 1));
    bool automatic = run->settings->sharding_strategy == FSDP_STRATEGY_AUTO;
    if (limit <= 0)
        return FSDP_OK; /* recommended by size, as far as is known */
    if (automatic) {
        FSDP_TRY(plan_fit(&work, c, dev, run->n_ranks, per_node, (size_t)limit, &entry));
        c->strategy = entry.strategy;
        c->checkpointing = entry.checkpointing;
        snprintf(run->sharding.reason, sizeof run->sharding.reason,
                 "strategy %s, activation checkpointing %s: the fastest that fits %.2f GiB a rank (%.2f GiB planned)",
                 fsdp_strategy_name(entry.strategy), checkpointing_names[entry.checkpointing], limit / (1 << 30),
                 (double)entry.plan.total / (1 << 30));
        return FSDP_OK;
    }
    FSDP_TRY(workload_plan(&work, c, dev, run->n_ranks, per_node, &plan));
    if ((double)plan.total <= limit)
        return FSDP_OK;
    FSDP_TRY(plan_fit(&work, c, dev, run->n_ranks, per_node, (size_t)limit, &entry));
    return error_set(FSDP_ERR_INPUT,
                     "strategy %s takes %.2f GiB a rank, %.2f GiB are available; this fits: --sharding_strategy %s "
                     "--activation_checkpointing %s (%.2f GiB)",
                     fsdp_strategy_name(c->strategy), (double)plan.total / (1 << 30), limit / (1 << 30),
                     fsdp_strategy_name(entry.strategy), checkpointing_names[entry.checkpointing],
                     (double)entry.plan.total / (1 << 30));
}
