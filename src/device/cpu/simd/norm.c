/* RMS and layer normalisation over rows. Statistics are fp32 sums over a row; weight gradients go through row blocks.
 */
#include "device/cpu/simd/row_blocks.h"

static void rmsnorm_forward_row(const void *context, int64_t row)
{
    const rmsnorm_args *a = context;
    float x_scratch[SPAN], w_scratch[SPAN], scratch[SPAN];
    float squares = 0.0f, shift = a->shift;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, row * a->columns + first, n, x_scratch);
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < n; i++)
            squares += x[i] * x[i];
    }
    float rstd = 1.0f / sqrtf(squares / (float)a->columns + a->eps);
    a->rstd[row] = rstd;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t at = row * a->columns + first, n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, at, n, x_scratch);
        const float *w = span_read(a->weight, first, n, w_scratch);
        float *y = span_target(a->y, at, false, scratch);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = x[i] * rstd * (shift + w[i]);
        span_write(a->y, at, n, y, false);
    }
}

SIMD_KERNEL(rmsnorm_forward, rmsnorm_args)
{
    parallel_for(cpu_threads_for(s, a->rows * a->columns), a->rows, 1, rmsnorm_forward_row, a);
    span_raise_largest(a->y, a->rows * a->columns, a->magnitude);
    return FSDP_OK;
}

SIMD_WORKSPACE(rmsnorm_backward, rmsnorm_args)
{
    (void)d;
    return row_blocks_bytes(a->rows, a->columns);
}

/* One row: dx = rstd (w dy - xhat mean(w dy xhat)), and dy xhat added to the partial weight gradient. */
static void rmsnorm_backward_row(const rmsnorm_args *a, int64_t row, float *d_weight)
{
    float x_scratch[SPAN], w_scratch[SPAN], dy_scratch[SPAN], scratch[SPAN];
    float rstd = a->rstd[row], dot = 0.0f, shift = a->shift;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t at = row * a->columns + first, n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, at, n, x_scratch);
        const float *dy = span_read(a->dy, at, n, dy_scratch);
        const float *w = span_read(a->weight, first, n, w_scratch);
        float *dw = d_weight + first;
#pragma omp simd reduction(+ : dot)
        for (int64_t i = 0; i < n; i++) {
            float product = dy[i] * x[i];
            dw[i] += product * rstd;
            dot += product * (shift + w[i]);
        }
    }
    if (!a->dx.p)
        return;
    float mean = dot * rstd / (float)a->columns;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t at = row * a->columns + first, n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, at, n, x_scratch);
        const float *dy = span_read(a->dy, at, n, dy_scratch);
        const float *w = span_read(a->weight, first, n, w_scratch);
        float *dx = span_target(a->dx, at, a->add_dx, scratch);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = rstd * ((shift + w[i]) * dy[i] - x[i] * rstd * mean);
        span_write(a->dx, at, n, dx, a->add_dx);
    }
}

static void rmsnorm_backward_block(const void *context, int64_t block)
{
    const rmsnorm_args *a = context;
    int64_t block_rows = row_block_rows(a->rows), end = min_i64(a->rows, (block + 1) * block_rows);
    float *partial = (float *)a->workspace + block * a->columns;
    memset(partial, 0, (size_t)a->columns * sizeof(float));
    for (int64_t row = block * block_rows; row < end; row++)
        rmsnorm_backward_row(a, row, partial);
}

SIMD_KERNEL(rmsnorm_backward, rmsnorm_args)
{
    int64_t n_blocks = row_block_count(a->rows);
    parallel_for(cpu_threads_for(s, a->rows * a->columns), n_blocks, 1, rmsnorm_backward_block, a);
    if (a->d_weight.p)
        row_blocks_combine(s, &(row_blocks){a->workspace, n_blocks, a->columns, a->d_weight, a->add_weight});
    span_raise_largest(a->dx, a->rows * a->columns, a->magnitude);
    return FSDP_OK;
}

/* Mean first, then the variance about it: two passes over a row that is in the cache, and no cancellation. */
static void layernorm_statistics(const layernorm_args *a, int64_t row)
{
    float scratch[SPAN], sum = 0.0f, squares = 0.0f;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, row * a->columns + first, n, scratch);
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += x[i];
    }
    float mean = sum / (float)a->columns;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, row * a->columns + first, n, scratch);
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < n; i++)
            squares += (x[i] - mean) * (x[i] - mean);
    }
    a->mean[row] = mean;
    a->rstd[row] = 1.0f / sqrtf(squares / (float)a->columns + a->eps);
}

