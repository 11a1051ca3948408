/* Kernels that treat every element alike: linear combinations, products, fills, casts, activations, dropout, copies
 * with strides. Bound by memory: 16 bytes a thread and access, a grid-stride loop over the rest. */
#include "device/cuda/vector.cuh"

#include "base/rng.h"

#define THREADS 256

/* Position of this thread's first vector, and the step to its next. */
#define FOR_VECTORS(i, n, V)                                                                                           \
    for (int64_t i = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * V; i < (n);                                    \
         i += gridDim.x * (int64_t)blockDim.x * V)

template <int D, int V> __global__ void __launch_bounds__(THREADS) axpby(const axpby_args a)
{
    FOR_VECTORS(i, a.n, V)
    {
        floats<V> x = load<D, V>(a.a, i);
#pragma unroll
        for (int j = 0; j < V; j++)
            x.v[j] *= a.alpha;
        if (a.b.p) {
            floats<V> y = load<D, V>(a.b, i);
#pragma unroll
            for (int j = 0; j < V; j++)
                x.v[j] += a.beta * y.v[j];
        }
        store<D, V>(a.out, i, x);
    }
}

extern "C" cudaError_t launch_axpby(const launch *l, const axpby_args *a)
{
    if (a->n == 0)
        return cudaSuccess;
    const bool vectors = a->n % 8 == 0 && is_aligned(a->a) && is_aligned(a->b) && is_aligned(a->out);
    const int dtype = common_dtype(a->a, a->b, a->out, no_buffer);
#define CALL(D, V) axpby<D, V><<<flat_blocks(l, launch_ceil(a->n, V), THREADS), THREADS, 0, l->stream>>>(*a)
    DISPATCH(dtype, vectors, CALL);
#undef CALL
    return cudaGetLastError();
}

static __device__ __forceinline__ float normalize_factor(const normalize_args &a)
{
    return 1.0f / fmaxf((float)sqrt(*a.squares), a.least);
}

template <int D, int V> __global__ void __launch_bounds__(THREADS) normalize(const normalize_args a)
{
    const float factor = normalize_factor(a);
    FOR_VECTORS(i, a.rows * a.columns, V)
    {
        floats<V> x = load<D, V>(a.x, i);
#pragma unroll
        for (int j = 0; j < V; j++)
            x.v[j] *= factor;
        store<D, V>(a.out, i, x);
    }
}

#define SQUARE 64

/* A square of x, by 32 x 8 threads that take a vector each. */
template <int D, int V> __global__ void __launch_bounds__(THREADS) normalize_transposed(const normalize_args a)
{
    __shared__ float square[SQUARE][SQUARE + 1];
    const float factor = normalize_factor(a);
    const int64_t row = blockIdx.y * (int64_t)SQUARE, column = blockIdx.x * (int64_t)SQUARE;
    for (int i = (int)threadIdx.x; i < SQUARE * SQUARE / V; i += THREADS) {
        const int r = i / (SQUARE / V), c = i % (SQUARE / V) * V;
        if (row + r >= a.rows || column + c >= a.columns)
            continue;
        const floats<V> x = load<D, V>(a.x, (row + r) * a.columns + column + c);
#pragma unroll
        for (int j = 0; j < V; j++)
            square[r][c + j] = x.v[j] * factor;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < SQUARE * SQUARE / V; i += THREADS) {
        const int c = i / (SQUARE / V), r = i % (SQUARE / V) * V;
        if (row + r >= a.rows || column + c >= a.columns)
            continue;
        floats<V> x;
#pragma unroll
        for (int j = 0; j < V; j++)
            x.v[j] = square[r + j][c];
        store<D, V>(a.out, (column + c) * a.rows + row + r, x);
    }
}

