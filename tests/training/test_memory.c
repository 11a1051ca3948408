/* Memory that a training run takes, from opening the world to its third step, measured by interposed allocation calls,
 * against the plan that was made without running: equal to the byte, for every strategy and on every rank. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fsdp/lora.h>
#include <fsdp/models.h>
#include <fsdp/optim.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/record/ring.h"
#include "optim/update.h"
#include "shard/plan/memory_plan.h"
#include "shard/model.h"
#include "training/support_ranks.h"

/* What this process has asked the system for: anonymous maps, shared memory files, and large aligned blocks of the
 * heap. The C library's own maps (heap, stacks) do not come through these names. */
static atomic_llong taken;
static atomic_llong largest; /* request of any kind */

static void note(size_t bytes)
{
    long long before = atomic_load(&largest);
    while ((long long)bytes > before && !atomic_compare_exchange_weak(&largest, &before, (long long)bytes))
        ;
}

#ifndef __SANITIZE_ADDRESS__ /* which has these functions itself */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);

void *malloc(size_t bytes)
{
    note(bytes);
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
    note(n * bytes);
    return __libc_calloc(n, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    note(bytes);
    return __libc_realloc(memory, bytes);
}
#endif

static int64_t pages(size_t bytes)
{
    return (int64_t)round_up(bytes, 4096);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (flags & MAP_ANONYMOUS) {
        note(bytes);
        atomic_fetch_add(&taken, pages(bytes));
    }
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

int munmap(void *address, size_t bytes)
{
    atomic_fetch_sub(&taken, pages(bytes)); /* the runs here unmap nothing shared before they are measured */
    return (int)syscall(SYS_munmap, address, bytes);
}

int ftruncate(int fd, off_t bytes)
{
    note((size_t)bytes);
    atomic_fetch_add(&taken, pages((size_t)bytes));
    return (int)syscall(SYS_ftruncate, fd, bytes);
}

/* Aligned blocks that are in use: arenas that grow give theirs back. */
enum { MAX_BLOCKS = 1024 };
static struct {
    void *memory;
    size_t bytes;
} blocks[MAX_BLOCKS];
static atomic_flag blocks_busy = ATOMIC_FLAG_INIT;

/* Puts `to` in the place of `from`; the bytes that were there. */
static size_t exchange_block(void *from, void *to, size_t bytes)
{
    size_t before = 0;
    while (atomic_flag_test_and_set(&blocks_busy))
        ;
    for (int i = 0; i < MAX_BLOCKS; i++) {
        if (blocks[i].memory != from)
            continue;
        before = blocks[i].bytes;
        blocks[i].memory = to;
        blocks[i].bytes = bytes;
        break;
    }
    atomic_flag_clear(&blocks_busy);
    return before;
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    void *(*real)(size_t, size_t) = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
    note(bytes);
    atomic_fetch_add(&taken, (int64_t)bytes);
    void *memory = real(alignment, bytes);
    exchange_block(NULL, memory, bytes);
    return memory;
}

#ifdef __SANITIZE_ADDRESS__
static void __libc_free(void *memory)
{
    static void (*_Atomic real)(void *);
    if (!real)
        real = (void (*)(void *))dlsym(RTLD_NEXT, "free");
    real(memory);
}
#else
void __libc_free(void *memory);
#endif

void free(void *memory)
{
    if (memory)
        atomic_fetch_sub(&taken, (int64_t)exchange_block(memory, NULL, 0));
    __libc_free(memory);
}

/* How the CPU device and (over several ranks) shared memory round a request. */
static int64_t reserved(const planned_allocation *a, int ranks)
{
    bool mapped = (a->shared && ranks > 1) || a->bytes >= (size_t)2 << 20;
    return mapped ? pages(a->bytes) : (int64_t)round_up(a->bytes, 256);
}

enum { BATCH = 3, WIDTH = 40 };

static fsdp_status make_net(fsdp_module **out)
{
    fsdp_llama_config c = FSDP_LLAMA_CONFIG_INIT;
    c.vocabulary = 517, c.hidden = 96, c.intermediate = 200, c.layers = 4, c.heads = 6, c.kv_heads = 2, c.head_dim = 16,
    c.positions = WIDTH;
    return fsdp_llama_new(&c, out);
}

static fsdp_status make_adapted(int64_t rank, fsdp_module **out)
{
    fsdp_lora_config lora = FSDP_LORA_CONFIG_INIT;
    lora.rank = rank;
    snprintf(lora.targets, sizeof lora.targets, "q_proj,v_proj,down_proj");
    FSDP_TRY(make_net(out));
    return rank > 0 ? fsdp_lora(*out, &lora) : FSDP_OK;
}

/* What is run: shards, the batch of training and of evaluation (0: none), and how a step is made up. */
typedef struct run_case {
    fsdp_config config;
    int64_t batch, evaluated;
    int micro_batches;
    fsdp_optimizer_kind optimizer;
    float average; /* its decay; 0: none is kept */
    fsdp_dtype state_dtype;
    int64_t rank; /* of adapters; 0: none, the model is trained */
} run_case;

enum { MAX_ROWS = 24 };

static fsdp_loss record_rows(fsdp_module *net, fsdp_tape *t, int64_t rows)
{
    static int32_t ids[MAX_ROWS * WIDTH];
    int64_t shape[] = {rows, WIDTH};
    return fsdp_llama_loss(net, t, fsdp_input(t, FSDP_I32, 2, shape, ids), fsdp_input(t, FSDP_I32, 2, shape, ids));
}

static fsdp_loss record(void *context, fsdp_module *net, fsdp_tape *t)
{
    return record_rows(net, t, ((const run_case *)context)->batch);
}

static fsdp_loss record_evaluation(void *context, fsdp_module *net, fsdp_tape *t)
{
    return record_rows(net, t, ((const run_case *)context)->evaluated);
}

typedef struct outcome {
    int64_t measured, planned;
    int64_t communication; /* of that; the same for every model */
    int64_t validation;    /* of that, beyond training */
} outcome;

static fsdp_status run_steps(fsdp_model *m, fsdp_optimizer *o, run_case *c)
{
    fsdp_module *net = fsdp_model_module(m);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < c->micro_batches; i++) {
            fsdp_tape *t = fsdp_begin(m);
            FSDP_TRY(fsdp_backward(t, record(c, net, t), i + 1 == c->micro_batches));
        }
        FSDP_TRY(fsdp_step(o, NULL));
        if (c->evaluated > 0 && step != 1) {
            if (c->average > 0)
                FSDP_TRY(fsdp_optimizer_swap_average(o));
            fsdp_tape *t = fsdp_begin_evaluation(m);
            (void)record_evaluation(c, net, t);
            FSDP_TRY(fsdp_evaluate(t));
            if (c->average > 0)
                FSDP_TRY(fsdp_optimizer_swap_average(o));
        }
    }
    return FSDP_OK;
}

