/* Adafactor's statistics and updates, as kernels.h says. Sums are added with atomics: they are exact, so the order in
 * which blocks come does not change a bit. */
#include "device/cuda/vector.cuh"
#include "device/exact_sums.h"
#include "device/halves.h"

#define THREADS 256
#define WARP 32
#define ROWS_AT_ONCE 64 /* that a thread sums for its column before it adds to memory */

static __device__ __forceinline__ double take(double &left, double grid)
{
    const double taken = __dadd_rn(__dadd_rn(left, grid), -grid);
    left = __dadd_rn(left, -taken);
    return taken;
}

static __device__ __forceinline__ double add_lanes(double x)
{
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* A warp's sums, added to memory by its first lane. */
static __device__ __forceinline__ void add_warp(double *to, double coarse, double *fine_to, double fine)
{
    coarse = add_lanes(coarse);
    fine = add_lanes(fine);
    if (threadIdx.x % WARP == 0) {
        atomicAdd(to, coarse);
        atomicAdd(fine_to, fine);
    }
}

__global__ void __launch_bounds__(THREADS) adafactor_weights(const adafactor_part a)
{
    if (a.scalars->skip)
        return;
    const exact_grid grid = exact_fixed_grid();
    double coarse = 0, fine = 0;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < a.n; i += (int64_t)gridDim.x * THREADS) {
        const float p = a.parameter ? a.parameter[i] : __uint_as_float(halves_join(a.copy[i], a.low[i]));
        double left = (double)p * (double)p;
        coarse += take(left, grid.coarse);
        fine += take(left, grid.fine);
    }
    add_warp(&a.weight_squares[0], coarse, &a.weight_squares[1], fine);
}

/* A thread has a column, a block some neighbouring rows. */
__global__ void __launch_bounds__(THREADS) adafactor_columns(const adafactor_part a)
{
    const int64_t column = blockIdx.x * (int64_t)THREADS + threadIdx.x, last_row = (a.first + a.n - 1) / a.columns;
    if (a.scalars->skip || column >= a.columns)
        return;
    const exact_grid grid = exact_grid_of(*a.total, a.rows > a.columns ? a.rows : a.columns);
    for (int64_t block = a.first / a.columns + blockIdx.y * (int64_t)ROWS_AT_ONCE; block <= last_row;
         block += gridDim.y * (int64_t)ROWS_AT_ONCE) {
        double coarse = 0, fine = 0;
        for (int64_t row = block; row <= last_row && row < block + ROWS_AT_ONCE; row++) {
            const int64_t at = row * a.columns + column - a.first;
            if (at >= 0 && at < a.n) {
                double left = (double)a.gradient[at] * (double)a.gradient[at];
                coarse += take(left, grid.coarse);
                fine += take(left, grid.fine);
            }
            if (row == last_row || row + 1 == block + ROWS_AT_ONCE || (row + 1) % a.rows == 0) {
                double *to = a.column_sums + row / a.rows * a.columns + column;
                atomicAdd(to, coarse);
                atomicAdd(to + a.n_columns, fine);
                coarse = fine = 0;
            }
        }
    }
}

/* A warp has a row. */
__global__ void __launch_bounds__(THREADS) adafactor_rows(const adafactor_part a)
{
    const int64_t last_row = (a.first + a.n - 1) / a.columns, step = gridDim.x * (int64_t)(THREADS / WARP);
    if (a.scalars->skip)
        return;
    const exact_grid grid = exact_grid_of(*a.total, a.rows > a.columns ? a.rows : a.columns);
    for (int64_t row = a.first / a.columns + blockIdx.x * (int64_t)(THREADS / WARP) + threadIdx.x / WARP;
         row <= last_row; row += step) {
        double coarse = 0, fine = 0;
        for (int64_t column = threadIdx.x % WARP; column < a.columns; column += WARP) {
            const int64_t at = row * a.columns + column - a.first;
            if (at < 0 || at >= a.n)
                continue;
            double left = (double)a.gradient[at] * (double)a.gradient[at];
            coarse += take(left, grid.coarse);
            fine += take(left, grid.fine);
        }
        add_warp(&a.row_sums[row], coarse, &a.row_sums[a.n_rows + row], fine);
    }
}

extern "C" cudaError_t launch_adafactor_sums(const launch *l, const adafactor_part *a)
{
    if (a->n == 0)
        return cudaSuccess;
    adafactor_weights<<<flat_blocks(l, a->n, THREADS), THREADS, 0, l->stream>>>(*a);
    if (a->rows > 0) {
        const int64_t n_rows = (a->first + a->n - 1) / a->columns - a->first / a->columns + 1;
        const dim3 columns((unsigned)launch_ceil(a->columns, THREADS),
                           (unsigned)launch_min(launch_ceil(n_rows, ROWS_AT_ONCE), 65535));
        adafactor_columns<<<columns, THREADS, 0, l->stream>>>(*a);
        adafactor_rows<<<flat_blocks(l, n_rows * WARP, THREADS), THREADS, 0, l->stream>>>(*a);
    }
    return cudaGetLastError();
}

