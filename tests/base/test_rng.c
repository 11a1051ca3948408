/* Random numbers: the generator against published vectors, streams independent of how they are cut and of threads,
 * the right distribution, and the same bits on every machine. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"

static void philox_gives_the_published_vectors(void **state)
{
    (void)state;
    static const struct {
        uint64_t hi, lo;
        rng_key key;
        uint32_t expected[4];
    } known[] = {
        {0, 0, {{0, 0}}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {~0ull, ~0ull, {{~0u, ~0u}}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x0370734413198a2eull,
         0x85a308d3243f6a88ull,
         {{0xa4093822, 0x299f31d0}},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        rng_block block = rng_philox(known[i].key, known[i].hi, known[i].lo);
        assert_memory_equal(block.v, known[i].expected, sizeof block.v);
        for (uint64_t w = 0; w < 4 && known[i].lo < 1; w++)
            assert_int_equal(rng_word(known[i].key, known[i].hi, w), known[i].expected[w]);
    }
}

static void any_split_gives_the_same_bits(void **state)
{
    (void)state;
    enum { N = 5000 };
    rng_key key = rng_key_make(42);
    static float whole[N], parts[N];
    rng_fill_normal(key, 1001, N, 0.0f, 0.02f, whole);
    for (int64_t piece = 1; piece < 200; piece = piece * 2 + 1) {
        memset(parts, 0, sizeof parts);
        for (int64_t at = 0; at < N; at += piece)
            rng_fill_normal(key, 1001 + (uint64_t)at, piece < N - at ? piece : N - at, 0.0f, 0.02f, parts + at);
        assert_memory_equal(parts, whole, sizeof whole);
    }
    rng_fill_uniform(key, 3, N, -1.0f, 1.0f, whole);
    for (int64_t at = 0; at < N; at += 7)
        rng_fill_uniform(key, 3 + (uint64_t)at, 7 < N - at ? 7 : N - at, -1.0f, 1.0f, parts + at);
    assert_memory_equal(parts, whole, sizeof whole);
    float untouched = 5.0f;
    rng_fill_normal(key, 0, 0, 0.0f, 1.0f, &untouched);
    assert_true(untouched == 5.0f);
}

static void thread_counts_do_not_change_bits(void **state)
{
    (void)state;
    enum { N = 200001 };
    float *one = malloc(N * sizeof *one), *many = malloc(N * sizeof *many);
    int before = omp_get_max_threads();
    omp_set_num_threads(1);
    rng_fill_normal(rng_key_make(7), 5, N, 0.0f, 1.0f, one);
    for (int threads = 2; threads <= 5; threads++) {
        omp_set_num_threads(threads);
        rng_fill_normal(rng_key_make(7), 5, N, 0.0f, 1.0f, many);
        assert_memory_equal(many, one, N * sizeof *one);
    }
    omp_set_num_threads(before);
    free(many);
    free(one);
}

/* Pins the stream itself: initial weights must be the same with the next compiler and on the next machine. */
static void streams_are_the_same_on_every_machine(void **state)
{
    (void)state;
    enum { N = 1 << 16 };
    static float values[N];
    rng_fill_normal(rng_key_fold_text(rng_key_make(1234), "layers.0.weight"), 0, N, 0.0f, 1.0f, values);
    uint64_t normal = hash_bytes(HASH_START, values, sizeof values);
    rng_fill_uniform(rng_key_fold(rng_key_make(1234), 9), 0, N, -0.1f, 0.3f, values);
    uint64_t uniform = hash_bytes(HASH_START, values, sizeof values);
    assert_true(normal == 0x7E64DA71D18DF0D5ull);
    assert_true(uniform == 0x6B31E9D41E331ABEull);
}

/* Phi(x) of the k-th smallest of n numbers is k/n within the Kolmogorov-Smirnov bound. */
static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void normal_numbers_are_normal(void **state)
{
    (void)state;
    enum { N = 400000 };
    float *values = malloc(N * sizeof *values);
    rng_fill_normal(rng_key_make(99), 0, N, 0.0f, 1.0f, values);
    double sum = 0, squares = 0, neighbours = 0, worst = 0;
    for (int i = 0; i < N; i++) {
        sum += values[i];
        squares += (double)values[i] * values[i];
        neighbours += i ? (double)values[i] * values[i - 1] : 0;
    }
    assert_true(fabs(sum / N) < 4 / sqrt(N));
    assert_true(fabs(squares / N - 1) < 4 * sqrt(2.0 / N));
    assert_true(fabs(neighbours / N) < 4 / sqrt(N));
    qsort(values, N, sizeof *values, ascending);
    for (int i = 0; i < N; i++)
        worst = fmax(worst, fabs(0.5 * erfc(-values[i] / sqrt(2)) - (i + 0.5) / N));
    assert_true(worst < 1.95 / sqrt(N));
    assert_true(values[0] < -4 && values[0] > -7 && values[N - 1] > 4 && values[N - 1] < 7);
    free(values);
}

