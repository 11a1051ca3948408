/* The kernels every device offers, and their arguments. All matrices are row-major. Shapes stand beside the pointers.
 *
 * A `buffer` is a pointer with its element type; p == NULL means "not there". Floating buffers are fp32, bf16 or fp16;
 * arithmetic is always in fp32. `add` flags say that a result is added to what is there instead of overwriting it:
 * gradients are overwritten by their first contribution and added to by the rest, so nothing is ever cleared first.
 * Kernels that need scratch memory have a `<name>_workspace` beside them that says how much for given arguments
 * (pointers are not looked at); the caller passes at least that much, 256-byte aligned, in `workspace`.
 * The same arguments give the same bits on the same device and number of threads. */
#ifndef DEVICE_KERNELS_H
#define DEVICE_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/dtype.h>
#include <fsdp/kinds.h>
#include <fsdp/status.h>

struct stream;

typedef struct buffer {
    void *p;
    fsdp_dtype dtype;
} buffer;

/* d = alpha * op(a) op(b) + beta * c [+ bias], op(a): (m, k), op(b): (k, n). Batched: `batch` products, strides in
 * elements. c may be d. With beta 0, c is not read. a and b have one dtype; c, d, bias may have another.
 * 8-bit operands: a is (m, k) and b stored (n, k), batch is 1, m, n and k are multiples of 16; the two formats may
 * differ, but at most one is E5M2; a stands for *scale_a times its values, b likewise. */
typedef struct gemm_args {
    bool transpose_a; /* a is stored (k, m) */
    bool transpose_b; /* b is stored (n, k) */
    int64_t m, n, k;
    float alpha, beta;
    buffer a, b, c, d;
    int64_t lda, ldb, ldc, ldd; /* elements from one stored row to the next */
    int64_t batch, stride_a, stride_b, stride_c, stride_d;
    buffer bias;                    /* (n), added to every row; optional */
    const float *scale_a, *scale_b; /* 8-bit operands: device memory, at multiples of 16 bytes */
    bool fast_sums;                 /* 8-bit operands: sums may be kept less exactly on the way (Hopper: 14 bits) */
    void *workspace;
} gemm_args;

/* Products that are symmetric but for rounding, several at once: d = alpha a b^T + beta c + gamma I. What lies below
 * the diagonal is computed; what lies above is its mirror. All in bf16; d overlaps no operand. */
enum { SYMMETRIC_ITEMS = 8 };
typedef struct symmetric_item {
    int64_t n, k;
    const uint16_t *a, *b; /* (n, k) */
    const uint16_t *c;     /* (n, n), symmetric; not read with beta 0 */
    uint16_t *d;           /* (n, n) */
} symmetric_item;

typedef struct symmetric_args {
    symmetric_item items[SYMMETRIC_ITEMS];
    int n_items;
    float alpha, beta, gamma;
    void *workspace;
} symmetric_args;

/* An operand of a product in 8 bits: q = x / scale in its format, qt its transpose, scale[0] = max |x| / the format's
 * largest number, so that nothing saturates. A NaN or infinity in x makes the scale NaN, and with it the product.
 * scale[1] = max |x|, which is taken from `magnitude` instead where it is known; without q and qt it is all that is
 * written. An x that has the type of qt is only transposed. */
typedef struct fp8_cast_args {
    int64_t rows, columns;  /* 0 elements: the scale is written all the same */
    buffer x, q;            /* (rows, columns); q FSDP_E4M3 or FSDP_E5M2, optional */
    buffer qt;              /* (columns, rows), the same type; optional */
    float *scale;           /* (2); not read or written where x is transposed */
    const float *magnitude; /* optional; may be scale + 1 */
} fp8_cast_args;

/* What an operand lost in 8 bits: counts[0] += numbers of x that are not 0 and became 0 in q; counts[1] += those beyond
 * the format's largest number by more than half a gap, which q cannot hold. A NaN counts as neither. */
