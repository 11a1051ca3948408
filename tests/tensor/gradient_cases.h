/* The one table of differentiable operations: every operation of fsdp/ops.h, at sizes that are no multiple of a vector.
 * What is done with a case is test_gradients.c's business. */
#ifndef TESTS_TENSOR_GRADIENT_CASES_H
#define TESTS_TENSOR_GRADIENT_CASES_H

#include "tensor/attention_cases.h"
#include "tensor/gradient_check.h"
#include "tensor/linear.h"

/* Products. sizes: rows, k, n. */

static inline fsdp_tensor *linear_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, 2, s[0], s[1]), *w = VARIABLE(b, s[2], s[1]);
    return fsdp_linear(b->t, x, w, NULL);
}

static inline fsdp_tensor *linear_bias_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1]), *w = VARIABLE(b, s[2], s[1]), *bias = VARIABLE(b, s[2]);
    return fsdp_linear(b->t, x, w, bias);
}

static inline fsdp_tensor *linear_add_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1]), *w = VARIABLE(b, s[2], s[1]), *bias = VARIABLE(b, s[2]),
                *r = VARIABLE(b, s[0], s[2]);
    return fsdp_linear_add(b->t, x, w, bias, r);
}

static inline fsdp_tensor *linear_input_major_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1]), *w = VARIABLE(b, s[1], s[2]), *bias = VARIABLE(b, s[2]);
    return fsdp_linear_input_major(b->t, x, w, bias, s[3] ? VARIABLE(b, s[0], s[2]) : NULL);
}

/* Into some columns of a wider result. sizes: rows, k, n, columns, first */
static inline fsdp_tensor *linear_columns_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1]), *w = VARIABLE(b, s[2], s[1]), *y = VARIABLE(b, s[0], s[3]);
    fsdp_tensor *once = linear_add_columns(b->t, x, w, y, s[4]);
    return linear_add_columns(b->t, x, w, fsdp_silu(b->t, once), 0);
}

/* The residual is what is multiplied, too. sizes: rows, columns */
static inline fsdp_tensor *linear_add_itself_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1]), *w = VARIABLE(b, s[1], s[1]);
    return fsdp_linear_add(b->t, x, w, NULL, x);
}

/* sizes: batch, m, k, n, transpose a, transpose b */
static inline fsdp_tensor *matmul_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, 2, s[0], s[4] ? s[2] : s[1], s[4] ? s[1] : s[2]);
    fsdp_tensor *y = VARIABLE(b, 2, s[0], s[5] ? s[3] : s[2], s[5] ? s[2] : s[3]);
    return fsdp_matmul(b->t, x, y, s[4], s[5]);
}

/* a aT: sizes: batch, m, k */
static inline fsdp_tensor *matmul_itself_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1], b->size[2]);
    return fsdp_matmul(b->t, x, x, false, true);
}

/* sizes: rows, vocabulary, columns. Ids repeat where there are more rows than words. */
static inline fsdp_tensor *embedding_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *ids = INTEGERS(b, 0, (int32_t)s[1] - 1, 2, s[0]);
    return fsdp_embedding(b->t, ids, VARIABLE(b, s[1], s[2]));
}

/* Normalisations. sizes: rows, columns */

static inline fsdp_tensor *rmsnorm_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]), *w = VARIABLE(b, b->size[1]);
    return fsdp_rmsnorm(b->t, x, w, 0.5f);
}

static inline fsdp_tensor *rmsnorm_plus_one_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]), *w = VARIABLE(b, b->size[1]);
    return fsdp_rmsnorm_plus_one(b->t, x, w, 0.5f);
}

static inline fsdp_tensor *layernorm_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]), *w = VARIABLE(b, b->size[1]), *bias = VARIABLE(b, b->size[1]);
    return fsdp_layernorm(b->t, x, w, bias, 0.5f);
}

