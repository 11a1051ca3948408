/* Structs with `size` across versions of the header. Every such struct of the public headers has a row here: a function
 * that takes it, and what that comes to. What must hold for all rows is support_sizes.h's. */
#include "api/support_sizes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/bench.h>
#include <fsdp/checkpoint.h>
#include <fsdp/explain.h>
#include <fsdp/fetch.h>
#include <fsdp/fsdp.h>
#include <fsdp/generate.h>
#include <fsdp/launch.h>
#include <fsdp/measure.h>
#include <fsdp/plan.h>
#include <fsdp/report.h>
#include <fsdp/top.h>
#include <fsdp/tokenizer.h>
#include <fsdp/train.h>

static fsdp_world *world;
static fsdp_settings settings;

static fsdp_status open_world(void *s)
{
    fsdp_world *w = NULL;
    fsdp_status status = fsdp_world_open(s, &w);
    if (status == FSDP_OK)
        assert_string_equal(fsdp_world_device(w), "cpu");
    fsdp_world_close(w);
    return status;
}

static fsdp_module *small_net(void)
{
    fsdp_mlp_config config = FSDP_MLP_CONFIG_INIT;
    fsdp_module *net = NULL;
    config.inputs = config.hidden = config.outputs = 4;
    assert_int_equal(fsdp_mlp_new(&config, &net), FSDP_OK);
    return net;
}

static fsdp_status shard(void *s)
{
    fsdp_model *model = NULL;
    fsdp_module *net = small_net();
    fsdp_status status = fsdp_shard(world, net, s, &model);
    if (status != FSDP_OK)
        fsdp_module_free(net);
    fsdp_model_free(model);
    return status;
}

static fsdp_model *small_model(void)
{
    fsdp_config config = FSDP_CONFIG_INIT;
    fsdp_model *model = NULL;
    assert_int_equal(fsdp_shard(world, small_net(), &config, &model), FSDP_OK);
    return model;
}

static fsdp_status make_optimizer(void *s)
{
    fsdp_model *model = small_model();
    fsdp_optimizer *optimizer = NULL;
    fsdp_status status = fsdp_optimizer_new(model, s, &optimizer);
    fsdp_optimizer_free(optimizer);
    fsdp_model_free(model);
    return status;
}

static fsdp_status open_state(void *s)
{
    fsdp_state *state = NULL;
    fsdp_state_config *config = s;
    config->model = small_model(); /* all versions have it */
    fsdp_status status = fsdp_state_open(config, &state);
    fsdp_state_close(state);
    fsdp_model_free(config->model);
    return status;
}

static fsdp_status load_weights(void *s)
{
    fsdp_model *model = small_model();
    fsdp_status status = fsdp_weights_load(model, "/nowhere", s, NULL);
    fsdp_model_free(model);
    return status;
}

static fsdp_status load_report(void *s)
{
    fsdp_model *model = small_model();
    fsdp_status status = fsdp_weights_load(model, "/nowhere", NULL, s);
    fsdp_model_free(model);
    return status;
}

static fsdp_status adapt(void *s)
{
    fsdp_module *net = small_net();
    fsdp_status status = fsdp_lora(net, s);
    fsdp_module_free(net);
    return status;
}

static fsdp_status check_fp8(void *s)
{
    fsdp_model *model = small_model(); /* has no 8-bit products */
    fsdp_status status = fsdp_fp8_check(fsdp_begin_shadow(model), (fsdp_loss){NULL, NULL}, s, NULL, NULL);
    fsdp_model_free(model);
    return status;
}

static fsdp_status ask_rate(void *s)
{
    fsdp_status status = fsdp_lr_check(s);
    double rate = fsdp_lr_at(s, 10);
    if (status == FSDP_OK)
        assert_true(rate > 0.9e-10 && rate < 1.1e-10); /* the default: a tenth every step */
    else
        assert_true(isnan(rate));
    return status;
}

static fsdp_status new_module(fsdp_status (*build)(const void *config, fsdp_module **out), const void *config)
{
    fsdp_module *m = NULL;
    fsdp_status status = build(config, &m);
    fsdp_module_free(m);
    return status;
}

