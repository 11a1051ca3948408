/* Operands of 8-bit products: one pass finds the largest magnitude, unless the kernel that wrote the operand has; a
 * second rounds, as the operand lies and transposed (Hopper's 8-bit products sum along rows only). */
#include <cuda_fp8.h>

#include "device/cuda/magnitude.cuh"
#include "device/fp8_scale.h"

#define THREADS 256
#define TILE 128   /* rows and columns that a block rounds */
#define COLUMNS 16 /* of a row that a thread rounds */

template <int D>
__global__ void __launch_bounds__(THREADS) largest(const void *x, int64_t n, int64_t n_vectors, uint32_t *out)
{
    constexpr int width = in_16_bytes<D>;
    const int64_t first = blockIdx.x * (int64_t)THREADS + threadIdx.x, step = gridDim.x * (int64_t)THREADS;
    uint32_t bits = 0;
    for (int64_t i = first; i < n_vectors; i += step) {
        floats<width> part;
        unpack16<D>(((const uint4 *)x)[i], part.v);
        bits = largest_of<width>(bits, part);
    }
    for (int64_t i = n_vectors * width + first; i < n; i += step)
        bits = max(bits, magnitude_bits(load_one(x, D, i)));
    magnitude_leave(bits, out);
}

static __device__ __forceinline__ uint32_t round4(const float *v, float factor, __nv_fp8_interpretation_t format)
{
    const uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(v[0] * factor, v[1] * factor), __NV_SATFINITE, format);
    const uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(v[2] * factor, v[3] * factor), __NV_SATFINITE, format);
    return low | high << 16;
}

/* Four rows of four bytes become four columns of four. */
static __device__ __forceinline__ void turn4(const uint32_t *rows, uint32_t *columns)
{
    const uint32_t a = __byte_perm(rows[0], rows[1], 0x5140), b = __byte_perm(rows[2], rows[3], 0x5140);
    const uint32_t c = __byte_perm(rows[0], rows[1], 0x7362), d = __byte_perm(rows[2], rows[3], 0x7362);
    columns[0] = __byte_perm(a, b, 0x5410);
    columns[1] = __byte_perm(a, b, 0x7632);
    columns[2] = __byte_perm(c, d, 0x5410);
    columns[3] = __byte_perm(c, d, 0x7632);
}

