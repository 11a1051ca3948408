/* Unit policies: defaults, the caller's changes, checks, and what follows for modules, parameters and schedule. */
#include "shard/build/policy.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/hash.h"
#include "shard/offload/offload.h"

static const parameter_residency residencies[] = {[FSDP_RESHARD_AFTER_FORWARD] = RESIDENT_GATHERED,
                                                  [FSDP_RESHARD_AFTER_BACKWARD] = RESIDENT_FORWARD,
                                                  [FSDP_RESHARD_NEVER] = RESIDENT_KEPT};

static fsdp_reshard_when reshard_of(fsdp_strategy strategy)
{
    switch (strategy_of(strategy)->parameters) {
    case RESIDENT_GATHERED:
        return FSDP_RESHARD_AFTER_FORWARD;
    case RESIDENT_FORWARD:
        return FSDP_RESHARD_AFTER_BACKWARD;
    default:
        return FSDP_RESHARD_NEVER;
    }
}

/* The unit's module; of merged units the first. */
static fsdp_module *module_of(const wrap_result *wrapped, int index)
{
    for (int i = 0; i < wrapped->n_modules; i++) {
        if (wrapped->modules[i].unit == index)
            return wrapped->modules[i].module;
    }
    return NULL;
}

static fsdp_unit_policy default_policy(const fsdp_model *m, const fsdp_module *module, int index)
{
    fsdp_checkpointing kind = m->config.checkpointing;
    fsdp_strategy strategy = m->policies[index].strategy; /* of choose_strategies */
    return (fsdp_unit_policy){.size = sizeof(fsdp_unit_policy),
                              .param_dtype = m->config.param_dtype,
                              .reduce_dtype = m->config.reduce_dtype,
                              .strategy = strategy,
                              .shard_group_size = m->config.shard_group_size,
                              .reshard = reshard_of(strategy),
                              .checkpointing = !module->checkpoint            ? FSDP_CHECKPOINT_NONE
                                               : kind == FSDP_CHECKPOINT_NONE ? FSDP_CHECKPOINT_FULL
                                                                              : kind,
                              .cpu_offload = m->offloaded[index]};
}

/* Of the unit's strategy and groups; `n_shards` ranks shard it. */
static fsdp_status check_groups(const char *name, const fsdp_unit_policy *p, int n_shards)
{
    if (p->strategy == FSDP_NO_SHARD && p->reshard != FSDP_RESHARD_NEVER)
        return error_set(FSDP_ERR_INPUT,
                         "policy of unit %s: with no_shard every rank has all parameters; they cannot be resharded. "
                         "Choose a strategy that shards them, or leave `reshard` as it is",
                         name);
    if (p->reshard_group_size < 0 || (p->reshard_group_size > 0 && n_shards % p->reshard_group_size != 0))
        return error_set(FSDP_ERR_INPUT,
                         "policy of unit %s: a smaller group of %d ranks does not divide the %d ranks that shard the "
                         "unit",
                         name, p->reshard_group_size, n_shards);
    if (p->reshard_group_size > 0 && p->ignored)
        return error_set(FSDP_ERR_INPUT,
                         "policy of unit %s: every rank has all of an ignored unit; a smaller group of %d ranks has "
                         "nothing to keep",
                         name, p->reshard_group_size);
    if (p->reshard_group_size > 0 && p->reshard != FSDP_RESHARD_AFTER_FORWARD)
        return error_set(FSDP_ERR_INPUT,
                         "policy of unit %s: a smaller group of %d ranks keeps what is resharded after forward, and "
                         "this unit's parameters stay; set `reshard` to FSDP_RESHARD_AFTER_FORWARD, or the group to 0",
                         name, p->reshard_group_size);
    return FSDP_OK;
}

