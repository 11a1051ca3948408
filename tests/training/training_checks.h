/* Runs of support_training.h that must succeed, and the claim that all strategies come to the same bits. */
#ifndef TESTS_TRAINING_TRAINING_CHECKS_H
#define TESTS_TRAINING_TRAINING_CHECKS_H

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

#endif
