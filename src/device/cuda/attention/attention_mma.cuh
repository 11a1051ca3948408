/* Building blocks of the attention kernels on tensor cores, for bf16 and fp16. A block of four warps works on 64 M
 * rows, 16 M a warp, against tiles of N columns; tiles of q, k, v and d_out lie in shared memory as they come, head
 * dimension padded with zeros to DP. Chunks of 8 elements (16 bytes) of row r are stored at place chunk ^ (r & 7), so
 * that neither rows nor columns meet in a bank. Fragments are laid out as mma.cuh says. */
#ifndef DEVICE_CUDA_ATTENTION_ATTENTION_MMA_CUH
#define DEVICE_CUDA_ATTENTION_ATTENTION_MMA_CUH

#include "device/cuda/attention/attention_keep.cuh"
#include "device/cuda/attention/attention_range.cuh"
#include "device/cuda/mma.cuh"
#include "device/cuda/vector.cuh"

#define MMA_THREADS 128
#define MMA_ROWS 64
#define LOG2_E 1.44269504088896341f
#define LN_2 0.693147180559945309f

template <int DP, int ROWS> static constexpr int tile_bytes = ROWS *DP * 2;

template <int DP> static __device__ __forceinline__ char *tile_at(char *tile, int row, int chunk)
{
    return tile + row * (DP * 2) + ((chunk ^ (row & 7)) << 4);
}

/* Starts copying n rows of one head; rows past `rows` and columns past head_dim become zero. */
template <int DP>
static __device__ __forceinline__ void copy_rows(char *tile, const buffer b, int64_t first, int64_t stride, int n,
                                                 int64_t rows, int head_dim)
{
    constexpr int chunks = DP / 8;
    for (int item = threadIdx.x; item < n * chunks; item += MMA_THREADS) {
        const int row = item / chunks, chunk = item % chunks;
        const bool present = row < rows && chunk * 8 < head_dim;
        const int64_t at = present ? first + row * stride + chunk * 8 : 0;
        copy_async(tile_at<DP>(tile, row, chunk), (const uint16_t *)b.p + at, present);
    }
}

/* The places of one head of one sample in the buffers. */
struct head_view {
    int64_t b, head, kv_head;

    __device__ head_view(const attention_args &a, int64_t sample, int64_t query_head)
        : b(sample), head(query_head), kv_head(query_head / (a.q_heads / a.kv_heads))
    {
    }

    __device__ int64_t q(const attention_args &a, int64_t token) const
    {
        return (b * a.q_length + token) * a.q_row + head * a.head_dim;
    }

    __device__ int64_t out(const attention_args &a, int64_t token) const
    {
        return ((b * a.q_length + token) * a.q_heads + head) * a.head_dim;
    }

    __device__ int64_t k(const attention_args &a, int64_t token) const
    {
        return (b * a.kv_length + token) * a.k_row + kv_head * a.head_dim;
    }

    __device__ int64_t v(const attention_args &a, int64_t token) const
    {
        return (b * a.kv_length + token) * a.v_row + kv_head * a.head_dim;
    }

    __device__ int64_t row(const attention_args &a, int64_t token) const
    {
        return (b * a.q_heads + head) * a.q_length + token;
    }
};

/* sum[m][j] = rows first + 16 m .. +15 of `left` times rows 8 j .. of `right`, over the head dimension: N columns. What
 * is read of `right` serves all M. */
template <int D, int DP, int N, int M>
static __device__ __forceinline__ void multiply_rows(float sum[M][N / 8][4], char *left, int first, char *right)
{
    const int lane = threadIdx.x & 31, matrix = lane >> 3, r = lane & 7;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int j = 0; j < N / 8; j++)
            sum[m][j][0] = sum[m][j][1] = sum[m][j][2] = sum[m][j][3] = 0;
