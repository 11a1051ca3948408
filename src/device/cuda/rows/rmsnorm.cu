/* RMS normalisation of rows of one type that a warp or a block can hold, in vectors of 16 bytes. Forward keeps a row in
 * registers. Backward copies the next row to shared memory asynchronously, so that reading goes on while a row is
 * worked on; the weight gradient is summed per block in registers, then over the blocks in order (launch_sum_partials).
 * Other rows are norm.cu's. */
#include "device/cuda/magnitude.cuh"
#include "device/cuda/mma.cuh"

#define THREADS 128
#define STAGES 2

/* Rows of up to N vectors of 16 bytes a thread, shared by WARPS warps: one (then a block works on four rows) or all. */
template <int WARPS> struct row_group {
    static constexpr int threads = 32 * WARPS;
    static constexpr int in_block = THREADS / threads;

    static __device__ __forceinline__ int lane()
    {
        return WARPS == 1 ? threadIdx.x & 31 : threadIdx.x;
    }

    /* Its first row; the others are `step` apart. The blocks share what is left over at the end. */
    static __device__ __forceinline__ int64_t first_row()
    {
        return WARPS == 1 ? (threadIdx.x >> 5) * (int64_t)gridDim.x + blockIdx.x : blockIdx.x;
    }

    static __device__ __forceinline__ int64_t step()
    {
        return gridDim.x * (int64_t)in_block;
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

/* Starts copying vectors `lane`, lane + STEP, ... of a row of n into this thread's places; zeros past its end. */
template <int N, int STEP>
static __device__ __forceinline__ void copy_row(uint4 *own, const void *p, int64_t row, int n, int lane)
{
    const uint4 *from = (const uint4 *)p + row * n;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const bool present = lane + k * STEP < n;
        copy_async(own + k * THREADS, from + (present ? lane + k * STEP : 0), present);
    }
}

/* A row a group, kept in registers; the weight is on its way while the row is summed. */
template <int D, int N, int WARPS> __global__ void __launch_bounds__(THREADS) rmsnorm_rows(const rmsnorm_args a)
{
    typedef row_group<WARPS> group;
    constexpr int V = in_16_bytes<D>;
    const int64_t row = group::first_row();
    const int lane = group::lane(), n = row < a.rows ? (int)(a.columns / V) : 0; /* all come to the end */
    uint32_t largest = 0;
    uint4 raw[N], weights[N];
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int i = lane + k * group::threads;
        raw[k] = i < n ? ((const uint4 *)a.x.p)[row * n + i] : make_uint4(0, 0, 0, 0);
    }
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int i = lane + k * group::threads;
        weights[k] = i < n ? ((const uint4 *)a.weight.p)[i] : make_uint4(0, 0, 0, 0);
    }
    float squares = 0;
#pragma unroll
    for (int k = 0; k < N; k++) {
        float x[V], part = 0; /* short chains of additions */
        unpack16<D>(raw[k], x);
#pragma unroll
        for (int j = 0; j < V; j++)
            part += x[j] * x[j];
        squares += part;
    }
    const float rstd = 1.0f / sqrtf(group::sum(squares, 0) / (float)a.columns + a.eps);
    if (lane == 0 && n > 0)
        a.rstd[row] = rstd;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int i = lane + k * group::threads;
        if (i >= n)
            break;
        floats<V> x;
        float weight[V];
        unpack16<D>(raw[k], x.v);
        unpack16<D>(weights[k], weight);
#pragma unroll
        for (int j = 0; j < V; j++)
            x.v[j] = x.v[j] * rstd * (a.shift + weight[j]);
        ((uint4 *)a.y.p)[row * n + i] = pack16<D>(x.v);
        largest = largest_of<V>(largest, x);
    }
    if (a.magnitude)
        magnitude_leave(magnitude_as_stored(largest, D), (uint32_t *)a.magnitude);
}

/* dx of one row, given the mean over columns of weight * dy * xhat; old: what it is added to. Returns the largest of
 * `largest` and of what it wrote, as bits of magnitudes. */
