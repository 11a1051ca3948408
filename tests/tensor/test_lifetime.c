/* Packing of lifetimes: what lives together never overlaps, and the slab is not larger than it must be in the cases
 * where that is known. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdlib.h>

#include "base/rng.h"
#include "tensor/lifetime.h"

static uint32_t draw(uint64_t round, uint64_t index, uint32_t below)
{
    return rng_word(rng_key_make(99), round, index) % below;
}

static size_t rounded(size_t bytes)
{
    return (bytes + 255) / 256 * 256;
}

/* The most that lives at one time: no packing can do with less. */
static size_t least_bytes(const lifetime *items, int n, int end)
{
    size_t most = 0;
    for (int at = 0; at < end; at++) {
        size_t sum = 0;
        for (int i = 0; i < n; i++)
            sum += items[i].first <= at && at <= items[i].last ? rounded(items[i].bytes) : 0;
        most = sum > most ? sum : most;
    }
    return most;
}

static void check_packing(const lifetime *items, int n, size_t slab_bytes)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(items[i].offset % 256, 0);
        assert_true(items[i].offset + items[i].bytes <= slab_bytes);
        for (int k = 0; k < i; k++) {
            bool together = items[i].first <= items[k].last && items[k].first <= items[i].last;
            bool overlap = items[i].offset < items[k].offset + items[k].bytes &&
                           items[k].offset < items[i].offset + items[i].bytes;
            assert_false(together && overlap);
        }
    }
}

static void random_lifetimes_never_overlap(void **state)
{
    (void)state;
    lifetime items[120];
    for (uint64_t round = 0; round < 400; round++) {
        int n = 1 + (int)draw(round, 0, 120), end = 1 + (int)draw(round, 1, 60);
        size_t total = 0, slab;
        for (int i = 0; i < n; i++) {
            uint64_t at = 10 + 4 * (uint64_t)i;
            int first = (int)draw(round, at, (uint32_t)end);
            items[i] = (lifetime){.bytes = 1 + draw(round, at + 1, draw(round, at + 2, 2) ? 700 : 70000),
                                  .first = first,
                                  .last = first + (int)draw(round, at + 3, (uint32_t)(end - first))};
            total += rounded(items[i].bytes);
        }
        assert_int_equal(lifetime_pack(items, n, &slab), FSDP_OK);
        check_packing(items, n, slab);
        assert_true(slab >= least_bytes(items, n, end));
        assert_true(slab <= total);
    }
}

static void the_same_lifetimes_get_the_same_offsets(void **state)
{
    (void)state;
    lifetime items[2][40];
    size_t slab[2];
    for (int copy = 0; copy < 2; copy++) {
        for (int i = 0; i < 40; i++)
            items[copy][i] = (lifetime){.bytes = 256 * (1 + draw(1, (uint64_t)i, 3)), .first = i / 2, .last = i};
        assert_int_equal(lifetime_pack(items[copy], 40, &slab[copy]), FSDP_OK);
    }
    assert_int_equal(slab[0], slab[1]);
    for (int i = 0; i < 40; i++)
        assert_int_equal(items[0][i].offset, items[1][i].offset);
}

static void a_chain_takes_two_places(void **state)
{
    (void)state;
    lifetime items[50];
    size_t slab;
    for (int i = 0; i < 50; i++)
        items[i] = (lifetime){.bytes = 1000, .first = i, .last = i + 1};
    assert_int_equal(lifetime_pack(items, 50, &slab), FSDP_OK);
    check_packing(items, 50, slab);
    assert_int_equal(slab, 2 * 1024);
}

static void small_ones_fill_the_gap_between_large_ones(void **state)
{
    (void)state;
    /* A large one early, a large one late, both at the bottom; a small one beside each, above. */
    lifetime items[] = {{.bytes = 4096, .first = 0, .last = 4},
                        {.bytes = 4096, .first = 5, .last = 9},
                        {.bytes = 256, .first = 0, .last = 9}};
    size_t slab;
    assert_int_equal(lifetime_pack(items, 3, &slab), FSDP_OK);
    assert_int_equal(slab, 4096 + 256);
}

static void nothing_needs_nothing(void **state)
{
    (void)state;
    size_t slab = 1;
    assert_int_equal(lifetime_pack(NULL, 0, &slab), FSDP_OK);
    assert_int_equal(slab, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lifetimes_never_overlap), cmocka_unit_test(the_same_lifetimes_get_the_same_offsets),
        cmocka_unit_test(a_chain_takes_two_places),       cmocka_unit_test(small_ones_fill_the_gap_between_large_ones),
        cmocka_unit_test(nothing_needs_nothing),
    };
    return cmocka_run_group_tests_name("lifetime", tests, NULL, NULL);
}
