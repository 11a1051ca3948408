/* What crosses ranks beside gradients: values gathered for a loss that pairs samples, ranks that have nothing to do,
 * and what rank 0's device chose by timing. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <fsdp/fsdp.h>

#include "base/error.h"
#include "base/rng.h"
#include "comm/world.h"
#include "training/support_ranks.h"

enum { SAMPLES = 8, WIDTH = 6, HIDDEN = 10, STEPS = 6 };

typedef struct outcome {
    double loss[STEPS], norm[STEPS];
    float weights[HIDDEN * WIDTH];
} outcome;

typedef fsdp_status (*rank_body)(fsdp_world *w, fsdp_model *m, fsdp_optimizer *o, outcome *out);

static void fill(float *x, int first, int n)
{
    rng_fill_normal(rng_key_make(3), (uint64_t)(first * WIDTH), n * WIDTH, 0, 1, x);
}

/* Every sample's features against every other's, on whatever rank they are: sum of squares of the product matrix. */
static fsdp_status pairing_steps(fsdp_world *w, fsdp_model *m, fsdp_optimizer *o, outcome *out)
{
    int n = SAMPLES / fsdp_world_size(w), rank = fsdp_world_rank(w);
    float x[SAMPLES * WIDTH], zeros[SAMPLES * SAMPLES] = {0};
    int64_t shape[] = {n, WIDTH}, pairs[] = {n, SAMPLES};
    fill(x, rank * n, n);
    for (int step = 0; step < STEPS; step++) {
        fsdp_tape *t = fsdp_begin(m);
        fsdp_tensor *mine = fsdp_call(fsdp_model_module(m), t, fsdp_input(t, FSDP_F32, 2, shape, x));
        fsdp_tensor *all = fsdp_all_gather(t, mine);
        fsdp_loss loss = fsdp_mse(t, fsdp_matmul(t, mine, all, false, true), fsdp_input(t, FSDP_F32, 2, pairs, zeros));
        fsdp_step_report r;
        FSDP_TRY(fsdp_backward(t, loss, true));
        FSDP_TRY(fsdp_step(o, &r));
        out->loss[step] = r.loss;
        out->norm[step] = r.gradient_norm;
    }
    return fsdp_parameter_read(m, "0.weight", 0, HIDDEN * WIDTH, out->weights);
}

/* Rank 0 has all the data from the second step on; the others take part with nothing. */
static fsdp_status idle_steps(fsdp_world *w, fsdp_model *m, fsdp_optimizer *o, outcome *out)
{
    int ranks = fsdp_world_size(w), rank = fsdp_world_rank(w);
    float x[SAMPLES * WIDTH], zeros[SAMPLES * HIDDEN] = {0};
    for (int step = 0; step < STEPS; step++) {
        int n = step == 0 ? SAMPLES / ranks : SAMPLES;
        int64_t shape[] = {n, WIDTH}, target[] = {n, HIDDEN};
        fsdp_step_report r;
        fill(x, step == 0 ? rank * n : 0, n);
        if (step == 0 || rank == 0) {
            fsdp_tape *t = fsdp_begin(m);
            fsdp_tensor *y = fsdp_call(fsdp_model_module(m), t, fsdp_input(t, FSDP_F32, 2, shape, x));
            FSDP_TRY(fsdp_backward(t, fsdp_mse(t, y, fsdp_input(t, FSDP_F32, 2, target, zeros)), true));
        } else {
            FSDP_TRY(fsdp_backward_nothing(m, true));
        }
        FSDP_TRY(fsdp_step(o, &r));
        out->loss[step] = r.loss;
        out->norm[step] = r.gradient_norm;
    }
    return fsdp_parameter_read(m, "0.weight", 0, HIDDEN * WIDTH, out->weights);
}

/* A device that times: rank 0's choices are more than one round of an exchange holds, and not a whole number of them.
 */
enum { CHOICES_BYTES = 2 * 65536 + 777 };

static char choice_at(size_t i)
{
    return (char)(i * 31 + i / 251);
}

static fsdp_status export_choices(device *d, char **bytes, size_t *n)
{
    (void)d;
    *n = CHOICES_BYTES;
    *bytes = malloc(*n);
    for (size_t i = 0; i < *n; i++)
        (*bytes)[i] = choice_at(i);
    return FSDP_OK;
}