#pragma unroll
    for (int c = 0; c < DP / 8; c += 2) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            load_matrices(a[m], tile_at<DP>(left, first + 16 * m + (matrix & 1) * 8 + r, c + (matrix >> 1)));
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
            uint32_t b[4];
            load_matrices(b, tile_at<DP>(right, (j + (matrix >> 1)) * 8 + r, c + (matrix & 1)));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add<D>(sum[m][j], a[m], b);
                multiply_add<D>(sum[m][j + 1], a[m], b + 2);
            }
        }
    }
}

template <int D> static __device__ __forceinline__ uint32_t pack_pair(float a, float b)
{
    return D == FSDP_BF16 ? pack_bf16(a, b) : pack_f16(a, b);
}

/* sum += weights (M times 16 x N, as sums of multiply_rows) times the N rows of `tile`. */
template <int D, int DP, int N, int M>
static __device__ __forceinline__ void add_weighted(float sum[M][DP / 8][4], const float weights[M][N / 8][4],
                                                    char *tile)
{
    const int lane = threadIdx.x & 31, matrix = lane >> 3, r = lane & 7;
#pragma unroll
    for (int j = 0; j < N / 8; j += 2) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[m][i] =
                    pack_pair<D>(weights[m][j + (i >> 1)][2 * (i & 1)], weights[m][j + (i >> 1)][2 * (i & 1) + 1]);
#pragma unroll
        for (int c = 0; c < DP / 8; c += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, tile_at<DP>(tile, (j + (matrix & 1)) * 8 + r, c + (matrix >> 1)));
#pragma unroll
            for (int m = 0; m < M; m++) {
                multiply_add<D>(sum[m][c], a[m], b);
                multiply_add<D>(sum[m][c + 1], a[m], b + 2);
            }
        }
    }
}

/* A bias by distance (key - query) comes into shared memory tile by tile: so many numbers hold those of a tile of 64 M
 * rows. */
#define DISTANCES(M) (64 * (M) + 64)

static __device__ __forceinline__ bool bias_by_distance(const attention_args &a)
{
    return a.bias.p && a.bias_key != 0 && a.bias_query == -a.bias_key;
}

/* Starts copying the bias of distances first .. first + n - 1, zeros where no pair is so far apart. */
static __device__ __forceinline__ void copy_distances(float *to, const attention_args &a, const head_view &at,
                                                      int64_t first, int n)
{
    for (int i = threadIdx.x; i < n; i += MMA_THREADS) {
        const int64_t distance = first + i;
        const bool present = distance > -a.q_length && distance < a.kv_length;
        const int64_t from = present ? at.b * a.bias_batch + at.head * a.bias_head + distance * a.bias_key : 0;
        if (a.bias.dtype == FSDP_F32)
            copy_async_4(to + i, (const float *)a.bias.p + from, present);
        else
            to[i] = present ? load_one(a.bias.p, a.bias.dtype, from) : 0.0f;
    }
}

/* Adds the bias to scores in units of log 2; see mma_scores. Past the ends any element of it will do. */
template <int N, bool TRANSPOSED>
static __device__ __forceinline__ void add_bias(const attention_args &a, const head_view &at, float s[N / 8][4],
                                                int first_row, int first_column, const float *distances)
{
    if (distances) {
#pragma unroll
        for (int j = 0; j < N / 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int apart = 8 * j + (e & 1) - 8 * (e >> 1);
                s[j][e] += distances[TRANSPOSED ? -apart : apart] * LOG2_E;
            }
        return;
    }
    const int64_t row_step = TRANSPOSED ? a.bias_key : a.bias_query;
    const int64_t column_step = TRANSPOSED ? a.bias_query : a.bias_key;
    const int last_row = (int)(TRANSPOSED ? a.kv_length : a.q_length) - 1;
    const int last_column = (int)(TRANSPOSED ? a.q_length : a.kv_length) - 1;
    const int64_t head = at.b * a.bias_batch + at.head * a.bias_head;
    const int64_t row[2] = {head + min(first_row, last_row) * row_step, head + min(first_row + 8, last_row) * row_step};
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int64_t i = row[e >> 1] + min(first_column + 8 * j + (e & 1), last_column) * column_step;
            s[j][e] += load_one(a.bias.p, a.bias.dtype, i) * LOG2_E;
        }
}

