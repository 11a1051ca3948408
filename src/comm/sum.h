/* The sum that gradients take: fp32, every source read once, through registers, straight into the result. Other dtypes
 * and reductions are reduce.c's, which falls back to blocks where this has no instructions for it. */
#ifndef COMM_SUM_H
#define COMM_SUM_H

#include <stdbool.h>
#include <stdint.h>

/* Beyond this many sources the processor follows no more streams at once: blocks are better. */
enum { SUM_MOST_SOURCES = 8 };

/* out[i] = sources[0][i] + sources[1][i] + ..., in this order; with `add`, out[i] += that. `out` may be one of the
 * sources. `streaming`: write around the caches. False, and nothing done, where the processor has no AVX2. */
bool sum_f32(float *out, const float *const *sources, int n_sources, int64_t n, bool add, bool streaming);

#endif