#define BUILDER(name)                                                                                                  \
    static fsdp_status build_##name(const void *config, fsdp_module **out)                                             \
    {                                                                                                                  \
        return fsdp_##name##_new(config, out);                                                                         \
    }                                                                                                                  \
    static fsdp_status make_##name(void *s)                                                                            \
    {                                                                                                                  \
        return new_module(build_##name, s);                                                                            \
    }
BUILDER(llama)
BUILDER(t5)
BUILDER(cnn)
BUILDER(mlp)

static fsdp_status export(void *s)
{
    char *text = NULL;
    fsdp_status status = fsdp_checkpoint_export(s, &text);
    assert_null(text);
    return status;
}

static fsdp_status convert(void *s)
{
    char *text = NULL;
    fsdp_status first = fsdp_checkpoint_import(s, &text), second = fsdp_checkpoint_reshard(s, &text);
    assert_int_equal(first, second);
    assert_null(text);
    return second;
}

static fsdp_status prune(void *s)
{
    char *text = NULL;
    return fsdp_checkpoint_prune(s, &text);
}

static fsdp_status tokenize(void *s)
{
    fsdp_tokenizer *bytes = NULL;
    assert_int_equal(fsdp_tokenizer_byte(&bytes), FSDP_OK);
    fsdp_status status = fsdp_tokenize_files(bytes, s, NULL);
    fsdp_tokenizer_free(bytes);
    return status;
}

static fsdp_status generate(void *s)
{
    return fsdp_generate(s, NULL);
}

static fsdp_status generate_result(void *s)
{
    fsdp_generate_config config = FSDP_GENERATE_CONFIG_INIT;
    config.model = "/nowhere";
    config.prompt = "a";
    config.prompt_bytes = 1;
    return fsdp_generate(&config, s);
}

static fsdp_status launch(void *s)
{
    int code = -1;
    fsdp_status status = fsdp_launch(s, &code);
    assert_int_equal(code, 2);
    return status;
}

static fsdp_status train_callbacks(void *s)
{
    return fsdp_train(&settings, s, NULL);
}

static fsdp_status train_result(void *s)
{
    return fsdp_train(&settings, NULL, s);
}

static fsdp_status bench_all(void *s)
{
    fsdp_bench_result step = FSDP_BENCH_RESULT_INIT;
    fsdp_bench_kernels kernels = FSDP_BENCH_KERNELS_INIT;
    fsdp_bench_collectives collectives = FSDP_BENCH_COLLECTIVES_INIT;
    fsdp_status status = fsdp_bench_step(&settings, s, &step);
    if (fsdp_bench_kernels_run(&settings, s, &kernels) != status)
        fail();
    fsdp_status last = fsdp_bench_comm(&settings, s, &collectives); /* has no workload to refuse */
    if (last != FSDP_OK)
        return last;
    assert_true(collectives.n == 3 || collectives.n == 9); /* of our size, or of the three usual ones */
    return fsdp_bench_step(&settings, s, &step);
}

static fsdp_bench_config no_workload(void)
{
    fsdp_bench_config config = FSDP_BENCH_CONFIG_INIT;
    config.workload = "nowhere";
    return config;
}

static fsdp_status bench_step(void *s)
{
    fsdp_bench_config config = no_workload();
    return fsdp_bench_step(&settings, &config, s);
}

static fsdp_status bench_kernels(void *s)
{
    fsdp_bench_config config = no_workload();
    return fsdp_bench_kernels_run(&settings, &config, s);
}

static fsdp_status bench_profile(void *s)
{
    fsdp_bench_config config = no_workload();
    config.profile = "/nowhere/profile.json";
    return fsdp_bench_profile(&settings, &config, s);
}

static const int64_t few_bytes[] = {4096};

static fsdp_status bench_comm(void *s)
{
    fsdp_bench_config config = FSDP_BENCH_CONFIG_INIT;
    config.sizes = few_bytes;
    config.n_sizes = 1;
    return fsdp_bench_comm(&settings, &config, s);
}

static fsdp_status explain(void *s)
{
    char *text;
    return fsdp_explain(s, &text);
}

static fsdp_status fetch(void *s)
{
    return fsdp_fetch(s, NULL);
}

static fsdp_status fetch_result(void *s)
{
    fsdp_fetch_config config = FSDP_FETCH_CONFIG_INIT;
    config.name = "/nowhere";
    config.prefer_local = true;
    return fsdp_fetch(&config, s);
}

static fsdp_status measure(void *s)
{
    const char *const model = "/nowhere";
    return fsdp_measure(&settings, &model, 1, NULL, s);
}

static fsdp_status make_report(void *s)
{
    char *text;
    return fsdp_report(s, &text);
}

static fsdp_status watch(void *s)
{
    char *text;
    return fsdp_top(s, &text);
}

static fsdp_status copy_forward(const fsdp_operation_run *r)
{
    memcpy(r->outputs[0].data, r->inputs[0].data, (size_t)r->outputs[0].numel * sizeof(float));
    return FSDP_OK;
}

static fsdp_status record_operation(void *s)
{
    static const float data[4] = {1, 2, 3, 4};
    fsdp_model *model = small_model();
    fsdp_tape *t = fsdp_begin_evaluation(model);
    fsdp_tensor *x = fsdp_input(t, FSDP_F32, 1, (int64_t[]){4}, data), *y = NULL;
    fsdp_shape shape = fsdp_shape_of(x);
    float values[4] = {0};
    bool recorded = fsdp_operation_record(t, s, 1, &x, 1, &shape, NULL, 0, &y);
    fsdp_output(t, y);
    fsdp_status status = fsdp_evaluate(t);
    assert_int_equal(recorded, status == FSDP_OK);
    if (status == FSDP_OK) {
        assert_int_equal(fsdp_read(y, values, 4), FSDP_OK);
        assert_memory_equal(values, data, sizeof data);
    }
    fsdp_model_free(model);
    return status;
}

static fsdp_status read_number(void *context, int64_t index, void *const *fields)
{
    (void)context;
    *(int32_t *)fields[0] = (int32_t)index;
    return FSDP_OK;
}

static const fsdp_field number_field = {.name = "number", .dtype = FSDP_I32};
static const fsdp_dataset_source numbers = {
    .size = sizeof numbers, .name = "numbers", .count = 4, .n_fields = 1, .fields = &number_field, .read = read_number};

static fsdp_status open_dataset(void *s)
{
    fsdp_dataset *data = NULL;
    return fsdp_dataset_open(s, &data);
}

static fsdp_status make_dataset(void *s)
{
    fsdp_dataset *data = NULL;
    fsdp_status status = fsdp_dataset_from(s, &data);
    fsdp_dataset_free(data);
    return status;
}

static fsdp_status make_loader(void *s)
{
    fsdp_dataset *data = NULL;
    fsdp_loader *loader = NULL;
    assert_int_equal(fsdp_dataset_from(&numbers, &data), FSDP_OK);
    fsdp_status status = fsdp_loader_new(world, data, s, &loader);
    fsdp_loader_free(loader);
    fsdp_dataset_free(data);
    return status;
}

static fsdp_status describe_dataset(void *s)
{
    fsdp_dataset *data = NULL;
    assert_int_equal(fsdp_dataset_from(&numbers, &data), FSDP_OK);
    fsdp_status status = fsdp_dataset_describe(data, s);
    fsdp_dataset_free(data);
    return status;
}

static fsdp_status use_source(void *s)
{
    fsdp_dataset *data = NULL;
    fsdp_loader *loader = NULL;
    fsdp_loader_config c = FSDP_LOADER_CONFIG_INIT;
    assert_int_equal(fsdp_dataset_from(&numbers, &data), FSDP_OK);
    assert_int_equal(fsdp_loader_new(world, data, &c, &loader), FSDP_OK);
    fsdp_status status = fsdp_loader_source(loader, 0, s);
    fsdp_loader_free(loader);
    fsdp_dataset_free(data);
    return status;
}

/* What each call takes. */
static const fsdp_world_config world_config = {.size = sizeof world_config, .device = "cpu", .products = "portable"};
static const fsdp_config config = {.size = sizeof config, .wrap = {.kind = FSDP_WRAP_NONE}, .gather_buffers = 2};
static const fsdp_optimizer_config optimizer = {.size = sizeof optimizer, .kind = FSDP_SGD, .lr = 1, .eps = 1e-8f};
static const fsdp_fp8_bounds bounds = {.size = sizeof bounds, .error = 0.5};
static const fsdp_state_config kept = {.size = sizeof kept, .directory = "/nowhere", .max_file_bytes = 1};
static const fsdp_weights_config weights = {.size = sizeof weights, .strict = true};
static const fsdp_lr_config rate = {
    .size = sizeof rate, .decay = FSDP_DECAY_STEP, .lr = 1, .gamma = 0.1, .step_size = 1};
static const fsdp_llama_config llama = {.size = sizeof llama,
                                        .vocabulary = 16,
                                        .hidden = 8,
                                        .intermediate = 8,
                                        .layers = 1,
                                        .heads = 2,
                                        .kv_heads = 2,
                                        .head_dim = 4,
                                        .positions = 8,
                                        .rope_base = 10000,
                                        .rope_factor = 1,
                                        .norm_eps = 1e-5f,
                                        .init_deviation = 0.02f};
static const fsdp_t5_config t5 = {.size = sizeof t5,
                                  .vocabulary = 16,
                                  .hidden = 8,
                                  .intermediate = 8,
                                  .layers = 1,
                                  .decoder_layers = 1,
                                  .heads = 2,
                                  .head_dim = 4,
                                  .buckets = 32,
                                  .max_distance = 128,
                                  .norm_eps = 1e-6f,
                                  .init_factor = 1,
                                  .tied = true};
static const fsdp_cnn_config cnn = {.size = sizeof cnn,
                                    .channels = 1,
                                    .height = 28,
                                    .width = 28,
                                    .classes = 10,
                                    .first = 2,
                                    .second = 2,
                                    .branch = 2,
                                    .hidden = 4};
static const fsdp_lora_config lora = {.size = sizeof lora, .rank = 2, .alpha = 4};
static const fsdp_mlp_config mlp = {.size = sizeof mlp, .inputs = 4, .hidden = 4, .layers = 1, .outputs = 4};
static const fsdp_checkpoint_export_config exported = {
    .size = sizeof exported, .source = "/nowhere", .destination = "/nowhere/else", .max_file_bytes = 1};
static const fsdp_checkpoint_convert_config converted = {
    .size = sizeof converted, .source = "/nowhere", .destination = "/nowhere/else", .kind = "sharded", .world_size = 1};
static const fsdp_checkpoint_prune_config pruned = {.size = sizeof pruned, .directory = "/nowhere", .keep = 1};
static const char *const no_files[] = {"/nowhere"};
static const fsdp_dataset_config named = {.size = sizeof named, .names = no_files, .n_names = 1, .target_width = 1};
static const fsdp_loader_config loaded = {
    .size = sizeof loaded, .batch = 2, .shuffle = true, .threads = 1, .prefetch = 1, .timeout = 10};
static const fsdp_dataset_info nothing_known = FSDP_DATASET_INFO_INIT;
static const fsdp_source_use no_use = FSDP_SOURCE_USE_INIT;
static const fsdp_tokenize_config tokenized = {.size = sizeof tokenized,
                                               .inputs = no_files,
                                               .n_inputs = 1,
                                               .field = "text",
                                               .output = "/nowhere/else",
                                               .n_threads = 1};
static const fsdp_generate_config generated = {.size = sizeof generated,
                                               .model = "/nowhere",
                                               .prompt = "a",
                                               .prompt_bytes = 1,
                                               .max_new_tokens = 1,
                                               .top_p = 1,
                                               .device = "cpu"};
static const fsdp_launch_config launched = {.size = sizeof launched, .n_ranks = 1, .min_nodes = 1, .max_nodes = 1};
static const fsdp_train_callbacks silent = {.size = sizeof silent};
static const fsdp_bench_config bench = {
    .size = sizeof bench, .workload = "nowhere", .steps = 1, .sizes = few_bytes, .n_sizes = 1};
static const fsdp_explain_config tale = {.size = sizeof tale, .ranks = 99, .language = "en"};
static const fsdp_fetch_config local = {.size = sizeof local, .name = "/nowhere", .prefer_local = true};
static const char *const no_folder[] = {"/nowhere"};
static const fsdp_report_config reported = {.size = sizeof reported, .folders = no_folder, .n_folders = 1};
static const fsdp_top_config watched = {.size = sizeof watched, .target = "/nowhere"};
static const fsdp_operation copy = {.size = sizeof copy, .name = "copy", .forward = copy_forward};
static const fsdp_generate_result no_text = FSDP_GENERATE_RESULT_INIT;
static const fsdp_fetch_result nothing_fetched = FSDP_FETCH_RESULT_INIT;
static const fsdp_measurement no_measure = FSDP_MEASUREMENT_INIT;
static const fsdp_load_report no_names = FSDP_LOAD_REPORT_INIT;
static const fsdp_train_result no_run = FSDP_TRAIN_RESULT_INIT;
static const fsdp_bench_result no_step = FSDP_BENCH_RESULT_INIT;
static const fsdp_bench_kernels no_kernels = FSDP_BENCH_KERNELS_INIT;
static const fsdp_bench_profiled no_profile = FSDP_BENCH_PROFILED_INIT;
static const fsdp_bench_collectives no_collectives = FSDP_BENCH_COLLECTIVES_INIT;

#define CONFIG(type_, INIT, value, next_field, call_, message_)                                                        \
    {                                                                                                                  \
        .type = #type_, .init = INIT, .full = &value, .known = sizeof(type_), .older = offsetof(type_, next_field),    \
        .call = call_, .message = message_                                                                             \
    }
#define RESULT(type_, INIT, value, next_field, call_, message_)                                                        \
    {                                                                                                                  \
        .type = #type_, .init = INIT, .full = &value, .known = sizeof(type_), .older = offsetof(type_, next_field),    \
        .call = call_, .message = message_, .result = true                                                             \
    }
static const sized_row rows[] = {
    CONFIG(fsdp_world_config, "FSDP_WORLD_CONFIG_INIT", world_config, products, open_world, NULL),
    CONFIG(fsdp_config, "FSDP_CONFIG_INIT", config, seed, shard, NULL),
    CONFIG(fsdp_optimizer_config, "FSDP_OPTIMIZER_CONFIG_INIT", optimizer, lr, make_optimizer, NULL),
    CONFIG(fsdp_fp8_bounds, "FSDP_FP8_BOUNDS_INIT", bounds, saturated, check_fp8, "set `fp8` and `fp8_check`"),
    CONFIG(fsdp_state_config, "FSDP_STATE_CONFIG_INIT", kept, keep, open_state, NULL),
    CONFIG(fsdp_weights_config, "FSDP_WEIGHTS_CONFIG_INIT", weights, names, load_weights, "/nowhere"),
    CONFIG(fsdp_lr_config, "FSDP_LR_CONFIG_INIT", rate, warmup, ask_rate, NULL),
    CONFIG(fsdp_decoder_config, "FSDP_DECODER_CONFIG_INIT", llama, rope_base, make_llama, NULL),
    CONFIG(fsdp_t5_config, "FSDP_T5_CONFIG_INIT", t5, buckets, make_t5, NULL),
    CONFIG(fsdp_cnn_config, "FSDP_CNN_CONFIG_INIT", cnn, first, make_cnn, NULL),
    CONFIG(fsdp_mlp_config, "FSDP_MLP_CONFIG_INIT", mlp, layers, make_mlp, NULL),
    CONFIG(fsdp_lora_config, "FSDP_LORA_CONFIG_INIT", lora, targets, adapt, NULL),
    CONFIG(fsdp_checkpoint_export_config, "FSDP_CHECKPOINT_EXPORT_CONFIG_INIT", exported, tokenizer, export,
           "/nowhere"),
    CONFIG(fsdp_checkpoint_convert_config, "FSDP_CHECKPOINT_CONVERT_CONFIG_INIT", converted, kind, convert, "/nowhere"),
    CONFIG(fsdp_checkpoint_prune_config, "FSDP_CHECKPOINT_PRUNE_CONFIG_INIT", pruned, keep, prune, "/nowhere"),
    CONFIG(fsdp_tokenize_config, "FSDP_TOKENIZE_CONFIG_INIT", tokenized, n_threads, tokenize, "/nowhere"),
    CONFIG(fsdp_generate_config, "FSDP_GENERATE_CONFIG_INIT", generated, top_p, generate, "/nowhere"),
    CONFIG(fsdp_launch_config, "FSDP_LAUNCH_CONFIG_INIT", launched, n_ranks, launch, "no program"),
    CONFIG(fsdp_train_callbacks, "FSDP_TRAIN_CALLBACKS_INIT", silent, line, train_callbacks, "/nowhere"),
    CONFIG(fsdp_bench_config, "FSDP_BENCH_CONFIG_INIT", bench, sizes, bench_all, "nowhere"),
    CONFIG(fsdp_explain_config, "FSDP_EXPLAIN_CONFIG_INIT", tale, language, explain, "99 ranks"),
    CONFIG(fsdp_fetch_config, "FSDP_FETCH_CONFIG_INIT", local, progress, fetch, NULL),
    CONFIG(fsdp_report_config, "FSDP_REPORT_CONFIG_INIT", reported, trace, make_report, "/nowhere"),
    CONFIG(fsdp_top_config, "FSDP_TOP_CONFIG_INIT", watched, token, watch, "/nowhere"),
    CONFIG(fsdp_operation, "FSDP_OPERATION_INIT", copy, recordable, record_operation, NULL),
    CONFIG(fsdp_dataset_config, "FSDP_DATASET_CONFIG_INIT", named, width, open_dataset, "/nowhere"),
    CONFIG(fsdp_dataset_source, "FSDP_DATASET_SOURCE_INIT", numbers, close, make_dataset, NULL),
    CONFIG(fsdp_loader_config, "FSDP_LOADER_CONFIG_INIT", loaded, threads, make_loader, NULL),
    RESULT(fsdp_dataset_info, "FSDP_DATASET_INFO_INIT", nothing_known, n_classes, describe_dataset, NULL),
    RESULT(fsdp_source_use, "FSDP_SOURCE_USE_INIT", no_use, padding, use_source, NULL),
    RESULT(fsdp_generate_result, "FSDP_GENERATE_RESULT_INIT", no_text, seconds, generate_result, "/nowhere"),
    RESULT(fsdp_fetch_result, "FSDP_FETCH_RESULT_INIT", nothing_fetched, n_files, fetch_result, NULL),
    RESULT(fsdp_measurement, "FSDP_MEASUREMENT_INIT", no_measure, loss, measure, "no data"),
    RESULT(fsdp_load_report, "FSDP_LOAD_REPORT_INIT", no_names, mismatched, load_report, "/nowhere"),
    RESULT(fsdp_train_result, "FSDP_TRAIN_RESULT_INIT", no_run, loss, train_result, "/nowhere"),
    RESULT(fsdp_bench_result, "FSDP_BENCH_RESULT_INIT", no_step, fastest, bench_step, "nowhere"),
    RESULT(fsdp_bench_kernels, "FSDP_BENCH_KERNELS_INIT", no_kernels, rows, bench_kernels, "nowhere"),
    RESULT(fsdp_bench_profiled, "FSDP_BENCH_PROFILED_INIT", no_profile, milliseconds, bench_profile, "nowhere"),
    RESULT(fsdp_bench_collectives, "FSDP_BENCH_COLLECTIVES_INIT", no_collectives, rows, bench_comm, NULL),
};
static sized_rows all_rows = {rows, sizeof rows / sizeof *rows};

/* Settings are of one version only: the library's table writes into them. */
static void settings_of_another_version_are_refused(void **state)
{
    (void)state;
    fsdp_settings other = settings;
    char *text = NULL;
    other.size -= 8;
    assert_int_equal(fsdp_train(&other, NULL, NULL), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "fsdp_settings"));
    assert_int_equal(fsdp_plan(&other, &text), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "fsdp_settings"));
}

