/* What loads into what: names, shapes, roles, model folders of other element types, large tensors in several pieces. */
#include "ckpt/fixture.h"

#include <math.h>

#include "base/float_bits.h"
#include "base/log.h"
#include "format/weights/safetensors_writer.h"

static fsdp_status load(const char *path, const ckpt_load_config *config, fixture *f, ckpt_load_result *result)
{
    return ckpt_load(path, config, &f->state, NULL, result);
}

static const char *saved_step(const char *name, fsdp_checkpoint_kind kind)
{
    static char path[1300];
    const char *directory = scratch_path(name);
    assert_ok(fixture_save(directory, kind, 10));
    snprintf(path, sizeof path, "%s/step-00000010", directory);
    return path;
}

static int n_error_lines;

static void count_errors(void *context, fsdp_log_level level, const char *line)
{
    (void)context, (void)line;
    n_error_lines += level == FSDP_LOG_ERROR;
}

static void missing_extra_and_misshapen_names_are_listed_in_one_error(void **state)
{
    (void)state;
    const char *path = saved_step("names", FSDP_CKPT_SHARDED);
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    snprintf(f->names[2], sizeof f->names[2], "model.layers.0.other_norm.weight"); /* a parameter */
    snprintf(f->names[8], sizeof f->names[8], "model.layers.0.other_norm.weight"); /* its first moment */
    f->tensors[1].shape[0] = 13;
    f->tensors[1].shape[1] = 37;
    fsdp_log_set_sink(count_errors, NULL, FSDP_LOG_ERROR);
    assert_fails(FSDP_ERR_INPUT, load(path, &config, f, &result), path, "2 missing: model.layers.0.other_norm.weight",
                 "moment1 of model.layers.0.other_norm.weight",
                 "2 that the model does not have: model.layers.0.norm.weight, moment1 of model.layers.0.norm.weight",
                 "1 of another shape: model.layers.0.mlp.up_proj.weight has shape [37, 13], the model wants [13, 37]");
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_ERROR);
    assert_int_equal(n_error_lines, 5);
    for (int i = 0; i < f->state.n_slices; i++) /* nothing was written */
        for (int64_t k = 0; k < f->slices[i].count; k++)
            assert_true(f->places[i][k] == 0);
    fixture_free(f);
}

static void long_lists_of_names_are_cut_and_counted(void **state)
{
    (void)state;
    const char *path = saved_step("long", FSDP_CKPT_SHARDED);
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    for (int i = 0; i < 19; i++)
        snprintf(f->names[i], sizeof f->names[i], "%d.%060d", i, i);
    assert_fails(FSDP_ERR_INPUT, load(path, &config, f, &result), "19 missing: ", " ...",
                 "19 that the model does not have");
    fixture_free(f);
}

static void other_names_are_found_and_ignored_ones_left(void **state)
{
    (void)state;
    const char *path = saved_step("alias", FSDP_CKPT_SHARDED);
    static const char *const ignored[] = {"*.norm.weight"};
    const char *names[64];
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    assert_true(f->state.n_tensors <= 64);
    for (int i = 0; i < f->state.n_tensors; i++)
        names[i] = f->tensors[i].name;
    snprintf(f->names[0], sizeof f->names[0], "model.tied.weight");
    names[0] = "model.embed_tokens.weight";
    config.names = names;
    config.ignored = ignored;
    config.n_ignored = 1;
    assert_ok(load(path, &config, f, &result));
    ckpt_load_result_free(&result);
    snprintf(f->names[0], sizeof f->names[0], "model.embed_tokens.weight"); /* values hang on the name */
    assert_true(fixture_holds(f, 10, CKPT_ROLES_ALL));
    fixture_free(f);
}

