/* Laps of a stream: time between events belongs to the lap that the first one opened, whatever the host did meanwhile;
 * graphs are divided at the moment inside them; what goes wrong leaves the host's laps. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <fsdp/fsdp.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "shard/model.h"
#include "shard/recording_device.h"

/* A device on which time passes when a test says so. */
typedef struct told_device {
    device base;
    double now_us;
    int n_events, fail_in; /* the record that fails, counted from now on; 0: none */
    bool behind;           /* the stream has reached nothing yet */
    bool recording;
} told_device;

struct event {
    told_device *device;
    double at_us;
};

static fsdp_status told_create(device *d, event **out)
{
    *out = calloc(1, sizeof **out);
    (*out)->device = (told_device *)d;
    (*out)->device->n_events++;
    return FSDP_OK;
}

static void told_free(event *e)
{
    e->device->n_events--;
    free(e);
}

static fsdp_status told_record(stream *s, event *e)
{
    (void)s;
    if (e->device->fail_in > 0 && --e->device->fail_in == 0)
        return error_set(FSDP_ERR_DEVICE, "made to fail");
    e->at_us = e->device->now_us;
    return FSDP_OK;
}

static fsdp_status told_elapsed(event *from, event *to, double *milliseconds)
{
    *milliseconds = (to->at_us - from->at_us) * 1e-3;
    return FSDP_OK;
}

static fsdp_status told_done(event *e, bool *done)
{
    *done = !e->device->behind;
    return FSDP_OK;
}

static told_device *asked; /* a stream says nothing of its device here */

static bool told_is_recording(const stream *s)
{
    (void)s;
    return asked->recording;
}

static told_device told_open(void)
{
    return (told_device){.base = {.own_memory = true,
                                  .event_create = told_create,
                                  .event_free = told_free,
                                  .event_record = told_record,
                                  .event_record_in_graph = told_record,
                                  .event_elapsed = told_elapsed,
                                  .event_done = told_done,
                                  .is_recording = told_is_recording}};
}

static stream_laps *begin(told_device *d)
{
    stream_laps *l;
    asked = d;
    assert_int_equal(stream_laps_new(&d->base, NULL, &l), FSDP_OK);
    laps_begin();
    stream_laps_begin(l);
    return l;
}

/* Opens or closes a lap, and lets the device work on it. */
static void opens(told_device *d, bool wait, const char *name, double us)
{
    laps_hear(wait, true, name, clock_nanoseconds());
    d->now_us += us;
}

static void closes(told_device *d, bool wait, const char *name, double us)
{
    laps_hear(wait, false, name, clock_nanoseconds());
    d->now_us += us;
}

/* The host's time is longer than all that the device is told. */
static void settle(stream_laps *l, int64_t laps[LAP_COUNT])
{
    struct timespec pause = {.tv_nsec = 3000000};
    stream_laps_end(l);
    nanosleep(&pause, NULL);
    stream_laps_settle(l);
    laps_take(laps);
    laps_end();
    stream_laps_free(l);
}

static void assert_us(const int64_t laps[LAP_COUNT], lap which, double us)
{
    if (llabs(laps[which] - (int64_t)(1000 * us)) > 2) /* a sum of milliseconds lies between */
        fail_msg("%s: %lld ns instead of %g us", lap_name(which), (long long)laps[which], us);
}

static void time_between_events_belongs_to_the_lap_that_is_open(void **state)
{
    (void)state;
    int64_t laps[LAP_COUNT];
    told_device d = told_open();
    stream_laps *l = begin(&d);
    opens(&d, false, "forward", 100);
    opens(&d, true, "all_gather", 7);
    closes(&d, true, "all_gather", 50);
    closes(&d, false, "forward", 0);
    opens(&d, false, "backward", 200);
    opens(&d, true, "reduce_scatter", 11);
    closes(&d, true, "reduce_scatter", 0);
    closes(&d, false, "backward", 0);
    opens(&d, false, "data", 30); /* the stream had nothing to do: the host was late */
    closes(&d, false, "data", 0);
    opens(&d, false, "optimizer", 40);
    closes(&d, false, "optimizer", 0);
    settle(l, laps);
    assert_us(laps, LAP_FORWARD, 150);
    assert_us(laps, LAP_ALL_GATHER, 7);
    assert_us(laps, LAP_BACKWARD, 200);
    assert_us(laps, LAP_REDUCE_SCATTER, 11);
    assert_us(laps, LAP_DATA, 30);
    assert_us(laps, LAP_OPTIMIZER, 40);
    assert_true(laps[LAP_OTHER] >= 3000000 - 438000); /* the rest of the time that passed */
    assert_int_equal(d.n_events, 0);
}

