/* Functions of one element, arithmetic on operands with strides, reductions over any dimensions, softmax of rows,
 * elements by index. General rather than tuned: what a language model spends its time on has kernels of its own. */
#include "device/cuda/vector.cuh"
#include "device/element_math.h"

#define THREADS 256

#define FOR_ITEMS(i, n)                                                                                                \
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < (n); i += gridDim.x * (int64_t)blockDim.x)

static __device__ __forceinline__ void write_one(const buffer b, int64_t i, float value, bool add)
{
    store_one(b.p, b.dtype, i, add ? load_one(b.p, b.dtype, i) + value : value);
}

static __device__ float map_value(map_kind kind, float power, float x)
{
    switch (kind) {
    case MAP_EXP:
        return expf(x);
    case MAP_LOG:
        return logf(x);
    case MAP_SQRT:
        return sqrtf(x);
    case MAP_SIGMOID:
        return sigmoid_of(x);
    case MAP_TANH:
        return tanhf(x);
    case MAP_SOFTPLUS:
        return softplus_of(x);
    default:
        return powf(x, power);
    }
}

__global__ void __launch_bounds__(THREADS) map_forward(const map_args a)
{
    FOR_ITEMS(i, a.n)
    store_one(a.y.p, a.y.dtype, i, map_value(a.kind, a.power, load_one(a.x.p, a.x.dtype, i)));
}

