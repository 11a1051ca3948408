/* Products of small matrices in panels, for every kernel that takes bf16: against sums of the rounded numbers in double
 * precision; and panels that are rounded from fp32 against those of numbers rounded before. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/float_bits.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/gemm/panels.h"
#include "device/cpu/gemm/probe.h"
#include "support/draw.h"

#if defined(__x86_64__)

static uint64_t random_state = 1;

static int draw(int n)
{
    return draw_below(&random_state, n);
}

static float draw_float(void)
{
    return (float)draw(1 << 24) * 0x1p-22f - 2.0f;
}

/* One operand: (extent, depth) in fp32, `across` stored by depth, with rows wider than they need be. */
typedef struct matrix {
    int64_t extent, depth, row;
    bool across, halves; /* halves: bf16 */
    float *exact;        /* as stored, fp32 */
    uint16_t *rounded;   /* the same, bf16 */
} matrix;

static matrix matrix_draw(int64_t extent, int64_t depth, bool across, bool halves)
{
    matrix m = {.extent = extent, .depth = depth, .across = across, .halves = halves};
    m.row = (across ? extent : depth) + 3;
    int64_t numel = (across ? depth : extent) * m.row;
    m.exact = malloc((size_t)numel * sizeof *m.exact);
    m.rounded = malloc((size_t)numel * sizeof *m.rounded);
    for (int64_t i = 0; i < numel; i++) {
        m.exact[i] = draw(16) ? draw_float() : 0.0f;
        m.rounded[i] = float_bits_to_bf16(m.exact[i]);
    }
    return m;
}

static void matrix_free(matrix *m)
{
    free(m->exact);
    free(m->rounded);
}

static panel_source matrix_source(const matrix *m, bool halves)
{
    return (panel_source){.p = halves ? (const void *)m->rounded : m->exact,
                          .dtype = halves ? FSDP_BF16 : FSDP_F32,
                          .stride_i = m->across ? 1 : m->row,
                          .stride_k = m->across ? m->row : 1,
                          .count = m->extent,
                          .depth = m->depth};
}

static double matrix_at(const matrix *m, int64_t i, int64_t k)
{
    return (double)float_bits_from_bf16(m->rounded[m->across ? k * m->row + i : i * m->row + k]);
}

static void *matrix_pack(const gemm_kernel *kernel, panel_side side, const matrix *m, bool halves)
{
    size_t bytes = panels_bytes(kernel, side, m->extent, m->depth);
    char *panels = malloc(bytes); /* exactly: a sanitizer sees what is written past it */
    memset(panels, 0xff, bytes);  /* NaN where nothing is written */
    panel_source source = matrix_source(m, halves);
    panels_pack(kernel, side, &source, panels);
    return panels;
}

static void product_is_right(const gemm_kernel *kernel, int64_t m, int64_t n, int64_t depth, bool add)
{
    matrix a = matrix_draw(m, depth, draw(2), draw(2)), b = matrix_draw(n, depth, draw(2), draw(2));
    void *rows = matrix_pack(kernel, PANEL_ROWS, &a, a.halves),
         *columns = matrix_pack(kernel, PANEL_COLUMNS, &b, b.halves);
    int64_t ld = (int64_t)round_up((size_t)n, (size_t)kernel->tile_columns) + 5;
    int64_t numel = (int64_t)round_up((size_t)m, (size_t)kernel->tile_rows) * ld;
    float *sums = malloc((size_t)numel * sizeof *sums), *before = malloc((size_t)numel * sizeof *before);
    for (int64_t i = 0; i < numel; i++)
        sums[i] = before[i] = draw_float();
    if (kernel->enter)
        kernel->enter();
    panels_product(kernel, m, n, depth, rows, columns, sums, ld, add);
    if (kernel->leave)
        kernel->leave();
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double want = add ? (double)before[i * ld + j] : 0.0, size = fabs(want);
            for (int64_t k = 0; k < depth; k++) {
                double term = matrix_at(&a, i, k) * matrix_at(&b, j, k);
                want += term, size += fabs(term);
            }
            double off = fabs((double)sums[i * ld + j] - want);
            if (!(off <= 4e-7 * size + 1e-30))
                fail_msg("%s, %lld x %lld x %lld: (%lld, %lld) is off by %g", kernel->name, (long long)m, (long long)n,
                         (long long)depth, (long long)i, (long long)j, off);
        }
    free(rows), free(columns), free(sums), free(before);
    matrix_free(&a), matrix_free(&b);
}

