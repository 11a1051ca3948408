/* Muon on forked ranks: the update that its paper has, the same bits under every strategy and on any number of ranks,
 * and the memory and traffic that the plan says. */
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

#include "training/support_exact.h"
#include "training/support_training.h"

static training_result run(const training *t)
{
    training_result r;
    assert_true(training_run(t, &r));
    return r;
}

static training muon_training(training_model model, int ranks)
{
    training t = training_default(model, ranks);
    t.optimizer = FSDP_MUON;
    return t;
}

/* Bytes that an all_reduce of n doubles brings. */
static int64_t doubles(int64_t ranks, int64_t n)
{
    return 2 * (ranks - 1) * n * 8 / ranks;
}

static void every_strategy_gives_the_same_bits_and_takes_what_was_planned(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++) {
        training_result first = {.hash = 0};
        for (int strategy = 0; strategy < (ranks > 1 ? 4 : 1); strategy++) {
            training_result all[TRAINING_MAX_RANKS];
            training t = muon_training(ranks == 3 ? TRAIN_T5 : TRAIN_LLAMA, ranks);
            t.config.strategy = (fsdp_strategy)strategy;
            t.config.param_dtype = ranks == 2 ? FSDP_BF16 : FSDP_F32;
            assert_true(training_run_all(&t, all));
            first = strategy == 0 ? all[0] : first;
            if (all[0].hash != first.hash)
                fail_msg("%d ranks: %s and full differ", ranks, fsdp_strategy_name(t.config.strategy));
            bool kept = strategy == FSDP_SHARD_OP, sharded = strategy != FSDP_NO_SHARD;
            for (int r = 0; r < ranks; r++) {
                int64_t step = (kept ? 1 : t.micro_batches) * all[r].planned_gathered +
                               t.micro_batches * all[r].planned_reduced + all[r].planned_update +
                               (sharded ? doubles(ranks, 1) : 0) + doubles(ranks, 2);
                assert_int_equal(all[r].memory, all[r].planned_memory);
                assert_true((all[r].planned_update > 0) == (ranks > 1));
                if (ranks > 1)
                    assert_int_equal(all[r].shard_bytes, TRAINING_COUNTED * step);
            }
        }
        assert_true(first.loss[TRAINING_STEPS - 1] < first.loss[0]);
    }
}

static void adapters_groups_averages_and_accumulation_change_no_promise(void **state)
{
    (void)state;
    static const fsdp_optimizer_group groups[] = {{"*up_proj*", 0.5f, -1}, {"*q_proj*", 0, -1}, {"*norm*", -1, 0.3f}};
    fsdp_lora_config lora = FSDP_LORA_CONFIG_INIT;
    lora.rank = 3;
    for (int variant = 0; variant < 4; variant++) {
        training_result first = {.hash = 0};
        for (int strategy = 0; strategy < 2; strategy++) {
            training t = muon_training(TRAIN_LLAMA, 3);
            t.config.strategy = strategy == 0 ? FSDP_FULL : variant % 2 ? FSDP_NO_SHARD : FSDP_SHARD_OP;
            t.lora = variant == 0 ? &lora : NULL;
            t.groups = variant == 1 ? groups : NULL;
            t.n_groups = variant == 1 ? 3 : 0;
            t.average = variant == 2 ? 0.9f : 0;
            t.config.sync_each_micro_batch = variant != 3;
            training_result r = run(&t);
            first = strategy == 0 ? r : first;
            if (r.hash != first.hash || r.average_hash != first.average_hash)
                fail_msg("variant %d: %s and full differ", variant, fsdp_strategy_name(t.config.strategy));
            assert_int_equal(r.memory, r.planned_memory);
        }
    }
}

static void groups_of_ranks_follow_one_process(void **state)
{
    (void)state;
    training one = muon_training(TRAIN_LLAMA, 1);
    training_result alone = run(&one);
    for (int zero2 = 0; zero2 < 2; zero2++) {
        training t = muon_training(TRAIN_LLAMA, 4);
        t.config.strategy = zero2 ? FSDP_HYBRID_ZERO2 : FSDP_HYBRID;
        t.config.shard_group_size = 2;
        training_result r = run(&t);
        for (int i = 0; i < TRAINING_STEPS; i++) /* bf16 rounds what differs in the last bit of fp32 apart */
            if (!(fabs(r.loss[i] - alone.loss[i]) < 5e-3))
                fail_msg("step %d: loss %.9g and %.9g", i, r.loss[i], alone.loss[i]);
        assert_int_equal(r.memory, r.planned_memory);
    }
}

static void recorded_steps_and_halved_masters_give_the_same_bits(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        training t = muon_training(TRAIN_LLAMA, ranks);
        t.config.param_dtype = FSDP_BF16;
        training_result plain = run(&t);
        t.device = "recording";
        training_result recorded = run(&t);
        assert_true(recorded.launches > 0 && recorded.hash == plain.hash);
        t.split_masters = true; /* copies are rounded another way */
        training_result halves = run(&t);
        t.plainly = true;
        training_result again = run(&t);
        assert_true(halves.launches > 0 && again.launches == 0 && halves.hash == again.hash);
    }
}

static void exact_gradients_give_the_bits_of_one_process(void **state)
{
    (void)state;
    exact_same_bits_everywhere(FSDP_MUON, 1, 6);
}

