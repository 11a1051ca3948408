/* Strategies on a GPU, over NCCL, against one rank: all ranks share the first card, so this is about results, not
 * speed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "training/support_training.h"

static const char *const models[] = {"llama", "t5", "cnn"};

static training on_gpu(training_model model, int ranks, fsdp_strategy strategy)
{
    training t = training_default(model, ranks);
    t.device = "cuda";
    t.config.strategy = strategy;
    if (strategy == FSDP_HYBRID || strategy == FSDP_HYBRID_ZERO2)
        t.config.shard_group_size = 2;
    return t;
}

static training_result run(const training *t)
{
    training_result r;
    assert_true(training_run(t, &r));
    return r;
}

static void assert_follows(const training *t, const training_result *alone, double tolerance)
{
    training_result r = run(t);
    double worst = 0;
    for (int i = 0; i < TRAINING_STEPS; i++)
        worst = fmax(worst, fabs(r.loss[i] - alone->loss[i]) / alone->loss[i]);
    print_message("%s, %d ranks, %s: loss %.6f to %.6f, within %.1e of one rank's\n", models[t->model], t->ranks,
                  fsdp_strategy_name(t->config.strategy), r.loss[0], r.loss[TRAINING_STEPS - 1], worst);
    if (!(worst <= tolerance))
        fail_msg("allowed: %.1e", tolerance);
}

static void every_strategy_follows_one_rank(void **state)
{
    (void)state;
    training one = on_gpu(TRAIN_LLAMA, 1, FSDP_FULL);
    training_result alone = run(&one);
    assert_true(alone.loss[TRAINING_STEPS - 1] < alone.loss[0]);
    for (int ranks = 2; ranks <= 4; ranks += 2)
        for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
            training t = on_gpu(TRAIN_LLAMA, ranks, (fsdp_strategy)s);
            assert_follows(&t, &alone, 1e-4);
        }
}

static void other_models_follow_one_rank(void **state)
{
    (void)state;
    for (int model = TRAIN_T5; model < TRAIN_MODELS; model++) {
        training one = on_gpu((training_model)model, 1, FSDP_FULL), two = on_gpu((training_model)model, 2, FSDP_FULL);
        training_result alone = run(&one);
        assert_follows(&two, &alone, 1e-4);
    }
}

static void bf16_with_bf16_reduction_follows_one_rank(void **state)
{
    (void)state;
    training one = on_gpu(TRAIN_LLAMA, 1, FSDP_FULL), two = on_gpu(TRAIN_LLAMA, 2, FSDP_FULL);
    one.config.param_dtype = two.config.param_dtype = FSDP_BF16;
    training_result alone = run(&one);
    assert_follows(&two, &alone, 2e-2);
    two.config.reduce_dtype = FSDP_BF16;
    assert_follows(&two, &alone, 2e-2);
    two.config.sync_each_micro_batch = true;
    assert_follows(&two, &alone, 2e-2);
}

static void deterministic_runs_give_the_same_bits(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        training t = on_gpu(TRAIN_LLAMA, ranks, FSDP_FULL);
        t.config.param_dtype = FSDP_BF16;
        t.config.deterministic = true;
        training_result first = run(&t), second = run(&t);
        assert_true(first.hash == second.hash);
        for (int i = 0; i < TRAINING_STEPS; i++)
            assert_true(first.loss[i] == second.loss[i] && first.norm[i] == second.norm[i]);
    }
}

int main(void)
{
    if (access("/dev/nvidiactl", R_OK) != 0) {
        printf("no CUDA device\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_follows_one_rank),
        cmocka_unit_test(other_models_follow_one_rank),
        cmocka_unit_test(bf16_with_bf16_reduction_follows_one_rank),
        cmocka_unit_test(deterministic_runs_give_the_same_bits),
    };
    return cmocka_run_group_tests_name("training over NCCL", tests, NULL, NULL);
}
