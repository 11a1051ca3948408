/* Weights that are rounded to 8 bits once a step, and gathered so: the bits are those of rounding at each use, whatever
 * the strategy, the world size and the way of keeping units; memory and traffic are as planned. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include <fsdp/status.h>

#include "training/support_training.h"

static training fp8_training(int ranks)
{
    training t = training_default(TRAIN_LLAMA, ranks);
    t.config.fp8 = FSDP_FP8_HYBRID;
    t.config.param_dtype = ranks % 2 ? FSDP_F32 : FSDP_BF16;
    return t; /* of 288 tokens; with four ranks that is no multiple of 16 each */
}

/* One micro-batch after the other, without units that differ: what is received is known from the plan. */
static void expect_traffic(const training *t, const training_result *r, const char *what)
{
    int64_t totals = 2 * (t->ranks - 1) * 3 * 8 / t->ranks; /* of the norm */
    int64_t gathers = t->config.strategy == FSDP_SHARD_OP ? 1 : t->micro_batches;
    int64_t reductions = t->config.sync_each_micro_batch ? t->micro_batches : 1;
    int64_t step = gathers * r->planned_gathered + reductions * r->planned_reduced + totals + r->planned_update;
    if (r->shard_bytes != TRAINING_COUNTED * step)
        fail_msg("%s on %d ranks received %lld bytes where %lld were planned", what, t->ranks,
                 (long long)r->shard_bytes, (long long)(TRAINING_COUNTED * step));
}

static training_result run(const training *t, const char *what)
{
    static const char *const modes[] = {"auto", "use", "step"};
    training_result r;
    char name[96];
    snprintf(name, sizeof name, "%s, %s", what, modes[t->config.fp8_weights]);
    if (!training_run(t, &r))
        fail_msg("%s on %d ranks failed", name, t->ranks);
    if (r.memory != r.planned_memory)
        fail_msg("%s on %d ranks took %lld bytes where %lld were planned", name, t->ranks, (long long)r.memory,
                 (long long)r.planned_memory);
    if (t->ranks > 1 && !t->config.policy && t->config.n_unit_strategies == 0 && t->config.strategy <= FSDP_NO_SHARD)
        expect_traffic(t, &r, name);
    return r;
}

static void expect_hash(const training_result *r, uint64_t hash, const char *what, int ranks)
{
    if (r->hash != hash)
        fail_msg("%s on %d ranks: not the bits of rounding at each use", what, ranks);
    assert_true(r->loss[TRAINING_STEPS - 1] < r->loss[0]);
}

static void every_strategy_has_the_bits_of_rounding_at_each_use(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++) {
        training t = fp8_training(ranks);
        t.config.fp8_weights = FSDP_FP8_WEIGHTS_EACH_USE;
        uint64_t hash = run(&t, "full").hash;
        t.config.fp8_weights = FSDP_FP8_WEIGHTS_EACH_STEP;
        for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
            t.config.strategy = (fsdp_strategy)s;
            training_result r = run(&t, fsdp_strategy_name((fsdp_strategy)s));
            expect_hash(&r, hash, fsdp_strategy_name((fsdp_strategy)s), ranks);
        }
    }
}

static void nearly_half_the_bytes_are_gathered(void **state)
{
    (void)state;
    training t = fp8_training(2);
    t.config.fp8_weights = FSDP_FP8_WEIGHTS_EACH_USE;
    training_result values = run(&t, "values");
    t.config.fp8_weights = FSDP_FP8_WEIGHTS_AUTO;
    training_result codes = run(&t, "codes");
    /* The table of 61 x 32 stays as it is, beside three layers of 7,680 weights and 64 numbers of norms each. */
    double share = (double)codes.planned_gathered / (double)values.planned_gathered;
    assert_true(share > 0.5 && share < 0.58);
    assert_true(codes.planned_update > 0 && values.planned_update == 0);
    expect_hash(&codes, values.hash, "codes", 2);
}

static void keep_among_two(const fsdp_module *module, const char *name, fsdp_unit_policy *p, void *context)
{
    (void)module, (void)name, (void)context;
    p->reshard_group_size = 2;
}

