/* Checkpoints of torch.distributed.checkpoint: one that FSDP2 wrote on 2 ranks (tests/ckpt/fixtures/pytorch/dcp) is
 * read as the tensors it had, at any cut; what we write is read back the same; what is damaged is refused. */
#include "format/scratch.h"

#include <fsdp/checkpoint.h>

#include "ckpt/commands/pytorch.h"
#include "ckpt/load/source.h"

static const char *fixture_path(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/tests/ckpt/fixtures/pytorch/%s", getenv("FSDP_SOURCE"), name);
    return path;
}

/* Every tensor of the source is in the file, under "<role>/<name>", with the same elements. */
static void assert_as_expected(const ckpt_source *source)
{
    safetensors *expected;
    assert_ok(safetensors_open(fixture_path("dcp-expected.safetensors"), &expected));
    assert_int_equal(source_count(source), safetensors_count(expected));
    for (int i = 0; i < source_count(source); i++) {
        const source_tensor *tensor = source_at(source, i);
        const safetensors_tensor *wanted;
        char key[200];
        float got[64], values[64];
        snprintf(key, sizeof key, "%s/%s", ckpt_role_name(tensor->role), tensor->name);
        assert_ok(safetensors_get(expected, key, &wanted));
        assert_int_equal(tensor->n_dims, wanted->n_dims);
        assert_memory_equal(tensor->shape, wanted->shape, (size_t)wanted->n_dims * sizeof *wanted->shape);
        assert_ok(safetensors_read_f32(wanted, 0, wanted->numel, values));
        for (int64_t first = 0; first < tensor->numel; first++) { /* any slice, as ranks of any world ask for */
            assert_ok(source_read(tensor, first, tensor->numel - first, got));
            assert_memory_equal(got, values + first, (size_t)(tensor->numel - first) * sizeof *got);
        }
    }
    safetensors_close(expected);
}

static void assert_optimizer(const ckpt_source *source)
{
    int64_t steps;
    double lr;
    assert_true(source_optimizer(source, &steps, &lr));
    assert_int_equal(steps, 3);
    assert_true(lr == 0.125);
}

static void a_folder_of_two_ranks_is_read_with_its_optimizer(void **state)
{
    (void)state;
    ckpt_source *source;
    assert_ok(source_open(fixture_path("dcp"), &source));
    assert_string_equal(source_form(source), "PyTorch checkpoint");
    assert_as_expected(source);
    assert_optimizer(source);
    source_close(source);
}

static char *import_to(const char *from, const char *to, int world_size)
{
    fsdp_checkpoint_convert_config config = FSDP_CHECKPOINT_CONVERT_CONFIG_INIT;
    char *text;
    config.source = from;
    config.destination = to;
    config.world_size = world_size;
    assert_ok(fsdp_checkpoint_import(&config, &text));
    return text;
}

static void an_import_is_a_checkpoint_of_the_optimizers_step(void **state)
{
    (void)state;
    const char *run = scratch_path("imported"), *path = scratch_path("imported/step-00000003");
    ckpt_source *source;
    char *text = import_to(fixture_path("dcp"), run, 3);
    assert_non_null(strstr(text, "after 3 steps"));
    free(text);
    assert_ok(source_open(path, &source));
    assert_as_expected(source);
    const json_t *extra = source_manifest(source)->extra;
    assert_int_equal(json_integer_value(json_object_get(extra, "optimizer_steps")), 3);
    assert_int_equal(json_integer_value(json_object_get(extra, "position")), 0);
    assert_true(json_real_value(json_object_get(extra, "lr")) == 0.125);
    source_close(source);
}

static void what_we_write_is_read_back_the_same(void **state)
{
    (void)state;
    const char *run = scratch_path("ours"), *checkpoint = scratch_path("ours/step-00000003");
    ckpt_source *ours, *back;
    free(import_to(fixture_path("dcp"), run, 2));
    assert_ok(source_open(checkpoint, &ours));
    for (int n_files = 1; n_files < 8; n_files++) { /* more files than rows, too */
        char name[32];
        snprintf(name, sizeof name, "written-%d", n_files);
        const char *folder = scratch_path(name);
        assert_ok(pytorch_write_folder(ours, FSDP_F32, n_files, folder));
        assert_ok(source_open(folder, &back));
        assert_as_expected(back);
        assert_optimizer(back);
        source_close(back);
        assert_int_equal(pytorch_write_folder(ours, FSDP_F32, n_files, folder), FSDP_ERR_INPUT);
        assert_non_null(strstr(fsdp_last_error(), "is there already"));
    }
    source_close(ours);
}

