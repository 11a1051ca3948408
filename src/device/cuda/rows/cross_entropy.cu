/* Softmax cross-entropy over rows of logits. A row is read once and kept in registers, by one block or, where it is
 * long, by a cluster of up to eight, so the gradient (which may take the logits' place) costs one read and one write of
 * device memory. Mixed types, rows that are not aligned, and long rows on GPUs without clusters take one block a row
 * that keeps what fits in shared memory. */
#include "device/cuda/cluster.cuh"
#include "device/cuda/mma.cuh"
#include "device/cuda/vector.cuh"

#define THREADS 512

/* Running maximum and sum of exp(x - maximum). */
struct running {
    float maximum, sum;
};

static __device__ __forceinline__ running join(running a, running b)
{
    const float maximum = fmaxf(a.maximum, b.maximum);
    if (maximum == -INFINITY)
        return {maximum, a.sum + b.sum}; /* zeros, or NaN */
    return {maximum, a.sum * __expf(a.maximum - maximum) + b.sum * __expf(b.maximum - maximum)};
}

static __device__ running block_join(running r, running *shared)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        const running other = {__shfl_xor_sync(0xffffffffu, r.maximum, offset),
                               __shfl_xor_sync(0xffffffffu, r.sum, offset)};
        r = join(r, other);
    }
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    if (lane == 0)
        shared[warp] = r;
    __syncthreads();
    r = lane < n_warps ? shared[lane] : running{-INFINITY, 0.0f};
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) {
        const running other = {__shfl_xor_sync(0xffffffffu, r.maximum, offset),
                               __shfl_xor_sync(0xffffffffu, r.sum, offset)};
        r = join(r, other);
    }
    return r;
}

template <int V> static __device__ __forceinline__ running take(running r, const floats<V> &x)
{
    float maximum = x.v[0];
#pragma unroll
    for (int j = 1; j < V; j++)
        maximum = fmaxf(maximum, x.v[j]);
    if (maximum > r.maximum) {
        r.sum *= __expf(r.maximum - maximum);
        r.maximum = maximum;
    }
    const float base = r.maximum == -INFINITY ? 0.0f : r.maximum; /* maxima pass over a NaN, sums must not */
#pragma unroll
    for (int j = 0; j < V; j++)
        r.sum += __expf(x.v[j] - base);
    return r;
}

/* Vector i of the row: from shared memory where it is kept there (16-bit types only), from the device's otherwise. */
template <int D, int V>
static __device__ __forceinline__ floats<V> read_again(const cross_entropy_args &a, const uint4 *kept, int n_kept,
                                                       int64_t base, int i)
{
    if constexpr (V == 8 && (D == FSDP_BF16 || D == FSDP_F16)) {
        if (i < n_kept) {
            floats<V> x;
            unpack8(D, kept[i], x.v);
            return x;
        }
    }
    return load<D, V>(a.logits, base + (int64_t)i * V);
}

/* What a row adds to the count. A label outside the vocabulary makes it NaN: the host learns of it with the loss. */
static __device__ __forceinline__ float count_of(const cross_entropy_args &a, int32_t label, bool counts)
{
    return counts ? 1.0f : label == a.ignore ? 0.0f : __int_as_float(0x7fc00000);
}

/* losses: (2, rows) in the workspace: the loss, and what the row counts; NULL when only the gradient is wanted. */
template <int D, int V>
__global__ void __launch_bounds__(THREADS, 2) cross_entropy(const cross_entropy_args a, float *losses, int n_kept)
{
    extern __shared__ uint4 kept[];
    __shared__ running shared[32];
    const int64_t row = blockIdx.x, base = row * a.stride;
    const int n = (int)(a.vocabulary / V);
    const int32_t label = a.labels[row];
    const bool counts = label != a.ignore && label >= 0 && label < a.vocabulary;
    if (!counts) {
        if (losses && threadIdx.x == 0) {
            losses[row] = 0.0f;
            losses[a.rows + row] = count_of(a, label, false);
        }
        if (a.d_logits.p && !a.add_logits) {
            floats<V> zero;
#pragma unroll
            for (int j = 0; j < V; j++)
                zero.v[j] = 0;
            for (int i = threadIdx.x; i < n; i += blockDim.x)
                store<D, V>(a.d_logits, base + (int64_t)i * V, zero);
        }
        return;
    }
    running r = {-INFINITY, 0.0f};
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        floats<V> x;
        if constexpr (V == 8 && (D == FSDP_BF16 || D == FSDP_F16)) {
            const uint4 raw = *(const uint4 *)((const uint16_t *)a.logits.p + base + (int64_t)i * V);
            if (i < n_kept)
                kept[i] = raw;
            unpack8(D, raw, x.v);
        } else {
            x = load<D, V>(a.logits, base + (int64_t)i * V);
        }
        r = take<V>(r, x);
    }
    r = block_join(r, shared);
    if (losses && threadIdx.x == 0) {
        losses[row] = logf(r.sum) + r.maximum - load_one(a.logits.p, a.logits.dtype, base + label);
        losses[a.rows + row] = 1.0f;
    }
    if (!a.d_logits.p)
        return;
    __syncthreads(); /* the label's logit is read above before any thread overwrites it */
    const float seed = *a.seed, scale = seed / r.sum;
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
        floats<V> x = read_again<D, V>(a, kept, n_kept, base, i);