static fsdp_status run_rank(run_case *c, outcome *out)
{
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_world *w;
    fsdp_module *net;
    fsdp_model *m;
    fsdp_optimizer *o;
    memory_plan plan;
    oc.kind = c->optimizer;
    oc.average = c->average;
    oc.state_dtype = c->state_dtype;
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 30;
    ring_open(0, 1); /* the record of events is the process's, not the model's */
    int64_t before = atomic_load(&taken);
    FSDP_TRY(fsdp_world_open(&wc, &w));
    int64_t opened = atomic_load(&taken);
    memory_plan_request request = {.dev = w->dev,
                                   .n_ranks = fsdp_world_size(w),
                                   .ranks_per_node = fsdp_world_size(w),
                                   .rank = fsdp_world_rank(w),
                                   .moments = update_kept(&oc),
                                   .optimizer = oc.kind,
                                   .half_moments = update_halves(&oc),
                                   .record = record,
                                   .evaluate = c->evaluated > 0 ? record_evaluation : NULL,
                                   .context = c};
    FSDP_TRY(make_adapted(c->rank, &net));
    FSDP_TRY(memory_plan_make(net, &c->config, &request, &plan));
    for (int i = 0; i < plan.n_allocations; i++)
        out->planned += reserved(&plan.allocations[i], request.n_ranks);
    out->communication = (int64_t)plan.communication;
    out->validation = (int64_t)plan.validation;
    before += atomic_load(&taken) - opened; /* planning is not part of the run */
    FSDP_TRY(make_adapted(c->rank, &net));
    FSDP_TRY(fsdp_shard(w, net, &c->config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &oc, &o));
    FSDP_TRY(run_steps(m, o, c));
    out->measured = atomic_load(&taken) - before;
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    fsdp_world_close(w);
    return FSDP_OK;
}