static void a_file_is_the_model_rounded_as_asked(void **state)
{
    (void)state;
    static const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    static const char *const names[] = {"F32", "BF16", "F16"};
    ckpt_source *source, *back;
    assert_ok(source_open(fixture_path("dcp"), &source));
    for (int i = 0; i < 3; i++) {
        const char *path = scratch_path(names[i]);
        assert_ok(pytorch_write_file(source, types[i], path));
        assert_ok(source_open(path, &back));
        assert_int_equal(source_count(back), 3); /* no moments */
        const source_tensor *columns = source_find(back, CKPT_PARAMETER, "columns");
        float values[24];
        assert_string_equal(columns->pieces[0].stored->dtype_name, names[i]);
        assert_ok(source_read(columns, 0, 24, values));
        for (int k = 0; k < 24; k++)
            assert_true(values[k] == (float)k); /* small enough for all three */
        source_close(back);
        assert_int_equal(pytorch_write_file(source, types[i], path), FSDP_ERR_INPUT);
    }
    source_close(source);
}

/* ---- Damage ---- */

static void copy_folder(const char *to, const char *cut_name, size_t cut)
{
    static const char *const names[] = {".metadata", "__0_0.distcp", "__1_0.distcp"};
    assert_ok(file_make_directories(to));
    for (int i = 0; i < 3; i++) {
        char *data, *path = file_join(to, names[i]), name[64];
        size_t bytes;
        snprintf(name, sizeof name, "dcp/%s", names[i]);
        assert_ok(file_read(fixture_path(name), &data, &bytes));
        scratch_write(path, data, strcmp(names[i], cut_name) == 0 ? bytes - cut : bytes);
        free(path);
        free(data);
    }
}

static void cut_and_missing_files_are_named(void **state)
{
    (void)state;
    ckpt_source *source;
    const char *cut = scratch_path("cut"), *metadata = scratch_path("cut-metadata"), *gone = scratch_path("gone");
    copy_folder(cut, "__1_0.distcp", 20000);
    assert_int_equal(source_open(cut, &source), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "__1_0.distcp: ends before"));
    copy_folder(metadata, ".metadata", 100);
    assert_int_equal(source_open(metadata, &source), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), ".metadata: pickle refused"));
    copy_folder(gone, "", 0);
    assert_int_equal(unlink(scratch_path("gone/__0_0.distcp")), 0);
    assert_int_not_equal(source_open(gone, &source), FSDP_OK);
    assert_non_null(strstr(fsdp_last_error(), "__0_0.distcp"));
}

/* Any byte of the description changed: refused, or read within the files. */
static void a_damaged_description_is_refused_or_harmless(void **state)
{
    (void)state;
    const char *folder = scratch_path("damaged"), *path = scratch_path("damaged/.metadata");
    char *data;
    size_t bytes;
    copy_folder(folder, "", 0);
    assert_ok(file_read(fixture_path("dcp/.metadata"), &data, &bytes));
    for (size_t i = 0; i < bytes; i += 3) {
        char old = data[i];
        ckpt_source *source;
        data[i] = (char)(old ^ (1 + i % 255));
        scratch_write(path, data, bytes);
        if (source_open(path, &source) == FSDP_OK)
            source_close(source);
        if (source_open(folder, &source) == FSDP_OK) {
            for (int k = 0; k < source_count(source); k++) {
                float value;
                if (source_at(source, k)->numel > 0)
                    (void)source_read(source_at(source, k), source_at(source, k)->numel - 1, 1, &value);
            }
            source_close(source);
        }
        data[i] = old;
    }
    free(data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_folder_of_two_ranks_is_read_with_its_optimizer),
        cmocka_unit_test(an_import_is_a_checkpoint_of_the_optimizers_step),
        cmocka_unit_test(what_we_write_is_read_back_the_same),
        cmocka_unit_test(a_file_is_the_model_rounded_as_asked),
        cmocka_unit_test(cut_and_missing_files_are_named),
        cmocka_unit_test(a_damaged_description_is_refused_or_harmless),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