/* COLUMNS elements of a row, zeros outside. vectors: rows begin at 16 bytes of x and of q, and are whole groups. */
template <int D>
static __device__ __forceinline__ void load_group(const fp8_cast_args &a, int64_t row, int64_t column, bool vectors,
                                                  float *v)
{
    if (vectors && row < a.rows && column < a.columns) {
#pragma unroll
        for (int half = 0; half < COLUMNS; half += 8) {
            const floats<8> x = load<D, 8>(a.x, row * a.columns + column + half);
#pragma unroll
            for (int j = 0; j < 8; j++)
                v[half + j] = x.v[j];
        }
        return;
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        v[j] = row < a.rows && column + j < a.columns ? load_one(a.x.p, D, row * a.columns + column + j) : 0.0f;
}

static __device__ __forceinline__ void store_group(const fp8_cast_args &a, int64_t row, int64_t column, bool vectors,
                                                   const uint32_t *words)
{
    uint8_t *to = (uint8_t *)a.q.p + row * a.columns + column;
    if (row >= a.rows || column >= a.columns)
        return;
    if (vectors) {
        *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
        return;
    }
#pragma unroll
    for (int j = 0; j < COLUMNS; j++)
        if (column + j < a.columns)
            to[j] = (uint8_t)(words[j / 4] >> 8 * (j % 4));
}

/* 16 rows of a column. */
static __device__ __forceinline__ void store_turned(const fp8_cast_args &a, int64_t row, int64_t column,
                                                    const uint32_t *words)
{
    uint8_t *to = (uint8_t *)a.qt.p + column * a.rows + row;
    if (row >= a.rows || column >= a.columns)
        return;
    if (a.rows % 16 == 0) {
        *(uint4 *)to = make_uint4(words[0], words[1], words[2], words[3]);
        return;
    }
    for (int i = 0; i < 16 && row + i < a.rows; i++)
        to[i] = (uint8_t)(words[i / 4] >> 8 * (i % 4));
}

/* Every thread of a block has four rows of COLUMNS columns: turns them by four times four bytes, and the block writes
 * its columns from shared memory. */
static __device__ __forceinline__ void leave_turned(const fp8_cast_args &a, int64_t first_row, int64_t first_column,
                                                    const uint32_t (&words)[4][COLUMNS / 4],
                                                    uint32_t (&turned)[TILE][TILE / 4 + 1])
{
    const int group = threadIdx.x % (TILE / COLUMNS), rows = threadIdx.x / (TILE / COLUMNS);
#pragma unroll
    for (int k = 0; k < COLUMNS / 4; k++) {
        const uint32_t four[4] = {words[0][k], words[1][k], words[2][k], words[3][k]};
        uint32_t columns[4];
        turn4(four, columns);
#pragma unroll
        for (int j = 0; j < 4; j++)
            turned[COLUMNS * group + 4 * k + j][rows] = columns[j];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE * (TILE / 16); i += THREADS) {
        const int column = i / (TILE / 16), at = i % (TILE / 16);
        store_turned(a, first_row + 16 * at, first_column + column, &turned[column][4 * at]);
    }
}

/* A thread rounds groups of four rows by COLUMNS columns. */
template <int D>
__global__ void __launch_bounds__(THREADS)
    cast_tile(const fp8_cast_args a, __nv_fp8_interpretation_t format, float max, bool vectors)
{
    __shared__ uint32_t turned[TILE][TILE / 4 + 1]; /* [column][four rows] */
    const int64_t first_row = blockIdx.y * (int64_t)TILE, first_column = blockIdx.x * (int64_t)TILE;
    const float magnitude = *(a.magnitude ? a.magnitude : a.scale + 1), factor = fp8_factor(magnitude, max);
    if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x == 0) {
        a.scale[0] = fp8_scale(magnitude, max);
        if (a.magnitude && a.magnitude != a.scale + 1)
            a.scale[1] = magnitude;
    }
    constexpr int groups = TILE / COLUMNS;
    static_assert(THREADS / groups == TILE / 4, "every thread has one group");
    const int group = threadIdx.x % groups, rows = threadIdx.x / groups;
    uint32_t words[4][COLUMNS / 4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t row = first_row + 4 * rows + i, column = first_column + COLUMNS * group;
        float v[COLUMNS];
        load_group<D>(a, row, column, vectors, v);
#pragma unroll
        for (int k = 0; k < COLUMNS / 4; k++)
            words[i][k] = round4(v + 4 * k, factor, format);
        if (a.q.p)
            store_group(a, row, column, vectors, words[i]);
    }
    if (a.qt.p)
        leave_turned(a, first_row, first_column, words, turned);
}

/* Codes as they are, transposed: a thread takes groups of four rows by 16 columns, as cast_tile does. */
__global__ void __launch_bounds__(THREADS) turn_tile(const fp8_cast_args a, bool vectors)
{
    __shared__ uint32_t turned[TILE][TILE / 4 + 1]; /* [column][four rows] */
    const int64_t first_row = blockIdx.y * (int64_t)TILE, first_column = blockIdx.x * (int64_t)TILE;
    const int group = threadIdx.x % (TILE / COLUMNS), rows = threadIdx.x / (TILE / COLUMNS);
    const int64_t column = first_column + COLUMNS * group;
    uint32_t words[4][COLUMNS / 4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int64_t row = first_row + 4 * rows + i;
        const uint8_t *from = (const uint8_t *)a.x.p + row * a.columns + column;
        if (vectors && row < a.rows && column < a.columns) {
            *(uint4 *)words[i] = *(const uint4 *)from;
            continue;
        }
#pragma unroll
        for (int k = 0; k < COLUMNS / 4; k++) {
            words[i][k] = 0;
            for (int j = 0; j < 4; j++)
                if (row < a.rows && column + 4 * k + j < a.columns)
                    words[i][k] |= (uint32_t)from[4 * k + j] << 8 * j;
        }
    }
    leave_turned(a, first_row, first_column, words, turned);
}

