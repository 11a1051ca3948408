/* The gradient of attention's bias with a fixed order of sums. A block owns a (query tile, key tile) of one bias matrix
 * and adds over the batches and heads that share it. Where several positions share an element (Toeplitz: one element
 * for each distance), a tile is first summed along what is shared, then the tiles' partial sums are added up in order
 * by one thread per element. */
#include "device/cuda/attention/attention_bias.cuh"

#include "device/cuda/attention/attention_backward.cuh"
#include "device/cuda/attention/attention_mma.cuh"

template <int DP, int R>
__global__ void __launch_bounds__(ATTENTION_THREADS)
    attention_bias_tile(const attention_args a, const float *delta, int form, float *partial)
{
    typedef shape<DP, R> s;
    extern __shared__ float4 memory[];
    backward_tiles t((float *)memory, s::tile_floats, s::square_floats);
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15, head_dim = (int)a.head_dim;
    const int64_t n_key_tiles = (a.kv_length + s::T - 1) / s::T;
    const int64_t first_q = blockIdx.x / n_key_tiles * s::T, first_k = blockIdx.x % n_key_tiles * s::T;
    const int64_t b_first = a.bias_batch ? blockIdx.z : 0, b_last = a.bias_batch ? b_first + 1 : a.batch;
    const int64_t h_first = a.bias_head ? blockIdx.y : 0, h_last = a.bias_head ? h_first + 1 : a.q_heads;
    float sum[R][R];
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            sum[i][j] = 0;
    if (first_k < keys_end(a, first_q, s::T))
        for (int64_t b = b_first; b < b_last; b++)
            for (int64_t head = h_first; head < h_last; head++) {
                const int64_t kv_head = head / (a.q_heads / a.kv_heads), rows = a.kv_length - first_k;
                __syncthreads();
                load_queries<DP, R>(a, t, b, head, first_q);
                load_keep<DP, R>(a, t, b, head, first_q, first_k);
                load_tile<DP, R>(t.k, a.k, (b * a.kv_length + first_k) * a.k_row + kv_head * head_dim, a.k_row, rows,
                                 head_dim);
                load_tile<DP, R>(t.v, a.v, (b * a.kv_length + first_k) * a.v_row + kv_head * head_dim, a.v_row, rows,
                                 head_dim);
                __syncthreads();
                float p[R][R], ds[R][R];
                score_gradients<DP, R>(a, t, delta, b, head, first_q, first_k, p, ds);
#pragma unroll
                for (int i = 0; i < R; i++)
#pragma unroll
                    for (int j = 0; j < R; j++)
                        sum[i][j] += ds[i][j];
            }
    if (form == BIAS_FULL) {
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++) {
                const int64_t query = first_q + y * R + i, key = first_k + x + 16 * j;
                if (query < a.q_length && key < a.kv_length)
                    a.d_bias[b_first * a.bias_batch + h_first * a.bias_head + query * a.bias_query +
                             key * a.bias_key] += sum[i][j];
            }
        return;
    }
    keep_square<R>(t.ds, sum);
    __syncthreads();
    float *out = partial + (((int64_t)blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x) * 2 * s::T;
    for (int i = threadIdx.x; i < 2 * s::T - 1; i += ATTENTION_THREADS)
        out[i] = sum_of_tile(t.ds, s::square, s::T, form, i);
}

/* Adds element `index` up over all tiles: a distance (less q_length - 1), a key or a query. */
static __device__ float sum_over_tiles(const attention_args &a, const float *partial, int tile, int form, int64_t index)
{
    const int64_t q_tiles = (a.q_length + tile - 1) / tile, k_tiles = (a.kv_length + tile - 1) / tile;
    float sum = 0;
    if (form == BIAS_DIAGONAL) {
        const int64_t distance = index - (a.q_length - 1);
        const int64_t apart = (distance + q_tiles * tile) / tile - q_tiles; /* tiles, rounded down */
        for (int64_t q = 0; q < q_tiles; q++)
            for (int64_t k = q + apart; k <= q + apart + 1; k++) {
                const int64_t local = distance - (k - q) * tile + tile - 1;
                if (k >= 0 && k < k_tiles && local >= 0)
                    sum += partial[(q * k_tiles + k) * 2 * tile + local];
            }
    } else if (form == BIAS_KEY) {
        for (int64_t q = 0; q < q_tiles; q++)
            sum += partial[(q * k_tiles + index / tile) * 2 * tile + index % tile];
    } else {
        for (int64_t k = 0; k < k_tiles; k++)
            sum += partial[(index / tile * k_tiles + k) * 2 * tile + index % tile];
    }
    return sum;
}

