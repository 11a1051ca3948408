/* A prediction is made of the very step that the plan is of: its collectives move the plan's bytes, its products are
 * the model's, for every model and strategy; and a profile is whole, or refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/file.h"
#include "device/gpu.h"
#include "plan/predict/predict.h"
#include "plan/small_model.h"

static void write_script(const workload *w, const fsdp_config *c, const plan_world *world, int64_t micro_batches,
                         memory_plan *plan, plan_script *s)
{
    workload several = *w;
    several.micro_batches = micro_batches;
    fsdp_status status = workload_script(&several, c, world, plan, s);
    if (status != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
}

/* What a rank receives in the script, counted as the plan counts it. */
static double received(const plan_script *s, script_collective which, bool replicas, int n_shards)
{
    double bytes = 0;
    for (int k = 0; k < s->n_sections; k++)
        for (int i = s->sections[k].first; i < s->sections[k].end; i++) {
            const script_item *item = &s->items[i];
            if (item->kind != SCRIPT_COLLECTIVE || item->unit < 0 || item->collective != which ||
                (item->stride == n_shards && n_shards > 1) != replicas)
                continue;
            double part = item->bytes * (item->ranks - 1) / item->ranks;
            bytes += (double)s->sections[k].times * (which == SCRIPT_ALL_REDUCE ? 2 * part : part);
        }
    return bytes;
}

static void collectives_move_the_bytes_of_the_plan(void **state)
{
    (void)state;
    device *dev;
    workload w = small();
    assert_int_equal(device_describe("h100", &dev), FSDP_OK);
    plan_world world = {dev, 8, 4};
    for (int k = 0; k < FSDP_STRATEGY_COUNT; k++) {
        fsdp_config c = sharding((fsdp_strategy)k, FSDP_CHECKPOINT_NONE);
        bool hybrid = k == FSDP_HYBRID || k == FSDP_HYBRID_ZERO2;
        memory_plan plan;
        plan_script s;
        write_script(&w, &c, &world, 1, &plan, &s);
        double shards = hybrid ? 4 : 8, reduced = received(&s, SCRIPT_REDUCE_SCATTER, false, (int)shards);
        reduced += hybrid ? 0 : received(&s, SCRIPT_ALL_REDUCE, false, (int)shards);
        /* shards are cut on blocks: the plan counts those of one rank */
        double slack = 64.0 * 4 * 8 * (plan.n_units + 1);
        assert_true(fabs(received(&s, SCRIPT_ALL_GATHER, false, (int)shards) - (double)plan.gathered_bytes) <= slack);
        assert_true(fabs(reduced - (double)plan.reduced_bytes) <= slack);
        if (hybrid)
            assert_true(fabs(received(&s, SCRIPT_ALL_REDUCE, true, (int)shards) - (double)plan.replica_bytes) <= slack);
        plan_script_clear(&s);
    }
    device_close(dev);
}

static double product_flops(const plan_script *s)
{
    double flops = 0;
    for (int k = 0; k < s->n_sections; k++)
        for (int i = s->sections[k].first; i < s->sections[k].end; i++)
            if (s->items[i].kind == SCRIPT_WORK)
                flops += (double)s->sections[k].times * s->works[s->items[i].work].flops;
    return flops;
}

/* 6 per parameter and token, and attention, whose kernels count 14 where utilization counts 12 (scores once more). */
static void products_are_those_of_the_model(void **state)
{
    (void)state;
    device *dev;
    workload w = small();
    assert_int_equal(device_describe("h200", &dev), FSDP_OK);
    plan_world world = {dev, 1, 1};
    fsdp_config c = sharding(FSDP_NO_SHARD, FSDP_CHECKPOINT_NONE);
    memory_plan plan;
    plan_script s;
    write_script(&w, &c, &world, 1, &plan, &s);
    double once = product_flops(&s), wanted = workload_flops(&w);
    assert_true(once >= wanted && once < 1.05 * wanted);
    plan_script_clear(&s);
    write_script(&w, &c, &world, 7, &plan, &s);
    assert_true(fabs(product_flops(&s) - 7 * once) < 1e-6 * once);
    plan_script_clear(&s);
    c.checkpointing = FSDP_CHECKPOINT_FULL;
    write_script(&w, &c, &world, 1, &plan, &s);
    assert_true(product_flops(&s) > 1.15 * once);
    plan_script_clear(&s);
    device_close(dev);
}

/* Each collective and transfer is waited for before its slot is used again, in this step or, of those that begin in its
 * close, in the next; a script has no other slots. */
