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

typedef struct drawn {
    orthogonal_item item;
    uint16_t *x, *out;
} drawn;

/* Normal numbers of some size, in the first `fill` of the columns; `decay`: row i has them times (i + 1)^-decay. */
static drawn draw_one_of_many(uint64_t seed, int64_t rows, int64_t columns, double size, double fill, double decay)
{
    int64_t n = rows * columns;
    drawn d = {.x = calloc((size_t)n, sizeof *d.x), .out = calloc((size_t)n, sizeof *d.out)};
    float *numbers = calloc((size_t)n, sizeof *numbers);
    assert_true(d.x && d.out && numbers);
    rng_fill_normal(rng_key_make(seed * 1000000 + (uint64_t)(rows * 1000 + columns)), 0, n, 0, 1, numbers);
    for (int64_t i = 0; i < n; i++)
        d.x[i] = to_bf16((double)numbers[i] * size * (i % columns < fill * (double)columns) *
                         pow((double)(i / columns + 1), -decay));
    free(numbers);
    memset(d.out, 0xff, (size_t)n * sizeof *d.out);
    d.item = (orthogonal_item){.rows = rows, .columns = columns, .x = d.x, .out = d.out};
    return d;
}

static drawn draw(int64_t rows, int64_t columns, double size, double fill, double decay)
{
    return draw_one_of_many(0, rows, columns, size, fill, decay);
}

static void drawn_free(drawn *d)
{
    free(d->x);
    free(d->out);
}

static void orthogonalize_group(machine *m, const orthogonal_item *items, int n)
{
    size_t bytes = orthogonal_workspace(m->dev, items, n);
    void *workspace = aligned_alloc(256, (bytes + 255) / 256 * 256);
    assert_non_null(workspace);
    memset(workspace, 0xff, bytes);
    assert_int_equal(orthogonalize(m->dev, m->s, items, n, workspace), FSDP_OK);
    free(workspace);
}

/* |got - want| / |want| */
static double error_of(const drawn *d)
{
    int64_t n = d->item.rows * d->item.columns;
    double *want = doubles(n), difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++)
        want[i] = from_bf16(d->x[i]);
    reference(d->item.rows, d->item.columns, want);
    for (int64_t i = 0; i < n; i++) {
        difference += pow(from_bf16(d->out[i]) - want[i], 2);
        norm += want[i] * want[i];
    }
    free(want);
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

static double run(machine *m, drawn d)
{
    orthogonalize_group(m, &d.item, 1);
    double error = error_of(&d);
    drawn_free(&d);
    return error;
}

static void follows_the_polynomial_on_wide_and_tall_matrices_of_any_size(void **state)
{
    const int64_t shapes[][2] = {{1, 1},   {1, 9},   {9, 1},   {5, 5},   {16, 16},  {24, 40},
                                 {40, 24}, {17, 63}, {63, 17}, {96, 96}, {70, 150}, {200, 130}};
    const double sizes[] = {1, 1e-4, 1e6};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int k = 0; k < 3; k++) {
            double error = run(*state, draw(shapes[i][0], shapes[i][1], sizes[k], 1, 0));
            if (!(error < 0.03))
                fail_msg("%lld x %lld, entries of %g: off by %g", (long long)shapes[i][0], (long long)shapes[i][1],
                         sizes[k], error);
        }
    }
}

/* A tiny matrix may be nearly singular, and then bf16 is off by 0.1, in PyTorch's form of the iteration too. So what
 * is promised is the mean: 0.013 to 0.016 here, 0.016 to 0.019 in PyTorch's form, 0.022 to 0.025 with legs of two
 * steps. */
static void the_smallest_matrices_are_as_exact_as_others(void **state)
{
    enum { DRAWS = 100 };
    for (int64_t n = 2; n <= 6; n += 2) {
        double mean = 0;
        for (uint64_t seed = 0; seed < DRAWS; seed++)
            mean += run(*state, draw_one_of_many(seed, n, n, 1, 1, 0)) / DRAWS;
        if (!(mean < 0.018))
            fail_msg("%lld x %lld: off by %g in the mean", (long long)n, (long long)n, mean);
    }
}

static void matrices_without_full_rank_are_no_exception(void **state)
{
    double wide = run(*state, draw(24, 40, 1, 0.2, 0)), tall = run(*state, draw(40, 24, 1, 0.3, 0));
    if (!(wide < 0.05 && tall < 0.05))
        fail_msg("off by %g and %g", wide, tall);
    assert_true(run(*state, draw(24, 40, 0, 1, 0)) == 0); /* zeros stay zeros */
}

/* Rounding turns the smallest eigenvalues of A negative; what that does must not grow. */
static void singular_values_far_apart_do_no_harm(void **state)
{
    for (int decay = 1; decay <= 4; decay++) {
        double error = run(*state, draw(96, 200, 1, 1, decay));
        if (!(error < 0.2))
            fail_msg("rows that fall by the power %d: off by %g", decay, error);
    }
}

static void neighbors_change_no_bit(void **state)
{
    const int64_t shapes[ORTHOGONAL_ITEMS][2] = {{24, 40}, {7, 7}, {130, 20}, {40, 24},
                                                 {64, 64}, {1, 3}, {70, 150}, {9, 2}};
    orthogonal_item items[ORTHOGONAL_ITEMS];
    drawn all[ORTHOGONAL_ITEMS];
    for (int i = 0; i < ORTHOGONAL_ITEMS; i++) {
        all[i] = draw(shapes[i][0], shapes[i][1], 1, 1, 0);
        items[i] = all[i].item;
    }
    orthogonalize_group(*state, items, ORTHOGONAL_ITEMS);
    for (int i = 0; i < ORTHOGONAL_ITEMS; i++) {
        drawn alone = draw(shapes[i][0], shapes[i][1], 1, 1, 0);
        orthogonalize_group(*state, &alone.item, 1);
        assert_memory_equal(alone.out, all[i].out, (size_t)(shapes[i][0] * shapes[i][1]) * sizeof *alone.out);
        drawn_free(&alone);
        drawn_free(&all[i]);
    }
}

static void large_matrices_are_worked_on_in_smaller_groups(void **state)
{
    const orthogonal_item small = {.rows = 64, .columns = 256}, large = {.rows = 8192, .columns = 28672};
    const orthogonal_item items[3] = {small, small, large}, alone[2] = {large, small};
    (void)state;
    assert_int_equal(orthogonal_group(items, 2), 2);
    assert_int_equal(orthogonal_group(items, 3), 2);
    assert_int_equal(orthogonal_group(alone, 2), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_polynomial_on_wide_and_tall_matrices_of_any_size),
        cmocka_unit_test(the_smallest_matrices_are_as_exact_as_others),
        cmocka_unit_test(matrices_without_full_rank_are_no_exception),
        cmocka_unit_test(singular_values_far_apart_do_no_harm),
        cmocka_unit_test(neighbors_change_no_bit),
        cmocka_unit_test(large_matrices_are_worked_on_in_smaller_groups),
    };
    return cmocka_run_group_tests(tests, open_machine, close_machine);
}
