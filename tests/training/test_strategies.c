/* Strategies against each other and against one process: the same bits where the design promises them, the same curve
 * everywhere. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>

#include "training/training_checks.h"

static const char *const models[] = {"llama", "t5", "cnn"};

static void assert_same_curve(const training_result *a, const training_result *b, double tolerance)
{
    for (int i = 0; i < TRAINING_STEPS; i++) {
        if (!(fabs(a->loss[i] - b->loss[i]) <= tolerance))
            fail_msg("step %d: loss %.9g and %.9g", i, a->loss[i], b->loss[i]);
    }
}

static void every_strategy_gives_the_same_bits_at_every_world_size(void **state)
{
    (void)state;
    const int worlds[] = {1, 2, 3, 4, 8};
    const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_SHARD_GRAD_OP, FSDP_SHARD_OP, FSDP_NO_SHARD};
    for (int model = 0; model < TRAIN_MODELS; model++) {
        training_result alone = {.hash = 0};
        for (int w = 0; w < 5; w++) {
            training_result first = {.hash = 0};
            for (int s = 0; s < 4; s++) {
                training t = training_default((training_model)model, worlds[w]);
                t.config.strategy = strategies[s];
                training_result r = run(&t);
                if (s == 0)
                    first = r;
                if (w == 0 && s == 0)
                    alone = r;
                if (r.hash != first.hash)
                    fail_msg("%s, %d ranks: %s and full differ", models[model], worlds[w],
                             fsdp_strategy_name(strategies[s]));
            }
            assert_same_curve(&first, &alone, 1e-5);
            print_message("%s on %d ranks: loss %.6f to %.6f\n", models[model], worlds[w], first.loss[0],
                          first.loss[TRAINING_STEPS - 1]);
            assert_true(first.loss[TRAINING_STEPS - 1] < first.loss[0]);
        }
    }
}

/* Bytes that an all_reduce of n doubles brings. */
static int64_t doubles(int64_t ranks, int64_t n)
{
    return 2 * (ranks - 1) * n * 8 / ranks;
}

/* Every rank received in its groups exactly what its plan says; norm and loss go over the world. */
static void assert_bytes_as_planned(const training *t, const training_result *all)
{
    for (int r = 0; r < t->ranks; r++) {
        int64_t step = t->micro_batches * (all[r].planned_gathered + all[r].planned_reduced);
        assert_true(all[r].planned_gathered > 0 && all[r].planned_reduced > 0 && all[r].planned_replica > 0);
        assert_int_equal(all[r].shard_bytes, TRAINING_COUNTED * step);
        assert_int_equal(all[r].replica_bytes, TRAINING_COUNTED * all[r].planned_replica);
    }
}

static void hybrid_follows_one_process_and_moves_the_bytes_it_should(void **state)
{
    (void)state;
    const int shapes[][2] = {{4, 2}, {8, 2}, {8, 4}}; /* ranks, ranks a group */
    for (int model = 0; model < TRAIN_MODELS; model++) {
        training one = training_default((training_model)model, 1);
        training_result alone = run(&one);
        for (int i = 0; i < 3; i++) {
            int64_t bytes[2] = {0, 0};
            for (int zero2 = 0; zero2 < 2; zero2++) {
                training t = training_default((training_model)model, shapes[i][0]);
                t.config.strategy = zero2 ? FSDP_HYBRID_ZERO2 : FSDP_HYBRID;
                t.config.shard_group_size = shapes[i][1];
                training_result all[TRAINING_MAX_RANKS];
                assert_true(training_run_all(&t, all));
                assert_same_curve(&all[0], &alone, 1e-5);
                assert_bytes_as_planned(&t, all);
                bytes[zero2] = all[0].shard_bytes;
            }
            assert_true(bytes[1] < bytes[0]); /* parameters are gathered once a micro-batch instead of twice */
        }
    }
}