#pragma unroll
        for (int j = 0; j < V; j++) {
            x.v[j] = __expf(x.v[j] - r.maximum) * scale;
            if ((int64_t)i * V + j == label)
                x.v[j] -= seed;
        }
        store_or_add<D, V>(a.d_logits, base + (int64_t)i * V, x, a.add_logits);
    }
}

/* A kept row: threads of a block. Each holds N vectors of 16 bytes. */
#define KEPT_THREADS 512
#define LOG2_E 1.44269504088896341f

template <int D> static __device__ __forceinline__ float highest_of(uint4 raw)
{
    float x[in_16_bytes<D>];
    if constexpr (D == FSDP_BF16) { /* pairs at a time: no rounding in a maximum */
        __nv_bfloat162 pair[4];
        memcpy(pair, &raw, sizeof pair);
        pair[0] = __hmax2(__hmax2(pair[0], pair[1]), __hmax2(pair[2], pair[3]));
        return fmaxf(__low2float(pair[0]), __high2float(pair[0]));
    }
    unpack16<D>(raw, x);
    float highest = x[0];
#pragma unroll
    for (int j = 1; j < in_16_bytes<D>; j++)
        highest = fmaxf(highest, x[j]);
    return highest;
}

/* e^(x - maximum). For 16-bit logits by one multiplication and addition, which is off by at most the rounding of the
 * scaled maximum; fp32 ones are subtracted first. */
template <int D> static __device__ __forceinline__ float weight_of(float x, float maximum)
{
    return D == FSDP_F32 ? exp2_fast((x - maximum) * LOG2_E) : exp2_fast(x * LOG2_E - maximum * LOG2_E);
}

/* The vector with all but its first `width` elements replaced by logits that weigh nothing. */
template <int D> static __device__ __forceinline__ uint4 without_rest(uint4 raw, int width)
{
    float x[in_16_bytes<D>];
    unpack16<D>(raw, x);
#pragma unroll
    for (int j = 0; j < in_16_bytes<D>; j++)
        x[j] = j < width ? x[j] : -INFINITY;
    return pack16<D>(x);
}

/* Of this thread's vectors first, first + step, ... below n. */
template <int D, int N>
static __device__ __forceinline__ running take_kept(const uint4 raw[N], int first, int step, int n)
{
    running r = {-INFINITY, 0.0f};
#pragma unroll
    for (int k = 0; k < N; k++)
        if (first + k * step < n)
            r.maximum = fmaxf(r.maximum, highest_of<D>(raw[k]));
    const float base = r.maximum == -INFINITY ? 0.0f : r.maximum;
#pragma unroll
    for (int k = 0; k < N; k++)
        if (first + k * step < n) {
            float x[in_16_bytes<D>];
            unpack16<D>(raw[k], x);
            float part = 0;
#pragma unroll
            for (int j = 0; j < in_16_bytes<D>; j++)
                part += weight_of<D>(x[j], base);
            r.sum += part;
        }
    return r;
}

/* (softmax - onehot) * seed of this thread's vectors; zeros for a row that does not count. */
template <int D, int N>
static __device__ __forceinline__ void store_kept(const cross_entropy_args &a, const uint4 raw[N], int64_t base,
                                                  int first, int step, int n, int label, running r, bool counts)
{
    constexpr int V = in_16_bytes<D>;
    const float seed = counts ? *a.seed : 0.0f, scale = counts ? seed / r.sum : 0.0f;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int i = first + k * step;
        if (i >= n)
            break;
        float x[V], old[V];
        if (counts)
            unpack16<D>(raw[k], x);
#pragma unroll
        for (int j = 0; j < V; j++)
            x[j] = counts ? weight_of<D>(x[j], r.maximum) * scale : 0.0f;
        if (counts && i == label / V)
#pragma unroll
            for (int j = 0; j < V; j++)
                if (j == label % V)
                    x[j] -= seed;
        if (a.add_logits) {
            unpack16<D>(((const uint4 *)a.d_logits.p)[base + i], old);
#pragma unroll
            for (int j = 0; j < V; j++)
                x[j] += old[j];
        }
        ((uint4 *)a.d_logits.p)[base + i] = pack16<D>(x);
    }
}

