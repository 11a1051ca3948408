/* The fp32 tile with AVX-512: 14 rows by 32 columns in 28 of the 32 registers. Operands of other dtypes are widened
 * while they are packed. */
#if defined(__x86_64__)
#include "device/cpu/gemm/avx512.h"

enum { TILE_ROWS = 14, TILE_COLUMNS = 32, UNROLLED = 4 };

static void pack_a(const panel_source *source, void *panel)
{
    avx512_pack_fp32(source, panel, TILE_ROWS);
}

static void pack_b(const panel_source *source, void *panel)
{
    avx512_pack_fp32(source, panel, TILE_COLUMNS);
}

/* One of k; `n_rows` is a constant where this is inlined: a register for every sum. */
AVX512_INLINE void add_products(int n_rows, const float *a, const float *b, __m512 sum[TILE_ROWS][2])
{
    __m512 left = _mm512_loadu_ps(b), right = _mm512_loadu_ps(b + 16);
#pragma GCC unroll 14
    for (int i = 0; i < n_rows; i++) {
        __m512 value = _mm512_set1_ps(a[i]);
        sum[i][0] = _mm512_fmadd_ps(value, left, sum[i][0]);
        sum[i][1] = _mm512_fmadd_ps(value, right, sum[i][1]);
    }
}

AVX512_INLINE void sum_rows(int n_rows, int64_t depth, const float *a, const float *b, gemm_ahead ahead, float *sums,
                            int64_t ld, bool add)
{
    __m512 sum[TILE_ROWS][2];
#pragma GCC unroll 14
    for (int i = 0; i < n_rows; i++) {
        sum[i][0] = add ? _mm512_loadu_ps(sums + i * ld) : _mm512_setzero_ps();
        sum[i][1] = add ? _mm512_loadu_ps(sums + i * ld + 16) : _mm512_setzero_ps();
    }
    int64_t k = 0;
    for (; k + UNROLLED <= depth; k += UNROLLED, a += UNROLLED * TILE_ROWS, b += UNROLLED * TILE_COLUMNS) {
        _mm_prefetch(ahead.a + k * ahead.a_step, _MM_HINT_T1);
        _mm_prefetch(ahead.b + k * ahead.b_step, _MM_HINT_T1);
#pragma GCC unroll 4
        for (int u = 0; u < UNROLLED; u++)
            add_products(n_rows, a + u * TILE_ROWS, b + u * TILE_COLUMNS, sum);
    }
    for (; k < depth; k++, a += TILE_ROWS, b += TILE_COLUMNS)
        add_products(n_rows, a, b, sum);
#pragma GCC unroll 14
    for (int i = 0; i < n_rows; i++) {
        _mm512_storeu_ps(sums + i * ld, sum[i][0]);
        _mm512_storeu_ps(sums + i * ld + 16, sum[i][1]);
    }
}

AVX512 static void tile(int64_t depth, const void *a, const void *b, const gemm_ahead *ahead, float *sums, int64_t ld,
                        int rows, bool add)
{
    if (rows > 8)
        sum_rows(TILE_ROWS, depth, a, b, *ahead, sums, ld, add);
    else if (rows > 4)
        sum_rows(8, depth, a, b, *ahead, sums, ld, add);
    else
        sum_rows(4, depth, a, b, *ahead, sums, ld, add);
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
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .store = avx512_store,
    .few_rows = avx512_few_rows,
};
#else
typedef int avx512_fp32_is_for_x86;
#endif
