/* Attention forward on tensor cores: a block owns 64 or 128 queries of one head and runs over the keys 64 at a time,
 * the next tiles of k and v being copied meanwhile, with a running maximum and sum a row. Gradients are in
 * attention_mma_backward.cu. */
#include "device/cuda/attention/attention_mma.cuh"

#define KEYS 64

/* q, two stages of k and v, the bits of dropout, two stages of biases. */
template <int DP, int M> static constexpr int forward_bytes()
{
    return tile_bytes<DP, 64 * M> + 4 * tile_bytes<DP, KEYS> + 64 * M * (int)sizeof(uint64_t) +
           2 * DISTANCES(M) * (int)sizeof(float);
}

/* Moves one row's maximum and sum on by its new scores, which become weights; returns what older sums shrink by. */
template <int HALF> static __device__ __forceinline__ float add_scores(float s[KEYS / 8][4], float &maximum, float &sum)
{
    float highest = maximum;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
        highest = fmaxf(highest, fmaxf(s[j][2 * HALF], s[j][2 * HALF + 1]));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 1));
    highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, 2));
    const float base = highest == -INFINITY ? 0.0f : highest, shrink = exp2_fast(maximum - base);
    float part = 0;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int e = 2 * HALF; e < 2 * HALF + 2; e++) {
            s[j][e] = exp2_fast(s[j][e] - base);
            part += s[j][e];
        }
    maximum = highest;
    sum = sum * shrink + part; /* of this thread's columns; the four threads of a row are joined at the end */
    return shrink;
}

/* Zeros for the weights that dropout leaves out; `keep` is that of the thread's first row. */
static __device__ __forceinline__ void drop_weights(float s[KEYS / 8][4], const uint64_t *keep, int t)
{
    const uint64_t bits[2] = {keep[0] >> (2 * t), keep[8] >> (2 * t)};
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[j][e] = bits[e >> 1] >> (8 * j + (e & 1)) & 1 ? s[j][e] : 0.0f;
}

template <int DP, int M>
static __device__ __forceinline__ void copy_keys(const attention_args &a, const head_view &at, char *stage,
                                                 float *distances, int64_t first_q, int64_t first_k)
{
    const int64_t rows = a.kv_length - first_k;
    copy_rows<DP>(stage, a.k, at.k(a, first_k), a.k_row, KEYS, rows, (int)a.head_dim);
    copy_rows<DP>(stage + tile_bytes<DP, KEYS>, a.v, at.v(a, first_k), a.v_row, KEYS, rows, (int)a.head_dim);
    if (bias_by_distance(a))
        copy_distances(distances, a, at, first_k - first_q - (64 * M - 1), 64 * M - 1 + KEYS);
}

/* Divides by the sums of the weights and writes out and lse of 16 rows. */
template <int DP>
static __device__ __forceinline__ void store_result(const attention_args &a, const head_view &at, int64_t first_row,
                                                    float out[DP / 8][4], const float maximum[2], float sum[2])
{
    const int g = (threadIdx.x & 31) >> 2, t = threadIdx.x & 3;
    const float kept = a.dropout > 0 ? attention_dropout_scale(attention_dropout_threshold(a.dropout)) : 1.0f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        const float inverse = sum[half] == 0 ? 0.0f : kept / sum[half]; /* a NaN stays one */
#pragma unroll
        for (int c = 0; c < DP / 8; c++) {
            out[c][2 * half] *= inverse;
            out[c][2 * half + 1] *= inverse;
        }
        const int64_t row = first_row + g + 8 * half;
        if (t == 0 && row < a.q_length)
            a.lse[at.row(a, row)] = sum[half] == 0 ? -INFINITY : maximum[half] * LN_2 + logf(sum[half]);
    }
    store_rows<DP>(a.out, at.out(a, first_row), a.q_heads * a.head_dim, a.q_length - first_row, (int)a.head_dim, out,
                   1.0f, false);
}

