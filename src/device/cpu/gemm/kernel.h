/* What the blocked product needs to know of a processor's kernel: the shape of its register tile, how it wants the
 * operands packed, and the functions that do it. blocked.c supplies loops, threads and memory.
 *
 * A panel holds `width` rows of op(a), or columns of op(b), over the whole packed depth. Its layout is the kernel's
 * own, with one promise: depth index k (a multiple of k_unit) starts k * width * element_bytes into the panel. */
#ifndef DEVICE_CPU_GEMM_KERNEL_H
#define DEVICE_CPU_GEMM_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/kernels.h"

/* The part of an operand that one panel is packed from: element (i, k) is at p[i * stride_i + k * stride_k], and one of
 * the two strides is 1. */
typedef struct panel_source {
    const void *p;
    fsdp_dtype dtype;
    int64_t stride_i, stride_k;
    int64_t count; /* valid i; the panel is filled up to its width with zeros */
    int64_t depth; /* valid k; filled up to a multiple of k_unit with zeros */
} panel_source;

/* One row of a result: d[j] = alpha * sum[j] + beta * c[j] + bias[j]. c is not read when beta is 0. */
typedef struct result_row {
    const float *sum;
    void *d;
    const void *c;
    const void *bias; /* NULL: none */
    fsdp_dtype d_dtype, c_dtype, bias_dtype;
    float alpha, beta;
} result_row;

enum { FEW_ROWS = 8, FEW_COLUMNS = 256 };

/* A product with so few rows that packing op(b) would cost more than it gains: a strip of at most FEW_COLUMNS columns.
 * x holds `rows` rows of op(a), contiguous in k. */
typedef struct few_rows_strip {
    const void *x, *b; /* b points at the strip: its first column, or with transpose_b its first stored row */
    fsdp_dtype dtype;  /* of both */
    bool transpose_b;
    int64_t x_stride, ldb, rows, columns, depth;
} few_rows_strip;

/* A tile's columns of op(b): a panel. With `rows`, the panel is yet to be filled: the tile reads `valid` columns of
 * op(b) where they lie, a row for each k, and leaves them in the panel. It fetches the lines `ahead` bytes from there.
 */
typedef struct gemm_columns {
    void *panel;
    const char *rows;
    int64_t stride, ahead; /* bytes from one row to the next, and to one that will be needed soon */
    int valid;
} gemm_columns;

/* What a tile's loop fetches into the second-level cache for tiles to come, a step further with every k_unit. Of rows
 * in place it may fetch a_rows, from `a` on, instead. A hint: the addresses may lie outside of the operands. */
typedef struct gemm_ahead {
    const char *a, *b;
    int64_t a_step, b_step; /* bytes */
    int64_t a_rows;
} gemm_ahead;

typedef struct gemm_kernel {
    const char *name;
    int tile_rows, tile_columns;
    int k_unit; /* packed depth is a multiple of this */
    int k_step; /* depth of a pass over a tile: what keeps a panel of op(a) in the first-level cache */
    int block_rows, block_columns; /* the sums that a thread works on at a time; multiples of the tile */
    size_t element_bytes;          /* of packed operands */
    void (*pack_a)(const panel_source *source, void *panel);
    void (*pack_b)(const panel_source *source, void *panel);
    /* sums (rows, tile_columns), row stride `ld`: overwritten, or added to. The buffer has tile_rows rows; only the
     * first `rows` need be right. `depth` is a multiple of k_unit. With an a_stride, a is not a panel but tile_rows
     * rows of op(a) where they lie, so many bytes apart, each contiguous in k. */
    void (*tile)(int64_t depth, const void *a, int64_t a_stride, const gemm_columns *b, const gemm_ahead *ahead,
                 float *sums, int64_t ld, int rows, bool add);
    bool reads_rows;     /* a_stride may be given, where elements of op(a) have element_bytes */
    bool copies_columns; /* b->rows may be given, where elements of op(b) have element_bytes; k_unit is 1 */
    int fetch_step;      /* with copies_columns: after so many of k the tile fetches a line of what comes next */
    void (*store)(const result_row *row, int64_t n);
    void (*few_rows)(const few_rows_strip *strip, float (*sums)[FEW_COLUMNS]);
    /* Per thread, around a run of tiles; NULL where there is no state to set up. */
    void (*enter)(void);
    void (*leave)(void);
} gemm_kernel;

extern const gemm_kernel gemm_portable;

#if defined(__x86_64__)
extern const gemm_kernel avx512_fp32;
extern const gemm_kernel avx512_bf16;
extern const gemm_kernel amx_bf16;
#endif

#endif
