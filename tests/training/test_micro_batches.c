/* Micro-batches that differ: other units, other losses, evaluation in between. Gradients and parameters are those of
 * the same step computed one micro-batch after another on one rank, whether work is recorded or not. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <fsdp/fsdp.h>

#include "base/error.h"
#include "base/hash.h"
#include "base/rng.h"
#include "shard/recording_device.h"
#include "training/support_ranks.h"

enum { WIDTH = 12, ROWS = 3, UNITS = 4, STEPS = 6, MAX_MICRO = 4, MAX_RANKS = 3 };

/* Four linear layers, each a unit; a call uses those whose bits are set. */
typedef struct branches {
    fsdp_module base;
    fsdp_module *unit[UNITS];
} branches;

static const fsdp_module_class branches_class = {.type = "branches"};

static fsdp_module *branches_new(void)
{
    branches *b = fsdp_module_new(&branches_class, sizeof *b);
    for (int i = 0; i < UNITS; i++) {
        char name[16];
        snprintf(name, sizeof name, "u%d", i);
        b->unit[i] = fsdp_linear_new(WIDTH, WIDTH, true);
        fsdp_module_add(&b->base, name, b->unit[i]);
    }
    return &b->base;
}

static fsdp_tensor *branches_call(fsdp_module *m, fsdp_tape *t, fsdp_tensor *x, unsigned used)
{
    branches *b = (branches *)m;
    for (int i = 0; i < UNITS; i++)
        x = used >> i & 1 ? fsdp_relu(t, fsdp_call(b->unit[i], t, x)) : x;
    return x;
}

typedef struct outcome {
    double loss[STEPS], norm[STEPS];
    uint64_t hash;
    int launches;
} outcome;

typedef struct setting {
    fsdp_config config;
    int micro_batches;
    unsigned used[MAX_RANKS][STEPS][MAX_MICRO]; /* bits of units */
    bool recorded;
    bool evaluates;   /* each recording is evaluated before it is trained on */
    bool second_loss; /* the same recording has another loss, and in odd steps that one is trained */
    bool says_last;   /* of the last micro-batch */
    outcome *results;
} setting;

static setting usual(fsdp_strategy strategy, int micro_batches)
{
    setting s = {.config = FSDP_CONFIG_INIT, .micro_batches = micro_batches, .says_last = true};
    s.config.strategy = strategy;
    s.config.seed = 5;
    s.config.wrap = fsdp_wrap_by_type("linear");
    memset(s.used, 0xff, sizeof s.used);
    return s;
}

static fsdp_status hash_one(void *context, const char *name, int n_dims, const int64_t *shape, const float *values)
{
    uint64_t *hash = context;
    size_t n = 1;
    for (int i = 0; i < n_dims; i++)
        n *= (size_t)shape[i];
    *hash = hash_bytes(hash_text(*hash, name), values, n * sizeof *values);
    return FSDP_OK;
}

/* Rows of one rank in one micro-batch: functions of their global number. */
static void fill(float *x, float *y, int64_t first)
{
    rng_fill_normal(rng_key_make(1), (uint64_t)(first * WIDTH), ROWS * WIDTH, 0, 1, x);
    rng_fill_normal(rng_key_make(2), (uint64_t)(first * WIDTH), ROWS * WIDTH, 0, 1, y);
}

static fsdp_status micro_batch_of(const setting *s, fsdp_model *m, int rank, int step, int micro, int64_t first)
{
    float x[ROWS * WIDTH], y[ROWS * WIDTH];
    int64_t shape[] = {ROWS, WIDTH};
    fill(x, y, first);
    fsdp_tape *t = fsdp_begin(m);
    fsdp_tensor *out =
        branches_call(fsdp_model_module(m), t, fsdp_input(t, FSDP_F32, 2, shape, x), s->used[rank][step][micro]);
    fsdp_tensor *target = fsdp_input(t, FSDP_F32, 2, shape, y);
    fsdp_loss loss = fsdp_mse(t, out, target);
    if (s->second_loss) {
        fsdp_loss other = fsdp_mse(t, fsdp_scale(t, out, 3), target);
        loss = step % 2 ? other : loss;
    }
    if (s->evaluates)
        FSDP_TRY(fsdp_evaluate(t));
    return fsdp_backward(t, loss, s->says_last && micro + 1 == s->micro_batches);
}

