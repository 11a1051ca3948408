/* The product kernel in plain C, for processors without AVX-512 and as the reference the probe checks others against.
 * Everything is widened to fp32 while it is packed. */
#include "device/cpu/gemm/kernel.h"

#include "device/cpu/gemm/convert.h"

enum { TILE_ROWS = 4, TILE_COLUMNS = 8 };

/* Panel layout: [k][width]. */
static void pack(const panel_source *s, float *panel, int width)
{
    for (int64_t k = 0; k < s->depth; k++) {
        float *to = panel + k * width;
        int i = 0;
        for (; i < s->count; i++)
            to[i] = convert_load(s->p, s->dtype, i * s->stride_i + k * s->stride_k);
        for (; i < width; i++)
            to[i] = 0.0f;
    }
}

static void pack_a(const panel_source *source, void *panel)
{
    pack(source, panel, TILE_ROWS);
}

static void pack_b(const panel_source *source, void *panel)
{
    pack(source, panel, TILE_COLUMNS);
}

static void tile(int64_t depth, const void *a, int64_t a_stride, const gemm_columns *b, const gemm_ahead *ahead,
                 float *sums, int64_t ld, int rows, bool add)
{
    (void)rows, (void)ahead, (void)a_stride;
    const float *row_values = a, *column_values = b->panel;
    float sum[TILE_ROWS][TILE_COLUMNS] = {{0}};
    if (add)
        for (int i = 0; i < TILE_ROWS; i++)
            for (int j = 0; j < TILE_COLUMNS; j++)
                sum[i][j] = sums[i * ld + j];
    for (int64_t k = 0; k < depth; k++, row_values += TILE_ROWS, column_values += TILE_COLUMNS)
        for (int i = 0; i < TILE_ROWS; i++)
            for (int j = 0; j < TILE_COLUMNS; j++)
                sum[i][j] += row_values[i] * column_values[j];
    for (int i = 0; i < TILE_ROWS; i++)
        for (int j = 0; j < TILE_COLUMNS; j++)
            sums[i * ld + j] = sum[i][j];
}

static void store(const result_row *r, int64_t n)
{
    for (int64_t j = 0; j < n; j++) {
        float value = r->alpha * r->sum[j];
        if (r->beta != 0.0f)
            value += r->beta * convert_load(r->c, r->c_dtype, j);
        if (r->bias)
            value += convert_load(r->bias, r->bias_dtype, j);
        convert_store(r->d, r->d_dtype, j, value);
    }
}

static void few_rows(const few_rows_strip *s, float (*sums)[FEW_COLUMNS])
{
    int64_t along_k = s->transpose_b ? 1 : s->ldb, along_n = s->transpose_b ? s->ldb : 1;
    for (int64_t i = 0; i < s->rows; i++)
        for (int64_t j = 0; j < s->columns; j++) {
            float sum = 0.0f;
            for (int64_t k = 0; k < s->depth; k++)
                sum += convert_load(s->x, s->dtype, i * s->x_stride + k) *
                       convert_load(s->b, s->dtype, j * along_n + k * along_k);
            sums[i][j] = sum;
        }
}

const gemm_kernel gemm_portable = {
    .name = "portable C",
    .tile_rows = TILE_ROWS,
    .tile_columns = TILE_COLUMNS,
    .k_unit = 1,
    .k_step = 384,
    .block_rows = 128,
    .block_columns = 256,
    .element_bytes = sizeof(float),
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .store = store,
    .few_rows = few_rows,
};
