/* The naive reference: one process, whole tensors, every operation at once and in double precision, a tape of its own,
 * plain optimizers. Shares nothing with the engine but the parameters' first values. */
#ifndef TESTS_DIFFERENTIAL_REFERENCE_H
#define TESTS_DIFFERENTIAL_REFERENCE_H

#include "differential/support_case.h"

/* Runs the case from the parameters that `engine` began with (its ENTRY_FIRST) and lists the same numbers, of rank 0
 * where ranks have numbers of their own. No dropout. */
void reference_run(const test_case *c, const outcome *engine, outcome *out);

/* NULL when the engine's numbers follow the reference's as closely as the case's precision lets them. */
const char *reference_differs(const test_case *c, const outcome *reference, const outcome *engine, char *text,
                              size_t bytes);

#endif