/* With one rank all ranks' micro-batches of the setting are computed, one after another. */
static fsdp_status train(const setting *s, fsdp_model *m, fsdp_optimizer *o, int rank, int ranks, int shared_by,
                         outcome *out)
{
    setting own = *s;
    for (int step = 0; step < STEPS; step++) {
        fsdp_step_report r;
        int n = s->micro_batches * shared_by;
        for (int k = 0; k < n; k++) {
            int micro = k / shared_by, as = shared_by > 1 ? k % shared_by : rank;
            int64_t first = (((int64_t)step * s->micro_batches + micro) * (ranks * shared_by) + as) * ROWS;
            own.says_last = s->says_last && k + 1 == n;
            FSDP_TRY(micro_batch_of(&own, m, as, step, micro, first));
        }
        FSDP_TRY(fsdp_step(o, &r));
        out->loss[step] = r.loss;
        out->norm[step] = r.gradient_norm;
        if (fsdp_step(o, &r) == FSDP_OK)
            return error_set(FSDP_ERR_STATE, "a second step without a backward is no error (step %d)", step);
    }
    out->hash = HASH_START;
    return fsdp_summon(m, hash_one, &out->hash);
}

typedef struct job_of {
    setting *s;
    int ranks, shared_by; /* shared_by > 1: one rank does the work of so many */
} job_of;

static fsdp_status run_rank(int rank, void *context)
{
    const job_of *j = context;
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_world *w;
    fsdp_model *m;
    fsdp_optimizer *o;
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 20;
    oc.lr = 0.01f, oc.clip = 0.5f;
    FSDP_TRY(j->s->recorded ? recording_world_open(&wc, &w) : fsdp_world_open(&wc, &w));
    FSDP_TRY(fsdp_shard(w, branches_new(), &j->s->config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &oc, &o));
    FSDP_TRY(train(j->s, m, o, rank, j->ranks, j->shared_by, &j->s->results[rank]));
    if (j->s->recorded)
        j->s->results[rank].launches = recording_device_of(w->dev)->launches;
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    fsdp_world_close(w);
    return FSDP_OK;
}

static outcome run(setting s, int ranks, int shared_by)
{
    size_t bytes = sizeof(outcome) * MAX_RANKS;
    s.results = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(s.results != MAP_FAILED);
    job_of j = {&s, ranks, shared_by};
    assert_true(ranks_run(ranks, run_rank, &j));
    for (int r = 1; r < ranks; r++)
        assert_true(s.results[r].hash == s.results[0].hash);
    outcome first = s.results[0];
    munmap(s.results, bytes);
    return first;
}

static void assert_close(const outcome *a, const outcome *b, double tolerance, const char *what)
{
    for (int i = 0; i < STEPS; i++) {
        if (!(fabs(a->norm[i] - b->norm[i]) <= tolerance * b->norm[i]) ||
            !(fabs(a->loss[i] - b->loss[i]) <= tolerance * b->loss[i]))
            fail_msg("%s, step %d: norm %.9g for %.9g, loss %.9g for %.9g", what, i, a->norm[i], b->norm[i], a->loss[i],
                     b->loss[i]);
    }
}

