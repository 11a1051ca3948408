/* Building blocks of the own attention kernels. A block of 256 threads works on tiles of T = 16 R query rows and T key
 * rows in shared memory, as fp32, head dimension padded with zeros to DP. Thread (y, x) of the 16 x 16 owns, of a T x T
 * tile, rows y*R .. y*R+R-1 and columns x, x+16, ...; of a T x DP tile the same rows and columns 4x .. 4x+3, 4x+64 ..
 * and so on. */
#ifndef DEVICE_CUDA_ATTENTION_ATTENTION_TILE_CUH
#define DEVICE_CUDA_ATTENTION_ATTENTION_TILE_CUH

#include "device/cuda/attention/attention_keep.cuh"
#include "device/cuda/attention/attention_range.cuh"
#include "device/cuda/vector.cuh"

#define ATTENTION_THREADS 256

template <int DP, int R> struct shape {
    static constexpr int T = 16 * R;
    static constexpr int row = DP + 4;   /* floats from one tile row to the next: 16-byte aligned, banks apart */
    static constexpr int square = T + 4; /* the same for a T x T tile */
    static constexpr int tile_floats = T * row;
    static constexpr int square_floats = T * square;
    static constexpr int columns = DP / 16; /* of a T x DP tile, per thread and row */
    static constexpr int keep_bytes = T * (int)sizeof(uint64_t);
};

/* T rows of one head into shared memory; rows past `rows` and columns past head_dim become zero. */
template <int DP, int R>
static __device__ void load_tile(float *tile, const buffer b, int64_t first, int64_t stride, int64_t rows, int head_dim)
{
    typedef shape<DP, R> s;
    const bool vectors = head_dim % 8 == 0 && stride % 8 == 0 && ((uintptr_t)b.p & 15) == 0 && first % 8 == 0;
    if (vectors) {
        for (int item = threadIdx.x; item < s::T * (DP / 8); item += ATTENTION_THREADS) {
            const int row = item / (DP / 8), column = item % (DP / 8) * 8;
            floats<8> x;
#pragma unroll
            for (int j = 0; j < 8; j++)
                x.v[j] = 0;
            if (row < rows && column < head_dim)
                x = load<DYNAMIC, 8>(b, first + row * stride + column);
            float4 *to = (float4 *)(tile + row * s::row + column);
            to[0] = make_float4(x.v[0], x.v[1], x.v[2], x.v[3]);
            to[1] = make_float4(x.v[4], x.v[5], x.v[6], x.v[7]);
        }
        return;
    }
    for (int item = threadIdx.x; item < s::T * DP; item += ATTENTION_THREADS) {
        const int row = item / DP, column = item % DP;
        tile[row * s::row + column] =
            row < rows && column < head_dim ? load_one(b.p, b.dtype, first + row * stride + column) : 0.0f;
    }
}

/* out[i][j] = row y*R+i of a times row x+16j of b. */
template <int DP, int R>
static __device__ __forceinline__ void dot_rows(const float *a, const float *b, float out[R][R])
{
    typedef shape<DP, R> s;
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int j = 0; j < R; j++)
            out[i][j] = 0;
#pragma unroll 4
    for (int d = 0; d < DP; d += 4) {
        float4 left[R], right[R];
#pragma unroll
        for (int i = 0; i < R; i++) {
            left[i] = *(const float4 *)(a + (y * R + i) * s::row + d);
            right[i] = *(const float4 *)(b + (x + 16 * i) * s::row + d);
        }
#pragma unroll
        for (int i = 0; i < R; i++)
#pragma unroll
            for (int j = 0; j < R; j++)
                out[i][j] +=
                    left[i].x * right[j].x + left[i].y * right[j].y + left[i].z * right[j].z + left[i].w * right[j].w;
    }
}

/* out[i] += sum over k of weights[y*R+i][k] * m[k]. */
template <int DP, int R>
static __device__ __forceinline__ void add_weighted_rows(const float *weights, const float *m, float out[R][DP / 16])
{
    typedef shape<DP, R> s;
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15;
#pragma unroll 2
    for (int k = 0; k < s::T; k++) {
        float w[R];
#pragma unroll
        for (int i = 0; i < R; i++)
            w[i] = weights[(y * R + i) * s::square + k];
#pragma unroll
        for (int c = 0; c < DP / 64; c++) {
            const float4 v = *(const float4 *)(m + k * s::row + 4 * x + 64 * c);
#pragma unroll
            for (int i = 0; i < R; i++) {
                out[i][4 * c] += w[i] * v.x;
                out[i][4 * c + 1] += w[i] * v.y;
                out[i][4 * c + 2] += w[i] * v.z;
                out[i][4 * c + 3] += w[i] * v.w;
            }
        }
    }
}

