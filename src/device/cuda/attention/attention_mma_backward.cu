/* Gradients of attention on tensor cores, without atomics: one kernel owns keys (d_k, d_v) and runs over the queries,
 * one owns queries (d_q) and runs over the keys, and each recomputes the scores it needs, so every sum has one order.
 * The tiles of the other side are copied one step ahead. The bias gradient is in attention_mma_bias.cu. */
#include "device/cuda/attention/attention_mma.cuh"

/* Rows of the other side at a time: fewer for wide heads, whose sums fill the registers. */
template <int DP> static constexpr int other_rows = DP <= 64 ? 64 : 32;

static __device__ __forceinline__ float kept_scale(const attention_args &a)
{
    return a.dropout > 0 ? attention_dropout_scale(attention_dropout_threshold(a.dropout)) : 1.0f;
}

/* The gradients of keys and values: scores are transposed here, keys down, queries across. */

template <int DP> struct kv_stage {
    static constexpr int N = other_rows<DP>;
    char *q, *d_out;
    float *lse, *delta; /* (N) each */
    float *distances;

    static constexpr int bytes = 2 * tile_bytes<DP, N> + (2 * N + DISTANCES(1)) * (int)sizeof(float);

    __device__ explicit kv_stage(char *memory)
        : q(memory), d_out(memory + tile_bytes<DP, N>), lse((float *)(memory + 2 * tile_bytes<DP, N>)), delta(lse + N),
          distances(delta + N)
    {
    }
};

template <int DP> static constexpr int backward_kv_bytes()
{
    return 2 * tile_bytes<DP, MMA_ROWS> + 2 * kv_stage<DP>::bytes + other_rows<DP> * (int)sizeof(uint64_t);
}

template <int DP>
static __device__ __forceinline__ void copy_queries(const attention_args &a, const float *delta, const head_view &at,
                                                    const kv_stage<DP> &stage, int64_t first_q, int64_t first_k)
{
    constexpr int N = other_rows<DP>;
    const int64_t rows = a.q_length - first_q, width = a.q_heads * a.head_dim;
    copy_rows<DP>(stage.q, a.q, at.q(a, first_q), a.q_row, N, rows, (int)a.head_dim);
    copy_rows<DP>(stage.d_out, a.d_out, at.out(a, first_q), width, N, rows, (int)a.head_dim);
    if (threadIdx.x < 2 * N) {
        const int i = (int)threadIdx.x % N;
        const bool present = i < rows;
        const int64_t from = present ? at.row(a, first_q + i) : 0;
        if (threadIdx.x < N)
            copy_async_4(stage.lse + i, a.lse + from, present);
        else
            copy_async_4(stage.delta + i, delta + from, present);
    }
    if (bias_by_distance(a))
        copy_distances(stage.distances, a, at, first_k - first_q - (N - 1), MMA_ROWS - 1 + N);
}

