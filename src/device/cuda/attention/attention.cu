/* Attention for what neither cuDNN nor the tensor cores (attention_mma.cu) take: fp32, any head size up to 256, any
 * rows. Scores exist only as tiles in shared memory; arithmetic is fp32. The gradients are in attention_backward.cu. */
#include "device/cuda/attention/attention_tile.cuh"

#include "device/cuda/attention/attention_mma.cuh"

template <int DP, int R> __global__ void __launch_bounds__(ATTENTION_THREADS) attention_forward(const attention_args a)
{
    typedef shape<DP, R> s;
    extern __shared__ float4 memory[];
    float *q_tile = (float *)memory, *kv_tile = q_tile + s::tile_floats, *p_tile = kv_tile + s::tile_floats;
    uint64_t *keep = (uint64_t *)(p_tile + s::square_floats);
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15, head_dim = (int)a.head_dim;
    const int64_t first_q = (int64_t)(gridDim.x - 1 - blockIdx.x) * s::T; /* causal: the long rows first */
    const int64_t head = blockIdx.y, b = blockIdx.z, kv_head = head / (a.q_heads / a.kv_heads);
    const int64_t rows = a.q_length - first_q, k_end = keys_end(a, first_q, s::T);
    load_tile<DP, R>(q_tile, a.q, (b * a.q_length + first_q) * a.q_row + head * head_dim, a.q_row, rows, head_dim);
    float out[R][s::columns], maximum[R], sum[R];
#pragma unroll
    for (int i = 0; i < R; i++) {
        maximum[i] = -INFINITY;
        sum[i] = 0;
#pragma unroll
        for (int c = 0; c < s::columns; c++)
            out[i][c] = 0;
    }
    for (int64_t first_k = keys_begin(a, b, first_q, s::T); first_k < k_end; first_k += s::T) {
        __syncthreads();
        load_tile<DP, R>(kv_tile, a.k, (b * a.kv_length + first_k) * a.k_row + kv_head * head_dim, a.k_row,
                         a.kv_length - first_k, head_dim);
        if (a.dropout > 0)
            fill_keep(a, b, head, first_q, s::T, first_k, s::T, keep);
        __syncthreads();
        float score[R][R];
        dot_rows<DP, R>(q_tile, kv_tile, score);
        finish_scores<R>(a, b, head, first_q, first_k, score);
#pragma unroll
        for (int i = 0; i < R; i++) {
            float highest = maximum[i];
#pragma unroll
            for (int j = 0; j < R; j++)
                highest = fmaxf(highest, score[i][j]);
            highest = half_warp_max(highest);
            const float base = highest == -INFINITY ? 0.0f : highest, shrink = __expf(maximum[i] - base);
            float part = 0;
#pragma unroll
            for (int j = 0; j < R; j++) {
                const float p = __expf(score[i][j] - base);
                const bool stays = !(a.dropout > 0) || (keep[y * R + i] >> (x + 16 * j) & 1);
                part += p;
                p_tile[(y * R + i) * s::square + x + 16 * j] = stays ? p : 0.0f;
            }
            sum[i] = sum[i] * shrink + half_warp_sum(part);
            maximum[i] = highest;
#pragma unroll
            for (int c = 0; c < s::columns; c++)
                out[i][c] *= shrink;
        }
        __syncthreads();
        load_tile<DP, R>(kv_tile, a.v, (b * a.kv_length + first_k) * a.v_row + kv_head * head_dim, a.v_row,
                         a.kv_length - first_k, head_dim);
        __syncthreads();
        add_weighted_rows<DP, R>(p_tile, kv_tile, out);
    }
    const float kept = a.dropout > 0 ? attention_dropout_scale(attention_dropout_threshold(a.dropout)) : 1.0f;
#pragma unroll
    for (int i = 0; i < R; i++) {
        const float inverse = sum[i] == 0 ? 0.0f : kept / sum[i]; /* a NaN stays one */
#pragma unroll
        for (int c = 0; c < s::columns; c++)
            out[i][c] *= inverse;
        if (x == 0 && y * R + i < rows)
            a.lse[(b * a.q_heads + head) * a.q_length + first_q + y * R + i] =
                sum[i] == 0 ? -INFINITY : maximum[i] + logf(sum[i]);
    }
    const int64_t width = a.q_heads * a.head_dim;
    store_tile<DP, R>(a.out, (b * a.q_length + first_q) * width + head * head_dim, width, rows, head_dim, out, false);
}

template <int DP, int R> static cudaError_t start_forward(const launch *l, const attention_args *a)
{
    typedef shape<DP, R> s;
    const int bytes = (2 * s::tile_floats + s::square_floats) * (int)sizeof(float) + s::keep_bytes;
    cudaError_t error =
        cudaFuncSetAttribute(attention_forward<DP, R>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess)
        return error;
    const dim3 grid((unsigned)launch_ceil(a->q_length, s::T), (unsigned)a->q_heads, (unsigned)a->batch);
    attention_forward<DP, R><<<grid, ATTENTION_THREADS, (size_t)bytes, l->stream>>>(*a);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_attention_forward(const launch *l, const attention_args *a)
{
    if (a->batch == 0 || a->q_length == 0 || a->q_heads == 0)
        return cudaSuccess;
    if (attention_mma_fits(a, false))
        return launch_attention_mma_forward(l, a);
    return ATTENTION_DISPATCH(l, a->head_dim, start_forward, l, a);
}
