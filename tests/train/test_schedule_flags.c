/* The learning rate of every step of a run, as the flags say it: each style, its warmup, its end. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support_job.h"

static const double peak = 0.01, pi = 3.14159265358979323846;

static void expect_steps(const job *j, int n)
{
    if (j->status != FSDP_OK)
        fail_msg("%s", j->error);
    assert_int_equal(j->n_steps, n);
}

static void expect_lr(const job *j, int step, double lr)
{
    if (fabs(j->steps[step].lr - lr) > 1e-9)
        fail_msg("step %d has learning rate %.9g instead of %.9g", step, j->steps[step].lr, lr);
}

static void constant_stays_and_steps_are_counted(void **state)
{
    job *j = *state;
    RUN(j, "--lr_decay_style=constant", "--max_training_steps=6");
    expect_steps(j, 6);
    for (int i = 0; i < 6; i++)
        expect_lr(j, i, peak);
}

static void linear_falls_to_min_lr(void **state)
{
    job *j = *state;
    RUN(j, "--lr_decay_style=linear", "--max_steps=10", "--min_lr=0.002");
    expect_steps(j, 10);
    for (int i = 0; i < 10; i++)
        expect_lr(j, i, peak + (0.002 - peak) * i / 10);
}

static void cosine_ends_where_lr_decay_iters_says(void **state)
{
    job *j = *state;
    RUN(j, "--lr_decay_style=cosine", "--max_steps=10", "--lr_decay_iters=5", "--min_lr=0.001");
    expect_steps(j, 10);
    for (int i = 0; i < 10; i++)
        expect_lr(j, i, 0.001 + (peak - 0.001) * 0.5 * (1 + cos(pi * (i < 5 ? i : 5) / 5)));
}

static void warmup_below_one_is_a_fraction_of_the_steps_else_steps(void **state)
{
    job *j = *state;
    double by_fraction[10];
    RUN(j, "--lr_decay_style=constant", "--max_steps=10", "--warmup=0.4");
    expect_steps(j, 10);
    for (int i = 0; i < 10; i++)
        by_fraction[i] = j->steps[i].lr;
    RUN(j, "--lr_decay_style=constant", "--max_steps=10", "--warmup=4");
    for (int i = 0; i < 10; i++)
        assert_true(j->steps[i].lr == by_fraction[i]);
    assert_true(by_fraction[0] < by_fraction[1] && by_fraction[1] < by_fraction[2] && by_fraction[2] < by_fraction[3]);
    for (int i = 4; i < 10; i++)
        expect_lr(j, i, peak);
}

static void plateau_holds_its_part_of_the_steps_and_then_falls(void **state)
{
    job *j = *state;
    RUN(j, "--lr_decay_style=plateau", "--plateau=0.5", "--max_steps=10");
    expect_steps(j, 10);
    for (int i = 0; i < 5; i++)
        expect_lr(j, i, peak);
    for (int i = 6; i < 10; i++)
        assert_true(j->steps[i].lr < j->steps[i - 1].lr);
    RUN(j, "--lr_decay_style=plateau", "--plateau=0.2", "--max_steps=10");
    expect_lr(j, 1, peak);
    assert_true(j->steps[4].lr < peak);
}

static void exponential_falls_by_the_same_factor_every_step(void **state)
{
    job *j = *state;
    RUN(j, "--lr_decay_style=exponential", "--lr_gamma=0.8", "--max_steps=10", "--min_lr=0.002");
    expect_steps(j, 10);
    for (int i = 0; i < 10; i++)
        expect_lr(j, i, fmax(0.002, peak * pow(0.8, i)));
}

static void step_style_counts_steps_or_with_epochs_epochs(void **state)
{
    job *j = *state;
    RUN(j, "--lr_decay_style=step", "--lr_step_size=3", "--lr_gamma=0.5", "--max_steps=10");
    expect_steps(j, 10);
    for (int i = 0; i < 10; i++)
        expect_lr(j, i, peak * pow(0.5, i / 3));
    RUN(j, "--lr_decay_style=step", "--lr_step_size=1", "--lr_gamma=0.1", "--epochs=3", "--train_batch_size=10");
    expect_steps(j, 15); /* 50 samples, 5 steps an epoch */
    for (int i = 0; i < 15; i++)
        expect_lr(j, i, peak * pow(0.1, i / 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constant_stays_and_steps_are_counted),
        cmocka_unit_test(linear_falls_to_min_lr),
        cmocka_unit_test(cosine_ends_where_lr_decay_iters_says),
        cmocka_unit_test(warmup_below_one_is_a_fraction_of_the_steps_else_steps),
        cmocka_unit_test(plateau_holds_its_part_of_the_steps_and_then_falls),
        cmocka_unit_test(exponential_falls_by_the_same_factor_every_step),
        cmocka_unit_test(step_style_counts_steps_or_with_epochs_epochs),
    };
    return cmocka_run_group_tests(tests, job_setup, job_teardown);
}