typedef struct fp8_count_args {
    int64_t n;
    buffer x, q;        /* (n) each; q as fp8_cast wrote it, */
    const float *scale; /* with this scale */
    uint64_t *counts;   /* (2) */
} fp8_count_args;

/* out[j] (+)= sum over rows of x[i, j]: the gradient of a bias. */
typedef struct column_sum_args {
    int64_t rows, columns;
    buffer x;   /* (rows, columns) */
    buffer out; /* (columns) */
    bool add;
    void *workspace;
} column_sum_args;

/* Numbers that change from step to step, in device memory, so that a recorded graph sees them. */
typedef struct step_scalars {
    uint64_t step; /* counts micro-batches since the start of training */
    /* Global index of this rank's first sample in this micro-batch: first_sample, and so many times the samples that an
     * operation works on as are before this rank's share (samples.h). */
    uint64_t first_sample, share;
} step_scalars;

/* Attention over heads that lie inside wider rows (a fused projection): element (b, t, h, i) of q is at
 * q.p + ((b*q_length + t) * q_row + h*head_dim + i). Query head h reads key/value head h / (q_heads / kv_heads).
 * Causal: query t sees keys 0 .. t + kv_length - q_length.
 * bias (optional, fp32 or the dtype of q): score(b, h, i, j) += bias[b*bias_batch + h*bias_head + i*bias_query +
 * j*bias_key]; a relative position bias over distances has bias_query == -1 and bias_key == 1 with bias.p pointing at
 * distance 0. key_mask (optional): int32 (batch, kv_length), 0 hides a key. A row that sees no key gives zeros. Scores
 * are scale * q.k. Never stores a q_length x kv_length matrix beyond the cache-sized tile.
 * starts (optional, causal): int32 (batch, q_length), for rows that hold several documents: a query sees no key before
 * its start. Starts never fall along a row, so what a tile of queries sees is one range of keys, and what sees a tile
 * of keys one range of queries: kernels pass over all other tiles. dropout > 0: weights are left out at random after
 * the softmax and the rest scaled up, as attention_dropout.h says; lse is that of all keys. */
typedef struct attention_args {
    int64_t batch, q_length, kv_length, q_heads, kv_heads, head_dim;
    float scale;
    bool causal;
    int64_t window;              /* causal: a query sees so many keys, the last included; 0: all */
    buffer q, k, v;              /* read */
    int64_t q_row, k_row, v_row; /* elements from one token to the next */
    buffer out;                  /* forward: written, backward: read. (batch, q_length, q_heads*head_dim), contiguous */
    float *lse; /* log of the softmax denominator, (batch, q_heads, q_length): forward writes, backward reads */
    buffer bias;
    int64_t bias_batch, bias_head, bias_query, bias_key;
    const int32_t *key_mask;
    const int32_t *starts;
    float dropout;           /* probability that a weight is left out; 0: none, and the next two are not looked at */
    uint32_t dropout_key[2]; /* rng_key of seed and operation */
    const step_scalars *scalars; /* device memory */
    /* backward only */
    buffer d_out;         /* (batch, q_length, q_heads*head_dim) */
    buffer d_q, d_k, d_v; /* rows as q, k, v; overwritten unless the add flag is set */
    bool add_q, add_k, add_v;
    float *d_bias; /* optional, strided like bias: gradient added over everything broadcast */
    int64_t d_bias_first,
        d_bias_numel; /* the fp32 elements d_bias[d_bias_first .. +d_bias_numel) are those of the bias */
    bool add_bias;    /* false: those elements are cleared first */
    bool deterministic;
    void *workspace;
} attention_args;

/* Rotary embedding in place on the first `heads` heads of each row, pairs (i, i + head_dim/2).
 * Position of row r: r % length + first_position, or positions[r]; one outside the tables gives zeros, as it would in
 * an embedding. inverse: rotates back (the gradient). */
