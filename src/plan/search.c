/* Goes through settings in order of the time they cost. */
#include "plan/search.h"

#include <stdio.h>

#include "base/checked.h"
#include "base/error.h"

static bool is_grouped(fsdp_strategy s)
{
    return s == FSDP_HYBRID || s == FSDP_HYBRID_ZERO2;
}

bool plan_strategy_applies(fsdp_strategy s, const fsdp_config *c, const plan_world *world)
{
    if (!is_grouped(s))
        return true;
    int size = c->shard_group_size ? c->shard_group_size : world->ranks_per_node;
    return size >= 1 && size < world->n_ranks && world->n_ranks % size == 0;
}

fsdp_status plan_strategies(const workload *w, const fsdp_config *config, const plan_world *world, plan_entry *entries)
{
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        fsdp_config c = *config;
        c.strategy = (fsdp_strategy)s;
        entries[s] = (plan_entry){.config = c, .planned = plan_strategy_applies(c.strategy, &c, world)};
        if (entries[s].planned)
            FSDP_TRY(workload_plan(w, &c, world, &entries[s].plan));
    }
    return FSDP_OK;
}

double plan_update_seconds(const memory_plan *p, int ranks_per_node)
{
    return (double)p->host_update_bytes * (ranks_per_node < 1 ? 1 : ranks_per_node) / (HOST_GIGABYTES * 1e9);
}

/* " --flag", " --no_flag" where it was given and is not wanted, or nothing. */
static const char *switched(bool on, bool given, const char *yes, const char *no)
{
    return on ? yes : given ? no : "";
}

const char *plan_flags(const fsdp_config *c, const fsdp_config *given, char *text, size_t bytes)
{
    static const char *const levels[] = {"none", "full", "selective"};
    char resident[40] = "";
    if (c->cpu_offload && c->cpu_offload_resident != given->cpu_offload_resident)
        snprintf(resident, sizeof resident, " --cpu_offload_resident %d", c->cpu_offload_resident);
    bool codes = c->fp8_weights == FSDP_FP8_WEIGHTS_EACH_STEP && c->fp8_weights != given->fp8_weights;
    snprintf(text, bytes, "--sharding_strategy %s --activation_checkpointing %s%s%s%s%s",
             fsdp_strategy_name(c->strategy), levels[c->checkpointing],
             switched(c->offload_activations, given->offload_activations, " --offload_activations",
                      " --no_offload_activations"),
             switched(c->cpu_offload, given->cpu_offload, " --cpu_offload", " --no_cpu_offload"), resident,
             codes ? " --fp8_weights step" : "");
    return text;
}

/* Where the device has no memory of its own, the host's is the same. */
static size_t on_device(const memory_plan *p, const device *dev)
{
    return p->total + (dev->own_memory ? p->libraries : p->host);
}

bool plan_fits(const memory_plan *p, const device *dev, plan_limit limit)
{
    return (limit.device == 0 || on_device(p, dev) <= limit.device) &&
           (!dev->own_memory || limit.host == 0 || p->host <= limit.host);
}

/* More communication costs less than computing forward again if it overlaps with compute, so checkpointing comes after
 * strategies. The host's link is slower than both, and its update slowest. */
static const fsdp_strategy strategies[] = {FSDP_NO_SHARD,      FSDP_SHARD_OP, FSDP_HYBRID_ZERO2,
                                           FSDP_SHARD_GRAD_OP, FSDP_HYBRID,   FSDP_FULL};
static const struct {
    fsdp_checkpointing checkpointing;
    bool offload_activations;
} levels[] = {{FSDP_CHECKPOINT_NONE, false},
              {FSDP_CHECKPOINT_SELECTIVE, false},
              {FSDP_CHECKPOINT_FULL, false},
              {FSDP_CHECKPOINT_SELECTIVE, true},
              {FSDP_CHECKPOINT_FULL, true}};

