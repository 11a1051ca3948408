/* What is chosen where the settings leave it open, and that flags which are named do what was said of them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/plan.h>
#include <jansson.h>

#include "plan/fit.h"
#include "support/draw.h"

static const size_t GiB = (size_t)1 << 30;

/* A job of flags on a described GPU, or on CPUs, with a limit for a rank. */
typedef struct fitted {
    fsdp_settings settings;
    workload work;
    assembled_sharding sharding;
    fsdp_status status;
} fitted;

static fitted fit(const char *device_name, plan_limit limit, int ranks, int argc, const char *const *argv)
{
    static fitted f;
    model_config model;
    device *dev;
    memset(&f, 0, sizeof f);
    assert_int_equal(fsdp_settings_init(&f.settings), FSDP_OK);
    if (fsdp_settings_parse(&f.settings, "train", argc, (char *const *)(uintptr_t)argv) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    if (device_is_described(device_name))
        assert_int_equal(device_describe(device_name, &dev), FSDP_OK);
    else
        assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &dev), FSDP_OK);
    fsdp_dataset_info data = {.width = f.settings.max_context_width, .target_width = f.settings.max_target_width};
    fit_request r = {.settings = &f.settings, .work = &f.work, .world = {dev, ranks, ranks}, .limit = limit};
    assert_int_equal(assemble_model(&f.settings, 0, NULL, &model), FSDP_OK);
    assert_int_equal(assemble_count(&model, &r.n_parameters), FSDP_OK);
    assert_int_equal(assemble_sharding(&f.settings, &model, r.n_parameters, ranks, &f.sharding), FSDP_OK);
    f.work = assemble_workload(&f.settings, &model, &data, NULL, ranks);
    r.free = assemble_freedom(&f.settings, dev);
    f.status = fit_sharding(&r, &f.sharding);
    device_close(dev);
    return f;
}

#define FIT(device, limit, ranks, ...)                                                                                 \
    fit(device, (plan_limit){limit, 0}, ranks, sizeof((const char *[]){__VA_ARGS__}) / sizeof(char *),                 \
        (const char *[]){__VA_ARGS__})

/* A billion parameters on a GPU with ten times the memory they take: nothing is computed twice, nothing moves. */
static void by_default_the_fastest_that_fits_is_taken(void **state)
{
    (void)state;
    fitted f = FIT("h200", 136 * GiB, 1, "--preset=llama3_2_1b");
    assert_int_equal(f.settings.sharding_strategy, FSDP_STRATEGY_AUTO);
    assert_int_equal(f.status, FSDP_OK);
    assert_int_equal(f.sharding.config.strategy, FSDP_NO_SHARD);
    assert_int_equal(f.sharding.config.checkpointing, FSDP_CHECKPOINT_NONE);
    assert_false(f.sharding.config.offload_activations || f.sharding.config.cpu_offload);
    assert_non_null(strstr(f.sharding.reason, "the fastest that fits"));
    assert_non_null(strstr(f.sharding.reason, "of 136.00 GiB a rank"));
    fsdp_settings_free(&f.settings);
}

/* The less there is, the more is computed again, moved and offloaded; each time the next faster is named and too big.
 */
static void less_memory_takes_slower_settings_and_says_which_was_too_big(void **state)
{
    (void)state;
    const double limits[] = {40, 26, 20, 19, 12, 5.5};
    int level = 0;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        fitted f = FIT("h200", (size_t)(limits[i] * (double)GiB), 1, "--preset=llama3_2_1b");
        const fsdp_config *c = &f.sharding.config;
        if (f.status != FSDP_OK)
            fail_msg("%g GiB: %s", limits[i], fsdp_last_error());
        int now = (c->cpu_offload ? 8 : 0) + (c->offload_activations ? 4 : 0) +
                  (c->checkpointing == FSDP_CHECKPOINT_FULL ? 2 : c->checkpointing == FSDP_CHECKPOINT_SELECTIVE);
        print_message("%g GiB: %s\n", limits[i], f.sharding.reason);
        assert_true(now >= level);
        assert_int_equal(strstr(f.sharding.reason, "the next faster") != NULL, now > 0);
        level = now;
        fsdp_settings_free(&f.settings);
    }
    assert_true(level >= 8);
}

