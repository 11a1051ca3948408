/* Offload on a GPU, where the two memories are two and transfers, kernels and the host's optimizer really run beside
 * each other: the curve is that of the run without it, and the same twice. All ranks share the first card. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "training/support_training.h"

static training on_gpu(int ranks, fsdp_strategy strategy)
{
    training t = training_default(TRAIN_LLAMA, ranks);
    t.device = "cuda";
    t.config.strategy = strategy;
    if (strategy == FSDP_HYBRID)
        t.config.shard_group_size = 2;
    return t;
}

static training_result run(const training *t)
{
    training_result r;
    assert_true(training_run(t, &r));
    return r;
}

/* With all units offloaded, and with some. */
static void expect_the_same_curve(training t, double tolerance)
{
    static const char *const some[] = {"*layers.1", "root"};
    training_result plain = run(&t);
    t.config.cpu_offload = true;
    for (int named = 0; named < 2; named++) {
        t.config.cpu_offload_units = some;
        t.config.n_cpu_offload_units = named ? 2 : 0;
        training_result r = run(&t);
        double worst = 0;
        for (int i = 0; i < TRAINING_STEPS; i++)
            worst = fmax(worst, fabs(r.loss[i] - plain.loss[i]) / plain.loss[i]);
        print_message("%s on %d ranks, %s offloaded: loss %.6f to %.6f, within %.1e of the device's\n",
                      fsdp_strategy_name(t.config.strategy), t.ranks, named ? "two units" : "all units", r.loss[0],
                      r.loss[TRAINING_STEPS - 1], worst);
        if (!(worst <= tolerance))
            fail_msg("allowed: %.1e", tolerance);
    }
}

static void one_rank_follows_itself_on_the_device(void **state)
{
    (void)state;
    training t = on_gpu(1, FSDP_FULL);
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
        expect_the_same_curve(on_gpu(2, strategies[s]), 1e-4);
    expect_the_same_curve(on_gpu(4, FSDP_HYBRID), 1e-4);
}

static void deterministic_runs_give_the_same_bits(void **state)
{
    (void)state;
    training t = on_gpu(1, FSDP_FULL);
    t.config.param_dtype = FSDP_BF16;
    t.config.deterministic = true;
    t.config.cpu_offload = true;
    training_result first = run(&t), second = run(&t);
    assert_true(first.hash == second.hash);
    for (int i = 0; i < TRAINING_STEPS; i++)
        assert_true(first.loss[i] == second.loss[i] && first.norm[i] == second.norm[i]);
}

int main(void)
{
    if (access("/dev/nvidiactl", R_OK) != 0) {
        printf("no CUDA device\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_follows_itself_on_the_device),
        cmocka_unit_test(several_ranks_follow_themselves_on_the_device),
        cmocka_unit_test(deterministic_runs_give_the_same_bits),
    };
    return cmocka_run_group_tests_name("offload on a GPU", tests, NULL, NULL);
}
