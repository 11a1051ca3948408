/* Offload on a GPU, where the two memories are two and transfers, kernels and the host's optimizer really run beside
 * each other: the curve is that of the run without it, and the same twice. */
#include "training/gpu/gpu_training.h"

#include <string.h>

/* With all units offloaded, and with some. */
static void expect_the_same_curve(training t, double tolerance)
{
    static const char *const some[] = {"*layers.1", "root"};
    training_result plain = gpu_run(&t);
    t.config.cpu_offload = true;
    gpu_run_follows(&t, "all units offloaded", &plain, tolerance);
    t.config.cpu_offload_units = some;
    t.config.n_cpu_offload_units = 2;
    gpu_run_follows(&t, "two units offloaded", &plain, tolerance);
}

static void one_rank_follows_itself_on_the_device(void **state)
{
    (void)state;
    training t = gpu_training(TRAIN_LLAMA, 1, FSDP_FULL);
    expect_the_same_curve(t, 1e-5);
    t.config.param_dtype = FSDP_BF16;
    expect_the_same_curve(t, 2e-2);
    t.micro_batches = 1;
    expect_the_same_curve(t, 2e-2);
}

static void several_ranks_follow_themselves_on_the_device(void **state)
{
    (void)state;
    const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_SHARD_OP, FSDP_NO_SHARD};
    for (int s = 0; s < 3; s++)
        expect_the_same_curve(gpu_training(TRAIN_LLAMA, 2, strategies[s]), 1e-4);
    expect_the_same_curve(gpu_training(TRAIN_LLAMA, 4, FSDP_HYBRID), 1e-4);
}

static void deterministic_runs_give_the_same_bits(void **state)
{
    (void)state;
    training t = gpu_training(TRAIN_LLAMA, 1, FSDP_FULL);
    t.config.param_dtype = FSDP_BF16;
    t.config.deterministic = true;
    t.config.cpu_offload = true;
    gpu_run_repeats(&t);
}

/* What the GPU updates of a unit, and what the processor does, follows from their speed in that very step: no bit may.
 */
static void the_split_of_the_update_changes_no_bit(void **state)
{
    (void)state;
    const fsdp_optimizer_kind kinds[] = {FSDP_ADAMW, FSDP_SGD};
    for (int variant = 0; variant < 6; variant++) {
        training t = gpu_training(TRAIN_LLAMA, 1, FSDP_FULL);
        training_result alone, shared;
        t.config.param_dtype = variant & 1 ? FSDP_BF16 : FSDP_F32;
        t.config.deterministic = true;
        t.config.cpu_offload = true;
        t.optimizer = kinds[variant / 4];
        t.state_dtype = variant & 2 ? FSDP_BF16 : FSDP_F32;
        t.average = variant == 3 ? 0.9f : 0;
        t.config.cpu_offload_split = 0;
        alone = gpu_run(&t);
        t.config.cpu_offload_split = 1;
        shared = gpu_run(&t);
        if (shared.hash != alone.hash || memcmp(shared.loss, alone.loss, sizeof alone.loss) != 0 ||
            shared.average_hash != alone.average_hash)
            fail_msg("variant %d: the split changed something", variant);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_follows_itself_on_the_device),
        cmocka_unit_test(several_ranks_follow_themselves_on_the_device),
        cmocka_unit_test(deterministic_runs_give_the_same_bits),
        cmocka_unit_test(the_split_of_the_update_changes_no_bit),
    };
    int missing = gpu_missing();
    return missing ? missing : cmocka_run_group_tests_name("offload on a GPU", tests, NULL, NULL);
}
