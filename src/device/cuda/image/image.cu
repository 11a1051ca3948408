/* Pooling, and the parts of convolution that are not products: images laid out as columns and back, channel biases. A
 * gradient is gathered by the element it belongs to, never scattered, so no two threads add to one place. */
#include "device/cuda/vector.cuh"

#define THREADS 256
#define FOR_EACH(i, n)                                                                                                 \
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (n); i += (int64_t)gridDim.x * blockDim.x)

__global__ void __launch_bounds__(THREADS) pool2d_forward(const pool2d_args a)
{
    const int64_t out_area = a.out_h * a.out_w, in_area = a.in_h * a.in_w;
    FOR_EACH(o, a.planes * out_area)
    {
        const int64_t plane = o / out_area, top = o % out_area / a.out_w * a.stride_h, left = o % a.out_w * a.stride_w;
        int64_t best = top * a.in_w + left;
        float value = load_one(a.x.p, a.x.dtype, plane * in_area + best), sum = 0;
        for (int64_t h = top; h < top + a.kernel_h; h++)
            for (int64_t w = left; w < left + a.kernel_w; w++) {
                const float x = load_one(a.x.p, a.x.dtype, plane * in_area + h * a.in_w + w);
                sum += x;
                if (x > value || (isnan(x) && !isnan(value))) {
                    value = x;
                    best = h * a.in_w + w;
                }
            }
        if (a.average)
            value = sum / (float)(a.kernel_h * a.kernel_w);
        else
            a.index[o] = (int32_t)best;
        store_one(a.y.p, a.y.dtype, o, value);
    }
}

/* Windows along one axis that cover position `at`: first .. last. */
static __device__ __forceinline__ void windows(int64_t at, int64_t kernel, int64_t stride, int64_t n, int64_t &first,
                                               int64_t &last)
{
    first = at < kernel ? 0 : (at - kernel) / stride + 1;
    last = min(at / stride, n - 1);
}

__global__ void __launch_bounds__(THREADS) pool2d_backward(const pool2d_args a)
{
    const int64_t out_area = a.out_h * a.out_w, in_area = a.in_h * a.in_w;
    FOR_EACH(i, a.planes * in_area)
    {
        const int64_t plane = i / in_area, at = i % in_area;
        int64_t top, bottom, left, right;
        windows(at / a.in_w, a.kernel_h, a.stride_h, a.out_h, top, bottom);
        windows(at % a.in_w, a.kernel_w, a.stride_w, a.out_w, left, right);
        float sum = 0;
        for (int64_t h = top; h <= bottom; h++)
            for (int64_t w = left; w <= right; w++) {
                const int64_t o = plane * out_area + h * a.out_w + w;
                if (a.average || a.index[o] == (int32_t)at)
                    sum += load_one(a.dy.p, a.dy.dtype, o);
            }
        const floats<1> value = {{a.average ? sum / (float)(a.kernel_h * a.kernel_w) : sum}};
        store_or_add<DYNAMIC, 1>(a.dx, i, value, a.add_dx);
    }
}

