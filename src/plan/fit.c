/* Compares plans with free memory. */
#include "plan/fit.h"

#include <stdio.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/host/host_memory.h"

fsdp_status fit_limit(device *dev, int ranks_per_host, comm_group *all, plan_limit *out)
{
    double ranks = (double)max_i64(1, ranks_per_host), host = (double)host_memory_available() / ranks;
    /* A GPU has its memory to itself; on CPUs the ranks of a host share one. */
    double limits[] = {dev->own_memory && dev->available ? (double)dev->available(dev) : host, host};
    FSDP_TRY(comm_all_reduce_f64(all, "available memory", 0, FSDP_REDUCE_MIN, limits, 2)); /* they must decide alike */
    *out = (plan_limit){(size_t)limits[0], (size_t)limits[1]};
    return FSDP_OK;
}

static double gib(size_t bytes)
{
    return (double)bytes / (1 << 30);
}

/* What counts against the device's limit. */
static size_t taken(const fit_request *r, const memory_plan *p)
{
    return r->world.dev->own_memory ? p->total : p->total + p->host;
}

static fsdp_status search(const fit_request *r, const fsdp_config *config, plan_freedom freedom, plan_found *out)
{
    plan_search s = {.work = r->work, .config = config, .world = r->world, .limit = r->limit, .free = freedom};
    return plan_fit(&s, out);
}

/* "takes 3.20 GiB" and, where the host's memory is another and what is short, "and 5.00 GiB of the host's". */
static void say_size(const fit_request *r, const memory_plan *p, char *text, size_t bytes)
{
    int n = snprintf(text, bytes, "%.2f GiB", gib(taken(r, p)));
    if (r->world.dev->own_memory && r->limit.host > 0 && p->host > r->limit.host)
        snprintf(text + n, bytes - (size_t)n, " and %.2f GiB of the host's %.2f", gib(p->host), gib(r->limit.host));
}

static void take(const fsdp_config *chosen, assembled_sharding *sharding)
{
    fsdp_config *c = &sharding->config;
    c->strategy = chosen->strategy;
    c->checkpointing = chosen->checkpointing;
    c->offload_activations = chosen->offload_activations;
    c->cpu_offload = chosen->cpu_offload;
    c->cpu_offload_resident = chosen->cpu_offload_resident;
    c->fp8_weights = chosen->fp8_weights;
}

static fsdp_status take_fastest(const fit_request *r, assembled_sharding *sharding)
{
    plan_found found;
    char flags[PLAN_FLAGS], faster[PLAN_FLAGS], size[128];
    const fsdp_config given = sharding->config;
    char *reason = sharding->reason;
    size_t room = sizeof sharding->reason;
    FSDP_TRY(search(r, &given, r->free, &found));
    take(&found.fit.config, sharding);
    int n = snprintf(reason, room, "%s: the fastest that fits: %.2f GiB planned",
                     plan_flags(&found.fit.config, &given, flags, sizeof flags), gib(taken(r, &found.fit.plan)));
    if (r->limit.device > 0)
        n += snprintf(reason + n, room - (size_t)n, " of %.2f GiB a rank", gib(r->limit.device));
    if (found.faster.planned) {
        say_size(r, &found.faster.plan, size, sizeof size);
        snprintf(reason + n, room - (size_t)n, "; the next faster, %s, takes %s",
                 plan_flags(&found.faster.config, &given, faster, sizeof faster), size);
    }
    return FSDP_OK;
}

/* Everything may change but units named by the user: `recommended` may be replaced, and a proposal may be anything. */
static plan_freedom anything(const fit_request *r)
{
    bool beside = r->world.dev->own_memory;
    return (plan_freedom){.strategy = true,
                          .checkpointing = true,
                          .offload_activations = beside,
                          .cpu_offload =
                              assemble_may_offload(r->settings, r->world.dev) && r->settings->cpu_offload_units.n == 0};
}

/* The guide's choice does not fit: from 70B on the host's memory helps first, else the fastest that fits is taken. */
static fsdp_status take_instead(const fit_request *r, const memory_plan *guided, assembled_sharding *sharding)
{
    plan_found found;
    char *reason = sharding->reason, flags[PLAN_FLAGS], size[128];
    size_t room = sizeof sharding->reason, used = strlen(reason);
    fsdp_config given = sharding->config;
    say_size(r, guided, size, sizeof size);
    if ((double)r->n_parameters >= 70e9 && r->free.cpu_offload) {
        memory_plan offloaded;
        fsdp_config c = given;
        c.cpu_offload = true;
        FSDP_TRY(workload_plan(r->work, &c, &r->world, &offloaded));
        if (plan_fits(&offloaded, r->world.dev, r->limit)) {
            sharding->config.cpu_offload = true;
            snprintf(reason + used, room - used, ", and CPU offload: %s a rank without it, %.2f GiB are available",
                     size, gib(r->limit.device));
            return FSDP_OK;
        }
    }
    FSDP_TRY(search(r, &given, r->free, &found));
    take(&found.fit.config, sharding);
    snprintf(reason, room, "%s: the guide's %s takes %s a rank, %.2f GiB are available (%.2f GiB planned)",
             plan_flags(&found.fit.config, &given, flags, sizeof flags), fsdp_strategy_name(given.strategy), size,
             gib(r->limit.device), gib(taken(r, &found.fit.plan)));
    return FSDP_OK;
}

/* The strategy, checkpointing and what is offloaded. */
static fsdp_status fit_settings(const fit_request *r, assembled_sharding *sharding)
{
    memory_plan plan;
    plan_found found;
    char flags[PLAN_FLAGS], size[128];
    if (r->settings->sharding_strategy == FSDP_STRATEGY_AUTO)
        return take_fastest(r, sharding);
    FSDP_TRY(workload_plan(r->work, &sharding->config, &r->world, &plan));
    if (plan_fits(&plan, r->world.dev, r->limit))
        return FSDP_OK;
    if (r->settings->sharding_strategy == FSDP_STRATEGY_RECOMMENDED)
        return take_instead(r, &plan, sharding);
    say_size(r, &plan, size, sizeof size);
    FSDP_TRY(search(r, &sharding->config, anything(r), &found));
    return error_set(FSDP_ERR_INPUT, "strategy %s takes %s a rank, %.2f GiB are available; this fits: %s (%.2f GiB)",
                     fsdp_strategy_name(sharding->config.strategy), size, gib(r->limit.device),
                     plan_flags(&found.fit.config, &sharding->config, flags, sizeof flags),
                     gib(taken(r, &found.fit.plan)));
}

/* What fits besides is found after the rest. */
static fsdp_status keep_residents(const fit_request *r, assembled_sharding *sharding)
{
    fsdp_config *c = &sharding->config;
    if (!c->cpu_offload || !r->free.cpu_offload_resident || c->cpu_offload_resident > 0) /* the search has done it */
        return FSDP_OK;
    FSDP_TRY(plan_residents(r->work, &r->world, r->limit, c));
    size_t used = strlen(sharding->reason), room = sizeof sharding->reason;
    if (c->cpu_offload_resident > 0)
        snprintf(sharding->reason + used, room - used,
                 "%sup to %d %% of what is offloaded fits on the device and stays", used > 0 ? "; " : "",
                 c->cpu_offload_resident);
    return FSDP_OK;
}

fsdp_status fit_sharding(const fit_request *r, assembled_sharding *sharding)
{
    FSDP_TRY(fit_settings(r, sharding));
    FSDP_TRY(keep_residents(r, sharding));
    return r->free.fp8_weights ? plan_codes(r->work, &r->world, r->limit, &sharding->config) : FSDP_OK;
}
