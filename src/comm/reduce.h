/* Arithmetic and copies of collectives on the CPU. The order of every sum is fixed: source 0, 1, ... n-1. The vector
 * width changes with the processor, the bits do not. */
#ifndef COMM_REDUCE_H
#define COMM_REDUCE_H

#include "comm/comm.h"

/* out[i] = reduction over k of sources[k][i], for i in [0, n); with `add`, out[i] += that. `out` may be one of the
 * sources, or `before`, when the dtypes are the same. Fp32, bf16, fp16 on either side; otherwise from == to.
 * `streaming`: write around the caches. */
typedef struct reduce_args {
    fsdp_reduction reduction;
    int n_sources;
    const void *const *sources;
    const void *before; /* a sum so far, of reduce_sum_dtype(from), to which the sources are added; NULL: none */
    fsdp_dtype from, to;
    int64_t n;
    void *out;
    bool add, streaming;
    int workers; /* threads that share the work, where there is enough of it; 0: this one */
} reduce_args;

void reduce_ordered(const reduce_args *a);

/* The dtype that sums of `dtype` have before they are narrowed. */
static inline fsdp_dtype reduce_sum_dtype(fsdp_dtype dtype)
{
    return dtype == FSDP_BF16 || dtype == FSDP_F16 ? FSDP_F32 : dtype;
}

/* memcpy; `streaming` writes around the caches, for data much larger than those; `workers` as above. */
void copy_bytes(void *to, const void *from, size_t bytes, bool streaming, int workers);

#endif