static void check_slots(const plan_script *s)
{
    int *open = calloc((size_t)s->n_slots, sizeof *open), n = s->n_sections;
    for (int k = 0; k < 2 * n; k++) /* two steps: the second starts again whatever the first has started */
        for (int i = s->sections[k % n].first; i < s->sections[k % n].end; i++) {
            const script_item *item = &s->items[i];
            assert_true(item->slot < s->n_slots && item->after < s->n_slots);
            if (item->kind == SCRIPT_COLLECTIVE) {
                assert_true(item->ranks > 1 && item->bytes > 0 && open[item->slot] == 0);
                open[item->slot] = 1;
            } else if (item->kind == SCRIPT_WAIT) {
                open[item->slot] = 0;
            }
        }
    free(open);
}

static void every_model_and_strategy_can_be_written_down(void **state)
{
    (void)state;
    device *dev;
    assert_int_equal(device_describe("a100", &dev), FSDP_OK);
    for (int model = 0; model < 4; model++) {
        static const model_type types[] = {MODEL_DECODER, MODEL_T5, MODEL_CNN, MODEL_MLP};
        workload w = {.model = model_config_default(types[model]), .batch = 2, .width = 32, .target = 16, .moments = 2};
        fsdp_t5_config *t5 = &w.model.t5;
        w.model.decoder = small().model.decoder;
        t5->vocabulary = 300, t5->hidden = t5->intermediate = 64, t5->layers = t5->decoder_layers = 2;
        t5->heads = 4, t5->head_dim = 16;
        for (int k = 0; k < FSDP_STRATEGY_COUNT; k++)
            for (int offload = 0; offload < 2; offload++) {
                plan_world world = {dev, 8, 4};
                fsdp_config c = sharding((fsdp_strategy)k, FSDP_CHECKPOINT_NONE);
                c.wrap = fsdp_wrap_by_size(1000);
                c.cpu_offload = offload;
                c.sync_each_micro_batch = k % 2;
                memory_plan plan;
                plan_script s;
                write_script(&w, &c, &world, 3, &plan, &s);
                assert_true(s.n_works > 5);
                check_slots(&s);
                plan_script_clear(&s);
            }
    }
    device_close(dev);
}

