/* The book of calls: different calls are found whoever comes first, missing ranks are named with where they were, and
 * ranks that run ahead or are in other groups are no trouble. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "comm/watch/ledger.h"

static signature named(comm_kind kind, const char *unit, int64_t step, int64_t elements)
{
    signature s = {.kind = kind, .step = step, .elements = elements, .n_spans = 1};
    snprintf(s.unit, sizeof s.unit, "%s", unit);
    s.hash =
        hash_u64(hash_text(hash_u64(hash_u64(HASH_START, (uint64_t)kind), (uint64_t)step), unit), (uint64_t)elements);
    return s;
}

static fsdp_status gather(ledger *l, int rank, int slot, int first, uint32_t sequence, const char *unit, double now)
{
    ledger_call call = {
        .serial = slot, .first = first, .sequence = sequence, .what = named(COMM_ALL_GATHER, unit, 7, 64)};
    return ledger_add(l, rank, &call, now);
}

static ledger *of_world(int n)
{
    int32_t members[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    ledger *l = ledger_new(n);
    assert_int_equal(ledger_add_group(l, 0, members, n), FSDP_OK);
    return l;
}

static void assert_says(const char *wanted)
{
    if (!strstr(fsdp_last_error(), wanted))
        fail_msg("\"%s\" is not in \"%s\"", wanted, fsdp_last_error());
}

static void the_same_calls_are_fine_however_far_a_rank_is_ahead(void **state)
{
    (void)state;
    ledger *l = of_world(3);
    char unit[32];
    for (int rank = 0; rank < 3; rank++)
        for (uint32_t i = 0; i < 5000; i++) {
            snprintf(unit, sizeof unit, "layers.%u", i);
            assert_int_equal(gather(l, rank, 0, 0, i, unit, 1), FSDP_OK);
        }
    assert_int_equal(ledger_check(l, 1000, 1), FSDP_OK);
    for (int rank = 0; rank < 3; rank++)
        assert_int_equal(ledger_leave(l, rank), FSDP_OK);
    ledger_free(l);
}

static void a_different_call_is_named_with_both_ranks_whoever_comes_first(void **state)
{
    (void)state;
    for (int order = 0; order < 2; order++) {
        ledger *l = of_world(2);
        int early = order, late = 1 - order;
        assert_int_equal(gather(l, early, 0, 0, 0, early ? "layers.5" : "layers.4", 0), FSDP_OK);
        assert_int_equal(gather(l, late, 0, 0, 0, late ? "layers.5" : "layers.4", 0), FSDP_ERR_PEER);
        assert_says("rank 1 called all_gather of unit layers.5 where rank 0 called all_gather of unit layers.4");
        ledger_free(l);
    }
}

static void a_different_size_is_found_among_calls_ahead(void **state)
{
    (void)state;
    ledger *l = of_world(2);
    ledger_call call = {.sequence = 0};
    for (uint32_t i = 0; i < 40; i++) {
        call.sequence = i;
        call.what = named(COMM_REDUCE_SCATTER, "layers.1", i, 640);
        assert_int_equal(ledger_add(l, 0, &call, 0), FSDP_OK);
    }
    for (uint32_t i = 0; i < 30; i++) {
        call.sequence = i;
        call.what = named(COMM_REDUCE_SCATTER, "layers.1", i, i == 29 ? 704 : 640);
        assert_int_equal(ledger_add(l, 1, &call, 0), i == 29 ? FSDP_ERR_PEER : FSDP_OK);
    }
    assert_says("rank 1 called reduce_scatter of unit layers.1 with 704 elements where rank 0 called reduce_scatter of "
                "unit layers.1 with 640 elements");
    ledger_free(l);
}

static void a_rank_that_does_not_come_is_named_after_the_timeout(void **state)
{
    (void)state;
    ledger *l = of_world(4);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(gather(l, rank, 0, 0, 0, "layers.1", 100), FSDP_OK);
    assert_int_equal(gather(l, 0, 0, 0, 1, "layers.2", 110), FSDP_OK);
    assert_int_equal(gather(l, 2, 0, 0, 1, "layers.2", 118), FSDP_OK);
    assert_int_equal(gather(l, 2, 0, 0, 2, "layers.3", 119), FSDP_OK);
    assert_int_equal(gather(l, 3, 0, 0, 1, "layers.2", 119), FSDP_OK);
    assert_int_equal(ledger_check(l, 119.9, 10), FSDP_OK);
    assert_int_equal(ledger_check(l, 120.1, 10), FSDP_ERR_TIMEOUT);
    assert_says(
        "all_gather of unit layers.2 (step 7) timed out after 10 s: rank 1 did not come, it last reached layers.1 "
        "(step 7)");
    assert_int_equal(gather(l, 1, 0, 0, 1, "layers.2", 121), FSDP_OK);
    assert_int_equal(ledger_check(l, 130.9, 10), FSDP_OK); /* the next one waits since then */
    assert_int_equal(ledger_check(l, 131.1, 10), FSDP_ERR_TIMEOUT);
    assert_says("rank 0 did not come, it last reached layers.2 (step 7); rank 1 did not come");
    ledger_free(l);
}