static void products_are_right(const gemm_kernel *kernel)
{
    static const int64_t sizes[] = {1, 2, 7, 14, 15, 16, 17, 31, 32, 33, 63, 64, 80, 128};
    enum { N_SIZES = sizeof sizes / sizeof sizes[0] };
    for (int i = 0; i < 200; i++)
        product_is_right(kernel, sizes[draw(N_SIZES)], sizes[draw(N_SIZES)], sizes[draw(N_SIZES)], draw(2));
}

static void products_with_avx512_bf16_are_right(void **s)
{
    (void)s;
    if (!cpu_features_get()->avx512_bf16)
        skip();
    products_are_right(&avx512_bf16);
}

static void products_with_amx_are_right(void **s)
{
    (void)s;
    if (gemm_probe_amx() || !cpu_features_get()->avx512_bf16)
        skip();
    products_are_right(&amx_bf16);
}

/* Needs no AMX: its panels are packed with AVX-512. */
static void panels_rounded_while_packed_have_the_bits_of_panels_rounded_before(void **s)
{
    (void)s;
    if (!cpu_features_get()->avx512_bf16)
        skip();
    const gemm_kernel *kernels[] = {&avx512_bf16, &amx_bf16};
    for (int i = 0; i < 400; i++) {
        const gemm_kernel *kernel = kernels[i % 2];
        panel_side side = draw(2) ? PANEL_ROWS : PANEL_COLUMNS;
        matrix m = matrix_draw(1 + draw(140), 1 + draw(140), draw(2), false);
        void *want = matrix_pack(kernel, side, &m, true), *got = matrix_pack(kernel, side, &m, false);
        if (memcmp(want, got, panels_bytes(kernel, side, m.extent, m.depth)) != 0)
            fail_msg("%s, %lld by %lld, side %d, across %d: panels differ", kernel->name, (long long)m.extent,
                     (long long)m.depth, (int)side, m.across);
        free(want), free(got);
        matrix_free(&m);
    }
}

static void infinities_and_nan_stay_what_they_are(void **s)
{
    (void)s;
    if (!cpu_features_get()->avx512_bf16)
        skip();
    matrix m = matrix_draw(40, 70, true, false);
    const float special[] = {INFINITY, -INFINITY, NAN, 3.4e38f, float_bits_to(0x7fffffffu), -0.0f};
    for (int i = 0; i < 6; i++)
        m.exact[(7 * i) * m.row + 5 * i] = special[i];
    uint16_t *panels = matrix_pack(&avx512_bf16, PANEL_COLUMNS, &m, false);
    for (int i = 0; i < 6; i++) {
        int64_t k = 7 * i, column = 5 * i; /* panel layout [k/2][32][2], 70 deep */
        float got = float_bits_from_bf16(panels[column / 32 * 70 * 32 + k / 2 * 64 + column % 32 * 2 + k % 2]);
        float want = float_bits_from_bf16(float_bits_to_bf16(special[i]));
        assert_true(isnan(want) ? isnan(got) : float_bits_of(got) == float_bits_of(want));
    }
    free(panels);
    matrix_free(&m);
}

#endif

int main(void)
{
#if defined(__x86_64__)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_with_avx512_bf16_are_right),
        cmocka_unit_test(products_with_amx_are_right),
        cmocka_unit_test(panels_rounded_while_packed_have_the_bits_of_panels_rounded_before),
        cmocka_unit_test(infinities_and_nan_stay_what_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
#else
    return 0;
#endif
}
