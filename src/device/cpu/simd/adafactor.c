/* Adafactor's statistics and updates, as kernels.h says. Columns are summed by threads that have columns of their own,
 * rows by threads that have rows; sums of whole parameters are added up from all threads, which changes no bit. */
#include "device/cpu/simd/span.h"

#include "device/exact_sums.h"
#include "device/halves.h"

enum { COLUMNS = 64, ROWS = 8, CHUNK = 16 * SPAN };

typedef struct summing {
    const adafactor_part *args;
    exact_grid grid;
    int64_t first_row; /* that the part touches */
} summing;

/* Columns [*from, *end) of row `row` lie in the part. */
static void columns_of(const adafactor_part *a, int64_t row, int64_t *from, int64_t *end)
{
    *from = max_i64(0, a->first - row * a->columns);
    *end = min_i64(a->columns, a->first + a->n - row * a->columns);
}

static void sum_columns(const void *context, int64_t first)
{
    const summing *x = context;
    const adafactor_part *a = x->args;
    exact_grid grid = x->grid;
    for (int64_t row = x->first_row; row * a->columns < a->first + a->n; row++) {
        int64_t from, end;
        columns_of(a, row, &from, &end);
        from = max_i64(from, first);
        end = min_i64(end, first + COLUMNS);
        const float *gradient = a->gradient + (row * a->columns - a->first);
        double *coarse = a->column_sums + row / a->rows * a->columns, *fine = coarse + a->n_columns;
        for (int64_t j = from; j < end; j++) {
            double left = (double)gradient[j] * (double)gradient[j];
            coarse[j] += exact_take(&left, grid.coarse);
            fine[j] += exact_take(&left, grid.fine);
        }
    }
}

static void sum_rows(const void *context, int64_t first)
{
    const summing *x = context;
    const adafactor_part *a = x->args;
    exact_grid grid = x->grid;
    for (int64_t row = x->first_row + first; row < x->first_row + first + ROWS; row++) {
        int64_t from, end;
        double coarse = 0, fine = 0;
        columns_of(a, row, &from, &end);
        if (from >= end)
            continue;
        const float *gradient = a->gradient + (row * a->columns - a->first);
        for (int64_t j = from; j < end; j++) {
            double left = (double)gradient[j] * (double)gradient[j];
            coarse += exact_take(&left, grid.coarse);
            fine += exact_take(&left, grid.fine);
        }
        a->row_sums[row] += coarse;
        a->row_sums[a->n_rows + row] += fine;
    }
}