extern "C" cudaError_t launch_map_forward(const launch *l, const map_args *a)
{
    if (a->n > 0)
        map_forward<<<flat_blocks(l, a->n, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS) map_backward(const map_args a)
{
    FOR_ITEMS(i, a.n)
    write_one(a.dx, i, map_slope(a.kind, a.power, load_one(a.x.p, a.x.dtype, i)) * load_one(a.dy.p, a.dy.dtype, i),
              a.add_dx);
}

extern "C" cudaError_t launch_map_backward(const launch *l, const map_args *a)
{
    if (a->n > 0)
        map_backward<<<flat_blocks(l, a->n, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

static __device__ __forceinline__ float operand_at(const buffer b, float value, int64_t index, const combine_args &a,
                                                   const int64_t *stride)
{
    return b.p ? load_one(b.p, b.dtype, offset_of(index, a.n_dims, a.shape, stride)) : value;
}

__global__ void __launch_bounds__(THREADS) combine(const combine_args a, int64_t n)
{
    FOR_ITEMS(i, n)
    {
        const float x = operand_at(a.a, a.a_value, i, a, a.a_stride), y = operand_at(a.b, a.b_value, i, a, a.b_stride);
        float value;
        if (a.kind == COMBINE_ADD)
            value = x + y;
        else if (a.kind == COMBINE_SUBTRACT)
            value = x - y;
        else if (a.kind == COMBINE_MULTIPLY)
            value = x * y;
        else if (a.kind == COMBINE_DIVIDE)
            value = x / y;
        else if (a.kind == COMBINE_DIVISOR_GRADIENT)
            value = -x * y / operand_at(a.c, 0, i, a, a.c_stride);
        else
            value = ((const int32_t *)a.c.p)[offset_of(i, a.n_dims, a.shape, a.c_stride)] != 0 ? x : y;
        write_one(a.out, i, value, a.add);
    }
}

extern "C" cudaError_t launch_combine(const launch *l, const combine_args *a)
{
    const int64_t n = product_of(a->n_dims, a->shape);
    if (n > 0)
        combine<<<flat_blocks(l, n, THREADS), THREADS, 0, l->stream>>>(*a, n);
    return cudaGetLastError();
}

/* The better of two candidates; of equal ones the earlier. A NaN wins, so that it stays visible. */
typedef struct candidate {
    float value;
    int32_t index;
} candidate;

static __device__ __forceinline__ candidate better(fsdp_reduction kind, candidate a, candidate b)
{
    const bool a_nan = a.value != a.value, b_nan = b.value != b.value;
    if (b.index < 0)
        return a;
    if (a.index < 0)
        return b;
    if (a_nan || b_nan)
        return a_nan && (!b_nan || a.index < b.index) ? a : b;
    if (a.value == b.value)
        return a.index < b.index ? a : b;
    return (kind == FSDP_REDUCE_MAX) == (a.value > b.value) ? a : b;
}

/* A block a result: threads take every THREADS-th element in order, then their results are joined in a fixed tree. */
__global__ void __launch_bounds__(THREADS) reduce(const reduce_dims_args a, int64_t kept, int64_t reduced)
{
    __shared__ double sums[THREADS];
    __shared__ candidate candidates[THREADS];
    for (int64_t at = blockIdx.x; at < kept; at += gridDim.x) {
        const int64_t base = offset_of(at, a.n_kept, a.kept, a.kept_stride);
        double sum = 0;
        candidate best = {0.0f, -1};
        for (int64_t i = threadIdx.x; i < reduced; i += THREADS) {
            const float x = load_one(a.x.p, a.x.dtype, base + offset_of(i, a.n_reduced, a.reduced, a.reduced_stride));
            sum += (double)x;
            best = better(a.kind, best, candidate{x, (int32_t)i});
        }
        sums[threadIdx.x] = sum;
        candidates[threadIdx.x] = best;
        for (int half = THREADS / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half) {
                sums[threadIdx.x] += sums[threadIdx.x + half];
                candidates[threadIdx.x] = better(a.kind, candidates[threadIdx.x], candidates[threadIdx.x + half]);
            }
        }
        if (threadIdx.x == 0) {
            if (a.index)
                a.index[at] = candidates[0].index;
            write_one(a.y, at, a.kind == FSDP_REDUCE_SUM ? (float)(a.alpha * sums[0]) : candidates[0].value, a.add);
        }
        __syncthreads();
    }
}

/* Few elements a result: a thread does one alone. */
__global__ void __launch_bounds__(THREADS) reduce_short(const reduce_dims_args a, int64_t kept, int64_t reduced)
{
    FOR_ITEMS(at, kept)
    {
        const int64_t base = offset_of(at, a.n_kept, a.kept, a.kept_stride);
        double sum = 0;
        candidate best = {0.0f, -1};
        for (int64_t i = 0; i < reduced; i++) {
            const float x = load_one(a.x.p, a.x.dtype, base + offset_of(i, a.n_reduced, a.reduced, a.reduced_stride));
            sum += (double)x;
            best = better(a.kind, best, candidate{x, (int32_t)i});
        }
        if (a.index)
            a.index[at] = best.index;
        write_one(a.y, at, a.kind == FSDP_REDUCE_SUM ? (float)(a.alpha * sum) : best.value, a.add);
    }
}

extern "C" cudaError_t launch_reduce(const launch *l, const reduce_dims_args *a)
{
    const int64_t kept = product_of(a->n_kept, a->kept), reduced = product_of(a->n_reduced, a->reduced);
    if (kept == 0)
        return cudaSuccess;
    if (reduced <= 64)
        reduce_short<<<flat_blocks(l, kept, THREADS), THREADS, 0, l->stream>>>(*a, kept, reduced);
    else
        reduce<<<flat_blocks(l, kept, 1), THREADS, 0, l->stream>>>(*a, kept, reduced);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS) reduce_backward(const reduce_dims_args a, int64_t kept, int64_t reduced)
{
    FOR_ITEMS(i, kept * reduced)
    {
        const int64_t at = i / reduced, inside = i - at * reduced;
        const int64_t to = offset_of(at, a.n_kept, a.kept, a.kept_stride) +
                           offset_of(inside, a.n_reduced, a.reduced, a.reduced_stride);
        const float dy = load_one(a.dy.p, a.dy.dtype, at);
        write_one(a.dx, to, a.kind == FSDP_REDUCE_SUM ? a.alpha * dy : inside == a.index[at] ? dy : 0.0f, a.add);
    }
}

extern "C" cudaError_t launch_reduce_backward(const launch *l, const reduce_dims_args *a)
{
    const int64_t kept = product_of(a->n_kept, a->kept), reduced = product_of(a->n_reduced, a->reduced);
    if (kept * reduced > 0)
        reduce_backward<<<flat_blocks(l, kept * reduced, THREADS), THREADS, 0, l->stream>>>(*a, kept, reduced);
    return cudaGetLastError();
}

static __device__ __forceinline__ float block_max(float x, float *shared)
{
    x = warp_max(x);
    if ((threadIdx.x & 31) == 0)
        shared[threadIdx.x >> 5] = x;
    __syncthreads();
    return warp_max((threadIdx.x & 31) < THREADS / 32 ? shared[threadIdx.x & 31] : -INFINITY);
}

/* A block a row, which is read three times; the second and third from the cache where it is not too long. */
__global__ void __launch_bounds__(THREADS) softmax_forward(const softmax_args a)
{
    __shared__ float maxima[32], sums[64];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const int64_t first = row * a.columns;
        float highest = -INFINITY, sum = 0.0f;
        for (int64_t i = threadIdx.x; i < a.columns; i += THREADS)
            highest = fmaxf(highest, load_one(a.x.p, a.x.dtype, first + i));
        highest = block_max(highest, maxima);
        highest = highest == -INFINITY ? 0.0f : highest;
        for (int64_t i = threadIdx.x; i < a.columns; i += THREADS)
            sum += expf(load_one(a.x.p, a.x.dtype, first + i) - highest);
        sum = block_sum2(sum, 0.0f, sums).x;
        const float factor = 1.0f / sum, offset = logf(sum);
        for (int64_t i = threadIdx.x; i < a.columns; i += THREADS) {
            const float x = load_one(a.x.p, a.x.dtype, first + i) - highest;
            store_one(a.y.p, a.y.dtype, first + i, a.logarithm ? x - offset : expf(x) * factor);
        }
        __syncthreads();
    }
}

extern "C" cudaError_t launch_softmax_forward(const launch *l, const softmax_args *a)
{
    if (a->rows * a->columns > 0)
        softmax_forward<<<flat_blocks(l, a->rows, 1), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS) softmax_backward(const softmax_args a)
{
    __shared__ float sums[64];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const int64_t first = row * a.columns;
        float product = 0.0f;
        for (int64_t i = threadIdx.x; i < a.columns; i += THREADS) {
            const float dy = load_one(a.dy.p, a.dy.dtype, first + i);
            product += a.logarithm ? dy : dy * load_one(a.y.p, a.y.dtype, first + i);
        }
        product = block_sum2(product, 0.0f, sums).x;
        for (int64_t i = threadIdx.x; i < a.columns; i += THREADS) {
            const float y = load_one(a.y.p, a.y.dtype, first + i), dy = load_one(a.dy.p, a.dy.dtype, first + i);
            write_one(a.dx, first + i, a.logarithm ? dy - expf(y) * product : y * (dy - product), a.add_dx);
        }
        __syncthreads();
    }
}

