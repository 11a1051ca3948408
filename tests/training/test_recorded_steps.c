/* Steps whose work is recorded and launched have the bits of steps that run plainly: whole programs on one rank,
 * stretches between events on several. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include <fsdp/fsdp.h>

#include "shard/model.h"
#include "shard/recording_device.h"
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

/* Halves round ties another way than copies do, so the curves are close and not the same. */
static void masters_as_halves_train_like_whole_ones(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        training_result whole, halves, plain;
        training t = training_default(TRAIN_LLAMA, ranks);
        t.device = "recording";
        t.config.param_dtype = FSDP_BF16;
        assert_true(training_run(&t, &whole));
        t.split_masters = true;
        assert_true(training_run(&t, &halves));
        t.plainly = true;
        assert_true(training_run(&t, &plain));
        for (int i = 0; i < TRAINING_STEPS; i++)
            assert_true(fabs(whole.loss[i] - halves.loss[i]) <= 1e-3 * whole.loss[i]);
        assert_true(halves.launches > TRAINING_STEPS && plain.launches == 0 && plain.hash == halves.hash);
    }
}

/* CUDA's own NaN, put into a weight: what computes has one, and what is read back. */
static void a_nan_in_a_master_kept_as_halves_is_one_everywhere(void **state)
{
    (void)state;
    static const uint32_t nans[] = {0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xffc00000u};
    for (int i = 0; i < 4; i++) {
        fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
        fsdp_config c = FSDP_CONFIG_INIT;
        fsdp_world *w = NULL;
        fsdp_model *m;
        float weights[16], x[4] = {1, 1, 1, 1}, y[4], value;
        wc.threads = 1;
        c.param_dtype = FSDP_BF16;
        memcpy(&value, &nans[i], sizeof value);
        assert_int_equal(recording_world_open(&wc, &w), FSDP_OK);
        recording_split_masters(w->dev);
        assert_int_equal(fsdp_shard(w, fsdp_linear_new(4, 4, false), &c, &m), FSDP_OK);
        model_slice p = model_slice_at(m, 0);
        assert_int_equal(model_write_slice(m, &p, 5, 1, &value), FSDP_OK); /* weight (1, 1) */
        fsdp_tape *t = fsdp_begin_evaluation(m);
        fsdp_tensor *in = fsdp_cast(t, fsdp_input(t, FSDP_F32, 2, (int64_t[]){1, 4}, x), FSDP_BF16);
        fsdp_tensor *out = fsdp_output(t, fsdp_call(fsdp_model_module(m), t, in));
        assert_int_equal(fsdp_evaluate(t), FSDP_OK);
        assert_int_equal(fsdp_read(out, y, 4), FSDP_OK);
        assert_int_equal(fsdp_parameter_read(m, "weight", 0, 16, weights), FSDP_OK);
        for (int k = 0; k < 16; k++)
            assert_int_equal(isnan(weights[k]) != 0, k == 5);
        for (int k = 0; k < 4; k++)
            assert_int_equal(isnan(y[k]) != 0, k == 1);
        fsdp_model_free(m);
        fsdp_world_close(w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_has_the_same_bits_recorded),
        cmocka_unit_test(accumulated_gradients_of_low_precision_have_the_same_bits_recorded),
        cmocka_unit_test(activations_that_wait_in_host_memory_have_the_same_bits_recorded),
        cmocka_unit_test(masters_as_halves_train_like_whole_ones),
        cmocka_unit_test(a_nan_in_a_master_kept_as_halves_is_one_everywhere),
        cmocka_unit_test(offloaded_units_and_batch_statistics_have_the_same_bits_recorded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
