/* Offload: masters, moments and gradients in host memory change where a step computes, never what. On the CPU the two
 * kinds of memory are one, so every bit can be compared with the run that keeps all units on the device. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <fsdp/fsdp.h>

#include "base/error.h"
#include "base/hash.h"
#include "ckpt/load/load.h"
#include "ckpt/save/save.h"
#include "shard/offload/offload.h"
#include "state/model_state.h"
#include "training/offload/offload_job.h"
#include "training/support_ranks.h"
#include "training/support_training.h"

static const char *const models[] = {"llama", "t5", "cnn"};

/* The run without offload and the one with it: every loss, every norm, every bit of the parameters at the end. */
static void expect_same_bits(training t, const char *what)
{
    training_result plain, offloaded;
    const char *const *units = t.config.cpu_offload_units;
    int n_units = t.config.n_cpu_offload_units;
    t.config.cpu_offload = false;
    t.config.cpu_offload_units = NULL;
    t.config.n_cpu_offload_units = 0;
    assert_true(training_run(&t, &plain));
    t.config.cpu_offload = true;
    t.config.cpu_offload_units = units;
    t.config.n_cpu_offload_units = n_units;
    assert_true(training_run(&t, &offloaded));
    for (int i = 0; i < TRAINING_STEPS; i++) {
        if (offloaded.loss[i] != plain.loss[i] || offloaded.norm[i] != plain.norm[i])
            fail_msg("%s, %s on %d ranks, %s, step %d: loss %.17g and %.17g, norm %.17g and %.17g", models[t.model],
                     fsdp_strategy_name(t.config.strategy), t.ranks, what, i, plain.loss[i], offloaded.loss[i],
                     plain.norm[i], offloaded.norm[i]);
    }
    if (offloaded.hash != plain.hash)
        fail_msg("%s, %s on %d ranks, %s: the parameters at the end differ", models[t.model],
                 fsdp_strategy_name(t.config.strategy), t.ranks, what);
    assert_true(plain.loss[TRAINING_STEPS - 1] < plain.loss[0]);
}

static void offload_changes_no_bit_under_any_strategy(void **state)
{
    (void)state;
    const int worlds[] = {1, 2, 4};
    for (int w = 0; w < 3; w++) {
        for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
            training t = training_default(TRAIN_LLAMA, worlds[w]);
            t.config.strategy = (fsdp_strategy)s;
            expect_same_bits(t, "tied, accumulating");
        }
    }
}

static void offload_changes_no_bit_of_hybrid_sharding(void **state)
{
    (void)state;
    for (int s = FSDP_HYBRID; s <= FSDP_HYBRID_ZERO2; s++) {
        for (int group = 1; group <= 2; group++) {
            training t = training_default(TRAIN_LLAMA, 4);
            t.config.strategy = (fsdp_strategy)s;
            t.config.shard_group_size = group;
            expect_same_bits(t, group == 1 ? "groups of one" : "groups of two");
        }
    }
}

static void offload_changes_no_bit_of_other_models(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        expect_same_bits(training_default(TRAIN_T5, ranks), "dropout");
        expect_same_bits(training_default(TRAIN_CNN, ranks), "buffers");
    }
}

static void offload_changes_no_bit_of_low_precision(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        training t = training_default(TRAIN_LLAMA, ranks);
        t.config.param_dtype = FSDP_BF16;
        expect_same_bits(t, "bf16");
        t.config.reduce_dtype = FSDP_BF16;
        expect_same_bits(t, "bf16 reduction");
        t.config.param_dtype = t.config.reduce_dtype = FSDP_F16;
        expect_same_bits(t, "fp16 with a loss scale"); /* the first scales overflow: those steps change nothing */
    }
}

static void offload_changes_no_bit_however_gradients_accumulate(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 2; ranks++) {
        for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
            training t = training_default(TRAIN_LLAMA, ranks);
            t.config.strategy = (fsdp_strategy)s;
            t.config.sync_each_micro_batch = false;
            t.micro_batches = 3;
            expect_same_bits(t, "reduced at the last micro-batch");
        }
        training one = training_default(TRAIN_LLAMA, ranks);
        one.micro_batches = 1;
        expect_same_bits(one, "one micro-batch");
    }
}

