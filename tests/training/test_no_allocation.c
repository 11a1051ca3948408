/* A training step takes no memory once the first steps have run: recording, gathers, forward, backward, reductions, the
 * optimizer, on every thread of every rank. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include <fsdp/fsdp.h>

#include "base/error.h"
#include "tensor/allocation_count.h"
#include "training/support_ranks.h"

/* Sizes at which most kernels share their work among threads, and attention has fewer heads than there are of them. */
enum { BATCH = 1, WIDTH = 190, VOCABULARY = 131, KV_HEADS = 2, MAX_THREADS = 3 };
enum { MICRO_BATCHES = 2, FIRST_STEPS = 2, STEPS = 3, MAX_RANKS = 2 };

typedef struct run {
    int threads;
    bool comm_thread;
    const char *backend;
    fsdp_config config;
    struct {
        long made, freed;
    } * found; /* (ranks), shared */
} run;

static fsdp_status make_net(fsdp_module **out)
{
    fsdp_llama_config c = FSDP_LLAMA_CONFIG_INIT;
    c.vocabulary = VOCABULARY, c.hidden = 96, c.intermediate = 160, c.layers = 3, c.heads = 6, c.kv_heads = KV_HEADS;
    c.head_dim = 16, c.positions = WIDTH, c.tied = true;
    return fsdp_llama_new(&c, out);
}

/* The batches differ from step to step, the shapes do not. */
static fsdp_status step(fsdp_model *m, fsdp_optimizer *o, int number)
{
    int32_t ids[BATCH * WIDTH], labels[BATCH * WIDTH];
    int64_t shape[] = {BATCH, WIDTH};
    for (int micro = 0; micro < MICRO_BATCHES; micro++) {
        for (int i = 0; i < BATCH * WIDTH; i++) {
            ids[i] = (i * 7 + number * 5 + micro) % VOCABULARY;
            labels[i] = i % 9 ? (i * 11 + number) % VOCABULARY : FSDP_IGNORE;
        }
        fsdp_tape *t = fsdp_begin(m);
        fsdp_tensor *x = fsdp_input(t, FSDP_I32, 2, shape, ids), *y = fsdp_input(t, FSDP_I32, 2, shape, labels);
        FSDP_TRY(fsdp_backward(t, fsdp_llama_loss(fsdp_model_module(m), t, x, y), micro + 1 == MICRO_BATCHES));
    }
    fsdp_step_report report;
    FSDP_TRY(fsdp_step(o, &report));
    return report.loss > 0 && report.gradient_norm > 0 ? FSDP_OK
                                                       : error_set(FSDP_ERR_STATE, "the step computed nothing");
}

static fsdp_status train(int rank, void *context)
{
    const run *r = context;
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_world *w;
    fsdp_module *net;
    fsdp_model *m;
    fsdp_optimizer *o;
    fsdp_status status = FSDP_OK;
    wc.backend = r->backend;
    wc.device = "cpu", wc.threads = r->threads, wc.comm_thread = r->comm_thread, wc.comm_timeout = 60;
    oc.clip = 1.0f;
    char gemms[256] = "";
    FSDP_TRY(fsdp_describe_cpu("auto", gemms, sizeof gemms));
    if (strstr(gemms, "oneDNN")) /* which allocates in its calls; the default where there is no AVX-512 */
        wc.products = "portable";
    FSDP_TRY(fsdp_world_open(&wc, &w));
    FSDP_TRY(make_net(&net));
    FSDP_TRY(fsdp_shard(w, net, &r->config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &oc, &o));
    for (int i = 0; i < FIRST_STEPS; i++)
        FSDP_TRY(step(m, o, i));
    allocations_begin();
    for (int i = 0; i < STEPS && status == FSDP_OK; i++)
        status = step(m, o, FIRST_STEPS + i);
    allocations_end();
    r->found[rank].made = atomic_load(&allocations_made);
    r->found[rank].freed = atomic_load(&allocations_freed);
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    fsdp_world_close(w);
    return status;
}

static void expect_none(run *r, int ranks)
{
    size_t bytes = MAX_RANKS * sizeof *r->found;
    r->config.wrap = fsdp_wrap_by_type("llama_block");
    r->found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(r->found, MAP_FAILED);
    assert_true(ranks_run(ranks, train, r));
    for (int rank = 0; rank < ranks; rank++) {
        if (r->found[rank].made + r->found[rank].freed > 0)
            fail_msg("%s, rank %d of %d, %d threads: %ld allocations in %d steps, %ld freed",
                     fsdp_strategy_name(r->config.strategy), rank, ranks, r->threads, r->found[rank].made, STEPS,
                     r->found[rank].freed);
    }
    munmap(r->found, bytes);
}

static void steps_of_every_strategy_allocate_nothing(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
        for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++) {
            run r = {.threads = 1, .config = FSDP_CONFIG_INIT};
            r.config.strategy = (fsdp_strategy)s;
            expect_none(&r, ranks);
        }
    }
}

static void steps_on_several_threads_allocate_nothing(void **state)
{
    (void)state;
    for (int threads = 2; threads <= MAX_THREADS; threads++) {
        run r = {.threads = threads, .config = FSDP_CONFIG_INIT};
        expect_none(&r, 1);
    }
    run r = {.threads = 2, .comm_thread = true, .config = FSDP_CONFIG_INIT};
    expect_none(&r, MAX_RANKS);
}

static void low_precision_and_checkpointed_steps_allocate_nothing(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
        run r = {.threads = 1, .config = FSDP_CONFIG_INIT};
        r.config.param_dtype = r.config.reduce_dtype = FSDP_BF16;
        r.config.checkpointing = FSDP_CHECKPOINT_FULL;
        r.config.sync_each_micro_batch = false;
        expect_none(&r, ranks);
        r.config.offload_activations = true;
        expect_none(&r, ranks);
    }
}

static void steps_with_offloaded_units_allocate_nothing(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= MAX_RANKS; ranks++) {
        for (int threads = 1; threads <= 2; threads++) {
            run r = {.threads = threads, .config = FSDP_CONFIG_INIT};
            r.config.cpu_offload = true;
            r.config.param_dtype = threads == 2 ? FSDP_BF16 : FSDP_F32;
            expect_none(&r, ranks);
        }
    }
}

#ifdef FSDP_WITH_UCX
static void steps_over_ucx_allocate_nothing(void **state)
{
    (void)state;
    for (int thread = 0; thread < 2; thread++) {
        run r = {.threads = 1, .comm_thread = thread, .backend = "ucx", .config = FSDP_CONFIG_INIT};
        r.config.param_dtype = FSDP_BF16;
        expect_none(&r, MAX_RANKS);
    }
}
#endif

int main(void)
{
    if (!ALLOCATIONS_ARE_COUNTED)
        return 77; /* skipped */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_of_every_strategy_allocate_nothing),
        cmocka_unit_test(steps_on_several_threads_allocate_nothing),
        cmocka_unit_test(low_precision_and_checkpointed_steps_allocate_nothing),
        cmocka_unit_test(steps_with_offloaded_units_allocate_nothing),
#ifdef FSDP_WITH_UCX
        cmocka_unit_test(steps_over_ucx_allocate_nothing),
#endif
    };
    return cmocka_run_group_tests_name("no allocation in training", tests, NULL, NULL);
}
