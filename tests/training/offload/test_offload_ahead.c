/* Updates that run ahead of the norm: whatever happens between a backward and its step, every loss, norm and bit is
 * that of a run in which nothing runs ahead. Steps are drawn from seeds: clips that bind and clips that do not, several
 * micro-batches, one more after the last, overflows, reads and evaluations before the step, a rate that changes late.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/rng.h"
#include "shard/step/optimizer.h"
#include "training/offload/offload_job.h"
#include "training/support_ranks.h"

enum { STEPS = 12, MAX_RANKS = 2 };

typedef enum between { NOTHING, READ, EVALUATE, MORE, SCALE, LATE_RATE, OVERFLOW, BETWEENS } between;

typedef struct scenario {
    uint64_t seed;
    bool ahead, split, half; /* half: moments of 16 bits */
    fsdp_strategy strategy;
    fsdp_dtype param_dtype;
    float clip, average;
    bool calm; /* nothing happens between backward and step */
} scenario;

typedef struct outcome {
    uint64_t hash;
    int64_t stood, redone; /* parameters */
} outcome;

typedef struct run {
    scenario s;
    outcome *results; /* (ranks), shared */
} run;

static uint32_t draw(const scenario *s, int step, int what, uint32_t n)
{
    return rng_word(rng_key_make(s->seed), (uint64_t)step, (uint64_t)what) % n;
}

static fsdp_status evaluate(training_job *j)
{
    int32_t ids[BATCH * WIDTH] = {0};
    int64_t shape[] = {BATCH, WIDTH};
    fsdp_tape *t = fsdp_begin_evaluation(j->model);
    fsdp_tensor *x = fsdp_input(t, FSDP_I32, 2, shape, ids), *y = fsdp_input(t, FSDP_I32, 2, shape, ids);
    fsdp_output(t, fsdp_llama_loss(fsdp_model_module(j->model), t, x, y).sum);
    return fsdp_evaluate(t);
}

/* What a program may do with a model between the last micro-batch and the step. */
static fsdp_status disturb(training_job *j, const scenario *s, int step, between what, uint64_t *hash)
{
    float value;
    switch (what) {
    case READ:
        FSDP_TRY(fsdp_parameter_read(j->model, j->model->contents.parameters[step % 5]->name, 3, 1, &value));
        *hash = hash_bytes(*hash, &value, sizeof value);
        return FSDP_OK;
    case EVALUATE:
        return evaluate(j);
    case MORE:
        return s->strategy == FSDP_HYBRID ? FSDP_OK : micro_batch_of(j, step + 1000, true);
    case SCALE:
        return fsdp_gradient_scale(j->model, "*", 0.5f);
    case LATE_RATE:
        fsdp_optimizer_set_lr(j->optimizer, 2e-3f);
        return FSDP_OK;
    default:
        return FSDP_OK;
    }
}

static fsdp_status one_step(training_job *j, const scenario *s, int step, uint64_t *hash)
{
    fsdp_model *m = j->model;
    const struct timespec moment = {0, 2000000}; /* for the worker: whether it comes to work changes no bit */
    between what = s->calm ? NOTHING : (between)draw(s, step, 0, BETWEENS + 2);
    int micro = s->calm ? 1 : 1 + (int)draw(s, step, 1, 2); /* another count is a wrong guess */
    double scale = m->loss_scale, count = m->expected_count;
    fsdp_step_report report;
    fsdp_optimizer_set_lr(j->optimizer, 1e-2f / (float)(1 + step / 4));
    if (what == OVERFLOW && step > 0)
        m->loss_scale = 1e38, m->expected_count = 0x1p-20;
    for (int i = 0; i < micro; i++)
        FSDP_TRY(micro_batch_of(j, step * 2 + i, i + 1 == micro));
    nanosleep(&moment, NULL);
    FSDP_TRY(disturb(j, s, step, what, hash));
    FSDP_TRY(fsdp_step(j->optimizer, &report));
    if (what == OVERFLOW && step > 0)
        m->loss_scale = scale, m->expected_count = count;
    *hash = hash_bytes(*hash, &report.loss, sizeof report.loss);
    *hash = hash_bytes(*hash, &report.gradient_norm, sizeof report.gradient_norm);
    return FSDP_OK;
}

