/* An operation of a user's own on a device with graphs: it is called in every step, outside of what is recorded. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fsdp/fsdp.h>

#include "shard/recording_device.h"

enum { WIDTH = 16, BATCH = 4, STEPS = 5 };

static int calls;

static fsdp_status twice_forward(const fsdp_operation_run *r)
{
    const float *x = r->inputs[0].data;
    float *y = r->outputs[0].data;
    for (int64_t i = 0; i < r->outputs[0].numel; i++)
        y[i] = 2 * x[i];
    calls++;
    return FSDP_OK;
}

static fsdp_status twice_backward(const fsdp_operation_run *r)
{
    const float *dy = r->output_gradients[0].data;
    float *dx = r->input_gradients[0].data;
    for (int64_t i = 0; i < r->inputs[0].numel; i++)
        dx[i] = (r->input_gradients[0].add ? dx[i] : 0) + 2 * dy[i];
    calls++;
    return FSDP_OK;
}

static const fsdp_operation twice = {
    .size = sizeof twice, .name = "twice", .forward = twice_forward, .backward = twice_backward};

static fsdp_tensor *twice_module_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *x)
{
    (void)self;
    fsdp_shape shape = fsdp_shape_of(x);
    fsdp_tensor *y;
    fsdp_operation_record(t, &twice, 1, &x, 1, &shape, NULL, 0, &y);
    return y;
}

static const fsdp_module_class twice_class = {.type = "twice", .forward = twice_module_forward};

static void train(bool records, double *losses, int *launches)
{
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_world *w;
    fsdp_model *m;
    fsdp_optimizer *o;
    fsdp_module *net = fsdp_sequential_new();
    float x[BATCH * WIDTH];
    wc.device = "cpu";
    wc.threads = 1;
    fsdp_module_add(net, "in", fsdp_linear_new(WIDTH, WIDTH, true));
    fsdp_module_add(net, "twice", fsdp_module_new(&twice_class, sizeof(fsdp_module)));
    fsdp_module_add(net, "out", fsdp_linear_new(WIDTH, WIDTH, true));
    assert_int_equal(records ? recording_world_open(&wc, &w) : fsdp_world_open(&wc, &w), FSDP_OK);
    assert_int_equal(fsdp_shard(w, net, &config, &m), FSDP_OK);
    assert_int_equal(fsdp_optimizer_new(m, &adam, &o), FSDP_OK);
    calls = 0;
    for (int step = 0; step < STEPS; step++) {
        fsdp_step_report report;
        const int64_t shape[] = {BATCH, WIDTH};
        for (int i = 0; i < BATCH * WIDTH; i++)
            x[i] = (float)((i * 7 + step * 13) % 19) / 19;
        fsdp_tape *t = fsdp_begin(m);
        fsdp_tensor *in = fsdp_input(t, FSDP_F32, 2, shape, x);
        assert_int_equal(fsdp_backward(t, fsdp_mse(t, fsdp_call(fsdp_model_module(m), t, in), in), true), FSDP_OK);
        assert_int_equal(fsdp_step(o, &report), FSDP_OK);
        losses[step] = report.loss;
    }
    *launches = records ? recording_device_of(w->dev)->launches : 0;
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    fsdp_world_close(w);
}

static void an_own_operation_runs_in_every_step_beside_graphs(void **state)
{
    (void)state;
    double plain[STEPS], recorded[STEPS];
    int launches;
    train(false, plain, &launches);
    assert_int_equal(calls, 2 * STEPS);
    train(true, recorded, &launches);
    assert_int_equal(calls, 2 * STEPS);
    assert_true(launches > 0); /* the optimizer's part still is a graph */
    assert_memory_equal(plain, recorded, sizeof plain);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(an_own_operation_runs_in_every_step_beside_graphs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