static int open_all(void **state)
{
    (void)state;
    fsdp_world_config one = FSDP_WORLD_CONFIG_INIT;
    one.device = "cpu";
    if (fsdp_world_open(&one, &world) != FSDP_OK || fsdp_settings_init(&settings) != FSDP_OK ||
        fsdp_settings_set(&settings, "device", "cpu") != FSDP_OK ||
        fsdp_settings_set(&settings, "preset", "tiny") != FSDP_OK ||
        fsdp_settings_set(&settings, "dataset", "/nowhere") != FSDP_OK)
        return 1;
    return fsdp_settings_check(&settings) == FSDP_OK ? 0 : 1;
}

static int close_all(void **state)
{
    (void)state;
    fsdp_settings_free(&settings);
    fsdp_world_close(world);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(an_older_program_gets_defaults, &all_rows),
        cmocka_unit_test_prestate(a_newer_program_works_while_it_uses_nothing_new, &all_rows),
        cmocka_unit_test_prestate(a_field_that_the_library_does_not_know_is_refused_by_name, &all_rows),
        cmocka_unit_test_prestate(a_struct_that_was_not_initialised_is_refused_by_name, &all_rows),
        cmocka_unit_test(settings_of_another_version_are_refused),
        cmocka_unit_test_prestate(every_struct_with_a_size_has_a_row, &all_rows),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
