/* Memory that a training run takes, against its plan: equal to the byte, for settings drawn at random. */
#include "training/memory/planned_run.h"
#include "support/draw.h"

/* A policy that follows from the unit's name, the number of ranks, and a seed with a bit that allows to offload. */
static void any_policy(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    uint64_t random = (uint64_t)(uintptr_t)context >> 3;
    int ranks = (int)((uintptr_t)context & 7);
    for (; *name; name++)
        random = random * 1099511628211u + (unsigned char)*name;
    p->strategy = draw_below(&random, 2) ? (fsdp_strategy)draw_below(&random, FSDP_STRATEGY_COUNT) : p->strategy;
    p->shard_group_size = ranks % 2 == 0 ? 2 : 1;
    int shards = p->strategy < FSDP_HYBRID ? ranks : p->shard_group_size;
    bool gathers_twice = p->strategy == FSDP_FULL || p->strategy == FSDP_HYBRID;
    if (gathers_twice && shards % 2 == 0 && draw_below(&random, 2))
        p->reshard_group_size = 2;
    else if (p->strategy != FSDP_NO_SHARD && draw_below(&random, 2))
        p->reshard = (fsdp_reshard_when)draw_below(&random, 3);
    if (m->parent)
        p->checkpointing = (fsdp_checkpointing)draw_below(&random, 3);
    p->cpu_offload = (uintptr_t)context & 8 && draw_below(&random, 3) == 0;
    p->reduce_dtype = (fsdp_dtype)draw_below(&random, 3);
    p->ignored = !p->reshard_group_size && draw_below(&random, 6) == 0;
}

/* Any combination that the library takes. */
static run_case random_case(uint64_t *random, int ranks, const int *weights)
{
    static const char *const some[] = {"*layers.1", "*layers.2"};
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    static const char *const frozen[] = {"*norm*", "*self_attn.[qkv]_proj*", "*layers.[02].*", "model.embed*"};
    fsdp_config c = FSDP_CONFIG_INIT;
    bool grouped = ranks == 4 && draw_below(random, 3) == 0;
    c.strategy =
        grouped ? (draw_below(random, 2) ? FSDP_HYBRID : FSDP_HYBRID_ZERO2) : (fsdp_strategy)draw_below(random, 4);
    c.shard_group_size = grouped ? 2 : 0;
    c.wrap = draw_below(random, 4) ? fsdp_wrap_by_type("llama_block") : fsdp_wrap_by_size(20000);
    c.param_dtype = types[draw_below(random, 3)];
    c.reduce_dtype = types[draw_below(random, 3)];
    c.checkpointing = c.wrap.kind == FSDP_WRAP_TYPE ? (fsdp_checkpointing)draw_below(random, 3) : FSDP_CHECKPOINT_NONE;
    c.offload_activations = c.checkpointing != FSDP_CHECKPOINT_NONE && draw_below(random, 2);
    c.cpu_offload = draw_below(random, 3) == 0;
    c.cpu_offload_split = draw_below(random, 2);
    c.cpu_offload_ahead = draw_below(random, 2);
    c.cpu_offload_resident = draw_below(random, 2) * draw_below(random, 101);
    c.cpu_offload_units = some;
    c.n_cpu_offload_units = c.cpu_offload && c.wrap.kind == FSDP_WRAP_TYPE && draw_below(random, 2) ? 2 : 0;
    c.recompute_cheap = draw_below(random, 2);
    c.gather_buffers = 1 + draw_below(random, 3);
    c.forward_prefetch = draw_below(random, 2);
    c.sync_each_micro_batch = draw_below(random, 3) > 0;
    if (c.strategy != FSDP_NO_SHARD && !grouped && draw_below(random, 2))
        c.shard_weights = weights;
    if (draw_below(random, 3) == 0) {
        c.n_freeze = 1 + draw_below(random, 3);
        c.freeze = frozen + draw_below(random, 4 - c.n_freeze + 1);
    }
    if (draw_below(random, 2) == 0) {
        c.policy = any_policy;
        c.policy_context = (void *)(uintptr_t)(draw_below(random, 1 << 20) << 4 | (draw_below(random, 2) << 3) | ranks);
    }
    bool offloads = c.cpu_offload || ((uintptr_t)c.policy_context & 8);
    return (run_case){.config = c,
                      .batch = 1 + draw_below(random, 4),
                      .evaluated = draw_below(random, 2) ? 1 + draw_below(random, MAX_ROWS) : 0,
                      .micro_batches = 1 + draw_below(random, 3),
                      .optimizer = draw_below(random, 3) ? FSDP_ADAMW
                                   : offloads            ? FSDP_SGD
                                   : c.forward_prefetch  ? FSDP_MUON
                                                         : FSDP_ADAFACTOR,
                      .average = draw_below(random, 3) ? 0 : 0.5f,
                      .rank = draw_below(random, 3) || c.n_freeze ? 0 : 1 + draw_below(random, 9)};
}

static void random_settings_take_what_was_planned_to_the_byte(void **state)
{
    (void)state;
    const char *given = getenv("FSDP_TEST_SEED"), *cases = getenv("FSDP_TEST_CASES");
    int first = given ? atoi(given) : 1, n = cases ? atoi(cases) : 48;
    for (int seed = first; seed < first + n; seed++) {
        char name[64];
        uint64_t random = (uint64_t)seed * 977;
        int ranks = 1 + draw_below(&random, 4), weights[4];
        for (int i = 0; i < 4; i++)
            weights[i] = 1 + draw_below(&random, 5);
        run_case c = random_case(&random, ranks, weights);
        snprintf(name, sizeof name, "FSDP_TEST_SEED=%d FSDP_TEST_CASES=1", seed);
        run_one(&c, ranks, name);
    }
}

int main(void)
{
    if (!memory_is_measured())
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_settings_take_what_was_planned_to_the_byte),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