/* Each against itself with rounding at each use. */
static const struct variant {
    const char *name;
    int ranks;
    fsdp_strategy strategy;
    fsdp_checkpointing checkpointing;
    fsdp_optimizer_kind optimizer;
    bool offload, keep, graphs, mixed, lora, weighted, average, held, halves, overflows, empty;
    int buffers;
} variants[] = {
    {.name = "one unit at a time", .ranks = 2, .buffers = 1, .checkpointing = FSDP_CHECKPOINT_FULL},
    {.name = "all units at a time", .ranks = 3, .buffers = 100},
    {.name = "offload", .ranks = 2, .offload = true},
    {.name = "kept by two ranks", .ranks = 4, .keep = true},
    {.name = "strategies by unit", .ranks = 2, .mixed = true},
    {.name = "hybrid", .ranks = 4, .strategy = FSDP_HYBRID},
    {.name = "graphs", .ranks = 1, .graphs = true},
    {.name = "graphs between gathers", .ranks = 2, .graphs = true, .average = true},
    {.name = "adapters", .ranks = 2, .lora = true},
    {.name = "Muon", .ranks = 2, .optimizer = FSDP_MUON},
    {.name = "Adafactor", .ranks = 2, .optimizer = FSDP_ADAFACTOR},
    {.name = "steps that are left out", .ranks = 2, .overflows = true},
    {.name = "shards of different sizes", .ranks = 3, .weighted = true},
    {.name = "moments of 16 bits, rounded by where an element lies", .ranks = 2, .halves = true},
    {.name = "a rank without any elements", .ranks = 3, .weighted = true, .empty = true},
    {.name = "gradients held", .ranks = 2, .strategy = FSDP_SHARD_OP, .held = true},
};

static training variant_training(const struct variant *v, const fsdp_lora_config *lora)
{
    static const char *const mixed[] = {"*.0=no_shard", "*.1=full"};
    static const int weights[] = {5, 1, 3}, uneven[] = {100000, 1, 1}; /* the last has what is left */
    training t = fp8_training(v->ranks);
    t.config.strategy = v->strategy;
    t.config.shard_group_size = v->strategy == FSDP_HYBRID ? 2 : 0;
    t.config.gather_buffers = v->buffers > 0 ? v->buffers : 2;
    t.config.checkpointing = v->checkpointing;
    t.config.cpu_offload = v->offload;
    t.config.policy = v->keep ? keep_among_two : NULL;
    t.config.unit_strategies = mixed;
    t.config.n_unit_strategies = v->mixed ? 2 : 0;
    t.config.shard_weights = v->empty ? uneven : v->weighted ? weights : NULL;
    t.config.sync_each_micro_batch = !v->held;
    t.optimizer = v->optimizer;
    t.average = v->average ? 0.9f : 0;
    t.state_dtype = v->halves ? FSDP_BF16 : FSDP_F32;
    t.config.decay_vectors = v->halves; /* layers in one unit, norms between their weights */
    t.config.bucket_bytes = v->halves ? 1 << 20 : 0;
    t.lora = v->lora ? lora : NULL;
    t.device = v->graphs ? "recording" : NULL;
    t.split_masters = v->graphs;
    if (v->graphs)
        t.config.param_dtype = FSDP_BF16;
    if (v->overflows) {
        t.config.param_dtype = FSDP_F16;
        t.config.loss_scale = 0x1p26f;
    }
    return t;
}

static void whatever_else_is_chosen_keeps_every_bit(void **state)
{
    (void)state;
    fsdp_lora_config lora = FSDP_LORA_CONFIG_INIT;
    lora.rank = 3, lora.alpha = 12;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct variant *v = &variants[i];
        training t = variant_training(v, &lora);
        t.config.fp8_weights = FSDP_FP8_WEIGHTS_EACH_USE;
        training_result each_use = run(&t, v->name);
        t.config.fp8_weights = FSDP_FP8_WEIGHTS_EACH_STEP;
        training_result r = run(&t, v->name);
        expect_hash(&r, each_use.hash, v->name, v->ranks);
        assert_true(r.average_hash == each_use.average_hash);
        assert_int_equal(r.launches > 0, v->graphs);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_has_the_bits_of_rounding_at_each_use),
        cmocka_unit_test(nearly_half_the_bytes_are_gathered),
        cmocka_unit_test(whatever_else_is_chosen_keeps_every_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