static __device__ __forceinline__ float moved_mean(const optimizer_scalars *n, float mean, double sum, int64_t count)
{
    const double scale = (double)n->gradient_scale * (double)n->gradient_scale;
    const float now = (float)(sum * scale / (double)count + 1e-30);
    return n->beta2 * mean + (1.0f - n->beta2) * now;
}

/* A block has a matrix. The mean of its rows is summed in an order that depends on its size alone. */
__global__ void __launch_bounds__(THREADS) adafactor_factors(const adafactor_factors_args a)
{
    __shared__ double sums[THREADS];
    if (a.scalars->skip)
        return;
    for (int64_t matrix = blockIdx.x; matrix < a.matrices; matrix += gridDim.x) {
        const int64_t row = matrix * a.rows, column = matrix * a.columns;
        const int64_t all_rows = a.matrices * a.rows, all_columns = a.matrices * a.columns;
        double sum = 0;
        for (int64_t i = row + threadIdx.x; i < row + a.rows; i += THREADS) {
            a.row_means[i] = moved_mean(a.scalars, a.row_means[i], a.row_sums[i] + a.row_sums[all_rows + i], a.columns);
            sum += (double)a.row_means[i];
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        for (int half = THREADS / 2; half > 0; half >>= 1) {
            if (threadIdx.x < half)
                sums[threadIdx.x] += sums[threadIdx.x + half];
            __syncthreads();
        }
        const float mean = (float)(sums[0] / (double)a.rows);
        __syncthreads();
        for (int64_t i = row + threadIdx.x; i < row + a.rows; i += THREADS)
            a.row_factors[i] = 1.0f / sqrtf(a.row_means[i] / mean);
        for (int64_t i = column + threadIdx.x; i < column + a.columns; i += THREADS) {
            a.column_means[i] =
                moved_mean(a.scalars, a.column_means[i], a.column_sums[i] + a.column_sums[all_columns + i], a.rows);
            a.column_factors[i] = 1.0f / sqrtf(a.column_means[i]);
        }
    }
}

extern "C" cudaError_t launch_adafactor_factors(const launch *l, const adafactor_factors_args *a)
{
    if (a->matrices > 0)
        adafactor_factors<<<(unsigned)launch_min(a->matrices, 65535), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS) adafactor_update(const adafactor_part a)
{
    if (a.scalars->skip)
        return;
    const exact_grid grid = exact_fixed_grid();
    const float beta2 = a.scalars->beta2, scale = a.scalars->gradient_scale;
    double coarse = 0, fine = 0;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < a.n; i += (int64_t)gridDim.x * THREADS) {
        float g = a.gradient[i] * scale;
        if (a.rows == 0) {
            const float v = beta2 * a.moment2[i] + (1.0f - beta2) * (g * g + 1e-30f);
            a.moment2[i] = v;
            g *= 1.0f / sqrtf(v);
        } else {
            const int64_t row = (a.first + i) / a.columns, column = (a.first + i) - row * a.columns;
            g *= a.row_factors[row] * a.column_factors[row / a.rows * a.columns + column];
        }
        a.gradient[i] = g;
        double left = (double)g * (double)g;
        coarse += take(left, grid.coarse);
        fine += take(left, grid.fine);
    }
    add_warp(&a.update_squares[0], coarse, &a.update_squares[1], fine);
}

extern "C" cudaError_t launch_adafactor_update(const launch *l, const adafactor_part *a)
{
    if (a->n > 0)
        adafactor_update<<<flat_blocks(l, a->n, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

__global__ void adafactor_rate(const adafactor_rate_args a)
{
    const float weights = (float)sqrt((a.weight_squares[0] + a.weight_squares[1]) / (double)a.numel);
    const float updates = (float)sqrt((a.update_squares[0] + a.update_squares[1]) / (double)a.numel);
    a.rate[0] = a.scale ? fmaxf(weights, 1e-3f) : 1.0f;
    a.rate[1] = updates > a.clip ? 1.0f / (updates / a.clip) : 1.0f;
}

extern "C" cudaError_t launch_adafactor_rate(const launch *l, const adafactor_rate_args *a)
{
    adafactor_rate<<<1, 1, 0, l->stream>>>(*a);
    return cudaGetLastError();
}