static prediction predict(const char *profile, fsdp_strategy strategy, int n_ranks, double faster)
{
    device *dev;
    kernel_profile p;
    prediction out;
    workload w = small();
    fsdp_config c = sharding(strategy, FSDP_CHECKPOINT_NONE);
    assert_int_equal(device_describe(profile, &dev), FSDP_OK);
    if (profile_open(profile, &p) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    p.links.inside *= faster;
    p.links.outside *= faster;
    prediction_request r = {&w, &c, {dev, n_ranks, n_ranks < 8 ? n_ranks : 8}, &p};
    assert_int_equal(prediction_make(&r, &out), FSDP_OK);
    profile_clear(&p);
    device_close(dev);
    return out;
}

static void the_librarys_profiles_predict_up_to_16384_ranks(void **state)
{
    (void)state;
    static const char *const names[] = {"h200", "h100", "a100"};
    for (int i = 0; i < 3; i++) {
        prediction one = predict(names[i], FSDP_FULL, 1, 1), most = predict(names[i], FSDP_FULL, 16384, 1);
        assert_true(one.step.seconds > 0 && one.step.exposed == 0 && one.tokens_per_second > 0);
        assert_true(most.step.seconds > one.step.seconds && most.step.exposed > 0);
        assert_true(one.utilization > 0 && one.utilization < 1);
        assert_true(predict(names[i], FSDP_FULL, 64, 2).step.seconds <=
                    predict(names[i], FSDP_FULL, 64, 1).step.seconds);
    }
    assert_true(predict("a100", FSDP_FULL, 1, 1).step.seconds > predict("h100", FSDP_FULL, 1, 1).step.seconds);
}

static void a_measured_shape_is_taken_as_it_is_and_others_lie_between(void **state)
{
    (void)state;
    kernel_profile p = {.compute = 1, .memory = 1};
    profile_source source;
    kernel_work w = {.kernel = KERNEL_gemm, .dtype = FSDP_BF16, .result = FSDP_BF16, .variant = 2};
    for (int64_t side = 256; side <= 4096; side *= 4) {
        w.shape[0] = w.shape[1] = w.shape[2] = side;
        w.flops = 2.0 * (double)(side * side * side);
        assert_int_equal(profile_add(&p, &w, w.flops / (side == 256 ? 1e12 : side == 1024 ? 2e12 : 4e12)), FSDP_OK);
        assert_true(fabs(profile_seconds(&p, &w, &source) / p.rows[p.n_rows - 1].seconds - 1) < 1e-12);
        assert_int_equal(source, PROFILE_MEASURED);
    }
    w.shape[0] = w.shape[1] = w.shape[2] = 2048;
    w.flops = 2.0 * 2048 * 2048 * 2048;
    double seconds = profile_seconds(&p, &w, &source);
    assert_int_equal(source, PROFILE_INTERPOLATED);
    assert_true(seconds > w.flops / 4e12 && seconds < w.flops / 2e12);
    p.compute = 0.5;
    assert_true(profile_seconds(&p, &w, NULL) > 1.5 * seconds);
    w.kernel = KERNEL_conv2d_forward;
    assert_true(profile_seconds(&p, &w, &source) > 0);
    assert_int_equal(source, PROFILE_ESTIMATED);
    profile_clear(&p);
}

static kernel_work product(int64_t m, int64_t n, int64_t k)
{
    double bytes = 2.0 * (double)(m * k + k * n + m * n), flops = 2.0 * (double)(m * n) * (double)k;
    return (kernel_work){.kernel = KERNEL_gemm,
                         .dtype = FSDP_BF16,
                         .result = FSDP_BF16,
                         .shape = {m, n, k, 1},
                         .flops = flops,
                         .bytes = bytes};
}

/* Products run at 800 TFLOP/s, memory at 4 TB/s; only large products were measured. */
static void thin_products_take_as_long_as_their_bytes(void **state)
{
    (void)state;
    kernel_profile p = {.compute = 1, .memory = 1};
    kernel_work copy = kernel_work_of_copy(1e9), tiny = kernel_work_of_copy(8);
    assert_int_equal(profile_add(&p, &copy, copy.bytes / 4e12), FSDP_OK);
    assert_int_equal(profile_add(&p, &tiny, 4e-6), FSDP_OK);
    for (int64_t side = 4096; side <= 16384; side *= 2) {
        kernel_work w = product(side, side, side);
        assert_int_equal(profile_add(&p, &w, w.flops / 800e12), FSDP_OK);
    }
    for (int64_t rank = 1; rank <= 64; rank *= 2) {
        kernel_work w = product(8192, 8192, rank);
        double seconds = profile_seconds(&p, &w, NULL), moving = w.bytes / 4e12;
        assert_true(seconds > moving && seconds < 1.5 * moving + 4e-6);
        p.memory = 0.5; /* of a device with slower memory */
        assert_true(profile_seconds(&p, &w, NULL) > 1.5 * moving);
        p.memory = 1;
    }
    profile_clear(&p);
}

/* Steps of few long kernels and of many short ones: both come out, although no kernel takes what it was timed at. */
static void whole_steps_tell_what_timing_added(void **state)
{
    (void)state;
    static const double busy = 1.012, gap = -2.2e-6;
    kernel_profile p = {.compute = 1, .memory = 1, .launch = {.step = 1e-4}};
    profile_calibrate(&p, -5e-6);
    assert_true(fabs(p.busy - 1) < 1e-9 && fabs(p.launch.gap + 3e-6) < 1e-12); /* what is believed before */
    for (int i = 0; i < 6; i++) {
        profile_step s = {.kernels = 0.005 * (1 << i), .calls = i % 2 ? 2000 : 400};
        s.seconds = busy * s.kernels + gap * s.calls + p.launch.step;
        assert_int_equal(profile_add_step(&p, &s), FSDP_OK);
    }
    profile_calibrate(&p, -5e-6);
    for (int i = 0; i < p.n_steps; i++) {
        const profile_step *s = &p.steps[i];
        double predicted = p.busy * s->kernels + p.launch.gap * s->calls + p.launch.step;
        assert_true(fabs(predicted / s->seconds - 1) < 0.005);
    }
    profile_clear(&p);
}

/* ---- files ---- */

static char folder[] = "/tmp/fsdp-profile-XXXXXX";
static char path[64];

static int make_folder(void **state)
{
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/p.json", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void put(const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void a_profile_survives_its_file(void **state)
{
    (void)state;
    kernel_profile p, again;
    assert_int_equal(profile_open("h200", &p), FSDP_OK);
    assert_int_equal(profile_add_collective(&p, &(profile_collective){SCRIPT_ALL_REDUCE, 4, 1024, 1e-4, true}),
                     FSDP_OK);
    assert_int_equal(profile_add_step(&p, &(profile_step){1e-3, 2e-3, 7}), FSDP_OK);
    p.busy = 1.01;
    assert_int_equal(profile_write(&p, path), FSDP_OK);
    assert_int_equal(profile_open(path, &again), FSDP_OK);
    assert_int_equal(p.n_rows, again.n_rows);
    assert_int_equal(again.n_collectives, 1);
    assert_true(again.collectives[0].alone);
    assert_int_equal(p.n_steps, again.n_steps);
    assert_true(fabs(again.busy - 1.01) < 1e-9 && fabs(again.steps[again.n_steps - 1].kernels - 2e-3) < 1e-12);
    for (int i = 0; i < p.n_rows; i++) {
        assert_true(kernel_work_same(&p.rows[i].work, &again.rows[i].work));
        assert_true(fabs(p.rows[i].seconds / again.rows[i].seconds - 1) < 1e-9);
    }
    assert_true(fabs(p.links.outside / again.links.outside - 1) < 1e-9);
    assert_int_equal(p.streams, again.streams);
    profile_clear(&p);
    profile_clear(&again);
}

static void what_is_no_profile_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"fsdp_profile\": 2, \"kernels\": []}",
        "{\"fsdp_profile\": 1, \"kernels\": []}",
        "{\"fsdp_profile\": 1, \"kernels\": 7}",
        "{\"fsdp_profile\": 1, \"kernels\": [[\"gemm\", \"bf16\", \"bf16\", 0, [1, 2, 3], -1, 12, 12]]}",
        "{\"fsdp_profile\": 1, \"kernels\": [[\"gemm\", \"bf16\", \"bf16\", 0, [1, 2, 3], 1e300, 12, 12]]}",
        "{\"fsdp_profile\": 1, \"kernels\": [[\"gemm\", \"bf16\", \"bf16\", 0, [1, 2, 3, 4, 5, 6, 7], 1, 12, 12]]}",
        "{\"fsdp_profile\": 1, \"kernels\": [[\"gemm\", \"bf16\", \"bf16\", 0, [1, -2], 1, 12, 12]]}",
        "{\"fsdp_profile\": 1, \"kernels\": [[\"gemm\", \"bf17\", \"bf16\", 0, [1], 1, 12, 12]]}",
        "{\"fsdp_profile\": 1, \"kernels\": [[\"no_such\", \"bf16\", \"bf16\", 0, [1], 1, 12, 12]]}",
        "{\"fsdp_profile\": 1, \"kernels\": [[\"gemm\"]]}",
        "{\"fsdp_profile\": 1, \"base\": \"h900\"}",
        "{\"fsdp_profile\": 1, \"base\": \"h200\", \"links\": {\"inside\": 0}}",
        "{\"fsdp_profile\": 1, \"base\": \"h200\", \"slowdown\": 1}",
        "{\"fsdp_profile\": 1, \"base\": \"h200\", \"ranks\": 0}",
        "{\"fsdp_profile\": 1, \"base\": \"h200\", \"collectives\": [[\"all_gather\", 1, 5, 5]]}",
        "{\"fsdp_profile\": 1, \"base\": \"h200\", \"collectives\": [[\"gossip\", 4, 5, 5]]}",
        "{\"fsdp_profile\": 1, \"base\": \"h200\", \"collectives\": [[\"all_gather\", 4, 5, 5, true, 6]]}",
        "{\"fsdp_profile\": 1, \"base\": \"h200\", \"steps\": [[1, 2]]}",
        "{\"fsdp_profile\": 1, \"base\": \"h200\", \"steps\": [[1, 2, -3]]}",
        "{\"fsdp_profile\": 1, \"base\": \"h200\", \"busy\": 0}",
        "{\"fsdp_profile\": 1, \"base\": \"h200\", \"memory\": \"fast\"}",
    };
    kernel_profile p;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        put(bad[i]);
        if (profile_open(path, &p) != FSDP_ERR_INPUT)
            fail_msg("taken for a profile: %s", bad[i]);
        if (!strstr(fsdp_last_error(), "p.json"))
            fail_msg("%s: %s", bad[i], fsdp_last_error());
        assert_null(p.rows);
    }
    put("{\"fsdp_profile\": 1, \"base\": \"h200\"}");
    assert_int_equal(profile_open(path, &p), FSDP_OK);
    profile_clear(&p);
    assert_int_equal(profile_open("h900", &p), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "h900"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_move_the_bytes_of_the_plan),
        cmocka_unit_test(products_are_those_of_the_model),
        cmocka_unit_test(every_model_and_strategy_can_be_written_down),
        cmocka_unit_test(the_librarys_profiles_predict_up_to_16384_ranks),
        cmocka_unit_test(a_measured_shape_is_taken_as_it_is_and_others_lie_between),
        cmocka_unit_test(thin_products_take_as_long_as_their_bytes),
        cmocka_unit_test(whole_steps_tell_what_timing_added),
        cmocka_unit_test(a_profile_survives_its_file),
        cmocka_unit_test(what_is_no_profile_is_refused),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
