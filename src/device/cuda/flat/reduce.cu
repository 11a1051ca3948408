/* Sums: over rows (column_sum), over everything (sum), and the 64-element blocks of the gradient norm. Every sum is cut
 * at fixed places and added up in a fixed order; nothing here uses floating-point atomics. */
#include "device/cuda/vector.cuh"

#define PARTIAL_LANES 64
#define PARTIAL_COLUMNS 16

/* A column's partials are shared by 64 threads, whose sums are then added as a tree. */
__global__ void __launch_bounds__(PARTIAL_LANES *PARTIAL_COLUMNS)
    sum_partials(const float *partial, int64_t n_partials, int64_t n, buffer out, bool add)
{
    __shared__ float shared[PARTIAL_LANES][PARTIAL_COLUMNS];
    const int64_t column = blockIdx.x * (int64_t)PARTIAL_COLUMNS + threadIdx.x;
    float sum = 0;
    if (column < n)
#pragma unroll 4
        for (int64_t p = threadIdx.y; p < n_partials; p += PARTIAL_LANES)
            sum += partial[p * n + column];
    shared[threadIdx.y][threadIdx.x] = sum;
#pragma unroll
    for (int half = PARTIAL_LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.y < half)
            shared[threadIdx.y][threadIdx.x] += shared[threadIdx.y + half][threadIdx.x];
    }
    if (threadIdx.y != 0 || column >= n)
        return;
    floats<1> result = {{shared[0][threadIdx.x]}};
    store_or_add<DYNAMIC, 1>(out, column, result, add);
}

extern "C" cudaError_t launch_sum_partials(const launch *l, const float *partial, int64_t n_partials, int64_t n,
                                           buffer out, bool add)
{
    if (n == 0)
        return cudaSuccess;
    sum_partials<<<(unsigned)launch_ceil(n, PARTIAL_COLUMNS), dim3(PARTIAL_COLUMNS, PARTIAL_LANES), 0, l->stream>>>(
        partial, n_partials, n, out, add);
    return cudaGetLastError();
}

template <int D, int V> __global__ void column_sum_chunk(const column_sum_args a, int64_t chunk)
{
    const int64_t column = (blockIdx.x * (int64_t)blockDim.x + threadIdx.x) * V;
    if (column >= a.columns)
        return;
    const int64_t first = blockIdx.y * chunk, last = min(first + chunk, a.rows);
    floats<V> sum;
#pragma unroll
    for (int j = 0; j < V; j++)
        sum.v[j] = 0;
#pragma unroll 4
    for (int64_t row = first; row < last; row++) {
        floats<V> x = load<D, V>(a.x, row * a.columns + column);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum.v[j] += x.v[j];
    }
    float *partial = (float *)a.workspace + blockIdx.y * a.columns + column;
#pragma unroll
    for (int j = 0; j < V; j++)
        partial[j] = sum.v[j];
}

extern "C" cudaError_t launch_column_sum(const launch *l, const column_sum_args *a)
{
    if (a->columns == 0)
        return cudaSuccess;
    const bool vectors = a->columns % 8 == 0 && is_aligned(a->x);
    const unsigned across = (unsigned)launch_ceil(a->columns, vectors ? 128 * 8 : 128);
    const int64_t most = launch_max(1, partial_rows(l->n_multiprocessors, a->rows) / launch_min(across, 4));
    const int64_t chunk = launch_max(1, launch_ceil(a->rows, most)), n_partials = launch_ceil(a->rows, chunk);
    if (a->rows > 0) {
#define CALL(D, V) column_sum_chunk<D, V><<<dim3(across, (unsigned)n_partials), 128, 0, l->stream>>>(*a, chunk)
        DISPATCH((int)a->x.dtype, vectors, CALL);
#undef CALL
        cudaError_t error = cudaGetLastError();
        if (error != cudaSuccess)
            return error;
    }
    return launch_sum_partials(l, (const float *)a->workspace, n_partials, a->columns, a->out, a->add);
}

