/* Rounding at random is unbiased: over all random numbers the mean is the number itself, exactly; and the random
 * numbers of a step are those of its number and the element, whatever the range. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "base/float_bits.h"
#include "device/stochastic.h"

static uint32_t word_at(rng_key key, uint64_t step, uint64_t element)
{
    return stochastic_word(stochastic_numbers_at(key, step, element), (uint32_t)(element % STOCHASTIC_BLOCK));
}

static double rounded(uint32_t bits, uint32_t random)
{
    uint32_t half = stochastic_bf16(bits, random);
    assert_int_equal(half >> 16, 0);
    return (double)float_bits_from_bf16((uint16_t)half);
}

/* The sum of 65536 numbers of 8 bits is exact in double precision. */
static void assert_unbiased(uint32_t bits)
{
    double sum = 0, want = (double)float_bits_to(bits);
    for (uint32_t random = 0; random < 65536; random++)
        sum += rounded(bits, random);
    if (sum / 65536 != want)
        fail_msg("%08x: the mean of all roundings of %.17g is %.17g", bits, want, sum / 65536);
}

static void the_mean_over_all_random_numbers_is_the_number(void **state)
{
    (void)state;
    const uint32_t edges[] = {0,           1,           0x0000ffffu, 0x00010000u, 0x007fffffu, 0x00800001u,
                              0x3f800000u, 0x3f800001u, 0x3f808000u, 0x3fffffffu, 0x7f7effffu, 0x7f7f0000u};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        assert_unbiased(edges[i]);
        assert_unbiased(edges[i] | 0x80000000u);
    }
    for (uint32_t i = 0; i < 200; i++)
        assert_unbiased((i * 2654435761u) % 0x7f7f0000u | i << 31);
}

static void infinities_stay_and_a_nan_stays_one(void **state)
{
    (void)state;
    for (uint32_t random = 0; random < 65536; random += 17) {
        assert_true(isinf(rounded(0x7f800000u, random)) && rounded(0x7f800000u, random) > 0);
        assert_true(isinf(rounded(0xff800000u, random)) && rounded(0xff800000u, random) < 0);
        assert_true(isnan(rounded(0x7f800001u, random)) && isnan(rounded(0x7fffffffu, random)));
        assert_true(isnan(rounded(0xffffffffu, random)) && isnan(rounded(0x7fc00000u, random)));
    }
}

/* What is too small to move a bf16 number to the nearest still arrives: 2000 steps of a thousandth of a gap. */
static void small_changes_add_up(void **state)
{
    (void)state;
    enum { ELEMENTS = 256, STEPS = 2000 };
    const double gap = 0x1p-7, change = gap / 1000;
    rng_key key = {{1, 2}};
    double sum = 0;
    for (uint64_t element = 0; element < ELEMENTS; element++) {
        float x = 1, nearest = 1;
        for (uint64_t step = 1; step <= STEPS; step++) {
            uint32_t random = stochastic_bits1(word_at(key, step, element));
            x = float_bits_from_bf16((uint16_t)stochastic_bf16(float_bits_of(x + (float)change), random));
            nearest = float_bits_from_bf16(float_bits_to_bf16(nearest + (float)change));
        }
        assert_true(nearest == 1);
        sum += (double)x - 1;
    }
    double mean = sum / ELEMENTS, want = STEPS * change; /* two gaps; one element deviates by sqrt(2) gaps */
    if (fabs(mean - want) > 5 * sqrt(2.0) * gap / sqrt(ELEMENTS))
        fail_msg("%d steps of a thousandth of a gap moved %g gaps, not %g", STEPS, mean / gap, want / gap);
}

static double centred(uint32_t bits)
{
    return bits / 65536.0 - 0.5;
}

/* The two moments of an element, elements at any small distance or in another block, steps and units are rounded
 * independently: correlations are those of noise. */
static void moments_and_elements_are_rounded_independently(void **state)
{
    (void)state;
    enum { N = 1 << 17, DISTANCES = 10 };
    const uint64_t distances[DISTANCES] = {1, 2, 3, 4, 7, 64, 1024, 32768, 65536, 65537};
    const double deviation = sqrt((double)N) / 12; /* of a sum of N products of two uniform numbers */
    for (uint32_t trial = 0; trial < 4; trial++) {
        rng_key key = {{3 + trial, 4}}, other = {{4 + trial, 4}};
        double both = 0, later = 0, elsewhere = 0, apart[DISTANCES] = {0}, mean[2] = {0, 0};
        for (uint64_t i = 0; i < N; i++) {
            uint32_t word = word_at(key, 5, i);
            double first = centred(stochastic_bits1(word)), second = centred(stochastic_bits2(word));
            mean[0] += first;
            mean[1] += second;
            both += first * second;
            later += first * centred(stochastic_bits1(word_at(key, 6, i)));
            elsewhere += second * centred(stochastic_bits2(word_at(other, 5, i)));
            for (int d = 0; d < DISTANCES; d++)
                apart[d] += first * centred(stochastic_bits1(word_at(key, 5, i + distances[d])));
        }
        assert_true(fabs(mean[0]) < 5 * sqrt(N / 12.0) && fabs(mean[1]) < 5 * sqrt(N / 12.0));
        assert_true(fabs(both) < 5 * deviation && fabs(later) < 5 * deviation && fabs(elsewhere) < 5 * deviation);
        for (int d = 0; d < DISTANCES; d++)
            if (fabs(apart[d]) > 5 * deviation)
                fail_msg("elements %d apart are correlated: %g deviations", (int)distances[d], apart[d] / deviation);
    }
}

/* Each of the 16 bits, and each value of the highest eight, comes as often as chance has it. */
static void every_value_comes_equally_often(void **state)
{
    (void)state;
    enum { N = 1 << 18, VALUES = 256 };
    rng_key key = {{5, 6}};
    for (int half = 0; half < 2; half++) {
        int counts[VALUES] = {0}, ones[16] = {0};
        double squares = 0, want = (double)N / VALUES;
        for (uint64_t i = 0; i < N; i++) {
            uint32_t word = word_at(key, 1, i), bits = half ? stochastic_bits2(word) : stochastic_bits1(word);
            counts[bits >> 8]++;
            for (int b = 0; b < 16; b++)
                ones[b] += bits >> b & 1;
        }
        for (int v = 0; v < VALUES; v++)
            squares += (counts[v] - want) * (counts[v] - want) / want;
        /* chi-squared with 255 degrees: five deviations of sqrt(510) */
        assert_true(squares > 255 - 5 * sqrt(510) && squares < 255 + 5 * sqrt(510));
        for (int b = 0; b < 16; b++)
            assert_true(fabs(ones[b] - N / 2.0) < 5 * sqrt(N / 4.0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mean_over_all_random_numbers_is_the_number),
        cmocka_unit_test(infinities_stay_and_a_nan_stays_one),
        cmocka_unit_test(small_changes_add_up),
        cmocka_unit_test(moments_and_elements_are_rounded_independently),
        cmocka_unit_test(every_value_comes_equally_often),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
