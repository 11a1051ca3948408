/* RMS normalisation of rows of one type that fit a warp's or a block's registers: a row is read once, 16 bytes a load
 * with all loads under way together, and kept for the second pass over it. The weight gradient is summed per block in
 * registers, then over the blocks in order (launch_sum_partials). Other rows are norm.cu's. */
#include "device/cuda/vector.cuh"

#define THREADS 128

/* Rows of up to N vectors of 16 bytes a thread, shared by WARPS warps: one (then a block works on four rows) or all. */
template <int WARPS> struct row_group {
    static constexpr int threads = 32 * WARPS;
    static constexpr int in_block = THREADS / threads;

    static __device__ __forceinline__ int lane()
    {
        return WARPS == 1 ? threadIdx.x & 31 : threadIdx.x;
    }

    static __device__ __forceinline__ int64_t index()
    {
        return WARPS == 1 ? blockIdx.x * (int64_t)in_block + (threadIdx.x >> 5) : blockIdx.x;
    }

    /* `turn` must differ between two calls in a row: a slow warp may still read what the last one left. */
    static __device__ __forceinline__ float sum(float x, int turn)
    {
        x = warp_sum(x);
        if constexpr (WARPS > 1) {
            __shared__ float shared[2][WARPS];
            if ((threadIdx.x & 31) == 0)
                shared[turn & 1][threadIdx.x >> 5] = x;
            __syncthreads();
            x = 0;
#pragma unroll
            for (int i = 0; i < WARPS; i++)
                x += shared[turn & 1][i];
        }
        return x;
    }
};

/* Vectors `lane`, lane + threads, ... of a row of n; zeros past its end. */
template <int N, int STEP>
static __device__ __forceinline__ void load_row(uint4 raw[N], const void *p, int64_t row, int n, int lane)
{
    const uint4 *from = (const uint4 *)p + row * n;
#pragma unroll
    for (int k = 0; k < N; k++)
        raw[k] = lane + k * STEP < n ? from[lane + k * STEP] : make_uint4(0, 0, 0, 0);
}

template <int D, int N, int WARPS> __global__ void __launch_bounds__(THREADS) rmsnorm_rows(const rmsnorm_args a)
{
    typedef row_group<WARPS> group;
    constexpr int V = in_16_bytes<D>;
    const int lane = group::lane(), n = (int)(a.columns / V);
    const int64_t row = group::index();
    if (row >= a.rows)
        return;
    uint4 raw[N];
    load_row<N, group::threads>(raw, a.x.p, row, n, lane);
    float squares = 0;
#pragma unroll
    for (int k = 0; k < N; k++) {
        float x[V];
        unpack16<D>(raw[k], x);
#pragma unroll
        for (int j = 0; j < V; j++)
            squares += x[j] * x[j];
    }
    const float rstd = 1.0f / sqrtf(group::sum(squares, 0) / (float)a.columns + a.eps);
    if (lane == 0)
        a.rstd[row] = rstd;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int i = lane + k * group::threads;
        if (i >= n)
            break;
        float x[V], weight[V];
        unpack16<D>(raw[k], x);
        unpack16<D>(((const uint4 *)a.weight.p)[i], weight);
#pragma unroll
        for (int j = 0; j < V; j++)
            x[j] = x[j] * rstd * weight[j];
        ((uint4 *)a.y.p)[row * n + i] = pack16<D>(x);
    }
}

/* One row's dx, given the mean over columns of weight * dy * xhat. */
template <int D, int N, int STEP>
static __device__ __forceinline__ void store_gradient(const rmsnorm_args &a, int64_t row, int n, int lane,
                                                      const uint4 x_raw[N], const uint4 dy_raw[N],
                                                      const uint4 old_raw[N], float rstd, float mean)
{
    constexpr int V = in_16_bytes<D>;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int i = lane + k * STEP;
        if (i >= n)
            break;
        float x[V], dy[V], weight[V], out[V];
        unpack16<D>(x_raw[k], x);
        unpack16<D>(dy_raw[k], dy);
        unpack16<D>(((const uint4 *)a.weight.p)[i], weight);
        unpack16<D>(old_raw[k], out);
#pragma unroll
        for (int j = 0; j < V; j++)
            out[j] += rstd * (weight[j] * dy[j] - x[j] * rstd * mean);
        ((uint4 *)a.dx.p)[row * n + i] = pack16<D>(out);
    }
}

/* Adds the groups' weight gradients up in group order and writes the block's row of partial sums. */
template <int D, int N, int WARPS>
static __device__ __forceinline__ void store_partial(float *partial, int n, int lane,
                                                     const float d_weight[N][in_16_bytes<D>])
{
    typedef row_group<WARPS> group;
    constexpr int V = in_16_bytes<D>;
    __shared__ float total[WARPS == 1 ? N * 32 * V : 1];
    const int warp = threadIdx.x >> 5;
    for (int turn = 0; turn < group::in_block; turn++) {
        if (WARPS != 1 || warp == turn)
#pragma unroll
            for (int k = 0; k < N; k++)
#pragma unroll
                for (int j = 0; j < V; j++) {
                    const int i = lane + k * group::threads;
                    const float before = WARPS != 1 || turn == 0 || i >= n ? 0.0f : total[i * V + j];
                    if (i < n && turn + 1 == group::in_block)
                        partial[i * V + j] = before + d_weight[k][j];
                    else if (WARPS == 1 && i < n)
                        total[i * V + j] = before + d_weight[k][j];
                }
        if (WARPS == 1)
            __syncthreads();
    }
}

