/* What base/arena promises: zeroed aligned memory with one lifetime, and no new blocks in a repeated round. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "base/arena.h"

static const size_t sizes[] = {1, 17, 0, 33, 200, 5000, 3, 1000, 90, 64, 12345, 7};

enum { N_SIZES = sizeof sizes / sizeof *sizes };

static void fill_round(arena *a, unsigned char *given[N_SIZES])
{
    for (size_t i = 0; i < N_SIZES; i++) {
        unsigned char *p = arena_alloc(a, sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % _Alignof(max_align_t), 0);
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(p[j], 0);
        memset(p, 0xAB, sizes[i]);
        given[i] = p;
    }
}

static void a_reset_arena_gives_zeroed_memory_and_takes_no_new_block(void **state)
{
    (void)state;
    arena *a;
    assert_int_equal(arena_create(256, &a), FSDP_OK);
    unsigned char *first[N_SIZES], *again[N_SIZES];
    fill_round(a, first);
    for (int round = 0; round < 5; round++) {
        arena_reset(a);
        fill_round(a, again);
        assert_memory_equal(again, first, sizeof first);
    }
    arena_free(a);
}

static void a_larger_round_after_a_reset_grows_the_arena(void **state)
{
    (void)state;
    arena *a;
    assert_int_equal(arena_create(256, &a), FSDP_OK);
    void *small = arena_alloc(a, 100);
    arena_reset(a);
    assert_ptr_equal(arena_alloc(a, 100), small);
    char *large = arena_alloc(a, 100000);
    assert_non_null(large);
    memset(large, 1, 100000);
    arena_free(a);
}

static void allocations_do_not_overlap(void **state)
{
    (void)state;
    arena *a;
    assert_int_equal(arena_create(0, &a), FSDP_OK);
    unsigned char *p[300];
    for (int i = 0; i < 300; i++)
        memset(p[i] = arena_alloc(a, 777), i % 251, 777);
    for (int i = 0; i < 300; i++)
        for (int j = 0; j < 777; j++)
            assert_int_equal(p[i][j], i % 251);
    arena_free(a);
}

static void text_is_copied(void **state)
{
    (void)state;
    arena *a;
    assert_int_equal(arena_create(16, &a), FSDP_OK);
    assert_string_equal(arena_strdup(a, ""), "");
    assert_string_equal(arena_strdup(a, "layers.0.attention"), "layers.0.attention");
    arena_free(a);
}

static void an_impossible_size_is_refused(void **state)
{
    (void)state;
    arena *a;
    assert_int_equal(arena_create(0, &a), FSDP_OK);
    assert_null(arena_alloc(a, SIZE_MAX));
    assert_null(arena_alloc(a, SIZE_MAX - 16));
    assert_null(arena_alloc(a, SIZE_MAX - 40));
    assert_non_null(arena_alloc(a, 8));
    arena_free(a);
    arena_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_reset_arena_gives_zeroed_memory_and_takes_no_new_block),
        cmocka_unit_test(a_larger_round_after_a_reset_grows_the_arena),
        cmocka_unit_test(allocations_do_not_overlap),
        cmocka_unit_test(text_is_copied),
        cmocka_unit_test(an_impossible_size_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
