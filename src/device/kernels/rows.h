/* Arguments of kernels over rows: norms, tables, softmax and losses (kernels.h). */
#ifndef DEVICE_KERNELS_ROWS_H
#define DEVICE_KERNELS_ROWS_H

#include "device/kernels/operand.h"

/* y = x / sqrt(mean(x^2) + eps) * (shift + weight); rstd per row is kept for backward. magnitude (optional), here and
 * below: raised to the largest magnitude of y, or in backward of dx, as stored; a NaN counts as the largest. */
typedef struct rmsnorm_args {
    int64_t rows, columns;
    float eps, shift;
    buffer x, weight, y; /* (rows, columns), (columns), (rows, columns) */
    float *rstd;         /* (rows) */
    /* backward */
    buffer dy, dx, d_weight; /* dx optional, d_weight optional */
    bool add_dx, add_weight;
    float *magnitude;
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
    float *magnitude;
    void *workspace;
} layernorm_args;

/* Rows of a table by id. An id outside 0..vocabulary-1 gives zeros and no gradient.
 * backward: every row of d_table is written (or added to). Sums run in row order of x on CPUs; on GPUs, those of an id
 * with many rows in an order that follows from how many they are. The row `padding` gets no gradient, where has_padding
 * says that there is one. */
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

#endif