/* -inf where a key is not seen; see mma_scores. */
template <int N, bool TRANSPOSED>
static __device__ __forceinline__ void hide_keys(const attention_args &a, const head_view &at, float s[N / 8][4],
                                                 int first_row, int first_column)
{
    const int n_keys = (int)a.kv_length, shift = (int)(a.kv_length - a.q_length);
    const int32_t *mask = a.key_mask ? a.key_mask + at.b * a.kv_length : NULL;
    int begin[2], end[2]; /* of the columns that a row sees, or that see it */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = first_row + 8 * half;
        begin[half] = TRANSPOSED && a.causal ? row - shift : 0;
        end[half] = TRANSPOSED ? INT32_MAX : a.causal ? min(n_keys, row + shift + 1) : n_keys;
        if (a.window > 0) {
            if (TRANSPOSED)
                end[half] = row - shift + (int)a.window;
            else
                begin[half] = row + shift + 1 - (int)a.window;
        }
        if (!TRANSPOSED && a.starts)
            begin[half] = max(begin[half], start_of(a, at.b, row));
        if (TRANSPOSED && (row >= n_keys || (mask && mask[row] == 0)))
            end[half] = 0;
    }
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            const int column = first_column + 8 * j + (e & 1);
            const bool masked = !TRANSPOSED && mask && column < n_keys && mask[column] == 0;
            if (column < begin[e >> 1] || column >= end[e >> 1] || masked)
                s[j][e] = -INFINITY;
        }
    if constexpr (TRANSPOSED)
#pragma unroll
        for (int j = 0; a.starts && j < N / 8; j++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                const int start = start_of(a, at.b, first_column + 8 * j + side);
                s[j][side] = first_row < start ? -INFINITY : s[j][side];
                s[j][2 + side] = first_row + 8 < start ? -INFINITY : s[j][2 + side];
            }
}

/* Products q.k into scores in units of log 2: scaled, with bias, and at an edge -inf where a key is not seen. Rows are
 * queries, columns keys (TRANSPOSED: the other way round): element e of column group j is that of row first_row + 8
 * (e / 2) and column first_column + 8 j + e % 2. distances: where the bias of (first_row, first_column) lies among
 * those of the tile; NULL when the bias is not by distance. */
template <int N, bool TRANSPOSED>
static __device__ __forceinline__ void mma_scores(const attention_args &a, const head_view &at, float s[N / 8][4],
                                                  int64_t first_row, int64_t first_column, const float *distances,
                                                  bool edge)
{
    const float scale = a.scale * LOG2_E;
#pragma unroll
    for (int j = 0; j < N / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[j][e] *= scale;
    if (a.bias.p)
        add_bias<N, TRANSPOSED>(a, at, s, (int)first_row, (int)first_column, distances);
    if (edge)
        hide_keys<N, TRANSPOSED>(a, at, s, (int)first_row, (int)first_column);
}

/* Whether some key of the tile may be hidden from some query of it; a tile has at most 128. */
static __device__ __forceinline__ bool is_edge(const attention_args &a, int64_t b, int64_t first_q, int64_t first_k,
                                               int n_keys)
{
    return a.key_mask || first_k + n_keys > a.kv_length ||
           (a.causal && first_k + n_keys - 1 > first_q + a.kv_length - a.q_length) ||
           (a.window > 0 && first_k <= first_q + 127 + a.kv_length - a.q_length - a.window) ||
           (a.starts && start_of(a, b, first_q + 127) > first_k);
}

/* Writes this warp's 16 rows of a result times `factor`; rows past `rows` are left out. */
template <int DP>
static __device__ __forceinline__ void store_rows(const buffer b, int64_t first, int64_t stride, int64_t rows,
                                                  int head_dim, const float sum[DP / 8][4], float factor, bool add)
{
    const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = g + 8 * half;
        if (row >= rows)
            continue;
#pragma unroll
        for (int c = 0; c < DP / 8; c++) {
            if (c * 8 >= head_dim)
                break;
            const int64_t at = first + row * stride + c * 8 + 2 * t;
            float x = sum[c][2 * half] * factor, y = sum[c][2 * half + 1] * factor;
            if (add) {
                x += load_one(b.p, b.dtype, at);
                y += load_one(b.p, b.dtype, at + 1);
            }
            if (b.dtype == FSDP_BF16)
                *(uint32_t *)((uint16_t *)b.p + at) = pack_bf16(x, y);
            else if (b.dtype == FSDP_F16)
                *(uint32_t *)((uint16_t *)b.p + at) = pack_f16(x, y);
            else
                *(float2 *)((float *)b.p + at) = make_float2(x, y);
        }
    }
}

