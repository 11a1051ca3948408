/* Layers in 8 bits on a GPU, one rank: what is kept for backward, and where, changes no bit; layers left out by name
 * are; and what is taken is what was planned. */
#include "training/gpu/gpu_training.h"
#include "training/training_checks.h"

static training fp8_training(fsdp_dtype dtype)
{
    training t = gpu_training(TRAIN_LLAMA, 1, FSDP_FULL);
    t.config.fp8 = FSDP_FP8_HYBRID;
    t.config.param_dtype = dtype;
    t.config.deterministic = true;
    return t;
}

static void expect_bits(const training *t, const training_result *wanted, const char *what)
{
    training_result r = gpu_run(t);
    print_message("%s: loss %.6f to %.6f, %lld bytes of %lld planned, %s\n", what, r.loss[0],
                  r.loss[TRAINING_STEPS - 1], (long long)r.memory, (long long)r.planned_memory,
                  r.hash == wanted->hash ? "the same bits" : "other bits");
    assert_true(r.hash == wanted->hash);
    for (int i = 0; i < TRAINING_STEPS; i++)
        assert_true(r.loss[i] == wanted->loss[i]);
    assert_int_equal(r.memory, r.planned_memory);
}

static void checkpointed_layers_keep_every_bit(void **state)
{
    (void)state;
    for (int halves = 0; halves < 2; halves++) {
        for (int samples = 24; samples >= 6; samples -= 18) { /* 288 tokens, then 72: no multiple of 16 */
            training t = fp8_training(halves ? FSDP_BF16 : FSDP_F32);
            t.samples = samples;
            training_result whole = gpu_run(&t);
            expect_bits(&t, &whole, "nothing recomputed, again");
            t.config.checkpointing = FSDP_CHECKPOINT_FULL;
            expect_bits(&t, &whole, "full checkpointing");
            t.config.checkpointing = FSDP_CHECKPOINT_SELECTIVE;
            expect_bits(&t, &whole, "selective checkpointing");
            t.config.checkpointing = FSDP_CHECKPOINT_NONE;
            t.config.recompute_cheap = true;
            expect_bits(&t, &whole, "cheap operations recomputed");
            t.config.fp8_weights = FSDP_FP8_WEIGHTS_EACH_STEP;
            t.config.checkpointing = FSDP_CHECKPOINT_FULL;
            expect_bits(&t, &whole, "weights rounded once a step, full checkpointing");
        }
    }
}

static void layers_are_left_out_by_name(void **state)
{
    (void)state;
    expect_layers_left_out(fp8_training(FSDP_BF16));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(checkpointed_layers_keep_every_bit),
        cmocka_unit_test(layers_are_left_out_by_name),
    };
    int missing = gpu_missing();
    return missing ? missing : cmocka_run_group_tests_name("8 bits on a GPU", tests, NULL, NULL);
}