/* sizes: batch, channels, height, width */
static inline fsdp_tensor *batchnorm_case(builder *b)
{
    const int64_t *s = b->size;
    bool fresh;
    float *memory;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1], s[2], s[3]), *w = VARIABLE(b, s[1]), *bias = VARIABLE(b, s[1]);
    fsdp_tensor *mean = buffer_of(b, 0, &memory, &fresh, DIMS(s[1])),
                *variance = buffer_of(b, 1, &memory, &fresh, DIMS(s[1]));
    return fsdp_batchnorm2d(b->t, x, w, bias, mean, variance, 0.5f, 0.1f);
}

/* Losses. sizes: rows, vocabulary, columns */

static inline fsdp_tensor *cross_entropy_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *labels = INTEGERS(b, 0, (int32_t)s[1] - 1, s[0]);
    return fsdp_cross_entropy(b->t, VARIABLE(b, s[0], s[1]), labels, (int32_t)s[1] - 1).sum;
}

/* Size 3: not the root of the step, so that forward and backward are two passes. */
static inline fsdp_tensor *linear_cross_entropy_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *labels = INTEGERS(b, 0, (int32_t)s[1] - 1, s[0]);
    fsdp_tensor *x = VARIABLE(b, s[0], s[2]), *w = VARIABLE(b, s[1], s[2]);
    fsdp_tensor *sum = fsdp_linear_cross_entropy(b->t, x, w, labels, (int32_t)s[1] - 1).sum;
    return s[3] ? fsdp_scale(b->t, sum, 0.5f) : sum;
}

static inline fsdp_tensor *mse_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]), *target = VARIABLE(b, b->size[0], b->size[1]);
    return fsdp_mse(b->t, x, target).sum;
}

static inline fsdp_tensor *sum_case(builder *b)
{
    return fsdp_sum(b->t, VARIABLE(b, b->size[0], b->size[1]));
}

static inline fsdp_tensor *mean_case(builder *b)
{
    return fsdp_mean(b->t, VARIABLE(b, b->size[0], b->size[1]));
}

/* Element by element. sizes: rows, columns */

static inline fsdp_tensor *silu_case(builder *b)
{
    return fsdp_silu(b->t, VARIABLE(b, b->size[0], b->size[1]));
}

static inline fsdp_tensor *gelu_case(builder *b)
{
    return fsdp_gelu(b->t, VARIABLE(b, b->size[0], b->size[1]));
}

static inline fsdp_tensor *gelu_tanh_case(builder *b)
{
    return fsdp_gelu_tanh(b->t, VARIABLE(b, b->size[0], b->size[1]));
}

static inline fsdp_tensor *relu_case(builder *b)
{
    return fsdp_relu(b->t, VARIABLE_AWAY_FROM_ZERO(b, b->size[0], b->size[1]));
}

static inline fsdp_tensor *swiglu_case(builder *b)
{
    return fsdp_swiglu(b->t, VARIABLE(b, b->size[0], 2 * b->size[1]));
}

static inline fsdp_tensor *geglu_tanh_case(builder *b)
{
    return fsdp_geglu_tanh(b->t, VARIABLE(b, b->size[0], 2 * b->size[1]));
}

static inline fsdp_tensor *add_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]), *y = VARIABLE(b, b->size[0], b->size[1]);
    return fsdp_add(b->t, x, y);
}

static inline fsdp_tensor *add_itself_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]);
    return fsdp_add(b->t, x, x);
}

static inline fsdp_tensor *mul_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]), *y = VARIABLE(b, b->size[0], b->size[1]);
    return fsdp_mul(b->t, x, y);
}

static inline fsdp_tensor *mul_itself_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]);
    return fsdp_mul(b->t, x, x);
}

static inline fsdp_tensor *scale_case(builder *b)
{
    return fsdp_scale(b->t, VARIABLE(b, b->size[0], b->size[1]), -2.5f);
}

static inline fsdp_tensor *dropout_case(builder *b)
{
    return fsdp_dropout(b->t, VARIABLE(b, b->size[0], b->size[1]), 0.25f);
}

/* Images. sizes: channels in, channels out, kernel, stride, padding; images are 2 of 9 x 7. */

static inline fsdp_window window_of(const int64_t *s)
{
    return (fsdp_window){s[2], s[2], s[3], s[3], s[4], s[4]};
}

