/* Gradients of the own attention kernel, without atomics: one kernel owns key tiles (d_k, d_v), one owns query tiles
 * (d_q), and each recomputes the scores it needs, so every sum has one order. The bias gradient is in
 * attention_bias.cu. */
#include "device/cuda/attention/attention_backward.cuh"

#include "device/cuda/attention/attention_bias.cuh"
#include "device/cuda/attention/attention_mma.cuh"

/* delta[b, h, t] = sum over the head of d_out * out: a warp a row, or, in vectors of 8, as many threads as it has. */
template <int V> __global__ void __launch_bounds__(256) attention_delta(const attention_args a, int lanes, float *delta)
{
    const int lane = threadIdx.x & (lanes - 1);
    const int64_t row = blockIdx.x * (int64_t)(256 / lanes) + threadIdx.x / lanes, n = a.batch * a.q_heads * a.q_length;
    float sum = 0;
    const int64_t t = row % a.q_length, head = row / a.q_length % a.q_heads, b = row / (a.q_length * a.q_heads);
    const int64_t first = ((b * a.q_length + t) * a.q_heads + head) * a.head_dim;
    if (row < n)
        for (int i = lane * V; i < a.head_dim; i += lanes * V) {
            const floats<V> x = load<DYNAMIC, V>(a.d_out, first + i), y = load<DYNAMIC, V>(a.out, first + i);
#pragma unroll
            for (int j = 0; j < V; j++)
                sum += x.v[j] * y.v[j];
        }
    for (int offset = lanes / 2; offset > 0; offset >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (row < n && lane == 0)
        delta[row] = sum;
}

template <int DP, int R>
__global__ void __launch_bounds__(ATTENTION_THREADS) attention_backward_kv(const attention_args a, const float *delta)
{
    typedef shape<DP, R> s;
    extern __shared__ float4 memory[];
    backward_tiles t((float *)memory, s::tile_floats, s::square_floats);
    const int head_dim = (int)a.head_dim;
    const int64_t first_k = (int64_t)blockIdx.x * s::T, kv_head = blockIdx.y, b = blockIdx.z;
    const int64_t rows = a.kv_length - first_k, group = a.q_heads / a.kv_heads;
    load_tile<DP, R>(t.k, a.k, (b * a.kv_length + first_k) * a.k_row + kv_head * head_dim, a.k_row, rows, head_dim);
    load_tile<DP, R>(t.v, a.v, (b * a.kv_length + first_k) * a.v_row + kv_head * head_dim, a.v_row, rows, head_dim);
    float d_k[R][s::columns], d_v[R][s::columns];
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int c = 0; c < s::columns; c++)
            d_k[i][c] = d_v[i][c] = 0;
    /* Causal: queries before first_k - shift see none of these keys. */
    const int64_t start = a.causal ? max(0ll, (long long)(first_k - (a.kv_length - a.q_length))) / s::T * s::T : 0;
    const int64_t end = queries_end(a, b, first_k, s::T);
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int64_t first_q = start; first_q < end; first_q += s::T) {
            __syncthreads();
            load_queries<DP, R>(a, t, b, head, first_q);
            load_keep<DP, R>(a, t, b, head, first_q, first_k);
            __syncthreads();
            float p[R][R], ds[R][R];
            score_gradients<DP, R>(a, t, delta, b, head, first_q, first_k, p, ds);
            keep_square<R>(t.p, p);
            keep_square<R>(t.ds, ds);
            __syncthreads();
            add_weighted_columns<DP, R>(t.p, t.d_out, d_v);
            add_weighted_columns<DP, R>(t.ds, t.q, d_k);
        }
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int c = 0; c < s::columns; c++)
            d_k[i][c] *= a.scale;
    store_tile<DP, R>(a.d_k, (b * a.kv_length + first_k) * a.k_row + kv_head * head_dim, a.k_row, rows, head_dim, d_k,
                      a.add_k);
    store_tile<DP, R>(a.d_v, (b * a.kv_length + first_k) * a.v_row + kv_head * head_dim, a.v_row, rows, head_dim, d_v,
                      a.add_v);
}

