/* Sums over rows (weight gradients, bias gradients) in two steps: each block of rows sums into a partial row of its
 * own, then the partial rows are added in order. The blocks depend on the number of rows alone, so the bits do not
 * depend on the number of threads. */
#ifndef DEVICE_CPU_SIMD_ROW_BLOCKS_H
#define DEVICE_CPU_SIMD_ROW_BLOCKS_H

#include "device/cpu/simd/span.h"

#define ROW_BLOCKS_MAX 64

static inline int64_t row_block_rows(int64_t rows)
{
    return max_i64(8, ceil_div(rows, ROW_BLOCKS_MAX));
}

static inline int64_t row_block_count(int64_t rows)
{
    return ceil_div(rows, row_block_rows(rows));
}

static inline size_t row_blocks_bytes(int64_t rows, int64_t columns)
{
    return round_up((size_t)row_block_count(rows) * (size_t)columns * sizeof(float), 256);
}

#define COMBINED_COLUMNS 256 /* at a time */

/* out (+)= the sum of `n_blocks` partial rows. No rows at all give zeros. */
typedef struct row_blocks {
    const float *partials; /* (n_blocks, columns) */
    int64_t n_blocks, columns;
    buffer out; /* (columns) */
    bool add;
} row_blocks;

static inline void row_blocks_combine_columns(const void *context, int64_t first)
{
    const row_blocks *r = context;
    int64_t n = min_i64(COMBINED_COLUMNS, r->columns - first);
    float sum[COMBINED_COLUMNS] = {0};
    for (int64_t block = 0; block < r->n_blocks; block++) {
        const float *partial = r->partials + block * r->columns + first;
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            sum[i] += partial[i];
    }
    span_write(r->out, first, n, sum, r->add);
}

static inline void row_blocks_combine(const struct stream *s, const row_blocks *r)
{
    int threads = cpu_threads_for(s, r->n_blocks * r->columns);
    parallel_for(threads, r->columns, COMBINED_COLUMNS, row_blocks_combine_columns, r);
}

#endif
