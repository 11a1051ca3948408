/* Training with the inputs of checkpointed blocks in host memory: the same bits, less of the device's memory, and as
 * much host memory as was planned. On the CPU both kinds are host memory, so all of it runs everywhere. */
#include "training/offload_run.h"

#include <math.h>

#include "training/support_training.h"

static void activations_away_change_no_bit_and_free_the_device(void **state)
{
    (void)state;
    for (int t5 = 0; t5 < 2; t5++) {
        for (int level = FSDP_CHECKPOINT_FULL; level <= FSDP_CHECKPOINT_SELECTIVE; level++) {
            fsdp_config c = FSDP_CONFIG_INIT;
            c.checkpointing = (fsdp_checkpointing)level;
            assert_same_bits_in_less_memory("cpu", t5, c);
            c.param_dtype = FSDP_BF16;
            assert_same_bits_in_less_memory("cpu", t5, c);
        }
    }
}

/* There is nothing to move where nothing is checkpointed. */
static void without_checkpointing_nothing_leaves(void **state)
{
    (void)state;
    fsdp_config c = FSDP_CONFIG_INIT;
    memory_plan plan;
    c.wrap = fsdp_wrap_by_type("llama_block");
    c.offload_activations = true;
    assert_int_equal(train("cpu", false, &c, &plan).host, 0);
    assert_int_equal(plan.host_activations, 0);
}

static void every_strategy_gives_the_same_bits_over_ranks(void **state)
{
    (void)state;
    const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_SHARD_GRAD_OP, FSDP_SHARD_OP, FSDP_NO_SHARD};
    for (int model = TRAIN_LLAMA; model <= TRAIN_T5; model++) {
        training t = training_default((training_model)model, 2);
        training_result kept, moved;
        t.config.checkpointing = FSDP_CHECKPOINT_FULL;
        assert_true(training_run(&t, &kept));
        t.config.offload_activations = true;
        for (int s = 0; s < 4; s++) {
            t.config.strategy = strategies[s];
            t.config.sync_each_micro_batch = s != 1;
            assert_true(training_run(&t, &moved));
            if (s == 1) /* sums over micro-batches before ranks: other roundings */
                assert_true(fabs(moved.loss[TRAINING_STEPS - 1] - kept.loss[TRAINING_STEPS - 1]) < 1e-5);
            else
                assert_true(moved.hash == kept.hash);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            every_strategy_gives_the_same_bits_over_ranks), /* forks: before anything computes on threads */
        cmocka_unit_test(activations_away_change_no_bit_and_free_the_device),
        cmocka_unit_test(without_checkpointing_nothing_leaves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