/* Block b sums elements b*share .. in fp64 (fp32 within one vector's worth of a thread's terms would lose bits). */
template <int D, int V> __global__ void sum_share(const sum_args a, int64_t share, double *partial)
{
    __shared__ double shared[32];
    const int64_t first = blockIdx.x * share, last = min(first + share, a.n);
    double sum = 0;
    for (int64_t i = first + threadIdx.x * (int64_t)V; i < last; i += blockDim.x * (int64_t)V) {
        floats<V> x = load<D, V>(a.x, i), y = x;
        if (a.y.p)
            y = load<D, V>(a.y, i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            const double value = a.y.p ? (double)x.v[j] - (double)y.v[j] : (double)x.v[j];
            sum += a.y.p || a.squared ? value * value : value;
        }
    }
    sum = block_sum_double(sum, shared);
    if (threadIdx.x == 0)
        partial[blockIdx.x] = sum;
}

__global__ void sum_finish(const double *partial, int n_partials, float alpha, float *out, bool add)
{
    __shared__ double shared[32];
    double sum = 0;
    for (int i = threadIdx.x; i < n_partials; i += blockDim.x)
        sum += partial[i];
    sum = block_sum_double(sum, shared);
    if (threadIdx.x == 0)
        *out = (add ? *out : 0.0f) + (float)(alpha * sum);
}

extern "C" cudaError_t launch_sum(const launch *l, const sum_args *a)
{
    const bool vectors = a->n % 8 == 0 && is_aligned(a->x) && is_aligned(a->y);
    /* Shares are whole vectors of the block; their number depends on n alone. */
    const int64_t share = launch_max(2048, launch_ceil(launch_ceil(a->n, SUM_PARTIALS), 2048) * 2048);
    const int n_partials = (int)launch_ceil(a->n, share);
    double *partial = (double *)a->workspace;
    if (n_partials > 0) {
        const int dtype = common_dtype(a->x, a->y, no_buffer, no_buffer);
#define CALL(D, V) sum_share<D, V><<<n_partials, 256, 0, l->stream>>>(*a, share, partial)
        DISPATCH(dtype, vectors, CALL);
#undef CALL
    }
    sum_finish<<<1, 1024, 0, l->stream>>>(partial, n_partials, a->alpha, a->out, a->add);
    return cudaGetLastError();
}

#define NORM_THREADS 256
#define NORM_LANES (NORM_BLOCK / 4)
#define NORM_AT_ONCE 4

/* Elements i .. i+3 of x, zeros past the end. */
template <int D> static __device__ __forceinline__ float4 load4(const norm_blocks_args &a, int64_t i, bool vectors)
{
    if (vectors && i + 4 <= a.n) {
        if (D == FSDP_F32)
            return *(const float4 *)((const float *)a.x.p + i);
        const uint2 raw = *(const uint2 *)((const uint16_t *)a.x.p + i);
        float v[4];
        if (D == FSDP_BF16) {
            unpack_bf16(raw.x, v);
            unpack_bf16(raw.y, v + 2);
        } else {
            unpack_f16(raw.x, v);
            unpack_f16(raw.y, v + 2);
        }
        return make_float4(v[0], v[1], v[2], v[3]);
    }
    float v[4];
#pragma unroll
    for (int j = 0; j < 4; j++)
        v[j] = i + j < a.n ? load_one(a.x.p, D, i + j) : 0.0f;
    return make_float4(v[0], v[1], v[2], v[3]);
}

/* Sixteen neighbouring threads share a block, four elements each; their sums are joined pairwise. The order depends on
 * places within the block alone. */
