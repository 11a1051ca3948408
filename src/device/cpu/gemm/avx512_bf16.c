/* The bf16 tile with AVX-512 bf16: 14 rows by 32 columns in 28 of the 32 registers, two of k at a time (vdpbf16ps). */
#if defined(__x86_64__)
#include "device/cpu/gemm/avx512.h"

#define BF16 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,fma,f16c")))

enum { TILE_ROWS = 14, TILE_COLUMNS = 32 };

static void pack_a(const panel_source *source, void *panel)
{
    avx512_pack_pairs(source, panel, TILE_ROWS);
}

static void pack_b(const panel_source *source, void *panel)
{
    avx512_pack_pairs(source, panel, TILE_COLUMNS);
}

/* `n_rows` is a constant where this is inlined: a register for every sum. */
BF16 __attribute__((always_inline)) static inline void sum_rows(int n_rows, int64_t depth, const int32_t *a,
                                                                const int32_t *b, const gemm_ahead *ahead, float *sums,
                                                                int64_t ld, bool add)
{
    __m512 sum[TILE_ROWS][2];
#pragma GCC unroll 14
    for (int i = 0; i < n_rows; i++) {
        sum[i][0] = add ? _mm512_loadu_ps(sums + i * ld) : _mm512_setzero_ps();
        sum[i][1] = add ? _mm512_loadu_ps(sums + i * ld + 16) : _mm512_setzero_ps();
    }
    const char *next_a = ahead->a, *next_b = ahead->b;
    for (int64_t k = 0; k < depth; k += 2, a += TILE_ROWS, b += TILE_COLUMNS) {
        _mm_prefetch(next_a, _MM_HINT_T1);
        _mm_prefetch(next_b, _MM_HINT_T1);
        next_a += ahead->a_step, next_b += ahead->b_step;
        __m512bh left = (__m512bh)_mm512_loadu_si512(b), right = (__m512bh)_mm512_loadu_si512(b + 16);
#pragma GCC unroll 14
        for (int i = 0; i < n_rows; i++) {
            __m512bh value = (__m512bh)_mm512_set1_epi32(a[i]);
            sum[i][0] = _mm512_dpbf16_ps(sum[i][0], value, left);
            sum[i][1] = _mm512_dpbf16_ps(sum[i][1], value, right);
        }
    }
#pragma GCC unroll 14
    for (int i = 0; i < n_rows; i++) {
        _mm512_storeu_ps(sums + i * ld, sum[i][0]);
        _mm512_storeu_ps(sums + i * ld + 16, sum[i][1]);
    }
}

BF16 static void tile(int64_t depth, const void *a, const void *b, const gemm_ahead *ahead, float *sums, int64_t ld,
                      int rows, bool add)
{
    if (rows > 8)
        sum_rows(TILE_ROWS, depth, a, b, ahead, sums, ld, add);
    else if (rows > 4)
        sum_rows(8, depth, a, b, ahead, sums, ld, add);
    else
        sum_rows(4, depth, a, b, ahead, sums, ld, add);
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
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .store = avx512_store,
    .few_rows = avx512_few_rows,
};
#else
typedef int avx512_bf16_is_for_x86;
#endif
