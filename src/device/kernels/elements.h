/* Arguments of kernels that go element by element, and of sums of elements (kernels.h). */
#ifndef DEVICE_KERNELS_ELEMENTS_H
#define DEVICE_KERNELS_ELEMENTS_H

#include <fsdp/kinds.h>

#include "device/kernels/operand.h"

typedef enum activation_kind {
    ACTIVATION_SILU,
    ACTIVATION_GELU_ERF,
    ACTIVATION_GELU_TANH,
    ACTIVATION_RELU
} activation_kind;

/* y = f(x); backward: dx (+)= f'(x) dy. dx may be dy. */
typedef struct activation_args {
    activation_kind kind;
    int64_t n;
    buffer x, y, dy, dx;
    bool add_dx;
} activation_args;

/* Rows of x hold gate | up, each `columns` wide: y = f(gate) * up. backward: dx is (rows, 2*columns), and may be x.
 * magnitude as in rmsnorm_args. */
typedef struct gated_args {
    activation_kind kind;
    int64_t rows, columns;
    buffer x; /* (rows, 2*columns) */
    buffer y; /* (rows, columns) */
    buffer dy, dx;
    bool add_dx;
    float *magnitude;
} gated_args;

/* out = alpha * a + beta * b (b optional), element by element; also casts. out may be a or b. */
typedef struct axpby_args {
    int64_t n;
    float alpha, beta;
    buffer a, b, out;
} axpby_args;

/* out (+)= a * b, element by element. */
typedef struct multiply_args {
    int64_t n;
    buffer a, b, out;
    bool add;
} multiply_args;

/* out[i] = alpha * scalar[0] for all i (added when add): the gradient of a sum. */
typedef struct fill_args {
    int64_t n;
    float alpha;
    const float *scalar; /* NULL: 1 */
    buffer out;
    bool add;
} fill_args;

#define KERNEL_MAX_DIMS 6

/* to[i0, i1, ...] (+)= from[i0, i1, ...] with any strides (in elements): transposes, slices, concatenations. */
typedef struct strided_copy_args {
    int n_dims;
    int64_t shape[KERNEL_MAX_DIMS], from_stride[KERNEL_MAX_DIMS], to_stride[KERNEL_MAX_DIMS];
    buffer from, to;
    bool add;
} strided_copy_args;

/* Functions of one element that have no fused form: y = f(x); backward: dx (+)= f'(x) dy. dx may be dy. */
typedef enum map_kind {
    MAP_EXP,
    MAP_LOG,
    MAP_SQRT,
    MAP_SIGMOID,
    MAP_TANH,
    MAP_SOFTPLUS, /* log(1 + e^x) */
    MAP_POWER,    /* x^power */
    MAP_COUNT
} map_kind;

typedef struct map_args {
    map_kind kind;
    float power;
    int64_t n;
    buffer x, y, dy, dx;
    bool add_dx;
} map_args;

/* out[i0, i1, ...] (+)= f(a, b, c) where each operand is read with strides of its own (in elements): 0 repeats it along
 * a dimension. An operand that is not there is a_value or b_value everywhere. out is contiguous, and may be an operand
 * that is contiguous too. */
typedef enum combine_kind {
    COMBINE_ADD,              /* a + b */
    COMBINE_SUBTRACT,         /* a - b */
    COMBINE_MULTIPLY,         /* a * b */
    COMBINE_DIVIDE,           /* a / b */
    COMBINE_DIVISOR_GRADIENT, /* -a * b / c: of a quotient b with divisor c, whose gradient is a */
    COMBINE_SELECT            /* c != 0 ? a : b; c is int32 */
} combine_kind;

typedef struct combine_args {
    combine_kind kind;
    int n_dims;
    int64_t shape[KERNEL_MAX_DIMS];
    int64_t a_stride[KERNEL_MAX_DIMS], b_stride[KERNEL_MAX_DIMS], c_stride[KERNEL_MAX_DIMS];
    buffer a, b, c;
    float a_value, b_value;
    buffer out;
    bool add;
} combine_args;

/* y[k] (+)= alpha * sum, or the maximum or minimum, of x over the reduced dimensions. x is read with strides (in
 * elements), y is contiguous over the kept dimensions. Sums run in index order, in fp32 blocks of fixed size whose sums
 * are added in fp64. index (maximum and minimum, optional): where among the reduced elements it was found first.
 * backward: dx (+)= alpha * dy everywhere (sum), or dy where index says and 0 elsewhere; dx has x's strides. */
typedef struct reduce_dims_args {
    fsdp_reduction kind;
    int n_kept, n_reduced; /* each at least 1: a dimension of size 1 and stride 0 stands in for none */
    int64_t kept[KERNEL_MAX_DIMS], kept_stride[KERNEL_MAX_DIMS];
    int64_t reduced[KERNEL_MAX_DIMS], reduced_stride[KERNEL_MAX_DIMS];
    float alpha;
    buffer x, y;
    int32_t *index;
    bool add;
    buffer dy, dx;
} reduce_dims_args;

/* y = x * keep / (1 - p) where keep is 1 with probability 1 - p, drawn from (key, step, global sample, element in
 * sample). The gradient is the same operation on dy. */
typedef struct dropout_args {
    int64_t samples, sample_numel;
    float probability;
    uint32_t key[2]; /* rng_key of seed and operation */
    const step_scalars *scalars;
    buffer x, y;
    bool add;
} dropout_args;

/* *out (+)= alpha * sum of x, or of (x - y)^2 when y is there. Summed in fp64 over fixed blocks, in order.
 * squared: of x^2. */
typedef struct sum_args {
    int64_t n;
    float alpha;
    bool squared;
    buffer x, y;
    float *out;
    bool add;
    void *workspace;
} sum_args;

/* dx (+)= alpha * scalar[0] * 2 (x - y): the gradient of the squared error. */
typedef struct squared_error_backward_args {
    int64_t n;
    float alpha;
    const float *scalar;
    buffer x, y, dx;
    bool add;
} squared_error_backward_args;

#endif
