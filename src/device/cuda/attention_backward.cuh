/* What the gradient kernels of attention share: their tiles in shared memory and the step from scores to gradients of
 * scores. Scores' gradients are kept without the factor `scale`, which the owners of d_q and d_k apply at the end. */
#ifndef DEVICE_CUDA_ATTENTION_BACKWARD_CUH
#define DEVICE_CUDA_ATTENTION_BACKWARD_CUH

#include "device/cuda/attention_tile.cuh"

struct backward_tiles {
    float *q, *d_out, *k, *v; /* T x DP */
    float *p, *ds;            /* T x T */

    __device__ backward_tiles(float *memory, int tile_floats, int square_floats)
        : q(memory), d_out(memory + tile_floats), k(memory + 2 * tile_floats), v(memory + 3 * tile_floats),
          p(memory + 4 * tile_floats), ds(memory + 4 * tile_floats + square_floats)
    {
    }
};

template <int DP, int R> static constexpr int backward_bytes()
{
    return (4 * shape<DP, R>::tile_floats + 2 * shape<DP, R>::square_floats) * (int)sizeof(float);
}

template <int DP, int R>
static __device__ void load_queries(const attention_args &a, const backward_tiles &t, int64_t b, int64_t head,
                                    int64_t first_q)
{
    const int head_dim = (int)a.head_dim;
    const int64_t rows = a.q_length - first_q, width = a.q_heads * a.head_dim, token = b * a.q_length + first_q;
    load_tile<DP, R>(t.q, a.q, token * a.q_row + head * head_dim, a.q_row, rows, head_dim);
    load_tile<DP, R>(t.d_out, a.d_out, token * width + head * head_dim, width, rows, head_dim);
}

/* From the loaded tiles: p = softmax, ds = p * (d_out . v - delta), both zero where a key is not seen. */
template <int DP, int R>
static __device__ __forceinline__ void score_gradients(const attention_args &a, const backward_tiles &t,
                                                       const float *delta, int64_t b, int64_t head, int64_t first_q,
                                                       int64_t first_k, float p[R][R], float ds[R][R])
{
    const int y = threadIdx.x >> 4;
    dot_rows<DP, R>(t.q, t.k, p);
    finish_scores<R>(a, b, head, first_q, first_k, p);
    dot_rows<DP, R>(t.d_out, t.v, ds);
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int64_t query = first_q + y * R + i, at = (b * a.q_heads + head) * a.q_length + query;
        const float lse = query < a.q_length ? a.lse[at] : -INFINITY, row = query < a.q_length ? delta[at] : 0.0f;
#pragma unroll
        for (int j = 0; j < R; j++) {
            p[i][j] = lse == -INFINITY || p[i][j] == -INFINITY ? 0.0f : __expf(p[i][j] - lse);
            ds[i][j] = p[i][j] * (ds[i][j] - row);
        }
    }
}

template <int R> static __device__ __forceinline__ void keep_square(float *square, const float values[R][R])
{
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            square[(y * R + i) * (16 * R + 4) + x + 16 * j] = values[i][j];
}

extern "C" cudaError_t launch_attention_bias_backward(const launch *l, const attention_args *a, const float *delta);

#endif
