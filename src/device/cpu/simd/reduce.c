/* Reductions: column sums, sums of a buffer, squares by blocks. Partial results belong to fixed blocks and are added in
 * order, so neither threads nor shards change the bits. */
#include "device/cpu/simd/row_blocks.h"

SIMD_WORKSPACE(column_sum, column_sum_args)
{
    (void)d;
    return row_blocks_bytes(a->rows, a->columns);
}

static void column_sum_block(const void *context, int64_t block)
{
    const column_sum_args *a = context;
    int64_t block_rows = row_block_rows(a->rows), end = min_i64(a->rows, (block + 1) * block_rows);
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t n = min_i64(SPAN, a->columns - first);
        float *partial = (float *)a->workspace + block * a->columns + first, scratch[SPAN];
        memset(partial, 0, (size_t)n * sizeof(float));
        for (int64_t row = block * block_rows; row < end; row++) {
            const float *x = span_read(a->x, row * a->columns + first, n, scratch);
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                partial[i] += x[i];
        }
    }
}

SIMD_KERNEL(column_sum, column_sum_args)
{
    int64_t n_blocks = row_block_count(a->rows);
    parallel_for(cpu_threads_for(s, a->rows * a->columns), n_blocks, 1, column_sum_block, a);
    row_blocks_combine(s, &(row_blocks){a->workspace, n_blocks, a->columns, a->out, a->add});
    return FSDP_OK;
}

#define SUM_BLOCK (4 * SPAN)

SIMD_WORKSPACE(sum, sum_args)
{
    (void)d;
    return (size_t)ceil_div(a->n, SUM_BLOCK) * sizeof(double);
}

static double sum_span(const sum_args *a, int64_t first, int64_t n)
{
    float x_scratch[SPAN], y_scratch[SPAN];
    const float *x = span_read(a->x, first, n, x_scratch);
    double sum = 0.0;
    if (a->y.p) {
        const float *y = span_read(a->y, first, n, y_scratch);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += (double)((x[i] - y[i]) * (x[i] - y[i]));
    } else if (a->squared) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += (double)(x[i] * x[i]);
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += (double)x[i];
    }
    return sum;
}

static void sum_block(const void *context, int64_t block_first)
{
    const sum_args *a = context;
    int64_t end = min_i64(a->n, block_first + SUM_BLOCK);
    double sum = 0.0;
    for (int64_t first = block_first; first < end; first += SPAN)
        sum += sum_span(a, first, min_i64(SPAN, end - first));
    ((double *)a->workspace)[block_first / SUM_BLOCK] = sum;
}

SIMD_KERNEL(sum, sum_args)
{
    parallel_for(cpu_threads_for(s, a->n), a->n, SUM_BLOCK, sum_block, a);
    const double *partials = a->workspace;
    double total = 0.0;
    for (int64_t block = 0; block < ceil_div(a->n, SUM_BLOCK); block++)
        total += partials[block];
    *a->out = (float)((a->add ? (double)*a->out : 0.0) + a->alpha * total);
    return FSDP_OK;
}

#define NORM_LANES 8 /* blocks summed side by side: each in its own order, together fast */

static void norm_group(const void *context, int64_t first)
{
    const norm_blocks_args *a = context;
    int64_t group = NORM_LANES * NORM_BLOCK;
    float scratch[NORM_LANES * NORM_BLOCK];
    int64_t n = min_i64(group, a->n - first);
    const float *x = span_read(a->x, first, n, scratch);
    double *blocks = a->blocks + first / NORM_BLOCK;
    double sum[NORM_LANES] = {0};
    if (n == group) {
        for (int i = 0; i < NORM_BLOCK; i++) {
            for (int lane = 0; lane < NORM_LANES; lane++) {
                float value = x[lane * NORM_BLOCK + i];
                sum[lane] += (double)(value * value);
            }
        }
    } else {
        for (int64_t i = 0; i < n; i++)
            sum[i / NORM_BLOCK] += (double)(x[i] * x[i]);
    }
    for (int64_t lane = 0; lane < ceil_div(n, NORM_BLOCK); lane++)
        blocks[lane] = sum[lane];
}

SIMD_KERNEL(norm_blocks, norm_blocks_args)
{
    parallel_for(cpu_threads_for(s, a->n), a->n, NORM_LANES * NORM_BLOCK, norm_group, a);
    return FSDP_OK;
}

static void sum_parts_span(const void *context, int64_t first)
{
    const sum_parts_args *a = context;
    int64_t n = min_i64(SPAN, a->n - first);
    float sums[SPAN], scratch[SPAN];
    for (int k = 0; k < a->n_parts; k++) {
        bool mine = k == a->own;
        int64_t at = mine ? first : (k - (k > a->own)) * a->stride + first;
        if (k == 0) {
            span_load(mine ? a->mine : a->parts, at, n, sums);
            continue;
        }
        const float *part = span_read(mine ? a->mine : a->parts, at, n, scratch);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            sums[i] += part[i];
    }
    span_write(a->out, first, n, sums, a->add);
}

SIMD_KERNEL(sum_parts, sum_parts_args)
{
    parallel_for(cpu_threads_for(s, a->n * a->n_parts), a->n, SPAN, sum_parts_span, a);
    return FSDP_OK;
}

#define SUM_LANES 8 /* fixed, so that every instruction set adds in the same order */

SIMD_KERNEL(sum_f64, sum_f64_args)
{
    (void)s;
    double lanes[SUM_LANES] = {0}, total = 0.0;
    int64_t whole = a->n / SUM_LANES * SUM_LANES;
    for (int64_t i = 0; i < whole; i += SUM_LANES) {
        for (int lane = 0; lane < SUM_LANES; lane++)
            lanes[lane] += a->x[i + lane];
    }
    for (int64_t i = whole; i < a->n; i++)
        lanes[i - whole] += a->x[i];
    for (int lane = 0; lane < SUM_LANES; lane++)
        total += lanes[lane];
    *a->out = (a->add ? *a->out : 0.0) + total;
    return FSDP_OK;
}
