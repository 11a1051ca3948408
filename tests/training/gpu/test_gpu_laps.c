/* On one GPU: a step's laps come from its events, its kernels from CUPTI or events, both on the host's clock; being
 * measured costs next to nothing. */
#include "training/gpu/gpu_training.h"

#include <stdlib.h>
#include <string.h>

#include <fsdp/fsdp.h>

#include "base/clock.h"
#include "base/record/laps.h"
#include "comm/world.h"
#include "device/activity.h"

enum { FEATURES = 16, WIDTH = 2048, BATCH = 4096, LAYERS = 48, WARM = 4, PAIRS = 200 };

typedef struct network {
    fsdp_world *w;
    fsdp_model *m;
    fsdp_optimizer *o;
    float *x;
} network;

/* `links`: as one rank of an emulated world. */
static network network_open(const char *links)
{
    network n = {NULL};
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_module *net = fsdp_sequential_new();
    wc.device = "cuda";
    wc.backend = links;
    config.param_dtype = FSDP_BF16;
    for (int i = 0; i < LAYERS; i++) {
        char name[16];
        snprintf(name, sizeof name, "layer%d", i);
        fsdp_module_add(net, name,
                        fsdp_linear_new(i == 0 ? FEATURES : WIDTH, i == LAYERS - 1 ? FEATURES : WIDTH, false));
    }
    assert_int_equal(fsdp_world_open(&wc, &n.w), FSDP_OK);
    assert_int_equal(fsdp_shard(n.w, net, &config, &n.m), FSDP_OK);
    assert_int_equal(fsdp_optimizer_new(n.m, &adam, &n.o), FSDP_OK);
    n.x = malloc(BATCH * FEATURES * sizeof *n.x);
    for (int i = 0; i < BATCH * FEATURES; i++)
        n.x[i] = (float)(i % 19) / 19;
    return n;
}

static void network_close(network *n)
{
    fsdp_optimizer_free(n->o);
    fsdp_model_free(n->m);
    fsdp_world_close(n->w);
    free(n->x);
}

