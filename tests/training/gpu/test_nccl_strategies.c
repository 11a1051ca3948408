/* Strategies on a GPU, over NCCL, against one rank: all ranks share the first card, so this is about results, not
 * speed. */
#include "training/gpu/gpu_training.h"

static const char *const models[] = {"llama", "t5", "cnn"};

static void every_strategy_follows_one_rank(void **state)
{
    (void)state;
    training one = gpu_training(TRAIN_LLAMA, 1, FSDP_FULL);
    training_result alone = gpu_run(&one);
    assert_true(alone.loss[TRAINING_STEPS - 1] < alone.loss[0]);
    for (int ranks = 2; ranks <= 4; ranks += 2)
        for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
            training t = gpu_training(TRAIN_LLAMA, ranks, (fsdp_strategy)s);
            gpu_run_follows(&t, models[t.model], &alone, 1e-4);
        }
}

static void other_models_follow_one_rank(void **state)
{
    (void)state;
    for (int model = TRAIN_T5; model < TRAIN_MODELS; model++) {
        training one = gpu_training((training_model)model, 1, FSDP_FULL),
                 two = gpu_training((training_model)model, 2, FSDP_FULL);
        training_result alone = gpu_run(&one);
        gpu_run_follows(&two, models[two.model], &alone, 1e-4);
    }
}

static void bf16_with_bf16_reduction_follows_one_rank(void **state)
{
    (void)state;
    training one = gpu_training(TRAIN_LLAMA, 1, FSDP_FULL), two = gpu_training(TRAIN_LLAMA, 2, FSDP_FULL);
    one.config.param_dtype = two.config.param_dtype = FSDP_BF16;
    training_result alone = gpu_run(&one);
    gpu_run_follows(&two, models[two.model], &alone, 2e-2);
    two.config.reduce_dtype = FSDP_BF16;
    gpu_run_follows(&two, models[two.model], &alone, 2e-2);
    two.config.sync_each_micro_batch = true;
    gpu_run_follows(&two, models[two.model], &alone, 2e-2);
}

static void bf16_reduction_follows_one_rank_under_every_strategy(void **state)
{
    (void)state;
    training one = gpu_training(TRAIN_LLAMA, 1, FSDP_FULL);
    one.config.reduce_dtype = FSDP_BF16;
    training_result alone = gpu_run(&one);
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        training t = gpu_training(TRAIN_LLAMA, 4, (fsdp_strategy)s);
        t.config.reduce_dtype = FSDP_BF16;
        gpu_run_follows(&t, "bf16 reduction, llama", &alone, 1e-2);
        t.reduce_accumulation = FSDP_ACCUMULATE_LIBRARY;
        if (s == FSDP_FULL)
            gpu_run_follows(&t, "bf16 reduction by NCCL, llama", &alone, 1e-2);
    }
}

/* In hybrid, sums have groups of their own beside the world's; otherwise they share its memory. */
static void memory_is_planned_to_the_byte(void **state)
{
    (void)state;
    for (int k = 0; k < 8; k++) { /* fp32; values alone, with the sums over replicas, and as the library has it */
        training t = gpu_training(TRAIN_LLAMA, 4, k < 4 ? FSDP_HYBRID : FSDP_FULL);
        t.config.reduce_dtype = k % 4 ? FSDP_BF16 : FSDP_F32;
        t.config.gradient_dtype = k % 4 == 2 ? FSDP_BF16 : FSDP_F32;
        t.micro_batches = k % 4 == 2 ? 1 : 2;
        t.reduce_accumulation = k % 4 == 3 ? FSDP_ACCUMULATE_LIBRARY : FSDP_ACCUMULATE_FP32;
        training_result r = gpu_run(&t);
        print_message("%s, case %d: taken %lld, planned %lld\n", fsdp_strategy_name(t.config.strategy), k % 4,
                      (long long)r.memory, (long long)r.planned_memory);
        assert_int_equal(r.memory, r.planned_memory);
    }
}

/* NCCL's own memory, in whole pages, which the plan counts. */
static void symmetric_memory_follows_one_rank(void **state)
{
    (void)state;
    training one = gpu_training(TRAIN_LLAMA, 1, FSDP_FULL);
    training_result alone = gpu_run(&one);
    static const fsdp_comm_memory memories[] = {FSDP_COMM_MEMORY_SYMMETRIC, FSDP_COMM_MEMORY_COPY_ENGINE};
    for (int i = 0; i < 2; i++) {
        training two = gpu_training(TRAIN_LLAMA, 2, FSDP_FULL), four = gpu_training(TRAIN_LLAMA, 4, FSDP_HYBRID);
        two.comm_memory = four.comm_memory = memories[i];
        four.comm_ctas = 4;
        gpu_run_follows(&two, "symmetric memory, llama", &alone, 1e-4);
        gpu_run_follows(&four, "symmetric memory, llama", &alone, 1e-4);
        training_result r = gpu_run(&two);
        print_message("taken %lld, planned %lld\n", (long long)r.memory, (long long)r.planned_memory);
        assert_int_equal(r.memory, r.planned_memory);
    }
}

static void deterministic_runs_give_the_same_bits(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        training t = gpu_training(TRAIN_LLAMA, ranks, FSDP_FULL);
        t.config.param_dtype = FSDP_BF16;
        t.config.deterministic = true;
        gpu_run_repeats(&t);
    }
}

/* With an argument, only the tests that match it. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_follows_one_rank),
        cmocka_unit_test(other_models_follow_one_rank),
        cmocka_unit_test(bf16_with_bf16_reduction_follows_one_rank),
        cmocka_unit_test(bf16_reduction_follows_one_rank_under_every_strategy),
        cmocka_unit_test(memory_is_planned_to_the_byte),
        cmocka_unit_test(symmetric_memory_follows_one_rank),
        cmocka_unit_test(deterministic_runs_give_the_same_bits),
    };
    int missing = gpu_missing();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return missing ? missing : cmocka_run_group_tests_name("training over NCCL", tests, NULL, NULL);
}
