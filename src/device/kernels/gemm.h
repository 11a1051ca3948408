/* Arguments of matrix products, and of what makes their operands 8-bit (kernels.h). */
#ifndef DEVICE_KERNELS_GEMM_H
#define DEVICE_KERNELS_GEMM_H

#include "device/kernels/operand.h"

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
 * scale[1] is raised to max |x|, so it must begin as 0, or set to *magnitude where that is known; without q and qt it is
 * all that is written. An x that has the type of qt is only transposed. */
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

#endif
