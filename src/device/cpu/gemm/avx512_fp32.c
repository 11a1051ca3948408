/* The fp32 tile with AVX-512: 14 rows by 32 columns in 28 of the 32 registers. Operands of other dtypes are widened
 * while they are packed. */
#if defined(__x86_64__)
#include "device/cpu/gemm/avx512_tile.h"

enum { UNROLLED = 4 };

static void pack_a(const panel_source *source, void *panel)
{
    avx512_pack_fp32(source, panel, TILE_ROWS);
}

static void pack_b(const panel_source *source, void *panel)
{
    avx512_pack_fp32(source, panel, TILE_COLUMNS);
}

/* Adds the products of one k to the sums of row i. */
AVX512_INLINE void add_row(float a, __m512 left, __m512 right, __m512 sum[2])
{
    __m512 value = _mm512_set1_ps(a);
    sum[0] = _mm512_fmadd_ps(value, left, sum[0]);
    sum[1] = _mm512_fmadd_ps(value, right, sum[1]);
}

/* One of k; `n_rows` is a constant where this is inlined: a register for every sum. */
AVX512_INLINE void add_packed(int n_rows, const float *a, const float *b, __m512 sum[TILE_ROWS][2])
{
    __m512 left = _mm512_loadu_ps(b), right = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 14
    for (int i = 0; i < n_rows; i++)
        add_row(a[i], left, right, sum[i]);
}

/* The same of rows in place, k elements from where the pointers are. */
AVX512_INLINE void add_in_place(const char *const rows[ROW_POINTERS], int64_t stride, int k, const float *b,
                                __m512 sum[TILE_ROWS][2])
{
    __m512 left = _mm512_loadu_ps(b), right = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 14
    for (int i = 0; i < TILE_ROWS; i++)
        add_row(((const float *)tile_row(rows, stride, i))[k], left, right, sum[i]);
}

AVX512_INLINE void sum_packed(int n_rows, int64_t depth, const float *a, const float *b, gemm_ahead ahead, float *sums,
                              int64_t ld, bool add)
{
    __m512 sum[TILE_ROWS][2];
    tile_load_sums(n_rows, sums, ld, add, sum);
    int64_t k = 0;
    for (; k + UNROLLED <= depth; k += UNROLLED, a += UNROLLED * TILE_ROWS, b += UNROLLED * TILE_COLUMNS) {
        _mm_prefetch(ahead.a + k * ahead.a_step, _MM_HINT_T1);
        _mm_prefetch(ahead.b + k * ahead.b_step, _MM_HINT_T1);
#pragma GCC unroll 4
        for (int u = 0; u < UNROLLED; u++)
            add_packed(n_rows, a + u * TILE_ROWS, b + u * TILE_COLUMNS, sum);
    }
    for (; k < depth; k++, a += TILE_ROWS, b += TILE_COLUMNS)
        add_packed(n_rows, a, b, sum);
    tile_store_sums(n_rows, sums, ld, sum);
}

AVX512 static void sum_in_place(int64_t depth, const char *a, int64_t stride, const float *b, gemm_ahead ahead,
                                float *sums, int64_t ld, bool add)
{
    __m512 sum[TILE_ROWS][2];
    const char *rows[ROW_POINTERS];
    tile_load_sums(TILE_ROWS, sums, ld, add, sum);
    tile_find_rows(a, stride, rows);
    tile_fetch next = {ahead.a, ahead.a_rows, depth * (int64_t)sizeof(float), 0};
    int64_t k = 0;
    for (; k + UNROLLED <= depth; k += UNROLLED, b += UNROLLED * TILE_COLUMNS) {
        tile_fetch_line(&next, stride);
        _mm_prefetch(ahead.b + k * ahead.b_step, _MM_HINT_T1);
#pragma GCC unroll 4
        for (int u = 0; u < UNROLLED; u++)
            add_in_place(rows, stride, u, b + u * TILE_COLUMNS, sum);
        tile_advance_rows(rows, UNROLLED * sizeof(float));
    }
    for (int u = 0; k < depth; k++, u++, b += TILE_COLUMNS)
        add_in_place(rows, stride, u, b, sum);
    tile_store_sums(TILE_ROWS, sums, ld, sum);
}

AVX512 static void tile(int64_t depth, const void *a, int64_t a_stride, const void *b, const gemm_ahead *ahead,
                        float *sums, int64_t ld, int rows, bool add)
{
    if (a_stride)
        sum_in_place(depth, a, a_stride, b, *ahead, sums, ld, add);
    else if (rows > 8)
        sum_packed(TILE_ROWS, depth, a, b, *ahead, sums, ld, add);
    else if (rows > 4)
        sum_packed(8, depth, a, b, *ahead, sums, ld, add);
    else
        sum_packed(4, depth, a, b, *ahead, sums, ld, add);
}

const gemm_kernel avx512_fp32 = {
    .name = "own AVX-512",
    .tile_rows = TILE_ROWS,
    .tile_columns = TILE_COLUMNS,
    .k_unit = 1,
    .k_step = 512,
    .block_rows = 12 * TILE_ROWS,
    .block_columns = 8 * TILE_COLUMNS,
    .element_bytes = sizeof(float),
    .reads_rows = true,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .store = avx512_store,
    .few_rows = avx512_few_rows,
};
#else
typedef int avx512_fp32_is_for_x86;
#endif