template <int D>
__global__ void __launch_bounds__(NORM_THREADS) norm_blocks_lanes(const norm_blocks_args a, bool vectors)
{
    const int64_t step = (int64_t)gridDim.x * NORM_THREADS, n = (a.n + 3) / 4;
    const int lane = threadIdx.x % NORM_LANES;
    const int64_t warp_first = (blockIdx.x * (int64_t)NORM_THREADS + threadIdx.x) & ~31ll;
    for (int64_t first = warp_first; first < n; first += step * NORM_AT_ONCE) {
        float4 x[NORM_AT_ONCE];
#pragma unroll
        for (int k = 0; k < NORM_AT_ONCE; k++)
            x[k] = load4<D>(a, (first + k * step + (threadIdx.x & 31)) * 4, vectors);
#pragma unroll
        for (int k = 0; k < NORM_AT_ONCE; k++) {
            double sum = ((double)__fmul_rn(x[k].x, x[k].x) + (double)__fmul_rn(x[k].y, x[k].y)) +
                         ((double)__fmul_rn(x[k].z, x[k].z) + (double)__fmul_rn(x[k].w, x[k].w));
#pragma unroll
            for (int offset = NORM_LANES / 2; offset > 0; offset >>= 1)
                sum += __shfl_xor_sync(0xffffffffu, sum, offset);
            const int64_t at = first + k * step + (threadIdx.x & 31);
            if (lane == 0 && at < n)
                a.blocks[at / NORM_LANES] = sum;
        }
    }
}

extern "C" cudaError_t launch_norm_blocks(const launch *l, const norm_blocks_args *a)
{
    if (a->n == 0)
        return cudaSuccess;
    const bool vectors = is_aligned(a->x);
    const unsigned blocks = (unsigned)launch_min(launch_ceil(launch_ceil(a->n, 4), NORM_THREADS * NORM_AT_ONCE),
                                                 (int64_t)l->n_multiprocessors * 32);
    if (a->x.dtype == FSDP_F32)
        norm_blocks_lanes<FSDP_F32><<<blocks, NORM_THREADS, 0, l->stream>>>(*a, vectors);
    else if (a->x.dtype == FSDP_BF16)
        norm_blocks_lanes<FSDP_BF16><<<blocks, NORM_THREADS, 0, l->stream>>>(*a, vectors);
    else
        norm_blocks_lanes<FSDP_F16><<<blocks, NORM_THREADS, 0, l->stream>>>(*a, vectors);
    return cudaGetLastError();
}

/* Elements i .. i+V-1 of the sum. Nothing is written between the loads, so those of several parts are under way at
 * once. */
template <int D, int V> static __device__ __forceinline__ void sum_parts_at(const sum_parts_args &a, int64_t i)
{
    floats<V> sum = {};
#pragma unroll 8
    for (int k = 0; k < a.n_parts; k++) {
        const bool mine = k == a.own;
        const int64_t part = k - (k > a.own);
        const floats<V> x = load<D, V>(mine ? a.mine : a.parts, mine ? i : part * a.stride + i);
#pragma unroll
        for (int j = 0; j < V; j++)
            sum.v[j] = k == 0 ? x.v[j] : sum.v[j] + x.v[j];
    }
    store_or_add<DYNAMIC, V>(a.out, i, sum, a.add);
}

template <int D, int V> __global__ void __launch_bounds__(256) sum_parts(const sum_parts_args a)
{
    const int64_t thread = blockIdx.x * (int64_t)blockDim.x + threadIdx.x, whole = a.n / V * V;
    for (int64_t i = thread * V; i < whole; i += gridDim.x * (int64_t)blockDim.x * V)
        sum_parts_at<D, V>(a, i);
    if (whole + thread < a.n)
        sum_parts_at<D, 1>(a, whole + thread);
}

extern "C" cudaError_t launch_sum_parts(const launch *l, const sum_parts_args *a)
{
    if (a->n == 0)
        return cudaSuccess;
    const bool vectors = a->stride % 8 == 0 && is_aligned(a->parts) && is_aligned(a->mine) && is_aligned(a->out);
#define CALL(D, V) sum_parts<D, V><<<flat_blocks(l, launch_ceil(a->n, V), 256), 256, 0, l->stream>>>(*a)
    DISPATCH((int)a->mine.dtype, vectors, CALL);
#undef CALL
    return cudaGetLastError();
}