extern "C" cudaError_t launch_pool2d_forward(const launch *l, const pool2d_args *a)
{
    const int64_t n = a->planes * a->out_h * a->out_w;
    if (n == 0)
        return cudaSuccess;
    pool2d_forward<<<flat_blocks(l, n, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_pool2d_backward(const launch *l, const pool2d_args *a)
{
    const int64_t n = a->planes * a->in_h * a->in_w;
    if (n == 0)
        return cudaSuccess;
    pool2d_backward<<<flat_blocks(l, n, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

/* columns: (images, in_channels * kernel_h * kernel_w, out_h * out_w), of x's type. */
__global__ void __launch_bounds__(THREADS)
    image_to_columns(const conv2d_args a, int64_t first, int64_t images, void *columns)
{
    const int64_t out_area = a.out_h * a.out_w, depth = a.in_channels * a.kernel_h * a.kernel_w;
    FOR_EACH(i, images * depth * out_area)
    {
        const int64_t o = i % out_area, e = i / out_area % depth, image = i / (out_area * depth);
        const int64_t w = o % a.out_w * a.stride_w + e % a.kernel_w - a.padding_w;
        const int64_t h = o / a.out_w * a.stride_h + e / a.kernel_w % a.kernel_h - a.padding_h;
        const int64_t channel = (first + image) * a.in_channels + e / (a.kernel_h * a.kernel_w);
        float value = 0;
        if (h >= 0 && h < a.in_h && w >= 0 && w < a.in_w)
            value = load_one(a.x.p, a.x.dtype, (channel * a.in_h + h) * a.in_w + w);
        store_one(columns, a.x.dtype, i, value);
    }
}

__global__ void __launch_bounds__(THREADS)
    columns_to_image(const conv2d_args a, int64_t first, int64_t images, const float *columns)
{
    const int64_t out_area = a.out_h * a.out_w, in_area = a.in_h * a.in_w, kernel = a.kernel_h * a.kernel_w;
    FOR_EACH(i, images * a.in_channels * in_area)
    {
        const int64_t w = i % a.in_w + a.padding_w, h = i / a.in_w % a.in_h + a.padding_h, plane = i / in_area;
        int64_t top, bottom, left, right;
        windows(h, a.kernel_h, a.stride_h, a.out_h, top, bottom);
        windows(w, a.kernel_w, a.stride_w, a.out_w, left, right);
        float sum = 0;
        for (int64_t oh = top; oh <= bottom; oh++)
            for (int64_t ow = left; ow <= right; ow++) {
                const int64_t e = (h - oh * a.stride_h) * a.kernel_w + w - ow * a.stride_w;
                sum += columns[(plane * kernel + e) * out_area + oh * a.out_w + ow];
            }
        const floats<1> value = {{sum}};
        store_or_add<DYNAMIC, 1>(a.dx, first * a.in_channels * in_area + i, value, a.add_dx);
    }
}

extern "C" cudaError_t launch_image_to_columns(const launch *l, const conv2d_args *a, int64_t first, int64_t images,
                                               void *columns)
{
    const int64_t n = images * a->in_channels * a->kernel_h * a->kernel_w * a->out_h * a->out_w;
    image_to_columns<<<flat_blocks(l, n, THREADS), THREADS, 0, l->stream>>>(*a, first, images, columns);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_columns_to_image(const launch *l, const conv2d_args *a, int64_t first, int64_t images,
                                               const float *columns)
{
    const int64_t n = images * a->in_channels * a->in_h * a->in_w;
    columns_to_image<<<flat_blocks(l, n, THREADS), THREADS, 0, l->stream>>>(*a, first, images, columns);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS) channel_bias(const conv2d_args a)
{
    const int64_t area = a.out_h * a.out_w;
    FOR_EACH(i, a.batch * a.out_channels * area)
    store_one(a.y.p, a.y.dtype, i, load_one(a.bias.p, a.bias.dtype, i / area % a.out_channels));
}

extern "C" cudaError_t launch_channel_bias(const launch *l, const conv2d_args *a)
{
    const int64_t n = a->batch * a->out_channels * a->out_h * a->out_w;
    channel_bias<<<flat_blocks(l, n, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

/* A block a channel, in fp64. */
__global__ void __launch_bounds__(THREADS) channel_bias_backward(const conv2d_args a)
{
    __shared__ double shared[THREADS / 32];
    const int64_t area = a.out_h * a.out_w, channel = blockIdx.x;
    double sum = 0;
    for (int64_t i = threadIdx.x; i < a.batch * area; i += THREADS)
        sum += load_one(a.dy.p, a.dy.dtype, (i / area * a.out_channels + channel) * area + i % area);
    for (int offset = 16; offset > 0; offset >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if ((threadIdx.x & 31) == 0)
        shared[threadIdx.x >> 5] = sum;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    sum = 0;
    for (int i = 0; i < THREADS / 32; i++)
        sum += shared[i];
    const floats<1> value = {{(float)sum}};
    store_or_add<DYNAMIC, 1>(a.d_bias, channel, value, a.add_bias);
}

extern "C" cudaError_t launch_channel_bias_backward(const launch *l, const conv2d_args *a)
{
    channel_bias_backward<<<(unsigned)a->out_channels, THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}