static void step(network *n, int micro_batches)
{
    const int64_t shape[] = {BATCH, FEATURES};
    for (int i = 0; i < micro_batches; i++) {
        fsdp_tape *t = fsdp_begin(n->m);
        fsdp_tensor *in = fsdp_input(t, FSDP_F32, 2, shape, n->x);
        fsdp_tensor *out = fsdp_call(fsdp_model_module(n->m), t, fsdp_cast(t, in, FSDP_BF16));
        if (fsdp_backward(t, fsdp_mse(t, fsdp_cast(t, out, FSDP_F32), in), i + 1 == micro_batches) != FSDP_OK)
            fail_msg("%s", fsdp_last_error());
    }
    if (fsdp_step(n->o, NULL) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
}

static int64_t sum_of(const int64_t laps[LAP_COUNT])
{
    int64_t sum = 0;
    for (int i = 0; i < LAP_COUNT; i++)
        sum += laps[i];
    return sum;
}

static void say(const char *what, const int64_t laps[LAP_COUNT])
{
    print_message("%s:", what);
    for (int i = 0; i < LAP_COUNT; i++)
        if (laps[i])
            print_message(" %s %.3f ms,", lap_name((lap)i), (double)laps[i] * 1e-6);
    print_message(" together %.3f\n", (double)sum_of(laps) * 1e-6);
}

/* Backward has twice the products of forward; the laps add up to the time that passed. */
static void laps_of_graphs_are_those_of_the_stream(void **state)
{
    (void)state;
    network n = network_open(NULL);
    int64_t laps[LAP_COUNT];
    for (int micro_batches = 1; micro_batches <= 3; micro_batches += 2) {
        laps_begin();
        for (int i = 0; i < WARM; i++)
            step(&n, micro_batches);
        int64_t begun = clock_nanoseconds();
        laps_take(laps);
        step(&n, micro_batches);
        laps_take(laps);
        int64_t passed = clock_nanoseconds() - begun;
        laps_end();
        say("a step of graphs", laps);
        assert_true(sum_of(laps) <= passed && sum_of(laps) > passed - passed / 50);
        assert_true(laps[LAP_FORWARD] > passed / 20);
        double ratio = (double)laps[LAP_BACKWARD] / (double)laps[LAP_FORWARD];
        if (ratio < 1.3 || ratio > 4)
            fail_msg("backward takes %.2f times as long as forward", ratio);
        assert_true(laps[LAP_OPTIMIZER] > 0);
        assert_int_equal(laps[LAP_ALL_GATHER], 0);
    }
    network_close(&n);
}

/* Links as slow as these leave most of the communication exposed. */
static void waits_for_collectives_are_exposed_communication(void **state)
{
    (void)state;
    network n = network_open("emulate:8@20GBs");
    int64_t laps[LAP_COUNT];
    laps_begin();
    for (int i = 0; i < WARM; i++)
        step(&n, 1);
    laps_take(laps);
    step(&n, 1);
    laps_take(laps);
    laps_end();
    say("one of 8 ranks, links of 20 GB/s", laps);
    assert_true(laps[LAP_ALL_GATHER] > 0);
    assert_true(laps[LAP_ALL_GATHER] + laps[LAP_REDUCE_SCATTER] > sum_of(laps) / 3);
    network_close(&n);
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A step, measured or not. */
static double seconds_of_step(network *n, bool measured)
{
    int64_t laps[LAP_COUNT];
    double begun = clock_seconds();
    if (measured)
        laps_begin();
    step(n, 1);
    laps_take(laps);
    laps_end();
    return clock_seconds() - begun;
}

/* Steps by turns, so that a clock that drifts and a host that is busy elsewhere meet both kinds. */
static void being_measured_costs_less_than_half_a_percent(void **state)
{
    (void)state;
    network n = network_open(NULL);
    double plain[PAIRS], more[PAIRS];
    for (int i = 0; i < WARM; i++)
        step(&n, 1);
    for (int i = 0; i < PAIRS; i++) {
        double measured = i % 2 ? seconds_of_step(&n, true) : 0;
        plain[i] = seconds_of_step(&n, false);
        more[i] = (i % 2 ? measured : seconds_of_step(&n, true)) - plain[i];
    }
    qsort(plain, PAIRS, sizeof *plain, by_value);
    qsort(more, PAIRS, sizeof *more, by_value);
    double usual = plain[PAIRS / 2], cost = more[PAIRS / 2];
    print_message("a step: %.4f ms; measured %+.4f ms, %+.3f %%\n", 1e3 * usual, 1e3 * cost, 100 * cost / usual);
    assert_true(cost < 0.005 * usual);
    network_close(&n);
}

typedef struct heard {
    int n, in_graph, launched, outside;
    int64_t from, to, busy_ns;
} heard;

static void hear(void *context, const device_activity *a)
{
    heard *h = context;
    h->n++;
    h->in_graph += a->in_graph;
    h->launched += a->launched_ns >= h->from && a->launched_ns <= h->to;
    h->outside += a->begin_ns < h->from || a->end_ns > h->to || a->end_ns < a->begin_ns;
    h->busy_ns += a->end_ns - a->begin_ns;
}

/* The step waits for the device before it returns: all that ran lies inside. */
static void kernels_of_graphs_lie_within_their_step(void **state)
{
    (void)state;
    network n = network_open(NULL);
    activity_recorder *r;
    for (int i = 0; i < WARM; i++)
        step(&n, 1);
    for (int round = 0; round < 2; round++) { /* a second recording begins anew */
        assert_int_equal(activity_start(n.w->dev, n.w->compute, &r), FSDP_OK);
        print_message("timed by %s\n", activity_source(r));
        bool records = activity_has_records(r);
        int64_t margin = 20000; /* of two clocks */
        heard h = {.from = clock_nanoseconds() - margin};
        step(&n, 1);
        h.to = clock_nanoseconds() + margin;
        assert_int_equal(activity_stop(r, hear, &h), FSDP_OK);
        print_message("%d records, %d in graphs, %d with a launch, %d outside the step, busy %.3f of %.3f ms\n", h.n,
                      h.in_graph, h.launched, h.outside, (double)h.busy_ns * 1e-6,
                      (double)(h.to - h.from - 2 * margin) * 1e-6);
        assert_true(h.n > 3 * LAYERS);
        assert_int_equal(h.outside, 0);
        if (records) {
            assert_true(h.in_graph > 3 * LAYERS);
            assert_int_equal(h.launched, h.n);
            assert_true(h.busy_ns <= h.to - h.from);
        }
    }
    network_close(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(laps_of_graphs_are_those_of_the_stream),
        cmocka_unit_test(waits_for_collectives_are_exposed_communication),
        cmocka_unit_test(being_measured_costs_less_than_half_a_percent),
        cmocka_unit_test(kernels_of_graphs_lie_within_their_step),
    };
    int missing = gpu_missing();
    return missing ? missing : cmocka_run_group_tests(tests, NULL, NULL);
}