static void offload_changes_no_bit_whatever_the_schedule(void **state)
{
    (void)state;
    const int weights[] = {3, 1};
    for (int buffers = 1; buffers <= 3; buffers++) {
        training t = training_default(TRAIN_LLAMA, 2);
        t.config.gather_buffers = buffers;
        t.config.backward_prefetch = (fsdp_prefetch)(buffers - 1);
        t.comm_thread = buffers % 2 == 0;
        t.config.checkpointing = buffers == 3 ? FSDP_CHECKPOINT_FULL : FSDP_CHECKPOINT_NONE;
        t.config.offload_activations = buffers == 3;
        expect_same_bits(t, "other prefetch");
    }
    training t = training_default(TRAIN_LLAMA, 2);
    t.config.shard_weights = weights;
    expect_same_bits(t, "unequal shards");
}

static void units_are_offloaded_by_name(void **state)
{
    (void)state;
    const char *const some[] = {"*layers.1", "root"}, *const frozen[] = {"*layers.0*", "*norm*"};
    for (int ranks = 1; ranks <= 2; ranks++) {
        training t = training_default(TRAIN_LLAMA, ranks);
        t.config.cpu_offload_units = some;
        t.config.n_cpu_offload_units = 2;
        expect_same_bits(t, "two units");
        t.config.n_cpu_offload_units = 0;
        t.config.freeze = frozen;
        t.config.n_freeze = 2;
        expect_same_bits(t, "a frozen unit, and frozen vectors in all");
    }
}

static void units_that_stay_on_the_device_change_no_bit(void **state)
{
    (void)state;
    const int percent[] = {30, 70, 100};
    for (int i = 0; i < 6; i++) {
        training t = training_default(i % 2 ? TRAIN_LLAMA : TRAIN_T5, 1 + i % 2);
        t.config.cpu_offload_resident = percent[i / 2];
        t.config.cpu_offload_split = t.config.cpu_offload_ahead = i % 2;
        t.config.param_dtype = i < 4 ? FSDP_F32 : FSDP_BF16;
        expect_same_bits(t, "some units stay");
    }
}

/* Three layers have 1,952 parameters each and the rest has 1,296 of all 7,152. */
static fsdp_status count_residents(int rank, void *context)
{
    (void)rank, (void)context;
    static const struct {
        int percent;
        const char *offloaded; /* layers 0 to 2, then the rest, which the tree begins with */
    } cases[] = {{0, "1111"}, {18, "1111"}, {19, "1110"}, {45, "1110"}, {46, "0110"}, {73, "0010"}, {100, "0000"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp_config c = FSDP_CONFIG_INIT;
        training_job j;
        char got[8] = "";
        c.cpu_offload = true;
        c.cpu_offload_resident = cases[i].percent;
        FSDP_TRY(open_job(&c, &j));
        for (int k = 0; k < j.model->layout->n_units; k++)
            got[k] = j.model->offloaded[k] ? '1' : '0';
        close_job(&j);
        if (strcmp(got, cases[i].offloaded) != 0)
            return error_set(FSDP_ERR_STATE, "%d %%: %s", cases[i].percent, got);
    }
    fsdp_config c = FSDP_CONFIG_INIT;
    training_job j;
    c.cpu_offload_resident = 101;
    fsdp_status status = open_job(&c, &j);
    bool named = strstr(fsdp_last_error(), "cpu_offload_resident is 101") != NULL;
    close_job(&j);
    return status == FSDP_ERR_INPUT && named ? FSDP_OK : error_set(FSDP_ERR_STATE, "101 %% were taken");
}

static void the_first_units_stay_as_far_as_the_share_goes(void **state)
{
    (void)state;
    assert_true(ranks_run(1, count_residents, NULL));
}

/* ---- Micro-batches that do not train every unit ---- */

typedef struct pair {
    fsdp_module base;
    fsdp_module *first, *second;
    bool both; /* of the next recording */
} pair;

static fsdp_tensor *pair_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    pair *p = (pair *)self;
    x = fsdp_call(p->first, t, x);
    return p->both ? fsdp_call(p->second, t, x) : x;
}

static const fsdp_module_class pair_class = {.type = "pair", .forward = pair_forward};