static void a_graph_is_divided_where_it_turned_and_its_earlier_launches_alike(void **state)
{
    (void)state;
    int64_t laps[LAP_COUNT];
    told_device d = told_open();
    inner_mark turn = {.at = NULL};
    stream_laps *l = begin(&d);
    assert_int_equal(inner_mark_record(&d.base, NULL, &turn), FSDP_OK);
    for (int launch = 0; launch < 4; launch++) {
        opens(&d, false, "forward", 30);
        told_record(NULL, turn.at);
        d.now_us += 90;
        stream_laps_divide(l, &turn, LAP_FORWARD, LAP_BACKWARD);
        closes(&d, false, "forward", 0);
        opens(&d, false, "backward", 0);
        closes(&d, false, "backward", 0);
    }
    settle(l, laps);
    assert_us(laps, LAP_FORWARD, 120);
    assert_us(laps, LAP_BACKWARD, 360);
    inner_mark_free(&d.base, &turn);
    assert_int_equal(d.n_events, 0);
}

static void nothing_is_marked_in_a_recording(void **state)
{
    (void)state;
    int64_t laps[LAP_COUNT];
    told_device d = told_open();
    stream_laps *l = begin(&d);
    opens(&d, false, "forward", 10);
    d.recording = true;
    opens(&d, true, "all_gather", 20);
    closes(&d, true, "all_gather", 30);
    d.recording = false;
    closes(&d, false, "forward", 0);
    settle(l, laps);
    assert_us(laps, LAP_FORWARD, 60);
    assert_us(laps, LAP_ALL_GATHER, 0);
}

/* 3,000 pairs take 6,000 marks, six times the ring. */
static void a_long_step_is_added_up_while_it_runs(void **state)
{
    (void)state;
    int64_t laps[LAP_COUNT];
    told_device d = told_open();
    stream_laps *l = begin(&d);
    opens(&d, false, "forward", 0);
    for (int i = 0; i < 3000; i++) {
        opens(&d, true, "all_gather", 0.25);
        closes(&d, true, "all_gather", 0.5);
    }
    assert_int_equal(d.n_events, 1024);
    closes(&d, false, "forward", 0);
    settle(l, laps);
    assert_us(laps, LAP_ALL_GATHER, 750);
    assert_us(laps, LAP_FORWARD, 1500);
}

/* Marks that find no room are left out: their time stays with the lap before, none is lost. */
static void a_stream_that_is_far_behind_loses_no_time(void **state)
{
    (void)state;
    int64_t laps[LAP_COUNT];
    told_device d = told_open();
    stream_laps *l = begin(&d);
    d.behind = true;
    opens(&d, false, "forward", 0);
    for (int i = 0; i < 1000; i++) {
        opens(&d, true, "all_gather", 0.25);
        closes(&d, true, "all_gather", 0.5);
    }
    closes(&d, false, "forward", 0);
    d.behind = false;
    settle(l, laps);
    assert_us(laps, LAP_ALL_GATHER, 511 * 0.25); /* as many as there was room for */
    assert_us(laps, LAP_FORWARD, 750 - 511 * 0.25);
}

static void without_events_the_laps_of_the_host_stay(void **state)
{
    (void)state;
    for (int fail_in = 1; fail_in <= 4; fail_in++) {
        int64_t laps[LAP_COUNT];
        struct timespec pause = {.tv_nsec = 2000000};
        told_device d = told_open();
        d.fail_in = fail_in;
        stream_laps *l = begin(&d);
        opens(&d, false, "forward", 1e9);
        nanosleep(&pause, NULL);
        closes(&d, false, "forward", 0);
        settle(l, laps);
        assert_true(laps[LAP_FORWARD] >= 2000000);
        assert_true(laps[LAP_FORWARD] < 1000000000);
        assert_int_equal(d.n_events, 0);
    }
}