static void what_was_given_stays(void **state)
{
    (void)state;
    fitted f = FIT("h200", 136 * GiB, 2, "--preset=llama3_2_1b", "--activation_checkpointing=full");
    assert_int_equal(f.sharding.config.checkpointing, FSDP_CHECKPOINT_FULL);
    assert_false(f.sharding.config.offload_activations);
    fsdp_settings_free(&f.settings);
    f = FIT("h200", 136 * GiB, 2, "--preset=llama3_2_1b", "--offload_activations", "--cpu_offload");
    assert_true(f.sharding.config.offload_activations && f.sharding.config.cpu_offload);
    assert_int_equal(f.sharding.config.checkpointing, FSDP_CHECKPOINT_FULL);
    fsdp_settings_free(&f.settings);
    f = FIT("h200", 136 * GiB, 2, "--preset=llama3_2_1b", "--shard_weights=2,1");
    assert_true(f.sharding.config.strategy != FSDP_NO_SHARD); /* which has no shards to weigh */
    fsdp_settings_free(&f.settings);
}

static void recommended_goes_by_size_as_long_as_that_fits(void **state)
{
    (void)state;
    fitted f = FIT("h200", 136 * GiB, 1, "--preset=llama3_2_1b", "--sharding_strategy=recommended");
    assert_int_equal(f.sharding.config.strategy, FSDP_SHARD_GRAD_OP);
    assert_true(f.sharding.config.offload_activations);
    assert_non_null(strstr(f.sharding.reason, "recommended for"));
    fsdp_settings_free(&f.settings);
    f = FIT("h200", 12 * GiB, 1, "--preset=llama3_2_1b", "--sharding_strategy=recommended");
    assert_int_equal(f.status, FSDP_OK);
    assert_true(f.sharding.config.cpu_offload);
    assert_non_null(strstr(f.sharding.reason, "the guide's shard_grad_op takes"));
    fsdp_settings_free(&f.settings);
}

/* With several micro-batches weights are rounded once a step where a byte more for each fits and leaves room. */
static void weights_are_kept_in_8_bits_where_that_fits(void **state)
{
    (void)state;
    static const struct {
        int limit;
        const char *strategy, *batches, *weights;
        fsdp_fp8_weights expected;
    } cases[] = {
        {136, "full", "8", "auto", FSDP_FP8_WEIGHTS_EACH_STEP}, {136, "auto", "8", "auto", FSDP_FP8_WEIGHTS_EACH_STEP},
        {136, "full", "1", "auto", FSDP_FP8_WEIGHTS_AUTO},      {136, "full", "8", "use", FSDP_FP8_WEIGHTS_EACH_USE},
        {28, "full", "8", "auto", FSDP_FP8_WEIGHTS_AUTO},       {28, "full", "8", "step", FSDP_FP8_WEIGHTS_EACH_STEP},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char strategy[64], batches[64], weights[64];
        snprintf(strategy, sizeof strategy, "--sharding_strategy=%s", cases[i].strategy);
        snprintf(batches, sizeof batches, "--gradient_accumulation_steps=%s", cases[i].batches);
        snprintf(weights, sizeof weights, "--fp8_weights=%s", cases[i].weights);
        fitted f = FIT("h200", (size_t)cases[i].limit * GiB, 1, "--preset=llama3_2_1b", "--bf16", "--fp8",
                       "--activation_checkpointing=none", "--train_batch_size=4", "--max_context_width=2048", strategy,
                       batches, weights);
        if (f.status != FSDP_OK)
            fail_msg("case %zu: %s", i, fsdp_last_error());
        assert_int_equal(f.sharding.config.fp8_weights, cases[i].expected);
        fsdp_settings_free(&f.settings);
    }
}

/* As much of the state stays on the device as fits there, and no more; a percentage that was given stays. */
static void offload_keeps_as_much_on_the_device_as_fits(void **state)
{
    (void)state;
    const int limits[] = {13, 16, 20, 136};
    int last = -1;
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        size_t limit = (size_t)limits[i] * GiB;
        fitted f = FIT("h200", limit, 1, "--preset=llama3_2_1b", "--bf16", "--cpu_offload", "--recompute_cheap",
                       "--sharding_strategy=full", "--train_batch_size=4", "--max_context_width=2048",
                       "--cpu_offload_resident=auto");
        fsdp_config c = f.sharding.config;
        plan_world world = {NULL, 1, 1};
        memory_plan p;
        if (f.status != FSDP_OK)
            fail_msg("%d GiB: %s", limits[i], fsdp_last_error());
        assert_non_null(strstr(f.sharding.reason, "of what is offloaded fits on the device"));
        assert_true(c.cpu_offload_resident > last);
        last = c.cpu_offload_resident;
        assert_int_equal(device_describe("h200", &world.dev), FSDP_OK);
        assert_int_equal(workload_plan(&f.work, &c, &world, &p), FSDP_OK);
        assert_true(p.total <= limit);
        for (c.cpu_offload_resident++; c.cpu_offload_resident <= 100; c.cpu_offload_resident++) {
            assert_int_equal(workload_plan(&f.work, &c, &world, &p), FSDP_OK);
            assert_true(p.total > limit - limit / 16);
        }
        device_close(world.dev);
        fsdp_settings_free(&f.settings);
    }
    assert_int_equal(last, 100);
    fitted f = FIT("h200", 136 * GiB, 1, "--preset=llama3_2_1b", "--cpu_offload", "--cpu_offload_resident=40");
    assert_int_equal(f.sharding.config.cpu_offload_resident, 40);
    fsdp_settings_free(&f.settings);
    f = FIT("h200", 136 * GiB, 1, "--preset=llama3_2_1b", "--cpu_offload_resident=auto"); /* nothing is offloaded */
    assert_null(strstr(f.sharding.reason, "offloaded"));
    fsdp_settings_free(&f.settings);
}

