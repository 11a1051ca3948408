/* Random words for vector lanes: rng_philox of many blocks at once, the same bits. */
#ifndef DEVICE_CPU_SIMD_PHILOX_H
#define DEVICE_CPU_SIMD_PHILOX_H

#include <stdint.h>

#include "base/rng.h"

/* Lane i < n has block first + i*stride; its word k goes to words[k*row + i], so that 32-bit lanes do all of it. */
static inline void philox_lanes(rng_key key, uint64_t step, uint64_t first, uint64_t stride, int n,
                                uint32_t *restrict words, int row)
{
    uint32_t step_low = (uint32_t)step, step_high = (uint32_t)(step >> 32);
#pragma omp simd
    for (int i = 0; i < n; i++) {
        uint64_t block = first + (uint64_t)i * stride;
        uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
        uint32_t c2 = step_low, c3 = step_high, k0 = key.k[0], k1 = key.k[1];
        for (int round = 0; round < 10; round++) {
            uint32_t high0 = (uint32_t)(((uint64_t)c0 * 0xD2511F53u) >> 32), low0 = c0 * 0xD2511F53u;
            uint32_t high1 = (uint32_t)(((uint64_t)c2 * 0xCD9E8D57u) >> 32), low1 = c2 * 0xCD9E8D57u;
            c0 = high1 ^ c1 ^ k0;
            c2 = high0 ^ c3 ^ k1;
            c1 = low1;
            c3 = low0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        words[i] = c0;
        words[row + i] = c1;
        words[2 * row + i] = c2;
        words[3 * row + i] = c3;
    }
}

#endif