static void layernorm_forward_row(const void *context, int64_t row)
{
    const layernorm_args *a = context;
    layernorm_statistics(a, row);
    float mean = a->mean[row], rstd = a->rstd[row];
    float x_scratch[SPAN], w_scratch[SPAN], b_scratch[SPAN] = {0}, scratch[SPAN];
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t at = row * a->columns + first, n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, at, n, x_scratch);
        const float *w = span_read(a->weight, first, n, w_scratch);
        const float *b = a->bias.p ? span_read(a->bias, first, n, b_scratch) : b_scratch;
        float *y = span_target(a->y, at, false, scratch);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = (x[i] - mean) * rstd * w[i] + b[i];
        span_write(a->y, at, n, y, false);
    }
}

SIMD_KERNEL(layernorm_forward, layernorm_args)
{
    parallel_for(cpu_threads_for(s, a->rows * a->columns), a->rows, 1, layernorm_forward_row, a);
    span_raise_largest(a->y, a->rows * a->columns, a->magnitude);
    return FSDP_OK;
}

SIMD_WORKSPACE(layernorm_backward, layernorm_args)
{
    (void)d;
    return 2 * row_blocks_bytes(a->rows, a->columns);
}

static void layernorm_backward_row(const layernorm_args *a, int64_t row, float *d_weight, float *d_bias)
{
    float x_scratch[SPAN], w_scratch[SPAN], dy_scratch[SPAN], scratch[SPAN];
    float mean = a->mean[row], rstd = a->rstd[row], sum = 0.0f, dot = 0.0f;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t at = row * a->columns + first, n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, at, n, x_scratch);
        const float *dy = span_read(a->dy, at, n, dy_scratch);
        const float *w = span_read(a->weight, first, n, w_scratch);
        float *dw = d_weight + first, *db = d_bias + first;
#pragma omp simd reduction(+ : sum, dot)
        for (int64_t i = 0; i < n; i++) {
            float normed = (x[i] - mean) * rstd;
            dw[i] += dy[i] * normed;
            db[i] += dy[i];
            sum += dy[i] * w[i];
            dot += dy[i] * w[i] * normed;
        }
    }
    if (!a->dx.p)
        return;
    sum /= (float)a->columns;
    dot /= (float)a->columns;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t at = row * a->columns + first, n = min_i64(SPAN, a->columns - first);
        const float *x = span_read(a->x, at, n, x_scratch);
        const float *dy = span_read(a->dy, at, n, dy_scratch);
        const float *w = span_read(a->weight, first, n, w_scratch);
        float *dx = span_target(a->dx, at, a->add_dx, scratch);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            dx[i] = rstd * (w[i] * dy[i] - sum - (x[i] - mean) * rstd * dot);
        span_write(a->dx, at, n, dx, a->add_dx);
    }
}

/* Partial rows of the bias gradient lie after those of the weight gradient. */
static float *layernorm_d_biases(const layernorm_args *a)
{
    return (float *)((char *)a->workspace + row_blocks_bytes(a->rows, a->columns));
}

static void layernorm_backward_block(const void *context, int64_t block)
{
    const layernorm_args *a = context;
    int64_t block_rows = row_block_rows(a->rows), end = min_i64(a->rows, (block + 1) * block_rows);
    float *d_weight = (float *)a->workspace + block * a->columns;
    float *d_bias = layernorm_d_biases(a) + block * a->columns;
    memset(d_weight, 0, (size_t)a->columns * sizeof(float));
    memset(d_bias, 0, (size_t)a->columns * sizeof(float));
    for (int64_t row = block * block_rows; row < end; row++)
        layernorm_backward_row(a, row, d_weight, d_bias);
}

SIMD_KERNEL(layernorm_backward, layernorm_args)
{
    int64_t n_blocks = row_block_count(a->rows);
    parallel_for(cpu_threads_for(s, a->rows * a->columns), n_blocks, 1, layernorm_backward_block, a);
    if (a->d_weight.p)
        row_blocks_combine(s, &(row_blocks){a->workspace, n_blocks, a->columns, a->d_weight, a->add_weight});
    if (a->d_bias.p)
        row_blocks_combine(s, &(row_blocks){layernorm_d_biases(a), n_blocks, a->columns, a->d_bias, a->add_bias});
    span_raise_largest(a->dx, a->rows * a->columns, a->magnitude);
    return FSDP_OK;
}