enum { PAIR_WIDTH = 12, PAIR_ROWS = 3 };

static fsdp_status open_pair(const fsdp_config *given, training_job *j)
{
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_config config = *given;
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 30;
    config.wrap = fsdp_wrap_by_type("linear");
    oc.clip = 1, oc.weight_decay = 0.1f;
    *j = (training_job){NULL, NULL, NULL};
    pair *p = fsdp_module_new(&pair_class, sizeof *p);
    p->first = fsdp_module_add(&p->base, "first", fsdp_linear_new(PAIR_WIDTH, PAIR_WIDTH, true));
    p->second = fsdp_module_add(&p->base, "second", fsdp_linear_new(PAIR_WIDTH, PAIR_WIDTH, true));
    FSDP_TRY(fsdp_world_open(&wc, &j->world));
    FSDP_TRY(fsdp_shard(j->world, &p->base, &config, &j->model));
    return fsdp_optimizer_new(j->model, &oc, &j->optimizer);
}

static fsdp_status backward_pair(training_job *j, int seed, bool both, bool last)
{
    float x[PAIR_ROWS * PAIR_WIDTH], y[PAIR_ROWS * PAIR_WIDTH];
    int64_t shape[] = {PAIR_ROWS, PAIR_WIDTH};
    for (int i = 0; i < PAIR_ROWS * PAIR_WIDTH; i++) {
        x[i] = (float)((i * 7 + seed * 3 + fsdp_world_rank(j->world)) % 11) / 11 - 0.5f;
        y[i] = (float)((i * 5 + seed) % 13) / 13 - 0.5f;
    }
    pair *p = (pair *)fsdp_model_module(j->model);
    p->both = both;
    fsdp_tape *t = fsdp_begin(j->model);
    fsdp_tensor *out = fsdp_call(&p->base, t, fsdp_input(t, FSDP_F32, 2, shape, x));
    return fsdp_backward(t, fsdp_mse(t, out, fsdp_input(t, FSDP_F32, 2, shape, y)), last);
}

typedef struct partly {
    fsdp_config config;
    uint64_t *hash; /* (ranks), shared */
} partly;

/* In turn the last micro-batch leaves the second layer out, the first one does, and both do. */
static fsdp_status train_partly(int rank, void *context)
{
    const partly *c = context;
    const bool both[][2] = {{true, false}, {false, true}, {false, false}, {true, true}, {true, false}};
    training_job j;
    FSDP_TRY(open_pair(&c->config, &j));
    for (int step = 0; step < 5; step++) {
        FSDP_TRY(backward_pair(&j, 2 * step, both[step][0], false));
        FSDP_TRY(backward_pair(&j, 2 * step + 1, both[step][1], true));
        FSDP_TRY(fsdp_step(j.optimizer, NULL));
    }
    FSDP_TRY(hash_of(&j, &c->hash[rank]));
    close_job(&j);
    return FSDP_OK;
}

static void a_unit_that_the_last_micro_batch_leaves_out_is_closed_like_the_others(void **state)
{
    (void)state;
    uint64_t *hashes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    const fsdp_strategy strategies[] = {FSDP_FULL, FSDP_NO_SHARD, FSDP_HYBRID};
    assert_ptr_not_equal(hashes, MAP_FAILED);
    for (int s = 0; s < 3; s++) {
        for (int ranks = s == 2 ? 4 : 1; ranks <= (s == 2 ? 4 : 2); ranks++) {
            partly c = {.config = FSDP_CONFIG_INIT, .hash = hashes};
            c.config.strategy = strategies[s];
            c.config.shard_group_size = s == 2 ? 2 : 0;
            assert_true(ranks_run(ranks, train_partly, &c));
            c.config.cpu_offload = true;
            c.hash = hashes + 8;
            assert_true(ranks_run(ranks, train_partly, &c));
            assert_memory_equal(hashes, hashes + 8, (size_t)ranks * sizeof *hashes);
        }
    }
    munmap(hashes, 4096);
}

/* ---- Saving and resuming, with and without ---- */

typedef struct resuming {
    const char *folder;
    bool before, after; /* offloaded when saved, when loaded */
    fsdp_strategy strategy;
    uint64_t *whole, *resumed; /* (ranks), shared */
} resuming;