/* Runs the setting on one rank (reduced after each micro-batch) and on `ranks`, plainly and recorded. */
static void assert_follows_one_rank(setting s, int ranks, const char *what)
{
    setting one = usual(FSDP_FULL, s.micro_batches);
    char text[160];
    memcpy(one.used, s.used, sizeof one.used);
    one.second_loss = s.second_loss;
    outcome alone = run(one, 1, ranks);
    outcome plain = run(s, ranks, 1);
    s.recorded = true;
    outcome recorded = run(s, ranks, 1);
    snprintf(text, sizeof text, "%s: %s, %d ranks, %d micro-batches", what, fsdp_strategy_name(s.config.strategy),
             ranks, s.micro_batches);
    assert_close(&plain, &alone, s.config.reduce_dtype == FSDP_F32 ? 1e-5 : 0.05, text);
    assert_true(plain.hash == recorded.hash);
}

static void a_recording_that_was_evaluated_can_be_trained(void **state)
{
    (void)state;
    for (int recorded = 0; recorded < 2; recorded++) {
        setting s = usual(FSDP_FULL, 2);
        outcome plain = run(s, 1, 1);
        s.evaluates = true;
        s.recorded = recorded;
        outcome evaluated = run(s, 1, 1);
        assert_true(plain.norm[0] > 0 && plain.hash == evaluated.hash);
        assert_int_equal(evaluated.launches > 0, recorded);
    }
}

/* The second loss is the first's with three times the output: not the same gradients. */
static void each_loss_of_a_recording_is_trained_as_asked(void **state)
{
    (void)state;
    setting first = usual(FSDP_FULL, 2), both = first;
    both.second_loss = true;
    outcome one = run(first, 1, 1), two = run(both, 1, 1);
    assert_true(one.norm[0] == two.norm[0]);
    assert_true(fabs(one.loss[1] - two.loss[1]) > 0.1 * one.loss[1]);
    for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
        setting t = usual((fsdp_strategy)s, 2);
        t.second_loss = true;
        assert_follows_one_rank(t, 1, "two losses");
        assert_follows_one_rank(t, 2, "two losses");
    }
}

/* Not reduced before the last: a unit may be used first in any micro-batch, in some, in none. */
static void units_that_some_micro_batches_use(setting *s)
{
    static const unsigned uses[STEPS][MAX_MICRO] = {{0x1, 0x2, 0x4, 0xf}, {0xf, 0x3, 0x6, 0x8}, {0x3, 0x3, 0x3, 0x3},
                                                    {0x8, 0x1, 0x1, 0x9}, {0x4, 0xb, 0xb, 0x4}, {0x1, 0x2, 0x4, 0x8}};
    for (int rank = 0; rank < MAX_RANKS; rank++)
        memcpy(s->used[rank], uses, sizeof uses);
}

static void micro_batches_may_use_other_units_than_the_last(void **state)
{
    (void)state;
    for (int strategy = FSDP_FULL; strategy <= FSDP_NO_SHARD; strategy++) {
        for (int variant = 0; variant < 4; variant++) {
            setting s = usual((fsdp_strategy)strategy, MAX_MICRO);
            units_that_some_micro_batches_use(&s);
            s.config.sync_each_micro_batch = variant == 0;
            s.config.reduce_dtype = variant == 2 ? FSDP_BF16 : FSDP_F32;
            s.config.cpu_offload = variant == 3;
            assert_follows_one_rank(s, 1, "other units");
            assert_follows_one_rank(s, 2, "other units");
        }
    }
    setting s = usual(FSDP_NO_SHARD, MAX_MICRO);
    s.config.strategy = FSDP_FULL;
    s.config.sync_each_micro_batch = false;
    units_that_some_micro_batches_use(&s);
    assert_follows_one_rank(s, 3, "other units");
}