static void optimizer_state_may_be_absent_when_allowed(void **state)
{
    (void)state;
    const char *directory = scratch_path("weights");
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    fixture_fill(f, 10);
    ckpt_save_config save = fixture_config(directory, FSDP_CKPT_SHARDED, 10);
    ckpt_state weights = f->state;
    weights.n_tensors = 6; /* the parameters come first, in tensors and slices */
    weights.n_slices = 5;
    assert_ok(ckpt_save(&save, &weights, NULL, NULL));
    fixture_free(f);

    f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    char path[1300];
    snprintf(path, sizeof path, "%s/step-00000010", directory);
    assert_fails(FSDP_ERR_INPUT, load(path, &config, f, &result), "13 missing", "moment1 of model.embed_tokens.weight");
    config.optional = CKPT_ROLES_OPTIMIZER | CKPT_ROLE_BIT(CKPT_BUFFER);
    assert_ok(load(path, &config, f, &result));
    assert_int_equal(result.absent, CKPT_ROLES_OPTIMIZER | CKPT_ROLE_BIT(CKPT_BUFFER));
    assert_true(fixture_holds(f, 10, CKPT_ROLE_BIT(CKPT_PARAMETER)));
    ckpt_load_result_free(&result);
    fixture_free(f);
}

/* ---- Model folders ---- */

/* Weights as other programs write them, in `dtype`: values that all types hold. */
static void write_folder(const char *folder, fsdp_dtype dtype, fixture *f)
{
    char path[1300];
    safetensors_writer *w;
    assert_ok(file_make_directories(folder));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    assert_ok(safetensors_writer_create(path, &w));
    for (int i = 0; i < f->state.n_tensors; i++)
        if (CKPT_ROLES_MODEL & CKPT_ROLE_BIT(f->tensors[i].role))
            assert_ok(
                safetensors_writer_add(w, f->tensors[i].name, dtype, f->tensors[i].n_dims, f->tensors[i].shape, NULL));
    assert_ok(safetensors_writer_begin(w));
    size_t entry = 0;
    for (int i = 0; i < f->state.n_tensors; i++) {
        if (!(CKPT_ROLES_MODEL & CKPT_ROLE_BIT(f->tensors[i].role)))
            continue;
        for (int64_t k = 0; k < ckpt_tensor_numel(&f->tensors[i]); k++) {
            float value = (float)((k * 7 + i) % 201 - 100) / 8;
            uint16_t half = dtype == FSDP_BF16 ? float_bits_to_bf16(value) : float_bits_to_f16(value);
            const void *data = dtype == FSDP_F32 ? (const void *)&value : &half;
            size_t width = fsdp_dtype_size(dtype);
            assert_ok(safetensors_writer_write(w, entry, (uint64_t)k * width, data, width));
        }
        entry++;
    }
    assert_ok(safetensors_writer_commit(w));
}

static bool holds_folder_values(const fixture *f)
{
    for (int i = 0; i < f->state.n_slices; i++) {
        const ckpt_slice *slice = &f->slices[i];
        if (!(CKPT_ROLES_MODEL & CKPT_ROLE_BIT(f->tensors[slice->tensor].role)))
            continue;
        for (int64_t k = 0; k < slice->count; k++)
            if (f->places[i][k] != (float)(((slice->first + k) * 7 + slice->tensor) % 201 - 100) / 8)
                return false;
    }
    return true;
}

static void model_folders_of_any_float_type_start_a_run(void **state)
{
    (void)state;
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    for (size_t i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "folder-%s", fsdp_dtype_name(types[i]));
        fixture *f = fixture_make(CUT_UNEVEN, 1, 3, i == 1);
        write_folder(scratch_path(name), types[i], f);
        ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
        ckpt_load_result result;
        config.roles = CKPT_ROLES_MODEL;
        assert_ok(load(scratch_path(name), &config, f, &result));
        assert_true(holds_folder_values(f));
        assert_int_equal(result.step, -1);
        assert_null(result.extra);
        config.roles = CKPT_ROLES_ALL;
        assert_fails(FSDP_ERR_INPUT, load(scratch_path(name), &config, f, &result), "12 missing", "moment1 of");
        fixture_free(f);
    }
}

/* ---- Pieces ---- */

