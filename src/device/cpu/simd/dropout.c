/* Dropout by counter: which elements stay is a pure function of key, step and global sample, so a replayed forward, the
 * backward pass and any split over ranks draw the same. */
#include "device/cpu/simd/philox.h"
#include "device/cpu/simd/span.h"
#include "device/samples.h"

#define PHILOX_BLOCKS (SPAN / 4 + 2)

/* factors[i] = 0 or `scale` for stream positions first .. first+n. */
static void draw_factors(rng_key key, uint64_t step, uint64_t first, int64_t n, float probability, float scale,
                         float *factors)
{
    uint32_t words[4][PHILOX_BLOCKS];
    float drawn[4 * PHILOX_BLOCKS];
    uint64_t first_block = first >> 2;
    int64_t n_blocks = (int64_t)(((first + (uint64_t)n + 3) >> 2) - first_block);
    philox_lanes(key, step, first_block, 1, (int)n_blocks, words[0], PHILOX_BLOCKS);
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
    uint64_t origin = samples_first(a->scalars, a->samples) * (uint64_t)a->sample_numel;
    float scale = a->probability < 1.0f ? 1.0f / (1.0f - a->probability) : 0.0f;
    rng_key key = {{a->key[0], a->key[1]}};
    float x_scratch[SPAN], factors[SPAN], scratch[SPAN];
    draw_factors(key, a->scalars->step, origin + (uint64_t)first, n, a->probability, scale, factors);
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
