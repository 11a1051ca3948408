/* The register tile that the AVX-512 kernels share: 14 rows by 32 columns of fp32 sums in 28 of the 32 registers. What
 * is multiplied is theirs: 32 bits of op(a), an fp32 number or two of bf16, with as many columns of op(b). */
#ifndef DEVICE_CPU_GEMM_AVX512_TILE_H
#define DEVICE_CPU_GEMM_AVX512_TILE_H

#include "device/cpu/gemm/avx512.h"

enum { TILE_ROWS = 14, TILE_COLUMNS = 32, ROW_POINTERS = 5 };

/* `n_rows` is a constant where these are inlined: a register for every sum. */
AVX512_INLINE void tile_load_sums(int n_rows, const float *sums, int64_t ld, bool add, __m512 sum[TILE_ROWS][2])
{
#pragma GCC unroll 14
    for (int i = 0; i < n_rows; i++) {
        sum[i][0] = add ? _mm512_loadu_ps(sums + i * ld) : _mm512_setzero_ps();
        sum[i][1] = add ? _mm512_loadu_ps(sums + i * ld + 16) : _mm512_setzero_ps();
    }
}

AVX512_INLINE void tile_store_sums(int n_rows, float *sums, int64_t ld, __m512 sum[TILE_ROWS][2])
{
#pragma GCC unroll 14
    for (int i = 0; i < n_rows; i++) {
        _mm512_storeu_ps(sums + i * ld, sum[i][0]);
        _mm512_storeu_ps(sums + i * ld + 16, sum[i][1]);
    }
}

/* Rows where they lie, `stride` bytes apart: row i begins at tile_row(rows, stride, i). Three rows share a pointer: the
 * processor adds one or two strides for nothing, and fourteen pointers would not fit the registers. */
AVX512_INLINE void tile_find_rows(const char *a, int64_t stride, const char *rows[ROW_POINTERS])
{
#pragma GCC unroll 5
    for (int i = 0; i < ROW_POINTERS; i++)
        rows[i] = a + 3 * i * stride;
}

AVX512_INLINE const char *tile_row(const char *const rows[ROW_POINTERS], int64_t stride, int i)
{
    return rows[i / 3] + i % 3 * stride;
}

AVX512_INLINE void tile_advance_rows(const char *rows[ROW_POINTERS], int64_t bytes)
{
#pragma GCC unroll 5
    for (int i = 0; i < ROW_POINTERS; i++)
        rows[i] += bytes;
}

/* Rows to come, fetched a line at a time. */
typedef struct tile_fetch {
    const char *row;
    int64_t rows, row_bytes, at;
} tile_fetch;

AVX512_INLINE void tile_fetch_line(tile_fetch *f, int64_t stride)
{
    if (f->rows == 0)
        return;
    _mm_prefetch(f->row + f->at, _MM_HINT_T1);
    f->at += 64;
    if (f->at >= f->row_bytes)
        f->at = 0, f->row += stride, f->rows--;
}

#endif
