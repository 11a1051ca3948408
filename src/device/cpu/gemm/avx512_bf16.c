/* The bf16 tile with AVX-512 bf16: 14 rows by 32 columns in 28 of the 32 registers, two of k at a time (vdpbf16ps). */
#if defined(__x86_64__)
#include <string.h>

#include "device/cpu/gemm/avx512_tile.h"

#define BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")))

static void pack_a(const panel_source *source, void *panel)
{
    avx512_pack_pairs(source, panel, TILE_ROWS);
}

static void pack_b(const panel_source *source, void *panel)
{
    avx512_pack_pairs(source, panel, TILE_COLUMNS);
}

#define BF16_INLINE BF16 __attribute__((always_inline)) static inline

/* Two numbers of a row in place may lie at any even address. */
BF16_INLINE void add_row(const char *two, __m512bh left, __m512bh right, __m512 sum[2])
{
    int32_t pair;
    memcpy(&pair, two, sizeof pair);
    __m512bh value = (__m512bh)_mm512_set1_epi32(pair);
    sum[0] = _mm512_dpbf16_ps(sum[0], value, left);
    sum[1] = _mm512_dpbf16_ps(sum[1], value, right);
}

/* `n_rows` and `in_place` are constants where this is inlined. */
BF16_INLINE void sum_rows(int n_rows, bool in_place, int64_t depth, const char *a, int64_t stride, const int32_t *b,
                          gemm_ahead ahead, float *sums, int64_t ld, bool add)
{
    __m512 sum[TILE_ROWS][2];
    const char *rows[ROW_POINTERS];
    tile_load_sums(n_rows, sums, ld, add, sum);
    tile_find_rows(a, stride, rows);
    for (int64_t k = 0; k < depth; k += 2, b += TILE_COLUMNS) {
        if (!in_place)
            _mm_prefetch(ahead.a, _MM_HINT_T1);
        _mm_prefetch(ahead.b, _MM_HINT_T1);
        ahead.a += ahead.a_step, ahead.b += ahead.b_step;
        __m512bh left = (__m512bh)_mm512_loadu_si512(b), right = (__m512bh)_mm512_loadu_si512(b + 16);
#pragma GCC unroll 14
        for (int i = 0; i < n_rows; i++)
            add_row(in_place ? tile_row(rows, stride, i) : a + 4 * i, left, right, sum[i]);
        a += 4 * TILE_ROWS;
        tile_advance_rows(rows, 4);
    }
    tile_store_sums(n_rows, sums, ld, sum);
}

BF16 static void tile(int64_t depth, const void *a, int64_t a_stride, const gemm_columns *b, const gemm_ahead *ahead,
                      float *sums, int64_t ld, int rows, bool add)
{
    if (a_stride)
        sum_rows(TILE_ROWS, true, depth, a, a_stride, b->panel, *ahead, sums, ld, add);
    else if (rows > 8)
        sum_rows(TILE_ROWS, false, depth, a, 0, b->panel, *ahead, sums, ld, add);
    else if (rows > 4)
        sum_rows(8, false, depth, a, 0, b->panel, *ahead, sums, ld, add);
    else
        sum_rows(4, false, depth, a, 0, b->panel, *ahead, sums, ld, add);
}

const gemm_kernel avx512_bf16 = {
    .name = "own AVX-512 bf16",
    .tile_rows = TILE_ROWS,
    .tile_columns = TILE_COLUMNS,
    .k_unit = 2,
    .k_step = 1024,
    .block_rows = 12 * TILE_ROWS,
    .block_columns = 8 * TILE_COLUMNS,
    .element_bytes = sizeof(uint16_t),
    .reads_rows = true,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .store = avx512_store,
    .few_rows = avx512_few_rows,
};
#else
typedef int avx512_bf16_is_for_x86;
#endif