/* ---- The update itself, against plain loops in double precision ---- */

enum { STEPS = 4 };

static void orthogonal(int64_t rows, int64_t columns, double *x)
{
    static double next[EXACT_MAX], gram[EXACT_MAX], square[EXACT_MAX];
    double norm = 0;
    for (int64_t i = 0; i < rows * columns; i++)
        norm += x[i] * x[i];
    for (int64_t i = 0; i < rows * columns; i++)
        x[i] /= fmax(sqrt(norm), 1e-7);
    for (int step = 0; step < 5; step++) {
        for (int64_t i = 0; i < rows * rows; i++) {
            gram[i] = 0;
            for (int64_t k = 0; k < columns; k++)
                gram[i] += x[i / rows * columns + k] * x[i % rows * columns + k];
        }
        for (int64_t i = 0; i < rows * rows; i++) {
            square[i] = -4.7750 * gram[i];
            for (int64_t k = 0; k < rows; k++)
                square[i] += 2.0315 * gram[i / rows * rows + k] * gram[k * rows + i % rows];
        }
        for (int64_t i = 0; i < rows * columns; i++) {
            next[i] = 3.4445 * x[i];
            for (int64_t k = 0; k < rows; k++)
                next[i] += square[i / columns * rows + k] * x[k * columns + i % columns];
        }
        memcpy(x, next, (size_t)(rows * columns) * sizeof *x);
    }
}

typedef struct remembered {
    double value[EXACT_MAX], first[EXACT_MAX], second[EXACT_MAX];
} remembered;

/* Of a matrix the difference in norm, of all else the largest. */
static double follow(remembered *r, const exact_parameter *p, const float *gradient, const float *value, int step,
                     const fsdp_optimizer_config *c)
{
    double direction[EXACT_MAX], lr = (double)c->lr, off = 0, moved = 0, most = 0;
    int64_t n = p->rows * p->columns;
    double decay = p->vector ? 0 : (double)c->weight_decay,
           scale = 0.2 * sqrt(fmax((double)p->rows, (double)p->columns));
    for (int64_t i = 0; i < n; i++) {
        double g = (double)gradient[i];
        r->first[i] = p->muon ? 0.95 * r->first[i] + 0.05 * g : 0.9 * r->first[i] + 0.1 * g;
        r->second[i] = 0.999 * r->second[i] + 0.001 * g * g;
        direction[i] = p->muon
                           ? 0.95 * r->first[i] + 0.05 * g
                           : r->first[i] / (1 - pow(0.9, step)) / (sqrt(r->second[i] / (1 - pow(0.999, step))) + 1e-8);
    }
    if (p->muon)
        orthogonal(p->rows, p->columns, direction);
    for (int64_t i = 0; i < n; i++) {
        double before = r->value[i];
        r->value[i] = before * (1 - lr * decay) - lr * (p->muon ? scale : 1) * direction[i];
        off += pow((double)value[i] - r->value[i], 2);
        moved += pow(r->value[i] - before, 2);
        most = fmax(most, fabs((double)value[i] - r->value[i]));
        r->value[i] = (double)value[i];
    }
    return p->muon ? sqrt(off / moved) : most;
}

static fsdp_status follow_steps(int rank, void *context)
{
    exact_model model = exact_draw(*(const uint64_t *)context);
    exact_run e;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    static remembered all[EXACT_PARAMETERS];
    static float gradient[EXACT_MAX], value[EXACT_MAX];
    (void)rank;
    oc.kind = FSDP_MUON, oc.lr = 0.02f, oc.weight_decay = 0.1f;
    FSDP_TRY(exact_open(&model, &config, &oc, &e));
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
            double error = follow(&all[i], p, gradients[i], value, step, &oc);
            if (!(error < (p->muon ? 0.05 : 1e-5)))
                return exact_fail("step %d: %s is off by %g", step, p->name, error);
        }
    }
    exact_close(&e);
    return FSDP_OK;
}

static void the_update_is_that_of_the_paper(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++)
        for (int ranks = 1; ranks <= 2; ranks++)
            assert_true(exact_ranks(ranks, follow_steps, &seed));
}

static fsdp_status try_offload(int rank, void *context)
{
    exact_model model = exact_draw(3);
    exact_run e;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    (void)rank, (void)context;
    oc.kind = FSDP_MUON;
    config.cpu_offload = true;
    fsdp_status status = exact_open(&model, &config, &oc, &e);
    if (status != FSDP_ERR_UNSUPPORTED || !strstr(fsdp_last_error(), "cpu_offload"))
        return exact_fail("offloaded units: status %d: %s", (int)status, fsdp_last_error());
    return FSDP_OK;
}

static void units_in_host_memory_are_refused(void **state)
{
    (void)state;
    assert_true(exact_ranks(1, try_offload, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_update_is_that_of_the_paper),
        cmocka_unit_test(exact_gradients_give_the_bits_of_one_process),
        cmocka_unit_test(every_strategy_gives_the_same_bits_and_takes_what_was_planned),
        cmocka_unit_test(adapters_groups_averages_and_accumulation_change_no_promise),
        cmocka_unit_test(groups_of_ranks_follow_one_process),
        cmocka_unit_test(recorded_steps_and_halved_masters_give_the_same_bits),
        cmocka_unit_test(units_in_host_memory_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
