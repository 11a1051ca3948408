/* Softmax and log-softmax of rows. The softmax inside attention and cross-entropy is theirs; this one is for models
 * that want the probabilities themselves. */
#include "device/cpu/simd/span.h"

static float row_highest(const softmax_args *a, int64_t row)
{
    float scratch[SPAN], highest = -INFINITY;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, row * a->columns + first, n, scratch);
        for (int64_t i = 0; i < n; i++)
            highest = x[i] > highest ? x[i] : highest;
    }
    return highest == -INFINITY ? 0.0f : highest;
}

static float row_denominator(const softmax_args *a, int64_t row, float highest)
{
    float scratch[SPAN];
    double total = 0;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, row * a->columns + first, n, scratch);
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += simd_exp(x[i] - highest);
        total += (double)sum;
    }
    return (float)total;
}

static void softmax_row(const void *context, int64_t row)
{
    const softmax_args *a = context;
    float x_scratch[SPAN], scratch[SPAN];
    float highest = row_highest(a, row), sum = row_denominator(a, row, highest), factor = 1.0f / sum,
          offset = logf(sum);
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t at = row * a->columns + first, n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, at, n, x_scratch);
        float *y = span_target(a->y, at, false, scratch);
        if (a->logarithm) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                y[i] = (x[i] - highest) - offset;
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                y[i] = simd_exp(x[i] - highest) * factor;
        }
        span_write(a->y, at, n, y, false);
    }
}

SIMD_KERNEL(softmax_forward, softmax_args)
{
    parallel_for(cpu_threads_for(s, a->rows * a->columns), a->rows, 1, softmax_row, a);
    return FSDP_OK;
}

/* sum of dy y over a row, or of dy alone for the logarithm. */
static float row_product(const softmax_args *a, int64_t row)
{
    float y_scratch[SPAN], dy_scratch[SPAN];
    double total = 0;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t at = row * a->columns + first, n = min_i64(SPAN, a->columns - first);
        const float *y = span_read(a->y, at, n, y_scratch), *dy = span_read(a->dy, at, n, dy_scratch);
        bool logarithm = a->logarithm;
        double sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += (double)(logarithm ? dy[i] : dy[i] * y[i]);
        total += sum;
    }
    return (float)total;
}

static void softmax_backward_row(const void *context, int64_t row)
{
    const softmax_args *a = context;
    float y_scratch[SPAN], dy_scratch[SPAN], scratch[SPAN], product = row_product(a, row);
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t at = row * a->columns + first, n = min_i64(SPAN, a->columns - first);
        const float *y = span_read(a->y, at, n, y_scratch), *dy = span_read(a->dy, at, n, dy_scratch);
        float *dx = span_target(a->dx, at, a->add_dx, scratch);
        if (a->logarithm) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                dx[i] = dy[i] - simd_exp(y[i]) * product;
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                dx[i] = y[i] * (dy[i] - product);
        }
        span_write(a->dx, at, n, dx, a->add_dx);
    }
}

SIMD_KERNEL(softmax_backward, softmax_args)
{
    parallel_for(cpu_threads_for(s, a->rows * a->columns), a->rows, 1, softmax_backward_row, a);
    return FSDP_OK;
}
