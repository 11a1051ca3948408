/* The calls behind `fsdp ckpt`: show, verify, diff, export, import, reshard. */
#include "ckpt/fixture.h"

#include <fsdp/checkpoint.h>
#include <math.h>
#include <sys/stat.h>

#include "ckpt/load/source.h"
#include "format/weights/model_folder.h"

static void assert_has(const char *text, const char *part)
{
    if (!text || !strstr(text, part))
        fail_msg("\"%s\" is not in:\n%s", part, text ? text : "(nothing)");
}

static json_t *parsed(char *text)
{
    json_t *value = NULL;
    assert_non_null(text);
    assert_ok(json_parse("report", text, strlen(text), &value));
    free(text);
    return value;
}

/* A sharded checkpoint of three ranks by way of reshard, with config.json and a tokenizer that training used. */
static void save_with_model(const char *directory, const char *tokenizer, int64_t step)
{
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    fixture_fill(f, step);
    ckpt_save_config config = fixture_config(directory, FSDP_CKPT_SHARDED, step);
    json_t *model = json_pack("{s:s, s:i, s:s}", "model_type", "llama", "hidden_size", 37, "torch_dtype", "bfloat16");
    config.model = model;
    config.tokenizer = tokenizer;
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    json_decref(model);
    fixture_free(f);
}

static void show_tells_what_is_there(void **state)
{
    (void)state;
    const char *directory = scratch_path("show");
    char *text, path[1300];
    save_with_model(directory, NULL, 10);
    save_with_model(directory, NULL, 20);
    snprintf(path, sizeof path, "%s/step-00000020/COMMIT", directory);
    assert_int_equal(unlink(path), 0);
    assert_ok(fsdp_checkpoint_show(directory, false, &text));
    assert_has(text, "2 checkpoints");
    assert_has(text, "step-00000010                            complete");
    assert_has(text, "corrupt (");
    free(text);
    snprintf(path, sizeof path, "%s/step-00000010", directory);
    assert_ok(fsdp_checkpoint_show(path, false, &text));
    assert_has(text, "model.layers.0.mlp.up_proj.weight");
    assert_has(text, "rank-00000.safetensors");
    free(text);
    assert_ok(fsdp_checkpoint_show(path, true, &text));
    json_t *report = parsed(text);
    assert_int_equal(json_integer_value(json_object_get(report, "step")), 10);
    assert_int_equal(json_array_size(json_object_get(report, "tensors")), 19);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(report, "extra"), "data_position")), 10000030);
    json_decref(report);
    assert_fails(FSDP_ERR_INPUT, fsdp_checkpoint_show(scratch_path("absent"), true, &text), "absent");
}

/* A checkpoint all of whose numbers are 1, and what it was written from. */
static fixture *save_ones(const char *directory)
{
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_save_config config = fixture_config(directory, FSDP_CKPT_SHARDED, 10);
    for (int i = 0; i < f->state.n_slices; i++)
        for (int64_t k = 0; k < f->slices[i].count; k++)
            f->places[i][k] = 1;
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    return f;
}

static void diff_names_tensors_and_distances(void **state)
{
    (void)state;
    const char *a = scratch_path("diff-a"), *b = scratch_path("diff-b");
    char *text;
    bool same;
    fixture *f = save_ones(a);
    ckpt_save_config config = fixture_config(b, FSDP_CKPT_FULL, 10);
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    assert_ok(fsdp_checkpoint_diff(a, b, 0, false, &same, &text));
    assert_true(same);
    assert_has(text, "all tensors are the same");
    free(text);

    f->places[0][5] = 1.5f;
    f->places[0][9] = 0.75f;
    snprintf(f->names[2], sizeof f->names[2], "renamed");
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    assert_ok(fsdp_checkpoint_diff(a, b, 0, true, &same, &text));
    assert_false(same);
    json_t *report = parsed(text), *differ = json_array_get(json_object_get(report, "differ"), 0);
    assert_string_equal(json_string_value(json_object_get(differ, "name")), "model.embed_tokens.weight");
    assert_int_equal(json_integer_value(json_object_get(differ, "different")), 2);
    assert_int_equal(json_integer_value(json_object_get(differ, "first")), 5);
    assert_true(json_real_value(json_object_get(differ, "max_absolute")) == 0.5);
    assert_int_equal(json_array_size(json_object_get(report, "only_a")), 1);
    assert_int_equal(json_array_size(json_object_get(report, "only_b")), 1);
    json_decref(report);
    assert_ok(fsdp_checkpoint_diff(a, b, 0.3, false, &same, &text));
    assert_has(text, "1 of 3589 elements, from 5 on, by up to 0.5");
    assert_has(text, "renamed: only in b");
    free(text);
    fixture_free(f);
}