static fsdp_status check(const fsdp_model *m, const fsdp_module *module, const char *name, const fsdp_unit_policy *p)
{
    if (p->param_dtype > FSDP_F16)
        return error_set(FSDP_ERR_INPUT, "policy of unit %s: param_dtype must be fp32, bf16 or fp16", name);
    if (p->reduce_dtype > FSDP_F16)
        return error_set(FSDP_ERR_INPUT, "policy of unit %s: reduce_dtype must be fp32, bf16 or fp16", name);
    if (m->config.gradient_dtype != FSDP_F32 && p->reduce_dtype != m->config.gradient_dtype)
        return error_set(FSDP_ERR_INPUT,
                         "policy of unit %s: gradients are kept in %s, which the reduction in %s would round; set "
                         "reduce_dtype to %s too, or gradient_dtype to fp32",
                         name, fsdp_dtype_name(m->config.gradient_dtype), fsdp_dtype_name(p->reduce_dtype),
                         fsdp_dtype_name(m->config.gradient_dtype));
    if ((int)p->strategy < 0 || p->strategy >= FSDP_STRATEGY_COUNT)
        return error_set(FSDP_ERR_INPUT, "policy of unit %s: strategy is %d, which means nothing", name,
                         (int)p->strategy);
    if ((int)p->reshard < 0 || p->reshard > FSDP_RESHARD_NEVER)
        return error_set(FSDP_ERR_INPUT, "policy of unit %s: reshard is %d, which means nothing", name,
                         (int)p->reshard);
    if ((int)p->checkpointing < 0 || p->checkpointing > FSDP_CHECKPOINT_SELECTIVE)
        return error_set(FSDP_ERR_INPUT, "policy of unit %s: checkpointing is %d, which means nothing", name,
                         (int)p->checkpointing);
    if (p->checkpointing != FSDP_CHECKPOINT_NONE && !module->parent)
        return error_set(FSDP_ERR_INPUT,
                         "policy of unit %s: the root module cannot be checkpointed as a whole; checkpoint the units "
                         "within it",
                         name);
    return FSDP_OK;
}

static void apply_to_modules(const fsdp_model *m, const wrap_result *wrapped, int index, fsdp_checkpointing before)
{
    const fsdp_unit_policy *p = &m->policies[index];
    for (int i = 0; i < wrapped->n_modules; i++) {
        fsdp_module *module = wrapped->modules[i].module;
        if (wrapped->modules[i].unit != index)
            continue;
        module->casts_inputs = m->config.cast_inputs;
        module->input_dtype = p->param_dtype;
        if (p->checkpointing == before || !module->parent) /* the root can be merged into another unit */
            continue;
        module->checkpoint = p->checkpointing != FSDP_CHECKPOINT_NONE;
        module->marked = p->checkpointing == FSDP_CHECKPOINT_SELECTIVE ? 1 : -1;
    }
}

static void apply_to_parameters(const fsdp_model *m, int index)
{
    for (int i = 0; i < m->contents.n_parameters; i++) {
        fsdp_parameter *p = m->contents.parameters[i];
        if (p->unit != index)
            continue;
        p->dtype = m->policies[index].param_dtype;
        p->grad_dtype = m->policies[index].reduce_dtype;
        p->trainable &= !m->policies[index].frozen && !m->policies[index].ignored;
    }
}

/* ---- Lists of what is gathered ahead ---- */

static int find_name(const wrap_result *wrapped, const char *name, size_t length)
{
    for (int i = 0; i < wrapped->n_units; i++) {
        if (strlen(wrapped->names[i]) == length && strncmp(wrapped->names[i], name, length) == 0)
            return i;
    }
    return -1;
}

