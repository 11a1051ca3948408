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

/* A tile's columns as its loop goes along: from the panel, or copied into it. */
typedef struct columns_at {
    float *panel;
    const char *row;
    int64_t stride, ahead;
    __mmask16 left, right; /* valid ones of a row */
} columns_at;

AVX512_INLINE columns_at first_columns(const gemm_columns *b)
{
    return (columns_at){b->panel, b->rows, b->stride, b->ahead, first16(b->valid), first16(b->valid - 16)};
}

/* Those of the k that is u after where the panel's pointer is. `copy` is a constant where this is inlined. */
AVX512_INLINE void load_columns(columns_at *c, bool copy, int u, __m512 *left, __m512 *right)
{
    float *panel = c->panel + u * TILE_COLUMNS;
    if (!copy) {
        *left = _mm512_loadu_ps(panel);
        *right = _mm512_loadu_ps(panel + 16);
        return;
    }
    *left = _mm512_maskz_loadu_ps(c->left, c->row);
    *right = _mm512_maskz_loadu_ps(c->right, c->row + 64);
    _mm_prefetch(c->row + c->ahead, _MM_HINT_T0);
    _mm_prefetch(c->row + c->ahead + 64, _MM_HINT_T0);
    _mm512_storeu_ps(panel, *left);
    _mm512_storeu_ps(panel + 16, *right);
    c->row += c->stride;
}

/* One of k; `n_rows` and `copy` are constants where this is inlined: a register for every sum. */
AVX512_INLINE void add_packed(int n_rows, const float *a, columns_at *b, bool copy, int u, __m512 sum[TILE_ROWS][2])
{
    __m512 left, right;
    load_columns(b, copy, u, &left, &right);
    a += u * TILE_ROWS;
#pragma GCC unroll 14
    for (int i = 0; i < n_rows; i++)
        add_row(a[i], left, right, sum[i]);
}

/* The same of rows in place, u elements from where the pointers are. */
AVX512_INLINE void add_in_place(const char *const rows[ROW_POINTERS], int64_t stride, columns_at *b, bool copy, int u,
                                __m512 sum[TILE_ROWS][2])
{
    __m512 left, right;
    load_columns(b, copy, u, &left, &right);
#pragma GCC unroll 14
    for (int i = 0; i < TILE_ROWS; i++)
        add_row(((const float *)tile_row(rows, stride, i))[u], left, right, sum[i]);
}

AVX512_INLINE void sum_packed(int n_rows, bool copy, int64_t depth, const float *a, const gemm_columns *columns,
                              gemm_ahead ahead, float *sums, int64_t ld, bool add)
{
    __m512 sum[TILE_ROWS][2];
    tile_load_sums(n_rows, sums, ld, add, sum);
    columns_at b = first_columns(columns);
    int64_t k = 0;
    for (; k + UNROLLED <= depth; k += UNROLLED, a += UNROLLED * TILE_ROWS, b.panel += UNROLLED * TILE_COLUMNS) {
        _mm_prefetch(ahead.a + k * ahead.a_step, _MM_HINT_T1);
        if (!copy)
            _mm_prefetch(ahead.b + k * ahead.b_step, _MM_HINT_T1);
#pragma GCC unroll 4
        for (int u = 0; u < UNROLLED; u++)
            add_packed(n_rows, a, &b, copy, u, sum);
    }
    for (int u = 0; k < depth; k++, u++)
        add_packed(n_rows, a, &b, copy, u, sum);
    tile_store_sums(n_rows, sums, ld, sum);
}

AVX512_INLINE void sum_in_place(bool copy, int64_t depth, const char *a, int64_t stride, const gemm_columns *columns,
                                gemm_ahead ahead, float *sums, int64_t ld, bool add)
{
    __m512 sum[TILE_ROWS][2];
    const char *rows[ROW_POINTERS];
    tile_load_sums(TILE_ROWS, sums, ld, add, sum);
    tile_find_rows(a, stride, rows);
    columns_at b = first_columns(columns);
    tile_fetch next = {ahead.a, ahead.a_rows, depth * (int64_t)sizeof(float), 0};
    int64_t k = 0;
    for (; k + UNROLLED <= depth; k += UNROLLED, b.panel += UNROLLED * TILE_COLUMNS) {
        tile_fetch_line(&next, stride);
        if (!copy)
            _mm_prefetch(ahead.b + k * ahead.b_step, _MM_HINT_T1);
#pragma GCC unroll 4
        for (int u = 0; u < UNROLLED; u++)
            add_in_place(rows, stride, &b, copy, u, sum);
        tile_advance_rows(rows, UNROLLED * sizeof(float));
    }
    for (int u = 0; k < depth; k++, u++)
        add_in_place(rows, stride, &b, copy, u, sum);
    tile_store_sums(TILE_ROWS, sums, ld, sum);
}

/* A loop of its own for every height, place of op(a) and `copy`. */
AVX512_INLINE void sum_tile(bool copy, int64_t depth, const void *a, int64_t a_stride, const gemm_columns *b,
                            const gemm_ahead *ahead, float *sums, int64_t ld, int rows, bool add)
{
    if (a_stride)
        sum_in_place(copy, depth, a, a_stride, b, *ahead, sums, ld, add);
    else if (rows > 8)
        sum_packed(TILE_ROWS, copy, depth, a, b, *ahead, sums, ld, add);
    else if (rows > 4)
        sum_packed(8, copy, depth, a, b, *ahead, sums, ld, add);
    else
        sum_packed(4, copy, depth, a, b, *ahead, sums, ld, add);
}

AVX512 static void tile(int64_t depth, const void *a, int64_t a_stride, const gemm_columns *b, const gemm_ahead *ahead,
                        float *sums, int64_t ld, int rows, bool add)
{
    if (b->rows)
        sum_tile(true, depth, a, a_stride, b, ahead, sums, ld, rows, add);
    else
        sum_tile(false, depth, a, a_stride, b, ahead, sums, ld, rows, add);
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
    .copies_columns = true,
    .fetch_step = UNROLLED,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .store = avx512_store,
    .few_rows = avx512_few_rows,
};
#else
typedef int avx512_fp32_is_for_x86;
#endif
