/* Training runs on the first GPU, which all ranks share, and how their curves are compared. */
#ifndef TESTS_TRAINING_GPU_TRAINING_H
#define TESTS_TRAINING_GPU_TRAINING_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "support/gpu_missing.h"
#include "training/support_training.h"

static inline training gpu_training(training_model model, int ranks, fsdp_strategy strategy)
{
    training t = training_default(model, ranks);
    t.device = "cuda";
    t.config.strategy = strategy;
    if (strategy == FSDP_HYBRID || strategy == FSDP_HYBRID_ZERO2)
        t.config.shard_group_size = 2;
    return t;
}

static inline training_result gpu_run(const training *t)
{
    training_result r;
    assert_true(training_run(t, &r));
    return r;
}

/* Runs `t`, which `what` describes; every loss is within `tolerance` of the reference's, relatively. */
static inline void gpu_run_follows(const training *t, const char *what, const training_result *reference,
                                   double tolerance)
{
    training_result r = gpu_run(t);
    double worst = 0;
    for (int i = 0; i < TRAINING_STEPS; i++)
        worst = fmax(worst, fabs(r.loss[i] - reference->loss[i]) / reference->loss[i]);
    print_message("%s, %d ranks, %s: loss %.6f to %.6f, within %.1e\n", what, t->ranks,
                  fsdp_strategy_name(t->config.strategy), r.loss[0], r.loss[TRAINING_STEPS - 1], worst);
    if (!(worst <= tolerance))
        fail_msg("allowed: %.1e", tolerance);
}

static inline void gpu_run_repeats(const training *t)
{
    training_result first = gpu_run(t), second = gpu_run(t);
    assert_true(first.hash == second.hash);
    for (int i = 0; i < TRAINING_STEPS; i++)
        assert_true(first.loss[i] == second.loss[i] && first.norm[i] == second.norm[i]);
}

#endif
