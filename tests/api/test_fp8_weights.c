/* Weights that are rounded to 8 bits once a step: what a program writes counts at once, and ranks may have batches of
 * any shape, also one that is no multiple of 16. */
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

/* Steps with writes and evaluations between them; the weights at the end. */
static fsdp_status train(fsdp_world *w, fsdp_strategy strategy, fsdp_fp8_weights weights, float *out)
{
    fsdp_model *m;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config adamw = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_config config = ranks_config();
    fsdp_module *net = fsdp_sequential_new();
    int rank = fsdp_world_rank(w);
    config.fp8 = FSDP_FP8_HYBRID;
    config.fp8_weights = weights;
    config.strategy = strategy;
    config.param_dtype = FSDP_BF16;
    config.cast_inputs = true;
    adamw.lr = 0.01f;
    fsdp_module_add(net, "up", fsdp_linear_new(WIDTH, 2 * WIDTH, true));
    fsdp_module_add(net, "down", fsdp_linear_new(2 * WIDTH, WIDTH, true));
    FSDP_TRY(fsdp_shard(w, net, &config, &m));
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

static fsdp_status body(fsdp_world *w, void *context)
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
        assert_true(ranks_run(ranks, body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_and_whatever_the_batches_all_modes_have_the_same_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
