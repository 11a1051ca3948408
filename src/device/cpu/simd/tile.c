/* The tile product: blocks of rows times a few vectors, held in registers while k runs. */
#include "device/cpu/simd/tile.h"

#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define BLOCK_ROWS 8 /* 16 sums of 32 registers: enough to hide the latency, and tiles of 64 divide evenly */
#elif defined(__AVX2__)
#define BLOCK_ROWS 6 /* 12 sums of 16 registers */
#else
#define BLOCK_ROWS 4
#endif
#define BLOCK_VECS 2

typedef float vec __attribute__((vector_size(VEC * sizeof(float))));

#define INLINE static inline __attribute__((always_inline))

INLINE vec vec_load(const float *from)
{
    vec v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void vec_store(float *to, vec v)
{
    memcpy(to, &v, sizeof v);
}

INLINE vec vec_fma(float a, vec b, vec c)
{
#if defined(__AVX512F__)
    return (vec)_mm512_fmadd_ps(_mm512_set1_ps(a), (__m512)b, (__m512)c);
#elif defined(__FMA__)
    return (vec)_mm256_fmadd_ps(_mm256_set1_ps(a), (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* rows and vecs are constants where this is inlined, so the sums live in registers. */
INLINE void block_product(const int rows, const int vecs, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                          const float *b, int64_t b_row, float *c, int64_t c_row, bool add)
{
    vec sum[BLOCK_ROWS][BLOCK_VECS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < vecs; j++)
            sum[i][j] = add ? vec_load(c + i * c_row + j * VEC) : (vec){0};
    }
    for (int64_t p = 0; p < k; p++) {
        vec right[BLOCK_VECS];
#pragma GCC unroll 2
        for (int j = 0; j < vecs; j++)
            right[j] = vec_load(b + p * b_row + j * VEC);
#pragma GCC unroll 8
        for (int i = 0; i < rows; i++) {
            float left = a[i * a_row + p * a_step];
#pragma GCC unroll 2
            for (int j = 0; j < vecs; j++)
                sum[i][j] = vec_fma(left, right[j], sum[i][j]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < vecs; j++)
            vec_store(c + i * c_row + j * VEC, sum[i][j]);
    }
}

/* The rows left over when BLOCK_ROWS does not divide m. */
INLINE void remaining_rows(int64_t rows, const int vecs, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                           const float *b, int64_t b_row, float *c, int64_t c_row, bool add)
{
    if (rows >= 4) {
        block_product(4, vecs, k, a, a_row, a_step, b, b_row, c, c_row, add);
        a += 4 * a_row, c += 4 * c_row, rows -= 4;
    }
    if (rows >= 2) {
        block_product(2, vecs, k, a, a_row, a_step, b, b_row, c, c_row, add);
        a += 2 * a_row, c += 2 * c_row, rows -= 2;
    }
    if (rows)
        block_product(1, vecs, k, a, a_row, a_step, b, b_row, c, c_row, add);
}

/* All rows for `vecs` vectors of columns: they are read from the first-level cache for every block of rows. */
INLINE void column_panel(const int vecs, int64_t m, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                         const float *b, int64_t b_row, float *c, int64_t c_row, bool add)
{
    int64_t i = 0;
    for (; i + BLOCK_ROWS <= m; i += BLOCK_ROWS)
        block_product(BLOCK_ROWS, vecs, k, a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, add);
    if (i < m)
        remaining_rows(m - i, vecs, k, a + i * a_row, a_row, a_step, b, b_row, c + i * c_row, c_row, add);
}

/* Constant strides of 1 leave the inner loops with one running pointer for a. */
static void gemm_rows(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b, int64_t b_row,
                      float *c, int64_t c_row, bool add)
{
    int64_t j = 0;
    for (; j + BLOCK_VECS * VEC <= n; j += BLOCK_VECS * VEC)
        column_panel(BLOCK_VECS, m, k, a, a_row, 1, b + j, b_row, c + j, c_row, add);
    for (; j < n; j += VEC)
        column_panel(1, m, k, a, a_row, 1, b + j, b_row, c + j, c_row, add);
}

static void product_columns(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_step, const float *b,
                            int64_t b_row, float *c, int64_t c_row, bool add)
{
    int64_t j = 0;
    for (; j + BLOCK_VECS * VEC <= n; j += BLOCK_VECS * VEC)
        column_panel(BLOCK_VECS, m, k, a, 1, a_step, b + j, b_row, c + j, c_row, add);
    for (; j < n; j += VEC)
        column_panel(1, m, k, a, 1, a_step, b + j, b_row, c + j, c_row, add);
}

void SIMD_NAME(tile_product)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                             const float *b, int64_t b_row, float *c, int64_t c_row, bool add)
{
    if (a_step == 1)
        gemm_rows(m, n, k, a, a_row, b, b_row, c, c_row, add);
    else
        product_columns(m, n, k, a, a_step, b, b_row, c, c_row, add);
}
