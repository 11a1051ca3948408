/* Plans against arithmetic that can be done by hand: the textbook case, what a step moves, and the fastest that fits.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"
#include "device/gpu.h"
#include "plan/search.h"

static const double GB = 1e9;

/* Three billion parameters: in fp32 with gradients and Adam's two moments 16 bytes each, 48 GB. */
static workload three_billion(void)
{
    workload w = {.model = model_config_default(MODEL_DECODER), .batch = 1, .width = 512, .moments = 2};
    fsdp_llama_config *c = &w.model.decoder;
    c->vocabulary = 32000, c->hidden = 2560, c->intermediate = 6912, c->layers = 36, c->heads = c->kv_heads = 20,
    c->head_dim = 128, c->positions = 512;
    return w;
}

static fsdp_config sharding(fsdp_strategy strategy, int buffers)
{
    fsdp_config c = FSDP_CONFIG_INIT;
    c.strategy = strategy;
    c.wrap = fsdp_wrap_by_type("llama_block");
    c.gather_buffers = buffers;
    return c;
}

static device *open_device(void)
{
    device *dev;
    assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &dev), FSDP_OK);
    return dev;
}

static memory_plan plan_of(const workload *w, device *dev, fsdp_config c, int ranks, int per_node)
{
    memory_plan p;
    plan_world world = {dev, ranks, per_node};
    assert_int_equal(workload_plan(w, &c, &world, &p), FSDP_OK);
    return p;
}

static double state_of(const memory_plan *p)
{
    return (double)p->parameters + (double)p->gradients + (double)p->optimizer;
}

static void forty_eight_gigabytes_replicated_are_twelve_on_each_of_four_ranks(void **state)
{
    (void)state;
    device *dev = open_device();
    workload w = three_billion();
    memory_plan whole = plan_of(&w, dev, sharding(FSDP_NO_SHARD, 1), 4, 4);
    memory_plan part = plan_of(&w, dev, sharding(FSDP_FULL, 1), 4, 4);
    assert_true(state_of(&whole) > 47.9 * GB && state_of(&whole) < 48.5 * GB);
    assert_true(state_of(&part) > 11.9 * GB && state_of(&part) < 12.2 * GB);
    assert_true(state_of(&part) * 4 < state_of(&whole) * 1.0001); /* shards are cut on blocks */

    /* Beside its state a rank holds its largest gathered unit, the gradients that are being reduced, activations. */
    size_t embedding = (size_t)32000 * 2560 * sizeof(float);
    assert_int_equal(part.largest_unit, embedding);
    assert_true(part.gather >= embedding && part.gather < embedding + (1 << 20));
    assert_true(part.full_gradients <= 2 * embedding + (1 << 20));
    assert_int_equal(part.total, part.parameters + part.copies + part.gradients + part.optimizer + part.gather +
                                     part.full_gradients + part.activations + part.workspace + part.buffers +
                                     part.communication + part.validation);
    assert_int_equal(part.activations, whole.activations);
    assert_true(part.total < whole.total / 3);
    device_close(dev);
}

static void checkpointing_shrinks_activations_and_nothing_else(void **state)
{
    (void)state;
    device *dev = open_device();
    workload w = three_billion();
    fsdp_config c = sharding(FSDP_FULL, 2);
    memory_plan plain = plan_of(&w, dev, c, 4, 4);
    c.checkpointing = FSDP_CHECKPOINT_FULL;
    memory_plan checkpointed = plan_of(&w, dev, c, 4, 4);
    assert_true(checkpointed.activations * 3 < plain.activations);
    assert_true(state_of(&checkpointed) == state_of(&plain));
    assert_int_equal(checkpointed.gathered_bytes, plain.gathered_bytes);
    device_close(dev);
}

