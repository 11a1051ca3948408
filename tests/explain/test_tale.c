/* What the tale says is what happened: its bytes are the plan's, its memory was really taken, and every strategy trains
 * the same model. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "explain/tale.h"

enum { RANKS = 4 };

static rank_record *records[FSDP_STRATEGY_COUNT];

/* Before anything else: the ranks are forked. */
static int run_ranks(void **state)
{
    (void)state;
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        if (records_take((fsdp_strategy)s, RANKS, &records[s]) != FSDP_OK) {
            fprintf(stderr, "%s\n", fsdp_last_error());
            return 1;
        }
    }
    return 0;
}

static int free_ranks(void **state)
{
    (void)state;
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++)
        records_free(records[s], RANKS);
    return 0;
}

static tale tale_of(int strategy)
{
    tale t;
    device *dev;
    assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &dev), FSDP_OK);
    assert_int_equal(tale_make(&t, (fsdp_strategy)strategy, records[strategy], RANKS, dev), FSDP_OK);
    device_close(dev);
    return t;
}

static void bytes_and_memory_are_those_of_the_plan(void **state)
{
    (void)state;
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        tale t = tale_of(s);
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(tale_received(&t, SCENE_GATHER, r), t.plans[r].gathered_bytes);
            assert_int_equal(tale_received(&t, SCENE_REDUCE, r), t.plans[r].reduced_bytes);
            assert_int_equal(tale_received(&t, SCENE_OPTIMIZER, r), t.plans[r].replica_bytes);
            assert_int_equal(t.taken[r], t.planned[r]);
        }
        tale_clear(&t);
    }
}

/* Units that are on their way when the tale ends: the next step would need them first. */
static int count_early(const tale *t, int64_t *bytes)
{
    const scene *last = &t->scenes[t->n_scenes - 1];
    int n = 0;
    *bytes = 0;
    for (int i = 0; i < t->n_units; i++)
        if (last->parameters[i] == 'G') {
            *bytes += (int64_t)t->units[i].gathered_bytes;
            n++;
        }
    return n;
}

static void what_is_taken_is_given_back_and_fits_its_arena(void **state)
{
    (void)state;
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        tale t = tale_of(s);
        int64_t gathered = 0, gradients = 0;
        for (int i = 0; i < t.n_scenes; i++) {
            gathered = max_i64(gathered, t.scenes[i].gathered[0]);
            gradients = max_i64(gradients, t.scenes[i].gradients[0]);
            assert_true(t.scenes[i].gathered[0] >= 0 && t.scenes[i].gradients[0] >= 0);
        }
        const scene *last = &t.scenes[t.n_scenes - 1];
        assert_int_equal(last->kind, SCENE_LOSS);
        assert_int_equal(last->gradients[0], 0);
        int64_t early;
        assert_int_equal(count_early(&t, &early) > 0, t.plans[0].gather > 0);
        assert_int_equal(last->gathered[0], s == FSDP_SHARD_OP ? (int64_t)t.plans[0].gather : early); /* all stay */
        assert_true(gathered <= (int64_t)t.plans[0].gather && (gathered > 0) == (t.plans[0].gather > 0));
        assert_true(gradients > 0 && gradients <= (int64_t)t.plans[0].full_gradients);
        tale_clear(&t);
    }
}

static int count(const tale *t, scene_kind kind)
{
    int n = 0;
    for (int i = 0; i < t->n_scenes; i++)
        n += t->scenes[i].kind == kind;
    return n;
}

static void strategies_differ_in_scenes_and_not_in_losses(void **state)
{
    (void)state;
    double losses[FSDP_STRATEGY_COUNT];
    int gathers[FSDP_STRATEGY_COUNT], releases[FSDP_STRATEGY_COUNT], early[FSDP_STRATEGY_COUNT];
    int64_t bytes;
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        tale t = tale_of(s);
        losses[s] = t.scenes[t.n_scenes - 1].loss;
        gathers[s] = count(&t, SCENE_GATHER);
        releases[s] = count(&t, SCENE_RELEASE);
        early[s] = count_early(&t, &bytes);
        assert_int_equal(count(&t, SCENE_STEP), RECORD_STEPS);
        assert_int_equal(count(&t, SCENE_BACKWARD), RECORD_STEPS);
        assert_int_equal(count(&t, SCENE_REDUCE), RECORD_STEPS * t.n_units);
        assert_true(losses[s] == losses[0] && losses[s] > 0);
        tale_clear(&t);
    }
    assert_true(gathers[FSDP_FULL] > gathers[FSDP_SHARD_GRAD_OP]);
    assert_true(releases[FSDP_FULL] == gathers[FSDP_FULL] - early[FSDP_FULL] && releases[FSDP_SHARD_OP] == 0);
    assert_int_equal(gathers[FSDP_NO_SHARD], 0);
}

static void every_scene_has_its_sentence_in_both_languages(void **state)
{
    (void)state;
    char english[TALE_SENTENCE], korean[TALE_SENTENCE];
    for (int s = 0; s < FSDP_STRATEGY_COUNT; s++) {
        tale t = tale_of(s);
        for (int i = 0; i < t.n_scenes; i++) {
            tale_sentence(&t, &t.scenes[i], "en", english);
            tale_sentence(&t, &t.scenes[i], "ko", korean);
            assert_true(strlen(english) > 10 && strlen(english) < TALE_SENTENCE - 4);
            assert_true(strlen(korean) > 10 && strlen(korean) < TALE_SENTENCE - 4);
            assert_int_equal(english[strlen(english) - 1], '.');
            assert_int_equal(korean[strlen(korean) - 1], '.');
            assert_string_not_equal(english, korean);
        }
        tale_clear(&t);
    }
}

static void ranks_that_do_different_things_are_noticed(void **state)
{
    (void)state;
    tale t;
    device *dev;
    record_event *e = &records[FSDP_FULL][1].events[atomic_load(&records[FSDP_FULL][1].n) - 1];
    record_kind kept = e->kind;
    assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &dev), FSDP_OK);
    e->kind = RECORD_STEP;
    assert_int_equal(tale_make(&t, FSDP_FULL, records[FSDP_FULL], RANKS, dev), FSDP_ERR_STATE);
    assert_non_null(strstr(fsdp_last_error(), "rank 1"));
    e->kind = kept;
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_and_memory_are_those_of_the_plan),
        cmocka_unit_test(what_is_taken_is_given_back_and_fits_its_arena),
        cmocka_unit_test(strategies_differ_in_scenes_and_not_in_losses),
        cmocka_unit_test(every_scene_has_its_sentence_in_both_languages),
        cmocka_unit_test(ranks_that_do_different_things_are_noticed),
    };
    return cmocka_run_group_tests(tests, run_ranks, free_ranks);
}