/* One thread an element of the bias. */
__global__ void __launch_bounds__(256)
    attention_bias_finish(const attention_args a, int tile, int form, int64_t n, const float *partial)
{
    const int64_t i = blockIdx.x * 256ll + threadIdx.x, head = blockIdx.y, b = blockIdx.z;
    const int64_t tiles = (a.q_length + tile - 1) / tile * ((a.kv_length + tile - 1) / tile);
    const int64_t stride = form == BIAS_QUERY ? a.bias_query : a.bias_key;
    if (i >= n)
        return;
    partial += (b * gridDim.y + head) * tiles * 2 * tile;
    const float sum = sum_over_tiles(a, partial, tile, form, i);
    const int64_t position = form == BIAS_DIAGONAL ? i - (a.q_length - 1) : i;
    a.d_bias[b * a.bias_batch + head * a.bias_head + position * stride] += sum;
}

extern "C" cudaError_t launch_attention_bias_finish(const launch *l, const attention_args *a, int tile,
                                                    const float *partial)
{
    const bias_form form = attention_bias_form(a);
    if (form == BIAS_FULL)
        return cudaSuccess;
    const int64_t n = form == BIAS_DIAGONAL ? a->q_length + a->kv_length - 1
                      : form == BIAS_KEY    ? a->kv_length
                                            : a->q_length;
    const dim3 grid((unsigned)launch_ceil(n, 256), (unsigned)(a->bias_head ? a->q_heads : 1),
                    (unsigned)(a->bias_batch ? a->batch : 1));
    attention_bias_finish<<<grid, 256, 0, l->stream>>>(*a, tile, form, n, partial);
    return cudaGetLastError();
}

template <int DP, int R>
static cudaError_t start_bias(const launch *l, const attention_args *a, const float *delta, float *partial)
{
    typedef shape<DP, R> s;
    const int bytes = backward_bytes<DP, R>();
    cudaError_t error =
        cudaFuncSetAttribute(attention_bias_tile<DP, R>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess)
        return error;
    const dim3 grid((unsigned)(launch_ceil(a->q_length, s::T) * launch_ceil(a->kv_length, s::T)),
                    (unsigned)(a->bias_head ? a->q_heads : 1), (unsigned)(a->bias_batch ? a->batch : 1));
    attention_bias_tile<DP, R>
        <<<grid, ATTENTION_THREADS, (size_t)bytes, l->stream>>>(*a, delta, attention_bias_form(a), partial);
    error = cudaGetLastError();
    return error == cudaSuccess ? launch_attention_bias_finish(l, a, s::T, partial) : error;
}

extern "C" cudaError_t launch_attention_bias_backward(const launch *l, const attention_args *a, const float *delta)
{
    if (!a->add_bias) {
        cudaError_t error =
            cudaMemsetAsync(a->d_bias + a->d_bias_first, 0, (size_t)a->d_bias_numel * sizeof(float), l->stream);
        if (error != cudaSuccess)
            return error;
    }
    const size_t delta_bytes = (size_t)(a->batch * a->q_heads * a->q_length) * sizeof(float);
    float *partial = (float *)((char *)a->workspace + (delta_bytes + 255) / 256 * 256);
    if (attention_mma_fits(a, true))
        return launch_attention_mma_bias(l, a, delta, partial);
    return ATTENTION_DISPATCH(l, a->head_dim, start_bias, l, a, delta, partial);
}