/* A NaN is no difference of 0. */
static void diff_says_what_is_not_finite(void **state)
{
    (void)state;
    const char *a = scratch_path("nan-a"), *b = scratch_path("nan-b");
    char *text;
    bool same;
    fixture *f = save_ones(a);
    f->places[0][3] = NAN;
    ckpt_save_config config = fixture_config(b, FSDP_CKPT_SHARDED, 10);
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    assert_ok(fsdp_checkpoint_diff(a, b, 0, false, &same, &text));
    assert_false(same);
    assert_has(text, "1 of 3589 elements, from 3 on, 1 of them NaN or infinite in one or both");
    assert_null(strstr(text, "by up to"));
    free(text);
    f->places[0][9] = 1.5f;
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    assert_ok(fsdp_checkpoint_diff(a, b, 0.1, false, &same, &text));
    assert_has(text, "2 of 3589 elements, from 3 on, by up to 0.5 (relative 0.333333), 1 of them NaN");
    free(text);
    assert_ok(fsdp_checkpoint_diff(a, b, 0, true, &same, &text));
    json_t *report = parsed(text), *differ = json_array_get(json_object_get(report, "differ"), 0);
    assert_int_equal(json_integer_value(json_object_get(differ, "not_finite")), 1);
    json_decref(report);
    fixture_free(f);
}

static void exports_are_model_folders_with_everything_in_them(void **state)
{
    (void)state;
    const char *directory = scratch_path("export"), *folder = scratch_path("exported");
    const char *tokenizer = scratch_path("tokenizer");
    char *text, path[1300];
    assert_ok(file_make_directories(tokenizer));
    snprintf(path, sizeof path, "%s/tokenizer.json", tokenizer);
    assert_ok(file_write_atomic(path, "{\"model\": {}}", 13));
    save_with_model(directory, tokenizer, 10);
    fsdp_checkpoint_export_config config = FSDP_CHECKPOINT_EXPORT_CONFIG_INIT;
    config.source = directory;
    config.destination = folder;
    assert_ok(fsdp_checkpoint_export(&config, &text));
    assert_has(text, folder);
    free(text);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_true(file_exists(path));
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *model;
    assert_ok(json_read_file(path, &model));
    assert_string_equal(json_string_value(json_object_get(model, "model_type")), "llama");
    assert_string_equal(json_string_value(json_object_get(model, "torch_dtype")), "float32");
    json_decref(model);
    bool same;
    assert_ok(fsdp_checkpoint_diff(directory, folder, 0, true, &same, &text));
    json_t *report = parsed(text);
    assert_int_equal(json_array_size(json_object_get(report, "differ")), 0);
    assert_int_equal(json_array_size(json_object_get(report, "only_b")), 0);
    assert_int_equal(json_array_size(json_object_get(report, "only_a")), 12); /* the moments */
    json_decref(report);
}

