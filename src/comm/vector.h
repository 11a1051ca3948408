/* Copies and sums at the speed of the memory, with whatever vectors the processor has. Dtypes and the rest of
 * reductions are reduce.c's. */
#ifndef COMM_VECTOR_H
#define COMM_VECTOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* `streaming` below: write around the caches, for what is larger than those. The stores of one call are in order with
 * whatever follows it. */

/* The two do not overlap. */
void vector_copy(void *to, const void *from, size_t bytes, bool streaming);

/* Beyond this many sources the processor follows no more streams at once: blocks in the cache are better. */
enum { VECTOR_MAX_SOURCES = 8 };

/* out[i] = sources[0][i] + sources[1][i] + ..., in this order; with `add`, out[i] += that. `out` may be one of the
 * sources. False, and nothing done, where the processor has no AVX2 or there are too many sources. */
bool vector_sum(float *out, const float *const *sources, int n_sources, int64_t n, bool add, bool streaming);

#endif
