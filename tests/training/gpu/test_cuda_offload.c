/* Offload on a GPU, where the two memories are two and transfers, kernels and the host's optimizer really run beside
 * each other: the curve is that of the run without it, and the same twice. */
#include "training/gpu/gpu_training.h"

#include <string.h>

/* With all units offloaded, and then with some where `mixed`. */
static void expect_the_same_curve(training t, bool mixed, double tolerance)
{
    static const char *const some[] = {"*layers.1", "root"};
    training_result plain = gpu_run(&t);
    t.config.cpu_offload = true;
    gpu_run_follows(&t, "all units offloaded", &plain, tolerance);
    t.config.cpu_offload_units = some;
    t.config.n_cpu_offload_units = 2;
    if (mixed)
        gpu_run_follows(&t, "two units offloaded", &plain, tolerance);
}

/* Sums that come back for a second micro-batch, and a gradient that leaves at once. */
static void one_rank_follows_itself_on_the_device(void **state)
{
    (void)state;
    training t = gpu_training(TRAIN_LLAMA, 1, FSDP_FULL);
    t.config.param_dtype = FSDP_BF16;
    expect_the_same_curve(t, true, 1e-3);
    t.micro_batches = 1;
    expect_the_same_curve(t, false, 1e-3);
}

/* Reductions to shards, of gradients held until the last micro-batch, of whole units, and across groups. */
static void several_ranks_follow_themselves_on_the_device(void **state)
{
    (void)state;
    expect_the_same_curve(gpu_training(TRAIN_LLAMA, 2, FSDP_FULL), true, 1e-4);
    expect_the_same_curve(gpu_training(TRAIN_LLAMA, 2, FSDP_SHARD_OP), false, 1e-4);
    expect_the_same_curve(gpu_training(TRAIN_LLAMA, 2, FSDP_NO_SHARD), false, 1e-4);
    expect_the_same_curve(gpu_training(TRAIN_LLAMA, 4, FSDP_HYBRID), false, 1e-4);
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

static void expect_the_same_bits(const training *t, const training_result *alone, const char *what)
{
    training_result other = gpu_run(t);
    if (other.hash != alone->hash || memcmp(other.loss, alone->loss, sizeof alone->loss) != 0 ||
        other.average_hash != alone->average_hash)
        fail_msg("%s in %s with moments in %s, optimizer %d: something changed", what,
                 fsdp_dtype_name(t->config.param_dtype), fsdp_dtype_name(t->state_dtype), (int)t->optimizer);
}

/* What the GPU updates of a unit, what the processor does, and what it does ahead of the norm follow from their speed
 * in that very step: no bit may. Nor may one depend on which units stay on the device. */
static void where_and_when_the_update_is_made_changes_no_bit(void **state)
{
    (void)state;
    static const struct {
        fsdp_dtype param_dtype, state_dtype;
        fsdp_optimizer_kind optimizer;
        float average;
    } cases[] = {{FSDP_F32, FSDP_F32, FSDP_ADAMW, 0},
                 {FSDP_BF16, FSDP_F32, FSDP_ADAMW, 0},
                 {FSDP_BF16, FSDP_BF16, FSDP_ADAMW, 0.9f},
                 {FSDP_BF16, FSDP_F32, FSDP_SGD, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        training t = gpu_training(TRAIN_LLAMA, 1, FSDP_FULL);
        t.config.param_dtype = cases[i].param_dtype;
        t.config.deterministic = true;
        t.config.cpu_offload = true;
        t.optimizer = cases[i].optimizer;
        t.state_dtype = cases[i].state_dtype;
        t.average = cases[i].average;
        training_result alone = gpu_run(&t);
        t.config.cpu_offload_split = true;
        expect_the_same_bits(&t, &alone, "the update shared with the GPU");
        t.config.cpu_offload_ahead = true;
        expect_the_same_bits(&t, &alone, "the update ahead of the norm");
        t.config.cpu_offload_resident = 60;
        expect_the_same_bits(&t, &alone, "some units on the device");
        t.config.cpu_offload = false;
        expect_the_same_bits(&t, &alone, "no offload");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(where_and_when_the_update_is_made_changes_no_bit),
        cmocka_unit_test(one_rank_follows_itself_on_the_device),
        cmocka_unit_test(several_ranks_follow_themselves_on_the_device),
        cmocka_unit_test(deterministic_runs_give_the_same_bits),
    };
    int missing = gpu_missing();
    return missing ? missing : cmocka_run_group_tests_name("offload on a GPU", tests, NULL, NULL);
}