extern "C" cudaError_t launch_normalize(const launch *l, const normalize_args *a)
{
    const int64_t n = a->rows * a->columns;
    if (n == 0)
        return cudaSuccess;
    const bool even = a->transpose ? a->rows % 8 == 0 && a->columns % 8 == 0 : n % 8 == 0;
    const bool vectors = even && is_aligned(a->x) && is_aligned(a->out);
    const int dtype = common_dtype(a->x, a->out, no_buffer, no_buffer);
    const dim3 squares((unsigned)launch_ceil(a->columns, SQUARE), (unsigned)launch_ceil(a->rows, SQUARE));
#define CALL(D, V) normalize<D, V><<<flat_blocks(l, launch_ceil(n, V), THREADS), THREADS, 0, l->stream>>>(*a)
#define CALL_TRANSPOSED(D, V) normalize_transposed<D, V><<<squares, THREADS, 0, l->stream>>>(*a)
    if (a->transpose)
        DISPATCH(dtype, vectors, CALL_TRANSPOSED);
    else
        DISPATCH(dtype, vectors, CALL);
#undef CALL
#undef CALL_TRANSPOSED
    return cudaGetLastError();
}

template <int D, int V> __global__ void __launch_bounds__(THREADS) multiply(const multiply_args a)
{
    FOR_VECTORS(i, a.n, V)
    {
        floats<V> x = load<D, V>(a.a, i), y = load<D, V>(a.b, i);
#pragma unroll
        for (int j = 0; j < V; j++)
            x.v[j] *= y.v[j];
        store_or_add<D, V>(a.out, i, x, a.add);
    }
}

extern "C" cudaError_t launch_multiply(const launch *l, const multiply_args *a)
{
    if (a->n == 0)
        return cudaSuccess;
    const bool vectors = a->n % 8 == 0 && is_aligned(a->a) && is_aligned(a->b) && is_aligned(a->out);
    const int dtype = common_dtype(a->a, a->b, a->out, no_buffer);
#define CALL(D, V) multiply<D, V><<<flat_blocks(l, launch_ceil(a->n, V), THREADS), THREADS, 0, l->stream>>>(*a)
    DISPATCH(dtype, vectors, CALL);
#undef CALL
    return cudaGetLastError();
}

template <int D, int V> __global__ void __launch_bounds__(THREADS) fill(const fill_args a)
{
    floats<V> x;
#pragma unroll
    for (int j = 0; j < V; j++)
        x.v[j] = a.alpha * (a.scalar ? *a.scalar : 1.0f);
    FOR_VECTORS(i, a.n, V)
    store_or_add<D, V>(a.out, i, x, a.add);
}

extern "C" cudaError_t launch_fill(const launch *l, const fill_args *a)
{
    if (a->n == 0)
        return cudaSuccess;
    const bool vectors = a->n % 8 == 0 && is_aligned(a->out);
#define CALL(D, V) fill<D, V><<<flat_blocks(l, launch_ceil(a->n, V), THREADS), THREADS, 0, l->stream>>>(*a)
    DISPATCH((int)a->out.dtype, vectors, CALL);
#undef CALL
    return cudaGetLastError();
}

template <int D, int V>
__global__ void __launch_bounds__(THREADS) squared_error_backward(const squared_error_backward_args a)
{
    const float factor = 2.0f * a.alpha * (a.scalar ? *a.scalar : 1.0f);
    FOR_VECTORS(i, a.n, V)
    {
        floats<V> x = load<D, V>(a.x, i), y = load<D, V>(a.y, i);
#pragma unroll
        for (int j = 0; j < V; j++)
            x.v[j] = factor * (x.v[j] - y.v[j]);
        store_or_add<D, V>(a.dx, i, x, a.add);
    }
}