template <int D, int N, int STEP>
static __device__ __forceinline__ uint32_t store_gradient(const rmsnorm_args &a, int64_t row, int n, int lane,
                                                          const uint4 *x_own, const uint4 *dy_own, const uint4 old[N],
                                                          float rstd, float mean, uint32_t largest)
{
    constexpr int V = in_16_bytes<D>;
    const float shrink = -rstd * rstd * mean;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int i = lane + k * STEP;
        if (i >= n)
            break;
        float x[V], dy[V], weight[V];
        floats<V> out;
        unpack16<D>(x_own[k * THREADS], x);
        unpack16<D>(dy_own[k * THREADS], dy);
        unpack16<D>(((const uint4 *)a.weight.p)[i], weight);
        unpack16<D>(old[k], out.v);
#pragma unroll
        for (int j = 0; j < V; j++)
            out.v[j] += (a.shift + weight[j]) * dy[j] * rstd + x[j] * shrink;
        ((uint4 *)a.dx.p)[row * n + i] = pack16<D>(out.v);
        largest = largest_of<V>(largest, out);
    }
    return largest;
}

/* Adds the groups' weight gradients up in group order and writes the block's row of partial sums. all: shared memory
 * for one row a group. */
template <int D, int N, int WARPS>
static __device__ __forceinline__ void store_partial(float *partial, float *all, int n, int lane,
                                                     const float d_weight[N][in_16_bytes<D>])
{
    typedef row_group<WARPS> group;
    constexpr int V = in_16_bytes<D>;
    float *own = all + (WARPS == 1 ? threadIdx.x >> 5 : 0) * n * V;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int i = lane + k * group::threads;
        if (i < n)
#pragma unroll
            for (int j = 0; j < V; j += 4)
                *(float4 *)(own + i * V + j) =
                    make_float4(d_weight[k][j], d_weight[k][j + 1], d_weight[k][j + 2], d_weight[k][j + 3]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < n * V; i += THREADS) {
        float sum = all[i];
#pragma unroll
        for (int turn = 1; turn < group::in_block; turn++)
            sum += all[turn * n * V + i];
        partial[i] = sum;
    }
}

template <int D, int N, int WARPS>
__global__ void __launch_bounds__(THREADS, 3) rmsnorm_backward_rows(const rmsnorm_args a)
{
    typedef row_group<WARPS> group;
    constexpr int V = in_16_bytes<D>, S = STAGES;
    extern __shared__ uint4 memory[];
    uint4 *ring = memory + threadIdx.x; /* (S, x | dy, N, THREADS) */
    const int lane = group::lane(), n = (int)(a.columns / V);
    const int64_t step = group::step();
    uint32_t largest = 0;
    float d_weight[N][V];
#pragma unroll
    for (int k = 0; k < N; k++)
#pragma unroll
        for (int j = 0; j < V; j++)
            d_weight[k][j] = 0;
    int64_t row = group::first_row();
    if (row < a.rows) {
        copy_row<N, group::threads>(ring, a.x.p, row, n, lane);
        copy_row<N, group::threads>(ring + N * THREADS, a.dy.p, row, n, lane);
    }
    copy_async_commit();
    float next_rstd = row < a.rows ? a.rstd[row] : 0.0f;
    for (int turn = 0; row < a.rows; row += step, turn++) {
        const uint4 *x_own = ring + turn % S * 2 * N * THREADS, *dy_own = x_own + N * THREADS;
        if (row + step < a.rows) {
            uint4 *next = ring + (turn + 1) % S * 2 * N * THREADS;
            copy_row<N, group::threads>(next, a.x.p, row + step, n, lane);
            copy_row<N, group::threads>(next + N * THREADS, a.dy.p, row + step, n, lane);
        }
        copy_async_commit();
        uint4 old[N];
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int i = lane + k * group::threads;
            old[k] = a.add_dx && i < n ? ((const uint4 *)a.dx.p)[row * n + i] : make_uint4(0, 0, 0, 0);
        }
        const float rstd = next_rstd;
        if (row + step < a.rows)
            next_rstd = a.rstd[row + step];
        copy_async_wait<S - 1>();
        float sum = 0;
#pragma unroll
        for (int k = 0; k < N; k++) {
            const int i = lane + k * group::threads;
            float x[V], dy[V], weight[V], part = 0;
            unpack16<D>(x_own[k * THREADS], x);
            unpack16<D>(dy_own[k * THREADS], dy);
            unpack16<D>(i < n ? ((const uint4 *)a.weight.p)[i] : make_uint4(0, 0, 0, 0), weight);
#pragma unroll
            for (int j = 0; j < V; j++) {
                const float product = dy[j] * x[j];
                d_weight[k][j] += product * rstd;
                part += (a.shift + weight[j]) * product;
            }
            sum += part;
        }
        const float mean = group::sum(sum, turn) * rstd / (float)a.columns;
        if (a.dx.p)
            largest = store_gradient<D, N, group::threads>(a, row, n, lane, x_own, dy_own, old, rstd, mean, largest);
    }
    copy_async_wait<0>();
    __syncthreads(); /* the ring becomes the sum of the groups */
    if (a.d_weight.p)
        store_partial<D, N, WARPS>((float *)a.workspace + blockIdx.x * a.columns, (float *)memory, n, lane, d_weight);
    if (a.magnitude)
        magnitude_leave(magnitude_as_stored(largest, D), (uint32_t *)a.magnitude);
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

