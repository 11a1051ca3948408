/* Dropout by counter: which elements stay is a pure function of key, step and global sample, so a replayed forward, the
 * backward pass and any split over ranks draw the same. */
#include "device/cpu/simd/span.h"

#include "base/rng.h"

#define PHILOX_BLOCKS (SPAN / 4 + 2)

/* rng_philox for n blocks from `first` on, laid out so that 32-bit lanes do all of it: words[k][i] is word k of block
 * i. */
static void philox_blocks(rng_key key, uint64_t step, uint64_t first, int64_t n, uint32_t words[4][PHILOX_BLOCKS])
{
    uint32_t first_low = (uint32_t)first, first_high = (uint32_t)(first >> 32);
    uint32_t step_low = (uint32_t)step, step_high = (uint32_t)(step >> 32);
#pragma omp simd
    for (int32_t i = 0; i < (int32_t)n; i++) {
        uint32_t c0 = first_low + (uint32_t)i, c1 = first_high + (c0 < first_low ? 1u : 0u);
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
        words[0][i] = c0;
        words[1][i] = c1;
        words[2][i] = c2;
        words[3][i] = c3;
    }
}

/* factors[i] = 0 or `scale` for stream positions first .. first+n. */
static void draw_factors(rng_key key, uint64_t step, uint64_t first, int64_t n, float probability, float scale,
                         float *factors)
{
    uint32_t words[4][PHILOX_BLOCKS];
    float drawn[4 * PHILOX_BLOCKS];
    uint64_t first_block = first >> 2;
    int64_t n_blocks = (int64_t)(((first + (uint64_t)n + 3) >> 2) - first_block);
    philox_blocks(key, step, first_block, n_blocks, words);
    for (int64_t i = 0; i < n_blocks; i++) {
        for (int k = 0; k < 4; k++)
            drawn[4 * i + k] = rng_to_uniform(words[k][i]);
    }
    const float *mine = drawn + (first & 3);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        factors[i] = mine[i] >= probability ? scale : 0.0f;
}

static void dropout_span(const void *context, int64_t first)
{
    const dropout_args *a = context;
    int64_t n = min_i64(SPAN, a->samples * a->sample_numel - first);
    uint64_t origin = a->numbers->first_sample * (uint64_t)a->sample_numel;
    float scale = a->probability < 1.0f ? 1.0f / (1.0f - a->probability) : 0.0f;
    rng_key key = {{a->key[0], a->key[1]}};
    float x_scratch[SPAN], factors[SPAN], scratch[SPAN];
    draw_factors(key, a->numbers->step, origin + (uint64_t)first, n, a->probability, scale, factors);
    const float *x = span_read(a->x, first, n, x_scratch);
    float *y = span_target(a->y, first, a->add, scratch);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = factors[i] != 0.0f ? x[i] * factors[i] : 0.0f;
    span_write(a->y, first, n, y, a->add);
}

SIMD_KERNEL(dropout, dropout_args)
{
    int64_t numel = a->samples * a->sample_numel;
    parallel_for(cpu_threads_for(s, numel), numel, SPAN, dropout_span, a);
    return FSDP_OK;
}
