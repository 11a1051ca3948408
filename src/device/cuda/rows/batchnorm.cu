/* Batch normalisation in its four steps. A block owns a channel: it sums in fp64 over rows and area, in fixed order. */
#include "device/cuda/vector.cuh"

#define THREADS 256

/* Element i of a channel's rows * area. */
static __device__ __forceinline__ int64_t element(const batchnorm_args &a, int64_t channel, int64_t i)
{
    return (i / a.area * a.channels + channel) * a.area + i % a.area;
}

template <bool BACKWARD> __global__ void __launch_bounds__(THREADS) batchnorm_reduce(const batchnorm_args a)
{
    __shared__ double shared[2][32];
    const int64_t channel = blockIdx.x, n = a.rows * a.area;
    const float mean = BACKWARD ? a.mean[channel] : 0.0f, rstd = BACKWARD ? a.rstd[channel] : 0.0f;
    double first = 0, second = 0;
    for (int64_t i = threadIdx.x; i < n; i += THREADS) {
        const int64_t at = element(a, channel, i);
        const double x = load_one(a.x.p, a.x.dtype, at);
        const double dy = BACKWARD ? load_one(a.dy.p, a.dy.dtype, at) : x;
        first += dy;
        second += BACKWARD ? dy * ((x - (double)mean) * (double)rstd) : x * x;
    }
    first = block_sum_double(first, shared[0]);
    second = block_sum_double(second, shared[1]);
    if (threadIdx.x == 0) {
        a.sums[channel] = first;
        a.sums[a.channels + channel] = second;
        if (channel == 0)
            a.sums[2 * a.channels] = (double)n;
    }
}

/* Statistics of the channels, and the running ones: a thread a channel, before the elements are normalised. */
__global__ void __launch_bounds__(THREADS) batchnorm_statistics(const batchnorm_args a)
{
    const int64_t channel = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (channel >= a.channels)
        return;
    double mean, variance;
    if (a.evaluate) {
        mean = a.running_mean[channel];
        variance = a.running_var[channel];
    } else {
        const double count = a.sums[2 * a.channels];
        mean = a.sums[channel] / count;
        variance = fmax(0.0, a.sums[a.channels + channel] / count - mean * mean);
        if (a.momentum > 0.0f) {
            const double unbiased = count > 1.0 ? variance * count / (count - 1.0) : variance, move = a.momentum;
            a.running_mean[channel] = (float)((1.0 - move) * a.running_mean[channel] + move * mean);
            a.running_var[channel] = (float)((1.0 - move) * a.running_var[channel] + move * unbiased);
        }
    }
    a.mean[channel] = (float)mean;
    a.rstd[channel] = (float)(1.0 / sqrt(variance + (double)a.eps));
}

template <bool BACKWARD> __global__ void __launch_bounds__(THREADS) batchnorm_apply(const batchnorm_args a)
{
    const int64_t n = a.batch * a.channels * a.area, counted = a.rows * a.channels * a.area;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * THREADS) {
        const int64_t channel = i / a.area % a.channels;
        const float mean = a.mean[channel], rstd = a.rstd[channel];
        const float weight = a.weight.p ? load_one(a.weight.p, a.weight.dtype, channel) : 1.0f;
        const float xhat = (load_one(a.x.p, a.x.dtype, i) - mean) * rstd;
        floats<1> value;
        if (!BACKWARD) {
            value.v[0] = xhat * weight + (a.bias.p ? load_one(a.bias.p, a.bias.dtype, channel) : 0.0f);
            store<DYNAMIC, 1>(a.y, i, value);
            continue;
        }
        float dy = load_one(a.dy.p, a.dy.dtype, i);
        if (!a.evaluate) {
            const double count = a.sums[2 * a.channels];
            dy -= (float)(a.sums[channel] / count) + xhat * (float)(a.sums[a.channels + channel] / count);
        }
        value.v[0] = i < counted ? weight * rstd * dy : 0.0f;
        store_or_add<DYNAMIC, 1>(a.dx, i, value, a.add_dx);
    }
}

__global__ void __launch_bounds__(THREADS) batchnorm_weights(const batchnorm_args a)
{
    const int64_t channel = blockIdx.x * (int64_t)THREADS + threadIdx.x;
    if (channel >= a.channels)
        return;
    const floats<1> d_bias = {{(float)a.local_sums[channel]}}, d_weight = {{(float)a.local_sums[a.channels + channel]}};
    if (a.d_weight.p)
        store_or_add<DYNAMIC, 1>(a.d_weight, channel, d_weight, a.add_weight);
    if (a.d_bias.p)
        store_or_add<DYNAMIC, 1>(a.d_bias, channel, d_bias, a.add_bias);
}

static unsigned channel_blocks(const batchnorm_args *a)
{
    return (unsigned)launch_ceil(a->channels, THREADS);
}

static bool is_empty(const batchnorm_args *a)
{
    return a->batch == 0 || a->channels == 0 || a->area == 0;
}

extern "C" cudaError_t launch_batchnorm_forward_reduce(const launch *l, const batchnorm_args *a)
{
    if (a->channels == 0)
        return cudaSuccess;
    batchnorm_reduce<false><<<(unsigned)a->channels, THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_batchnorm_forward_apply(const launch *l, const batchnorm_args *a)
{
    if (is_empty(a))
        return cudaSuccess;
    if (a->sums) /* without, a replay: mean and rstd are there, and nothing moves again */
        batchnorm_statistics<<<channel_blocks(a), THREADS, 0, l->stream>>>(*a);
    batchnorm_apply<false><<<flat_blocks(l, a->batch * a->channels * a->area, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_batchnorm_backward_reduce(const launch *l, const batchnorm_args *a)
{
    if (a->channels == 0)
        return cudaSuccess;
    batchnorm_reduce<true><<<(unsigned)a->channels, THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_batchnorm_backward_apply(const launch *l, const batchnorm_args *a)
{
    if (is_empty(a))
        return cudaSuccess;
    if (a->dx.p)
        batchnorm_apply<true><<<flat_blocks(l, a->batch * a->channels * a->area, THREADS), THREADS, 0, l->stream>>>(*a);
    if (a->local_sums && (a->d_weight.p || a->d_bias.p))
        batchnorm_weights<<<channel_blocks(a), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}
