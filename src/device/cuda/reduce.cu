/* Sums: over rows (column_sum), over everything (sum), and the 64-element blocks of the gradient norm. Every sum is cut
 * at fixed places and added up in a fixed order; nothing here uses floating-point atomics. */
#include "device/cuda/vector.cuh"

#define PARTIAL_LANES 16

/* A column's partials are shared by 16 threads, whose sums are then added in thread order. */
__global__ void sum_partials(const float *partial, int64_t n_partials, int64_t n, buffer out, bool add)
{
    __shared__ float shared[PARTIAL_LANES][33];
    const int64_t column = blockIdx.x * 32ll + threadIdx.x;
    float sum = 0;
    if (column < n)
        for (int64_t p = threadIdx.y; p < n_partials; p += PARTIAL_LANES)
            sum += partial[p * n + column];
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || column >= n)
        return;
    sum = 0;
#pragma unroll
    for (int i = 0; i < PARTIAL_LANES; i++)
        sum += shared[i][threadIdx.x];
    floats<1> result = {{sum}};
    store_or_add<DYNAMIC, 1>(out, column, result, add);
}

extern "C" cudaError_t launch_sum_partials(const launch *l, const float *partial, int64_t n_partials, int64_t n,
                                           buffer out, bool add)
{
    if (n == 0)
        return cudaSuccess;
    sum_partials<<<(unsigned)launch_ceil(n, 32), dim3(32, PARTIAL_LANES), 0, l->stream>>>(partial, n_partials, n, out,
                                                                                          add);
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

static __device__ double warp_sum_double(double x)
{
    for (int offset = 16; offset > 0; offset >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

static __device__ double block_sum_double(double x, double *shared)
{
    x = warp_sum_double(x);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    return warp_sum_double(lane < n_warps ? shared[lane] : 0.0);
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

#define NORM_THREADS 64

/* A tile of 64 blocks is read together, then every thread adds up one block in index order: the order is the contract.
 * Rows of the tile are one element longer than a block, so that the threads' columns fall into different banks. */
template <int D> __global__ void norm_blocks_tile(const norm_blocks_args a)
{
    __shared__ float tile[NORM_THREADS * (NORM_BLOCK + 1)];
    const int64_t n_blocks = (a.n + NORM_BLOCK - 1) / NORM_BLOCK;
    for (int64_t group = blockIdx.x; group * NORM_THREADS < n_blocks; group += gridDim.x) {
        const int64_t first = group * NORM_THREADS * NORM_BLOCK;
        /* One element a thread and load: neighbours to neighbours keeps both memories free of conflicts. */
#pragma unroll 16
        for (int i = threadIdx.x; i < NORM_THREADS * NORM_BLOCK; i += NORM_THREADS)
            tile[i / NORM_BLOCK * (NORM_BLOCK + 1) + i % NORM_BLOCK] =
                first + i < a.n ? load_one(a.x.p, D, first + i) : 0.0f;
        __syncthreads();
        const int64_t block = group * NORM_THREADS + threadIdx.x;
        if (block < n_blocks) {
            const float *from = tile + threadIdx.x * (NORM_BLOCK + 1);
            double sum = 0;
#pragma unroll 16
            for (int i = 0; i < NORM_BLOCK; i++)
                sum += (double)__fmul_rn(from[i], from[i]);
            a.blocks[block] = sum;
        }
        __syncthreads();
    }
}

extern "C" cudaError_t launch_norm_blocks(const launch *l, const norm_blocks_args *a)
{
    if (a->n == 0)
        return cudaSuccess;
    const int64_t groups = launch_ceil(launch_ceil(a->n, NORM_BLOCK), NORM_THREADS);
    const unsigned blocks = (unsigned)launch_min(groups, (int64_t)l->n_multiprocessors * 64);
    if (a->x.dtype == FSDP_F32)
        norm_blocks_tile<FSDP_F32><<<blocks, NORM_THREADS, 0, l->stream>>>(*a);
    else if (a->x.dtype == FSDP_BF16)
        norm_blocks_tile<FSDP_BF16><<<blocks, NORM_THREADS, 0, l->stream>>>(*a);
    else
        norm_blocks_tile<FSDP_F16><<<blocks, NORM_THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}
