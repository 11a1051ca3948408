/* Operands of matrix products in 8 bits: the largest magnitude, then rounding, in both orders of storage. On CPUs this
 * serves tests and trials of a recipe: products run on the values these bits stand for, and are no faster. */
#include "device/cpu/simd/span.h"

#include "device/fp8_scale.h"

#define TILE 64 /* rows and columns rounded at a time, so that the transpose stays in cache */

static void cast_tile(const fp8_cast_args *a, const float8_format *format, float factor, int64_t row, int64_t column)
{
    int64_t rows = min_i64(TILE, a->rows - row), columns = min_i64(TILE, a->columns - column);
    uint8_t *q = a->q.p, *qt = a->qt.p;
    float scratch[SPAN];
    for (int64_t i = row; i < row + rows; i++) {
        const float *x = span_read(a->x, i * a->columns + column, columns, scratch);
        for (int64_t j = 0; j < columns; j++) {
            uint8_t code = float_bits_to_f8(x[j] * factor, format);
            if (q)
                q[i * a->columns + column + j] = code;
            if (qt)
                qt[(column + j) * a->rows + i] = code;
        }
    }
}

/* Codes as they are, transposed. */
static void turn_rows(const void *context, int64_t row)
{
    const fp8_cast_args *a = context;
    const uint8_t *x = a->x.p;
    uint8_t *qt = a->qt.p;
    int64_t end = min_i64(row + TILE, a->rows);
    for (int64_t column = 0; column < a->columns; column += TILE)
        for (int64_t i = row; i < end; i++)
            for (int64_t j = column; j < min_i64(column + TILE, a->columns); j++)
                qt[j * a->rows + i] = x[i * a->columns + j];
}

typedef struct cast_work {
    const fp8_cast_args *args;
    const float8_format *format;
    float factor;
} cast_work;

static void cast_rows(const void *context, int64_t row)
{
    const cast_work *w = context;
    for (int64_t column = 0; column < w->args->columns; column += TILE)
        cast_tile(w->args, w->format, w->factor, row, column);
}

SIMD_KERNEL(fp8_cast, fp8_cast_args)
{
    fsdp_dtype type = a->q.p ? a->q.dtype : a->qt.dtype;
    const float8_format *format = type == FSDP_E5M2 ? &float8_e5m2 : &float8_e4m3;
    if (a->qt.p && a->x.dtype == a->qt.dtype) {
        parallel_for(cpu_threads(s), a->rows, TILE, turn_rows, a);
        return FSDP_OK;
    }
    if (a->magnitude)
        a->scale[1] = *a->magnitude;
    else
        span_raise_largest(a->x, a->rows * a->columns, a->scale + 1);
    if (!a->q.p && !a->qt.p)
        return FSDP_OK;
    cast_work work = {a, format, fp8_factor(a->scale[1], format->max)};
    a->scale[0] = fp8_scale(a->scale[1], format->max);
    parallel_for(cpu_threads(s), a->rows, TILE, cast_rows, &work);
    return FSDP_OK;
}

SIMD_KERNEL(fp8_count, fp8_count_args)
{
    const float8_format *format = a->q.dtype == FSDP_E5M2 ? &float8_e5m2 : &float8_e4m3;
    const uint8_t *q = a->q.p;
    float limit = *a->scale * format->max * FP8_BEYOND, scratch[SPAN];
    (void)s;
    for (int64_t first = 0; first < a->n; first += SPAN) {
        int64_t n = min_i64(SPAN, a->n - first);
        const float *x = span_read(a->x, first, n, scratch);
        uint64_t flushed = 0, saturated = 0;
        for (int64_t i = 0; i < n; i++) {
            flushed += x[i] != 0.0f && (q[first + i] & 0x7fu) == 0;
            saturated += fabsf(x[i]) > limit;
        }
        a->counts[0] += flushed;
        a->counts[1] += saturated;
    }
    return FSDP_OK;
}
