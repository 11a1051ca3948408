/* Attention forward on tensor cores: a block owns 64 queries of one head and runs over the keys 64 at a time, the next
 * tiles of k and v being copied meanwhile, with a running maximum and sum a row. Gradients are in
 * attention_mma_backward.cu. */
#include "device/cuda/attention_mma.cuh"

#define KEYS 64

/* q, two stages of k and v, and the bits of dropout. */
template <int DP> static constexpr int forward_bytes()
{
    return tile_bytes<DP, MMA_ROWS> + 4 * tile_bytes<DP, KEYS> + MMA_ROWS * (int)sizeof(uint64_t);
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

template <int D, int DP>
static __device__ __forceinline__ void copy_keys(const attention_args &a, const head_view &at, char *stage,
                                                 int64_t first_k)
{
    const int64_t rows = a.kv_length - first_k;
    copy_rows<DP>(stage, a.k, at.k(a, first_k), a.k_row, KEYS, rows, (int)a.head_dim);
    copy_rows<DP>(stage + tile_bytes<DP, KEYS>, a.v, at.v(a, first_k), a.v_row, KEYS, rows, (int)a.head_dim);
}

template <int D, int DP> __global__ void __launch_bounds__(MMA_THREADS) attention_mma_forward(const attention_args a)
{
    extern __shared__ uint4 memory[];
    char *q_tile = (char *)memory, *stages = q_tile + tile_bytes<DP, MMA_ROWS>;
    uint64_t *keep = (uint64_t *)(stages + 4 * tile_bytes<DP, KEYS>);
    const head_view at(a, blockIdx.z, blockIdx.y);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int64_t first_q = (int64_t)(gridDim.x - 1 - blockIdx.x) * MMA_ROWS; /* causal: the long rows first */
    const int64_t end = keys_end(a, first_q, MMA_ROWS), row = first_q + warp * 16 + g;
    copy_rows<DP>(q_tile, a.q, at.q(a, first_q), a.q_row, MMA_ROWS, a.q_length - first_q, (int)a.head_dim);
    if (end > 0)
        copy_keys<D, DP>(a, at, stages, 0);
    copy_async_commit();
    float out[DP / 8][4], maximum[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
#pragma unroll
    for (int c = 0; c < DP / 8; c++)
        out[c][0] = out[c][1] = out[c][2] = out[c][3] = 0;
    int stage = 0;
    for (int64_t first_k = 0; first_k < end; first_k += KEYS, stage ^= 1) {
        char *k_tile = stages + stage * 2 * tile_bytes<DP, KEYS>, *v_tile = k_tile + tile_bytes<DP, KEYS>;
        if (first_k + KEYS < end)
            copy_keys<D, DP>(a, at, stages + (stage ^ 1) * 2 * tile_bytes<DP, KEYS>, first_k + KEYS);
        copy_async_commit();
        if (a.dropout > 0)
            fill_keep(a, at.b, at.head, first_q, MMA_ROWS, first_k, KEYS, keep);
        copy_async_wait<1>();
        __syncthreads();
        float s[KEYS / 8][4];
        multiply_rows<D, DP, KEYS>(s, q_tile, warp * 16, k_tile);
        mma_scores<KEYS, false>(a, at, s, row, first_k + 2 * t, is_edge(a, first_q, first_k, KEYS));
        const float shrink[2] = {add_scores<0>(s, maximum[0], sum[0]), add_scores<1>(s, maximum[1], sum[1])};
#pragma unroll
        for (int c = 0; c < DP / 8; c++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                out[c][e] *= shrink[e >> 1];
        if (a.dropout > 0) {
            const uint64_t bits[2] = {keep[warp * 16 + g] >> (2 * t), keep[warp * 16 + g + 8] >> (2 * t)};
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    s[j][e] = bits[e >> 1] >> (8 * j + (e & 1)) & 1 ? s[j][e] : 0.0f;
        }
        add_weighted<D, DP, KEYS>(out, s, v_tile);
        __syncthreads();
    }
    copy_async_wait<0>();
    const float kept = a.dropout > 0 ? attention_dropout_scale(attention_dropout_threshold(a.dropout)) : 1.0f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        const float inverse = sum[half] > 0 ? kept / sum[half] : 0.0f;
#pragma unroll
        for (int c = 0; c < DP / 8; c++) {
            out[c][2 * half] *= inverse;
            out[c][2 * half + 1] *= inverse;
        }
        if (t == 0 && row + 8 * half < a.q_length)
            a.lse[at.row(a, row + 8 * half)] = sum[half] > 0 ? maximum[half] * LN_2 + logf(sum[half]) : -INFINITY;
    }
    store_rows<DP>(a.out, at.out(a, first_q + warp * 16), a.q_heads * a.head_dim, a.q_length - first_q - warp * 16,
                   (int)a.head_dim, out, 1.0f, false);
}

template <int D, int DP> static cudaError_t start_forward(const launch *l, const attention_args *a)
{
    const int bytes = forward_bytes<DP>();
    cudaError_t error =
        cudaFuncSetAttribute(attention_mma_forward<D, DP>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess)
        return error;
    const dim3 grid((unsigned)launch_ceil(a->q_length, MMA_ROWS), (unsigned)a->q_heads, (unsigned)a->batch);
    attention_mma_forward<D, DP><<<grid, MMA_THREADS, (size_t)bytes, l->stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_attention_mma_forward(const launch *l, const attention_args *a)
{
    return MMA_DISPATCH(a, start_forward, l, a);
}