static inline fsdp_tensor *conv2d_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, 2, s[0], 9, 7), *w = VARIABLE(b, s[1], s[0], s[2], s[2]);
    return fsdp_conv2d(b->t, x, w, NULL, window_of(s));
}

/* Size 5: the other side of the kernel; strides differ, too. */
static inline fsdp_tensor *conv2d_bias_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, 3, s[0], 9, 7), *w = VARIABLE(b, s[1], s[0], s[2], s[5]), *bias = VARIABLE(b, s[1]);
    return fsdp_conv2d(b->t, x, w, bias, (fsdp_window){s[2], s[5], s[3], 1, s[4], 0});
}

static inline fsdp_tensor *max_pool_case(builder *b)
{
    return fsdp_max_pool2d(b->t, VARIABLE_DISTINCT(b, 2, b->size[0], 9, 7), window_of(b->size));
}

static inline fsdp_tensor *avg_pool_case(builder *b)
{
    return fsdp_avg_pool2d(b->t, VARIABLE(b, 2, b->size[0], 9, 7), window_of(b->size));
}

/* Shapes. sizes: three dimensions */

static inline fsdp_tensor *reshape_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = fsdp_scale(b->t, VARIABLE(b, s[0], s[1], s[2]), 2);
    return fsdp_reshape(b->t, x, DIMS(s[2], -1));
}

/* The value is read beside its view: gradients of both meet. */
static inline fsdp_tensor *reshape_beside_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = fsdp_scale(b->t, VARIABLE(b, s[0], s[1], s[2]), 2);
    fsdp_tensor *flat = fsdp_silu(b->t, fsdp_reshape(b->t, x, DIMS(-1)));
    return fsdp_mul(b->t, x, fsdp_reshape(b->t, flat, DIMS(s[0], s[1], s[2])));
}

static inline fsdp_tensor *transpose_case(builder *b)
{
    const int64_t *s = b->size;
    return fsdp_transpose(b->t, VARIABLE(b, s[0], s[1], s[2]), (int)s[3], (int)s[4]);
}

/* sizes 3..5: dimension, first, size */
static inline fsdp_tensor *slice_case(builder *b)
{
    const int64_t *s = b->size;
    return fsdp_slice(b->t, VARIABLE(b, s[0], s[1], s[2]), (int)s[3], s[4], s[5]);
}

/* Two slices of one tensor that overlap. */
static inline fsdp_tensor *slices_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1], s[2]);
    return fsdp_add(b->t, fsdp_slice(b->t, x, 1, 0, s[1] - 1), fsdp_slice(b->t, x, 1, 1, s[1] - 1));
}

/* size 3: dimension */
static inline fsdp_tensor *concat_case(builder *b)
{
    const int64_t *s = b->size;
    int64_t other[] = {s[0], s[1], s[2]};
    other[s[3]] += 2;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1], s[2]), *y = variable_of(b, NORMAL, 3, other), *parts[] = {x, y, x};
    return fsdp_concat(b->t, parts, 3, (int)s[3]);
}

/* Functions of one element. sizes: rows, columns */

#define MAP_CASE(name, kind, expression)                                                                               \
    static inline fsdp_tensor *name##_case(builder *b)                                                                 \
    {                                                                                                                  \
        fsdp_tensor *x = kind(b, b->size[0], b->size[1]);                                                              \
        return expression;                                                                                             \
    }