typedef struct forked {
    run_case what;
    outcome *results;
} forked;

static fsdp_status measure_rank(int rank, void *context)
{
    forked *f = context;
    return run_rank(&f->what, &f->results[rank]);
}

static outcome run_one(const run_case *c, int ranks, const char *name)
{
    outcome *results =
        (outcome *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    forked f = {*c, results};
    if (!ranks_run(ranks, measure_rank, &f))
        fail_msg("%s: %d ranks of %s failed", name, ranks, fsdp_strategy_name(c->config.strategy));
    for (int r = 0; r < ranks; r++)
        if (results[r].measured != results[r].planned)
            fail_msg("%s: %s: rank %d of %d took %lld bytes where %lld were planned", name,
                     fsdp_strategy_name(c->config.strategy), r, ranks, (long long)results[r].measured,
                     (long long)results[r].planned);
    outcome first = results[0];
    syscall(SYS_munmap, results, 4096);
    return first;
}

static outcome run(const fsdp_config *config, int ranks)
{
    run_case c = {.config = *config, .batch = BATCH, .micro_batches = 1, .optimizer = FSDP_ADAMW};
    return run_one(&c, ranks, "a step");
}

static void every_strategy_takes_what_was_planned_to_the_byte(void **state)
{
    (void)state;
    int64_t totals[2][4];
    for (int ranks = 1; ranks <= 2; ranks++) {
        for (int s = 0; s < 4; s++) {
            fsdp_config c = FSDP_CONFIG_INIT;
            c.strategy = (fsdp_strategy)s;
            c.wrap = fsdp_wrap_by_type("llama_block");
            outcome o = run(&c, ranks);
            assert_true(ranks == 1 ? o.communication == 0 : o.communication > 0);
            totals[ranks - 1][s] = o.measured - o.communication;
        }
    }
    assert_true(totals[1][FSDP_FULL] < totals[1][FSDP_SHARD_GRAD_OP]);
    assert_true(totals[1][FSDP_SHARD_GRAD_OP] < totals[1][FSDP_SHARD_OP]);
    assert_true(totals[1][FSDP_SHARD_OP] < totals[1][FSDP_NO_SHARD]);
    assert_true(totals[1][FSDP_FULL] < totals[0][FSDP_FULL]);
}

static void low_precision_and_checkpointing_take_what_was_planned(void **state)
{
    (void)state;
    for (int level = 0; level < 3; level++) {
        fsdp_config c = FSDP_CONFIG_INIT;
        c.wrap = fsdp_wrap_by_type("llama_block");
        c.param_dtype = FSDP_BF16;
        c.reduce_dtype = level == 1 ? FSDP_BF16 : FSDP_F32;
        c.checkpointing = (fsdp_checkpointing)level;
        run(&c, 2);
        c.offload_activations = true;
        run(&c, 2);
    }
}

enum { TABLE_ROWS = 24000, TABLE_WIDTH = 256 };

/* The largest request for memory while a model with a large embedding comes into being. */
static fsdp_status create_rank(int rank, void *context)
{
    int64_t *out = context;
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_llama_config c = FSDP_LLAMA_CONFIG_INIT;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_world *w;
    fsdp_module *net;
    fsdp_model *m;
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 30;
    c.vocabulary = TABLE_ROWS, c.hidden = TABLE_WIDTH, c.intermediate = 64, c.layers = 1, c.heads = c.kv_heads = 4,
    c.head_dim = 16, c.positions = 16, c.tied = true;
    config.wrap = fsdp_wrap_by_type("llama_block");
    FSDP_TRY(fsdp_world_open(&wc, &w));
    atomic_store(&largest, 0);
    FSDP_TRY(fsdp_llama_new(&c, &net));
    FSDP_TRY(fsdp_shard(w, net, &config, &m));
    out[rank] = atomic_load(&largest);
    fsdp_model_free(m);
    fsdp_world_close(w);
    return FSDP_OK;
}

static void parameters_come_into_being_shard_by_shard_never_whole(void **state)
{
    (void)state;
    const int64_t table = (int64_t)TABLE_ROWS * TABLE_WIDTH * (int64_t)sizeof(float);
    int64_t *results =
        (int64_t *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(ranks_run(1, create_rank, results));
    assert_true(results[0] >= table); /* one rank has all of it */
    assert_true(ranks_run(4, create_rank, results));
    for (int rank = 0; rank < 4; rank++)
        assert_true(results[rank] > 0 && results[rank] < table / 2); /* a shard, or what passes through at a time */
    syscall(SYS_munmap, results, 4096);
}

static void unequal_shards_and_groups_take_what_was_planned(void **state)
{
    (void)state;
    const int weights[] = {1, 3, 2};
    fsdp_config c = FSDP_CONFIG_INIT;
    c.wrap = fsdp_wrap_by_type("llama_block");
    c.shard_weights = weights;
    run(&c, 3);
    c.shard_weights = NULL;
    c.strategy = FSDP_HYBRID;
    c.shard_group_size = 2;
    run(&c, 4);
}

static void offloaded_units_take_what_was_planned_on_both_sides(void **state)
{
    (void)state;
    const char *const some[] = {"*layers.1", "*layers.2"};
    for (int ranks = 1; ranks <= 2; ranks++) {
        for (int s = 0; s < 4; s++) {
            for (int variant = 0; variant < 3; variant++) {
                fsdp_config c = FSDP_CONFIG_INIT;
                c.strategy = (fsdp_strategy)s;
                c.wrap = fsdp_wrap_by_type("llama_block");
                c.cpu_offload = true;
                c.param_dtype = variant == 1 ? FSDP_BF16 : FSDP_F32;
                c.cpu_offload_units = some;
                c.n_cpu_offload_units = variant == 2 ? 2 : 0;
                outcome o = run(&c, ranks);
                if (o.measured != o.planned)
                    fail_msg("%s on %d ranks, variant %d, took %lld bytes where %lld were planned",
                             fsdp_strategy_name(c.strategy), ranks, variant, (long long)o.measured,
                             (long long)o.planned);
            }
        }
    }
}

static fsdp_status compare_plans(int rank, void *context)
{
    (void)rank, (void)context;
    run_case what = {.batch = BATCH};
    device *dev;
    memory_plan plain, offloaded;
    fsdp_config c = FSDP_CONFIG_INIT;
    fsdp_module *net;
    FSDP_TRY(device_open_cpu(CPU_GEMM_AUTO, &dev));
    memory_plan_request request = {
        .dev = dev, .n_ranks = 1, .ranks_per_node = 1, .moments = 2, .record = record, .context = &what};
    c.wrap = fsdp_wrap_by_type("llama_block");
    c.param_dtype = FSDP_BF16;
    FSDP_TRY(make_net(&net));
    FSDP_TRY(memory_plan_make(net, &c, &request, &plain));
    c.cpu_offload = true;
    FSDP_TRY(make_net(&net));
    FSDP_TRY(memory_plan_make(net, &c, &request, &offloaded));
    device_close(dev);
    /* Masters, accumulators and two moments leave the device; copies stay, and exist on both sides. */
    size_t state = plain.parameters + plain.gradients + plain.optimizer;
    bool good = offloaded.parameters == 0 && offloaded.gradients == 0 && offloaded.optimizer == 0 &&
                offloaded.copies == plain.copies && offloaded.host_state == state + plain.copies &&
                offloaded.total < plain.total && plain.host_state == 0 && plain.host_update_bytes == 0 &&
                offloaded.host_update_bytes == plain.gradients / 4 * 30;
    return good ? FSDP_OK : error_set(FSDP_ERR_STATE, "the plan of an offloaded model does not add up");
}

static void offload_moves_the_state_from_one_side_of_the_plan_to_the_other(void **state)
{
    (void)state;
    assert_true(ranks_run(1, compare_plans, NULL));
}

static fsdp_status compare_frozen_plans(int rank, void *context)
{
    (void)rank;
    static const char *const below_head[] = {"model.embed*", "model.layers*", "model.norm*"};
    run_case what = {.batch = BATCH};
    memory_plan plans[2];
    device *dev;
    FSDP_TRY(device_open_cpu(CPU_GEMM_AUTO, &dev));
    memory_plan_request request = {
        .dev = dev, .n_ranks = 2, .ranks_per_node = 2, .moments = 2, .record = record, .context = &what};
    for (int frozen = 0; frozen < 2; frozen++) {
        fsdp_config c = FSDP_CONFIG_INIT;
        fsdp_module *net;
        c.wrap = fsdp_wrap_by_type("llama_block");
        c.param_dtype = FSDP_BF16;
        c.cpu_offload = context != NULL;
        c.freeze = below_head;
        c.n_freeze = frozen ? 3 : 0;
        FSDP_TRY(make_net(&net));
        FSDP_TRY(memory_plan_make(net, &c, &request, &plans[frozen]));
    }
    device_close(dev);
    /* The head alone, cut in two and padded, has masters, an accumulator, moments and a reduction; what runs below it
     * is neither kept nor gathered again. */
    const memory_plan *all = &plans[0], *head = &plans[1];
    size_t numel = (size_t)517 * 96 / 2, padded = round_up(numel, 64) * sizeof(float);
    bool good = context ? head->host_state == 4 * padded + padded / 2
                        : head->parameters == padded && head->gradients == padded && head->optimizer == 2 * padded;
    good &= head->reduced_bytes == (int64_t)padded &&
            head->full_gradients == (context ? 3 : 2) * padded; /* and a landing */
    good &= head->gathered_bytes < all->gathered_bytes * 7 / 10 && head->activations < all->activations / 3;
    return good ? FSDP_OK
                : error_set(FSDP_ERR_STATE,
                            "trained head: %zu masters, %zu accumulators, %zu moments, %zu on the host, %lld reduced, "
                            "%zu full gradients (shard: %zu), %lld gathered (all: %lld), %zu activations (%zu)",
                            head->parameters, head->gradients, head->optimizer, head->host_state,
                            (long long)head->reduced_bytes, head->full_gradients, padded,
                            (long long)head->gathered_bytes, (long long)all->gathered_bytes, head->activations,
                            all->activations);
}

static void frozen_parameters_cost_no_more_than_what_is_computed_with(void **state)
{
    (void)state;
    assert_true(ranks_run(1, compare_frozen_plans, NULL));
    assert_true(ranks_run(1, compare_frozen_plans, "offloaded"));
}

/* Adapters are what is trained; all else is there once, in the precision of the products. */
static void adapters_take_what_was_planned_and_little(void **state)
{
    (void)state;
    for (int variant = 0; variant < 8; variant++) {
        run_case c = {.config = FSDP_CONFIG_INIT, .batch = 1, .micro_batches = 1, .optimizer = FSDP_ADAMW};
        c.config.strategy = (fsdp_strategy)(variant % 4);
        c.config.wrap = fsdp_wrap_by_type("llama_block");
        c.config.param_dtype = variant < 4 ? FSDP_BF16 : FSDP_F32;
        int64_t all = run_one(&c, 2, "the model").measured;
        c.rank = 4;
        int64_t adapters = run_one(&c, 2, "adapters").measured;
        if (adapters > all * 2 / 3)
            fail_msg("%s: %lld bytes with adapters, %lld without", fsdp_strategy_name(c.config.strategy),
                     (long long)adapters, (long long)all);
        c.config.int8_frozen = true;
        assert_true(run_one(&c, 2, "adapters beside a base in 8 bits").measured < adapters);
    }
}

static void validation_takes_what_was_planned(void **state)
{
    (void)state;
    fsdp_config config = FSDP_CONFIG_INIT;
    config.wrap = fsdp_wrap_by_type("llama_block");
    config.checkpointing = FSDP_CHECKPOINT_FULL;
    run_case c = {.config = config, .batch = 1, .evaluated = MAX_ROWS, .micro_batches = 1, .optimizer = FSDP_ADAMW};
    for (int ranks = 1; ranks <= 2; ranks++)
        assert_true(run_one(&c, ranks, "validation").validation > 0);
    c.evaluated = 1; /* no more than a step of training has anyway */
    assert_int_equal(run_one(&c, 1, "a small validation").validation, 0);
}

/* One number more for each parameter, where the moments are; what exchanges the two is not kept. */
static void an_average_of_the_weights_takes_what_was_planned(void **state)
{
    (void)state;
    static const fsdp_optimizer_kind kinds[] = {FSDP_ADAMW, FSDP_SGD, FSDP_MUON, FSDP_ADAFACTOR};
    for (int variant = 0; variant < 32; variant++) {
        fsdp_config config = FSDP_CONFIG_INIT;
        config.strategy = (fsdp_strategy)(variant % 4);
        config.wrap = fsdp_wrap_by_type("llama_block");
        config.param_dtype = variant & 4 ? FSDP_BF16 : FSDP_F32;
        config.cpu_offload = variant & 4 && variant < 16;
        config.cpu_offload_split = variant & 1;
        run_case c = {
            .config = config, .batch = BATCH, .evaluated = BATCH, .micro_batches = 1, .optimizer = kinds[variant / 8]};
        int64_t without = run_one(&c, 2, "no average").measured;
        c.average = 0.5f;
        assert_true(run_one(&c, 2, "an average").measured > without);
    }
}

/* Two bytes less for each moment of each parameter, on the device and in host memory. */
static void moments_of_16_bits_take_what_was_planned(void **state)
{
    (void)state;
    static const fsdp_optimizer_kind kinds[] = {FSDP_ADAMW, FSDP_SGD};
    for (int variant = 0; variant < 16; variant++) {
        fsdp_config config = FSDP_CONFIG_INIT;
        config.strategy = (fsdp_strategy)(variant % 4);
        config.wrap = fsdp_wrap_by_type("llama_block");
        config.cpu_offload = variant & 4;
        config.cpu_offload_ahead = variant & 1;
        config.cpu_offload_split = variant & 2;
        run_case c = {.config = config, .batch = BATCH, .micro_batches = 1, .optimizer = kinds[variant / 8]};
        c.average = variant & 1 ? 0.5f : 0;
        int64_t whole = run_one(&c, 2, "fp32 moments").measured;
        c.state_dtype = FSDP_BF16;
        int64_t half = run_one(&c, 2, "bf16 moments").measured;
        c.config.reduce_dtype = c.config.gradient_dtype = FSDP_BF16;
        assert_true(run_one(&c, 1 + variant % 2, "bf16 moments and gradients").measured > 0);
        if (c.optimizer == FSDP_ADAMW)
            assert_true(half < whole);
        else
            assert_int_equal(half, whole); /* without momentum there are none */
    }
}

typedef struct draw {
    uint64_t state;
} draw;

static int below(draw *d, int n)
{
    d->state = d->state * 6364136223846793005u + 1442695040888963407u;
    return (int)((d->state >> 33) % (uint64_t)n);
}

/* A policy that follows from the unit's name, the number of ranks, and a seed with a bit that allows to offload. */
static void any_policy(const fsdp_module *m, const char *name, fsdp_unit_policy *p, void *context)
{
    draw d = {(uint64_t)(uintptr_t)context >> 3};
    int ranks = (int)((uintptr_t)context & 7);
    for (; *name; name++)
        d.state = d.state * 1099511628211u + (unsigned char)*name;
    p->strategy = below(&d, 2) ? (fsdp_strategy)below(&d, FSDP_STRATEGY_COUNT) : p->strategy;
    p->shard_group_size = ranks % 2 == 0 ? 2 : 1;
    int shards = p->strategy < FSDP_HYBRID ? ranks : p->shard_group_size;
    bool gathers_twice = p->strategy == FSDP_FULL || p->strategy == FSDP_HYBRID;
    if (gathers_twice && shards % 2 == 0 && below(&d, 2))
        p->reshard_group_size = 2;
    else if (p->strategy != FSDP_NO_SHARD && below(&d, 2))
        p->reshard = (fsdp_reshard_when)below(&d, 3);
    if (m->parent)
        p->checkpointing = (fsdp_checkpointing)below(&d, 3);
    p->cpu_offload = (uintptr_t)context & 8 && below(&d, 3) == 0;
    p->reduce_dtype = (fsdp_dtype)below(&d, 3);
    p->ignored = !p->reshard_group_size && below(&d, 6) == 0;
}

/* Any combination that the library takes. */
static run_case random_case(draw *d, int ranks, const int *weights)
{
    static const char *const some[] = {"*layers.1", "*layers.2"};
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    static const char *const frozen[] = {"*norm*", "*self_attn.[qkv]_proj*", "*layers.[02].*", "model.embed*"};
    fsdp_config c = FSDP_CONFIG_INIT;
    bool grouped = ranks == 4 && below(d, 3) == 0;
    c.strategy = grouped ? (below(d, 2) ? FSDP_HYBRID : FSDP_HYBRID_ZERO2) : (fsdp_strategy)below(d, 4);
    c.shard_group_size = grouped ? 2 : 0;
    c.wrap = below(d, 4) ? fsdp_wrap_by_type("llama_block") : fsdp_wrap_by_size(20000);
    c.param_dtype = types[below(d, 3)];
    c.reduce_dtype = types[below(d, 3)];
    c.checkpointing = c.wrap.kind == FSDP_WRAP_TYPE ? (fsdp_checkpointing)below(d, 3) : FSDP_CHECKPOINT_NONE;
    c.offload_activations = c.checkpointing != FSDP_CHECKPOINT_NONE && below(d, 2);
    c.cpu_offload = below(d, 3) == 0;
    c.cpu_offload_split = below(d, 2);
    c.cpu_offload_ahead = below(d, 2);
    c.cpu_offload_resident = below(d, 2) * below(d, 101);
    c.cpu_offload_units = some;
    c.n_cpu_offload_units = c.cpu_offload && c.wrap.kind == FSDP_WRAP_TYPE && below(d, 2) ? 2 : 0;
    c.recompute_cheap = below(d, 2);
    c.gather_buffers = 1 + below(d, 3);
    c.forward_prefetch = below(d, 2);
    c.sync_each_micro_batch = below(d, 3) > 0;
    if (c.strategy != FSDP_NO_SHARD && !grouped && below(d, 2))
        c.shard_weights = weights;
    if (below(d, 3) == 0) {
        c.n_freeze = 1 + below(d, 3);
        c.freeze = frozen + below(d, 4 - c.n_freeze + 1);
    }
    if (below(d, 2) == 0) {
        c.policy = any_policy;
        c.policy_context = (void *)(uintptr_t)(below(d, 1 << 20) << 4 | (below(d, 2) << 3) | ranks);
    }
    bool offloads = c.cpu_offload || ((uintptr_t)c.policy_context & 8);
    return (run_case){.config = c,
                      .batch = 1 + below(d, 4),
                      .evaluated = below(d, 2) ? 1 + below(d, MAX_ROWS) : 0,
                      .micro_batches = 1 + below(d, 3),
                      .optimizer = below(d, 3)          ? FSDP_ADAMW
                                   : offloads           ? FSDP_SGD
                                   : c.forward_prefetch ? FSDP_MUON
                                                        : FSDP_ADAFACTOR,
                      .average = below(d, 3) ? 0 : 0.5f,
                      .rank = below(d, 3) || c.n_freeze ? 0 : 1 + below(d, 9)};
}

static void random_settings_take_what_was_planned_to_the_byte(void **state)
{
    (void)state;
    const char *given = getenv("FSDP_TEST_SEED"), *cases = getenv("FSDP_TEST_CASES");
    int first = given ? atoi(given) : 1, n = cases ? atoi(cases) : 48;
    for (int seed = first; seed < first + n; seed++) {
        char name[64];
        draw d = {(uint64_t)seed * 977};
        int ranks = 1 + below(&d, 4), weights[4];
        for (int i = 0; i < 4; i++)
            weights[i] = 1 + below(&d, 5);
        run_case c = random_case(&d, ranks, weights);
        snprintf(name, sizeof name, "FSDP_TEST_SEED=%d FSDP_TEST_CASES=1", seed);
        run_one(&c, ranks, name);
    }
}

#ifndef __has_feature /* clang's way to tell; gcc defines macros */
#define __has_feature(name) 0
#endif

int main(void)
{
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
    print_message("skipped: the thread sanitizer has these functions\n");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_strategy_takes_what_was_planned_to_the_byte),
        cmocka_unit_test(low_precision_and_checkpointing_take_what_was_planned),
        cmocka_unit_test(offloaded_units_take_what_was_planned_on_both_sides),
        cmocka_unit_test(offload_moves_the_state_from_one_side_of_the_plan_to_the_other),
        cmocka_unit_test(unequal_shards_and_groups_take_what_was_planned),
        cmocka_unit_test(frozen_parameters_cost_no_more_than_what_is_computed_with),
        cmocka_unit_test(adapters_take_what_was_planned_and_little),
        cmocka_unit_test(validation_takes_what_was_planned),
        cmocka_unit_test(moments_of_16_bits_take_what_was_planned),
        cmocka_unit_test(an_average_of_the_weights_takes_what_was_planned),
        cmocka_unit_test(random_settings_take_what_was_planned_to_the_byte),
        cmocka_unit_test(parameters_come_into_being_shard_by_shard_never_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