typedef struct rope_args {
    int64_t rows, length, first_position, heads, head_dim, row;
    const int32_t *positions;   /* (rows), optional */
    int64_t n_positions;        /* of the tables; looked at with positions only */
    buffer x;                   /* (rows, row) */
    const float *cosine, *sine; /* (n_positions, head_dim/2) */
    bool inverse;
} rope_args;

/* y = x / sqrt(mean(x^2) + eps) * (shift + weight); rstd per row is kept for backward. */
typedef struct rmsnorm_args {
    int64_t rows, columns;
    float eps, shift;
    buffer x, weight, y; /* (rows, columns), (columns), (rows, columns) */
    float *rstd;         /* (rows) */
    /* backward */
    buffer dy, dx, d_weight; /* dx optional, d_weight optional */
    bool add_dx, add_weight;
    void *workspace;
} rmsnorm_args;

/* y = (x - mean) * rstd * weight + bias. */
typedef struct layernorm_args {
    int64_t rows, columns;
    float eps;
    buffer x, weight, bias, y;
    float *mean, *rstd; /* (rows) */
    buffer dy, dx, d_weight, d_bias;
    bool add_dx, add_weight, add_bias;
    void *workspace;
} layernorm_args;

/* Batch normalisation of (batch, channels, area) in three steps, so that the sums can be added over a group between
 * them: reduce fills sums in fp64, two a channel and after them the elements a channel has, and apply reads them. Only
 * the first `rows` samples are data; those after them pad the batch and enter no sum. They get a y, and no gradient.
 * forward_reduce: sum x, sum x^2. forward_apply: y, mean, rstd; with momentum > 0 the running statistics move (unbiased
 * variance). evaluate: running statistics instead of the batch's. sums == NULL: mean and rstd are there already (a
 * replay): only y is computed, nothing moves. backward_reduce: sum dy, sum dy*xhat. backward_apply: dx; d_weight,
 * d_bias from the *local* sums. */
typedef struct batchnorm_args {
    int64_t batch, channels, area;
    int64_t rows; /* of the batch, that count */
    float eps, momentum;
    bool evaluate;
    buffer x, y, weight, bias;
    double *sums;       /* (2 * channels + 1): two sums a channel, the count */
    float *mean, *rstd; /* (channels), kept for backward */
    float *running_mean, *running_var;
    buffer dy, dx, d_weight, d_bias;
    const double *local_sums; /* this rank's part of sums, for d_weight and d_bias */
    bool add_dx, add_weight, add_bias;
} batchnorm_args;

/* Rows of a table by id. An id outside 0..vocabulary-1 gives zeros and no gradient.
 * backward: every row of d_table is written (or added to); sums run in row order of x. The row `padding` gets no
 * gradient, where has_padding says that there is one. */
typedef struct embedding_args {
    int64_t rows, columns, vocabulary;
    bool has_padding;
    int32_t padding;
    const int32_t *ids; /* (rows) */
    buffer table;       /* (vocabulary, columns) */
    buffer y;           /* (rows, columns) */
    buffer dy, d_table;
    bool add_table;
    void *workspace;
} embedding_args;

/* Softmax cross-entropy over rows of logits. label == ignore: the row counts for nothing.
 * forward: *loss_sum (+)= sum of losses; *count (+)= rows that count. A label outside the vocabulary is FSDP_ERR_INPUT
 * where the host sees labels; elsewhere *count becomes NaN, which whoever reads it reports (nothing waits for that).
 * backward: d_logits = (softmax - onehot) * *seed; d_logits may be logits. Both at once when d_logits is given to
 * forward. */
typedef struct cross_entropy_args {
    int64_t rows, vocabulary;
    int64_t
        stride; /* elements from one row of logits and of d_logits to the next; those past the vocabulary are scratch */
    buffer logits; /* (rows, vocabulary) */
    const int32_t *labels;
    int32_t ignore;
    float *loss_sum, *count;
    bool add_loss; /* into loss_sum and count */
    const float *seed;
    buffer d_logits;
    bool add_logits;
    void *workspace;
} cross_entropy_args;

