/* Muon and Adafactor, which know of matrices, on forked ranks: the updates of their papers, the same bits under every
 * strategy and on any number of ranks, and the memory and traffic that the plan says. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#include "training/support_optimizer.h"

/* ---- Muon ---- */

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
static double follow_muon(optimizer_memory *r, const exact_parameter *p, const float *gradient, const float *value,
                          int step, const fsdp_optimizer_config *c)
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

static void muon_updates_as_its_paper_does(void **state)
{
    (void)state;
    fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
    c.kind = FSDP_MUON, c.lr = 0.02f, c.weight_decay = 0.1f;
    optimizer_check_steps(&c, follow_muon);
}

/* ---- Adafactor ---- */

/* Squared gradients as means of rows and columns, or whole for a vector; update = g / sqrt(their estimate), which RMS
 * clips and the parameter's own RMS scales. Weight decay and rate as transformers' Adafactor has them. */
static double follow_adafactor(optimizer_memory *r, const exact_parameter *p, const float *gradient, const float *value,
                               int step, const fsdp_optimizer_config *c)
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

static void adafactor_updates_as_transformers_does(void **state)
{
    (void)state;
    for (int variant = 0; variant < 4; variant++) {
        fsdp_optimizer_config c = FSDP_OPTIMIZER_CONFIG_INIT;
        c.kind = FSDP_ADAFACTOR, c.lr = 0.02f, c.weight_decay = 0.1f;
        c.adafactor_scale = variant & 1;
        c.adafactor_relative_step = variant & 2;
        c.adafactor_clip = variant == 1 ? 0.3f : 1;
        optimizer_check_steps(&c, follow_adafactor);
    }
}

/* ---- Both: the state is the kind ---- */

typedef struct both {
    fsdp_optimizer_kind kind;
    double hybrid; /* how far losses of groups of ranks may be off */
} both;

static void exact_gradients_give_the_bits_of_one_process(void **state)
{
    exact_same_bits_everywhere(((const both *)*state)->kind, 1, 6);
}

static void every_strategy_gives_the_same_bits_and_takes_what_was_planned(void **state)
{
    optimizer_check_strategies(((const both *)*state)->kind);
    optimizer_check_variants(((const both *)*state)->kind);
}

static void groups_of_ranks_follow_one_process(void **state)
{
    optimizer_check_hybrid(((const both *)*state)->kind, ((const both *)*state)->hybrid);
}

static void recorded_steps_and_halved_masters_give_the_same_bits(void **state)
{
    optimizer_check_recorded(((const both *)*state)->kind);
}

static void units_in_host_memory_are_refused(void **state)
{
    optimizer_check_offload_refused(((const both *)*state)->kind);
}

static void moments_and_gradients_of_16_bits_are_refused(void **state)
{
    optimizer_check_halves_refused(((const both *)*state)->kind);
}

static bool all_pass(const char *name, both what)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(exact_gradients_give_the_bits_of_one_process, &what),
        cmocka_unit_test_prestate(every_strategy_gives_the_same_bits_and_takes_what_was_planned, &what),
        cmocka_unit_test_prestate(groups_of_ranks_follow_one_process, &what),
        cmocka_unit_test_prestate(recorded_steps_and_halved_masters_give_the_same_bits, &what),
        cmocka_unit_test_prestate(units_in_host_memory_are_refused, &what),
        cmocka_unit_test_prestate(moments_and_gradients_of_16_bits_are_refused, &what),
    };
    return cmocka_run_group_tests_name(name, tests, NULL, NULL) == 0;
}

int main(void)
{
    const struct CMUnitTest updates[] = {
        cmocka_unit_test(muon_updates_as_its_paper_does),
        cmocka_unit_test(adafactor_updates_as_transformers_does),
    };
    bool passed = cmocka_run_group_tests_name("updates", updates, NULL, NULL) == 0;
    passed &= all_pass("muon", (both){FSDP_MUON, 5e-3}); /* bf16 rounds what differs in the last bit of fp32 apart */
    passed &= all_pass("adafactor", (both){FSDP_ADAFACTOR, 1e-4});
    return !passed;
}
