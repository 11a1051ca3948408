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
/* The same with the weight stored (K, N), as GPT-2's are; residual may be NULL. */
FSDP_API fsdp_tensor *fsdp_linear_input_major(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                              fsdp_tensor *residual);
/* a (..., M, K) b (..., K, N) -> (..., M, N); a transposed operand is stored with its last two dimensions swapped. */
FSDP_API fsdp_tensor *fsdp_matmul(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b, bool transpose_a, bool transpose_b);

/* ids int32 (...), table (V, C) -> (..., C) */
FSDP_API fsdp_tensor *fsdp_embedding(fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *table);
/* The same; the table's row `padding` takes no gradient from here (PyTorch's padding_idx). -1: every row does. */
FSDP_API fsdp_tensor *fsdp_embedding_padded(fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *table, int64_t padding);

FSDP_API fsdp_tensor *fsdp_rmsnorm(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, float eps); /* (..., C), (C) */
/* The same times 1 + weight, as Gemma's are. */
FSDP_API fsdp_tensor *fsdp_rmsnorm_plus_one(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, float eps);
FSDP_API fsdp_tensor *fsdp_layernorm(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                     float eps); /* (..., C), (C), (C) */
/* x (N, C, H, W); running statistics are fp32 buffers (C) that training moves by `momentum`. */
FSDP_API fsdp_tensor *fsdp_batchnorm2d(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                       fsdp_tensor *running_mean, fsdp_tensor *running_var, float eps, float momentum);

/* x (N, C, ...) normalised over each of `groups` groups of channels; weight, bias (C). */
FSDP_API fsdp_tensor *fsdp_group_norm(fsdp_tape *t, fsdp_tensor *x, int64_t groups, fsdp_tensor *weight,
                                      fsdp_tensor *bias, float eps);

/* Rotates the first `heads` heads of each row of x (B, T, ...), cosine and sine fp32 (positions, head_dim/2). */
FSDP_API fsdp_tensor *fsdp_rope(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *cosine, fsdp_tensor *sine, int64_t heads,
                                int64_t head_dim, int64_t first_position);
/* The same with a position for each token, int32 (B, T): rows of several documents, in each of which positions begin
 * again. A token whose position the tables do not have becomes zero. */
FSDP_API fsdp_tensor *fsdp_rope_at(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *cosine, fsdp_tensor *sine,
                                   fsdp_tensor *positions, int64_t heads, int64_t head_dim);

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
    int64_t window;        /* causal: how many keys a query sees, its own included; 0: all before it */
    /* Causal: NULL, or int32 (B, T), where each token's document starts in its row (fsdp_document_starts): a query sees
     * no key before it. Starts may not fall along a row. Documents that are not seen cost nothing. */
    fsdp_tensor *starts;
    void *reserved[6]; /* NULL: room for what later versions add */
} fsdp_attention_config;

/* -> (B, T, q_heads*head_dim). Never stores a T x S matrix. With q, k and v packed in the rows of one tensor (B, T,
 * 3*C):
 *
 *     fsdp_attention_config a = {.q = {qkv, 0}, .k = {qkv, C}, .v = {qkv, 2 * C}, .q_heads = H, .kv_heads = H,
 *                                .head_dim = C / H, .scale = 1 / sqrtf(C / H), .causal = true};
 *     fsdp_tensor *y = fsdp_attention(t, &a); */
FSDP_API fsdp_tensor *fsdp_attention(fsdp_tape *t, const fsdp_attention_config *config);
/* documents int32 (B, T), an input: tokens of one document stand together and have the same number, two documents side
 * by side have different ones; what is negative is padding and sees itself only -> int32 (B, T), the place in the row
 * where each token's document starts, for fsdp_attention. The data is read while the model is recorded. */
FSDP_API fsdp_tensor *fsdp_document_starts(fsdp_tape *t, fsdp_tensor *documents);
/* T5's buckets: table (buckets, H) -> relative bias (H, T + S - 1) for fsdp_attention. */
FSDP_API fsdp_tensor *fsdp_relative_bias(fsdp_tape *t, fsdp_tensor *table, int64_t q_length, int64_t kv_length,
                                         bool bidirectional, int64_t max_distance, int64_t first_query);

/* A loss is a sum and a count: the gradient is seeded with one over the count over all ranks and micro-batches. One of
 * your own has any two tensors of fp32 (1), such as the sum of squares and a number of samples:
 *
 *     static const float samples = 64;
 *     const int64_t one = 1;
 *     fsdp_loss loss = {fsdp_sum(t, fsdp_mul(t, x, x)), fsdp_input(t, FSDP_F32, 1, &one, &samples)}; */
