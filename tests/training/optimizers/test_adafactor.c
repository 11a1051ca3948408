/* Adafactor on forked ranks: the update that transformers has, the same bits under every strategy and on any number of
 * ranks, and the memory and traffic that the plan says. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "training/support_optimizer.h"

/* Squared gradients as means of rows and columns, or whole for a vector; update = g / sqrt(their estimate), which RMS
 * clips and the parameter's own RMS scales. Weight decay and rate as transformers' Adafactor has them. */
static double follow(optimizer_memory *r, const exact_parameter *p, const float *gradient, const float *value, int step,
                     const fsdp_optimizer_config *c)
{
    double beta = 1 - pow(step, -(double)c->adafactor_decay), update[EXACT_MAX], mean = 0, rms = 0, weight = 0,
           most = 0;
    int64_t n = p->rows * p->columns;
    for (int64_t i = 0; i < p->rows && !p->vector; i++) {
        double sum = 0;
        for (int64_t j = 0; j < p->columns; j++)
            sum += pow((double)gradient[i * p->columns + j], 2) + 1e-30;
        r->rows[i] = beta * r->rows[i] + (1 - beta) * sum / (double)p->columns;
        mean += r->rows[i] / (double)p->rows;
    }
    for (int64_t j = 0; j < p->columns && !p->vector; j++) {
        double sum = 0;
        for (int64_t i = 0; i < p->rows; i++)
            sum += pow((double)gradient[i * p->columns + j], 2) + 1e-30;
        r->columns[j] = beta * r->columns[j] + (1 - beta) * sum / (double)p->rows;
    }
    for (int64_t i = 0; i < n; i++) {
        r->second[i] = beta * r->second[i] + (1 - beta) * (pow((double)gradient[i], 2) + 1e-30);
        double square = p->vector ? r->second[i] : r->rows[i / p->columns] / mean * r->columns[i % p->columns];
        update[i] = (double)gradient[i] / sqrt(square);
        rms += update[i] * update[i] / (double)n;
        weight += r->value[i] * r->value[i] / (double)n;
    }
    double lr = c->adafactor_relative_step ? fmin(1e-2, 1 / sqrt(step)) : (double)c->lr;
    lr *= c->adafactor_scale ? fmax(1e-3, sqrt(weight)) : 1;
    for (int64_t i = 0; i < n; i++) {
        double decay = p->vector ? 0 : (double)c->weight_decay;
        double wanted =
            r->value[i] * (1 - lr * decay) - lr * update[i] / fmax(1, sqrt(rms) / (double)c->adafactor_clip);
        most = fmax(most, fabs((double)value[i] - wanted));
    }
    return most / 2e-6;
}

static void the_update_is_that_of_transformers(void **state)
{
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
        c.kind = FSDP_ADAFACTOR, c.lr = 0.02f, c.weight_decay = 0.1f;
        c.adafactor_scale = variant & 1;
        c.adafactor_relative_step = variant & 2;
        c.adafactor_clip = variant == 1 ? 0.3f : 1;
        optimizer_check_steps(&c, follow);
    }
}

static void exact_gradients_give_the_bits_of_one_process(void **state)
{
    (void)state;
    exact_same_bits_everywhere(FSDP_ADAFACTOR, 1, 6);
}

static void every_strategy_gives_the_same_bits_and_takes_what_was_planned(void **state)
{
    (void)state;
    optimizer_check_strategies(FSDP_ADAFACTOR);
    optimizer_check_variants(FSDP_ADAFACTOR);
}

static void groups_of_ranks_follow_one_process(void **state)
{
    (void)state;
    optimizer_check_hybrid(FSDP_ADAFACTOR, 1e-4);
}

static void recorded_steps_and_halved_masters_give_the_same_bits(void **state)
{
    (void)state;
    optimizer_check_recorded(FSDP_ADAFACTOR);
}

static void units_in_host_memory_are_refused(void **state)
{
    (void)state;
    optimizer_check_offload_refused(FSDP_ADAFACTOR);
}

static void moments_and_gradients_of_16_bits_are_refused(void **state)
{
    (void)state;
    optimizer_check_halves_refused(FSDP_ADAFACTOR);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_update_is_that_of_transformers),
        cmocka_unit_test(exact_gradients_give_the_bits_of_one_process),
        cmocka_unit_test(every_strategy_gives_the_same_bits_and_takes_what_was_planned),
        cmocka_unit_test(groups_of_ranks_follow_one_process),
        cmocka_unit_test(recorded_steps_and_halved_masters_give_the_same_bits),
        cmocka_unit_test(units_in_host_memory_are_refused),
        cmocka_unit_test(moments_and_gradients_of_16_bits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
