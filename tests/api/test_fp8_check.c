/* Shadow steps on ranks whose batches have different shapes: all of them judge alike, also a rank whose own batch has
 * no product in 8 bits. */
#include "api/support_ranks.h"

enum { WIDTH = 16, ROWS = 16, FEW_ROWS = 8 }; /* products in 8 bits take multiples of 16 */

static fsdp_loss record(fsdp_model *m, fsdp_tape *t, int64_t rows)
{
    static float x[ROWS * WIDTH], y[ROWS * WIDTH]; /* read when the step runs */
    const int64_t shape[] = {rows, WIDTH};
    for (int i = 0; i < ROWS * WIDTH; i++) {
        x[i] = (float)(i * 37 % 41) / 41 - 0.5f;
        y[i] = (float)(i * 17 % 23) / 23;
    }
    fsdp_tensor *out = fsdp_call(fsdp_model_module(m), t, fsdp_input(t, FSDP_F32, 2, shape, x));
    return fsdp_mse(t, fsdp_cast(t, out, FSDP_F32), fsdp_input(t, FSDP_F32, 2, shape, y));
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

static fsdp_status body(fsdp_world *w, void *context)
{
    (void)context;
    fsdp_model *m;
    fsdp_optimizer *optimizer;
    fsdp_optimizer_config adamw = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_config config = ranks_config();
    fsdp_module *net = fsdp_sequential_new();
    int fallen;
    config.fp8 = FSDP_FP8_HYBRID;
    config.fp8_check = true;
    fsdp_module_add(net, "up", fsdp_linear_new(WIDTH, 2 * WIDTH, true));
    fsdp_module_add(net, "down", fsdp_linear_new(2 * WIDTH, WIDTH, true));
    FSDP_TRY(fsdp_shard(w, net, &config, &m));
    FSDP_TRY(fsdp_optimizer_new(m, &adamw, &optimizer));
    fsdp_tape *t = fsdp_begin(m);
    FSDP_TRY(fsdp_backward(t, record(m, t, ROWS), true));
    FSDP_TRY(fsdp_step(optimizer, NULL));
    FSDP_TRY(check(m, fsdp_world_rank(w) == 0 ? ROWS : FEW_ROWS, &fallen));
    EXPECT(w, fallen == 2);
    FSDP_TRY(check(m, ROWS, &fallen)); /* nothing is left, on either rank */
    EXPECT(w, fallen == 0);
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(m);
    return FSDP_OK;
}

static void ranks_with_different_batches_judge_alike(void **state)
{
    (void)state;
    assert_true(ranks_run(2, body, NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_with_different_batches_judge_alike)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