enum { N_STRATEGIES = sizeof strategies / sizeof *strategies, N_LEVELS = sizeof levels / sizeof *levels };

/* Whether the search may try `c`: only what is free differs from what was given, and nothing contradicts. */
static bool is_allowed(const plan_search *s, const fsdp_config *c)
{
    const fsdp_config *given = s->config;
    if (s->free.strategy && !plan_strategy_applies(c->strategy, c, &s->world)) /* one that was named is tried anyway */
        return false;
    if ((!s->free.strategy && c->strategy != given->strategy) ||
        (!s->free.checkpointing && c->checkpointing != given->checkpointing) ||
        (!s->free.offload_activations && c->offload_activations != given->offload_activations) ||
        (!s->free.cpu_offload && c->cpu_offload != given->cpu_offload))
        return false;
    if (s->free.strategy && given->shard_group_size > 0 && given->n_unit_strategies == 0 && !is_grouped(c->strategy))
        return false;
    if (s->free.strategy && given->shard_weights && c->strategy == FSDP_NO_SHARD)
        return false;
    /* Only repeated blocks are checkpointed, and they are named by type. */
    return c->checkpointing == FSDP_CHECKPOINT_NONE || c->checkpointing == given->checkpointing ||
           c->wrap.kind == FSDP_WRAP_TYPE;
}

/* Called with every allowed setting, the fastest first, until one is taken. */
typedef fsdp_status (*setting_visitor)(const plan_search *s, const plan_entry *e, bool *taken, void *context);

static fsdp_status visit_settings(const plan_search *s, setting_visitor visit, void *context, bool *taken)
{
    *taken = false;
    for (int i = 0; i < 2 * N_LEVELS * N_STRATEGIES && !*taken; i++) {
        int level = i / N_STRATEGIES % N_LEVELS;
        plan_entry e = {.config = *s->config, .planned = true};
        e.config.strategy = strategies[i % N_STRATEGIES];
        e.config.checkpointing = levels[level].checkpointing;
        e.config.offload_activations = levels[level].offload_activations;
        e.config.cpu_offload = i >= N_LEVELS * N_STRATEGIES;
        if (!is_allowed(s, &e.config))
            continue;
        FSDP_TRY(workload_plan(s->work, &e.config, &s->world, &e.plan));
        FSDP_TRY(visit(s, &e, taken, context));
    }
    return FSDP_OK;
}

typedef struct fit_search {
    plan_found *out;
    plan_entry smallest;
} fit_search;

static fsdp_status try_setting(const plan_search *s, const plan_entry *e, bool *taken, void *context)
{
    fit_search *f = context;
    *taken = plan_fits(&e->plan, s->world.dev, s->limit);
    if (*taken)
        f->out->fit = *e;
    else
        f->out->faster = *e;
    if (!f->smallest.planned || e->plan.total < f->smallest.plan.total)
        f->smallest = *e;
    return FSDP_OK;
}

static double gib(size_t bytes)
{
    return (double)bytes / (1 << 30);
}

static fsdp_status nothing_fits(const plan_search *s, const plan_entry *smallest)
{
    char flags[PLAN_FLAGS], host[96] = "";
    size_t taken = on_device(&smallest->plan, s->world.dev);
    if (!smallest->planned)
        return error_set(FSDP_ERR_INPUT, "no setting can be tried: the flags that were given leave nothing to choose");
    if (taken <= s->limit.device || s->limit.device == 0)
        snprintf(host, sizeof host, " and %.2f GiB of host memory, of which %.2f GiB are there",
                 gib(smallest->plan.host), gib(s->limit.host));
    return error_set(
        FSDP_ERR_INPUT,
        "nothing fits %.2f GiB a rank: the smallest setting (%s) takes %.2f GiB%s; use more ranks, a smaller "
        "batch or a shorter context",
        gib(s->limit.device), plan_flags(&smallest->config, s->config, flags, sizeof flags), gib(taken), host);
}

