/* Layers in 8 bits on a GPU, over NCCL: weights that are rounded once a step, and gathered so, have the bits of
 * rounding at each use. All ranks share the first card. */
#include "training/gpu/gpu_training.h"

static training fp8_training(int ranks, fsdp_strategy strategy, fsdp_fp8_weights weights)
{
    training t = gpu_training(TRAIN_LLAMA, ranks, strategy);
    t.config.param_dtype = FSDP_BF16;
    t.config.fp8 = FSDP_FP8_HYBRID;
    t.config.fp8_weights = weights;
    t.config.deterministic = true;
    return t;
}

static void gathered_in_8_bits_they_have_the_bits_of_rounding_at_each_use(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4;
         ranks *= 2) /* 288 tokens a micro-batch: four ranks have 72 each, no multiple of 16 */
        for (int s = FSDP_FULL; s <= (ranks > 1 ? FSDP_SHARD_OP : FSDP_FULL); s++) {
            training t = fp8_training(ranks, (fsdp_strategy)s, FSDP_FP8_WEIGHTS_EACH_USE);
            uint64_t hash = gpu_run(&t).hash;
            t.config.fp8_weights = FSDP_FP8_WEIGHTS_EACH_STEP;
            training_result r = gpu_run(&t);
            print_message("%d ranks, %s: %s\n", ranks, fsdp_strategy_name((fsdp_strategy)s),
                          r.hash == hash ? "the same bits" : "other bits");
            assert_true(r.hash == hash);
            assert_true(r.loss[TRAINING_STEPS - 1] < r.loss[0]);
        }
}

static void ranks_follow_one(void **state)
{
    (void)state;
    training one = fp8_training(1, FSDP_FULL, FSDP_FP8_WEIGHTS_AUTO),
             two = fp8_training(2, FSDP_FULL, FSDP_FP8_WEIGHTS_AUTO);
    training_result alone = gpu_run(&one);
    gpu_run_follows(&two, "llama in 8 bits", &alone, 5e-2); /* x and gradients are measured rank by rank */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathered_in_8_bits_they_have_the_bits_of_rounding_at_each_use),
        cmocka_unit_test(ranks_follow_one),
    };
    int missing = gpu_missing();
    return missing ? missing : cmocka_run_group_tests_name("8 bits over NCCL", tests, NULL, NULL);
}