/* N bytes of parameters over n ranks: gathered twice but for what stays at the turn, reduced once; (n-1)/n of each. */
static void a_step_moves_what_the_strategies_are_known_for(void **state)
{
    (void)state;
    device *dev = open_device();
    workload w = three_billion();
    double n = 4, bytes = (double)plan_of(&w, dev, sharding(FSDP_FULL, 1), 1, 1).parameters, once = bytes * (n - 1) / n;
    memory_plan full = plan_of(&w, dev, sharding(FSDP_FULL, 2), 4, 4);
    memory_plan kept = plan_of(&w, dev, sharding(FSDP_SHARD_GRAD_OP, 2), 4, 4);
    memory_plan replicated = plan_of(&w, dev, sharding(FSDP_NO_SHARD, 2), 4, 4);
    /* Backward reads no embedding, and head and last block are still there. */
    double block = (double)(4 * 2560 * 2560 + 3 * 2560 * 6912 + 2 * 2560) * 4, table = 32000.0 * 2560 * 4;
    double again = (bytes - 2 * table - block) * (n - 1) / n;
    assert_true((double)full.gathered_bytes > (once + again) * 0.9999);
    assert_true((double)full.gathered_bytes < (once + again) * 1.0001);
    assert_true((double)kept.gathered_bytes > once * 0.9999 && (double)kept.gathered_bytes < once * 1.0001);
    assert_int_equal(replicated.gathered_bytes, 0);
    assert_true((double)full.reduced_bytes > once * 0.9999 && (double)full.reduced_bytes < once * 1.0001);
    assert_int_equal(kept.reduced_bytes, full.reduced_bytes);
    assert_true((double)replicated.reduced_bytes > 2 * once * 0.9999);
    assert_true((double)replicated.reduced_bytes < 2 * once * 1.0001);

    fsdp_config hybrid = sharding(FSDP_HYBRID, 2);
    memory_plan groups = plan_of(&w, dev, hybrid, 8, 4);
    assert_int_equal(groups.gathered_bytes, full.gathered_bytes); /* within groups of four, as above */
    assert_int_equal(groups.parameters, full.parameters);
    /* A quarter of the gradients, summed over two groups: there and back, half of it each. */
    assert_true((double)groups.replica_bytes > bytes / 4 * 0.9999 && (double)groups.replica_bytes < bytes / 4 * 1.0001);
    device_close(dev);
}

/* Hybrid has two groups besides the world's. */
static void what_nccl_takes_is_planned_by_group(void **state)
{
    (void)state;
    device *gpu, *cpu = open_device();
    workload w = three_billion();
    assert_int_equal(device_describe("h200", &gpu), FSDP_OK);
    comm_config link = COMM_CONFIG_INIT;
    link.backend = "nccl";
    size_t world = comm_library_bytes(&link, 1), three = comm_library_bytes(&link, 3);
    assert_true(0 < world && world < three);
    assert_int_equal(plan_of(&w, gpu, sharding(FSDP_FULL, 2), 8, 4).libraries, world);
    assert_int_equal(plan_of(&w, gpu, sharding(FSDP_HYBRID, 2), 8, 4).libraries, three);
    assert_int_equal(plan_of(&w, gpu, sharding(FSDP_FULL, 2), 1, 1).libraries, 0);
    assert_int_equal(plan_of(&w, cpu, sharding(FSDP_HYBRID, 2), 8, 4).libraries, 0);
    memory_plan p = plan_of(&w, gpu, sharding(FSDP_FULL, 2), 8, 4);
    assert_true(plan_fits(&p, gpu, (plan_limit){p.total + p.libraries, 0}));
    assert_false(plan_fits(&p, gpu, (plan_limit){p.total + p.libraries - 1, 0}));
    device_close(gpu);
    device_close(cpu);
}

/* NCCL's own memory comes in pages of 2 MiB. It holds shards, gradients, and what is gathered, which NCCL writes. */
static void pages_of_symmetric_memory_are_planned(void **state)
{
    (void)state;
    static const size_t page = (size_t)2 << 20;
    device *gpu;
    comm_config link = COMM_CONFIG_INIT;
    link.backend = "nccl", link.memory = FSDP_COMM_MEMORY_SYMMETRIC;
    if (comm_allocated_bytes(&link, 1) == 1)
        skip(); /* a build without NCCL */
    assert_int_equal(device_describe("h200", &gpu), FSDP_OK);
    workload w = three_billion();
    memory_plan plain = plan_of(&w, gpu, sharding(FSDP_FULL, 2), 8, 4);
    w.comm_memory = FSDP_COMM_MEMORY_SYMMETRIC;
    memory_plan own = plan_of(&w, gpu, sharding(FSDP_FULL, 2), 8, 4);
    size_t more = 0;
    int n = 0;
    for (int i = 0; i < own.n_allocations; i++) {
        const planned_allocation *a = &own.allocations[i];
        bool rounded = strcmp(a->what, "what peers gather") == 0 || strcmp(a->what, "gathered units") == 0 ||
                       strcmp(a->what, "full gradients") == 0;
        more += rounded ? (page - a->bytes % page) % page : 0;
        n += rounded;
    }
    assert_int_equal(n, 3);
    assert_true(more > 0);
    assert_int_equal(own.total, plain.total + more);
    device_close(gpu);
}