/* A row, kept by `blocks` blocks of a cluster (1: no cluster): vector i by block i / KEPT_THREADS % blocks. */
template <int D, int N>
__global__ void __launch_bounds__(KEPT_THREADS, N == 8 ? 2 : 1)
    cross_entropy_kept(const cross_entropy_args a, float *losses, int blocks)
{
    constexpr int V = in_16_bytes<D>;
    __shared__ running shared[32], part;
    const int rank = (int)(blockIdx.x % (unsigned)blocks), n = (int)((a.vocabulary + V - 1) / V);
    const int first = rank * KEPT_THREADS + (int)threadIdx.x, step = blocks * KEPT_THREADS;
    const int64_t row = blockIdx.x / (unsigned)blocks, base = row * (a.stride / V);
    uint4 raw[N];
#pragma unroll
    for (int k = 0; k < N; k++)
        raw[k] = first + k * step < n ? ((const uint4 *)a.logits.p)[base + first + k * step] : make_uint4(0, 0, 0, 0);
    const int rest = (int)(a.vocabulary % V);
    if (rest) /* of the last vector belongs to the row */
#pragma unroll
        for (int k = 0; k < N; k++)
            if (first + k * step == n - 1)
                raw[k] = without_rest<D>(raw[k], rest);
    const int32_t label = a.labels[row];
    const bool counts = label != a.ignore && label >= 0 && label < a.vocabulary;
    float chosen = 0; /* read before it is overwritten */
    if (counts && rank == 0 && threadIdx.x == 0)
        chosen = load_one(a.logits.p, D, row * a.stride + label);
    running r = {-INFINITY, 0.0f};
    if (counts) {
        r = block_join(take_kept<D, N>(raw, first, step, n), shared);
        if (blocks > 1) {
            if (threadIdx.x == 0)
                part = r;
            cluster_arrive();
            cluster_wait();
            r = {-INFINITY, 0.0f};
            for (int i = 0; i < blocks; i++)
                r = join(r, {cluster_read(&part.maximum, i), cluster_read(&part.sum, i)});
            cluster_arrive(); /* the others may go on; see the end */
        }
    }
    if (losses && rank == 0 && threadIdx.x == 0) {
        losses[row] = counts ? logf(r.sum) + r.maximum - chosen : 0.0f;
        losses[a.rows + row] = count_of(a, label, counts);
    }
    if (a.d_logits.p && (counts || !a.add_logits))
        store_kept<D, N>(a, raw, base, first, step, n, label, r, counts);
    if (counts && blocks > 1)
        cluster_wait(); /* a block's shared memory stays until all have read it */
}

/* One block adds the rows' losses up, thread by thread in order. */
__global__ void __launch_bounds__(THREADS) add_losses(const cross_entropy_args a, const float *losses)
{
    __shared__ double sums[32], counts[32];
    double sum = 0, count = 0;
    for (int64_t i = threadIdx.x; i < a.rows; i += blockDim.x) {
        sum += losses[i];
        count += losses[a.rows + i];
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        count += __shfl_xor_sync(0xffffffffu, count, offset);
    }
    if ((threadIdx.x & 31) == 0) {
        sums[threadIdx.x >> 5] = sum;
        counts[threadIdx.x >> 5] = count;
    }
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    sum = count = 0;
    for (int i = 0; i < (int)blockDim.x >> 5; i++) {
        sum += sums[i];
        count += counts[i];
    }
    if (a.loss_sum)
        *a.loss_sum = (a.add_loss ? *a.loss_sum : 0.0f) + (float)sum;
    if (a.count)
        *a.count = (a.add_loss ? *a.count : 0.0f) + (float)count;
}

