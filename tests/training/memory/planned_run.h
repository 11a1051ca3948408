/* A training run whose memory is measured by interposed allocation calls, from opening the world to its third step,
 * beside the plan that was made without running. For the tests of this folder; each includes it once. */
#ifndef TESTS_TRAINING_MEMORY_PLANNED_RUN_H
#define TESTS_TRAINING_MEMORY_PLANNED_RUN_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fsdp/lora.h>
#include <fsdp/models.h>
#include <fsdp/optim.h>

#include "base/checked.h"
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

#ifndef __has_feature /* clang's way to tell; gcc defines macros */
#define __has_feature(name) 0
#endif
/* False, and says so: the thread sanitizer has the functions that are interposed here. */
static bool memory_is_measured(void)
{
#if defined(__SANITIZE_THREAD__) || __has_feature(thread_sanitizer)
    print_message("skipped: the thread sanitizer has these functions\n");
    return false;
#endif
    return true;
}

#endif