/* The device's clock may run faster; laps still add up to the time that passed. */
static void laps_never_exceed_the_time_that_passed(void **state)
{
    (void)state;
    int64_t laps[LAP_COUNT], sum = 0, begun = clock_nanoseconds();
    told_device d = told_open();
    stream_laps *l = begin(&d);
    opens(&d, false, "forward", 1e9);
    closes(&d, false, "forward", 1e9);
    settle(l, laps);
    for (int i = 0; i < LAP_COUNT; i++) {
        assert_true(laps[i] >= 0);
        sum += laps[i];
    }
    assert_true(sum <= clock_nanoseconds() - begun);
}

static void an_unmeasured_thread_has_no_marks(void **state)
{
    (void)state;
    told_device d = told_open();
    stream_laps *l;
    asked = &d;
    assert_int_equal(stream_laps_new(&d.base, NULL, &l), FSDP_OK);
    stream_laps_begin(l);
    stream_laps_end(l);
    stream_laps_settle(l);
    assert_int_equal(d.n_events, 0);
    stream_laps_free(l);
    d.base.own_memory = false;
    assert_int_equal(stream_laps_new(&d.base, NULL, &l), FSDP_OK);
    assert_null(l); /* the stream's time is the host's */
    stream_laps_begin(l);
    stream_laps_settle(l);
}

/* ---- a model on a device with graphs ---- */

enum { WIDTH = 256, BATCH = 64, STEPS = 6 };

/* Launched graphs report no phases by themselves. */
static void steps_of_graphs_have_forward_and_backward(void **state)
{
    (void)state;
    fsdp_world_config wc = FSDP_WORLD_CONFIG_INIT;
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_optimizer_config adam = FSDP_OPTIMIZER_CONFIG_INIT;
    fsdp_world *w = NULL;
    fsdp_model *m;
    fsdp_optimizer *o;
    fsdp_module *net = fsdp_sequential_new();
    static float x[BATCH * WIDTH];
    const int64_t shape[] = {BATCH, WIDTH};
    wc.device = "cpu";
    wc.threads = 1;
    fsdp_module_add(net, "in", fsdp_linear_new(WIDTH, WIDTH, true));
    fsdp_module_add(net, "out", fsdp_linear_new(WIDTH, WIDTH, true));
    assert_int_equal(recording_world_open(&wc, &w), FSDP_OK);
    assert_int_equal(fsdp_shard(w, net, &config, &m), FSDP_OK);
    assert_int_equal(fsdp_optimizer_new(m, &adam, &o), FSDP_OK);
    for (int i = 0; i < BATCH * WIDTH; i++)
        x[i] = (float)(i % 19) / 19;
    laps_begin();
    for (int step = 0; step < STEPS; step++) {
        int64_t laps[LAP_COUNT], before = recording_device_of(w->dev)->launches;
        for (int micro = 0; micro < 3; micro++) {
            fsdp_tape *t = fsdp_begin(m);
            fsdp_tensor *in = fsdp_input(t, FSDP_F32, 2, shape, x);
            assert_int_equal(fsdp_backward(t, fsdp_mse(t, fsdp_call(fsdp_model_module(m), t, in), in), micro == 2),
                             FSDP_OK);
        }
        assert_int_equal(fsdp_step(o, NULL), FSDP_OK);
        laps_take(laps);
        if (step >= 2)
            assert_int_equal(recording_device_of(w->dev)->launches - before, 4);
        assert_true(laps[LAP_FORWARD] > 0);
        assert_true(laps[LAP_BACKWARD] > 0);
        assert_true(laps[LAP_OPTIMIZER] > 0);
        assert_int_equal(laps[LAP_ALL_GATHER], 0);
    }
    laps_end();
    assert_int_equal(recording_device_of(w->dev)->moments, 2); /* one in each graph of a program */
    fsdp_optimizer_free(o);
    fsdp_model_free(m);
    fsdp_world_close(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_between_events_belongs_to_the_lap_that_is_open),
        cmocka_unit_test(a_graph_is_divided_where_it_turned_and_its_earlier_launches_alike),
        cmocka_unit_test(nothing_is_marked_in_a_recording),
        cmocka_unit_test(a_long_step_is_added_up_while_it_runs),
        cmocka_unit_test(a_stream_that_is_far_behind_loses_no_time),
        cmocka_unit_test(without_events_the_laps_of_the_host_stay),
        cmocka_unit_test(laps_never_exceed_the_time_that_passed),
        cmocka_unit_test(an_unmeasured_thread_has_no_marks),
        cmocka_unit_test(steps_of_graphs_have_forward_and_backward),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