/* What may be taken for speed: the plan does not know what the driver and libraries take later. */
static plan_limit with_room_to_spare(plan_limit limit)
{
    limit.device -= limit.device / 16;
    return limit;
}

fsdp_status plan_codes(const workload *w, const plan_world *world, plan_limit limit, fsdp_config *c)
{
    fsdp_config coded = *c;
    memory_plan p;
    if (c->fp8 == FSDP_FP8_OFF)
        return FSDP_OK;
    coded.fp8_weights = FSDP_FP8_WEIGHTS_EACH_STEP;
    FSDP_TRY(workload_plan(w, &coded, world, &p));
    if (limit.device == 0 || plan_fits(&p, world->dev, with_room_to_spare(limit)))
        *c = coded;
    return FSDP_OK;
}

/* More that stays takes more of the device: halving finds the most. */
fsdp_status plan_residents(const workload *w, const plan_world *world, plan_limit limit, fsdp_config *c)
{
    int most = 100, least = 0;
    limit = with_room_to_spare(limit);
    while (least < most && c->cpu_offload && limit.device > 0) {
        memory_plan p;
        c->cpu_offload_resident = least + (most - least + 1) / 2;
        FSDP_TRY(workload_plan(w, c, world, &p));
        if (plan_fits(&p, world->dev, limit))
            least = c->cpu_offload_resident;
        else
            most = c->cpu_offload_resident - 1;
    }
    c->cpu_offload_resident = least;
    return FSDP_OK;
}

fsdp_status plan_fit(const plan_search *s, plan_found *out)
{
    bool found;
    fit_search f = {.out = out};
    *out = (plan_found){.fit.planned = false};
    FSDP_TRY(visit_settings(s, try_setting, &f, &found));
    out->too_large = !found;
    if (!found)
        return nothing_fits(s, &f.smallest);
    bool residents = s->free.cpu_offload_resident && out->fit.config.cpu_offload;
    if (residents)
        FSDP_TRY(plan_residents(s->work, &s->world, s->limit, &out->fit.config));
    if (s->free.fp8_weights)
        FSDP_TRY(plan_codes(s->work, &s->world, s->limit, &out->fit.config));
    if (!residents && !s->free.fp8_weights)
        return FSDP_OK;
    return workload_plan(s->work, &out->fit.config, &s->world, &out->fit.plan);
}

/* Whether anything fits n ranks, and otherwise, as the message, why not; `too_large`: it can be planned. */
static fsdp_status fits_ranks(const plan_search *s, int n, bool *fits, bool *too_large)
{
    plan_search here = *s;
    plan_found found;
    here.world.n_ranks = n;
    here.world.ranks_per_node = (int)min_i64(s->world.ranks_per_node, n);
    fsdp_status status = plan_fit(&here, &found);
    *fits = status == FSDP_OK;
    *too_large = found.too_large;
    return status == FSDP_ERR_INPUT ? FSDP_OK : status;
}

/* Shards shrink as ranks are added, and nothing that a rank holds grows but by rounding: doubling finds where it fits,
 * halving the first such number. */
fsdp_status plan_fewest_ranks(const plan_search *s, int most, int *n_ranks)
{
    int high = 1, low = 0; /* low ranks do not fit */
    bool fits = false, too_large;
    while (!fits) {
        FSDP_TRY(fits_ranks(s, high, &fits, &too_large));
        if (!fits && high >= most)
            return too_large ? error_set(FSDP_ERR_INPUT, "even %d ranks are too few: %s", most, fsdp_last_error())
                             : FSDP_ERR_INPUT;
        if (!fits) {
            low = high;
            high = (int)min_i64(2 * (int64_t)high, most);
        }
    }
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        FSDP_TRY(fits_ranks(s, middle, &fits, &too_large));
        if (fits)
            high = middle;
        else
            low = middle;
    }
    *n_ranks = high;
    return FSDP_OK;
}
