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

static void rotate_row(const void *context, int64_t row)
{
    const rope_args *a = context;
    int64_t half = a->head_dim / 2;
    int64_t position = a->positions ? a->positions[row] : row % a->length + a->first_position;
    if (a->positions && (position < 0 || position >= a->n_positions)) {
        memset(element_address(a->x, row * a->row), 0, (size_t)(a->heads * a->head_dim) * fsdp_dtype_size(a->x.dtype));
        return;
    }
    const float *cosine = a->cosine + position * half, *sine = a->sine + position * half;
    for (int64_t head = 0; head < a->heads; head++) {
        for (int64_t first = 0; first < half; first += HALF_MAX)
            rotate(a, row * a->row + head * a->head_dim, first, min_i64(HALF_MAX, half - first), cosine, sine);
    }
}

SIMD_KERNEL(rope, rope_args)
{
    parallel_for(cpu_threads_for(s, a->rows * a->heads * a->head_dim), a->rows, 1, rotate_row, a);
    span_raise_largest(a->x, a->rows * a->row, a->magnitude);
    return FSDP_OK;
}