/* Rows whose label has the highest logit, the first of several equal ones: *right (+)= their number. A NaN is higher
 * than any number. Labels that are `ignore` or outside the vocabulary are never right. */
typedef struct count_right_args {
    int64_t rows, vocabulary, stride; /* as in cross_entropy_args */
    buffer logits;                    /* (rows, vocabulary) */
    const int32_t *labels;
    int32_t ignore;
    float *right;
    bool add;
} count_right_args;

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
 * magnitude (optional): the largest magnitude of y, or in backward of dx, as stored; a NaN counts as the largest. dx is
 * then not added to. */
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

/* Softmax of rows, or its logarithm. backward reads y, not x: dx (+)= y (dy - sum dy y), or dy - e^y sum dy. */
typedef struct softmax_args {
    int64_t rows, columns;
    bool logarithm;
    buffer x, y, dy, dx;
    bool add_dx;
} softmax_args;

/* y[o, k, i] = x[o, index, i] with x (outer, n, inner) and y (outer, count, inner). The index is index[k], or of every
 * element its own (index has the shape of y). One outside 0..n-1 gives zero and no gradient.
 * backward: dx (+)= the sum of dy over the k that took it, in order. */
typedef struct gather_args {
    int64_t outer, n, inner, count;
    bool per_element;
    const int32_t *index;
    buffer x, y, dy, dx;
    bool add_dx;
} gather_args;

/* y[r, c] = c == ids[r] ? on : off; a row whose id is `ignore` is 0 throughout. */
typedef struct one_hot_args {
    int64_t rows, classes;
    const int32_t *ids;
    int32_t ignore;
    float on, off;
    buffer y; /* (rows, classes) */
} one_hot_args;

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

/* x (batch, in_channels, in_h, in_w), weight (out_channels, in_channels, kernel_h, kernel_w), y (batch, out_channels,
 * out_h, out_w). */
typedef struct conv2d_args {
    int64_t batch, in_channels, in_h, in_w, out_channels, kernel_h, kernel_w, out_h, out_w;
    int64_t stride_h, stride_w, padding_h, padding_w;
    buffer x, weight, bias, y; /* bias (out_channels), optional */
    buffer dy, dx, d_weight, d_bias;
    bool add_dx, add_weight, add_bias;
    void *workspace;
} conv2d_args;

/* Windows without padding; max keeps the chosen index (int32, within the plane) for backward. Windows may overlap. */
typedef struct pool2d_args {
    bool average;
    int64_t planes, in_h, in_w, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w;
    buffer x, y;
    int32_t *index; /* (planes, out_h, out_w), max only */
    buffer dy, dx;
    bool add_dx;
} pool2d_args;

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

#define NORM_BLOCK 64

/* blocks[i] = sum of squares of elements i*64 .. i*64+63 of x (the last block may be short), in fp32 products and an
 * fp64 sum in an order that the device fixes by places in the block (index order on the CPU): the gradient norm is
 * summed over these blocks so that it has the same bits however the shards are cut. */
typedef struct norm_blocks_args {
    int64_t n;
    buffer x;
    double *blocks; /* (ceil(n / 64)) */
} norm_blocks_args;

/* *out (+)= x[0] + x[1] + ... in index order up to rounding of fixed-size partial sums: the same bits for the same n.
 */
typedef struct sum_f64_args {
    int64_t n;
    const double *x;
    double *out;
    bool add;
} sum_f64_args;

/* Hyperparameters of one optimizer step, in device memory. */
typedef struct optimizer_scalars {
    float lr, beta1, beta2, eps, weight_decay, momentum;
    float bias_correction1, bias_correction2; /* 1 - beta^step */
    float gradient_scale;                     /* clip factor times 1/loss scale */
    uint32_t skip;                            /* 1: leave everything as it is (an overflow was found) */
    float average_decay;                      /* of the average of the weights; 0: it begins with this step */
    uint64_t step;                            /* counted from 1: what 16-bit moments are rounded by */
} optimizer_scalars;

