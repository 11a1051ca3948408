/* Layers in 8 bits on a GPU, over NCCL: weights that are rounded once a step, and gathered so, have the bits of
 * rounding at each use, and ranks follow one. All ranks share the first card. */
#include "training/gpu/gpu_training.h"

static training fp8_training(int ranks, fsdp_strategy strategy)
{
    training t = gpu_training(TRAIN_LLAMA, ranks, strategy);
    t.config.param_dtype = FSDP_BF16;
    t.config.fp8 = FSDP_FP8_HYBRID;
    t.config.deterministic = true;
    return t;
}

static void gathered_in_8_bits_they_have_the_bits_of_rounding_at_each_use(void **state)
{
    static const struct {
        int ranks;
        fsdp_strategy strategy;
    } cases[] = {{1, FSDP_FULL}, {2, FSDP_FULL}, {4, FSDP_FULL}, {2, FSDP_SHARD_OP}};
    training_result alone;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases;
         i++) { /* of four ranks each has 72 tokens, no multiple of 16 */
        training t = fp8_training(cases[i].ranks, cases[i].strategy);
        t.config.fp8_weights = FSDP_FP8_WEIGHTS_EACH_USE;
        uint64_t hash = gpu_run(&t).hash;
        t.config.fp8_weights = FSDP_FP8_WEIGHTS_EACH_STEP;
        training_result r = gpu_run(&t);
        alone = i == 0 ? r : alone;
        double worst = 0; /* x and gradients are measured rank by rank */
        for (int k = 0; k < TRAINING_STEPS; k++)
            worst = fmax(worst, fabs(r.loss[k] - alone.loss[k]) / alone.loss[k]);
        print_message("%d ranks, %s: loss %.6f to %.6f, within %.1e of one rank; %s\n", cases[i].ranks,
                      fsdp_strategy_name(cases[i].strategy), r.loss[0], r.loss[TRAINING_STEPS - 1], worst,
                      r.hash == hash ? "the same bits" : "other bits");
        assert_true(r.hash == hash && worst < 5e-2);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathered_in_8_bits_they_have_the_bits_of_rounding_at_each_use),
    };
    int missing = gpu_missing();
    return missing ? missing : cmocka_run_group_tests_name("8 bits over NCCL", tests, NULL, NULL);
}
