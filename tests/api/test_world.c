/* Host values among ranks, through the public API. */
#include "api/support_ranks.h"

static fsdp_status reduce_and_gather(fsdp_world *w, void *context)
{
    (void)context;
    int rank = fsdp_world_rank(w), n = fsdp_world_size(w);
    double sums[3] = {rank + 1, -rank, 0.5};
    int64_t extremes[2] = {rank * ((int64_t)1 << 40), -rank};
    int32_t mine[2] = {rank, 7 * rank}, all[16];
    FSDP_TRY(fsdp_world_all_reduce(w, NULL, FSDP_REDUCE_SUM, sums, 3));
    EXPECT(w, sums[0] == n * (n + 1) / 2 && sums[1] == -n * (n - 1) / 2 && sums[2] == 0.5 * n);
    FSDP_TRY(fsdp_world_all_reduce_i64(w, NULL, FSDP_REDUCE_MAX, extremes, 1));
    FSDP_TRY(fsdp_world_all_reduce_i64(w, NULL, FSDP_REDUCE_MIN, extremes + 1, 1));
    EXPECT(w, extremes[0] == (n - 1) * ((int64_t)1 << 40) && extremes[1] == 1 - n);
    FSDP_TRY(fsdp_world_all_gather(w, NULL, mine, sizeof mine, all));
    for (int r = 0; r < n; r++)
        EXPECT(w, all[2 * r] == r && all[2 * r + 1] == 7 * r);
    return fsdp_world_barrier(w, NULL);
}

static void values_reduce_and_gather_on_any_number_of_ranks(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks++)
        assert_true(ranks_run(ranks, reduce_and_gather, NULL));
}

enum { LONG_BYTES = 300001 };

static uint8_t byte_at(int rank, int i)
{
    return (uint8_t)(i * 31 + rank * 17 + i / 251);
}

static fsdp_status move_long_values(fsdp_world *w, void *context)
{
    (void)context;
    int rank = fsdp_world_rank(w), n = fsdp_world_size(w), root = n - 1;
    uint8_t *mine = malloc(LONG_BYTES), *all = malloc((size_t)n * LONG_BYTES);
    for (int i = 0; i < LONG_BYTES; i++)
        mine[i] = byte_at(rank, i);
    FSDP_TRY(fsdp_world_all_gather(w, NULL, mine, LONG_BYTES, all));
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < LONG_BYTES; i++)
            EXPECT(w, all[(size_t)r * LONG_BYTES + (size_t)i] == byte_at(r, i));
    }
    FSDP_TRY(fsdp_world_broadcast(w, NULL, root, mine, LONG_BYTES));
    for (int i = 0; i < LONG_BYTES; i++)
        EXPECT(w, mine[i] == byte_at(root, i));
    free(mine);
    free(all);
    return fsdp_world_broadcast(w, NULL, 0, NULL, 0);
}

static void values_longer_than_one_message_arrive_whole(void **state)
{
    (void)state;
    assert_true(ranks_run(3, move_long_values, NULL));
}

/* Even and odd ranks, the higher rank first. */
static fsdp_status use_groups(fsdp_world *w, void *context)
{
    (void)context;
    int rank = fsdp_world_rank(w), n = fsdp_world_size(w);
    for (int round = 0; round < 20; round++) { /* more than there are places for at a time */
        fsdp_group *g;
        double value = rank;
        int from = -1;
        FSDP_TRY(fsdp_group_split(w, "halves", rank % 2, -rank, &g));
        int size = (n + 1 - rank % 2) / 2;
        EXPECT(w, fsdp_group_size(g) == size);
        EXPECT(w, fsdp_group_world_rank(g, fsdp_group_rank(g)) == rank);
        EXPECT(w, fsdp_group_world_rank(g, size - 1) == rank % 2);
        EXPECT(w, fsdp_group_world_rank(g, size) == -1);
        FSDP_TRY(fsdp_world_all_reduce(w, g, FSDP_REDUCE_SUM, &value, 1));
        EXPECT(w, value == size * (size - 1) + size * (rank % 2));
        from = rank;
        FSDP_TRY(fsdp_world_broadcast(w, g, 0, &from, sizeof from));
        EXPECT(w, from == fsdp_group_world_rank(g, 0));
        FSDP_TRY(fsdp_world_barrier(w, g));
        fsdp_group_free(g);
    }
    fsdp_group_free(NULL);
    return FSDP_OK;
}

static void groups_talk_among_themselves(void **state)
{
    (void)state;
    assert_true(ranks_run(4, use_groups, NULL));
    assert_true(ranks_run(3, use_groups, NULL));
}

/* What goes wrong is told, on every rank, and does not hang. */
static fsdp_status disagree(fsdp_world *w, void *context)
{
    int *failed = context;
    double value = 1;
    char byte = 0;
    bool first = fsdp_world_rank(w) == 0;
    EXPECT(w, fsdp_world_broadcast(w, NULL, 5, &byte, 1) == FSDP_ERR_INPUT);
    EXPECT(w, fsdp_world_all_reduce(w, NULL, (fsdp_reduction)9, &value, 1) == FSDP_ERR_INPUT);
    fsdp_status status =
        first ? fsdp_world_all_reduce(w, NULL, FSDP_REDUCE_SUM, &value, 1) : fsdp_world_barrier(w, NULL);
    failed[fsdp_world_rank(w)] = status == FSDP_ERR_PEER;
    return FSDP_OK;
}

static void ranks_that_call_different_things_are_told(void **state)
{
    (void)state;
    int *failed = shared_memory(2 * sizeof *failed);
    ranks_run(2, disagree, failed);
    assert_true(failed[0] && failed[1]);
}

static void a_world_that_was_never_opened_may_be_given_up_and_closed(void **state)
{
    (void)state;
    fsdp_world_abort(NULL);
    fsdp_world_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_reduce_and_gather_on_any_number_of_ranks),
        cmocka_unit_test(values_longer_than_one_message_arrive_whole),
        cmocka_unit_test(groups_talk_among_themselves),
        cmocka_unit_test(ranks_that_call_different_things_are_told),
        cmocka_unit_test(a_world_that_was_never_opened_may_be_given_up_and_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