/* What is in 8 bits already is not measured, and no scale is written. */
static void turn(const launch *l, const fp8_cast_args *a)
{
    const dim3 blocks((unsigned)launch_ceil(a->columns, TILE), (unsigned)launch_ceil(a->rows, TILE));
    if (a->rows > 0 && a->columns > 0)
        turn_tile<<<blocks, THREADS, 0, l->stream>>>(*a, (uintptr_t)a->x.p % 16 == 0 && a->columns % COLUMNS == 0);
}

template <int D> static void run(const launch *l, const fp8_cast_args *a)
{
    const int64_t n = a->rows * a->columns;
    const bool aligned = (uintptr_t)a->x.p % 16 == 0;
    if (!a->magnitude) {
        const int64_t n_vectors = aligned ? n / in_16_bytes<D> : 0;
        largest<D><<<flat_blocks(l, n / 8 + 1, THREADS), THREADS, 0, l->stream>>>(a->x.p, n, n_vectors,
                                                                                  (uint32_t *)(a->scale + 1));
    }
    if (!a->q.p && !a->qt.p)
        return;
    const fsdp_dtype type = a->q.p ? a->q.dtype : a->qt.dtype;
    const dim3 blocks(n > 0 ? (unsigned)launch_ceil(a->columns, TILE) : 1, /* one writes the scale of nothing */
                      n > 0 ? (unsigned)launch_ceil(a->rows, TILE) : 1);
    cast_tile<D><<<blocks, THREADS, 0, l->stream>>>(
        *a, type == FSDP_E5M2 ? __NV_E5M2 : __NV_E4M3, type == FSDP_E5M2 ? 57344.0f : 448.0f,
        aligned && a->columns % COLUMNS == 0 && (uintptr_t)a->q.p % 16 == 0);
}

extern "C" cudaError_t launch_fp8_cast(const launch *l, const fp8_cast_args *a)
{
    if (a->qt.p && a->x.dtype == a->qt.dtype)
        turn(l, a);
    else if (a->x.dtype == FSDP_BF16)
        run<FSDP_BF16>(l, a);
    else if (a->x.dtype == FSDP_F16)
        run<FSDP_F16>(l, a);
    else
        run<FSDP_F32>(l, a);
    return cudaGetLastError();
}

/* Sums of whole numbers: the order of blocks does not matter. */
__global__ void __launch_bounds__(THREADS) count_lost(const fp8_count_args a, float max)
{
    const float limit = *a.scale * max * FP8_BEYOND;
    unsigned flushed = 0, saturated = 0;
    for (int64_t i = blockIdx.x * (int64_t)THREADS + threadIdx.x; i < a.n; i += (int64_t)gridDim.x * THREADS) {
        const float x = load_one(a.x.p, a.x.dtype, i);
        flushed += x != 0.0f && (((const uint8_t *)a.q.p)[i] & 0x7fu) == 0;
        saturated += fabsf(x) > limit;
    }
    flushed = __reduce_add_sync(0xffffffffu, flushed);
    saturated = __reduce_add_sync(0xffffffffu, saturated);
    if (threadIdx.x % 32 != 0)
        return;
    if (flushed)
        atomicAdd((unsigned long long *)a.counts, (unsigned long long)flushed);
    if (saturated)
        atomicAdd((unsigned long long *)a.counts + 1, (unsigned long long)saturated);
}

extern "C" cudaError_t launch_fp8_count(const launch *l, const fp8_count_args *a)
{
    if (a->n > 0)
        count_lost<<<flat_blocks(l, a->n, THREADS), THREADS, 0, l->stream>>>(*a, a->q.dtype == FSDP_E5M2 ? 57344.0f
                                                                                                         : 448.0f);
    return cudaGetLastError();
}