static void each_normal_number_is_the_quantile_of_its_word(void **state)
{
    (void)state;
    enum { N = 100000 };
    static float values[N];
    rng_key key = rng_key_make(5);
    rng_fill_normal(key, 0, N, 0.0f, 1.0f, values);
    for (uint64_t i = 0; i < N; i++) {
        double p = (rng_word(key, 0, i) + 0.5) / 4294967296.0, z = values[i];
        double back = 0.5 * erfc(-z / sqrt(2)), density = exp(-0.5 * z * z) / sqrt(2 * M_PI);
        assert_true(fabs(back - p) < 3e-7 * fabs(z) * density + 1e-15);
    }
}

static void mean_and_deviation_scale_the_numbers(void **state)
{
    (void)state;
    float plain[33], scaled[33];
    rng_fill_normal(rng_key_make(1), 17, 33, 0.0f, 1.0f, plain);
    rng_fill_normal(rng_key_make(1), 17, 33, 3.0f, 0.5f, scaled);
    for (int i = 0; i < 33; i++)
        assert_true(fabsf(scaled[i] - (3.0f + 0.5f * plain[i])) < 1e-6f);
}

static void uniform_numbers_fill_the_half_open_interval(void **state)
{
    (void)state;
    enum { N = 1 << 20 };
    float *values = malloc(N * sizeof *values);
    /* Next to 1 there are so few floats that rounding would reach the upper end. */
    rng_fill_uniform(rng_key_make(3), 0, N, 1.0f, 1.0f + 8 * 0x1p-23f, values);
    for (int i = 0; i < N; i++)
        assert_true(values[i] >= 1.0f && values[i] < 1.0f + 8 * 0x1p-23f);
    rng_fill_uniform(rng_key_make(3), 0, N, -2.0f, 6.0f, values);
    double sum = 0;
    float least = 6, most = -2;
    for (int i = 0; i < N; i++) {
        sum += values[i];
        least = fminf(least, values[i]);
        most = fmaxf(most, values[i]);
    }
    assert_true(fabs(sum / N - 2) < 4 * 8 / sqrt(12.0 * N));
    assert_true(least >= -2.0f && least < -1.999f && most < 6.0f && most > 5.999f);
    assert_true(rng_to_uniform(0) == 0.0f && rng_to_uniform(~0u) < 1.0f);
    free(values);
}

static void keys_differ_by_every_number_folded_in(void **state)
{
    (void)state;
    enum { N = 2000 };
    uint64_t seen[N];
    rng_key root = rng_key_make(0);
    for (uint64_t i = 0; i < N; i++) {
        rng_key key = i < N / 2 ? rng_key_fold(root, i) : rng_key_make(i);
        seen[i] = (uint64_t)key.k[0] << 32 | key.k[1];
        for (uint64_t j = 0; j < i; j++)
            assert_true(seen[i] != seen[j]);
    }
    rng_key a = rng_key_fold(rng_key_fold(root, 1), 2), b = rng_key_fold(rng_key_fold(root, 2), 1);
    assert_memory_not_equal(&a, &b, sizeof a);
    a = rng_key_fold_text(root, "wq"), b = rng_key_fold_text(root, "wk");
    assert_memory_not_equal(&a, &b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_vectors),
        cmocka_unit_test(any_split_gives_the_same_bits),
        cmocka_unit_test(thread_counts_do_not_change_bits),
        cmocka_unit_test(streams_are_the_same_on_every_machine),
        cmocka_unit_test(normal_numbers_are_normal),
        cmocka_unit_test(each_normal_number_is_the_quantile_of_its_word),
        cmocka_unit_test(mean_and_deviation_scale_the_numbers),
        cmocka_unit_test(uniform_numbers_fill_the_half_open_interval),
        cmocka_unit_test(keys_differ_by_every_number_folded_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