/* Each group takes every (number of groups)th row, the next one's loads under way while this one is worked on. */
template <int D, int N, int WARPS>
__global__ void __launch_bounds__(THREADS, N == 8 ? 2 : 4) rmsnorm_backward_rows(const rmsnorm_args a)
{
    typedef row_group<WARPS> group;
    constexpr int V = in_16_bytes<D>;
    const int lane = group::lane(), n = (int)(a.columns / V);
    const int64_t step = gridDim.x * (int64_t)group::in_block;
    uint4 x_raw[N], dy_raw[N];
    float d_weight[N][V];
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
        for (int j = 0; j < V; j++)
            d_weight[k][j] = 0;
    int64_t row = group::index();
    if (row < a.rows) {
        load_row<N, group::threads>(x_raw, a.x.p, row, n, lane);
        load_row<N, group::threads>(dy_raw, a.dy.p, row, n, lane);
    }
    for (int turn = 0; row < a.rows; row += step, turn++) {
        uint4 next_x[N], next_dy[N], old[N];
        if (row + step < a.rows) {
            load_row<N, group::threads>(next_x, a.x.p, row + step, n, lane);
            load_row<N, group::threads>(next_dy, a.dy.p, row + step, n, lane);
        }
        load_row<N, group::threads>(old, a.dx.p, row, a.add_dx ? n : 0, lane);
        const float rstd = a.rstd[row];
        float sum = 0;
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int i = lane + k * group::threads;
            float x[V], dy[V], weight[V];
            unpack16<D>(x_raw[k], x);
            unpack16<D>(dy_raw[k], dy);
            unpack16<D>(i < n ? ((const uint4 *)a.weight.p)[i] : make_uint4(0, 0, 0, 0), weight);
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float product = dy[j] * x[j] * rstd;
                d_weight[k][j] += product;
                sum += weight[j] * product;
            }
        }
        const float mean = group::sum(sum, turn) / (float)a.columns;
        if (a.dx.p)
            store_gradient<D, N, group::threads>(a, row, n, lane, x_raw, dy_raw, old, rstd, mean);
#pragma unroll
        for (int k = 0; k < N; k++) {
            x_raw[k] = next_x[k];
            dy_raw[k] = next_dy[k];
        }
    }
    if (a.d_weight.p)
        store_partial<D, N, WARPS>((float *)a.workspace + blockIdx.x * a.columns, n, lane, d_weight);
}

/* The row's vectors of 16 bytes when it can be worked on here, 0 otherwise. */
static int64_t vectors_of_row(const rmsnorm_args *a)
{
    const buffer all[] = {a->x, a->weight, a->y, a->dy, a->dx};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].p && (all[i].dtype != a->x.dtype || !is_aligned(all[i])))
            return 0;
    const int64_t width = a->x.dtype == FSDP_F32 ? 4 : 8, n = a->columns / width;
    return a->columns % width == 0 && n <= 8 * THREADS ? n : 0;
}

/* Runs CALL(D, N, WARPS) for rows of n vectors. */
#define DISPATCH_ROWS(n, CALL)                                                                                         \
    do {                                                                                                               \
        if ((n) <= 64)                                                                                                 \
            DISPATCH_TYPE(CALL, 2, 1);                                                                                 \
        else if ((n) <= 256)                                                                                           \
            DISPATCH_TYPE(CALL, 8, 1);                                                                                 \
        else if ((n) <= 512)                                                                                           \
            DISPATCH_TYPE(CALL, 4, 4);                                                                                 \
        else                                                                                                           \
            DISPATCH_TYPE(CALL, 8, 4);                                                                                 \
    } while (0)

#define DISPATCH_TYPE(CALL, N, WARPS)                                                                                  \
    do {                                                                                                               \
        if (a->x.dtype == FSDP_F32)                                                                                    \
            CALL(FSDP_F32, N, WARPS);                                                                                  \
        else if (a->x.dtype == FSDP_BF16)                                                                              \
            CALL(FSDP_BF16, N, WARPS);                                                                                 \
        else                                                                                                           \
            CALL(FSDP_F16, N, WARPS);                                                                                  \
    } while (0)

extern "C" cudaError_t launch_rmsnorm_forward(const launch *l, const rmsnorm_args *a)
{
    const int64_t n = vectors_of_row(a);
    if (n == 0 || a->rows == 0)
        return launch_rmsnorm_any_forward(l, a);
#define CALL(D, N, WARPS)                                                                                              \
    rmsnorm_rows<D, N, WARPS><<<(unsigned)launch_ceil(a->rows, row_group<WARPS>::in_block), THREADS, 0, l->stream>>>(*a)
    DISPATCH_ROWS(n, CALL);
#undef CALL
    return cudaGetLastError();
}

extern "C" cudaError_t launch_rmsnorm_backward(const launch *l, const rmsnorm_args *a)
{
    const int64_t n = vectors_of_row(a);
    if (n == 0 || a->rows == 0)
        return launch_rmsnorm_any_backward(l, a);
    int64_t n_blocks = 0;
#define CALL(D, N, WARPS)                                                                                              \
    do {                                                                                                               \
        n_blocks =                                                                                                     \
            launch_min(l->n_multiprocessors * (N == 8 ? 2 : 4), launch_ceil(a->rows, row_group<WARPS>::in_block));     \
        rmsnorm_backward_rows<D, N, WARPS><<<(unsigned)n_blocks, THREADS, 0, l->stream>>>(*a);                         \
    } while (0)
    DISPATCH_ROWS(n, CALL);
#undef CALL
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && a->d_weight.p)
        error = launch_sum_partials(l, (const float *)a->workspace, n_blocks, a->columns, a->d_weight, a->add_weight);
    return error;
}
