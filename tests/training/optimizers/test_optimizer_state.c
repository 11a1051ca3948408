/* Moments of 16 bits: every strategy and offload give the same bits, because what an element is rounded by depends on
 * the step and on its place in the unit alone; and training follows the curve that moments of 32 bits give. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>

#include "training/training_checks.h"

static training with_halves(int ranks, fsdp_strategy strategy)
{
    training t = training_default(TRAIN_LLAMA, ranks);
    t.config.strategy = strategy;
    t.state_dtype = FSDP_BF16;
    return t;
}

static void every_strategy_and_offload_give_the_same_bits(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        training first = with_halves(ranks, FSDP_FULL);
        training_result full = run(&first);
        for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
            for (int offload = 0; offload < 2; offload++) {
                training t = with_halves(ranks, (fsdp_strategy)s);
                t.config.cpu_offload = offload;
                if (run(&t).hash != full.hash)
                    fail_msg("%d ranks: %s%s and full differ", ranks, fsdp_strategy_name((fsdp_strategy)s),
                             offload ? " with offload" : "");
            }
        }
    }
}

static void low_precision_threads_and_uneven_shards_change_no_bit(void **state)
{
    (void)state;
    const int weights[] = {3, 1};
    training even = with_halves(2, FSDP_FULL), uneven = even, beside = even;
    even.config.param_dtype = uneven.config.param_dtype = beside.config.param_dtype = FSDP_BF16;
    uneven.config.shard_weights = weights;
    beside.comm_thread = true;
    uint64_t hash = run(&even).hash;
    assert_true(run(&beside).hash == hash);
    /* The norm is summed over other blocks of a shard: the same curve, not the same bits. */
    assert_true(fabs(run(&uneven).loss[TRAINING_STEPS - 1] - run(&even).loss[TRAINING_STEPS - 1]) < 1e-3);
}

static void the_curve_is_that_of_moments_of_32_bits(void **state)
{
    (void)state;
    for (int model = 0; model < TRAIN_MODELS; model++) {
        training t = training_default((training_model)model, 2);
        training_result whole = run(&t);
        t.state_dtype = FSDP_BF16;
        training_result half = run(&t);
        double most = 0;
        for (int i = 0; i < TRAINING_STEPS; i++)
            most = fmax(most, fabs(half.loss[i] - whole.loss[i]) / whole.loss[i]);
        print_message("model %d: losses differ by at most %.2g of their value\n", model, most);
        assert_true(most < 0.02 && most > 0);
        assert_true(half.hash != whole.hash);
    }
}

/* Groups cut ranges anywhere, and the average is kept in fp32 beside them. */
static void groups_and_an_average_change_no_bit_between_strategies(void **state)
{
    (void)state;
    fsdp_optimizer_group group = FSDP_OPTIMIZER_GROUP_INIT;
    group.pattern = "*norm*";
    group.lr_factor = 0.5f;
    training_result first = {.hash = 0};
    for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
        training t = with_halves(2, (fsdp_strategy)s);
        t.groups = &group;
        t.n_groups = 1;
        t.average = 0.9f;
        training_result r = run(&t);
        first = s == FSDP_FULL ? r : first;
        assert_true(r.hash == first.hash && r.average_hash == first.average_hash);
    }
}

static training with_half_gradients(int ranks, fsdp_strategy strategy)
{
    training t = with_halves(ranks, strategy);
    t.config.param_dtype = t.config.reduce_dtype = t.config.gradient_dtype = FSDP_BF16;
    t.micro_batches = 1;
    return t;
}

/* Alone, a rank rounds its gradients once anyway when they are reduced in bf16: keeping them so loses nothing more. */
static void gradients_of_16_bits_lose_nothing_on_one_rank(void **state)
{
    (void)state;
    training half = with_half_gradients(1, FSDP_FULL), whole = half;
    whole.config.gradient_dtype = FSDP_F32;
    training_result a = run(&half), b = run(&whole);
    assert_true(a.hash == b.hash);
    assert_int_equal(a.memory, a.planned_memory);
    assert_int_equal(b.memory, b.planned_memory);
    assert_true(a.memory < b.memory);
}

static void with_gradients_of_16_bits_strategies_give_the_same_bits(void **state)
{
    (void)state;
    for (int ranks = 2; ranks <= 3; ranks++) {
        uint64_t full = 0;
        for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
            for (int offload = 0; offload < 2; offload++) {
                training t = with_half_gradients(ranks, (fsdp_strategy)s);
                t.config.cpu_offload = offload;
                training_result r = run(&t);
                full = s == FSDP_FULL && !offload ? r.hash : full;
                if (r.hash != full)
                    fail_msg("%d ranks: %s%s and full differ", ranks, fsdp_strategy_name((fsdp_strategy)s),
                             offload ? " with offload" : "");
                assert_int_equal(r.memory, r.planned_memory);
                assert_true(r.loss[TRAINING_STEPS - 1] < r.loss[0]);
            }
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_and_offload_give_the_same_bits),
        cmocka_unit_test(low_precision_threads_and_uneven_shards_change_no_bit),
        cmocka_unit_test(the_curve_is_that_of_moments_of_32_bits),
        cmocka_unit_test(groups_and_an_average_change_no_bit_between_strategies),
        cmocka_unit_test(gradients_of_16_bits_lose_nothing_on_one_rank),
        cmocka_unit_test(with_gradients_of_16_bits_strategies_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
