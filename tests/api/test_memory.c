/* The meter of memory, through the public API. */
#include "api/support_ranks.h"

enum { WIDTH = 256, ROWS = 4 };

/* One step of a linear layer; its peak on n ranks goes to peaks[n]. */
static fsdp_status measure(fsdp_world *w, void *context)
{
    int64_t *peaks = context;
    fsdp_memory_meter *meter;
    fsdp_model *model;
    fsdp_optimizer *optimizer;
    fsdp_config config = ranks_config();
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    float x[ROWS * WIDTH] = {0};
    const int64_t shape[] = {ROWS, WIDTH}, parameters = WIDTH * WIDTH;
    FSDP_TRY(fsdp_memory_meter_start(&meter));
    EXPECT(w, fsdp_memory_meter_bytes(meter) == 0 && fsdp_memory_meter_peak(meter) == 0);
    FSDP_TRY(fsdp_shard(w, fsdp_linear_new(WIDTH, WIDTH, false), &config, &model));
    FSDP_TRY(fsdp_optimizer_new(model, &adam, &optimizer));
    fsdp_tape *t = fsdp_begin(model);
    fsdp_tensor *in = fsdp_input(t, FSDP_F32, 2, shape, x);
    FSDP_TRY(fsdp_backward(t, fsdp_mse(t, fsdp_call(fsdp_model_module(model), t, in), in), true));
    FSDP_TRY(fsdp_step(optimizer, NULL));
    int64_t now = fsdp_memory_meter_bytes(meter), peak = fsdp_memory_meter_peak(meter);
    EXPECT(w, peak >= now && now >= 3 * 4 * parameters / fsdp_world_size(w)); /* a shard and its two moments */
    fsdp_memory_meter_reset(meter);
    EXPECT(w, fsdp_memory_meter_peak(meter) == now);
    EXPECT(w, fsdp_memory_meter_host_peak(meter) == 0); /* of the CPU, whose memory is the host's */
    peaks[fsdp_world_size(w)] = peak;
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    EXPECT(w, fsdp_memory_meter_bytes(meter) < 4 * parameters / fsdp_world_size(w));
    fsdp_memory_meter_free(meter);
    fsdp_memory_meter_free(NULL);
    return FSDP_OK;
}

static void the_meter_sees_that_more_ranks_hold_less_each(void **state)
{
    (void)state;
    int64_t *peaks = shared_memory(8 * sizeof *peaks);
    assert_true(ranks_run(1, measure, peaks));
    assert_true(ranks_run(4, measure, peaks));
    assert_true(peaks[4] > 0 && peaks[4] < peaks[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_meter_sees_that_more_ranks_hold_less_each)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