template <int D, int DP>
__global__ void __launch_bounds__(MMA_THREADS) attention_mma_backward_kv(const attention_args a, const float *delta)
{
    constexpr int N = other_rows<DP>;
    extern __shared__ uint4 memory[];
    char *k_tile = (char *)memory, *v_tile = k_tile + tile_bytes<DP, MMA_ROWS>,
         *stages = v_tile + tile_bytes<DP, MMA_ROWS>;
    uint64_t *keep = (uint64_t *)(stages + 2 * kv_stage<DP>::bytes);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int64_t first_k = (int64_t)blockIdx.x * MMA_ROWS, group = a.q_heads / a.kv_heads;
    const int64_t first_head = blockIdx.y * group, b = blockIdx.z, rows = a.kv_length - first_k;
    const head_view own(a, b, first_head);
    copy_rows<DP>(k_tile, a.k, own.k(a, first_k), a.k_row, MMA_ROWS, rows, (int)a.head_dim);
    copy_rows<DP>(v_tile, a.v, own.v(a, first_k), a.v_row, MMA_ROWS, rows, (int)a.head_dim);
    /* Causal: queries before first_k - shift see none of these keys. */
    const int64_t start = a.causal ? max((int64_t)0, first_k - (a.kv_length - a.q_length)) / N * N : 0;
    const int64_t end = queries_end(a, b, first_k, MMA_ROWS);
    const int64_t steps = max((int64_t)0, (end - start + N - 1) / N), all = steps * group;
    if (all > 0)
        copy_queries<DP>(a, delta, own, kv_stage<DP>(stages), start, first_k);
    copy_async_commit();
    float d_k[DP / 8][4], d_v[DP / 8][4];
#pragma unroll
    for (int c = 0; c < DP / 8; c++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            d_k[c][e] = d_v[c][e] = 0;
    const float kept = kept_scale(a);
    const bool by_distance = bias_by_distance(a);
    int64_t head = first_head, first_q = start;
    for (int64_t i = 0; i < all; i++) {
        const kv_stage<DP> stage(stages + (i & 1) * kv_stage<DP>::bytes);
        const bool next_head = first_q + N >= end;
        const int64_t next_q = next_head ? start : first_q + N;
        const head_view at(a, b, head), next(a, b, next_head ? head + 1 : head);
        if (i + 1 < all)
            copy_queries<DP>(a, delta, next, kv_stage<DP>(stages + ((i + 1) & 1) * kv_stage<DP>::bytes), next_q,
                             first_k);
        copy_async_commit();
        if (a.dropout > 0)
            fill_keep(a, b, head, first_q, N, first_k, MMA_ROWS, keep);
        copy_async_wait<1>();
        __syncthreads();
        float s[N / 8][4], dp[N / 8][4];
        multiply_rows<D, DP, N, 1>(&s, k_tile, warp * 16, stage.q);
        mma_scores<N, true>(a, at, s, first_k + warp * 16 + g, first_q + 2 * t,
                            by_distance ? stage.distances + N - 1 + warp * 16 + g - 2 * t : NULL,
                            is_edge(a, b, first_q, first_k, MMA_ROWS));
        multiply_rows<D, DP, N, 1>(&dp, v_tile, warp * 16, stage.d_out);
        const int64_t queries = a.q_length - first_q;
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const int query = 8 * j + 2 * t + side, key = warp * 16 + g;
                const float lse = lse_for_weights(stage.lse[query], query < queries), row_delta = stage.delta[query];
                const uint64_t bits = a.dropout > 0 ? keep[query] >> key : ~(uint64_t)0;
#pragma unroll
                for (int half = 0; half < 2; half++)
                    weight_gradient(s[j][2 * half + side], dp[j][2 * half + side], lse, row_delta, bits >> 8 * half & 1,
                                    kept);
            }
        add_weighted<D, DP, N, 1>(&d_v, &s, stage.d_out);
        add_weighted<D, DP, N, 1>(&d_k, &dp, stage.q);
        __syncthreads();
        head += next_head;
        first_q = next_q;
    }
    copy_async_wait<0>();
    const int64_t own_rows = rows - warp * 16, token = first_k + warp * 16;
    if (a.d_k.p)
        store_rows<DP>(a.d_k, own.k(a, token), a.k_row, own_rows, (int)a.head_dim, d_k, a.scale, a.add_k);
    if (a.d_v.p)
        store_rows<DP>(a.d_v, own.v(a, token), a.v_row, own_rows, (int)a.head_dim, d_v, 1.0f, a.add_v);
}

/* The gradient of queries. */

template <int DP> static constexpr int backward_q_bytes()
{
    return 2 * tile_bytes<DP, MMA_ROWS> + 4 * tile_bytes<DP, other_rows<DP>> + MMA_ROWS * (int)sizeof(uint64_t) +
           2 * DISTANCES(1) * (int)sizeof(float);
}

template <int DP>
static __device__ __forceinline__ void copy_keys(const attention_args &a, const head_view &at, char *stage,
                                                 float *distances, int64_t first_q, int64_t first_k)
{
    constexpr int N = other_rows<DP>;
    const int64_t rows = a.kv_length - first_k;
    copy_rows<DP>(stage, a.k, at.k(a, first_k), a.k_row, N, rows, (int)a.head_dim);
    copy_rows<DP>(stage + tile_bytes<DP, N>, a.v, at.v(a, first_k), a.v_row, N, rows, (int)a.head_dim);
    if (bias_by_distance(a))
        copy_distances(distances, a, at, first_k - first_q - (MMA_ROWS - 1), MMA_ROWS - 1 + N);
}