/* ---- Adafactor ----
 *
 * A parameter of two or more dimensions is a list of matrices (rows, columns), whose squared gradients are kept as
 * means of rows and of columns. Ranks hold parts of it, cut anywhere. Sums of squares are kept as two numbers, coarse
 * and fine: each square is first rounded to a multiple of a grid that all agree on, then what is left to one of a finer
 * grid. Multiples add up without rounding, so the sums have the same bits in any order and however the parameter is
 * cut. The grids of rows and columns follow from `total`, the sum of all squares of the gradient; those of whole
 * parameters are 2^-16 and 2^-42. Nothing is done where scalars say skip. */
typedef struct adafactor_part {
    int64_t n, first;          /* elements of the part, and where in the parameter it begins */
    int64_t rows, columns;     /* of a matrix; rows 0: a vector, which has second moments of its own */
    int64_t n_rows, n_columns; /* of all matrices */
    float *gradient;           /* fp32; adafactor_update leaves the update there */
    const float *parameter;    /* fp32 master; NULL: it is copy and low, as optimizer_args has it */
    const uint16_t *copy, *low;
    float *moment2;                            /* of a vector's part */
    double *row_sums;                          /* (2, n_rows), added to */
    double *column_sums;                       /* (2, n_columns), added to */
    double *weight_squares;                    /* (2), added to: of the parameter */
    double *update_squares;                    /* (2), added to: of the update before it is clipped */
    const float *row_factors, *column_factors; /* (n_rows), (n_columns) */
    const double *total;
    const optimizer_scalars *scalars;
} adafactor_part;

/* From the sums over all ranks: row and column means move by beta2 towards those of the scaled squares plus 1e-30, and
 * row_factor = 1 / sqrt(row / mean of its matrix's rows), column_factor = 1 / sqrt(column). */
typedef struct adafactor_factors_args {
    int64_t matrices, rows, columns;
    const double *row_sums, *column_sums;
    float *row_means, *column_means; /* the optimizer's state */
    float *row_factors, *column_factors;
    const optimizer_scalars *scalars;
} adafactor_factors_args;

/* rate[0] = scale ? max(1e-3, root mean square of the parameter) : 1, rate[1] = 1 / max(1, that of the update / clip)
 */
typedef struct adafactor_rate_args {
    int64_t numel;
    const double *weight_squares, *update_squares;
    bool scale;
    float clip;
    float *rate; /* (2) */
} adafactor_rate_args;

/* Muon's first pass over a flat range. With g the scaled gradient: moment = momentum * moment + (1 - momentum) * g, and
 * direction = momentum * moment + (1 - momentum) * g (Nesterov's), in bf16. Nothing is written where scalars say skip.
 */
typedef struct muon_direction_args {
    int64_t n;
    const float *gradient;
    float *moment;
    uint16_t *direction; /* bf16 */
    const optimizer_scalars *scalars;
} muon_direction_args;

/* out = x / max(sqrt(*squares), least) */
typedef struct normalize_args {
    int64_t rows, columns;
    bool transpose; /* out is (columns, rows) */
    buffer x, out;  /* (rows, columns) */
    const double *squares;
    float least;
} normalize_args;

/* totals[0] (+)= *loss_sum, totals[1] (+)= *count: the loss of a step, over its micro-batches. */
typedef struct loss_total_args {
    const float *loss_sum, *count;
    double *totals; /* (2) */
    bool add;
} loss_total_args;

/* Closes a step: from its totals over all ranks {sum of squares of the gradients, sum of losses, count}, how the
 * optimizer is to scale the gradients. They were computed with the loss multiplied by 1/unscale, as a sum, so with f =
 * unscale / (divisor > 0 ? divisor : count): norm = sqrt(totals[0]) * f; scalars->gradient_scale = f * (max_norm > 0 ?
 * min(1, max_norm / (norm + 1e-6)) : 1); scalars->skip = 1 when norm is not finite or count is 0, else 0. report =
 * {norm, totals[1] / count, count, skip}. In fp64. */