static fsdp_status import_choices(device *d, const char *name, const char *bytes, size_t n)
{
    if (!d->awaits_autotune || n != CHOICES_BYTES || strcmp(name, "rank 0") != 0)
        return error_set(FSDP_ERR_STATE, "%zu bytes of choices from %s", n, name);
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != choice_at(i))
            return error_set(FSDP_ERR_STATE, "byte %zu of the choices is another", i);
    }
    d->chunk_bytes = 4711; /* seen */
    return FSDP_OK;
}

static fsdp_status choosing_steps(fsdp_world *w, fsdp_model *m, fsdp_optimizer *o, outcome *out)
{
    w->dev->autotune_export = export_choices;
    w->dev->autotune_import = import_choices;
    FSDP_TRY(pairing_steps(w, m, o, out));
    bool seen = w->dev->chunk_bytes == 4711;
    if (seen != (fsdp_world_rank(w) > 0))
        return error_set(FSDP_ERR_STATE, "rank %d %s choices", fsdp_world_rank(w), seen ? "took" : "did not take");
    return FSDP_OK;
}

static fsdp_status run_rank(rank_body body, fsdp_strategy strategy, outcome *out)
{
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_mlp_config mc = FSDP_MLP_CONFIG_INIT;
    fsdp_config c = FSDP_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_world *w;
    fsdp_module *net;
    fsdp_model *m;
    fsdp_optimizer *o;
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 30;
    mc.inputs = WIDTH, mc.hidden = HIDDEN, mc.outputs = HIDDEN;
    c.strategy = strategy, c.wrap = fsdp_wrap_by_type("linear"), c.seed = 1;
    oc.lr = 0.01f;
    FSDP_TRY(fsdp_world_open(&wc, &w));
    FSDP_TRY(fsdp_mlp_new(&mc, &net));
    FSDP_TRY(fsdp_shard(w, net, &c, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &oc, &o));
    FSDP_TRY(body(w, m, o, out));
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    fsdp_world_close(w);
    return FSDP_OK;
}

typedef struct forked {
    rank_body body;
    fsdp_strategy strategy;
    outcome *results;
} forked;

static fsdp_status train_rank(int rank, void *context)
{
    const forked *f = context;
    return run_rank(f->body, f->strategy, &f->results[rank]);
}

static outcome run(rank_body body, fsdp_strategy strategy, int ranks)
{
    outcome *shared = mmap(NULL, sizeof *shared * 8, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    forked f = {body, strategy, shared};
    assert_true(ranks_run(ranks, train_rank, &f));
    outcome first = shared[0];
    munmap(shared, sizeof *shared * 8);
    return first;
}

static void assert_close(const outcome *a, const outcome *b)
{
    for (int i = 0; i < STEPS; i++) {
        assert_true(fabs(a->loss[i] - b->loss[i]) <= 1e-5 * fabs(b->loss[i]));
        assert_true(fabs(a->norm[i] - b->norm[i]) <= 1e-4 * fabs(b->norm[i]));
    }
    for (int i = 0; i < HIDDEN * WIDTH; i++)
        assert_true(fabsf(a->weights[i] - b->weights[i]) <= 1e-4f);
}

static void a_loss_over_pairs_across_ranks_equals_one_process(void **state)
{
    (void)state;
    outcome alone = run(pairing_steps, FSDP_FULL, 1);
    assert_true(alone.loss[STEPS - 1] < alone.loss[0]);
    for (int ranks = 2; ranks <= 4; ranks *= 2) {
        for (int s = 0; s < 4; s++) {
            outcome o = run(pairing_steps, (fsdp_strategy)s, ranks);
            assert_close(&o, &alone);
        }
    }
}

static void ranks_without_data_do_not_hang_the_others(void **state)
{
    (void)state;
    outcome alone = run(idle_steps, FSDP_FULL, 1);
    for (int ranks = 2; ranks <= 4; ranks *= 2) {
        for (int s = 0; s < 4; s++) {
            outcome o = run(idle_steps, (fsdp_strategy)s, ranks);
            assert_close(&o, &alone);
        }
    }
}

static void what_rank_0_chose_by_timing_every_rank_takes(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 4; ranks *= 2)
        run(choosing_steps, FSDP_FULL, ranks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loss_over_pairs_across_ranks_equals_one_process),
        cmocka_unit_test(ranks_without_data_do_not_hang_the_others),
        cmocka_unit_test(what_rank_0_chose_by_timing_every_rank_takes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