static void large_models_are_exported_in_parts_with_an_index(void **state)
{
    (void)state;
    const char *directory = scratch_path("parts"), *folder = scratch_path("parts-exported");
    char *text, path[1300];
    save_with_model(directory, NULL, 10);
    fsdp_checkpoint_export_config config = FSDP_CHECKPOINT_EXPORT_CONFIG_INIT;
    config.source = directory;
    config.destination = folder;
    config.dtype = FSDP_BF16;
    config.max_file_bytes = 1500;
    assert_ok(fsdp_checkpoint_export(&config, &text));
    free(text);
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", folder);
    assert_true(file_exists(path));
    snprintf(path, sizeof path, "%s/model-00001-of-00003.safetensors", folder);
    assert_true(file_exists(path));
    model_folder *opened;
    assert_ok(model_folder_open(folder, &opened));
    assert_int_equal(model_folder_count(opened), 7);
    const safetensors_tensor *tensor = model_folder_find(opened, "model.embed_tokens.weight");
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, FSDP_BF16);
    model_folder_close(opened);
    /* Again, as one file: the folder is replaced, nothing of the old one stays. */
    config.max_file_bytes = 1 << 30;
    assert_ok(fsdp_checkpoint_export(&config, &text));
    free(text);
    assert_int_equal(fixture_count_entries(folder), 2);
}

static fsdp_status export_to(const char *source, const char *folder)
{
    char *text = NULL;
    fsdp_checkpoint_export_config config = FSDP_CHECKPOINT_EXPORT_CONFIG_INIT;
    config.source = source;
    config.destination = folder;
    fsdp_status status = fsdp_checkpoint_export(&config, &text);
    free(text);
    return status;
}

static const char *put(const char *folder, const char *name, const char *text)
{
    static char path[1300];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    assert_ok(file_make_directories(folder));
    assert_ok(file_write_atomic(path, text, strlen(text)));
    return path;
}

static void an_export_removes_nothing_that_it_did_not_write(void **state)
{
    (void)state;
    static const char *const names[] = {"thesis.tex", "config.json", "model.safetensors", ".hidden"};
    const char *directory = scratch_path("source");
    save_with_model(directory, NULL, 10);
    for (size_t i = 0; i < 4; i++) {
        char name[32];
        snprintf(name, sizeof name, "precious-%zu", i);
        const char *folder = scratch_path(name);
        char *text;
        size_t bytes;
        const char *path = put(folder, names[i], "precious");
        assert_fails(FSDP_ERR_INPUT, export_to(directory, folder), "not marked as an export of ours", folder);
        assert_ok(file_read(path, &text, &bytes));
        assert_string_equal(text, "precious");
        free(text);
    }
    /* Not even a checkpoint, nor the folder that it is exported from. */
    char checkpoint[1300];
    snprintf(checkpoint, sizeof checkpoint, "%s/step-00000010", directory);
    assert_fails(FSDP_ERR_INPUT, export_to(directory, checkpoint), "not marked as an export of ours");
    assert_fails(FSDP_ERR_INPUT, export_to(directory, directory), "not marked as an export of ours");
    assert_int_equal(fixture_resumed_step(directory), 10);
}

static void an_earlier_export_gives_way_and_what_lies_beside_it_stays(void **state)
{
    (void)state;
    const char *directory = scratch_path("twice"), *folder = scratch_path("twice-exported");
    const char *link = scratch_path("twice-link");
    char inside[1300], *text;
    assert_ok(file_make_directories(folder)); /* an empty one is as good as none */
    save_with_model(directory, NULL, 10);
    assert_ok(export_to(directory, folder));
    put(folder, "README.md", "my notes");
    put(folder, ".gitattributes", "x");
    snprintf(inside, sizeof inside, "%s/runs/1", folder);
    put(inside, "events", "y");
    save_with_model(directory, NULL, 20);
    assert_int_equal(symlink(folder, link), 0);
    assert_ok(export_to(directory, link));
    bool same;
    assert_ok(fsdp_checkpoint_diff(directory, folder, 0, true, &same, &text));
    json_t *report = parsed(text);
    assert_int_equal(json_array_size(json_object_get(report, "differ")), 0);
    json_decref(report);
    assert_true(file_exists(put(inside, "events2", "z")));
    snprintf(inside, sizeof inside, "%s/runs/1/events", folder);
    assert_true(file_exists(inside));
    snprintf(inside, sizeof inside, "%s/README.md", folder);
    assert_true(file_exists(inside));
    assert_int_equal(fixture_count_entries(folder), 4); /* config.json, weights, README.md, runs */
    struct stat info;
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    /* Ours, but changed since: no longer ours to remove. */
    put(folder, "config.json", "{\"edited\": true}");
    assert_fails(FSDP_ERR_INPUT, export_to(directory, folder), "config.json is not as the earlier export wrote it");
    assert_ok(file_exists(folder) ? FSDP_OK : FSDP_ERR_STATE);
}

