/* Numbers as halves: every NaN stays a NaN in both forms, every other number has all its bits and the nearest bf16. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "base/float_bits.h"
#include "device/halves.h"

static void every_nan_stays_a_nan(void **state)
{
    (void)state;
    for (uint32_t payload = 1; payload < 0x800000u; payload++) {
        for (uint32_t sign = 0; sign < 2; sign++) {
            uint32_t low, bits = sign << 31 | 0x7f800000u | payload, high = halves_split(bits, &low);
            if (!isnan(float_bits_from_bf16((uint16_t)high)) || high >> 16 ||
                !isnan(float_bits_to(halves_join(high, low))))
                fail_msg("NaN %08x: halves %04x and %04x", bits, high, low);
        }
    }
}

static void assert_halves(uint32_t bits)
{
    uint32_t low, high = halves_split(bits, &low);
    float whole = float_bits_to(bits), half = float_bits_from_bf16((uint16_t)high);
    if (halves_join(high, low) != bits || high >> 16 || low >> 16)
        fail_msg("%08x: halves %04x and %04x join to %08x", bits, high, low, halves_join(high, low));
    /* Half the distance between two bf16 numbers; from the largest on they round to infinity. */
    if (isfinite(half) && !(fabsf(half - whole) <= ldexpf(1, ilogbf(fmaxf(fabsf(whole), 0x1p-126f)) - 8)))
        fail_msg("%08x: %.9g is not the bf16 nearest to %.9g", bits, (double)half, (double)whole);
}

static void every_other_number_keeps_its_bits(void **state)
{
    (void)state;
    for (uint64_t magnitude = 0; magnitude <= 0x7f800000u; magnitude += 251) {
        assert_halves((uint32_t)magnitude);
        assert_halves((uint32_t)magnitude | 0x80000000u);
    }
    const uint32_t edges[] = {0x00007fffu, 0x00008000u, 0x3f807fffu, 0x3f808000u, 0x3f808001u,
                              0x7f7f7fffu, 0x7f7f8000u, 0x7f7fffffu, 0x7f800000u};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        assert_halves(edges[i]);
        assert_halves(edges[i] | 0x80000000u);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_nan_stays_a_nan),
        cmocka_unit_test(every_other_number_keeps_its_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
