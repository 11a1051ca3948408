/* Memory that a training run takes, against its plan: equal to the byte, for every strategy and on every rank.
 * test_memory_random.c draws settings. */
#include "training/memory/planned_run.h"

#include "base/error.h"

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

int main(void)
{
    if (!memory_is_measured())
        return 77;
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
        cmocka_unit_test(parameters_come_into_being_shard_by_shard_never_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
