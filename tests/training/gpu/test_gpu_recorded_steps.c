/* On one GPU: steps that are recorded and launched have the bits of steps that run plainly, however micro-batches add
 * up. tests/training/test_recorded_steps.c claims the same of a device that records on the CPU. */
#include "training/gpu/gpu_training.h"

static void assert_recording_changes_nothing(training *t, const char *what)
{
    t->plainly = true;
    training_result plain = gpu_run(t);
    t->plainly = false;
    training_result recorded = gpu_run(t);
    for (int i = 0; i < TRAINING_STEPS; i++) {
        if (plain.norm[i] != recorded.norm[i] || plain.loss[i] != recorded.loss[i])
            fail_msg("%s, %s, %d micro-batches, step %d: norm %.9g plainly, %.9g recorded; loss %.9g, %.9g", what,
                     fsdp_strategy_name(t->config.strategy), t->micro_batches, i, plain.norm[i], recorded.norm[i],
                     plain.loss[i], recorded.loss[i]);
    }
    assert_true(plain.hash == recorded.hash);
}

static void accumulated_gradients_have_the_same_bits_recorded(void **state)
{
    (void)state;
    for (int strategy = FSDP_FULL; strategy <= FSDP_NO_SHARD; strategy++) {
        for (int variant = 0; variant < 3; variant++) {
            for (int micro_batches = 1; micro_batches <= 4; micro_batches++) {
                training t = gpu_training(TRAIN_LLAMA, 1, (fsdp_strategy)strategy);
                t.config.deterministic = true;
                t.config.param_dtype = FSDP_BF16;
                t.config.reduce_dtype = variant == 0 ? FSDP_F32 : FSDP_BF16;
                t.config.sync_each_micro_batch = variant != 2;
                t.micro_batches = micro_batches;
                assert_recording_changes_nothing(&t, variant == 2 ? "the last reduced" : "each reduced");
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulated_gradients_have_the_same_bits_recorded),
    };
    int missing = gpu_missing();
    return missing ? missing : cmocka_run_group_tests(tests, NULL, NULL);
}
