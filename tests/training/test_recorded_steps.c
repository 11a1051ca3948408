/* Steps whose work is recorded and launched have the bits of steps that run plainly: whole programs on one rank,
 * stretches between events on several. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "training/support_training.h"

/* Runs `t` on the CPU and on the device that records; every loss, norm and parameter is the same. */
static void assert_recording_changes_nothing(training *t, const char *what)
{
    training_result plain, recorded;
    t->device = NULL;
    assert_true(training_run(t, &plain));
    t->device = "recording";
    assert_true(training_run(t, &recorded));
    assert_true(recorded.launches > TRAINING_STEPS);
    for (int i = 0; i < TRAINING_STEPS; i++) {
        if (plain.norm[i] != recorded.norm[i] || plain.loss[i] != recorded.loss[i])
            fail_msg("%s, %s, %d ranks, step %d: norm %.9g plainly, %.9g recorded; loss %.9g, %.9g", what,
                     fsdp_strategy_name(t->config.strategy), t->ranks, i, plain.norm[i], recorded.norm[i],
                     plain.loss[i], recorded.loss[i]);
    }
    assert_true(plain.hash == recorded.hash);
}

static void every_strategy_has_the_same_bits_recorded(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
            training t = training_default(TRAIN_T5, ranks);
            t.config.strategy = (fsdp_strategy)s;
            assert_recording_changes_nothing(&t, "t5");
        }
    }
}

/* Whether a micro-batch adds to earlier ones and whether it is the last changes what a whole program does. */
static void accumulated_gradients_of_low_precision_have_the_same_bits_recorded(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
            for (int sync = 0; sync < 2; sync++) {
                training t = training_default(TRAIN_LLAMA, ranks);
                t.config.strategy = (fsdp_strategy)s;
                t.config.param_dtype = t.config.reduce_dtype = FSDP_BF16;
                t.config.sync_each_micro_batch = sync;
                t.micro_batches = 4;
                assert_recording_changes_nothing(&t, sync ? "each micro-batch reduced" : "the last reduced");
            }
        }
    }
}

static void activations_that_wait_in_host_memory_have_the_same_bits_recorded(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        training t = training_default(TRAIN_LLAMA, ranks);
        t.config.checkpointing = FSDP_CHECKPOINT_FULL;
        t.config.offload_activations = true;
        assert_recording_changes_nothing(&t, "offloaded activations");
    }
}

static void offloaded_units_and_batch_statistics_have_the_same_bits_recorded(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        training t = training_default(TRAIN_CNN, ranks);
        assert_recording_changes_nothing(&t, "cnn");
        t = training_default(TRAIN_LLAMA, ranks);
        t.config.cpu_offload = true;
        assert_recording_changes_nothing(&t, "offloaded units");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_has_the_same_bits_recorded),
        cmocka_unit_test(accumulated_gradients_of_low_precision_have_the_same_bits_recorded),
        cmocka_unit_test(activations_that_wait_in_host_memory_have_the_same_bits_recorded),
        cmocka_unit_test(offloaded_units_and_batch_statistics_have_the_same_bits_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