/* 16-bit gradients on their way to who sums them: a round's of each group, or as much as the largest unit asks for. The
 * world's group has room for what ranks tell each other (`told`), where that is more. */
static void values_on_their_way_are_planned_by_group(void **state)
{
    (void)state;
    device *gpu, *cpu = open_device();
    workload w = three_billion();
    assert_int_equal(device_describe("h200", &gpu), FSDP_OK);
    fsdp_config full = sharding(FSDP_FULL, 2), hybrid = sharding(FSDP_HYBRID, 2), whole = sharding(FSDP_NO_SHARD, 2);
    comm_config link = COMM_CONFIG_INIT;
    link.backend = "nccl";
    const size_t told = comm_exchange_staging_bytes(&link, 8);
    assert_in_range(told, 9 * COMM_EXCHANGE_BYTES, 10 * COMM_EXCHANGE_BYTES);
    assert_int_equal(comm_exchange_staging_bytes(&link, 1), 0);
    assert_int_equal(plan_of(&w, gpu, full, 8, 4).communication, told);
    full.reduce_dtype = hybrid.reduce_dtype = whole.reduce_dtype = FSDP_BF16;
    assert_int_equal(plan_of(&w, cpu, full, 1, 1).communication, 0);
    assert_int_equal(plan_of(&w, gpu, full, 1, 1).communication, 0);
    const size_t round = (size_t)128 << 20, table = 32000 * 2560;
    memory_plan p = plan_of(&w, gpu, full, 8, 4), q;
    assert_in_range(p.communication, round - (1 << 20), round);
    assert_int_equal(plan_of(&w, gpu, hybrid, 8, 4).communication,
                     told + 3 * table / 4 * 2); /* replicas are summed in fp32 */
    hybrid.gradient_dtype = FSDP_BF16;
    size_t replicas = comm_staging_bytes(&link, COMM_ALL_REDUCE, 2, (int64_t)table / 4, FSDP_BF16, FSDP_BF16, false);
    assert_int_equal(plan_of(&w, gpu, hybrid, 8, 4).communication, told + 3 * table / 4 * 2 + replicas);
    /* Sums that all ranks get come back in the type of the gradients. */
    assert_int_equal(plan_of(&w, gpu, whole, 8, 4).reduced_bytes, 3 * p.reduced_bytes);
    w.reduce_accumulation = FSDP_ACCUMULATE_LIBRARY;
    q = plan_of(&w, gpu, full, 8, 4); /* the largest unit's sum, before it is widened: the embedding's */
    assert_int_equal(q.communication, table / 8 * 2);
    assert_int_equal(q.reduced_bytes, p.reduced_bytes);
    assert_int_equal(q.total - q.communication, p.total - p.communication);
    assert_int_equal(plan_of(&w, gpu, whole, 8, 4).reduced_bytes, 2 * q.reduced_bytes);
    full.reduce_dtype = FSDP_F32;
    w.micro_batches = 2; /* NCCL cannot add to what is there */
    full.sync_each_micro_batch = false;
    assert_int_equal(plan_of(&w, gpu, full, 8, 4).communication, told);
    full.sync_each_micro_batch = true;
    assert_int_equal(plan_of(&w, gpu, full, 8, 4).communication, table / 8 * 4);
    device_close(gpu);
    device_close(cpu);
}

static void unequal_shards_are_planned_for_the_largest(void **state)
{
    (void)state;
    device *dev = open_device();
    workload w = three_billion();
    const int weights[] = {1, 2, 1};
    fsdp_config c = sharding(FSDP_FULL, 2);
    double equal = state_of(&(memory_plan){.parameters = plan_of(&w, dev, c, 3, 3).parameters});
    c.shard_weights = weights;
    double largest = state_of(&(memory_plan){.parameters = plan_of(&w, dev, c, 3, 3).parameters});
    assert_true(largest > equal * 1.499 && largest < equal * 1.501); /* a half instead of a third */
    device_close(dev);
}

