/* Dropout by counter: which elements stay is a function of key, step and position in the global stream of samples
 * alone, so a replayed forward, the backward pass, any split over ranks and the CPU draw the same. */
#include "device/cuda/vector.cuh"

#include "device/samples.h"

#define THREADS 256

/* A thread serves the four positions of one block of random words. */
__global__ void __launch_bounds__(THREADS) dropout(const dropout_args a)
{
    const uint64_t n = (uint64_t)(a.samples * a.sample_numel);
    const uint64_t origin = samples_first(a.scalars, a.samples) * (uint64_t)a.sample_numel, step = a.scalars->step;
    const float scale = a.probability < 1.0f ? 1.0f / (1.0f - a.probability) : 0.0f;
    const rng_key key = {{a.key[0], a.key[1]}};
    const uint64_t n_blocks = ((origin + n + 3) >> 2) - (origin >> 2);
    for (uint64_t i = blockIdx.x * (uint64_t)THREADS + threadIdx.x; i < n_blocks; i += (uint64_t)gridDim.x * THREADS) {
        const uint64_t block = (origin >> 2) + i;
        const rng_block words = rng_philox(key, step, block);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint64_t position = block * 4 + j;
            if (position < origin || position >= origin + n)
                continue;
            const int64_t at = (int64_t)(position - origin);
            floats<1> x = {{0.0f}};
            if (rng_to_uniform(words.v[j]) >= a.probability)
                x.v[0] = load_one(a.x.p, a.x.dtype, at) * scale;
            store_or_add<DYNAMIC, 1>(a.y, at, x, a.add);
        }
    }
}

extern "C" cudaError_t launch_dropout(const launch *l, const dropout_args *a)
{
    const int64_t n = a->samples * a->sample_numel;
    if (n == 0)
        return cudaSuccess;
    dropout<<<flat_blocks(l, n / 4 + 2, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}