/* Logarithms, roots and powers want numbers above zero: e^x, well away from it. */
MAP_CASE(exp, VARIABLE, fsdp_exp(b->t, x))
MAP_CASE(log, VARIABLE, fsdp_log(b->t, fsdp_exp(b->t, x)))
MAP_CASE(sqrt, VARIABLE, fsdp_sqrt(b->t, fsdp_exp(b->t, x)))
MAP_CASE(pow, VARIABLE, fsdp_pow(b->t, fsdp_exp(b->t, x), -1.5f))
MAP_CASE(square, VARIABLE, fsdp_pow(b->t, x, 2))
MAP_CASE(sigmoid, VARIABLE, fsdp_sigmoid(b->t, x))
MAP_CASE(tanh, VARIABLE, fsdp_tanh(b->t, x))
MAP_CASE(softplus, VARIABLE, fsdp_softplus(b->t, x))
MAP_CASE(add_scalar, VARIABLE, fsdp_add_scalar(b->t, x, 0.5f))
MAP_CASE(softmax, VARIABLE, fsdp_softmax(b->t, x, -1))
MAP_CASE(softmax_first, VARIABLE, fsdp_softmax(b->t, x, 0))
MAP_CASE(log_softmax, VARIABLE, fsdp_log_softmax(b->t, x, -1))
MAP_CASE(sum_dim, VARIABLE, fsdp_sum_dim(b->t, x, 0, false))
MAP_CASE(mean_dim, VARIABLE, fsdp_mean_dim(b->t, x, 1, true))
MAP_CASE(max_dim, VARIABLE_DISTINCT, fsdp_max_dim(b->t, x, 0, false))
MAP_CASE(min_dim, VARIABLE_DISTINCT, fsdp_min_dim(b->t, x, -1, false))

/* Broadcasting. sizes: those of a, those of b (three dimensions each) */

static inline void broadcast_operands(builder *b, fsdp_tensor **x, fsdp_tensor **y)
{
    const int64_t *s = b->size;
    *x = VARIABLE(b, s[0], s[1], s[2]);
    *y = VARIABLE_AWAY_FROM_ZERO(b, s[3], s[4], s[5]);
}

#define BROADCAST_CASE(name, expression)                                                                               \
    static inline fsdp_tensor *name##_case(builder *b)                                                                 \
    {                                                                                                                  \
        fsdp_tensor *x, *y;                                                                                            \
        broadcast_operands(b, &x, &y);                                                                                 \
        return expression;                                                                                             \
    }
BROADCAST_CASE(broadcast_add, fsdp_add(b->t, x, y))
BROADCAST_CASE(broadcast_sub, fsdp_sub(b->t, x, y))
BROADCAST_CASE(broadcast_mul, fsdp_mul(b->t, x, y))
BROADCAST_CASE(broadcast_div, fsdp_div(b->t, x, y))
BROADCAST_CASE(where, fsdp_where(b->t, INTEGERS(b, 0, 1, 3, 5, 1), x, y))
BROADCAST_CASE(masked_fill, fsdp_add(b->t, fsdp_masked_fill(b->t, x, INTEGERS(b, 0, 1, 1, 5, 7), 2), y))

static inline fsdp_tensor *div_itself_case(builder *b)
{
    fsdp_tensor *x = VARIABLE_AWAY_FROM_ZERO(b, b->size[0], b->size[1]);
    return fsdp_div(b->t, x, fsdp_mul(b->t, x, x));
}

static inline fsdp_tensor *broadcast_vector_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]), *y = VARIABLE(b, b->size[1]);
    return fsdp_mul(b->t, y, fsdp_sub(b->t, x, y));
}

/* By index. sizes: dimensions of x, indices */

static inline fsdp_tensor *index_select_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1], s[2]);
    return fsdp_index_select(b->t, x, 1, INTEGERS(b, -1, (int32_t)s[1] - 1, s[3]));
}

static inline fsdp_tensor *gather_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1], s[2]);
    return fsdp_gather(b->t, x, 1, INTEGERS(b, 0, (int32_t)s[1] - 1, s[0], s[3], s[2]));
}

static inline fsdp_tensor *one_hot_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1]);
    return fsdp_mul(b->t, x, fsdp_one_hot(b->t, INTEGERS(b, 0, (int32_t)s[1] - 1, s[0]), s[1], FSDP_F32));
}

/* Composed losses and layers. */

static inline fsdp_tensor *smoothed_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]);
    return fsdp_cross_entropy_smoothed(b->t, x, INTEGERS(b, -1, (int32_t)b->size[1] - 1, b->size[0]), -1, 0.2f).sum;
}

static inline fsdp_tensor *kl_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]), *y = VARIABLE(b, b->size[0], b->size[1]);
    return fsdp_kl_divergence(b->t, fsdp_log_softmax(b->t, x, -1), fsdp_softmax(b->t, y, -1)).sum;
}

