/* Products in 8 bits through the API, on ranks whose batches have different shapes, also ones that are no multiple of
 * 16: shadow steps judge alike on all of them, and when weights are rounded makes no difference. */
#include "api/support_ranks.h"

enum { WIDTH = 16, MOST_ROWS = 32, STEPS = 4, NUMBERS = 2 * WIDTH * WIDTH };

static fsdp_loss record(fsdp_model *m, fsdp_tape *t, int64_t rows)
{
    static float x[MOST_ROWS * WIDTH], y[MOST_ROWS * WIDTH]; /* read when the step runs */
    const int64_t shape[] = {rows, WIDTH};
    for (int i = 0; i < MOST_ROWS * WIDTH; i++) {
        x[i] = (float)(i * 37 % 41) / 41 - 0.5f;
        y[i] = (float)(i * 17 % 23) / 23;
    }
    fsdp_tensor *out = fsdp_call(fsdp_model_module(m), t, fsdp_input(t, FSDP_F32, 2, shape, x));
    return fsdp_mse(t, fsdp_cast(t, out, FSDP_F32), fsdp_input(t, FSDP_F32, 2, shape, y));
}

static fsdp_module *make_net(void)
{
    fsdp_module *net = fsdp_sequential_new();
    fsdp_module_add(net, "up", fsdp_linear_new(WIDTH, 2 * WIDTH, true));
    fsdp_module_add(net, "down", fsdp_linear_new(2 * WIDTH, WIDTH, true));
    return net;
}

static void count_fallen(void *context, const fsdp_fp8_layer *layer)
{
    *(int *)context += layer->falls_back;
}

static fsdp_status check(fsdp_model *m, int64_t rows, int *fallen)
{
    fsdp_fp8_bounds bounds = FSDP_FP8_BOUNDS_INIT;
    bounds.error = 1e-6; /* that no layer keeps */
    *fallen = 0;
    fsdp_tape *t = fsdp_begin_shadow(m);
    return fsdp_fp8_check(t, record(m, t, rows), &bounds, count_fallen, fallen);
}

static fsdp_status judge(fsdp_world *w, void *context)
{
    (void)context;
    fsdp_model *m;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config adamw = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_config config = ranks_config();
    int fallen;
    config.fp8 = FSDP_FP8_HYBRID;
    config.fp8_check = true;
    FSDP_TRY(fsdp_shard(w, make_net(), &config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &adamw, &optimizer));
    fsdp_tape *t = fsdp_begin(m);
    FSDP_TRY(fsdp_backward(t, record(m, t, MOST_ROWS), true));
    FSDP_TRY(fsdp_step(optimizer, NULL));
    FSDP_TRY(check(m, fsdp_world_rank(w) == 0 ? MOST_ROWS : MOST_ROWS / 4 - 1, &fallen));
    EXPECT(w, fallen == 2);
    FSDP_TRY(check(m, MOST_ROWS, &fallen)); /* nothing is left, on either rank */
    EXPECT(w, fallen == 0);
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void ranks_with_different_batches_judge_alike(void **state)
{
    (void)state;
    assert_true(ranks_run(2, judge, NULL));
}

/* Steps with writes and evaluations between them; the weights at the end. */
static fsdp_status train(fsdp_world *w, fsdp_strategy strategy, fsdp_fp8_weights weights, float *out)
{
    fsdp_model *m;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config adamw = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_config config = ranks_config();
    int rank = fsdp_world_rank(w);
    config.fp8 = FSDP_FP8_HYBRID;
    config.fp8_weights = weights;
    config.strategy = strategy;
    config.param_dtype = FSDP_BF16;
    config.cast_inputs = true;
    adamw.lr = 0.01f;
    FSDP_TRY(fsdp_shard(w, make_net(), &config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &adamw, &optimizer));
    for (int step = 0; step < STEPS; step++) {
        const float large[] = {3 + (float)step, -2}; /* the scale changes */
        FSDP_TRY(fsdp_parameter_write(m, "up.weight", 5 * step, 2, large));
        fsdp_tape *t = fsdp_begin(m);
        FSDP_TRY(fsdp_backward(t, record(m, t, rank == 0 ? MOST_ROWS : 7 + step), true));
        FSDP_TRY(fsdp_step(optimizer, NULL));
        t = fsdp_begin_evaluation(m);
        (void)record(m, t, 3);
        FSDP_TRY(fsdp_evaluate(t));
    }
    FSDP_TRY(fsdp_parameter_read(m, "up.weight", 0, NUMBERS, out));
    FSDP_TRY(fsdp_parameter_read(m, "down.weight", 0, NUMBERS, out + NUMBERS));
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(m);
    return FSDP_OK;
}

static fsdp_status compare_modes(fsdp_world *w, void *context)
{
    static float each_use[2 * NUMBERS], other[2 * NUMBERS];
    (void)context;
    FSDP_TRY(train(w, FSDP_FULL, FSDP_FP8_WEIGHTS_EACH_USE, each_use));
    for (int s = FSDP_FULL; s <= FSDP_NO_SHARD; s++)
        for (int mode = FSDP_FP8_WEIGHTS_AUTO; mode <= FSDP_FP8_WEIGHTS_EACH_STEP; mode++) {
            FSDP_TRY(train(w, (fsdp_strategy)s, (fsdp_fp8_weights)mode, other));
            EXPECT(w, memcmp(each_use, other, sizeof other) == 0);
        }
    return FSDP_OK;
}

static void what_is_written_and_whatever_the_batches_all_modes_have_the_same_bits(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 3; ranks++)
        assert_true(ranks_run(ranks, compare_modes, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_with_different_batches_judge_alike),
        cmocka_unit_test(what_is_written_and_whatever_the_batches_all_modes_have_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
