/* What the gradient kernels of attention share: their tiles in shared memory and the step from scores to gradients of
 * scores. Scores' gradients are kept without the factor `scale`, which the owners of d_q and d_k apply at the end. */
#ifndef DEVICE_CUDA_ATTENTION_ATTENTION_BACKWARD_CUH
#define DEVICE_CUDA_ATTENTION_ATTENTION_BACKWARD_CUH

#include "device/cuda/attention/attention_tile.cuh"

struct backward_tiles {
    float *q, *d_out, *k, *v; /* T x DP */
    float *p, *ds;            /* T x T */
    uint64_t *keep;           /* T */

    __device__ backward_tiles(float *memory, int tile_floats, int square_floats)
        : q(memory), d_out(memory + tile_floats), k(memory + 2 * tile_floats), v(memory + 3 * tile_floats),
          p(memory + 4 * tile_floats), ds(p + square_floats), keep((uint64_t *)(ds + square_floats))
    {
    }
};

template <int DP, int R> static constexpr int backward_bytes()
{
    return (4 * shape<DP, R>::tile_floats + 2 * shape<DP, R>::square_floats) * (int)sizeof(float) +
           shape<DP, R>::keep_bytes;
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

/* Which weights of the tile dropout keeps; between barriers, like the loads. */
template <int DP, int R>
static __device__ void load_keep(const attention_args &a, const backward_tiles &t, int64_t b, int64_t head,
                                 int64_t first_q, int64_t first_k)
{
    if (a.dropout > 0)
        fill_keep(a, b, head, first_q, shape<DP, R>::T, first_k, shape<DP, R>::T, t.keep);
}

/* From the loaded tiles: p = the weights that forward applied, ds = softmax * (d_out . v - delta), both zero where a
 * key is not seen; d_out . v counts where dropout kept the weight. */
template <int DP, int R>
static __device__ __forceinline__ void score_gradients(const attention_args &a, const backward_tiles &t,
                                                       const float *delta, int64_t b, int64_t head, int64_t first_q,
                                                       int64_t first_k, float p[R][R], float ds[R][R])
{
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15;
    const float kept = a.dropout > 0 ? attention_dropout_scale(attention_dropout_threshold(a.dropout)) : 1.0f;
    dot_rows<DP, R>(t.q, t.k, p);
    finish_scores<R>(a, b, head, first_q, first_k, p);
    dot_rows<DP, R>(t.d_out, t.v, ds);
#pragma unroll
    for (int i = 0; i < R; i++) {
        const int64_t query = first_q + y * R + i, at = (b * a.q_heads + head) * a.q_length + query;
        const float lse = query < a.q_length ? a.lse[at] : -INFINITY, row = query < a.q_length ? delta[at] : 0.0f;
#pragma unroll
        for (int j = 0; j < R; j++) {
            const bool stays = !(a.dropout > 0) || (t.keep[y * R + i] >> (x + 16 * j) & 1);
            const float weight = lse == -INFINITY || p[i][j] == -INFINITY ? 0.0f : __expf(p[i][j] - lse);
            ds[i][j] = weight * ((stays ? ds[i][j] * kept : 0.0f) - row);
            p[i][j] = stays ? weight * kept : 0.0f;
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

#endif
