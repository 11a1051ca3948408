/* What all ranks must agree on, whatever is theirs alone: the gradient's true norm, with frozen parameters and groups;
 * a step that overflows on one rank; full parameters summoned from shards. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <fsdp/fsdp.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "training/support_ranks.h"

enum { SAMPLES = 8, WIDTH = 6, HIDDEN = 10, STEPS = 5 };

typedef struct outcome {
    double loss[STEPS], norm[STEPS];
    bool skipped[STEPS];
    uint64_t initial, final; /* hashes of all parameters */
    uint64_t before_skip, after_skip;
} outcome;

typedef struct setting {
    fsdp_config config;
    int poisoned_rank; /* whose samples of poisoned_step are not finite; -1: nobody's */
    int poisoned_step;
    outcome *results;
} setting;

static fsdp_status hash_one(void *context, const char *name, int n_dims, const int64_t *shape, const float *values)
{
    uint64_t *hash = context;
    size_t n = 1;
    for (int i = 0; i < n_dims; i++)
        n *= (size_t)shape[i];
    *hash = hash_bytes(hash_text(*hash, name), values, n * sizeof *values);
    return FSDP_OK;
}

static fsdp_status hash_all(fsdp_model *m, uint64_t *out)
{
    *out = HASH_START;
    return fsdp_summon(m, hash_one, out);
}

static fsdp_status train(fsdp_world *w, const setting *s, fsdp_model *m, fsdp_optimizer *o, outcome *out)
{
    int n = SAMPLES / fsdp_world_size(w), rank = fsdp_world_rank(w);
    float x[SAMPLES * WIDTH], zeros[SAMPLES * HIDDEN] = {0};
    int64_t shape[] = {n, WIDTH}, target[] = {n, HIDDEN};
    FSDP_TRY(hash_all(m, &out->initial));
    for (int step = 0; step < STEPS; step++) {
        fsdp_step_report r;
        rng_fill_normal(rng_key_make(3), (uint64_t)(rank * n * WIDTH), n * WIDTH, 0, 1, x);
        bool poisoned = step == s->poisoned_step && rank == s->poisoned_rank;
        if (poisoned)
            x[0] = INFINITY;
        if (step == s->poisoned_step)
            FSDP_TRY(hash_all(m, &out->before_skip));
        fsdp_tape *t = fsdp_begin(m);
        fsdp_tensor *in = fsdp_cast(t, fsdp_input(t, FSDP_F32, 2, shape, x), s->config.param_dtype);
        fsdp_tensor *y = fsdp_cast(t, fsdp_call(fsdp_model_module(m), t, in), FSDP_F32);
        FSDP_TRY(fsdp_backward(t, fsdp_mse(t, y, fsdp_input(t, FSDP_F32, 2, target, zeros)), true));
        FSDP_TRY(fsdp_step(o, &r));
        out->loss[step] = r.loss;
        out->norm[step] = r.gradient_norm;
        out->skipped[step] = r.skipped;
        if (step == s->poisoned_step)
            FSDP_TRY(hash_all(m, &out->after_skip));
    }
    return hash_all(m, &out->final);
}

static fsdp_status run_rank(int rank, void *context)
{
    setting *s = context;
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_mlp_config mc = FSDP_MLP_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_world *w;
    fsdp_module *net;
    fsdp_model *m;
    fsdp_optimizer *o;
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 30;
    mc.inputs = WIDTH, mc.hidden = HIDDEN, mc.outputs = HIDDEN;
    s->config.wrap = fsdp_wrap_by_type("linear");
    s->config.seed = 1;
    oc.lr = 0.01f, oc.clip = 0.05f; /* always clips: a wrong norm is a wrong update */
    FSDP_TRY(fsdp_world_open(&wc, &w));
    FSDP_TRY(fsdp_mlp_new(&mc, &net));
    FSDP_TRY(fsdp_shard(w, net, &s->config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &oc, &o));
    FSDP_TRY(train(w, s, m, o, &s->results[rank]));
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    fsdp_world_close(w);
    return FSDP_OK;
}