static void the_fastest_that_fits_moves_and_recomputes_least(void **state)
{
    (void)state;
    device *dev = open_device();
    workload w = three_billion();
    fsdp_config c = sharding(FSDP_FULL, 2);
    plan_found found;
    const plan_entry *fit = &found.fit;
    plan_search search = {
        .work = &w, .config = &c, .world = {dev, 4, 4}, .free = {.strategy = true, .checkpointing = true}};
    const struct {
        double limit;
        fsdp_strategy strategy;
    } cases[] = {{80, FSDP_NO_SHARD}, {20, FSDP_FULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        search.limit.device = (size_t)(cases[i].limit * GB);
        assert_int_equal(plan_fit(&search, &found), FSDP_OK);
        assert_true(fit->plan.total + fit->plan.host <= search.limit.device);
        assert_int_equal(fit->config.checkpointing, FSDP_CHECKPOINT_NONE);
        assert_int_equal(fit->config.strategy, cases[i].strategy);
        assert_int_equal(found.faster.planned, i > 0);
        if (i > 0)
            assert_true(found.faster.plan.total > search.limit.device);
    }
    search.limit.device = (size_t)(2 * GB);
    assert_int_equal(plan_fit(&search, &found), FSDP_ERR_INPUT);
    device_close(dev);
}

/* What was given stays, whatever else would be faster or fit better. */
static void what_is_not_free_stays_as_given(void **state)
{
    (void)state;
    device *dev = open_device();
    workload w = three_billion();
    fsdp_config c = sharding(FSDP_SHARD_GRAD_OP, 2);
    plan_found found;
    plan_search search = {.work = &w, .config = &c, .world = {dev, 4, 4}, .limit = {(size_t)(80 * GB), 0}};
    c.checkpointing = FSDP_CHECKPOINT_FULL;
    assert_int_equal(plan_fit(&search, &found), FSDP_OK);
    assert_int_equal(found.fit.config.strategy, FSDP_SHARD_GRAD_OP);
    assert_int_equal(found.fit.config.checkpointing, FSDP_CHECKPOINT_FULL);
    search.free.checkpointing = true;
    assert_int_equal(plan_fit(&search, &found), FSDP_OK);
    assert_int_equal(found.fit.config.strategy, FSDP_SHARD_GRAD_OP);
    assert_int_equal(found.fit.config.checkpointing, FSDP_CHECKPOINT_NONE);
    device_close(dev);
}

static bool fits(plan_search s, int n)
{
    plan_found found;
    s.world.n_ranks = n;
    s.world.ranks_per_node = n < 8 ? n : 8;
    return plan_fit(&s, &found) == FSDP_OK;
}

/* Against trying one after the other. */
static void the_fewest_ranks_fit_and_one_less_does_not(void **state)
{
    (void)state;
    device *dev = open_device();
    workload w = three_billion();
    fsdp_config c = sharding(FSDP_FULL, 2);
    const double limits[] = {60, 21, 9.5, 5.5};
    w.width = 64;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        plan_search search = {.work = &w,
                              .config = &c,
                              .world = {dev, 1, 8},
                              .limit = {(size_t)(limits[i] * GB), 0},
                              .free = {.strategy = true, .checkpointing = true}};
        int n = 0, tried = 1;
        assert_int_equal(plan_fewest_ranks(&search, 64, &n), FSDP_OK);
        while (!fits(search, tried))
            tried++;
        assert_int_equal(n, tried);
        if (n > 1) {
            assert_int_equal(plan_fewest_ranks(&search, n - 1, &n), FSDP_ERR_INPUT);
            assert_non_null(strstr(fsdp_last_error(), "too few"));
        }
    }
    device_close(dev);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forty_eight_gigabytes_replicated_are_twelve_on_each_of_four_ranks),
        cmocka_unit_test(checkpointing_shrinks_activations_and_nothing_else),
        cmocka_unit_test(a_step_moves_what_the_strategies_are_known_for),
        cmocka_unit_test(what_nccl_takes_is_planned_by_group),
        cmocka_unit_test(pages_of_symmetric_memory_are_planned),
        cmocka_unit_test(values_on_their_way_are_planned_by_group),
        cmocka_unit_test(unequal_shards_are_planned_for_the_largest),
        cmocka_unit_test(the_fastest_that_fits_moves_and_recomputes_least),
        cmocka_unit_test(what_is_not_free_stays_as_given),
        cmocka_unit_test(the_fewest_ranks_fit_and_one_less_does_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
