/* Kernels that touch each element once: sums and products of buffers, casts, fills, activations, gated units. */
#include "device/cpu/simd/span.h"

SIMD_KERNEL(axpby, axpby_args)
{
    int threads = cpu_threads_for(s, a->n);
    float alpha = a->alpha, beta = a->beta;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t first = 0; first < a->n; first += SPAN) {
        int64_t n = min_i64(SPAN, a->n - first);
        float x_scratch[SPAN], y_scratch[SPAN], scratch[SPAN];
        const float *x = span_read(a->a, first, n, x_scratch);
        float *out = span_target(a->out, first, false, scratch);
        if (a->b.p) {
            const float *y = span_read(a->b, first, n, y_scratch);
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                out[i] = alpha * x[i] + beta * y[i];
        } else if (alpha == 1.0f) {
            span_write(a->out, first, n, x, false);
            continue;
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                out[i] = alpha * x[i];
        }
        span_write(a->out, first, n, out, false);
    }
    return FSDP_OK;
}

SIMD_KERNEL(multiply, multiply_args)
{
    int threads = cpu_threads_for(s, a->n);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t first = 0; first < a->n; first += SPAN) {
        int64_t n = min_i64(SPAN, a->n - first);
        float x_scratch[SPAN], y_scratch[SPAN], scratch[SPAN];
        const float *x = span_read(a->a, first, n, x_scratch);
        const float *y = span_read(a->b, first, n, y_scratch);
        float *out = span_target(a->out, first, a->add, scratch);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            out[i] = x[i] * y[i];
        span_write(a->out, first, n, out, a->add);
    }
    return FSDP_OK;
}

SIMD_KERNEL(fill, fill_args)
{
    int threads = cpu_threads_for(s, a->n);
    float value = a->alpha * (a->scalar ? *a->scalar : 1.0f);
    float values[SPAN];
    for (int i = 0; i < SPAN; i++)
        values[i] = value;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t first = 0; first < a->n; first += SPAN)
        span_write(a->out, first, min_i64(SPAN, a->n - first), values, a->add);
    return FSDP_OK;
}

SIMD_KERNEL(squared_error_backward, squared_error_backward_args)
{
    int threads = cpu_threads_for(s, a->n);
    float factor = 2.0f * a->alpha * (a->scalar ? *a->scalar : 1.0f);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t first = 0; first < a->n; first += SPAN) {
        int64_t n = min_i64(SPAN, a->n - first);
        float x_scratch[SPAN], y_scratch[SPAN], scratch[SPAN];
        const float *x = span_read(a->x, first, n, x_scratch);
        const float *y = span_read(a->y, first, n, y_scratch);
        float *dx = span_target(a->dx, first, a->add, scratch);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = factor * (x[i] - y[i]);
        span_write(a->dx, first, n, dx, a->add);
    }
    return FSDP_OK;
}
