/* Activations and gated units (SwiGLU, GeGLU), forward and backward. An activation here is x * gate(x); the derivative
 * of that product comes with it, so that one evaluation of the exponential serves both. */
#include "device/cpu/simd/span.h"

#define SQRT_HALF 0.70710678f
#define SQRT_2_OVER_PI 0.79788456f
#define GELU_CUBIC 0.044715f

typedef struct valued_slope {
    float value, slope;
} valued_slope;

static inline valued_slope silu(float x)
{
    float g = simd_sigmoid(x);
    return (valued_slope){x * g, g * (1.0f + x * (1.0f - g))};
}

static inline valued_slope gelu_erf(float x)
{
    float g = 0.5f * (1.0f + simd_erf(x * SQRT_HALF));
    float density = 0.39894228f * simd_exp(-0.5f * x * x);
    return (valued_slope){x * g, g + x * density};
}

/* (1 + tanh(u)) / 2 is the sigmoid of 2u. */
static inline valued_slope gelu_tanh(float x)
{
    float square = x * x;
    float g = simd_sigmoid(2.0f * SQRT_2_OVER_PI * x * (1.0f + GELU_CUBIC * square));
    float inner = 2.0f * SQRT_2_OVER_PI * (1.0f + 3.0f * GELU_CUBIC * square);
    return (valued_slope){x * g, g + x * g * (1.0f - g) * inner};
}

static inline valued_slope relu(float x)
{
    return (valued_slope){x > 0.0f || x != x ? x : 0.0f, x > 0.0f ? 1.0f : 0.0f};
}

/* Runs a statement in a vectorised loop over i with `f` bound to the chosen activation. */
#define FOR_ACTIVATION(kind, n, ...)                                                                                   \
    switch (kind) {                                                                                                    \
    case ACTIVATION_SILU:                                                                                              \
        ACTIVATION_LOOP(silu, n, __VA_ARGS__)                                                                          \
        break;                                                                                                         \
    case ACTIVATION_GELU_ERF:                                                                                          \
        ACTIVATION_LOOP(gelu_erf, n, __VA_ARGS__)                                                                      \
        break;                                                                                                         \
    case ACTIVATION_GELU_TANH:                                                                                         \
        ACTIVATION_LOOP(gelu_tanh, n, __VA_ARGS__)                                                                     \
        break;                                                                                                         \
    case ACTIVATION_RELU:                                                                                              \
        ACTIVATION_LOOP(relu, n, __VA_ARGS__)                                                                          \
        break;                                                                                                         \
    }

#define ACTIVATION_LOOP(function, n, ...)                                                                              \
    _Pragma("omp simd") for (int64_t i = 0; i < (n); i++)                                                              \
    {                                                                                                                  \
        valued_slope f = function(x[i]);                                                                               \
        __VA_ARGS__;                                                                                                   \
    }

static void activation_forward_span(const void *context, int64_t first)
{
    const activation_args *a = context;
    int64_t n = min_i64(SPAN, a->n - first);
    float x_scratch[SPAN], scratch[SPAN];
    const float *x = span_read(a->x, first, n, x_scratch);
    float *y = span_target(a->y, first, false, scratch);
    FOR_ACTIVATION(a->kind, n, y[i] = f.value)
    span_write(a->y, first, n, y, false);
}

SIMD_KERNEL(activation_forward, activation_args)
{
    parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, activation_forward_span, a);
    return FSDP_OK;
}

static void activation_backward_span(const void *context, int64_t first)
{
    const activation_args *a = context;
    int64_t n = min_i64(SPAN, a->n - first);
    float x_scratch[SPAN], dy_scratch[SPAN], scratch[SPAN];
    const float *x = span_read(a->x, first, n, x_scratch);
    const float *dy = span_read(a->dy, first, n, dy_scratch);
    float *dx = span_target(a->dx, first, a->add_dx, scratch);
    FOR_ACTIVATION(a->kind, n, dx[i] = f.slope * dy[i])
    span_write(a->dx, first, n, dx, a->add_dx);
}

SIMD_KERNEL(activation_backward, activation_args)
{
    parallel_for(cpu_threads_for(s, a->n), a->n, SPAN, activation_backward_span, a);
    return FSDP_OK;
}

static void gated_forward_span(const gated_args *a, int64_t row, int64_t column, int64_t n)
{
    float x_scratch[SPAN], up_scratch[SPAN], scratch[SPAN];
    int64_t gate_at = row * 2 * a->columns + column, y_at = row * a->columns + column;
    const float *x = span_read(a->x, gate_at, n, x_scratch);
    const float *up = span_read(a->x, gate_at + a->columns, n, up_scratch);
    float *y = span_target(a->y, y_at, false, scratch);
    FOR_ACTIVATION(a->kind, n, y[i] = f.value * up[i])
    span_write(a->y, y_at, n, y, false);
}

static void gated_forward_row(const void *context, int64_t row)
{
    const gated_args *a = context;
    for (int64_t column = 0; column < a->columns; column += SPAN)
        gated_forward_span(a, row, column, min_i64(SPAN, a->columns - column));
}

SIMD_KERNEL(gated_forward, gated_args)
{
    parallel_for(cpu_threads_for(s, a->rows * a->columns), a->rows, 1, gated_forward_row, a);
    span_raise_largest(a->y, a->rows * a->columns, a->magnitude);
    return FSDP_OK;
}

static void gated_backward_span(const gated_args *a, int64_t row, int64_t column, int64_t n)
{
    float x_scratch[SPAN], up_scratch[SPAN], dy_scratch[SPAN], gate_scratch[SPAN], d_up_scratch[SPAN];
    int64_t gate_at = row * 2 * a->columns + column, up_at = gate_at + a->columns;
    const float *x = span_read(a->x, gate_at, n, x_scratch);
    const float *up = span_read(a->x, up_at, n, up_scratch);
    const float *dy = span_read(a->dy, row * a->columns + column, n, dy_scratch);
    float *d_gate = span_target(a->dx, gate_at, a->add_dx, gate_scratch);
    float *d_up = span_target(a->dx, up_at, a->add_dx, d_up_scratch);
    /* dx may be x: both inputs are read before either result is written. */
    FOR_ACTIVATION(a->kind, n, {
        float gradient = dy[i], other = up[i];
        d_gate[i] = gradient * other * f.slope;
        d_up[i] = gradient * f.value;
    })
    span_write(a->dx, gate_at, n, d_gate, a->add_dx);
    span_write(a->dx, up_at, n, d_up, a->add_dx);
}

static void gated_backward_row(const void *context, int64_t row)
{
    const gated_args *a = context;
    for (int64_t column = 0; column < a->columns; column += SPAN)
        gated_backward_span(a, row, column, min_i64(SPAN, a->columns - column));
}

SIMD_KERNEL(gated_backward, gated_args)
{
    parallel_for(cpu_threads_for(s, a->rows * a->columns), a->rows, 1, gated_backward_row, a);
    span_raise_largest(a->dx, 2 * a->rows * a->columns, a->magnitude);
    return FSDP_OK;
}