template <int DP, int R>
__global__ void __launch_bounds__(ATTENTION_THREADS) attention_backward_q(const attention_args a, const float *delta)
{
    typedef shape<DP, R> s;
    extern __shared__ float4 memory[];
    backward_tiles t((float *)memory, s::tile_floats, s::square_floats);
    const int head_dim = (int)a.head_dim;
    const int64_t first_q = (int64_t)(gridDim.x - 1 - blockIdx.x) * s::T, head = blockIdx.y, b = blockIdx.z;
    const int64_t kv_head = head / (a.q_heads / a.kv_heads), k_end = keys_end(a, first_q, s::T);
    load_queries<DP, R>(a, t, b, head, first_q);
    float d_q[R][s::columns];
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int c = 0; c < s::columns; c++)
            d_q[i][c] = 0;
    for (int64_t first_k = keys_begin(a, b, first_q, s::T); first_k < k_end; first_k += s::T) {
        __syncthreads();
        const int64_t rows = a.kv_length - first_k;
        load_tile<DP, R>(t.k, a.k, (b * a.kv_length + first_k) * a.k_row + kv_head * head_dim, a.k_row, rows, head_dim);
        load_tile<DP, R>(t.v, a.v, (b * a.kv_length + first_k) * a.v_row + kv_head * head_dim, a.v_row, rows, head_dim);
        load_keep<DP, R>(a, t, b, head, first_q, first_k);
        __syncthreads();
        float p[R][R], ds[R][R];
        score_gradients<DP, R>(a, t, delta, b, head, first_q, first_k, p, ds);
        keep_square<R>(t.ds, ds);
        __syncthreads();
        add_weighted_rows<DP, R>(t.ds, t.k, d_q);
    }
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int c = 0; c < s::columns; c++)
            d_q[i][c] *= a.scale;
    store_tile<DP, R>(a.d_q, (b * a.q_length + first_q) * a.q_row + head * head_dim, a.q_row, a.q_length - first_q,
                      head_dim, d_q, a.add_q);
}

template <int DP, int R> static cudaError_t start_backward(const launch *l, const attention_args *a, const float *delta)
{
    typedef shape<DP, R> s;
    const int bytes = backward_bytes<DP, R>();
    cudaError_t error =
        cudaFuncSetAttribute(attention_backward_kv<DP, R>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error == cudaSuccess)
        error = cudaFuncSetAttribute(attention_backward_q<DP, R>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (error != cudaSuccess)
        return error;
    const dim3 keys((unsigned)launch_ceil(a->kv_length, s::T), (unsigned)a->kv_heads, (unsigned)a->batch);
    const dim3 queries((unsigned)launch_ceil(a->q_length, s::T), (unsigned)a->q_heads, (unsigned)a->batch);
    if (a->kv_length > 0 && (a->d_k.p || a->d_v.p))
        attention_backward_kv<DP, R><<<keys, ATTENTION_THREADS, (size_t)bytes, l->stream>>>(*a, delta);
    if (a->d_q.p)
        attention_backward_q<DP, R><<<queries, ATTENTION_THREADS, (size_t)bytes, l->stream>>>(*a, delta);
    return cudaGetLastError();
}

extern "C" cudaError_t launch_attention_backward(const launch *l, const attention_args *a)
{
    if (a->batch == 0 || a->q_length == 0 || a->q_heads == 0)
        return cudaSuccess;
    float *delta = (float *)a->workspace;
    const int64_t rows = a->batch * a->q_heads * a->q_length;
    if (a->head_dim % 8 == 0 && is_aligned(a->out) && is_aligned(a->d_out)) {
        const int lanes = a->head_dim <= 64 ? 8 : 16;
        attention_delta<8><<<(unsigned)launch_ceil(rows, 256 / lanes), 256, 0, l->stream>>>(*a, lanes, delta);
    } else {
        attention_delta<1><<<(unsigned)launch_ceil(rows, 8), 256, 0, l->stream>>>(*a, 32, delta);
    }
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && a->d_bias)
        error = launch_attention_bias_backward(l, a, delta);
    if (error != cudaSuccess)
        return error;
    if (attention_mma_fits(a, true))
        return launch_attention_mma_backward(l, a, delta);
    return ATTENTION_DISPATCH(l, a->head_dim, start_backward, l, a, delta);
}
