/* Functions of one element, forward and backward, by the C library: exact to the last places, the same bits at every
 * instruction set. What a model spends time on (silu, gelu, softmax) has faster kernels of its own. */
#include "device/cpu/simd/span.h"

#include "device/element_math.h"

static void map_values(map_kind kind, float power, int64_t n, const float *x, float *y)
{
    for (int64_t i = 0; kind == MAP_EXP && i < n; i++)
        y[i] = expf(x[i]);
    for (int64_t i = 0; kind == MAP_LOG && i < n; i++)
        y[i] = logf(x[i]);
    for (int64_t i = 0; kind == MAP_SQRT && i < n; i++)
        y[i] = sqrtf(x[i]);
    for (int64_t i = 0; kind == MAP_SIGMOID && i < n; i++)
        y[i] = sigmoid_of(x[i]);
    for (int64_t i = 0; kind == MAP_TANH && i < n; i++)
        y[i] = tanhf(x[i]);
    for (int64_t i = 0; kind == MAP_SOFTPLUS && i < n; i++)
        y[i] = softplus_of(x[i]);
    for (int64_t i = 0; kind == MAP_POWER && i < n; i++)
        y[i] = powf(x[i], power);
}

static void map_forward_span(const void *context, int64_t first)
{
    const map_args *a = context;
    int64_t n = min_i64(SPAN, a->n - first);
    float x_scratch[SPAN], scratch[SPAN];
    const float *x = span_read(a->x, first, n, x_scratch);
    float *y = span_target(a->y, first, false, scratch);
    map_values(a->kind, a->power, n, x, y);
    span_write(a->y, first, n, y, false);
}

SIMD_KERNEL(map_forward, map_args)
{
    parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, map_forward_span, a);
    return FSDP_OK;
}

static void map_backward_span(const void *context, int64_t first)
{
    const map_args *a = context;
    int64_t n = min_i64(SPAN, a->n - first);
    float x_scratch[SPAN], dy_scratch[SPAN], scratch[SPAN];
    const float *x = span_read(a->x, first, n, x_scratch);
    const float *dy = span_read(a->dy, first, n, dy_scratch);
    float *dx = span_target(a->dx, first, a->add_dx, scratch);
    for (int64_t i = 0; i < n; i++)
        dx[i] = map_slope(a->kind, a->power, x[i]) * dy[i];
    span_write(a->dx, first, n, dx, a->add_dx);
}

SIMD_KERNEL(map_backward, map_args)
{
    parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, map_backward_span, a);
    return FSDP_OK;
}
