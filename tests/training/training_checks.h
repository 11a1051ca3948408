/* Runs of support_training.h that must succeed, and what holds on CPUs and GPUs: all strategies come to the same bits,
 * and layers can be left out of 8 bits by name. */
#ifndef TESTS_TRAINING_TRAINING_CHECKS_H
#define TESTS_TRAINING_TRAINING_CHECKS_H

#include <math.h>

#include "training/support_training.h"

static inline training_result run(const training *t)
{
    training_result r;
    assert_true(training_run(t, &r));
    return r;
}

/* Every strategy, then offload, then checkpointing. */
static inline void expect_same_bits(training t, const char *what)
{
    static const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_SHARD_GRAD_OP, FSDP_SHARD_OP, FSDP_NO_SHARD};
    training_result first = {.hash = 0};
    for (int variant = 0; variant < 6; variant++) {
        t.config.strategy = strategies[variant % 4];
        t.config.cpu_offload = variant == 4;
        t.config.checkpointing = variant == 5 ? FSDP_CHECKPOINT_FULL : FSDP_CHECKPOINT_NONE;
        training_result r = run(&t);
        first = variant == 0 ? r : first;
        assert_true(r.loss[TRAINING_STEPS - 1] < r.loss[0]);
        if (r.hash != first.hash)
            fail_msg("%s on %d ranks: variant %d and full differ", what, t.ranks, variant);
    }
}

/* Of `t`, a LLaMA with layers in 8 bits: those that --fp8_skip names make a difference, and all stay near full
 * precision. */
static inline void expect_layers_left_out(training t)
{
    static const char *const one[] = {"*layers.0.*"};
    training_result whole = run(&t);
    t.config.fp8 = FSDP_FP8_OFF;
    t.sixteens = true;
    training_result plain = run(&t);
    t.config.fp8 = FSDP_FP8_HYBRID;
    t.config.fp8_skip = one;
    t.config.n_fp8_skip = 1;
    training_result part = run(&t);
    assert_true(whole.hash != plain.hash && part.hash != plain.hash && part.hash != whole.hash);
    for (int i = 0; i < TRAINING_STEPS; i++)
        assert_true(fabs(whole.loss[i] - plain.loss[i]) < 0.02 * plain.loss[i]);
    assert_true(whole.loss[TRAINING_STEPS - 1] < whole.loss[0]);
}

#endif