static inline fsdp_tensor *bce_case(builder *b)
{
    fsdp_tensor *x = VARIABLE(b, b->size[0], b->size[1]), *y = VARIABLE(b, b->size[0], b->size[1]);
    return fsdp_bce_with_logits(b->t, x, fsdp_sigmoid(b->t, y)).sum;
}

static inline fsdp_tensor *group_norm_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1], s[2], 2), *w = VARIABLE(b, s[1]), *bias = VARIABLE(b, s[1]);
    return fsdp_group_norm(b->t, x, s[3], w, bias, 0.5f);
}

/* sizes: batch, input channels, output channels, side, groups, kernel */
static inline fsdp_tensor *conv2d_grouped_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_window window = {s[5], s[5], 1, 1, 1, 1};
    fsdp_tensor *x = VARIABLE(b, s[0], s[1], s[3], s[3]), *w = VARIABLE(b, s[2], s[1] / s[4], s[5], s[5]);
    return fsdp_conv2d_grouped(b->t, x, w, VARIABLE(b, s[2]), window, s[4]);
}

static inline fsdp_tensor *conv1d_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_tensor *x = VARIABLE(b, s[0], s[1], s[3]), *w = VARIABLE(b, s[2], s[1] / s[4], s[5]);
    return fsdp_conv1d(b->t, x, w, VARIABLE(b, s[2]), 2, 1, s[4]);
}