template <int D, int DP>
__global__ void __launch_bounds__(MMA_THREADS, DP <= 64 ? 4 : 2)
    attention_mma_backward_q(const attention_args a, const float *delta)
{
    constexpr int N = other_rows<DP>;
    extern __shared__ uint4 memory[];
    char *q_tile = (char *)memory, *d_out_tile = q_tile + tile_bytes<DP, MMA_ROWS>,
         *stages = d_out_tile + tile_bytes<DP, MMA_ROWS>;
    uint64_t *keep = (uint64_t *)(stages + 4 * tile_bytes<DP, N>);
    float *distances = (float *)(keep + MMA_ROWS);
    const head_view at(a, blockIdx.z, blockIdx.y);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int64_t first_q = (int64_t)(gridDim.x - 1 - blockIdx.x) * MMA_ROWS, end = keys_end(a, first_q, MMA_ROWS);
    const int64_t rows = a.q_length - first_q, row = first_q + warp * 16 + g;
    copy_rows<DP>(q_tile, a.q, at.q(a, first_q), a.q_row, MMA_ROWS, rows, (int)a.head_dim);
    copy_rows<DP>(d_out_tile, a.d_out, at.out(a, first_q), a.q_heads * a.head_dim, MMA_ROWS, rows, (int)a.head_dim);
    const int64_t begin = keys_begin(a, at.b, first_q, N);
    if (end > begin)
        copy_keys<DP>(a, at, stages, distances, first_q, begin);
    copy_async_commit();
    float lse[2], row_delta[2], d_q[DP / 8][4];
    read_row(a, delta, at, row, &lse[0], &row_delta[0]);
    read_row(a, delta, at, row + 8, &lse[1], &row_delta[1]);
#pragma unroll
    for (int c = 0; c < DP / 8; c++)
        d_q[c][0] = d_q[c][1] = d_q[c][2] = d_q[c][3] = 0;
    const float kept = kept_scale(a);
    const bool by_distance = bias_by_distance(a);
    const int own_distance = MMA_ROWS - 1 + 2 * t - (warp * 16 + g);
    int stage = 0;
    for (int64_t first_k = begin; first_k < end; first_k += N, stage ^= 1) {
        char *k_tile = stages + stage * 2 * tile_bytes<DP, N>, *v_tile = k_tile + tile_bytes<DP, N>;
        if (first_k + N < end)
            copy_keys<DP>(a, at, stages + (stage ^ 1) * 2 * tile_bytes<DP, N>, distances + (stage ^ 1) * DISTANCES(1),
                          first_q, first_k + N);
        copy_async_commit();
        if (a.dropout > 0)
            fill_keep(a, at.b, at.head, first_q, MMA_ROWS, first_k, N, keep);
        copy_async_wait<1>();
        __syncthreads();
        float s[N / 8][4], dp[N / 8][4];
        multiply_rows<D, DP, N, 1>(&s, q_tile, warp * 16, k_tile);
        mma_scores<N, false>(a, at, s, row, first_k + 2 * t,
                             by_distance ? distances + stage * DISTANCES(1) + own_distance : NULL,
                             is_edge(a, at.b, first_q, first_k, N));
        multiply_rows<D, DP, N, 1>(&dp, d_out_tile, warp * 16, v_tile);
        const int own_row = warp * 16 + g;
        const uint64_t bits[2] = {a.dropout > 0 ? keep[own_row] >> (2 * t) : ~(uint64_t)0,
                                  a.dropout > 0 ? keep[own_row + 8] >> (2 * t) : ~(uint64_t)0};
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                weight_gradient(s[j][e], dp[j][e], lse[e >> 1], row_delta[e >> 1],
                                bits[e >> 1] >> (8 * j + (e & 1)) & 1, kept);
        add_weighted<D, DP, N, 1>(&d_q, &dp, k_tile);
        __syncthreads();
    }
    copy_async_wait<0>();
    store_rows<DP>(a.d_q, at.q(a, first_q + warp * 16), a.q_row, rows - warp * 16, (int)a.head_dim, d_q, a.scale,
                   a.add_q);
}

template <int D, int DP> static cudaError_t start_backward(const launch *l, const attention_args *a, const float *delta)
{
    const int kv_bytes = backward_kv_bytes<DP>(), q_bytes = backward_q_bytes<DP>();
    cudaError_t error =
        cudaFuncSetAttribute(attention_mma_backward_kv<D, DP>, cudaFuncAttributeMaxDynamicSharedMemorySize, kv_bytes);
    if (error == cudaSuccess)
        error =
            cudaFuncSetAttribute(attention_mma_backward_q<D, DP>, cudaFuncAttributeMaxDynamicSharedMemorySize, q_bytes);
    if (error != cudaSuccess)
        return error;
    const dim3 keys((unsigned)launch_ceil(a->kv_length, MMA_ROWS), (unsigned)a->kv_heads, (unsigned)a->batch);
    const dim3 queries((unsigned)launch_ceil(a->q_length, MMA_ROWS), (unsigned)a->q_heads, (unsigned)a->batch);
    if (a->kv_length > 0 && (a->d_k.p || a->d_v.p))
        attention_mma_backward_kv<D, DP><<<keys, MMA_THREADS, (size_t)kv_bytes, l->stream>>>(*a, delta);
    if (a->d_q.p)
        attention_mma_backward_q<D, DP><<<queries, MMA_THREADS, (size_t)q_bytes, l->stream>>>(*a, delta);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_attention_mma_backward(const launch *l, const attention_args *a, const float *delta)
{
    return MMA_DISPATCH(a, start_backward, l, a, delta);
}