/* How many blocks work on the rows: three a multiprocessor where its shared memory holds them, else two. */
static int64_t blocks_for(const launch *l, int bytes, int64_t rows, int rows_in_block)
{
    const int64_t on_one = 3 * bytes <= l->shared_bytes ? 3 : 2;
    return launch_min(on_one * l->n_multiprocessors, launch_ceil(rows, rows_in_block));
}

template <int D, int N, int WARPS> static cudaError_t start_forward(const launch *l, const rmsnorm_args *a)
{
    const int64_t n_blocks = launch_ceil(a->rows, row_group<WARPS>::in_block);
    rmsnorm_rows<D, N, WARPS><<<(unsigned)n_blocks, THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}

template <int D, int N, int WARPS> static cudaError_t start_backward(const launch *l, const rmsnorm_args *a)
{
    const int bytes = STAGES * 2 * N * THREADS * 16;
    cudaError_t error =
        cudaFuncSetAttribute(rmsnorm_backward_rows<D, N, WARPS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess)
        return error;
    const int64_t n_blocks = blocks_for(l, bytes, a->rows, row_group<WARPS>::in_block);
    rmsnorm_backward_rows<D, N, WARPS><<<(unsigned)n_blocks, THREADS, (size_t)bytes, l->stream>>>(*a);
    error = cudaGetLastError();
    if (error == cudaSuccess && a->d_weight.p)
        error = launch_sum_partials(l, (const float *)a->workspace, n_blocks, a->columns, a->d_weight, a->add_weight);
    return error;
}

/* Calls F<D, N, WARPS>(...) for rows of n vectors. */
#define DISPATCH_ROWS(n, dtype, F, ...)                                                                                \
    ((n) <= 64    ? DISPATCH_TYPE(dtype, F, 2, 1, __VA_ARGS__)                                                         \
     : (n) <= 256 ? DISPATCH_TYPE(dtype, F, 8, 1, __VA_ARGS__)                                                         \
     : (n) <= 512 ? DISPATCH_TYPE(dtype, F, 4, 4, __VA_ARGS__)                                                         \
                  : DISPATCH_TYPE(dtype, F, 8, 4, __VA_ARGS__))

#define DISPATCH_TYPE(dtype, F, N, WARPS, ...)                                                                         \
    ((dtype) == FSDP_F32    ? F<FSDP_F32, N, WARPS>(__VA_ARGS__)                                                       \
     : (dtype) == FSDP_BF16 ? F<FSDP_BF16, N, WARPS>(__VA_ARGS__)                                                      \
                            : F<FSDP_F16, N, WARPS>(__VA_ARGS__))

extern "C" cudaError_t launch_rmsnorm_forward(const launch *l, const rmsnorm_args *a)
{
    const int64_t n = vectors_of_row(a);
    if (n == 0 || a->rows == 0)
        return launch_rmsnorm_any_forward(l, a);
    return DISPATCH_ROWS(n, a->x.dtype, start_forward, l, a);
}

extern "C" cudaError_t launch_rmsnorm_backward(const launch *l, const rmsnorm_args *a)
{
    const int64_t n = vectors_of_row(a);
    if (n == 0 || a->rows == 0)
        return launch_rmsnorm_any_backward(l, a);
    return DISPATCH_ROWS(n, a->x.dtype, start_backward, l, a);
}