/* Row `unit` of a matrix: which units are gathered when this one begins. */
static fsdp_status read_list(fsdp_model *m, const wrap_result *wrapped, int index, const char *list, bool **matrix)
{
    size_t n = (size_t)wrapped->n_units;
    if (list && !*matrix && !(*matrix = calloc(n * n, sizeof **matrix)))
        return error_set(FSDP_ERR_MEMORY, "prefetch lists: out of host memory");
    for (const char *at = list; at && *at;) {
        size_t word = strcspn(at, ",");
        int named = find_name(wrapped, at, word);
        if (named < 0 || named == index)
            return error_set(FSDP_ERR_INPUT, "policy of unit %s: its prefetch list names %.*s, which is %s",
                             wrapped->names[index], (int)word, at, named < 0 ? "no unit" : "the unit itself");
        if (m->policies[named].strategy == FSDP_NO_SHARD)
            return error_set(FSDP_ERR_INPUT,
                             "policy of unit %s: its prefetch list names %.*s, of which no_shard gathers nothing; take "
                             "it from the list",
                             wrapped->names[index], (int)word, at);
        (*matrix)[(size_t)index * n + (size_t)named] = true;
        at += word + (at[word] == ',');
    }
    return FSDP_OK;
}

/* ---- Strategies by name ---- */

/* What units do before they are asked: the first rule that matches decides. */
static fsdp_status choose_strategies(fsdp_model *m, const wrap_result *wrapped)
{
    fsdp_config *c = &m->config;
    for (int i = 0; i < wrapped->n_units; i++)
        m->policies[i].strategy = c->strategy;
    for (int g = c->n_unit_strategies - 1; g >= 0; g--) {
        strategy_rule rule;
        int matched = 0;
        FSDP_TRY(strategy_rule_parse(c->unit_strategies[g], &rule));
        for (int i = 0; i < wrapped->n_units; i++) {
            if (fnmatch(rule.glob, wrapped->names[i], 0) != 0)
                continue;
            m->policies[i].strategy = rule.strategy;
            matched++;
        }
        if (matched == 0)
            return wrap_no_such_unit("unit_strategies", rule.glob, wrapped->n_units,
                                     (const char *const *)wrapped->names);
    }
    c->unit_strategies = NULL; /* the caller's, and no longer needed */
    c->n_unit_strategies = 0;
    return FSDP_OK;
}

/* ---- All of it ---- */

static fsdp_status allocate(fsdp_model *m, int n)
{
    m->n_policies = n;
    m->policies = calloc((size_t)n, sizeof *m->policies);
    m->shardings = calloc((size_t)n, sizeof *m->shardings);
    m->held = calloc((size_t)n, sizeof *m->held);
    m->residencies = calloc((size_t)n, sizeof *m->residencies);
    m->param_bytes = calloc((size_t)n, sizeof *m->param_bytes);
    m->grad_bytes = calloc((size_t)n, sizeof *m->grad_bytes);
    m->keep_groups = calloc((size_t)n, sizeof *m->keep_groups);
    if (!m->policies || !m->shardings || !m->residencies || !m->param_bytes || !m->grad_bytes || !m->held ||
        !m->keep_groups)
        return error_set(FSDP_ERR_MEMORY, "policies of %d units: out of host memory", n);
    return FSDP_OK;
}

/* How the unit is spread over ranks, and what follows for its parameters and gradients. */
static fsdp_status spread(fsdp_model *m, const char *name, int index)
{
    const fsdp_unit_policy *p = &m->policies[index];
    unit_sharding *s = &m->shardings[index];
    char whose[128] = "";
    if (p->strategy != m->config.strategy || p->shard_group_size != m->config.shard_group_size)
        snprintf(whose, sizeof whose, "policy of unit %s: ", name);
    FSDP_TRY(sharding_find(m, whose, p->strategy, p->shard_group_size, s));
    FSDP_TRY(check_groups(name, p, s->n_shards));
    if (m->shard_weights && s->n_shards > m->n_shard_weights)
        return error_set(FSDP_ERR_INPUT,
                         "policy of unit %s: shard_weights are of the %d shards that the model's strategy makes, and "
                         "this unit has %d; leave the weights out, or choose a strategy with fewer shards",
                         name, m->n_shard_weights, s->n_shards);
    s->whole |= p->ignored;
    bool alias = p->strategy == FSDP_NO_SHARD || p->ignored || (s->n_shards == 1 && m->n_ranks > 1);
    m->residencies[index] = alias ? RESIDENT_ALIAS : residencies[p->reshard];
    if (!alias && p->reshard_group_size == 1) /* each rank keeps all of it */
        m->residencies[index] = RESIDENT_FORWARD;
    else if (p->reshard_group_size < s->n_shards)
        m->keep_groups[index] = p->reshard_group_size;
    m->held[index] = strategy_of(p->strategy)->holds_gradients;
    return FSDP_OK;
}