typedef struct clip_args {
    const double *totals; /* (3) */
    double unscale, divisor;
    float max_norm;
    float *report; /* (4) */
    optimizer_scalars *scalars;
} clip_args;

/* Numbers first .. first+n-1 of the stream `key` (base/rng.h): normal with mean a and deviation b, or uniform in [a,
 * b). The same bits as on the host. */
typedef struct random_args {
    int64_t n;
    uint32_t key[2];
    uint64_t first;
    bool normal;
    float a, b;
    float *out;
} random_args;

/* fp32 numbers as two halves each, as halves.h says. join: whole from the halves; otherwise the halves from whole. */
typedef struct halves_args {
    int64_t n;
    float *whole;
    uint16_t *high, *low;
    bool join;
} halves_args;

/* Numbers as blocks of 8 bits (int8_block.h): `narrow` makes the blocks of the values, `widen` the values of the
 * blocks. */
typedef struct int8_args {
    int64_t n;     /* a multiple of INT8_BLOCK */
    void *blocks;  /* (n / INT8_BLOCK) of int8_block, at a multiple of 4 bytes */
    buffer values; /* (n) */
} int8_args;

/* One pass over a flat range: parameters, moments, and the low-precision copy that the next gather reads.
 * ADAM adds weight_decay * parameter to the gradient, ADAMW decays the parameter itself. SGD uses moment1 when momentum
 * != 0 (its first step, bias_correction1 == 1, starts the buffer with the gradient). MUON decays as ADAMW does, then
 * takes off lr * direction_scale * direction; it reads neither gradient nor moments. ADAFACTOR, with lr times rate[0],
 * decays as ADAMW does and takes off lr * rate[1] * gradient, which is what adafactor_update left there, in fp32; it
 * has no moments here. `decay` false: weight_decay counts as 0. moment_dtype: fp32, or bf16, to which the new moments
 * are rounded at random (stochastic.h) after the update has used them as they were computed. */
typedef struct optimizer_args {
    fsdp_optimizer_kind kind;
    int64_t n;
    bool decay;
    bool grouped; /* lr_factor multiplies the rate, and weight_decay takes the place of the scalars', decay or not */
    float lr_factor, weight_decay;
    float *parameter;          /* fp32 master */
    const void *gradient;      /* shard of gradient_dtype */
    fsdp_dtype gradient_dtype; /* fp32 or bf16 */
    void *moment1, *moment2;
    fsdp_dtype moment_dtype;
    uint32_t key[2];  /* 16-bit moments: rng_key of the seed and the unit, */
    uint64_t element; /* and where in the unit the range begins */
    float *average;   /* optional: of the parameter over the steps */
    buffer copy;      /* optional: the parameter in param_dtype */
    bool copy_half;   /* copy, of bf16, is rounded as the high half of halves.h is: to nearest, ties away from zero */
    uint16_t *low;    /* devices with `halves`: parameter is NULL, the master is copy (bf16) and these low halves */
    const uint16_t *direction; /* MUON: bf16 */
    float direction_scale;
    const float *rate; /* ADAFACTOR: (2), device memory */
    /* Optional, processors only: where the values from before the update are kept. */
    float *old_parameter, *old_average;
    void *old_moment1, *old_moment2;
    const optimizer_scalars *scalars;
} optimizer_args;

/* Moves `bytes` from `from` to `to`, each begun again at its end, in no less than `seconds`, by as many blocks; 0
 * blocks: by the copy engines. */
typedef struct paced_move_args {
    const void *from;
    void *to;
    size_t from_bytes, to_bytes, bytes;
    double seconds;
    int blocks;
} paced_move_args;