/* With a strategy that was given, what does not fit is refused, with flags that do; those are tried here. */
static void a_misfit_names_flags_that_fit(void **state)
{
    (void)state;
    const char *given[] = {"--preset=llama3_2_1b", "--sharding_strategy=full", "--offload_activations"};
    fitted f = fit("h200", (plan_limit){12 * GiB, 0}, 1, 3, given);
    assert_int_equal(f.status, FSDP_ERR_INPUT);
    char flags[512] = "";
    assert_int_equal(sscanf(strstr(fsdp_last_error(), "this fits: "), "this fits: %511[^(]", flags), 1);
    fsdp_settings_free(&f.settings);
    const char *argv[16];
    int n = 0;
    for (; n < 3; n++)
        argv[n] = given[n];
    for (char *word = strtok(flags, " "); word; word = strtok(NULL, " "))
        argv[n++] = word;
    f = fit("h200", (plan_limit){12 * GiB, 0}, 1, n, argv);
    assert_int_equal(f.status, FSDP_OK);
    fsdp_settings_free(&f.settings);
}

static json_t *plan(int argc, const char *const *argv)
{
    fsdp_settings s;
    char *text = NULL;
    assert_int_equal(fsdp_settings_init(&s), FSDP_OK);
    fsdp_status status = fsdp_settings_parse(&s, "plan", argc, (char *const *)(uintptr_t)argv);
    if (status == FSDP_OK)
        status = fsdp_plan(&s, &text);
    fsdp_settings_free(&s);
    json_t *o = status == FSDP_OK ? json_loads(text, 0, NULL) : NULL;
    free(text);
    return o;
}