template <int D, int DP, int M>
__global__ void __launch_bounds__(MMA_THREADS, DP *M <= 64 ? 4 : 2) attention_mma_forward(const attention_args a)
{
    extern __shared__ uint4 memory[];
    char *q_tile = (char *)memory, *stages = q_tile + tile_bytes<DP, 64 * M>;
    uint64_t *keep = (uint64_t *)(stages + 4 * tile_bytes<DP, KEYS>);
    float *distances = (float *)(keep + 64 * M);
    const head_view at(a, blockIdx.z, blockIdx.y);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, own = warp * 16 * M;
    const int64_t first_q = (int64_t)(gridDim.x - 1 - blockIdx.x) * 64 * M; /* causal: the long rows first */
    const int64_t end = keys_end(a, first_q, 64 * M);
    const bool by_distance = bias_by_distance(a);
    copy_rows<DP>(q_tile, a.q, at.q(a, first_q), a.q_row, 64 * M, a.q_length - first_q, (int)a.head_dim);
    const int64_t begin = keys_begin(a, at.b, first_q, KEYS);
    if (end > begin)
        copy_keys<DP, M>(a, at, stages, distances, first_q, begin);
    copy_async_commit();
    float out[M][DP / 8][4], maximum[M][2], sum[M][2];
#pragma unroll
    for (int m = 0; m < M; m++) {
        maximum[m][0] = maximum[m][1] = -INFINITY;
        sum[m][0] = sum[m][1] = 0;
#pragma unroll
        for (int c = 0; c < DP / 8; c++)
            out[m][c][0] = out[m][c][1] = out[m][c][2] = out[m][c][3] = 0;
    }
    int stage = 0;
    for (int64_t first_k = begin; first_k < end; first_k += KEYS, stage ^= 1) {
        char *k_tile = stages + stage * 2 * tile_bytes<DP, KEYS>, *v_tile = k_tile + tile_bytes<DP, KEYS>;
        if (first_k + KEYS < end)
            copy_keys<DP, M>(a, at, stages + (stage ^ 1) * 2 * tile_bytes<DP, KEYS>,
                             distances + (stage ^ 1) * DISTANCES(M), first_q, first_k + KEYS);
        copy_async_commit();
        if (a.dropout > 0)
            fill_keep(a, at.b, at.head, first_q, 64 * M, first_k, KEYS, keep);
        copy_async_wait<1>();
        __syncthreads();
        float s[M][KEYS / 8][4];
        multiply_rows<D, DP, KEYS, M>(s, q_tile, own, k_tile);
        const bool edge = is_edge(a, at.b, first_q, first_k, KEYS);
#pragma unroll
        for (int m = 0; m < M; m++) {
            const int row = own + 16 * m + g;
            mma_scores<KEYS, false>(a, at, s[m], first_q + row, first_k + 2 * t,
                                    by_distance ? distances + stage * DISTANCES(M) + 64 * M - 1 + 2 * t - row : NULL,
                                    edge);
            const float shrink[2] = {add_scores<0>(s[m], maximum[m][0], sum[m][0]),
                                     add_scores<1>(s[m], maximum[m][1], sum[m][1])};
#pragma unroll
            for (int c = 0; c < DP / 8; c++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    out[m][c][e] *= shrink[e >> 1];
            if (a.dropout > 0)
                drop_weights(s[m], keep + row, t);
        }
        add_weighted<D, DP, KEYS, M>(out, s, v_tile);
        __syncthreads();
    }
    copy_async_wait<0>();
#pragma unroll
    for (int m = 0; m < M; m++)
        store_result<DP>(a, at, first_q + own + 16 * m, out[m], maximum[m], sum[m]);
}

template <int D, int DP, int M> static cudaError_t start_rows(const launch *l, const attention_args *a)
{
    const int bytes = forward_bytes<DP, M>();
    cudaError_t error =
        cudaFuncSetAttribute(attention_mma_forward<D, DP, M>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess)
        return error;
    const dim3 grid((unsigned)launch_ceil(a->q_length, 64 * M), (unsigned)a->q_heads, (unsigned)a->batch);
    attention_mma_forward<D, DP, M><<<grid, MMA_THREADS, (size_t)bytes, l->stream>>>(*a);
    return cudaGetLastError();
}

/* 128 queries a block, which halves what is read of keys and values, where heads are narrow and there are enough. */
template <int D, int DP> static cudaError_t start_forward(const launch *l, const attention_args *a)
{
    if constexpr (DP <= 64)
        if (a->q_length > 64 && launch_ceil(a->q_length, 128) * a->q_heads * a->batch >= l->n_multiprocessors)
            return start_rows<D, DP, 2>(l, a);
    return start_rows<D, DP, 1>(l, a);
}

extern "C" cudaError_t launch_attention_mma_forward(const launch *l, const attention_args *a)
{
    return MMA_DISPATCH(a, start_forward, l, a);
}
