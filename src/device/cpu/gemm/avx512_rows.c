/* Products with few rows with AVX-512: op(b) goes through the registers once for up to four rows of op(a). */
#if defined(__x86_64__)
#include "device/cpu/gemm/avx512.h"

#include "base/checked.h"

enum {
    ROWS = 4, /* summed together */
    BAND = 16 /* of k: what a strip of sums is taken over at a time when b runs across k */
};

AVX512_INLINE __m512 load16(const void *p, fsdp_dtype dtype, int64_t i, __mmask16 valid)
{
    if (dtype == FSDP_F32)
        return _mm512_maskz_loadu_ps(valid, (const float *)p + i);
    __m256i half = _mm256_maskz_loadu_epi16(valid, (const uint16_t *)p + i);
    if (dtype == FSDP_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* 16 of k of n_rows inner products with n_columns stored rows of b. */
AVX512_INLINE void dot16(const few_rows_strip *s, fsdp_dtype dtype, int64_t i, int64_t j, int64_t k, int n_rows,
                         int n_columns, __mmask16 valid, __m512 sum[ROWS][ROWS])
{
    __m512 x[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
        x[r] = load16(s->x, dtype, (i + r) * s->x_stride + k, valid);
#pragma GCC unroll 4
    for (int c = 0; c < n_columns; c++) {
        __m512 y = load16(s->b, dtype, (j + c) * s->ldb + k, valid);
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++)
            sum[r][c] = _mm512_fmadd_ps(x[r], y, sum[r][c]);
    }
}

/* Inner products: b is stored (columns, k). `n_rows` and `n_columns` are constants where this is inlined. */
AVX512_INLINE void dot(const few_rows_strip *s, fsdp_dtype dtype, int64_t i, int64_t j, int n_rows, int n_columns,
                       float (*sums)[FEW_COLUMNS])
{
    __m512 sum[ROWS][ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < n_columns; c++)
            sum[r][c] = _mm512_setzero_ps();
    int64_t k = 0;
    for (; k + 16 <= s->depth; k += 16)
        dot16(s, dtype, i, j, k, n_rows, n_columns, 0xffff, sum);
    if (k < s->depth)
        dot16(s, dtype, i, j, k, n_rows, n_columns, first16(s->depth - k), sum);
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < n_columns; c++)
            sums[i + r][j + c] = _mm512_reduce_add_ps(sum[r][c]);
}

/* Adds a band of k, of which x holds n_rows rows, to 64 columns of sums from j on. b is stored (k, columns); the next
 * band's part of it is fetched on the way (addresses past the end are harmless). */
AVX512_INLINE void combine64(const few_rows_strip *s, fsdp_dtype dtype, const float (*x)[BAND], int64_t k, int64_t band,
                             int64_t i, int64_t j, int n_rows, float (*sums)[FEW_COLUMNS])
{
    __m512 sum[ROWS][4];
    __mmask16 valid[4];
    int64_t size = dtype == FSDP_F32 ? 4 : 2;
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        valid[c] = first16(s->columns - j - 16 * c);
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++)
            sum[r][c] = k ? _mm512_loadu_ps(sums[i + r] + j + 16 * c) : _mm512_setzero_ps();
    }
    for (int64_t q = 0; q < band; q++) {
        const char *next = (const char *)s->b + ((k + q + BAND) * s->ldb + j) * size;
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            if (c * 16 * size % 64 == 0)
                _mm_prefetch(next + c * 16 * size, _MM_HINT_T0);
            __m512 y = load16(s->b, dtype, (k + q) * s->ldb + j + 16 * c, valid[c]);
#pragma GCC unroll 4
            for (int r = 0; r < n_rows; r++)
                sum[r][c] = _mm512_fmadd_ps(_mm512_set1_ps(x[r][q]), y, sum[r][c]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < n_rows; r++)
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++)
            _mm512_storeu_ps(sums[i + r] + j + 16 * c, sum[r][c]);
}

/* Sums of scaled rows: b is stored (k, columns). */
AVX512_INLINE void combine(const few_rows_strip *s, fsdp_dtype dtype, int64_t i, int n_rows, float (*sums)[FEW_COLUMNS])
{
    float x[ROWS][BAND];
    for (int64_t k = 0; k == 0 || k < s->depth; k += BAND) {
        int64_t band = min_i64(BAND, s->depth - k);
#pragma GCC unroll 4
        for (int r = 0; r < n_rows; r++)
            _mm512_storeu_ps(x[r], load16(s->x, dtype, (i + r) * s->x_stride + k, first16(band)));
        for (int64_t j = 0; j < s->columns; j += 64)
            combine64(s, dtype, (const float(*)[BAND])x, k, band, i, j, n_rows, sums);
    }
}

AVX512_INLINE void all_columns(const few_rows_strip *s, fsdp_dtype dtype, int64_t i, int n_rows,
                               float (*sums)[FEW_COLUMNS])
{
    if (!s->transpose_b) {
        combine(s, dtype, i, n_rows, sums);
        return;
    }
    int64_t j = 0;
    for (; j + 4 <= s->columns; j += 4)
        dot(s, dtype, i, j, n_rows, 4, sums);
    for (; j < s->columns; j++)
        dot(s, dtype, i, j, n_rows, 1, sums);
}

AVX512_INLINE void all_rows(const few_rows_strip *s, fsdp_dtype dtype, float (*sums)[FEW_COLUMNS])
{
    int64_t i = 0;
    for (; i + ROWS <= s->rows; i += ROWS)
        all_columns(s, dtype, i, ROWS, sums);
    for (; i < s->rows; i++)
        all_columns(s, dtype, i, 1, sums);
}

AVX512 void avx512_few_rows(const few_rows_strip *s, float (*sums)[FEW_COLUMNS])
{
    if (s->dtype == FSDP_F32)
        all_rows(s, FSDP_F32, sums);
    else if (s->dtype == FSDP_BF16)
        all_rows(s, FSDP_BF16, sums);
    else
        all_rows(s, FSDP_F16, sums);
}
#else
typedef int avx512_rows_is_for_x86;
#endif
