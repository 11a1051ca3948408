/* The gradient of attention's bias on tensor cores: a block owns 64 queries by 64 keys of one bias matrix, adds the
 * scores' gradients over the samples and heads that share it in order, and leaves sums along what positions share to
 * attention_bias.cu. */
#include "device/cuda/attention/attention_bias.cuh"
#include "device/cuda/attention/attention_mma.cuh"

#define KEYS 64

/* A stage: q, d_out, k, v of one sample and head. */
template <int DP> static constexpr int stage_bytes = 2 * tile_bytes<DP, MMA_ROWS> + 2 * tile_bytes<DP, KEYS>;

#define SQUARE_ROW (KEYS + 4)

template <int DP> static constexpr int bias_bytes()
{
    return 2 * stage_bytes<DP> + MMA_ROWS * (int)sizeof(uint64_t) + DISTANCES(1) * (int)sizeof(float);
}

template <int DP>
static __device__ __forceinline__ void copy_stage(const attention_args &a, const head_view &at, char *stage,
                                                  int64_t first_q, int64_t first_k)
{
    const int64_t queries = a.q_length - first_q, keys = a.kv_length - first_k;
    const int head_dim = (int)a.head_dim;
    copy_rows<DP>(stage, a.q, at.q(a, first_q), a.q_row, MMA_ROWS, queries, head_dim);
    copy_rows<DP>(stage + tile_bytes<DP, MMA_ROWS>, a.d_out, at.out(a, first_q), a.q_heads * a.head_dim, MMA_ROWS,
                  queries, head_dim);
    copy_rows<DP>(stage + 2 * tile_bytes<DP, MMA_ROWS>, a.k, at.k(a, first_k), a.k_row, KEYS, keys, head_dim);
    copy_rows<DP>(stage + 2 * tile_bytes<DP, MMA_ROWS> + tile_bytes<DP, KEYS>, a.v, at.v(a, first_k), a.v_row, KEYS,
                  keys, head_dim);
}

/* sum += the scores' gradients of one sample and head. */
template <int D, int DP>
static __device__ __forceinline__ void add_gradients(const attention_args &a, const float *delta, const head_view &at,
                                                     char *stage, const uint64_t *keep, const float *distances,
                                                     int64_t first_q, int64_t first_k, float sum[KEYS / 8][4])
{
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int64_t row = first_q + warp * 16 + g;
    const float kept = a.dropout > 0 ? attention_dropout_scale(attention_dropout_threshold(a.dropout)) : 1.0f;
    float lse[2], row_delta[2], s[KEYS / 8][4], dp[KEYS / 8][4];
    read_row(a, delta, at, row, &lse[0], &row_delta[0]);
    read_row(a, delta, at, row + 8, &lse[1], &row_delta[1]);
    multiply_rows<D, DP, KEYS, 1>(&s, stage, warp * 16, stage + 2 * tile_bytes<DP, MMA_ROWS>);
    mma_scores<KEYS, false>(a, at, s, row, first_k + 2 * t,
                            distances ? distances + MMA_ROWS - 1 + 2 * t - (warp * 16 + g) : NULL,
                            is_edge(a, at.b, first_q, first_k, KEYS));
    multiply_rows<D, DP, KEYS, 1>(&dp, stage + tile_bytes<DP, MMA_ROWS>, warp * 16,
                                  stage + 2 * tile_bytes<DP, MMA_ROWS> + tile_bytes<DP, KEYS>);
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int key = 8 * j + 2 * t + (e & 1);
            const bool stays = !(a.dropout > 0) || (keep[warp * 16 + g + 8 * (e >> 1)] >> key & 1);
            weight_gradient(s[j][e], dp[j][e], lse[e >> 1], row_delta[e >> 1], stays, kept);
            sum[j][e] += dp[j][e];
        }
}

