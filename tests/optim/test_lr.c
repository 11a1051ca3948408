/* Learning rates at exact steps: warmup, where each decay begins, passes its middle and ends. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdbool.h>

#include <fsdp/optim.h>

static bool close_to(double got, double wanted)
{
    bool good = fabs(got - wanted) <= 1e-12 * (1 + fabs(wanted));
    if (!good)
        print_error("%.15g, wanted %.15g\n", got, wanted);
    return good;
}

typedef struct point {
    int64_t step;
    double rate;
} point;

typedef struct schedule {
    const char *name;
    fsdp_lr_config config;
    point points[8]; /* until a step below zero */
} schedule;

#define END                                                                                                            \
    {                                                                                                                  \
        -1, 0                                                                                                          \
    }

#define SIZED .size = sizeof(fsdp_lr_config)

static const schedule schedules[] = {
    {"constant", {SIZED, .decay = FSDP_DECAY_CONSTANT, .lr = 2}, {{0, 2}, {1, 2}, {1000000, 2}, END}},
    {"constant after warmup",
     {SIZED, .decay = FSDP_DECAY_CONSTANT, .lr = 2, .warmup = 4},
     {{0, 0.5}, {1, 1}, {2, 1.5}, {3, 2}, {4, 2}, END}},
    {"warmup of one step", {SIZED, .decay = FSDP_DECAY_CONSTANT, .lr = 2, .warmup = 1}, {{0, 2}, {1, 2}, END}},
    {"linear",
     {SIZED, .decay = FSDP_DECAY_LINEAR, .lr = 2, .min_lr = 1, .total = 10},
     {{0, 2}, {1, 1.9}, {5, 1.5}, {9, 1.1}, {10, 1}, {11, 1}, END}},
    {"linear after warmup",
     {SIZED, .decay = FSDP_DECAY_LINEAR, .lr = 2, .warmup = 2, .total = 10},
     {{0, 1}, {1, 2}, {2, 2}, {4, 1.5}, {6, 1}, {10, 0}, {99, 0}, END}},
    {"cosine",
     {SIZED, .decay = FSDP_DECAY_COSINE, .lr = 2, .min_lr = 1, .total = 12},
     {{0, 2}, {3, 1.5 + M_SQRT1_2 / 2}, {4, 1.75}, {6, 1.5}, {8, 1.25}, {12, 1}, {13, 1}, END}},
    {"cosine after warmup",
     {SIZED, .decay = FSDP_DECAY_COSINE, .lr = 2, .warmup = 4, .total = 12},
     {{0, 0.5}, {3, 2}, {4, 2}, {6, 1 + M_SQRT1_2}, {8, 1}, {12, 0}, END}},
    {"cosine, nothing after warmup",
     {SIZED, .decay = FSDP_DECAY_COSINE, .lr = 2, .min_lr = 1, .warmup = 4, .total = 4},
     {{3, 2}, {4, 1}, {5, 1}, END}},
    {"exponential",
     {SIZED, .decay = FSDP_DECAY_EXPONENTIAL, .lr = 2, .gamma = 0.5},
     {{0, 2}, {1, 1}, {2, 0.5}, {10, 2.0 / 1024}, END}},
    {"exponential with warmup and floor",
     {SIZED, .decay = FSDP_DECAY_EXPONENTIAL, .lr = 2, .min_lr = 0.3, .warmup = 2, .gamma = 0.5},
     {{0, 1}, {1, 2}, {2, 2}, {3, 1}, {4, 0.5}, {5, 0.3}, END}},
    {"step",
     {SIZED, .decay = FSDP_DECAY_STEP, .lr = 2, .gamma = 0.5, .step_size = 3},
     {{0, 2}, {2, 2}, {3, 1}, {5, 1}, {6, 0.5}, {9, 0.25}, END}},
    {"step after warmup",
     {SIZED, .decay = FSDP_DECAY_STEP, .lr = 2, .gamma = 0.5, .step_size = 3, .warmup = 2},
     {{0, 1}, {1, 2}, {4, 2}, {5, 1}, {7, 1}, {8, 0.5}, END}},
    {"plateau",
     {SIZED, .decay = FSDP_DECAY_PLATEAU, .lr = 2, .min_lr = 1, .hold = 0.4, .total = 10},
     {{0, 2}, {4, 2}, {5, 2 - 1.0 / 6}, {7, 1.5}, {10, 1}, {11, 1}, END}},
    {"plateau after warmup",
     {SIZED, .decay = FSDP_DECAY_PLATEAU, .lr = 2, .hold = 0.4, .warmup = 2, .total = 10},
     {{0, 1}, {1, 2}, {6, 2}, {8, 1}, {10, 0}, {50, 0}, END}},
    {"plateau that holds to the end",
     {SIZED, .decay = FSDP_DECAY_PLATEAU, .lr = 2, .hold = 1, .total = 10},
     {{0, 2}, {9, 2}, {10, 0}, END}},
    {"plateau that holds nothing",
     {SIZED, .decay = FSDP_DECAY_PLATEAU, .lr = 2, .total = 10},
     {{0, 2}, {5, 1}, {10, 0}, END}},
};

static void rates_are_exact_at_every_turn(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
        const schedule *s = &schedules[i];
        for (const point *p = s->points; p->step >= 0; p++) {
            if (!close_to(fsdp_lr_at(&s->config, p->step), p->rate)) {
                print_error("%s at step %lld\n", s->name, (long long)p->step);
                fail();
            }
        }
    }
}

static void rates_never_rise_after_warmup(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++) {
        const fsdp_lr_config *c = &schedules[i].config;
        for (int64_t step = c->warmup; step < 40; step++) {
            double now = fsdp_lr_at(c, step), next = fsdp_lr_at(c, step + 1);
            assert_true(next <= now && next >= c->min_lr && now <= c->lr);
        }
    }
}

static void schedules_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    const fsdp_lr_config bad[] = {
        {SIZED, .lr = -1},
        {SIZED, .lr = NAN},
        {SIZED, .lr = 1, .min_lr = -1},
        {SIZED, .lr = 1, .min_lr = 2},
        {SIZED, .lr = 1, .warmup = -1},
        {SIZED, .lr = 1, .decay = FSDP_DECAY_STEP, .gamma = 0.5, .step_size = 0},
        {SIZED, .lr = 1, .decay = FSDP_DECAY_EXPONENTIAL, .gamma = 0},
        {SIZED, .lr = 1, .decay = FSDP_DECAY_EXPONENTIAL, .gamma = 1.5},
        {SIZED, .lr = 1, .decay = FSDP_DECAY_STEP, .gamma = NAN, .step_size = 1},
        {SIZED, .lr = 1, .decay = FSDP_DECAY_PLATEAU, .hold = -0.1},
        {SIZED, .lr = 1, .decay = FSDP_DECAY_PLATEAU, .hold = 1.1},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (fsdp_lr_check(&bad[i]) != FSDP_ERR_INPUT) {
            print_error("schedule %zu is accepted\n", i);
            fail();
        }
    }
    for (size_t i = 0; i < sizeof schedules / sizeof schedules[0]; i++)
        assert_int_equal(fsdp_lr_check(&schedules[i].config), FSDP_OK);
    const fsdp_lr_config defaults = FSDP_LR_CONFIG_INIT;
    assert_int_equal(fsdp_lr_check(&defaults), FSDP_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_exact_at_every_turn),
        cmocka_unit_test(rates_never_rise_after_warmup),
        cmocka_unit_test(schedules_that_make_no_sense_are_refused),
    };
    return cmocka_run_group_tests_name("lr", tests, NULL, NULL);
}