/* LLaMA and T5: the CNN's batch statistics go over the world, too. */
static void every_strategy_moves_the_bytes_it_should(void **state)
{
    (void)state;
    for (int model = 0; model < 2; model++) {
        for (int strategy = 0; strategy < 4; strategy++) {
            training t = training_default((training_model)model, 3);
            t.config.strategy = (fsdp_strategy)strategy;
            training_result all[TRAINING_MAX_RANKS];
            assert_true(training_run_all(&t, all));
            bool kept = strategy == FSDP_SHARD_OP, sharded = strategy != FSDP_NO_SHARD;
            for (int r = 0; r < t.ranks; r++) {
                int64_t gathers = kept ? 1 : t.micro_batches; /* a copy that is kept is gathered once a step */
                int64_t step = gathers * all[r].planned_gathered + t.micro_batches * all[r].planned_reduced +
                               doubles(3, 3); /* the norm, loss and count */
                assert_true(all[r].planned_reduced > 0 && (all[r].planned_gathered > 0) == sharded);
                assert_int_equal(all[r].shard_bytes, TRAINING_COUNTED * step);
            }
        }
    }
}

static void accumulation_without_synchronisation_gives_the_same_curve(void **state)
{
    (void)state;
    for (int strategy = 0; strategy < 4; strategy++) {
        training t = training_default(TRAIN_LLAMA, 2);
        t.config.strategy = (fsdp_strategy)strategy;
        training_result each = run(&t);
        t.config.sync_each_micro_batch = false;
        training_result last = run(&t);
        assert_same_curve(&each, &last, 1e-5);
    }
}

static void schedules_change_nothing_but_time(void **state)
{
    (void)state;
    training t = training_default(TRAIN_LLAMA, 2);
    training_result first = run(&t);
    for (int buffers = 1; buffers <= 4; buffers++) {
        for (int prefetch = 0; prefetch < 3; prefetch++) {
            t.config.gather_buffers = buffers;
            t.config.backward_prefetch = (fsdp_prefetch)prefetch;
            t.config.forward_prefetch = prefetch != 1;
            t.comm_thread = buffers % 2 == 0;
            training_result r = run(&t);
            assert_true(r.hash == first.hash);
        }
    }
}

static void checkpointing_gives_the_same_bits_in_less_memory(void **state)
{
    (void)state;
    for (int model = 0; model < 2; model++) {
        training t = training_default((training_model)model, 2);
        training_result plain = run(&t);
        t.config.checkpointing = FSDP_CHECKPOINT_FULL;
        training_result full = run(&t);
        t.config.checkpointing = FSDP_CHECKPOINT_SELECTIVE;
        training_result selective = run(&t);
        assert_true(full.hash == plain.hash);
        assert_true(selective.hash == plain.hash);
        assert_true(full.memory < selective.memory);
        assert_true(selective.memory < plain.memory);
        t.config.checkpointing = FSDP_CHECKPOINT_NONE;
        t.config.recompute_cheap = true;
        training_result cheap = run(&t);
        assert_true(cheap.hash == plain.hash);
        assert_true(cheap.memory < plain.memory);
    }
}

static void unequal_shards_give_the_same_curve(void **state)
{
    (void)state;
    const int weights[] = {2, 1, 1};
    training t = training_default(TRAIN_LLAMA, 3);
    training_result equal = run(&t);
    t.config.shard_weights = weights;
    training_result unequal = run(&t);
    assert_same_curve(&equal, &unequal, 1e-5);
    assert_true(unequal.memory > equal.memory);
}

static void low_precision_trains_close_to_fp32(void **state)
{
    (void)state;
    const fsdp_dtype dtypes[] = {FSDP_BF16, FSDP_F16};
    training t = training_default(TRAIN_LLAMA, 2);
    training_result exact = run(&t);
    for (int i = 0; i < 2; i++) {
        training_result first = {.hash = 0};
        for (int strategy = 0; strategy < 4; strategy++) {
            t.config.param_dtype = dtypes[i];
            t.config.strategy = (fsdp_strategy)strategy;
            training_result r = run(&t);
            assert_same_curve(&r, &exact, 0.1);
            if (strategy == 0)
                first = r;
            assert_true(r.hash == first.hash);
        }
    }
    t.config.reduce_dtype = FSDP_BF16;
    t.config.param_dtype = FSDP_BF16;
    training_result reduced = run(&t);
    assert_same_curve(&reduced, &exact, 0.1);
}

