/* The table of strategies and its lookup by name. */
#include "shard/build/strategy.h"

#include <string.h>
#include <strings.h>

#include "base/error.h"

static const strategy_traits table[FSDP_STRATEGY_COUNT] = {
    [FSDP_FULL] = {"full", {"FULL_SHARD", "zero3"}, RESIDENT_GATHERED, true, false, false},
    [FSDP_SHARD_GRAD_OP] = {"shard_grad_op", {"zero2"}, RESIDENT_FORWARD, true, false, false},
    [FSDP_SHARD_OP] = {"shard_op", {"zero1"}, RESIDENT_KEPT, true, true, false},
    [FSDP_NO_SHARD] = {"no_shard", {"ddp", "zero0"}, RESIDENT_ALIAS, false, false, false},
    [FSDP_HYBRID] = {"hybrid", {"HYBRID_SHARD"}, RESIDENT_GATHERED, true, false, true},
    [FSDP_HYBRID_ZERO2] =
        {"hybrid_zero2", {"_HYBRID_SHARD_ZERO2", "HYBRID_SHARD_ZERO2"}, RESIDENT_FORWARD, true, false, true},
};

const strategy_traits *strategy_of(fsdp_strategy s)
{
    return &table[s];
}

fsdp_status strategy_count_shards(fsdp_strategy s, const char *whose, int group_size, int n_ranks, int ranks_per_node,
                                  int *out)
{
    int size = !strategy_of(s)->grouped ? n_ranks : group_size ? group_size : ranks_per_node;
    if (size < 1 || n_ranks % size != 0)
        return error_set(FSDP_ERR_INPUT,
                         "%sshard_group_size %d does not divide the %d ranks of the job: choose one that does", whose,
                         size, n_ranks);
    *out = size;
    return FSDP_OK;
}

const char *fsdp_strategy_name(fsdp_strategy s)
{
    return table[s].name;
}

fsdp_status fsdp_strategy_parse(const char *name, fsdp_strategy *out)
{
    for (int i = 0; i < FSDP_STRATEGY_COUNT; i++) {
        bool match = strcasecmp(name, table[i].name) == 0;
        for (int k = 0; k < 4 && table[i].aliases[k]; k++)
            match |= strcasecmp(name, table[i].aliases[k]) == 0;
        if (match) {
            *out = (fsdp_strategy)i;
            return FSDP_OK;
        }
    }
    return error_set(
        FSDP_ERR_INPUT,
        "sharding strategy \"%s\": full, shard_grad_op, shard_op, no_shard, hybrid and hybrid_zero2 are known", name);
}

fsdp_status strategy_rule_parse(const char *text, strategy_rule *out)
{
    const char *equals = strrchr(text, '=');
    size_t n = equals ? (size_t)(equals - text) : 0;
    if (n == 0 || n >= sizeof out->glob)
        return error_set(FSDP_ERR_INPUT,
                         "unit_strategies: \"%s\" is not GLOB=STRATEGY, a pattern of unit names and a strategy", text);
    memcpy(out->glob, text, n);
    out->glob[n] = '\0';
    return fsdp_strategy_parse(equals + 1, &out->strategy);
}