/* Replicated parameters need no gathers, so nothing makes ranks compute the same things before the last micro-batch. */
static void ranks_may_use_different_units_before_the_last_micro_batch(void **state)
{
    (void)state;
    setting s = usual(FSDP_NO_SHARD, 3);
    s.config.sync_each_micro_batch = false;
    units_that_some_micro_batches_use(&s);
    for (int step = 0; step < STEPS; step++) {
        s.used[0][step][0] = 0x1;
        s.used[1][step][0] = 0x2 << step % 3;
        s.used[1][step][1] = 0x8;
        for (int rank = 0; rank < MAX_RANKS; rank++)
            s.used[rank][step][2] = 0x2;
    }
    assert_follows_one_rank(s, 2, "different units");
    assert_follows_one_rank(s, 3, "different units");
}

static void a_step_reduces_what_no_micro_batch_called_the_last(void **state)
{
    (void)state;
    setting s = usual(FSDP_FULL, 3);
    s.config.sync_each_micro_batch = false;
    outcome said = run(s, 2, 1);
    s.says_last = false;
    outcome unsaid = run(s, 2, 1);
    assert_true(said.hash == unsaid.hash);
}

/* ---- On one recording device, by hand ---- */

typedef struct bench {
    fsdp_world *w;
    fsdp_model *m;
    fsdp_optimizer *o;
    recording_device *d;
    setting s;
} bench;

static void bench_open(bench *b)
{
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    wc.threads = 1;
    b->s = usual(FSDP_FULL, 1);
    assert_int_equal(recording_world_open(&wc, &b->w), FSDP_OK);
    assert_int_equal(fsdp_shard(b->w, branches_new(), &b->s.config, &b->m), FSDP_OK);
    assert_int_equal(fsdp_optimizer_new(b->m, &oc, &b->o), FSDP_OK);
    b->d = recording_device_of(b->w->dev);
}

static void bench_close(bench *b)
{
    fsdp_optimizer_free(b->o);
    fsdp_model_free(b->m);
    fsdp_world_close(b->w);
}

static fsdp_status bench_backward(bench *b, int step)
{
    return micro_batch_of(&b->s, b->m, 0, step, 0, step * ROWS);
}

static fsdp_status bench_step(bench *b, int step, double *norm)
{
    fsdp_step_report r = {.loss = 0};
    FSDP_TRY(bench_backward(b, step));
    FSDP_TRY(fsdp_step(b->o, &r));
    *norm = r.gradient_norm;
    return FSDP_OK;
}

/* The first step runs plainly, the second records. Whichever kernel of it fails, its error is returned; computed once
 * more, the step is as it would have been or another error, but never half of a recording. */
static void a_backward_that_fails_is_never_half_launched(void **state)
{
    (void)state;
    for (int failing = 0; failing < 2; failing++) {
        double expected = 0, norm = 0;
        bool failed = true;
        for (int kernel = 0; failed; kernel++) {
            bench b;
            bench_open(&b);
            for (int step = 0; step < failing; step++)
                assert_int_equal(bench_step(&b, step, &norm), FSDP_OK);
            b.d->fail_in = kernel; /* 0: none does */
            fsdp_status status = bench_backward(&b, failing);
            failed = kernel == 0 || b.d->fail_in == 0;
            if (kernel > 0 && failed) {
                assert_int_equal(status, FSDP_ERR_DEVICE);
                assert_non_null(strstr(fsdp_last_error(), "made to fail"));
                assert_null(b.d->open);
                if (bench_step(&b, failing, &norm) == FSDP_OK)
                    assert_true(norm == expected);
            } else if (kernel == 0) {
                fsdp_step_report r;
                assert_int_equal(fsdp_step(b.o, &r), FSDP_OK);
                expected = r.gradient_norm;
            }
            bench_close(&b);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_recording_that_was_evaluated_can_be_trained),
        cmocka_unit_test(each_loss_of_a_recording_is_trained_as_asked),
        cmocka_unit_test(micro_batches_may_use_other_units_than_the_last),
        cmocka_unit_test(ranks_may_use_different_units_before_the_last_micro_batch),
        cmocka_unit_test(a_step_reduces_what_no_micro_batch_called_the_last),
        cmocka_unit_test(a_backward_that_fails_is_never_half_launched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
