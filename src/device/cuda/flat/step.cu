/* The few numbers that close a step: sums of norms, totals of losses, the clip factor. All in fp64, all in fixed order.
 */
#include "device/cuda/vector.cuh"

#define THREADS 256

__global__ void __launch_bounds__(THREADS) sum_f64_share(const double *x, int64_t n, int64_t share, double *partial)
{
    __shared__ double shared[32];
    const int64_t first = blockIdx.x * share, last = min(first + share, n);
    double sum = 0;
#pragma unroll 4
    for (int64_t i = first + threadIdx.x; i < last; i += THREADS)
        sum += x[i];
    sum = block_sum_double(sum, shared);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(THREADS) sum_f64_finish(const double *partial, int n_partials, double *out, bool add)
{
    __shared__ double shared[32];
    double sum = 0;
    for (int i = threadIdx.x; i < n_partials; i += THREADS)
        sum += partial[i];
    sum = block_sum_double(sum, shared);
    if (threadIdx.x == 0)
        *out = (add ? *out : 0.0) + sum;
}

extern "C" cudaError_t launch_sum_f64(const launch *l, const sum_f64_args *a)
{
    const int64_t share = launch_max(THREADS, launch_ceil(launch_ceil(a->n, SUM_PARTIALS), THREADS) * THREADS);
    const int n_partials = (int)launch_ceil(a->n, share);
    if (n_partials > 0)
        sum_f64_share<<<n_partials, THREADS, 0, l->stream>>>(a->x, a->n, share, l->scratch);
    sum_f64_finish<<<1, THREADS, 0, l->stream>>>(l->scratch, n_partials, a->out, a->add);
    return cudaGetLastError();
}

__global__ void loss_total(const loss_total_args a)
{
    a.totals[0] = (a.add ? a.totals[0] : 0.0) + (double)*a.loss_sum;
    a.totals[1] = (a.add ? a.totals[1] : 0.0) + (double)*a.count;
}

extern "C" cudaError_t launch_loss_total(const launch *l, const loss_total_args *a)
{
    loss_total<<<1, 1, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

__global__ void clip(const clip_args a)
{
    const double count = a.totals[2], factor = a.unscale / (a.divisor > 0.0 ? a.divisor : count),
                 norm = sqrt(a.totals[0]) * factor;
    const bool skip = !isfinite(norm) || count == 0.0;
    const double limit = a.max_norm > 0.0f ? fmin(1.0, (double)a.max_norm / (norm + 1e-6)) : 1.0;
    a.scalars->gradient_scale = (float)(factor * limit);
    a.scalars->skip = skip ? 1 : 0;
    a.report[0] = (float)norm;
    a.report[1] = (float)(a.totals[1] / count);
    a.report[2] = (float)count;
    a.report[3] = skip ? 1.0f : 0.0f;
}

extern "C" cudaError_t launch_clip(const launch *l, const clip_args *a)
{
    clip<<<1, 1, 0, l->stream>>>(*a);
    return cudaGetLastError();
}