/* out[i] += sum over q of weights[q][y*R+i] * m[q]: the same with the weights transposed. */
template <int DP, int R>
static __device__ __forceinline__ void add_weighted_columns(const float *weights, const float *m, float out[R][DP / 16])
{
    typedef shape<DP, R> s;
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15;
#pragma unroll 2
    for (int q = 0; q < s::T; q++) {
        float w[R];
#pragma unroll
        for (int i = 0; i < R; i++)
            w[i] = weights[q * s::square + y * R + i];
#pragma unroll
        for (int c = 0; c < DP / 64; c++) {
            const float4 v = *(const float4 *)(m + q * s::row + 4 * x + 64 * c);
#pragma unroll
            for (int i = 0; i < R; i++) {
                out[i][4 * c] += w[i] * v.x;
                out[i][4 * c + 1] += w[i] * v.y;
                out[i][4 * c + 2] += w[i] * v.z;
                out[i][4 * c + 3] += w[i] * v.w;
            }
        }
    }
}

/* Writes this thread's part of a T x DP tile; rows past `rows` and columns past head_dim are left out. */
template <int DP, int R>
static __device__ void store_tile(const buffer b, int64_t first, int64_t stride, int64_t rows, int head_dim,
                                  const float values[R][DP / 16], bool add)
{
    if (!b.p)
        return;
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15;
#pragma unroll
    for (int i = 0; i < R; i++)
#pragma unroll
        for (int c = 0; c < DP / 16; c++) {
            const int row = y * R + i, column = 4 * x + c / 4 * 64 + c % 4;
            if (row < rows && column < head_dim) {
                const floats<1> value = {{values[i][c]}};
                store_or_add<DYNAMIC, 1>(b, first + row * stride + column, value, add);
            }
        }
}

/* Turns products q.k into scores: scaled, with bias, -inf where a key is not seen. */
template <int R>
static __device__ __forceinline__ void finish_scores(const attention_args &a, int64_t b, int64_t head, int64_t first_q,
                                                     int64_t first_k, float s[R][R])
{
    const int y = threadIdx.x >> 4, x = threadIdx.x & 15;
    const int64_t shift = a.kv_length - a.q_length;
#pragma unroll
    for (int j = 0; j < R; j++) {
        const int64_t key = first_k + x + 16 * j;
        const bool present = key < a.kv_length && (!a.key_mask || a.key_mask[b * a.kv_length + key] != 0);
#pragma unroll
        for (int i = 0; i < R; i++) {
            const int64_t query = first_q + y * R + i;
            if (!present || query >= a.q_length || (a.causal && key > query + shift) ||
                (a.window > 0 && key <= query + shift - a.window) ||
                (a.starts && key < a.starts[b * a.q_length + query])) {
                s[i][j] = -INFINITY;
                continue;
            }
            s[i][j] *= a.scale;
            if (a.bias.p)
                s[i][j] += load_one(a.bias.p, a.bias.dtype,
                                    b * a.bias_batch + head * a.bias_head + query * a.bias_query + key * a.bias_key);
        }
    }
}

static __device__ __forceinline__ float half_warp_max(float x)
{
#pragma unroll
    for (int offset = 8; offset > 0; offset >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

static __device__ __forceinline__ float half_warp_sum(float x)
{
#pragma unroll
    for (int offset = 8; offset > 0; offset >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* Calls F<DP, R>(...) with the tile that holds head_dim and fits a block's shared memory. */
#define ATTENTION_DISPATCH(l, head_dim, F, ...)                                                                        \
    ((head_dim) <= 64    ? F<64, 4>(__VA_ARGS__)                                                                       \
     : (head_dim) <= 128 ? ((l)->shared_bytes >= 200 * 1024 ? F<128, 4>(__VA_ARGS__) : F<128, 2>(__VA_ARGS__))         \
                         : F<256, 2>(__VA_ARGS__))

#endif