/* X(entry, args): a kernel. W(entry, args): a kernel that may need workspace. */
#define KERNELS(X, W)                                                                                                  \
    W(gemm, gemm_args)                                                                                                 \
    W(symmetric, symmetric_args)                                                                                       \
    X(fp8_cast, fp8_cast_args)                                                                                         \
    X(fp8_count, fp8_count_args)                                                                                       \
    W(column_sum, column_sum_args)                                                                                     \
    W(attention_forward, attention_args)                                                                               \
    W(attention_backward, attention_args)                                                                              \
    X(rope, rope_args)                                                                                                 \
    X(rmsnorm_forward, rmsnorm_args)                                                                                   \
    W(rmsnorm_backward, rmsnorm_args)                                                                                  \
    X(layernorm_forward, layernorm_args)                                                                               \
    W(layernorm_backward, layernorm_args)                                                                              \
    X(batchnorm_forward_reduce, batchnorm_args)                                                                        \
    X(batchnorm_forward_apply, batchnorm_args)                                                                         \
    X(batchnorm_backward_reduce, batchnorm_args)                                                                       \
    X(batchnorm_backward_apply, batchnorm_args)                                                                        \
    X(embedding_forward, embedding_args)                                                                               \
    W(embedding_backward, embedding_args)                                                                              \
    W(cross_entropy_forward, cross_entropy_args)                                                                       \
    X(cross_entropy_backward, cross_entropy_args)                                                                      \
    X(count_right, count_right_args)                                                                                   \
    X(activation_forward, activation_args)                                                                             \
    X(activation_backward, activation_args)                                                                            \
    X(gated_forward, gated_args)                                                                                       \
    X(gated_backward, gated_args)                                                                                      \
    X(axpby, axpby_args)                                                                                               \
    X(multiply, multiply_args)                                                                                         \
    X(fill, fill_args)                                                                                                 \
    X(strided_copy, strided_copy_args)                                                                                 \
    X(map_forward, map_args)                                                                                           \
    X(map_backward, map_args)                                                                                          \
    X(combine, combine_args)                                                                                           \
    X(reduce, reduce_dims_args)                                                                                        \
    X(reduce_backward, reduce_dims_args)                                                                               \
    X(softmax_forward, softmax_args)                                                                                   \
    X(softmax_backward, softmax_args)                                                                                  \
    X(gather_forward, gather_args)                                                                                     \
    X(gather_backward, gather_args)                                                                                    \
    X(one_hot, one_hot_args)                                                                                           \
    X(dropout, dropout_args)                                                                                           \
    W(conv2d_forward, conv2d_args)                                                                                     \
    W(conv2d_backward, conv2d_args)                                                                                    \
    X(pool2d_forward, pool2d_args)                                                                                     \
    X(pool2d_backward, pool2d_args)                                                                                    \
    W(sum, sum_args)                                                                                                   \
    X(squared_error_backward, squared_error_backward_args)                                                             \
    X(norm_blocks, norm_blocks_args)                                                                                   \
    X(sum_f64, sum_f64_args)                                                                                           \
    X(loss_total, loss_total_args)                                                                                     \
    X(clip, clip_args)                                                                                                 \
    X(muon_direction, muon_direction_args)                                                                             \
    X(normalize, normalize_args)                                                                                       \
    X(adafactor_sums, adafactor_part)                                                                                  \
    X(adafactor_factors, adafactor_factors_args)                                                                       \
    X(adafactor_update, adafactor_part)                                                                                \
    X(adafactor_rate, adafactor_rate_args)                                                                             \
    X(narrow, int8_args)                                                                                               \
    X(widen, int8_args)                                                                                                \
    X(optimizer, optimizer_args)

#define KERNEL_ENTRY(entry, args) fsdp_status (*entry)(struct stream * s, const args *a);
#define KERNEL_ENTRY_WITH_WORKSPACE(entry, args)                                                                       \
    fsdp_status (*entry)(struct stream * s, const args *a);                                                            \
    size_t (*entry##_workspace)(const struct device *d, const args *a); /* never NULL */

struct device;

typedef struct kernel_table {
    KERNELS(KERNEL_ENTRY, KERNEL_ENTRY_WITH_WORKSPACE)
} kernel_table;

#endif
