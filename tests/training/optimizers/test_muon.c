/* Muon on forked ranks: the update that its paper has, the same bits under every strategy and on any number of ranks,
 * and the memory and traffic that the plan says. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "training/support_optimizer.h"

static void orthogonal(int64_t rows, int64_t columns, double *x)
{
    static double next[EXACT_MAX], gram[EXACT_MAX], square[EXACT_MAX];
    double norm = 0;
    for (int64_t i = 0; i < rows * columns; i++)
        norm += x[i] * x[i];
    for (int64_t i = 0; i < rows * columns; i++)
        x[i] /= fmax(sqrt(norm), 1e-7);
    for (int step = 0; step < 5; step++) {
        for (int64_t i = 0; i < rows * rows; i++) {
            gram[i] = 0;
            for (int64_t k = 0; k < columns; k++)
                gram[i] += x[i / rows * columns + k] * x[i % rows * columns + k];
        }
        for (int64_t i = 0; i < rows * rows; i++) {
            square[i] = -4.7750 * gram[i];
            for (int64_t k = 0; k < rows; k++)
                square[i] += 2.0315 * gram[i / rows * rows + k] * gram[k * rows + i % rows];
        }
        for (int64_t i = 0; i < rows * columns; i++) {
            next[i] = 3.4445 * x[i];
            for (int64_t k = 0; k < rows; k++)
                next[i] += square[i / columns * rows + k] * x[k * columns + i % columns];
        }
        memcpy(x, next, (size_t)(rows * columns) * sizeof *x);
    }
}

/* Of a matrix the difference in norm, of all else the largest. */
static double follow(optimizer_memory *r, const exact_parameter *p, const float *gradient, const float *value, int step,
                     const fsdp_optimizer_config *c)
{
    double direction[EXACT_MAX], lr = (double)c->lr, off = 0, moved = 0, most = 0;
    int64_t n = p->rows * p->columns;
    double decay = p->vector ? 0 : (double)c->weight_decay,
           scale = 0.2 * sqrt(fmax((double)p->rows, (double)p->columns));
    for (int64_t i = 0; i < n; i++) {
        double g = (double)gradient[i];
        r->first[i] = p->muon ? 0.95 * r->first[i] + 0.05 * g : 0.9 * r->first[i] + 0.1 * g;
        r->second[i] = 0.999 * r->second[i] + 0.001 * g * g;
        direction[i] = p->muon
                           ? 0.95 * r->first[i] + 0.05 * g
                           : r->first[i] / (1 - pow(0.9, step)) / (sqrt(r->second[i] / (1 - pow(0.999, step))) + 1e-8);
    }
    if (p->muon)
        orthogonal(p->rows, p->columns, direction);
    for (int64_t i = 0; i < n; i++) {
        double before = r->value[i];
        r->value[i] = before * (1 - lr * decay) - lr * (p->muon ? scale : 1) * direction[i];
        off += pow((double)value[i] - r->value[i], 2);
        moved += pow(r->value[i] - before, 2);
        most = fmax(most, fabs((double)value[i] - r->value[i]));
    }
    return p->muon ? sqrt(off / moved) / 0.05 : most / 1e-5;
}

static void the_update_is_that_of_the_paper(void **state)
{
    (void)state;
    fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
    c.kind = FSDP_MUON, c.lr = 0.02f, c.weight_decay = 0.1f;
    optimizer_check_steps(&c, follow);
}

static void exact_gradients_give_the_bits_of_one_process(void **state)
{
    (void)state;
    exact_same_bits_everywhere(FSDP_MUON, 1, 6);
}

static void every_strategy_gives_the_same_bits_and_takes_what_was_planned(void **state)
{
    (void)state;
    optimizer_check_strategies(FSDP_MUON);
    optimizer_check_variants(FSDP_MUON);
}

static void groups_of_ranks_follow_one_process(void **state)
{
    (void)state;
    optimizer_check_hybrid(FSDP_MUON, 5e-3); /* bf16 rounds what differs in the last bit of fp32 apart */
}

static void recorded_steps_and_halved_masters_give_the_same_bits(void **state)
{
    (void)state;
    optimizer_check_recorded(FSDP_MUON);
}

static void units_in_host_memory_are_refused(void **state)
{
    (void)state;
    optimizer_check_offload_refused(FSDP_MUON);
}

static void moments_and_gradients_of_16_bits_are_refused(void **state)
{
    (void)state;
    optimizer_check_halves_refused(FSDP_MUON);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_update_is_that_of_the_paper),
        cmocka_unit_test(exact_gradients_give_the_bits_of_one_process),
        cmocka_unit_test(every_strategy_gives_the_same_bits_and_takes_what_was_planned),
        cmocka_unit_test(groups_of_ranks_follow_one_process),
        cmocka_unit_test(recorded_steps_and_halved_masters_give_the_same_bits),
        cmocka_unit_test(units_in_host_memory_are_refused),
        cmocka_unit_test(moments_and_gradients_of_16_bits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