static json_int_t number(json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static json_t *entry_of(json_t *plan, const char *strategy)
{
    size_t i;
    json_t *e;
    json_array_foreach(json_object_get(plan, "strategies"), i,
                       e) if (strcmp(json_string_value(json_object_get(e, "strategy")), strategy) == 0) return e;
    return NULL;
}

enum { MAX_WORDS = 40, WORD = 64 };

typedef struct words {
    char text[MAX_WORDS][WORD];
    const char *argv[MAX_WORDS];
    int n;
} words;

static void add(words *w, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(w->text[w->n], WORD, format, arguments);
    va_end(arguments);
    w->argv[w->n] = w->text[w->n];
    w->n++;
}

/* A small model on random devices and ranks, some settings given and some left open. */
static void draw_flags(uint64_t *random, words *w)
{
    static const char *const devices[] = {"h200", "a100", "cpu"}, *const types[] = {"fp32", "bf16", "fp16"};
    static const char *const levels[] = {"none", "full", "selective"};
    int ranks = 1 + draw_below(random, 4);
    add(w, "--json");
    add(w, "--vocab_size=512");
    add(w, "--hidden_width=128");
    add(w, "--num_heads=4");
    add(w, "--intermediate_size=512");
    add(w, "--num_layers=%d", 2 + draw_below(random, 4));
    add(w, "--max_context_width=%d", 128 << draw_below(random, 3));
    add(w, "--train_batch_size=%d", 1 + draw_below(random, 6));
    add(w, "--device=%s", devices[draw_below(random, 3)]);
    add(w, "--world_size=%d", ranks);
    add(w, "--param_dtype=%s", types[draw_below(random, 3)]);
    add(w, "--reduce_dtype=%s", types[draw_below(random, 3)]);
    if (draw_below(random, 4) == 0)
        add(w, "--activation_checkpointing=%s", levels[draw_below(random, 3)]);
    else if (draw_below(random, 4) == 0)
        add(w, "--offload_activations");
    if (draw_below(random, 5) == 0)
        add(w, "--cpu_offload");
    if (draw_below(random, 5) == 0)
        add(w, "--cpu_offload_units=*layers.0");
    if (draw_below(random, 3) == 0)
        add(w, "--validation_split=0.1"), add(w, "--val_batch_size=%d", 1 + draw_below(random, 40));
    if (draw_below(random, 4) == 0)
        add(w, "--no_sync_each_micro_batch");
    if (draw_below(random, 4) == 0)
        add(w, ranks == 1   ? "--shard_weights=2"
               : ranks == 2 ? "--shard_weights=2,1"
               : ranks == 3 ? "--shard_weights=1,5,2"
                            : "--shard_weights=4,1,1,2");
}

enum { RANDOM_FLAGS = 120 };

/* Planned again with the flags that were named, the named total comes out to the byte, and is within the limit. */
static void flags_that_fit_say_what_they_take_to_the_byte(void **state)
{
    (void)state;
    int found = 0, offloaded = 0;
    for (int seed = 1; seed <= RANDOM_FLAGS; seed++) {
        uint64_t random = (uint64_t)seed * 7919;
        words w = {.n = 0};
        (void)draw_below(&random, 2);
        draw_flags(&random, &w);
        json_t *all = plan(w.n, w.argv);
        if (!all)
            fail_msg("seed %d: %s", seed, fsdp_last_error());
        json_int_t most = number(entry_of(all, "no_shard"), "total"), least = number(entry_of(all, "full"), "total");
        json_int_t low = least * 17 / 20, libraries = number(entry_of(all, "full"), "libraries");
        json_int_t limit = low + (most - low) * draw_below(&random, 100) / 95 + libraries;
        json_decref(all);
        add(&w, "--fit=%lld", (long long)limit);
        json_t *chosen = plan(w.n, w.argv), *named = json_object_get(chosen, "fit");
        if (!chosen) {
            assert_non_null(strstr(fsdp_last_error(), "nothing fits"));
            continue;
        }
        const char *strategy = json_string_value(json_object_get(named, "strategy"));
        char flags[256];
        snprintf(flags, sizeof flags, "%s", json_string_value(json_object_get(named, "flags")));
        bool cpu = strcmp(json_string_value(json_object_get(chosen, "device")), "CPUs") == 0;
        assert_true(number(named, "total") + number(named, cpu ? "host" : "libraries") <= limit);
        w.n--; /* without the limit */
        for (char *word = strtok(flags, " "); word; word = strtok(NULL, " "))
            add(&w, "%s", word);
        json_t *again = plan(w.n, w.argv);
        if (!again)
            fail_msg("seed %d: what was named is refused: %s", seed, fsdp_last_error());
        json_t *entry = entry_of(again, strategy);
        if (number(entry, "total") != number(named, "total") || number(entry, "host") != number(named, "host"))
            fail_msg("seed %d: %s: %lld bytes said, %lld planned with it", seed,
                     json_string_value(json_object_get(named, "flags")), (long long)number(named, "total"),
                     (long long)number(entry, "total"));
        found++;
        offloaded += json_is_true(json_object_get(named, "offload_activations"));
        json_decref(again);
        json_decref(chosen);
    }
    print_message("%d fit, %d of them with activations on the host\n", found, offloaded);
    assert_true(found > RANDOM_FLAGS / 2 && offloaded >= RANDOM_FLAGS / 20);
}

static void the_fewest_ranks_are_named(void **state)
{
    (void)state;
    const char *argv[] = {"--preset=llama3_1_8b", "--device=h100", "--world_size=auto", "--json"};
    json_t *o = plan(4, argv);
    assert_non_null(o);
    json_int_t ranks = number(o, "ranks");
    assert_true(ranks > 1 && ranks <= 8);
    assert_non_null(json_object_get(o, "fit"));
    assert_false(json_is_true(json_object_get(json_object_get(o, "fit"), "cpu_offload")));
    json_decref(o);
    char fewer[64];
    snprintf(fewer, sizeof fewer, "--world_size=%lld", (long long)ranks - 1);
    const char *one_less[] = {"--preset=llama3_1_8b", "--device=h100", fewer, "--json", "--no_cpu_offload"};
    o = plan(5, one_less);
    assert_null(json_object_get(o, "fit"));
    assert_non_null(strstr(json_string_value(json_object_get(o, "misfit")), "nothing fits"));
    json_decref(o);
    const char *unknown[] = {"--preset=tiny", "--device=cpu", "--world_size=auto"};
    assert_null(plan(3, unknown));
    assert_non_null(strstr(fsdp_last_error(), "how much memory does a rank have"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_default_the_fastest_that_fits_is_taken),
        cmocka_unit_test(less_memory_takes_slower_settings_and_says_which_was_too_big),
        cmocka_unit_test(what_was_given_stays),
        cmocka_unit_test(recommended_goes_by_size_as_long_as_that_fits),
        cmocka_unit_test(weights_are_kept_in_8_bits_where_that_fits),
        cmocka_unit_test(offload_keeps_as_much_on_the_device_as_fits),
        cmocka_unit_test(a_misfit_names_flags_that_fit),
        cmocka_unit_test(flags_that_fit_say_what_they_take_to_the_byte),
        cmocka_unit_test(the_fewest_ranks_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