/* Options by pattern: the same bits under every strategy, and in host memory; none at all for what says nothing new. */
static void parameter_groups_give_the_same_bits_under_every_strategy(void **state)
{
    (void)state;
    static const fsdp_optimizer_group groups[] = {{"*q_proj*", 0.25f, -1}, {"*norm*", -1, 0.5f}, {"*", 2, 0}};
    static const fsdp_optimizer_group nothing[] = {{"*", 1, -1}};
    static const fsdp_optimizer_group still[] = {{"*", 0, 0}};
    const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_SHARD_GRAD_OP, FSDP_SHARD_OP, FSDP_NO_SHARD};
    training t = training_default(TRAIN_LLAMA, 3);
    uint64_t plain = run(&t).hash, grouped = 0;
    for (int s = 0; s < 4; s++) {
        t.config.strategy = strategies[s];
        t.groups = groups, t.n_groups = 3;
        uint64_t hash = run(&t).hash;
        grouped = s == 0 ? hash : grouped;
        if (hash != grouped)
            fail_msg("%s and full differ", fsdp_strategy_name(strategies[s]));
        t.groups = nothing, t.n_groups = 1;
        assert_true(run(&t).hash == plain);
    }
    assert_true(grouped != plain);
    t = training_default(TRAIN_LLAMA, 1);
    t.groups = groups, t.n_groups = 3;
    training_result alone = run(&t);
    t.ranks = 2;
    training_result two = run(&t);
    assert_same_curve(&two, &alone, 1e-5);
    t.config.cpu_offload = true;
    assert_true(run(&t).hash == two.hash);
    t.groups = still, t.n_groups = 1;
    training_result first = run(&t); /* a rate of 0: the data alone changes the loss */
    assert_true(first.loss[0] == two.loss[0] && first.hash != two.hash);
    t.groups = &(fsdp_optimizer_group){"no.such.*", 1, -1};
    assert_false(training_run(&t, &first));
}

/* The average of the weights: the same bits under every strategy and in host memory; training does not notice it. */
static void the_average_of_the_weights_is_the_same_under_every_strategy(void **state)
{
    (void)state;
    const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_SHARD_GRAD_OP, FSDP_SHARD_OP, FSDP_NO_SHARD};
    training t = training_default(TRAIN_LLAMA, 3);
    uint64_t plain = run(&t).hash, average = 0;
    t.average = 0.75f;
    for (int s = 0; s < 4; s++) {
        t.config.strategy = strategies[s];
        training_result r = run(&t);
        assert_true(r.hash == plain && r.average_hash != plain);
        average = s == 0 ? r.average_hash : average;
        if (r.average_hash != average)
            fail_msg("%s and full differ", fsdp_strategy_name(strategies[s]));
    }
    t.config.strategy = FSDP_FULL;
    t.config.cpu_offload = true;
    assert_true(run(&t).average_hash == average);
    t.config.cpu_offload = false;
    t.average = 1e-30f; /* so small that the average is the newest weights */
    assert_true(run(&t).average_hash == plain);
}

/* Units of trained and frozen parts, in the precision in which frozen ones are kept. */
static void frozen_parts_give_the_same_bits_under_every_strategy(void **state)
{
    (void)state;
    static const char *const frozen[] = {"*[qkv]_proj*", "*norm*", "*layers.0.*"};
    training t = training_default(TRAIN_LLAMA, 2);
    t.config.freeze = frozen;
    t.config.n_freeze = 3;
    for (int low = 0; low < 2; low++) {
        t.config.param_dtype = low ? FSDP_BF16 : FSDP_F32;
        expect_same_bits(t, low ? "bf16" : "fp32");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_gives_the_same_bits_at_every_world_size),
        cmocka_unit_test(hybrid_follows_one_process_and_moves_the_bytes_it_should),
        cmocka_unit_test(every_strategy_moves_the_bytes_it_should),
        cmocka_unit_test(accumulation_without_synchronisation_gives_the_same_curve),
        cmocka_unit_test(schedules_change_nothing_but_time),
        cmocka_unit_test(checkpointing_gives_the_same_bits_in_less_memory),
        cmocka_unit_test(unequal_shards_give_the_same_curve),
        cmocka_unit_test(low_precision_trains_close_to_fp32),
        cmocka_unit_test(parameter_groups_give_the_same_bits_under_every_strategy),
        cmocka_unit_test(the_average_of_the_weights_is_the_same_under_every_strategy),
        cmocka_unit_test(frozen_parts_give_the_same_bits_under_every_strategy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