static fsdp_status run_rank(int rank, void *context)
{
    const run *r = context;
    const scenario *s = &r->s;
    fsdp_config c = FSDP_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    training_job j;
    uint64_t hash = HASH_START, end;
    c.strategy = s->strategy;
    c.param_dtype = s->param_dtype;
    c.cpu_offload = true;
    c.cpu_offload_ahead = s->ahead;
    c.cpu_offload_split = s->split;
    oc.clip = s->clip;
    oc.weight_decay = 0.1f;
    oc.average = s->average;
    oc.state_dtype = s->half ? FSDP_BF16 : FSDP_F32;
    FSDP_TRY(open_job_with(&c, &oc, &j));
    for (int step = 0; step < STEPS; step++)
        FSDP_TRY(one_step(&j, s, step, &hash));
    FSDP_TRY(hash_of(&j, &end));
    offload_figures f = offload_figures_of(j.model);
    r->results[rank] = (outcome){hash_u64(hash, end), f.ahead, f.redone};
    close_job(&j);
    return FSDP_OK;
}

static outcome outcome_of(const scenario *s, int ranks)
{
    outcome *results = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(results, MAP_FAILED);
    run r = {*s, results};
    if (!ranks_run(ranks, run_rank, &r))
        fail_msg("seed %llu on %d ranks failed", (unsigned long long)s->seed, ranks);
    outcome first = results[0];
    munmap(results, 4096);
    return first;
}

static scenario drawn(uint64_t seed)
{
    const float clips[] = {0, 0.05f, 0.5f, 2, 1e6f};
    const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_SHARD_GRAD_OP, FSDP_NO_SHARD};
    scenario s = {.seed = seed};
    s.clip = clips[draw(&s, -1, 0, 5)];
    s.strategy = strategies[draw(&s, -1, 1, 3)];
    s.param_dtype = draw(&s, -1, 2, 2) ? FSDP_BF16 : FSDP_F32;
    s.half = draw(&s, -1, 3, 2);
    s.average = draw(&s, -1, 4, 3) ? 0 : 0.9f;
    s.split = draw(&s, -1, 5, 2);
    return s;
}

static void what_happens_before_a_step_changes_no_bit_of_it(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 14; seed++) {
        scenario s = drawn(seed);
        int ranks = 1 + (int)(seed % 2);
        outcome plain = outcome_of(&s, ranks);
        s.ahead = true;
        assert_int_equal(plain.stood + plain.redone, 0);
        if (outcome_of(&s, ranks).hash != plain.hash)
            fail_msg("seed %llu on %d ranks: updates that ran ahead changed something", (unsigned long long)seed,
                     ranks);
    }
}

/* Without clipping, what runs ahead stands. The worker may be held up in one run, but not in all of them. */
static void updates_that_run_ahead_stand_when_nothing_clips(void **state)
{
    (void)state;
    scenario s = {.seed = 3, .calm = true, .strategy = FSDP_FULL};
    uint64_t plain = outcome_of(&s, 1).hash;
    int64_t stood = 0;
    s.ahead = true;
    for (int i = 0; i < 20 && stood == 0; i++) {
        outcome o = outcome_of(&s, 1);
        assert_true(o.hash == plain);
        assert_int_equal(o.redone, 0);
        stood = o.stood;
    }
    assert_true(stood > 0);
}

/* A clip that binds in some steps: what ran ahead in those is undone and made again. */
static void updates_that_run_ahead_are_made_again_when_the_norm_clips(void **state)
{
    (void)state;
    bool stood = false, redone = false;
    for (int i = 0; i < 60 && !(stood && redone); i++) {
        scenario s = {.seed = 5, .calm = true, .strategy = FSDP_FULL, .clip = 0.8f + 0.1f * (float)(i % 20)};
        uint64_t plain = outcome_of(&s, 1).hash;
        s.ahead = true;
        outcome o = outcome_of(&s, 1);
        assert_true(o.hash == plain);
        stood |= o.stood > 0;
        redone |= o.redone > 0;
    }
    assert_true(stood && redone);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_happens_before_a_step_changes_no_bit_of_it),
        cmocka_unit_test(updates_that_run_ahead_stand_when_nothing_clips),
        cmocka_unit_test(updates_that_run_ahead_are_made_again_when_the_norm_clips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
