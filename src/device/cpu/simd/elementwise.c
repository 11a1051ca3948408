/* Kernels that touch each element once: sums and products of buffers, casts, fills, activations, gated units. */
#include "device/cpu/simd/span.h"

static void axpby_span(const void *context, int64_t first)
{
    const axpby_args *a = context;
    float alpha = a->alpha, beta = a->beta;
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
        return;
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            out[i] = alpha * x[i];
    }
    span_write(a->out, first, n, out, false);
}

SIMD_KERNEL(axpby, axpby_args)
{
    parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, axpby_span, a);
    return FSDP_OK;
}

static void multiply_span(const void *context, int64_t first)
{
    const multiply_args *a = context;
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

SIMD_KERNEL(multiply, multiply_args)
{
    parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, multiply_span, a);
    return FSDP_OK;
}

typedef struct filling {
    _Alignas(64) float values[SPAN]; /* all the same; copies from whole lines are faster */
    const fill_args *args;
} filling;

static void fill_span(const void *context, int64_t first)
{
    const filling *f = context;
    span_write(f->args->out, first, min_i64(SPAN, f->args->n - first), f->values, f->args->add);
}

SIMD_KERNEL(fill, fill_args)
{
    float value = a->alpha * (a->scalar ? *a->scalar : 1.0f);
    filling f = {.args = a};
    for (int i = 0; i < SPAN; i++)
        f.values[i] = value;
    parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, fill_span, &f);
    return FSDP_OK;
}

static void squared_error_backward_span(const void *context, int64_t first)
{
    const squared_error_backward_args *a = context;
    float factor = 2.0f * a->alpha * (a->scalar ? *a->scalar : 1.0f);
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

SIMD_KERNEL(squared_error_backward, squared_error_backward_args)
{
    parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, squared_error_backward_span, a);
    return FSDP_OK;
}