/* A tokenizer that the user put beside an export without one is not overwritten by the next, which brings one. */
static void a_file_in_the_way_of_an_export_is_refused(void **state)
{
    (void)state;
    const char *directory = scratch_path("way"), *folder = scratch_path("way-exported");
    const char *tokenizer = scratch_path("way-tokenizer");
    save_with_model(directory, NULL, 10);
    assert_ok(export_to(directory, folder));
    put(folder, "tokenizer.json", "mine");
    put(tokenizer, "tokenizer.json", "{\"model\": {}}");
    save_with_model(directory, tokenizer, 20);
    assert_fails(FSDP_ERR_INPUT, export_to(directory, folder), "tokenizer.json is there and was not written by");
    char *text, path[1300];
    size_t bytes;
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_ok(file_read(path, &text, &bytes));
    assert_string_equal(text, "mine");
    free(text);
    /* Nothing of the attempt is left beside it. */
    int n = 0;
    DIR *parent = opendir(scratch_folder);
    for (struct dirent *entry; (entry = readdir(parent));)
        n += strstr(entry->d_name, "way-exported.") != NULL;
    closedir(parent);
    assert_int_equal(n, 0);
}

static void a_checkpoint_is_not_replaced_by_another_run_s(void **state)
{
    (void)state;
    const char *mine = scratch_path("mine"), *other = scratch_path("other");
    char *text;
    save_with_model(mine, NULL, 10);
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    fixture_fill(f, 11); /* other values at the same step */
    ckpt_save_config config = fixture_config(other, FSDP_CKPT_SHARDED, 10);
    assert_ok(ckpt_save(&config, &f->state, NULL, NULL));
    fixture_free(f);
    fsdp_checkpoint_convert_config convert = FSDP_CHECKPOINT_CONVERT_CONFIG_INIT;
    convert.source = other;
    convert.destination = mine;
    assert_fails(FSDP_ERR_INPUT, fsdp_checkpoint_reshard(&convert, &text), "is there already and holds something else");
    assert_int_equal(fixture_resumed_step(mine), 10);
    convert.source = mine; /* itself, in another form */
    convert.world_size = 3;
    assert_ok(fsdp_checkpoint_reshard(&convert, &text));
    free(text);
    assert_int_equal(fixture_resumed_step(mine), 10);
}

/* Through reshard to N, from there to full, and back: the same bits and the same training state all the way. */
static void reshard_keeps_every_bit(void **state)
{
    (void)state;
    static const int worlds[] = {1, 2, 3, 4, 8};
    const char *directory = scratch_path("origin");
    char *text;
    bool same;
    save_with_model(directory, NULL, 10);
    for (size_t i = 0; i < 5; i++) {
        char name[64], full[64];
        snprintf(name, sizeof name, "world-%d", worlds[i]);
        snprintf(full, sizeof full, "full-%d", worlds[i]);
        fsdp_checkpoint_convert_config config = FSDP_CHECKPOINT_CONVERT_CONFIG_INIT;
        config.source = directory;
        config.destination = scratch_path(name);
        config.world_size = worlds[i];
        assert_ok(fsdp_checkpoint_reshard(&config, &text));
        free(text);
        config.source = scratch_path(name);
        config.destination = scratch_path(full);
        config.kind = "full";
        assert_ok(fsdp_checkpoint_reshard(&config, &text));
        free(text);
        assert_ok(fsdp_checkpoint_diff(directory, scratch_path(full), 0, true, &same, &text));
        assert_true(same);
        json_t *report = parsed(text);
        assert_true(json_is_true(json_object_get(report, "same_state")));
        json_decref(report);
        assert_int_equal(fixture_resumed_step(scratch_path(name)), 10);
        assert_int_equal(fixture_resumed_step(scratch_path(full)), 10);
    }
}

