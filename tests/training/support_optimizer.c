/* Runs and comparisons. */
#include "training/support_optimizer.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

training_result optimizer_run(const training *t)
{
    training_result r;
    assert_true(training_run(t, &r));
    return r;
}

static training training_with(fsdp_optimizer_kind kind, training_model model, int ranks)
{
    training t = training_default(model, ranks);
    t.optimizer = kind;
    return t;
}

/* Bytes that an all_reduce of n doubles brings. */
static int64_t doubles(int64_t ranks, int64_t n)
{
    return 2 * (ranks - 1) * n * 8 / ranks;
}

void optimizer_check_strategies(fsdp_optimizer_kind kind)
{
    for (int ranks = 1; ranks <= 3; ranks++) {
        training_result first = {.hash = 0};
        for (int strategy = 0; strategy < (ranks > 1 ? 4 : 1); strategy++) {
            training_result all[TRAINING_MAX_RANKS];
            training t = training_with(kind, ranks == 3 ? TRAIN_T5 : TRAIN_LLAMA, ranks);
            t.config.strategy = (fsdp_strategy)strategy;
            t.config.param_dtype = ranks == 2 ? FSDP_BF16 : FSDP_F32;
            assert_true(training_run_all(&t, all));
            first = strategy == 0 ? all[0] : first;
            if (all[0].hash != first.hash)
                fail_msg("%d ranks: %s and full differ", ranks, fsdp_strategy_name(t.config.strategy));
            bool kept = strategy == FSDP_SHARD_OP, sharded = strategy != FSDP_NO_SHARD;
            for (int r = 0; r < ranks; r++) {
                int64_t step = (kept ? 1 : t.micro_batches) * all[r].planned_gathered +
                               t.micro_batches * all[r].planned_reduced + all[r].planned_update + doubles(ranks, 3);
                assert_int_equal(all[r].memory, all[r].planned_memory);
                /* whole gradients have their sums at hand, but owners still hand out directions */
                assert_true((all[r].planned_update > 0) == (ranks > 1 && (sharded || kind == FSDP_MUON)));
                if (ranks > 1)
                    assert_int_equal(all[r].shard_bytes, TRAINING_COUNTED * step);
            }
        }
        assert_true(first.loss[TRAINING_STEPS - 1] < first.loss[0]);
    }
}

void optimizer_check_variants(fsdp_optimizer_kind kind)
{
    static const fsdp_optimizer_group groups[] = {{"*up_proj*", 0.5f, -1}, {"*q_proj*", 0, -1}, {"*norm*", -1, 0.3f}};
    fsdp_lora_config lora = FSDP_LORA_CONFIG_INIT;
    lora.rank = 3;
    static const int nothing_for_the_middle[] = {100000, 1, 100000};
    for (int variant = 0; variant < 5; variant++) {
        training_result first = {.hash = 0};
        for (int strategy = 0; strategy < 2; strategy++) {
            training t = training_with(kind, TRAIN_LLAMA, 3);
            t.config.strategy = strategy == 0 ? FSDP_FULL : variant % 2 ? FSDP_NO_SHARD : FSDP_SHARD_OP;
            t.lora = variant == 0 ? &lora : NULL;
            t.groups = variant == 1 ? groups : NULL;
            t.n_groups = variant == 1 ? 3 : 0;
            t.average = variant == 2 ? 0.9f : 0;
            t.config.sync_each_micro_batch = variant != 3;
            t.config.shard_weights = variant == 4 ? nothing_for_the_middle : NULL;
            training_result r = optimizer_run(&t);
            first = strategy == 0 ? r : first;
            if (r.hash != first.hash || r.average_hash != first.average_hash)
                fail_msg("variant %d: %s and full differ", variant, fsdp_strategy_name(t.config.strategy));
            assert_int_equal(r.memory, r.planned_memory);
        }
    }
}

void optimizer_check_hybrid(fsdp_optimizer_kind kind, double tolerance)
{
    training one = training_with(kind, TRAIN_LLAMA, 1);
    training_result alone = optimizer_run(&one);
    for (int zero2 = 0; zero2 < 2; zero2++) {
        training t = training_with(kind, TRAIN_LLAMA, 4);
        t.config.strategy = zero2 ? FSDP_HYBRID_ZERO2 : FSDP_HYBRID;
        t.config.shard_group_size = 2;
        training_result r = optimizer_run(&t);
        for (int i = 0; i < TRAINING_STEPS; i++)
            if (!(fabs(r.loss[i] - alone.loss[i]) <= tolerance))
                fail_msg("step %d: loss %.9g and %.9g", i, r.loss[i], alone.loss[i]);
        assert_int_equal(r.memory, r.planned_memory);
    }
}

