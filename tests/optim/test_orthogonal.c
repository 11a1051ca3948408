/* Newton and Schulz's iteration in bf16 against the same polynomial in double precision. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/float_bits.h"
#include "base/rng.h"
#include "optim/orthogonal.h"

typedef struct machine {
    device *dev;
    stream *s;
} machine;

static int open_machine(void **state)
{
    static machine m;
    assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &m.dev), FSDP_OK);
    assert_int_equal(m.dev->stream_create(m.dev, 0, &m.s), FSDP_OK);
    *state = &m;
    return 0;
}

static int close_machine(void **state)
{
    machine *m = *state;
    m->dev->stream_free(m->s);
    device_close(m->dev);
    return 0;
}

static double from_bf16(uint16_t x)
{
    return (double)float_bits_to((uint32_t)x << 16);
}

static uint16_t to_bf16(double x)
{
    uint32_t bits = float_bits_of((float)x);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double *doubles(int64_t n)
{
    double *x = calloc((size_t)n, sizeof *x);
    assert_non_null(x);
    return x;
}

/* out (m, n) = left (m, k) right (k, n) */
static void multiply(int64_t m, int64_t n, int64_t k, const double *left, const double *right, double *out)
{
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += left[i * k + l] * right[l * n + j];
            out[i * n + j] = sum;
        }
    }
}

/* X <- 3.4445 X - 4.7750 (X X^T) X + 2.0315 (X X^T)^2 X, five times, from X / |X|; always by the left. */
static void reference(int64_t rows, int64_t columns, double *x)
{
    double *xt = doubles(rows * columns), *gram = doubles(rows * rows), *first = doubles(rows * columns),
           *second = doubles(rows * columns), norm = 0;
    for (int64_t i = 0; i < rows * columns; i++)
        norm += x[i] * x[i];
    norm = fmax(sqrt(norm), 1e-7);
    for (int64_t i = 0; i < rows * columns; i++)
        x[i] /= norm;
    for (int step = 0; step < 5; step++) {
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                xt[j * rows + i] = x[i * columns + j];
        multiply(rows, rows, columns, x, xt, gram);
        multiply(rows, columns, rows, gram, x, first);
        multiply(rows, columns, rows, gram, first, second);
        for (int64_t i = 0; i < rows * columns; i++)
            x[i] = 3.4445 * x[i] - 4.7750 * first[i] + 2.0315 * second[i];
    }
    free(xt);
    free(gram);
    free(first);
    free(second);
}

/* |got - want| / |want| */
static double run(machine *m, int64_t rows, int64_t columns, double size, double fill)
{
    int64_t n = rows * columns;
    uint16_t *x = calloc((size_t)n, sizeof *x), *out = calloc((size_t)n, sizeof *out);
    float *numbers = calloc((size_t)n, sizeof *numbers);
    double *want = doubles(n), difference = 0, norm = 0;
    size_t bytes = orthogonal_workspace(m->dev, rows, columns);
    void *workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
    rng_fill_normal(rng_key_make((uint64_t)(rows * 1000 + columns)), 0, n, 0, 1, numbers);
    for (int64_t i = 0; i < n; i++) {
        x[i] = to_bf16((double)numbers[i] * size * (i % columns < fill * (double)columns));
        want[i] = from_bf16(x[i]);
    }
    reference(rows, columns, want);
    memset(out, 0xff, (size_t)n * sizeof *out);
    assert_int_equal(orthogonalize(m->dev, m->s, rows, columns, x, out, workspace), FSDP_OK);
    for (int64_t i = 0; i < n; i++) {
        difference += pow(from_bf16(out[i]) - want[i], 2);
        norm += want[i] * want[i];
    }
    free(x);
    free(out);
    free(numbers);
    free(want);
    free(workspace);
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

static void follows_the_polynomial_on_wide_and_tall_matrices_of_any_size(void **state)
{
    const int64_t shapes[][2] = {{1, 1},   {1, 9},   {9, 1},   {5, 5},   {16, 16},
                                 {24, 40}, {40, 24}, {17, 63}, {63, 17}, {96, 96}};
    const double sizes[] = {1, 1e-4, 1e6};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int k = 0; k < 3; k++) {
            double error = run(*state, shapes[i][0], shapes[i][1], sizes[k], 1);
            if (!(error < 0.03))
                fail_msg("%lld x %lld, entries of %g: off by %g", (long long)shapes[i][0], (long long)shapes[i][1],
                         sizes[k], error);
        }
    }
}

static void matrices_without_full_rank_are_no_exception(void **state)
{
    assert_true(run(*state, 24, 40, 1, 0.2) < 0.05);
    assert_true(run(*state, 40, 24, 1, 0.3) < 0.05);
    assert_true(run(*state, 24, 40, 0, 1) == 0); /* zeros stay zeros */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_polynomial_on_wide_and_tall_matrices_of_any_size),
        cmocka_unit_test(matrices_without_full_rank_are_no_exception),
    };
    return cmocka_run_group_tests(tests, open_machine, close_machine);
}