static void imports_start_a_run_at_step_zero(void **state)
{
    (void)state;
    const char *directory = scratch_path("to-export"), *folder = scratch_path("hf"),
               *imported = scratch_path("imported");
    char *text;
    save_with_model(directory, NULL, 10);
    fsdp_checkpoint_export_config export = FSDP_CHECKPOINT_EXPORT_CONFIG_INIT;
    export.source = directory;
    export.destination = folder;
    assert_ok(fsdp_checkpoint_export(&export, &text));
    free(text);
    fsdp_checkpoint_convert_config config = FSDP_CHECKPOINT_CONVERT_CONFIG_INIT;
    config.source = folder;
    config.destination = imported;
    config.world_size = 3;
    config.json = true;
    assert_ok(fsdp_checkpoint_import(&config, &text));
    json_decref(parsed(text));
    fixture *f = fixture_make(CUT_FLAT, 0, 1, false);
    ckpt_load_config load = CKPT_LOAD_CONFIG_INIT;
    ckpt_load_result result;
    load.roles = CKPT_ROLES_MODEL;
    assert_ok(ckpt_resume(imported, &load, &f->state, NULL, &result));
    assert_int_equal(result.step, 0);
    assert_true(fixture_holds(f, 10, CKPT_ROLES_MODEL));
    ckpt_load_result_free(&result);
    fixture_free(f);
    assert_fails(FSDP_ERR_INPUT, fsdp_checkpoint_reshard(&config, &text), "import takes it");
    config.source = imported;
    assert_fails(FSDP_ERR_INPUT, fsdp_checkpoint_import(&config, &text), "is a checkpoint already");
}

static void a_damaged_source_is_not_converted(void **state)
{
    (void)state;
    const char *directory = scratch_path("broken");
    char *text, *data, path[1300];
    size_t bytes;
    save_with_model(directory, NULL, 10);
    snprintf(path, sizeof path, "%s/step-00000010/rank-00000.safetensors", directory);
    assert_ok(file_read(path, &data, &bytes));
    data[bytes - 3] ^= 1;
    assert_ok(file_write_atomic(path, data, bytes));
    free(data);
    fsdp_checkpoint_convert_config config = FSDP_CHECKPOINT_CONVERT_CONFIG_INIT;
    config.source = directory;
    config.destination = scratch_path("unmade");
    assert_fails(FSDP_ERR_INPUT, fsdp_checkpoint_reshard(&config, &text), "checksum does not hold");
    assert_false(file_exists(scratch_path("unmade")));
    assert_int_equal(fsdp_checkpoint_verify(directory, true, &text), FSDP_ERR_INPUT);
    assert_has(text, "\"good\": false");
    free(text);
}

static void own_models_get_a_config_of_ours(void **state)
{
    (void)state;
    const char *directory = scratch_path("own");
    char path[1300];
    assert_ok(fixture_save(directory, FSDP_CKPT_FULL, 10));
    snprintf(path, sizeof path, "%s/step-00000010/config.json", directory);
    json_t *config;
    assert_ok(json_read_file(path, &config));
    assert_string_equal(json_string_value(json_object_get(config, "model_type")), "fsdp-custom");
    json_decref(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(show_tells_what_is_there),
        cmocka_unit_test(diff_names_tensors_and_distances),
        cmocka_unit_test(diff_says_what_is_not_finite),
        cmocka_unit_test(exports_are_model_folders_with_everything_in_them),
        cmocka_unit_test(large_models_are_exported_in_parts_with_an_index),
        cmocka_unit_test(an_export_removes_nothing_that_it_did_not_write),
        cmocka_unit_test(an_earlier_export_gives_way_and_what_lies_beside_it_stays),
        cmocka_unit_test(a_file_in_the_way_of_an_export_is_refused),
        cmocka_unit_test(a_checkpoint_is_not_replaced_by_another_run_s),
        cmocka_unit_test(reshard_keeps_every_bit),
        cmocka_unit_test(imports_start_a_run_at_step_zero),
        cmocka_unit_test(a_damaged_source_is_not_converted),
        cmocka_unit_test(own_models_get_a_config_of_ours),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