/* A tensor of more than two pieces, loaded by slices that begin and end within pieces. */
static void tensors_larger_than_a_piece_are_cut_and_joined(void **state)
{
    (void)state;
    const char *directory = scratch_path("large");
    int64_t numel = 2 * ((int64_t)4 << 20) + 12345;
    float *values = malloc((size_t)numel * sizeof *values), *back = calloc((size_t)numel, sizeof *back);
    for (int64_t i = 0; i < numel; i++)
        values[i] = (float)(i % 1000003);
    ckpt_tensor tensor = {.name = "large", .role = CKPT_PARAMETER, .n_dims = 1, .shape = {numel}};
    ckpt_slice whole = {.tensor = 0, .count = numel, .data = values, .writes = true};
    ckpt_state out = CKPT_STATE_INIT, in = CKPT_STATE_INIT;
    out.tensors = in.tensors = &tensor;
    out.n_tensors = in.n_tensors = 1;
    out.slices = &whole;
    out.n_slices = 1;
    ckpt_save_config config = fixture_config(directory, FSDP_CKPT_SHARDED, 1);
    ckpt_save_result saved;
    assert_ok(ckpt_save(&config, &out, NULL, &saved));
    assert_int_equal(saved.bytes, numel * 4);
    ckpt_slice parts[] = {{.first = 0, .count = 1, .data = back},
                          {.first = 1, .count = 5000000, .data = back + 1},
                          {.first = 5000001, .count = numel - 5000001, .data = back + 5000001}};
    in.slices = parts;
    in.n_slices = 3;
    ckpt_load_config load_config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    assert_ok(ckpt_load(saved.path, &load_config, &in, NULL, &result));
    assert_memory_equal(values, back, (size_t)numel * sizeof *values);
    assert_int_equal(result.bytes, numel * 4);
    ckpt_load_result_free(&result);
    free(values);
    free(back);
}

/* Resumes above a step of run "ours"; the step, or -1. */
static int64_t resumed_above(const char *directory, int64_t above)
{
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    config.run = "ours";
    config.above = above;
    assert_ok(ckpt_resume(directory, &config, &f->state, NULL, &result));
    int64_t step = result.step;
    assert_true(step < 0 || fixture_holds(f, step, CKPT_ROLES_ALL));
    ckpt_load_result_free(&result);
    fixture_free(f);
    return step;
}

/* What a snapshot in memory is compared with: never an older one, another run's, or a reason to give up. */
static void only_newer_checkpoints_of_the_same_run_come_before_a_snapshot(void **state)
{
    (void)state;
    static const struct {
        int64_t step;
        const char *run;
    } saved[] = {{10, "ours"}, {20, "ours"}, {30, "theirs"}};
    const char *directory = scratch_path("newer");
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    for (size_t i = 0; i < sizeof saved / sizeof *saved; i++) {
        ckpt_save_config save = fixture_config(directory, FSDP_CKPT_SHARDED, saved[i].step);
        save.run = saved[i].run;
        save.keep = 0;
        fixture_fill(f, saved[i].step);
        assert_ok(ckpt_save(&save, &f->state, NULL, NULL));
    }
    fixture_free(f);
    assert_int_equal(resumed_above(directory, 0), 20);
    assert_int_equal(resumed_above(directory, 19), 20);
    assert_int_equal(resumed_above(directory, 20), -1);
    assert_int_equal(resumed_above(directory, INT64_MAX), -1);
    assert_int_equal(resumed_above(scratch_path("nothing"), 0), -1);
    char path[1300];
    snprintf(path, sizeof path, "%s/step-00000020/rank-00000.safetensors", directory);
    FILE *file = fopen(path, "r+");
    assert_non_null(file);
    fseek(file, -1, SEEK_END);
    int last = fgetc(file);
    fseek(file, -1, SEEK_END);
    fputc(last ^ 1, file);
    fclose(file);
    assert_int_equal(resumed_above(directory, 5), 10); /* 20 is damaged */
    assert_int_equal(resumed_above(directory, 15), -1);
}

static void a_path_that_is_not_there_is_named(void **state)
{
    (void)state;
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_load_config config = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    assert_fails(FSDP_ERR_INPUT, load(scratch_path("nowhere"), &config, f, &result), scratch_path("nowhere"));
    fixture_free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_extra_and_misshapen_names_are_listed_in_one_error),
        cmocka_unit_test(long_lists_of_names_are_cut_and_counted),
        cmocka_unit_test(other_names_are_found_and_ignored_ones_left),
        cmocka_unit_test(optimizer_state_may_be_absent_when_allowed),
        cmocka_unit_test(model_folders_of_any_float_type_start_a_run),
        cmocka_unit_test(tensors_larger_than_a_piece_are_cut_and_joined),
        cmocka_unit_test(only_newer_checkpoints_of_the_same_run_come_before_a_snapshot),
        cmocka_unit_test(a_path_that_is_not_there_is_named),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