static const gradient_case gradient_cases[] = {
    {"linear 1", linear_case, {1, 1, 1}},
    {"linear", linear_case, {3, 17, 33}},
    {"linear", linear_case, {33, 33, 1}},
    {"linear with bias 1", linear_bias_case, {1, 3, 1}},
    {"linear with bias", linear_bias_case, {33, 17, 3}},
    {"linear with residual 1", linear_add_case, {1, 1, 1}},
    {"linear with residual", linear_add_case, {17, 3, 33}},
    {"linear into columns", linear_columns_case, {17, 3, 5, 33, 7}},
    {"linear into the last columns", linear_columns_case, {4, 16, 8, 24, 16}},
    {"linear, input-major", linear_input_major_case, {17, 3, 33, 0}},
    {"linear, input-major with residual", linear_input_major_case, {3, 33, 17, 1}},
    {"linear with itself as residual", linear_add_itself_case, {17, 33}},
    {"matmul 1", matmul_case, {1, 1, 1, 1, 0, 0}},
    {"matmul", matmul_case, {3, 17, 33, 3, 0, 0}},
    {"matmul, a transposed", matmul_case, {3, 17, 3, 33, 1, 0}},
    {"matmul, b transposed", matmul_case, {3, 3, 17, 33, 0, 1}},
    {"matmul, both transposed", matmul_case, {3, 33, 3, 17, 1, 1}},
    {"matmul of one tensor", matmul_itself_case, {3, 17, 3}},
    {"embedding 1", embedding_case, {1, 1, 1}},
    {"embedding, few words", embedding_case, {33, 3, 17}},
    {"embedding, many words", embedding_case, {3, 33, 33}},
    {"rmsnorm 1", rmsnorm_case, {1, 1}},
    {"rmsnorm", rmsnorm_case, {17, 33}},
    {"rmsnorm, short rows", rmsnorm_case, {33, 3}},
    {"rmsnorm with 1 + weight", rmsnorm_plus_one_case, {17, 33}},
    {"layernorm 3", layernorm_case, {1, 3}},
    {"layernorm", layernorm_case, {17, 33}},
    {"batchnorm2d 3", batchnorm_case, {3, 1, 1, 1}},
    {"batchnorm2d", batchnorm_case, {2, 3, 17, 3}},
    {"batchnorm2d, many channels", batchnorm_case, {3, 33, 1, 3}},
    {"rope 1", rope_case, {1, 1, 1, 2, 0}},
    {"rope", rope_case, {17, 2, 3, 6, 5}},
    {"rope, all heads", rope_case, {3, 3, 3, 34, 0}},
    {"rope at positions", rope_case, {17, 2, 3, 6, -1}},
    {"attention 1", attention_case, {1, 1, 1, 1, 1}},
    {"attention", attention_case, {3, 17, 3, 3, 5}},
    {"attention, 33 keys", attention_case, {17, 33, 1, 1, 17}},
    {"attention, grouped heads", attention_case, {17, 3, 6, 2, 3}},
    {"attention with dropout", attention_dropout_case, {5, 17, 2, 1, 3}},
    {"attention with dropout, 33 queries", attention_dropout_case, {33, 3, 3, 3, 5}},
    {"causal attention", attention_causal_case, {17, 17, 3, 1, 3}},
    {"causal attention, 33", attention_causal_case, {33, 33, 1, 1, 8}},
    {"causal attention, more keys", attention_causal_case, {3, 17, 2, 1, 3}},
    {"attention with a window", attention_window_case, {17, 17, 2, 1, 3, 5}},
    {"attention with a window of 1", attention_window_case, {17, 17, 2, 2, 3, 1}},
    {"attention with a window, more keys", attention_window_case, {3, 17, 2, 1, 3, 4}},
    {"attention within documents", attention_documents_case, {17, 17, 2, 1, 3, 0}},
    {"attention within documents, 70", attention_documents_case, {70, 70, 1, 1, 3, 0}},
    {"attention within documents and a window", attention_documents_case, {17, 17, 2, 2, 3, 2}},
    {"attention over fused q, k, v", attention_fused_case, {17, 17, 4, 2, 3}},
    {"attention over fused k, v", attention_fused_kv_case, {3, 17, 3, 3, 5}},
    {"attention with bias (H, T, S)", attention_bias_case, {3, 17, 3, 3, 5}},
    {"attention with bias (H, T, S) 1", attention_bias_case, {1, 1, 1, 1, 3}},
    {"attention with bias (B, H, T, S)", attention_batch_bias_case, {17, 17, 2, 1, 3}},
    {"attention with a key mask", attention_masked_case, {3, 17, 2, 2, 5}},
    {"attention with every key hidden", attention_hidden_case, {3, 17, 2, 2, 5}},
    {"relative bias, causal", attention_relative_case, {17, 17, 3, 3, 3, 0}},
    {"relative bias, bidirectional", attention_relative_case, {33, 33, 1, 1, 3, 1}},
    {"relative bias, more keys", attention_relative_case, {3, 17, 3, 3, 3, 1}},
    {"cross_entropy 1", cross_entropy_case, {1, 3}},
    {"cross_entropy", cross_entropy_case, {17, 33}},
    {"linear_cross_entropy 1", linear_cross_entropy_case, {1, 3, 1}},
    {"linear_cross_entropy, three chunks", linear_cross_entropy_case, {33, 17, 3}},
    {"linear_cross_entropy, two passes", linear_cross_entropy_case, {33, 17, 3, 1}},
    {"mse", mse_case, {3, 17}},
    {"mse 1", mse_case, {1, 1}},
    {"sum", sum_case, {17, 33}},
    {"mean", mean_case, {17, 33}},
    {"silu", silu_case, {3, 33}},
    {"silu 1", silu_case, {1, 1}},
    {"gelu", gelu_case, {3, 33}},
    {"gelu_tanh", gelu_tanh_case, {3, 33}},
    {"relu", relu_case, {3, 33}},
    {"swiglu", swiglu_case, {3, 17}},
    {"swiglu 1", swiglu_case, {1, 1}},
    {"geglu_tanh", geglu_tanh_case, {3, 33}},
    {"add", add_case, {3, 33}},
    {"add of one tensor", add_itself_case, {3, 33}},
    {"mul", mul_case, {3, 33}},
    {"mul of one tensor", mul_itself_case, {3, 33}},
    {"scale", scale_case, {3, 33}},
    {"dropout", dropout_case, {3, 33}},
    {"conv2d 1", conv2d_case, {1, 1, 1, 1, 0}},
    {"conv2d", conv2d_case, {3, 5, 3, 1, 1}},
    {"conv2d, stride 2", conv2d_case, {1, 17, 5, 2, 2}},
    {"conv2d with bias", conv2d_bias_case, {3, 1, 3, 2, 1, 2}},
    {"max_pool2d", max_pool_case, {3, 0, 2, 2, 0}},
    {"max_pool2d, windows overlap", max_pool_case, {1, 0, 3, 1, 0}},
    {"avg_pool2d", avg_pool_case, {3, 0, 2, 2, 0}},
    {"avg_pool2d, windows overlap", avg_pool_case, {3, 0, 3, 2, 0}},
    {"reshape", reshape_case, {3, 17, 1}},
    {"reshape beside its value", reshape_beside_case, {3, 17, 3}},
    {"transpose", transpose_case, {3, 17, 5, 0, 1}},
    {"transpose of the ends", transpose_case, {3, 17, 5, 0, -1}},
    {"slice", slice_case, {3, 17, 5, 1, 3, 9}},
    {"slice of the last", slice_case, {3, 1, 33, -1, 32, 1}},
    {"slices that overlap", slices_case, {3, 17, 5}},
    {"concat", concat_case, {3, 17, 5, 1}},
    {"concat of the first", concat_case, {1, 3, 5, 0}},
    {"concat of the last", concat_case, {3, 1, 33, 2}},
    {"exp", exp_case, {3, 33}},
    {"log", log_case, {3, 33}},
    {"sqrt", sqrt_case, {3, 33}},
    {"pow", pow_case, {3, 33}},
    {"square", square_case, {3, 17}},
    {"sigmoid", sigmoid_case, {3, 33}},
    {"tanh", tanh_case, {3, 33}},
    {"softplus", softplus_case, {3, 33}},
    {"add_scalar", add_scalar_case, {3, 17}},
    {"softmax", softmax_case, {3, 33}},
    {"softmax 1", softmax_case, {1, 1}},
    {"softmax of the first dimension", softmax_first_case, {5, 7}},
    {"log_softmax", log_softmax_case, {3, 33}},
    {"sum_dim", sum_dim_case, {17, 5}},
    {"mean_dim", mean_dim_case, {5, 33}},
    {"max_dim", max_dim_case, {17, 5}},
    {"min_dim", min_dim_case, {5, 17}},
    {"add, repeated", broadcast_add_case, {3, 5, 7, 1, 5, 1}},
    {"sub, repeated", broadcast_sub_case, {3, 1, 7, 3, 5, 1}},
    {"mul, repeated", broadcast_mul_case, {3, 5, 7, 1, 1, 7}},
    {"mul, one number", broadcast_mul_case, {1, 1, 1, 3, 5, 7}},
    {"div", broadcast_div_case, {3, 5, 7, 3, 5, 7}},
    {"div, repeated", broadcast_div_case, {3, 1, 7, 1, 5, 7}},
    {"div of one tensor", div_itself_case, {3, 17}},
    {"a vector and rows", broadcast_vector_case, {5, 17}},
    {"where", where_case, {3, 5, 7, 3, 1, 7}},
    {"masked_fill", masked_fill_case, {3, 5, 7, 1, 1, 1}},
    {"index_select", index_select_case, {3, 5, 7, 9}},
    {"gather", gather_case, {3, 5, 7, 9}},
    {"one_hot", one_hot_case, {5, 7}},
    {"cross_entropy, smoothed", smoothed_case, {17, 33}},
    {"kl_divergence", kl_case, {3, 17}},
    {"bce_with_logits", bce_case, {3, 17}},
    {"group_norm", group_norm_case, {2, 6, 3, 3}},
    {"group_norm, one group", group_norm_case, {3, 4, 1, 1}},
    {"conv2d in groups", conv2d_grouped_case, {3, 4, 6, 5, 2, 3}},
    {"conv2d, a channel each", conv2d_grouped_case, {2, 3, 3, 4, 3, 2}},
    {"conv1d", conv1d_case, {3, 2, 3, 9, 1, 3}},
    {"conv1d in groups", conv1d_case, {2, 4, 4, 9, 2, 3}},
};

enum { N_GRADIENT_CASES = sizeof gradient_cases / sizeof gradient_cases[0] };

#endif
