/* What every optimizer that knows of matrices promises, for the tests of each. */
#ifndef TESTS_TRAINING_OPTIMIZER_H
#define TESTS_TRAINING_OPTIMIZER_H

#include "training/support_exact.h"
#include "training/support_training.h"

training_result optimizer_run(const training *t);

/* Four strategies on 1 to 3 ranks: the same bits, and the memory and traffic that the plan says. */
void optimizer_check_strategies(fsdp_optimizer_kind kind);
/* The same with adapters, parameter groups, an average of the weights, gradients that are held, and a rank that has
 * no part of small units. */
void optimizer_check_variants(fsdp_optimizer_kind kind);
/* Hybrid strategies against one process: losses within `tolerance`. */
void optimizer_check_hybrid(fsdp_optimizer_kind kind, double tolerance);
/* On a device with graphs, with masters whole and as halves. */
void optimizer_check_recorded(fsdp_optimizer_kind kind);
void optimizer_check_offload_refused(fsdp_optimizer_kind kind);
void optimizer_check_halves_refused(fsdp_optimizer_kind kind); /* moments or gradients of 16 bits */

/* What a reference in double precision remembers of a parameter. */
typedef struct optimizer_memory {
    double value[EXACT_MAX], first[EXACT_MAX], second[EXACT_MAX], rows[EXACT_MAX], columns[EXACT_MAX];
} optimizer_memory;

/* One step from r->value, with `gradient`, to where r->value ought to be; `value` is what the library has. Returns how
 * far it is off, in units of what is allowed. */
typedef double (*optimizer_reference)(optimizer_memory *r, const exact_parameter *p, const float *gradient,
                                      const float *value, int step, const fsdp_optimizer_config *c);
/* Models of some seeds, on one and two ranks, step by step. */
void optimizer_check_steps(const fsdp_optimizer_config *c, optimizer_reference reference);

#endif