/* lse in units of log 2; +inf for rows that are not there or see nothing, so that every weight becomes 0. */
static __device__ __forceinline__ float lse_for_weights(float lse, bool present)
{
    return present && lse != -INFINITY ? lse * LOG2_E : INFINITY;
}

/* The row statistics of backward. */
static __device__ __forceinline__ void read_row(const attention_args &a, const float *delta, const head_view &at,
                                                int64_t query, float *lse, float *row_delta)
{
    const bool present = query < a.q_length;
    *lse = lse_for_weights(present ? a.lse[at.row(a, query)] : 0.0f, present);
    *row_delta = present ? delta[at.row(a, query)] : 0.0f;
}

/* From scores s and products dp = d_out.v: the weights that forward applied into s, the scores' gradients (without
 * `scale`) into dp. lse and delta are those of its query; kept: dropout did not leave the weight out. */
static __device__ __forceinline__ void weight_gradient(float &s, float &dp, float lse, float delta, bool kept,
                                                       float kept_scale)
{
    const float p = exp2_fast(s - lse);
    const float factor = kept ? kept_scale : 0.0f;
    dp = p * (dp * factor - delta);
    s = p * factor;
}

/* Whether these arguments suit the kernels here: one 16-bit type, rows and heads of whole 16-byte chunks. */
static inline bool attention_mma_fits(const attention_args *a, bool backward)
{
    const fsdp_dtype type = a->q.dtype;
    if ((type != FSDP_BF16 && type != FSDP_F16) || a->k.dtype != type || a->v.dtype != type || a->out.dtype != type ||
        (backward && a->d_out.dtype != type))
        return false;
    const uintptr_t all = (uintptr_t)a->q.p | (uintptr_t)a->k.p | (uintptr_t)a->v.p | (uintptr_t)a->out.p |
                          (uintptr_t)a->d_out.p | (uintptr_t)a->d_q.p | (uintptr_t)a->d_k.p | (uintptr_t)a->d_v.p;
    return all % 16 == 0 && a->head_dim % 8 == 0 && a->head_dim <= 128 && (a->q_row | a->k_row | a->v_row) % 8 == 0;
}

/* Calls F<D, DP>(...). */
#define MMA_DISPATCH(a, F, ...)                                                                                        \
    ((a)->q.dtype == FSDP_BF16                                                                                         \
         ? ((a)->head_dim <= 64 ? F<FSDP_BF16, 64>(__VA_ARGS__) : F<FSDP_BF16, 128>(__VA_ARGS__))                      \
         : ((a)->head_dim <= 64 ? F<FSDP_F16, 64>(__VA_ARGS__) : F<FSDP_F16, 128>(__VA_ARGS__)))

extern "C" cudaError_t launch_attention_mma_forward(const launch *l, const attention_args *a);
extern "C" cudaError_t launch_attention_mma_backward(const launch *l, const attention_args *a, const float *delta);
extern "C" cudaError_t launch_attention_mma_bias(const launch *l, const attention_args *a, const float *delta,
                                                 float *partial);

#endif