static setting usual(fsdp_strategy strategy)
{
    setting s = {.config = FSDP_CONFIG_INIT, .poisoned_rank = -1, .poisoned_step = -1};
    s.config.strategy = strategy;
    return s;
}

static void run(setting *s, int ranks, outcome *all)
{
    size_t bytes = sizeof *all * 8;
    s->results = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s->results != MAP_FAILED);
    bool good = ranks_run(ranks, run_rank, s);
    memcpy(all, s->results, sizeof *all * (size_t)ranks);
    munmap(s->results, bytes);
    assert_true(good);
}

static const fsdp_strategy strategies[] = {FSDP_FULL,     FSDP_SHARD_GRAD_OP, FSDP_SHARD_OP,
                                           FSDP_NO_SHARD, FSDP_HYBRID,        FSDP_HYBRID_ZERO2};
enum { N_STRATEGIES = sizeof strategies / sizeof *strategies };

static void the_norm_is_that_of_one_process_with_groups_and_frozen_parameters(void **state)
{
    (void)state;
    const char *const frozen[] = {"0.weight", "*.bias"};
    for (int freeze = 0; freeze < 2; freeze++) {
        outcome alone, all[8];
        setting s = usual(FSDP_FULL);
        s.config.freeze = frozen, s.config.n_freeze = freeze ? 2 : 0;
        run(&s, 1, &alone);
        for (int i = 0; i < N_STRATEGIES; i++) {
            setting t = usual(strategies[i]);
            t.config.freeze = frozen, t.config.n_freeze = freeze ? 2 : 0;
            t.config.shard_group_size = i >= 4 ? 2 : 0;
            run(&t, 4, all);
            for (int step = 0; step < STEPS; step++) {
                assert_true(fabs(all[0].norm[step] - alone.norm[step]) <= 1e-5 * alone.norm[step]);
                assert_true(fabs(all[0].loss[step] - alone.loss[step]) <= 1e-5 * alone.loss[step]);
                assert_true(all[3].norm[step] == all[0].norm[step]);
            }
        }
    }
}

static void a_step_that_overflows_on_one_rank_is_skipped_by_all(void **state)
{
    (void)state;
    for (int i = 0; i < N_STRATEGIES; i++) {
        outcome all[8];
        setting s = usual(strategies[i]);
        s.config.param_dtype = FSDP_F16;
        s.config.shard_group_size = i >= 4 ? 2 : 0;
        s.poisoned_rank = 1, s.poisoned_step = 2;
        run(&s, 4, all);
        for (int rank = 0; rank < 4; rank++) {
            for (int step = 0; step < STEPS; step++)
                assert_int_equal(all[rank].skipped[step], step == 2);
            assert_true(all[rank].before_skip == all[rank].after_skip); /* nothing was changed */
            assert_true(all[rank].final != all[rank].after_skip);       /* and training went on */
            assert_true(all[rank].final == all[0].final);
        }
    }
}

static void full_parameters_are_summoned_from_any_cut_with_the_same_bits(void **state)
{
    (void)state;
    outcome alone, all[8];
    setting one = usual(FSDP_FULL);
    run(&one, 1, &alone);
    for (int ranks = 2; ranks <= 4; ranks *= 2) {
        for (int i = 0; i < 4; i++) {
            setting s = usual(strategies[i]);
            const int weights[] = {1, 3, 2, 1};
            s.config.shard_weights = i == 3 || ranks == 2 ? NULL : weights;
            run(&s, ranks, all);
            for (int rank = 0; rank < ranks; rank++)
                assert_true(all[rank].initial == alone.initial && all[rank].final == all[0].final);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_norm_is_that_of_one_process_with_groups_and_frozen_parameters),
        cmocka_unit_test(a_step_that_overflows_on_one_rank_is_skipped_by_all),
        cmocka_unit_test(full_parameters_are_summoned_from_any_cut_with_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