template <int D, int V>
static cudaError_t start(const launch *l, const cross_entropy_args *a, float *losses, int threads)
{
    /* Two blocks share a multiprocessor, so that one reads while the other writes; what does not fit into its half of
     * shared memory is read again, mostly from the cache. */
    int n_kept = 0;
    if (V == 8 && (D == FSDP_BF16 || D == FSDP_F16) && a->d_logits.p)
        n_kept = (int)launch_min(a->vocabulary / V, (l->shared_bytes / 2 - 2048) / 16);
    const int bytes = n_kept * 16;
    if (bytes > 40 * 1024) {
        cudaError_t error =
            cudaFuncSetAttribute(cross_entropy<D, V>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
        if (error != cudaSuccess)
            return error;
    }
    cross_entropy<D, V><<<(unsigned)a->rows, threads, (size_t)bytes, l->stream>>>(*a, losses, n_kept);
    return cudaGetLastError();
}

/* Blocks that keep a row of n vectors, N a thread; 0 when it does not fit. */
template <int N> static int blocks_for(const launch *l, int64_t n)
{
    int blocks = 1;
    while (blocks < 8 && n > (int64_t)blocks * KEPT_THREADS * N)
        blocks *= 2;
    return n > (int64_t)blocks * KEPT_THREADS * N || (blocks > 1 && !l->clusters) ? 0 : blocks;
}

template <int D, int N>
static cudaError_t start_blocks(const launch *l, const cross_entropy_args *a, float *losses, int blocks)
{
    cudaLaunchAttribute cluster = {};
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)blocks;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)(a->rows * blocks));
    config.blockDim = dim3(KEPT_THREADS);
    config.stream = l->stream;
    config.attrs = &cluster;
    config.numAttrs = blocks > 1 ? 1 : 0;
    return cudaLaunchKernelEx(&config, cross_entropy_kept<D, N>, *a, losses, blocks);
}

/* Whether the row is kept; *error says how the launch went. */
template <int D> static bool start_kept(const launch *l, const cross_entropy_args *a, float *losses, cudaError_t *error)
{
    const int64_t n = launch_ceil(a->vocabulary, in_16_bytes<D>);
    const int few = blocks_for<8>(l, n), many = blocks_for<16>(l, n);
    if (few)
        *error = start_blocks<D, 8>(l, a, losses, few);
    else if (many)
        *error = start_blocks<D, 16>(l, a, losses, many);
    return few || many;
}

static cudaError_t start_any(const launch *l, const cross_entropy_args *a, float *losses)
{
    if (a->rows == 0)
        return cudaSuccess;
    const bool aligned = a->stride % 8 == 0 && is_aligned(a->logits) && is_aligned(a->d_logits);
    const bool vectors = aligned && a->vocabulary % 8 == 0;
    const int dtype = common_dtype(a->logits, a->d_logits, no_buffer, no_buffer);
    cudaError_t error = cudaSuccess;
    if (aligned && dtype == FSDP_F32 && start_kept<FSDP_F32>(l, a, losses, &error))
        return error;
    if (aligned && dtype == FSDP_BF16 && start_kept<FSDP_BF16>(l, a, losses, &error))
        return error;
    if (aligned && dtype == FSDP_F16 && start_kept<FSDP_F16>(l, a, losses, &error))
        return error;
    const int threads = row_threads(launch_ceil(a->vocabulary, vectors ? 8 : 1), THREADS);
#define CALL(D, V) error = start<D, V>(l, a, losses, threads)
    DISPATCH(dtype, vectors, CALL);
#undef CALL
    return error;
}

extern "C" cudaError_t launch_cross_entropy_forward(const launch *l, const cross_entropy_args *a)
{
    float *losses = (float *)a->workspace;
    cudaError_t error = start_any(l, a, losses);
    if (error != cudaSuccess)
        return error;
    add_losses<<<1, THREADS, 0, l->stream>>>(*a, losses);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_cross_entropy_backward(const launch *l, const cross_entropy_args *a)
{
    return start_any(l, a, NULL);
}

/* A block looks for a class of its row that is likelier than the label. Whole numbers add up exactly in any order. */
__global__ void __launch_bounds__(THREADS) count_right(const count_right_args a)
{
    const int64_t row = blockIdx.x, label = a.labels[row];
    if (label == a.ignore || label < 0 || label >= a.vocabulary)
        return;
    const float mine = load_one(a.logits.p, a.logits.dtype, row * a.stride + label);
    bool beaten = mine != mine;
    for (int64_t k = threadIdx.x; k < a.vocabulary && !beaten; k += blockDim.x) {
        const float x = load_one(a.logits.p, a.logits.dtype, row * a.stride + k);
        beaten = !(x < mine) && !(x == mine && k >= label);
    }
    if (!__syncthreads_or(beaten) && threadIdx.x == 0)
        atomicAdd(a.right, 1.0f);
}

extern "C" cudaError_t launch_count_right(const launch *l, const count_right_args *a)
{
    const cudaError_t error = a->add ? cudaSuccess : cudaMemsetAsync(a->right, 0, sizeof *a->right, l->stream);
    if (error != cudaSuccess || a->rows == 0)
        return error;
    count_right<<<(unsigned)a->rows, row_threads(a->vocabulary, THREADS), 0, l->stream>>>(*a);
    return cudaGetLastError();
}
