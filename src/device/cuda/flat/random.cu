/* Random numbers by counter, straight into device memory. Compiled without contraction, so that the bits are the
 * host's. */
#include "base/rng_values.h"
#include "device/cuda/vector.cuh"

#define THREADS 256

/* A thread makes the four numbers of one block of the stream. */
__global__ void __launch_bounds__(THREADS) random_numbers(const random_args a)
{
    const uint64_t first_block = a.first / 4, n_blocks = (a.first + (uint64_t)a.n + 3) / 4 - first_block;
    const rng_key key = {{a.key[0], a.key[1]}};
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < n_blocks; i += (uint64_t)gridDim.x * THREADS) {
        const rng_block block = rng_philox(key, 0, first_block + i);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint64_t index = (first_block + i) * 4 + (uint64_t)j;
            if (index >= a.first && index < a.first + (uint64_t)a.n)
                a.out[index - a.first] = a.normal ? (float)((double)a.a + (double)a.b * rng_normal(block.v[j]))
                                                  : rng_uniform(block.v[j], a.a, a.b);
        }
    }
}

extern "C" cudaError_t launch_random(const launch *l, const random_args *a)
{
    if (a->n > 0)
        random_numbers<<<flat_blocks(l, launch_ceil(a->n, 4) + 1, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}
