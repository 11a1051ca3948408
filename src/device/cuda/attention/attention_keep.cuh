/* Dropout on attention weights, tile by tile: the bits of those that stay, in shared memory. */
#ifndef DEVICE_CUDA_ATTENTION_ATTENTION_KEEP_CUH
#define DEVICE_CUDA_ATTENTION_ATTENTION_KEEP_CUH

#include "device/attention_dropout.h"

/* Bit k of keep[q]: the weight of query first_q + q and key first_k + k stays. All threads of the block work on it; the
 * caller puts barriers around. n_keys is at most 64, both it and first_k multiples of 8. */
static __device__ __forceinline__ void fill_keep(const attention_args &a, int64_t b, int64_t head, int64_t first_q,
                                                 int n_queries, int64_t first_k, int n_keys, uint64_t *keep)
{
    const uint32_t threshold = attention_dropout_threshold(a.dropout);
    const rng_key key = {{a.dropout_key[0], a.dropout_key[1]}};
    const uint64_t step = a.scalars->step, first_sample = samples_first(a.scalars, a.batch);
    const int groups = n_keys / DROPOUT_KEYS;
    for (int item = threadIdx.x; item < n_queries * groups; item += blockDim.x) {
        const int query = item / groups, group = item % groups;
        const uint64_t row = attention_dropout_row(&a, first_sample, b, head, first_q + query);
        const rng_block words = rng_philox(key, step, row + (uint64_t)(first_k / DROPOUT_KEYS + group));
        uint32_t bits = 0;
#pragma unroll
        for (int j = 0; j < DROPOUT_KEYS; j++)
            bits |= (uint32_t)attention_dropout_keeps(words, j, threshold) << j;
        ((uint8_t *)(keep + query))[group] = (uint8_t)bits;
    }
}

#endif