static fsdp_status save_and_go_on(int rank, void *context)
{
    const resuming *r = context;
    fsdp_config c = FSDP_CONFIG_INIT;
    ckpt_save_config save = CKPT_SAVE_CONFIG_INIT;
    model_state *kept;
    training_job j;
    c.cpu_offload = r->before;
    c.strategy = r->strategy;
    save.directory = r->folder;
    save.step = 3;
    FSDP_TRY(open_job(&c, &j));
    FSDP_TRY(model_state_create(j.model, j.optimizer, NULL, &kept));
    FSDP_TRY(steps(&j, 0, 3));
    FSDP_TRY(model_state_settle(kept));
    FSDP_TRY(ckpt_save(&save, model_state_describe(kept), comm_world(j.world->comm), NULL));
    FSDP_TRY(steps(&j, 3, 6));
    FSDP_TRY(hash_of(&j, &r->whole[rank]));
    model_state_free(kept);
    close_job(&j);
    return FSDP_OK;
}

static fsdp_status load_and_go_on(int rank, void *context)
{
    const resuming *r = context;
    fsdp_config c = FSDP_CONFIG_INIT;
    ckpt_load_config load = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result found = {.extra = NULL};
    model_state *kept;
    training_job j;
    c.cpu_offload = r->after;
    c.strategy = r->strategy;
    FSDP_TRY(open_job(&c, &j));
    FSDP_TRY(model_state_create(j.model, j.optimizer, NULL, &kept));
    FSDP_TRY(steps(&j, 0, 1)); /* an update that still runs when the load begins */
    FSDP_TRY(model_state_settle(kept));
    FSDP_TRY(ckpt_resume(r->folder, &load, model_state_describe(kept), comm_world(j.world->comm), &found));
    FSDP_TRY(model_state_loaded(kept));
    j.optimizer->steps = 3;
    FSDP_TRY(steps(&j, 3, 6));
    FSDP_TRY(hash_of(&j, &r->resumed[rank]));
    ckpt_load_result_free(&found);
    model_state_free(kept);
    close_job(&j);
    return FSDP_OK;
}

static void a_resumed_run_goes_on_with_the_same_bits_offloaded_or_not(void **state)
{
    (void)state;
    uint64_t *hashes = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0), expected = 0;
    assert_ptr_not_equal(hashes, MAP_FAILED);
    for (int i = 0; i < 4; i++) {
        char folder[] = "/tmp/fsdp_offload_XXXXXX", command[64];
        assert_non_null(mkdtemp(folder));
        resuming r = {folder, i & 1, i >> 1, i == 2 ? FSDP_NO_SHARD : FSDP_FULL, hashes, hashes + 8};
        assert_true(ranks_run(2, save_and_go_on, &r));
        assert_true(ranks_run(2, load_and_go_on, &r));
        expected = i == 0 ? r.whole[0] : expected;
        assert_true(r.whole[0] == expected && r.whole[1] == expected);
        assert_true(r.resumed[0] == expected && r.resumed[1] == expected);
        snprintf(command, sizeof command, "rm -rf %s", folder);
        assert_int_equal(system(command), 0);
    }
    munmap(hashes, 4096);
}

/* ---- What goes wrong ---- */

static fsdp_status fail_at_one(void *context, int slice, offload_lanes lanes, int64_t *on_host)
{
    (void)lanes, (void)on_host;
    bool *failed = context;
    if (*failed)
        return error_set(FSDP_ERR_STATE, "called again after the failure");
    *failed = slice == 1;
    return *failed ? error_set(FSDP_ERR_NUMERIC, "struck by the test") : FSDP_OK;
}