static void the_rank_at_the_end_of_a_chain_of_waits_is_named(void **state)
{
    (void)state;
    ledger *l = of_world(4);
    int32_t left[] = {0, 1}, right[] = {1, 3};
    assert_int_equal(ledger_add_group(l, 1, left, 2), FSDP_OK);
    assert_int_equal(ledger_add_group(l, 2, right, 2), FSDP_OK);
    assert_int_equal(gather(l, 0, 1, 0, 0, "a", 0), FSDP_OK); /* 0 waits for 1 */
    assert_int_equal(gather(l, 1, 2, 1, 0, "b", 5), FSDP_OK); /* which waits for 3 */
    assert_int_equal(ledger_check(l, 11, 10), FSDP_ERR_TIMEOUT);
    assert_says("all_gather of unit b (step 7) timed out after 10 s: rank 3 did not come, it has not reached any "
                "collective");
    ledger_free(l);
}

static void groups_of_one_split_are_kept_apart(void **state)
{
    (void)state;
    ledger *l = of_world(4);
    int32_t low[] = {0, 1}, high[] = {2, 3};
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(ledger_add_group(l, 1, rank < 2 ? low : high, 2), FSDP_OK);
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(gather(l, rank, 1, rank < 2 ? 0 : 2, 0, rank < 2 ? "x" : "y", 0), FSDP_OK);
    assert_int_equal(ledger_check(l, 1000, 1), FSDP_OK);
    ledger_free(l);
}

static void a_rank_that_left_is_named_when_another_waits_for_it(void **state)
{
    (void)state;
    for (int order = 0; order < 2; order++) {
        ledger *l = of_world(2);
        assert_int_equal(gather(l, 0, 0, 0, 0, "first", 0), FSDP_OK);
        assert_int_equal(gather(l, 1, 0, 0, 0, "first", 0), FSDP_OK);
        if (order) {
            assert_int_equal(ledger_leave(l, 1), FSDP_OK);
            assert_int_equal(gather(l, 0, 0, 0, 1, "second", 0), FSDP_ERR_PEER);
        } else {
            assert_int_equal(gather(l, 0, 0, 0, 1, "second", 0), FSDP_OK);
            assert_int_equal(ledger_leave(l, 1), FSDP_ERR_PEER);
        }
        assert_says("rank 1 left, but rank 0 waits for it in all_gather of unit second (step 7): rank 1 last reached "
                    "first (step 7)");
        ledger_free(l);
    }
}

static void what_cannot_be_is_refused(void **state)
{
    (void)state;
    ledger *l = of_world(2);
    int32_t strange[] = {0, 9};
    assert_int_equal(ledger_add_group(l, 1, strange, 2), FSDP_ERR_PEER);
    assert_int_equal(gather(l, 0, 5, 0, 0, "x", 0), FSDP_ERR_PEER); /* no such group */
    assert_int_equal(gather(l, 0, 0, 0, 3, "x", 0), FSDP_ERR_PEER); /* not its next call */
    ledger_free(l);
}

/* A job that makes and frees models for days keeps no books of groups that are gone. */
static void books_of_freed_groups_are_closed(void **state)
{
    (void)state;
    int32_t members[] = {0, 1, 2};
    ledger *l = of_world(3);
    for (int serial = 1; serial < 100; serial++) {
        assert_int_equal(ledger_add_group(l, serial, members, 3), FSDP_OK);
        for (int rank = 0; rank < 3; rank++)
            assert_int_equal(gather(l, rank, serial, 0, 0, "layers.1", 0), FSDP_OK);
        for (int rank = 0; rank < 3; rank++) {
            ledger_call end = {.serial = serial, .sequence = 1, .frees = 1};
            assert_int_equal(ledger_count(l), 2);
            assert_int_equal(ledger_add(l, rank, &end, 0), FSDP_OK);
        }
        assert_int_equal(ledger_count(l), 1);
    }
    assert_int_equal(gather(l, 0, 99, 0, 1, "layers.1", 0), FSDP_ERR_PEER); /* it is gone */
    assert_int_equal(ledger_check(l, 1000, 1), FSDP_OK);
    ledger_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_calls_are_fine_however_far_a_rank_is_ahead),
        cmocka_unit_test(a_different_call_is_named_with_both_ranks_whoever_comes_first),
        cmocka_unit_test(a_different_size_is_found_among_calls_ahead),
        cmocka_unit_test(a_rank_that_does_not_come_is_named_after_the_timeout),
        cmocka_unit_test(the_rank_at_the_end_of_a_chain_of_waits_is_named),
        cmocka_unit_test(groups_of_one_split_are_kept_apart),
        cmocka_unit_test(books_of_freed_groups_are_closed),
        cmocka_unit_test(a_rank_that_left_is_named_when_another_waits_for_it),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests_name("ledger", tests, NULL, NULL);
}
