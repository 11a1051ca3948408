/* Differentiable operations. Shapes stand beside the arguments; (..., C) means any leading dimensions. */
#ifndef FSDP_OPS_H
#define FSDP_OPS_H

#include <fsdp/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* x (..., K), weight (N, K), bias (N) or NULL -> (..., N) */
FSDP_API fsdp_tensor *fsdp_linear(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias);
/* The same plus residual (..., N), in one product. */
FSDP_API fsdp_tensor *fsdp_linear_add(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                      fsdp_tensor *residual);
/* a (..., M, K) b (..., K, N) -> (..., M, N); a transposed operand is stored with its last two dimensions swapped. */
FSDP_API fsdp_tensor *fsdp_matmul(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b, bool transpose_a, bool transpose_b);

/* ids int32 (...), table (V, C) -> (..., C) */
FSDP_API fsdp_tensor *fsdp_embedding(fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *table);

FSDP_API fsdp_tensor *fsdp_rmsnorm(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, float eps); /* (..., C), (C) */
FSDP_API fsdp_tensor *fsdp_layernorm(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                     float eps); /* (..., C), (C), (C) */
/* x (N, C, H, W); running statistics are fp32 buffers (C) that training moves by `momentum`. */
FSDP_API fsdp_tensor *fsdp_batchnorm2d(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                       fsdp_tensor *running_mean, fsdp_tensor *running_var, float eps, float momentum);

/* Rotates the first `heads` heads of each row of x (B, T, ...), cosine and sine fp32 (positions, head_dim/2). */
FSDP_API fsdp_tensor *fsdp_rope(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *cosine, fsdp_tensor *sine, int64_t heads,
                                int64_t head_dim, int64_t first_position);

/* Heads inside the rows of x (B, T, width), starting at column `offset`. */
typedef struct fsdp_heads {
    fsdp_tensor *x;
    int64_t offset;
} fsdp_heads;

typedef struct fsdp_attention_config {
    fsdp_heads q, k, v; /* may lie in one tensor (a fused projection); what they cover is all of it */
    int64_t q_heads, kv_heads, head_dim;
    float scale;
    bool causal;
    fsdp_tensor *bias;     /* NULL, (H, T, S) or (B, H, T, S) */
    bool relative;         /* bias is (H, T + S - 1): score (i, j) takes bias[h, j - i + T - 1] */
    fsdp_tensor *key_mask; /* NULL or int32 (B, S): 0 hides a key */
    float dropout;         /* probability with which training leaves out a weight; 0: none */
} fsdp_attention_config;

/* -> (B, T, q_heads*head_dim). Never stores a T x S matrix. */
FSDP_API fsdp_tensor *fsdp_attention(fsdp_tape *t, const fsdp_attention_config *config);
/* T5's buckets: table (buckets, H) -> relative bias (H, T + S - 1) for fsdp_attention. */
FSDP_API fsdp_tensor *fsdp_relative_bias(fsdp_tape *t, fsdp_tensor *table, int64_t q_length, int64_t kv_length,
                                         bool bidirectional, int64_t max_distance, int64_t first_query);

/* A loss is a sum and a count: the gradient is seeded with one over the count over all ranks and micro-batches. */
typedef struct fsdp_loss {
    fsdp_tensor *sum;   /* fp32 (1) */
    fsdp_tensor *count; /* fp32 (1) */
} fsdp_loss;

/* logits (..., V), labels int32 (...); label == ignore counts for nothing. */
FSDP_API fsdp_loss fsdp_cross_entropy(fsdp_tape *t, fsdp_tensor *logits, fsdp_tensor *labels, int32_t ignore);
/* Cross-entropy of fsdp_linear(x, weight) computed in chunks of rows, so that the logits never exist as a whole. */
FSDP_API fsdp_loss fsdp_linear_cross_entropy(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *labels,
                                             int32_t ignore);
/* Sum of squared differences and the number of elements. */
FSDP_API fsdp_loss fsdp_mse(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *target);

FSDP_API fsdp_tensor *fsdp_silu(fsdp_tape *t, fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_gelu(fsdp_tape *t, fsdp_tensor *x);      /* with erf */
FSDP_API fsdp_tensor *fsdp_gelu_tanh(fsdp_tape *t, fsdp_tensor *x); /* "gelu_new" */
FSDP_API fsdp_tensor *fsdp_relu(fsdp_tape *t, fsdp_tensor *x);
/* x (..., 2F) holds gate | up -> f(gate) * up (..., F) */
FSDP_API fsdp_tensor *fsdp_swiglu(fsdp_tape *t, fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_geglu_tanh(fsdp_tape *t, fsdp_tensor *x);

FSDP_API fsdp_tensor *fsdp_add(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b); /* same shapes */
FSDP_API fsdp_tensor *fsdp_mul(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b);
FSDP_API fsdp_tensor *fsdp_scale(fsdp_tape *t, fsdp_tensor *x, float factor);
FSDP_API fsdp_tensor *fsdp_cast(fsdp_tape *t, fsdp_tensor *x, fsdp_dtype dtype);
/* Zeroes elements with probability p and scales the rest; the first dimension counts samples. */
FSDP_API fsdp_tensor *fsdp_dropout(fsdp_tape *t, fsdp_tensor *x, float p);

typedef struct fsdp_window {
    int64_t kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w;
} fsdp_window;

/* x (N, C, H, W), weight (O, C, kh, kw), bias (O) or NULL */
FSDP_API fsdp_tensor *fsdp_conv2d(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                  fsdp_window window);
FSDP_API fsdp_tensor *fsdp_max_pool2d(fsdp_tape *t, fsdp_tensor *x, fsdp_window window); /* no padding */
FSDP_API fsdp_tensor *fsdp_avg_pool2d(fsdp_tape *t, fsdp_tensor *x, fsdp_window window);

FSDP_API fsdp_tensor *fsdp_reshape(fsdp_tape *t, fsdp_tensor *x, int n_dims,
                                   const int64_t *shape); /* one size may be -1 */
FSDP_API fsdp_tensor *fsdp_transpose(fsdp_tape *t, fsdp_tensor *x, int dim_a, int dim_b);
FSDP_API fsdp_tensor *fsdp_slice(fsdp_tape *t, fsdp_tensor *x, int dim, int64_t first, int64_t size);
FSDP_API fsdp_tensor *fsdp_concat(fsdp_tape *t, fsdp_tensor *const *parts, int n_parts, int dim);
/* x (N, ...) of every rank, in rank order -> (ranks*N, ...), on all of them. The gradient comes back to the rank whose
 * value it is, summed over all: for losses that pair samples across ranks. All ranks record it in the same place. */
FSDP_API fsdp_tensor *fsdp_all_gather(fsdp_tape *t, fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_sum(fsdp_tape *t, fsdp_tensor *x);  /* -> fp32 (1) */
FSDP_API fsdp_tensor *fsdp_mean(fsdp_tape *t, fsdp_tensor *x); /* -> fp32 (1) */

#ifdef __cplusplus
}
#endif
#endif