static fsdp_status break_the_worker(int rank, void *context)
{
    (void)rank, (void)context;
    fsdp_config c = FSDP_CONFIG_INIT;
    training_job j;
    bool failed = false;
    float value;
    c.cpu_offload = true;
    FSDP_TRY(open_job(&c, &j));
    FSDP_TRY(steps(&j, 0, 2));
    FSDP_TRY(backward(&j, 2));
    FSDP_TRY(model_finish_gradients(j.model));
    FSDP_TRY(offload_update(j.model, fail_at_one, &failed, false));
    model_after_update(j.model);
    char message[512];
    bool told = backward(&j, 3) == FSDP_ERR_NUMERIC;
    snprintf(message, sizeof message, "%s", fsdp_last_error());
    told = told && strstr(message, "struck by the test") && strstr(message, model_range_at(j.model, 1).unit);
    const char *name = j.model->contents.parameters[0]->name;
    bool again = fsdp_parameter_read(j.model, name, 0, 1, &value) == FSDP_ERR_NUMERIC &&
                 strstr(fsdp_last_error(), "struck by the test") != NULL;
    close_job(&j);
    return told && again ? FSDP_OK : error_set(FSDP_ERR_STATE, "told %d, again %d: %s", told, again, message);
}

static void a_failure_of_the_update_is_reported_by_whoever_needs_it(void **state)
{
    (void)state;
    assert_true(ranks_run(1, break_the_worker, NULL));
}

static fsdp_status give_a_wrong_glob(int rank, void *context)
{
    (void)rank, (void)context;
    const char *const globs[] = {"*layers.0", "decoder.*"};
    fsdp_config c = FSDP_CONFIG_INIT;
    training_job j;
    c.cpu_offload = true;
    c.cpu_offload_units = globs;
    c.n_cpu_offload_units = 2;
    fsdp_status status = open_job(&c, &j);
    char message[1024];
    snprintf(message, sizeof message, "%s", fsdp_last_error());
    close_job(&j);
    bool good = status == FSDP_ERR_INPUT && strstr(message, "\"decoder.*\"") && strstr(message, "layers.2");
    return good ? FSDP_OK : error_set(FSDP_ERR_STATE, "the refusal says: %s", message);
}

static void a_glob_without_a_unit_is_refused_with_the_names_there_are(void **state)
{
    (void)state;
    assert_true(ranks_run(1, give_a_wrong_glob, NULL));
}

/* A step whose gradient is not finite leaves host memory as it was. */
static fsdp_status poison_a_step(int rank, void *context)
{
    (void)rank, (void)context;
    fsdp_config c = FSDP_CONFIG_INIT;
    fsdp_step_report report;
    uint64_t before, after;
    training_job j;
    c.cpu_offload = true;
    FSDP_TRY(open_job(&c, &j));
    FSDP_TRY(steps(&j, 0, 2));
    FSDP_TRY(hash_of(&j, &before));
    j.model->loss_scale = 1e38; /* the seed of backward overflows */
    j.model->expected_count = 0x1p-20;
    FSDP_TRY(backward(&j, 2));
    FSDP_TRY(fsdp_step(j.optimizer, &report));
    FSDP_TRY(hash_of(&j, &after));
    close_job(&j);
    return report.skipped && before == after ? FSDP_OK : error_set(FSDP_ERR_STATE, "a skipped step changed something");
}

static void a_skipped_step_changes_nothing_in_host_memory(void **state)
{
    (void)state;
    assert_true(ranks_run(1, poison_a_step, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offload_changes_no_bit_under_any_strategy),
        cmocka_unit_test(offload_changes_no_bit_of_hybrid_sharding),
        cmocka_unit_test(offload_changes_no_bit_of_other_models),
        cmocka_unit_test(offload_changes_no_bit_of_low_precision),
        cmocka_unit_test(offload_changes_no_bit_however_gradients_accumulate),
        cmocka_unit_test(offload_changes_no_bit_whatever_the_schedule),
        cmocka_unit_test(units_are_offloaded_by_name),
        cmocka_unit_test(units_that_stay_on_the_device_change_no_bit),
        cmocka_unit_test(the_first_units_stay_as_far_as_the_share_goes),
        cmocka_unit_test(a_unit_that_the_last_micro_batch_leaves_out_is_closed_like_the_others),
        cmocka_unit_test(a_resumed_run_goes_on_with_the_same_bits_offloaded_or_not),
        cmocka_unit_test(a_failure_of_the_update_is_reported_by_whoever_needs_it),
        cmocka_unit_test(a_glob_without_a_unit_is_refused_with_the_names_there_are),
        cmocka_unit_test(a_skipped_step_changes_nothing_in_host_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
