/* Plans against what the device has. */
#include "train/fit.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "optim/update.h"
#include "plan/search.h"

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
                      .backend = fsdp_world_backend(run->world),
                      .batch = run->settings->train_batch_size,
                      .width = run->info.width,
                      .target = run->info.target_width,
                      .moments = update_moments(&optimizer)};
}

/* What the choice takes and what there is, for a sentence. */
typedef struct fitting {
    train_run *run;
    workload work;
    size_t limit;
    memory_plan plan; /* of the settings as they stand */
} fitting;

static double gib(size_t bytes)
{
    return (double)bytes / (1 << 30);
}

static fsdp_status plan_now(fitting *f)
{
    const train_run *run = f->run;
    return workload_plan(&f->work, &run->sharding.config, run->world->dev, run->n_ranks,
                         run->world->job.local_world_size, &f->plan);
}

/* Host memory helps where the device has another, unless the user said no. */
static bool may_offload(const train_run *run)
{
    return run->world->dev->graph_begin && !fsdp_settings_given(run->settings, "cpu_offload");
}

static fsdp_status find_fit(const fitting *f, plan_entry *entry)
{
    const train_run *run = f->run;
    return plan_fit(&f->work, &run->sharding.config, run->world->dev, run->n_ranks, run->world->job.local_world_size,
                    f->limit, may_offload(run), entry);
}

static void take_entry(train_run *run, const plan_entry *e)
{
    fsdp_config *c = &run->sharding.config;
    c->strategy = e->strategy;
    c->checkpointing = e->checkpointing;
    c->cpu_offload = e->cpu_offload;
}

static fsdp_status take_fastest(fitting *f)
{
    plan_entry entry;
    char flags[PLAN_FLAGS];
    assembled_sharding *chosen = &f->run->sharding;
    FSDP_TRY(find_fit(f, &entry));
    take_entry(f->run, &entry);
    snprintf(chosen->reason, sizeof chosen->reason, "%s: the fastest that fits %.2f GiB a rank (%.2f GiB planned)",
             plan_entry_flags(&entry, flags, sizeof flags), gib(f->limit), gib(entry.plan.total));
    return FSDP_OK;
}

/* The guide's choice does not fit: from 70B on the host's memory helps first, else the fastest that fits is taken. */
static fsdp_status take_instead(fitting *f, int64_t n_parameters)
{
    fsdp_config *c = &f->run->sharding.config;
    char *reason = f->run->sharding.reason;
    size_t room = sizeof f->run->sharding.reason, used, alone = f->plan.total;
    if ((double)n_parameters >= 70e9 && may_offload(f->run)) {
        c->cpu_offload = true;
        FSDP_TRY(plan_now(f));
        used = strlen(reason);
        snprintf(reason + used, room - used, ", and CPU offload: %.2f GiB a rank without it, %.2f GiB are available",
                 gib(alone), gib(f->limit));
        if (f->plan.total <= f->limit)
            return FSDP_OK;
        c->cpu_offload = false;
    }
    plan_entry entry;
    char flags[PLAN_FLAGS];
    FSDP_TRY(find_fit(f, &entry));
    snprintf(reason, room, "%s: the guide's %s takes %.2f GiB a rank, %.2f GiB are available (%.2f GiB planned)",
             plan_entry_flags(&entry, flags, sizeof flags), fsdp_strategy_name(c->strategy), gib(alone), gib(f->limit),
             gib(entry.plan.total));
    take_entry(f->run, &entry);
    return FSDP_OK;
}

fsdp_status fit_sharding(train_run *run, int64_t n_parameters)
{
    double limit = (double)share(run);
    plan_entry entry;
    char flags[PLAN_FLAGS];
    /* All ranks decide by the smallest: they must decide alike. */
    FSDP_TRY(comm_all_reduce_f64(comm_world(run->world->comm), "available memory", 0, COMM_MIN, &limit, 1));
    if (limit <= 0)
        return FSDP_OK; /* recommended by size, as far as is known */
    fitting f = {.run = run, .work = workload_of(run), .limit = (size_t)limit};
    if (run->settings->sharding_strategy == FSDP_STRATEGY_AUTO)
        return take_fastest(&f);
    FSDP_TRY(plan_now(&f));
    if (f.plan.total <= f.limit)
        return FSDP_OK;
    if (run->settings->sharding_strategy == FSDP_STRATEGY_RECOMMENDED)
        return take_instead(&f, n_parameters);
    FSDP_TRY(find_fit(&f, &entry));
    return error_set(FSDP_ERR_INPUT,
                     "strategy %s takes %.2f GiB a rank, %.2f GiB are available; this fits: %s (%.2f GiB)",
                     fsdp_strategy_name(run->sharding.config.strategy), gib(f.plan.total), gib(f.limit),
                     plan_entry_flags(&entry, flags, sizeof flags), gib(entry.plan.total));
}