template <int D, int DP>
__global__ void __launch_bounds__(MMA_THREADS)
    attention_mma_bias(const attention_args a, const float *delta, int form, float *partial)
{
    extern __shared__ uint4 memory[];
    char *stages = (char *)memory;
    uint64_t *keep = (uint64_t *)(stages + 2 * stage_bytes<DP>);
    float *distances = (float *)(keep + MMA_ROWS);
    const bool by_distance = bias_by_distance(a);
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int64_t n_key_tiles = (a.kv_length + KEYS - 1) / KEYS;
    const int64_t first_q = blockIdx.x / n_key_tiles * MMA_ROWS, first_k = blockIdx.x % n_key_tiles * KEYS;
    const int64_t b_first = a.bias_batch ? blockIdx.z : 0, b_count = a.bias_batch ? 1 : a.batch;
    const int64_t h_first = a.bias_head ? blockIdx.y : 0, h_count = a.bias_head ? 1 : a.q_heads;
    const int64_t all = first_k < keys_end(a, first_q, MMA_ROWS) ? b_count * h_count : 0;
    float sum[KEYS / 8][4];
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
        sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0;
    if (all > 0)
        copy_stage<DP>(a, head_view(a, b_first, h_first), stages, first_q, first_k);
    if (by_distance)
        copy_distances(distances, a, head_view(a, b_first, h_first), first_k - first_q - (MMA_ROWS - 1),
                       MMA_ROWS - 1 + KEYS);
    copy_async_commit();
    for (int64_t i = 0; i < all; i++) {
        const head_view at(a, b_first + i / h_count, h_first + i % h_count);
        const head_view next(a, b_first + (i + 1) / h_count, h_first + (i + 1) % h_count);
        if (i + 1 < all)
            copy_stage<DP>(a, next, stages + ((i + 1) & 1) * stage_bytes<DP>, first_q, first_k);
        copy_async_commit();
        if (a.dropout > 0)
            fill_keep(a, at.b, at.head, first_q, MMA_ROWS, first_k, KEYS, keep);
        copy_async_wait<1>();
        __syncthreads();
        add_gradients<D, DP>(a, delta, at, stages + (i & 1) * stage_bytes<DP>, keep, by_distance ? distances : NULL,
                             first_q, first_k, sum);
        __syncthreads();
    }
    copy_async_wait<0>();
    float *square = (float *)stages;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int row = warp * 16 + g + 8 * (e >> 1), column = 8 * j + 2 * t + (e & 1);
            const int64_t query = first_q + row, key = first_k + column;
            if (form != BIAS_FULL)
                square[row * SQUARE_ROW + column] = sum[j][e];
            else if (query < a.q_length && key < a.kv_length)
                a.d_bias[b_first * a.bias_batch + h_first * a.bias_head + query * a.bias_query + key * a.bias_key] +=
                    sum[j][e];
        }
    if (form == BIAS_FULL)
        return;
    __syncthreads();
    float *out = partial + (((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * 2 * KEYS;
    for (int i = threadIdx.x; i < 2 * KEYS - 1; i += MMA_THREADS)
        out[i] = sum_of_tile(square, SQUARE_ROW, KEYS, form, i);
}

template <int D, int DP>
static cudaError_t start_bias(const launch *l, const attention_args *a, const float *delta, float *partial)
{
    const int bytes = bias_bytes<DP>();
    cudaError_t error =
        cudaFuncSetAttribute(attention_mma_bias<D, DP>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess)
        return error;
    const dim3 grid((unsigned)(launch_ceil(a->q_length, MMA_ROWS) * launch_ceil(a->kv_length, KEYS)),
                    (unsigned)(a->bias_head ? a->q_heads : 1), (unsigned)(a->bias_batch ? a->batch : 1));
    attention_mma_bias<D, DP>
        <<<grid, MMA_THREADS, (size_t)bytes, l->stream>>>(*a, delta, attention_bias_form(a), partial);
    error = cudaGetLastError();
    return error == cudaSuccess ? launch_attention_bias_finish(l, a, KEYS, partial) : error;
}

extern "C" cudaError_t launch_attention_mma_bias(const launch *l, const attention_args *a, const float *delta,
                                                 float *partial)
{
    return MMA_DISPATCH(a, start_bias, l, a, delta, partial);
}