void optimizer_check_recorded(fsdp_optimizer_kind kind)
{
    for (int ranks = 1; ranks <= 2; ranks++) {
        training t = training_with(kind, TRAIN_LLAMA, ranks);
        t.config.param_dtype = FSDP_BF16;
        training_result plain = optimizer_run(&t);
        t.device = "recording";
        training_result recorded = optimizer_run(&t);
        assert_true(recorded.launches > 0 && recorded.hash == plain.hash);
        t.split_masters = true; /* copies are rounded another way */
        training_result halves = optimizer_run(&t);
        t.plainly = true;
        training_result again = optimizer_run(&t);
        assert_true(halves.launches > 0 && again.launches == 0 && halves.hash == again.hash);
    }
}

static fsdp_status try_offload(int rank, void *context)
{
    exact_model model = exact_draw(3);
    exact_run e;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    (void)rank;
    oc.kind = *(const fsdp_optimizer_kind *)context;
    config.cpu_offload = true;
    fsdp_status status = exact_open(&model, &config, &oc, &e);
    if (status != FSDP_ERR_UNSUPPORTED || !strstr(fsdp_last_error(), "cpu_offload"))
        return exact_fail("offloaded units: status %d: %s", (int)status, fsdp_last_error());
    return FSDP_OK;
}

static fsdp_status try_halves(int rank, void *context)
{
    exact_model model = exact_draw(3);
    exact_run e;
    (void)rank;
    for (int gradients = 0; gradients < 2; gradients++) {
        fsdp_config config = FSDP_CONFIG_INIT;
        fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
        oc.kind = *(const fsdp_optimizer_kind *)context;
        if (gradients)
            config.reduce_dtype = config.gradient_dtype = FSDP_BF16;
        else
            oc.state_dtype = FSDP_BF16;
        fsdp_status status = exact_open(&model, &config, &oc, &e);
        if (status != FSDP_ERR_INPUT || !strstr(fsdp_last_error(), gradients ? "gradients in fp32" : "moments in fp32"))
            return exact_fail("16 bits: status %d: %s", (int)status, fsdp_last_error());
    }
    return FSDP_OK;
}

void optimizer_check_halves_refused(fsdp_optimizer_kind kind)
{
    assert_true(exact_ranks(1, try_halves, &kind));
}

void optimizer_check_offload_refused(fsdp_optimizer_kind kind)
{
    assert_true(exact_ranks(1, try_offload, &kind));
}

/* ---- Step by step ---- */

enum { STEPS = 4 };

typedef struct followed {
    uint64_t seed;
    const fsdp_optimizer_config *optimizer;
    optimizer_reference reference;
} followed;

static fsdp_status follow_steps(int rank, void *context)
{
    const followed *f = context;
    exact_model model = exact_draw(f->seed);
    exact_run e;
    fsdp_config config = FSDP_CONFIG_INIT;
    static optimizer_memory all[EXACT_PARAMETERS];
    static float gradient[EXACT_MAX], value[EXACT_MAX];
    (void)rank;
    FSDP_TRY(exact_open(&model, &config, f->optimizer, &e));
    for (int i = 0; i < model.n_parameters; i++) {
        FSDP_TRY(fsdp_parameter_read(e.model, model.parameters[i].name, 0, exact_numel(&model, i), value));
        for (int64_t k = 0; k < exact_numel(&model, i); k++)
            all[i].value[k] = (double)value[k];
    }
    for (int step = 1; step <= STEPS; step++) {
        static float gradients[EXACT_PARAMETERS][EXACT_MAX];
        FSDP_TRY(exact_backward(&e, &model, step, 1));
        for (int i = 0; i < model.n_parameters; i++) {
            FSDP_TRY(fsdp_gradient_read(e.model, model.parameters[i].name, 0, exact_numel(&model, i), gradient));
            memcpy(gradients[i], gradient, sizeof gradient);
        }
        FSDP_TRY(fsdp_step(e.optimizer, NULL));
        for (int i = 0; i < model.n_parameters; i++) {
            const exact_parameter *p = &model.parameters[i];
            FSDP_TRY(fsdp_parameter_read(e.model, p->name, 0, exact_numel(&model, i), value));
            double error = f->reference(&all[i], p, gradients[i], value, step, f->optimizer);
            if (!(error < 1))
                return exact_fail("step %d: %s is off by %g times what is allowed", step, p->name, error);
            for (int64_t k = 0; k < exact_numel(&model, i); k++)
                all[i].value[k] = (double)value[k];
        }
    }
    exact_close(&e);
    return FSDP_OK;
}

void optimizer_check_steps(const fsdp_optimizer_config *c, optimizer_reference reference)
{
    for (uint64_t seed = 1; seed <= 3; seed++) {
        followed f = {seed, c, reference};
        for (int ranks = 1; ranks <= 2; ranks++)
            assert_true(exact_ranks(ranks, follow_steps, &f));
    }
}