typedef struct fsdp_loss {
    fsdp_tensor *sum;   /* fp32 (1) */
    fsdp_tensor *count; /* fp32 (1) */
} fsdp_loss;

#define FSDP_IGNORE (-100) /* the usual label that counts for nothing */

/* logits (..., V), labels int32 (...); label == ignore counts for nothing. */
FSDP_API fsdp_loss fsdp_cross_entropy(fsdp_tape *t, fsdp_tensor *logits, fsdp_tensor *labels, int32_t ignore);
/* Cross-entropy of fsdp_linear(x, weight) computed in chunks of rows, so that the logits never exist as a whole. */
FSDP_API fsdp_loss fsdp_linear_cross_entropy(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *labels,
                                             int32_t ignore);
/* How many rows that count have their label as the likeliest class, fp32 (1), for accuracies; an output of the
 * recording. Of fsdp_cross_entropy and fsdp_linear_cross_entropy, and of the models' losses, which are made of them. */
FSDP_API fsdp_tensor *fsdp_loss_right(fsdp_tape *t, fsdp_loss loss);
/* Cross-entropy against (1 - smoothing) of the label and smoothing / V of every class. */
FSDP_API fsdp_loss fsdp_cross_entropy_smoothed(fsdp_tape *t, fsdp_tensor *logits, fsdp_tensor *labels, int32_t ignore,
                                               float smoothing);
/* Sum of squared differences and the number of elements. */
FSDP_API fsdp_loss fsdp_mse(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *target);
/* Sum of target * (log target - log_p), target probabilities, and the number of rows. */
FSDP_API fsdp_loss fsdp_kl_divergence(fsdp_tape *t, fsdp_tensor *log_p, fsdp_tensor *target);
/* Binary cross-entropy of independent logits against targets in [0, 1], and the number of elements. */
FSDP_API fsdp_loss fsdp_bce_with_logits(fsdp_tape *t, fsdp_tensor *logits, fsdp_tensor *target);