extern "C" cudaError_t launch_softmax_backward(const launch *l, const softmax_args *a)
{
    if (a->rows * a->columns > 0)
        softmax_backward<<<flat_blocks(l, a->rows, 1), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

static __device__ __forceinline__ int64_t index_at(const gather_args &a, int64_t o, int64_t k, int64_t i)
{
    return a.per_element ? a.index[(o * a.count + k) * a.inner + i] : a.index[k];
}

__global__ void __launch_bounds__(THREADS) gather_forward(const gather_args a)
{
    FOR_ITEMS(at, a.outer * a.count * a.inner)
    {
        const int64_t i = at % a.inner, k = at / a.inner % a.count, o = at / (a.inner * a.count);
        const int64_t from = index_at(a, o, k, i);
        const bool inside = from >= 0 && from < a.n;
        store_one(a.y.p, a.y.dtype, at, inside ? load_one(a.x.p, a.x.dtype, (o * a.n + from) * a.inner + i) : 0.0f);
    }
}

extern "C" cudaError_t launch_gather_forward(const launch *l, const gather_args *a)
{
    const int64_t n = a->outer * a->count * a->inner;
    if (n > 0)
        gather_forward<<<flat_blocks(l, n, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

/* A thread owns all elements that share their place in the other dimensions, so sums run in order. */
__global__ void __launch_bounds__(THREADS) gather_backward(const gather_args a)
{
    FOR_ITEMS(column, a.outer * a.inner)
    {
        const int64_t o = column / a.inner, i = column % a.inner;
        for (int64_t j = 0; !a.add_dx && j < a.n; j++)
            store_one(a.dx.p, a.dx.dtype, (o * a.n + j) * a.inner + i, 0.0f);
        for (int64_t k = 0; k < a.count; k++) {
            const int64_t from = index_at(a, o, k, i);
            if (from >= 0 && from < a.n)
                write_one(a.dx, (o * a.n + from) * a.inner + i,
                          load_one(a.dy.p, a.dy.dtype, (o * a.count + k) * a.inner + i), true);
        }
    }
}

extern "C" cudaError_t launch_gather_backward(const launch *l, const gather_args *a)
{
    if (a->outer * a->inner > 0)
        gather_backward<<<flat_blocks(l, a->outer * a->inner, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS) one_hot(const one_hot_args a)
{
    FOR_ITEMS(i, a.rows * a.classes)
    {
        const int32_t id = a.ids[i / a.classes];
        const float off = id == a.ignore ? 0.0f : a.off;
        store_one(a.y.p, a.y.dtype, i, id != a.ignore && i % a.classes == id ? a.on : off);
    }
}

extern "C" cudaError_t launch_one_hot(const launch *l, const one_hot_args *a)
{
    if (a->rows * a->classes > 0)
        one_hot<<<flat_blocks(l, a->rows * a->classes, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}