/* *to += value, from any thread. */
static void add_from_thread(double *to, double value)
{
    double seen = *to, sum;
    do
        sum = seen + value;
    while (!__atomic_compare_exchange(to, &seen, &sum, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

static void add_squares(double *sums, const float *values, int64_t n)
{
    exact_grid grid = exact_fixed_grid();
    double coarse = 0, fine = 0;
    for (int64_t i = 0; i < n; i++) {
        double left = (double)values[i] * (double)values[i];
        coarse += exact_take(&left, grid.coarse);
        fine += exact_take(&left, grid.fine);
    }
    add_from_thread(&sums[0], coarse);
    add_from_thread(&sums[1], fine);
}

static void sum_weights(const void *context, int64_t first)
{
    const adafactor_part *a = context;
    float whole[SPAN];
    for (int64_t at = first, end = min_i64(first + CHUNK, a->n); at < end; at += SPAN) {
        int64_t n = min_i64(SPAN, end - at);
        for (int64_t i = 0; !a->parameter && i < n; i++) /* halves */
            whole[i] = float_bits_to(halves_join(a->copy[at + i], a->low[at + i]));
        add_squares(a->weight_squares, a->parameter ? a->parameter + at : whole, n);
    }
}

SIMD_KERNEL(adafactor_sums, adafactor_part)
{
    int threads = cpu_threads_for(s, a->n);
    if (a->scalars->skip || a->n == 0)
        return FSDP_OK;
    parallel_for(threads, a->n, CHUNK, sum_weights, a);
    if (a->rows == 0)
        return FSDP_OK;
    summing x = {a, exact_grid_of(*a->total, max_i64(a->rows, a->columns)), a->first / a->columns};
    int64_t n_rows = (a->first + a->n - 1) / a->columns - x.first_row + 1;
    parallel_for(threads, a->columns, COLUMNS, sum_columns, &x);
    parallel_for(threads, n_rows, ROWS, sum_rows, &x);
    return FSDP_OK;
}

/* The mean of `count` squares: what the sums say, scaled as the gradient is. */
static float moved_mean(const optimizer_scalars *n, float mean, const double *sums, int64_t at, int64_t fine,
                        int64_t count)
{
    double scale = (double)n->gradient_scale * (double)n->gradient_scale;
    float now = (float)((sums[at] + sums[fine + at]) * scale / (double)count + 1e-30);
    return n->beta2 * mean + (1.0f - n->beta2) * now;
}

static void make_factors(const void *context, int64_t matrix)
{
    const adafactor_factors_args *a = context;
    int64_t row = matrix * a->rows, column = matrix * a->columns;
    double sum = 0;
    for (int64_t i = row; i < row + a->rows; i++) {
        a->row_means[i] = moved_mean(a->scalars, a->row_means[i], a->row_sums, i, a->matrices * a->rows, a->columns);
        sum += (double)a->row_means[i];
    }
    float mean = (float)(sum / (double)a->rows);
    for (int64_t i = row; i < row + a->rows; i++)
        a->row_factors[i] = 1.0f / sqrtf(a->row_means[i] / mean);
    for (int64_t i = column; i < column + a->columns; i++) {
        a->column_means[i] =
            moved_mean(a->scalars, a->column_means[i], a->column_sums, i, a->matrices * a->columns, a->rows);
        a->column_factors[i] = 1.0f / sqrtf(a->column_means[i]);
    }
}

SIMD_KERNEL(adafactor_factors, adafactor_factors_args)
{
    if (!a->scalars->skip)
        parallel_for(cpu_threads_for(s, a->matrices * (a->rows + a->columns)), a->matrices, 1, make_factors, a);
    return FSDP_OK;
}

static void update_vector(const adafactor_part *a, int64_t first, int64_t n)
{
    float beta2 = a->scalars->beta2, rest = 1.0f - beta2, scale = a->scalars->gradient_scale;
    float *restrict gradient = a->gradient + first, *restrict moment = a->moment2 + first;
    for (int64_t i = 0; i < n; i++) {
        float g = gradient[i] * scale, v = beta2 * moment[i] + rest * (g * g + 1e-30f);
        moment[i] = v;
        gradient[i] = g * (1.0f / sqrtf(v));
    }
}

static void update_matrices(const adafactor_part *a, int64_t first, int64_t n)
{
    float scale = a->scalars->gradient_scale;
    for (int64_t at = a->first + first, last = at + n; at < last;) {
        int64_t row = at / a->columns, column = at % a->columns, end = min_i64(last, (row + 1) * a->columns);
        float *restrict gradient = a->gradient + (at - a->first), of_row = a->row_factors[row];
        const float *restrict factors = a->column_factors + row / a->rows * a->columns + column;
        for (int64_t i = 0; i < end - at; i++)
            gradient[i] = gradient[i] * scale * (of_row * factors[i]);
        at = end;
    }
}

static void update_chunk(const void *context, int64_t first)
{
    const adafactor_part *a = context;
    int64_t n = min_i64(CHUNK, a->n - first);
    if (a->rows == 0)
        update_vector(a, first, n);
    else
        update_matrices(a, first, n);
    add_squares(a->update_squares, a->gradient + first, n);
}

SIMD_KERNEL(adafactor_update, adafactor_part)
{
    if (!a->scalars->skip)
        parallel_for(cpu_threads_for(s, a->n), a->n, CHUNK, update_chunk, a);
    return FSDP_OK;
}

SIMD_KERNEL(adafactor_rate, adafactor_rate_args)
{
    (void)s;
    float weights = (float)sqrt((a->weight_squares[0] + a->weight_squares[1]) / (double)a->numel);
    float updates = (float)sqrt((a->update_squares[0] + a->update_squares[1]) / (double)a->numel);
    a->rate[0] = !a->scale ? 1.0f : weights > 1e-3f ? weights : 1e-3f;
    a->rate[1] = updates > a->clip ? 1.0f / (updates / a->clip) : 1.0f;
    return FSDP_OK;
}