extern "C" cudaError_t launch_squared_error_backward(const launch *l, const squared_error_backward_args *a)
{
    if (a->n == 0)
        return cudaSuccess;
    const bool vectors = a->n % 8 == 0 && is_aligned(a->x) && is_aligned(a->y) && is_aligned(a->dx);
    const int dtype = common_dtype(a->x, a->y, a->dx, no_buffer);
#define CALL(D, V)                                                                                                     \
    squared_error_backward<D, V><<<flat_blocks(l, launch_ceil(a->n, V), THREADS), THREADS, 0, l->stream>>>(*a)
    DISPATCH(dtype, vectors, CALL);
#undef CALL
    return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS) gemm_finish(const gemm_args a, const float *t)
{
    const int64_t n = a.batch * a.m * a.n;
    FOR_VECTORS(i, n, 1)
    {
        const int64_t column = i % a.n, row = i / a.n % a.m, batch = i / (a.n * a.m);
        float value = t ? a.alpha * t[i] : 0.0f;
        if (a.beta != 0.0f)
            value += a.beta * load_one(a.c.p, a.c.dtype, batch * a.stride_c + row * a.ldc + column);
        if (a.bias.p)
            value += load_one(a.bias.p, a.bias.dtype, column);
        store_one(a.d.p, a.d.dtype, batch * a.stride_d + row * a.ldd + column, value);
    }
}

extern "C" cudaError_t launch_gemm_finish(const launch *l, const gemm_args *a, const float *t)
{
    gemm_finish<<<flat_blocks(l, a->batch * a->m * a->n, THREADS), THREADS, 0, l->stream>>>(*a, t);
    return cudaGetLastError();
}

/* Element by element through the strides; the last dimension varies fastest over the threads. */
__global__ void __launch_bounds__(THREADS) strided_copy(const strided_copy_args a, int64_t n)
{
    FOR_VECTORS(i, n, 1)
    {
        int64_t rest = i, from = 0, to = 0;
        for (int d = a.n_dims - 1; d >= 0; d--) {
            const int64_t next = rest / a.shape[d], at = rest - next * a.shape[d];
            from += at * a.from_stride[d];
            to += at * a.to_stride[d];
            rest = next;
        }
        floats<1> x = {{load_one(a.from.p, a.from.dtype, from)}};
        store_or_add<DYNAMIC, 1>(a.to, to, x, a.add);
    }
}

/* The same where both sides run contiguously over the last dimension: rows of vectors. */
template <int D, int V> __global__ void __launch_bounds__(THREADS) strided_rows(const strided_copy_args a, int64_t rows)
{
    const int last = a.n_dims - 1;
    const int64_t width = a.shape[last] / V;
    FOR_VECTORS(i, rows * width, 1)
    {
        int64_t rest = i / width, from = (i - rest * width) * V, to = from;
        for (int d = last - 1; d >= 0; d--) {
            const int64_t next = rest / a.shape[d], at = rest - next * a.shape[d];
            from += at * a.from_stride[d];
            to += at * a.to_stride[d];
            rest = next;
        }
        store_or_add<D, V>(a.to, to, load<D, V>(a.from, from), a.add);
    }
}

extern "C" cudaError_t launch_strided_copy(const launch *l, const strided_copy_args *a)
{
    int64_t n = 1;
    bool vectors = a->n_dims > 0 && is_aligned(a->from) && is_aligned(a->to);
    for (int d = 0; d < a->n_dims; d++) {
        n *= a->shape[d];
        const int64_t multiple = a->shape[d] == 1 ? 0 : a->from_stride[d] | a->to_stride[d];
        vectors =
            vectors && (d + 1 == a->n_dims ? a->from_stride[d] == 1 && a->to_stride[d] == 1 && a->shape[d] % 8 == 0
                                           : multiple % 8 == 0);
    }
    if (n == 0)
        return cudaSuccess;
    if (!vectors) {
        strided_copy<<<flat_blocks(l, n, THREADS), THREADS, 0, l->stream>>>(*a, n);
        return cudaGetLastError();
    }
    const int64_t rows = n / a->shape[a->n_dims - 1];
    const int dtype = common_dtype(a->from, a->to, no_buffer, no_buffer);
#define CALL(D, V) strided_rows<D, V><<<flat_blocks(l, n / V, THREADS), THREADS, 0, l->stream>>>(*a, rows)
    DISPATCH(dtype, true, CALL);
#undef CALL
    return cudaGetLastError();
}