static fsdp_status apply_one(fsdp_model *m, const wrap_result *wrapped, int index)
{
    fsdp_unit_policy *p = &m->policies[index];
    const fsdp_module *module = module_of(wrapped, index);
    const char *name = wrapped->names[index];
    *p = default_policy(m, module, index);
    const fsdp_unit_policy before = *p;
    if (m->config.policy)
        m->config.policy(module, name, p, m->config.policy_context);
    FSDP_TRY(check(m, module, name, p));
    if (p->reshard == before.reshard)
        p->reshard = reshard_of(p->strategy);
    FSDP_TRY(spread(m, name, index));
    m->offloaded[index] = p->cpu_offload && !p->ignored;
    m->param_bytes[index] = fsdp_dtype_size(p->param_dtype);
    m->grad_bytes[index] = fsdp_dtype_size(p->reduce_dtype);
    apply_to_modules(m, wrapped, index, before.checkpointing);
    apply_to_parameters(m, index);
    return FSDP_OK;
}

fsdp_status policy_apply(fsdp_model *m, const wrap_result *wrapped)
{
    FSDP_TRY(offload_choose(m, wrapped->n_units, (const char *const *)wrapped->names));
    FSDP_TRY(allocate(m, wrapped->n_units));
    FSDP_TRY(choose_strategies(m, wrapped));
    m->module->casts_inputs = m->config.cast_inputs;
    m->module->input_dtype = m->config.param_dtype;
    for (int i = 0; i < wrapped->n_units; i++)
        FSDP_TRY(apply_one(m, wrapped, i));
    for (int i = 0; i < wrapped->n_units; i++) { /* whose lists may name later ones */
        fsdp_unit_policy *p = &m->policies[i];
        FSDP_TRY(read_list(m, wrapped, i, p->forward_prefetch, &m->prefetches[0]));
        FSDP_TRY(read_list(m, wrapped, i, p->backward_prefetch, &m->prefetches[1]));
        p->forward_prefetch = p->backward_prefetch = NULL; /* the caller's, and no longer needed */
    }
    return FSDP_OK;
}

void policy_free(fsdp_model *m)
{
    free(m->policies);
    free(m->shardings);
    free(m->held);
    free(m->residencies);
    free(m->param_bytes);
    free(m->grad_bytes);
    free(m->keep_groups);
    free(m->prefetches[0]);
    free(m->prefetches[1]);
    free(m->offloaded);
}

uint64_t policy_hash(const fsdp_model *m, uint64_t hash)
{
    size_t n = (size_t)m->n_policies;
    for (size_t i = 0; i < n; i++) {
        const fsdp_unit_policy *p = &m->policies[i];
        const uint64_t facts[] = {p->param_dtype, p->reshard,      p->checkpointing,
                                  p->cpu_offload, p->reduce_dtype, (uint64_t)p->reshard_group_size,
                                  p->ignored,     p->strategy,     (uint64_t)m->shardings[i].n_shards};
        hash = hash_bytes(hash, facts, sizeof facts);
    }
    for (int k = 0; k < 2; k++)
        hash = m->prefetches[k] ? hash_bytes(hash, m->prefetches[k], n * n * sizeof(bool)) : hash_u64(hash, 0);
    return hash;
}

fsdp_status model_param_dtype(const fsdp_model *m, fsdp_dtype *out)
{
    *out = m->policies[0].param_dtype;
    for (int i = 1; i < m->n_policies; i++) {
        if (m->policies[i].param_dtype != *out)
            return error_set(FSDP_ERR_UNSUPPORTED, "units compute in %s and in %s", fsdp_dtype_name(*out),
                             fsdp_dtype_name(m->policies[i].param_dtype));
    }
    return FSDP_OK;
}
