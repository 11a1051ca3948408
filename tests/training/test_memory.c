/* Memory that a training run takes, measured by interposed allocation calls, against the plan that was made without
 * running: equal to the byte, for every strategy, on one and on two ranks. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <fsdp/models.h>
#include <fsdp/optim.h>

#include "base/checked.h"
#include "base/error.h"
#include "shard/memory_plan.h"
#include "shard/model.h"
#include "training/support_ranks.h"

/* What this process has asked the system for: anonymous maps, shared memory files, and large aligned blocks of the
 * heap. The C library's own maps (heap, stacks) do not come through these names. */
static atomic_llong taken;

static int64_t pages(size_t bytes)
{
    return (int64_t)round_up(bytes, 4096);
}

void *mmap(void *address, size_t bytes, int protection, int flags, int fd, off_t offset)
{
    if (flags & MAP_ANONYMOUS)
        atomic_fetch_add(&taken, pages(bytes));
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, fd, offset);
}

int munmap(void *address, size_t bytes)
{
    atomic_fetch_sub(&taken, pages(bytes)); /* the runs here unmap nothing shared before they are measured */
    return (int)syscall(SYS_munmap, address, bytes);
}

int ftruncate(int fd, off_t bytes)
{
    atomic_fetch_add(&taken, pages((size_t)bytes));
    return (int)syscall(SYS_ftruncate, fd, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    void *(*real)(size_t, size_t) = (void *(*)(size_t, size_t))dlsym(RTLD_NEXT, "aligned_alloc");
    atomic_fetch_add(&taken, (int64_t)bytes);
    return real(alignment, bytes);
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

static fsdp_loss record(void *context, fsdp_module *net, fsdp_tape *t)
{
    const int32_t *ids = context;
    int64_t shape[] = {BATCH, WIDTH};
    return fsdp_llama_loss(net, t, fsdp_input(t, FSDP_I32, 2, shape, ids), fsdp_input(t, FSDP_I32, 2, shape, ids));
}

typedef struct outcome {
    int64_t measured, planned;
} outcome;

static fsdp_status run_rank(const fsdp_config *config, outcome *out)
{
    static int32_t ids[BATCH * WIDTH];
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_optimizer_config oc = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_world *w;
    fsdp_module *net;
    fsdp_model *m;
    fsdp_optimizer *o;
    memory_plan plan;
    wc.device = "cpu", wc.threads = 1, wc.comm_timeout = 30;
    FSDP_TRY(fsdp_world_open(&wc, &w));
    memory_plan_request request = {.dev = w->dev,
                                   .n_ranks = fsdp_world_size(w),
                                   .ranks_per_node = fsdp_world_size(w),
                                   .moments = 2,
                                   .record = record,
                                   .context = ids};
    FSDP_TRY(make_net(&net));
    FSDP_TRY(memory_plan_make(net, config, &request, &plan));
    for (int i = 0; i < plan.n_allocations; i++)
        out->planned += reserved(&plan.allocations[i], request.n_ranks);
    int64_t before = atomic_load(&taken);
    FSDP_TRY(make_net(&net));
    FSDP_TRY(fsdp_shard(w, net, config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &oc, &o));
    for (int step = 0; step < 3; step++) {
        fsdp_tape *t = fsdp_begin(m);
        FSDP_TRY(fsdp_backward(t, record(ids, net, t), true));
        FSDP_TRY(fsdp_step(o, NULL));
    }
    out->measured = atomic_load(&taken) - before;
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    fsdp_world_close(w);
    return FSDP_OK;
}

typedef struct forked {
    const fsdp_config *config;
    outcome *results;
} forked;

static fsdp_status measure_rank(int rank, void *context)
{
    const forked *f = context;
    return run_rank(f->config, &f->results[rank]);
}

static outcome run(const fsdp_config *config, int ranks)
{
    outcome *results =
        (outcome *)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    forked f = {config, results};
    assert_true(ranks_run(ranks, measure_rank, &f));
    outcome first = results[0];
    syscall(SYS_munmap, results, 4096);
    return first;
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
            if (o.measured != o.planned)
                fail_msg("%s on %d ranks took %lld bytes where %lld were planned", fsdp_strategy_name(c.strategy),
                         ranks, (long long)o.measured, (long long)o.planned);
            totals[ranks - 1][s] = o.measured;
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
        outcome o = run(&c, 2);
        assert_int_equal(o.measured, o.planned);
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
