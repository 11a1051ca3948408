/* Rotary position embedding, in place on the leading heads of each row. */
#include "device/cpu/simd/span.h"

#define HALF_MAX 512 /* pairs handled at a time */

static void rotate(const rope_args *a, int64_t at, int64_t first, int64_t n, const float *cosine, const float *sine)
{
    float low_scratch[HALF_MAX], high_scratch[HALF_MAX];
    int64_t low_at = at + first, high_at = low_at + a->head_dim / 2;
    float sign = a->inverse ? -1.0f : 1.0f;
    const float *low = span_read(a->x, low_at, n, low_scratch), *high = span_read(a->x, high_at, n, high_scratch);
    float *low_out = span_target(a->x, low_at, false, low_scratch);
    float *high_out = span_target(a->x, high_at, false, high_scratch);
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float c = cosine[first + i], q = sign * sine[first + i], l = low[i], h = high[i];
        low_out[i] = l * c - h * q;
        high_out[i] = h * c + l * q;
    }
    span_write(a->x, low_at, n, low_out, false);
    span_write(a->x, high_at, n, high_out, false);
}

SIMD_KERNEL(rope, rope_args)
{
    int64_t half = a->head_dim / 2;
    int threads = cpu_threads_for(s, a->rows * a->heads * a->head_dim);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t row = 0; row < a->rows; row++) {
        int64_t position = row % a->length + a->first_position;
        const float *cosine = a->cosine + position * half, *sine = a->sine + position * half;
        for (int64_t head = 0; head < a->heads; head++) {
            for (int64_t first = 0; first < half; first += HALF_MAX)
                rotate(a, row * a->row + head * a->head_dim, first, min_i64(HALF_MAX, half - first), cosine, sine);
        }
    }
    return FSDP_OK;
}