/* x * sigmoid(x). */
FSDP_API fsdp_tensor *fsdp_silu(fsdp_tape *t, fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_gelu(fsdp_tape *t, fsdp_tensor *x);      /* with erf */
FSDP_API fsdp_tensor *fsdp_gelu_tanh(fsdp_tape *t, fsdp_tensor *x); /* "gelu_new" */
/* max(x, 0). */
FSDP_API fsdp_tensor *fsdp_relu(fsdp_tape *t, fsdp_tensor *x);
/* x (..., 2F) holds gate | up -> silu(gate) * up (..., F) */
FSDP_API fsdp_tensor *fsdp_swiglu(fsdp_tape *t, fsdp_tensor *x);
/* The same with gelu_tanh of the gate. */
FSDP_API fsdp_tensor *fsdp_geglu_tanh(fsdp_tape *t, fsdp_tensor *x);

/* a + b. Arithmetic broadcasts: sizes are equal or 1, counted from the last dimension; missing ones count as 1. */
FSDP_API fsdp_tensor *fsdp_add(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b);
/* a - b, broadcast as in fsdp_add. */
FSDP_API fsdp_tensor *fsdp_sub(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b);
/* a * b element by element, broadcast as in fsdp_add. */
FSDP_API fsdp_tensor *fsdp_mul(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b);
/* a / b, broadcast as in fsdp_add. */
FSDP_API fsdp_tensor *fsdp_div(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b);
/* x + value. */
FSDP_API fsdp_tensor *fsdp_add_scalar(fsdp_tape *t, fsdp_tensor *x, float value);
/* mask int32, 0 for no: a where it is not 0, b elsewhere; all three broadcast. */
FSDP_API fsdp_tensor *fsdp_where(fsdp_tape *t, fsdp_tensor *mask, fsdp_tensor *a, fsdp_tensor *b);
/* `value` where the mask is not 0, x elsewhere. */
FSDP_API fsdp_tensor *fsdp_masked_fill(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *mask, float value);

/* e to the power of x. */
FSDP_API fsdp_tensor *fsdp_exp(fsdp_tape *t, fsdp_tensor *x);
/* Natural logarithm. */
FSDP_API fsdp_tensor *fsdp_log(fsdp_tape *t, fsdp_tensor *x);
/* Square root. */
FSDP_API fsdp_tensor *fsdp_sqrt(fsdp_tape *t, fsdp_tensor *x);
/* 1 / (1 + e^-x). */
FSDP_API fsdp_tensor *fsdp_sigmoid(fsdp_tape *t, fsdp_tensor *x);
/* Hyperbolic tangent. */
FSDP_API fsdp_tensor *fsdp_tanh(fsdp_tape *t, fsdp_tensor *x);
FSDP_API fsdp_tensor *fsdp_softplus(fsdp_tape *t, fsdp_tensor *x); /* log(1 + e^x) */
/* x to the power of `exponent`. */
FSDP_API fsdp_tensor *fsdp_pow(fsdp_tape *t, fsdp_tensor *x, float exponent);

/* Sum along one dimension, counted from either end. `keep` leaves it as a dimension of size 1; otherwise it is gone (a
 * vector becomes (1)). */
FSDP_API fsdp_tensor *fsdp_sum_dim(fsdp_tape *t, fsdp_tensor *x, int dim, bool keep);
/* Mean along a dimension, as fsdp_sum_dim. */
FSDP_API fsdp_tensor *fsdp_mean_dim(fsdp_tape *t, fsdp_tensor *x, int dim, bool keep);
/* Largest along a dimension, as fsdp_sum_dim. The gradient goes to the first element that has it. */
FSDP_API fsdp_tensor *fsdp_max_dim(fsdp_tape *t, fsdp_tensor *x, int dim, bool keep);
/* Smallest along a dimension, as fsdp_sum_dim. The gradient goes to the first element that has it. */
FSDP_API fsdp_tensor *fsdp_min_dim(fsdp_tape *t, fsdp_tensor *x, int dim, bool keep);
/* e^x over its sum along a dimension. */
FSDP_API fsdp_tensor *fsdp_softmax(fsdp_tape *t, fsdp_tensor *x, int dim);
/* The logarithm of fsdp_softmax, computed without overflow. */
FSDP_API fsdp_tensor *fsdp_log_softmax(fsdp_tape *t, fsdp_tensor *x, int dim);

/* Elements of x along `dim`, which takes the size of index, int32 (K). An index outside gives 0 and no gradient. */
FSDP_API fsdp_tensor *fsdp_index_select(fsdp_tape *t, fsdp_tensor *x, int dim, fsdp_tensor *index);
/* Elements of x along `dim`, as torch.gather: index int32 has x's shape but for that dimension. */
FSDP_API fsdp_tensor *fsdp_gather(fsdp_tape *t, fsdp_tensor *x, int dim, fsdp_tensor *index);
/* ids int32 (...) -> (..., classes): 1 at the id, 0 elsewhere. */
FSDP_API fsdp_tensor *fsdp_one_hot(fsdp_tape *t, fsdp_tensor *ids, int64_t classes, fsdp_dtype dtype);
/* x * factor. */
FSDP_API fsdp_tensor *fsdp_scale(fsdp_tape *t, fsdp_tensor *x, float factor);
/* x as another element type. */
FSDP_API fsdp_tensor *fsdp_cast(fsdp_tape *t, fsdp_tensor *x, fsdp_dtype dtype);
/* Zeroes elements with probability p and scales the rest; the first dimension counts samples. */
FSDP_API fsdp_tensor *fsdp_dropout(fsdp_tape *t, fsdp_tensor *x, float p);

/* Of convolutions and pools; strides of 0 are refused. */
typedef struct fsdp_window {
    int64_t kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w;
} fsdp_window;

/* x (N, C, H, W), weight (O, C, kh, kw), bias (O) or NULL */
FSDP_API fsdp_tensor *fsdp_conv2d(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                  fsdp_window window);
/* weight (O, C / groups, kh, kw): output channels of a group see the input channels of that group only. */
FSDP_API fsdp_tensor *fsdp_conv2d_grouped(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                          fsdp_window window, int64_t groups);
/* x (N, C, L), weight (O, C / groups, kernel), bias (O) or NULL */
FSDP_API fsdp_tensor *fsdp_conv1d(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, int64_t stride,
                                  int64_t padding, int64_t groups);
FSDP_API fsdp_tensor *fsdp_max_pool2d(fsdp_tape *t, fsdp_tensor *x, fsdp_window window); /* no padding */
/* Mean of each window. */
FSDP_API fsdp_tensor *fsdp_avg_pool2d(fsdp_tape *t, fsdp_tensor *x, fsdp_window window);

FSDP_API fsdp_tensor *fsdp_reshape(fsdp_tape *t, fsdp_tensor *x, int n_dims,
                                   const int64_t *shape); /* one size may be -1 */
/* Swaps two dimensions. */
FSDP_API fsdp_tensor *fsdp_transpose(fsdp_tape *t, fsdp_tensor *x, int dim_a, int dim_b);
/* Elements first .. first+size-1 of a dimension. */
FSDP_API fsdp_tensor *fsdp_slice(fsdp_tape *t, fsdp_tensor *x, int dim, int64_t first, int64_t size);
/* Parts one after another along a dimension; their other sizes are equal. */
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
