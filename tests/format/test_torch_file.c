/* Files of torch.save, read as the tensors that PyTorch had (tests/ckpt/fixtures/pytorch, written by
 * tests/pytorch/make_fixtures.py); and what is cut, damaged or no state dict is refused. */
#include "format/scratch.h"

#include "format/weights/model_folder.h"
#include "format/torch/torch_file.h"

static const char *fixture(const char *name)
{
    static char path[4][1024];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/tests/ckpt/fixtures/pytorch/%s", getenv("FSDP_SOURCE"), name);
    return path[next];
}

static void assert_same_tensor(const safetensors_tensor *got, const safetensors_tensor *expected)
{
    float a[64], b[64];
    assert_int_equal(got->dtype, expected->dtype);
    assert_string_equal(got->dtype_name, expected->dtype_name);
    assert_int_equal(got->n_dims, expected->n_dims);
    for (int i = 0; i < got->n_dims; i++)
        assert_int_equal(got->shape[i], expected->shape[i]);
    assert_true(got->numel <= 64);
    assert_ok(safetensors_read_f32(got, 0, got->numel, a));
    assert_ok(safetensors_read_f32(expected, 0, got->numel, b));
    assert_memory_equal(a, b, (size_t)got->numel * sizeof *a);
    for (int64_t i = 0; i < got->numel; i++) { /* each by itself: strides from any start */
        assert_ok(safetensors_read_f32(got, i, 1, a));
        assert_true(a[0] == b[i]);
    }
}

static void assert_holds_expected(const char *path)
{
    model_folder *file, *expected;
    assert_ok(model_folder_open(path, &file));
    assert_ok(model_folder_open(fixture("expected.safetensors"), &expected));
    assert_int_equal(model_folder_count(file), model_folder_count(expected));
    for (size_t i = 0; i < model_folder_count(file); i++) {
        const safetensors_tensor *other = model_folder_find(expected, model_folder_at(file, i)->name);
        assert_non_null(other);
        assert_same_tensor(model_folder_at(file, i), other);
    }
    model_folder_close(expected);
    model_folder_close(file);
}

static void strided_shared_and_half_tensors_are_what_pytorch_had(void **state)
{
    (void)state;
    assert_holds_expected(fixture("plain.pt"));
}

static void the_stream_before_version_1_6_is_read(void **state)
{
    (void)state;
    assert_holds_expected(fixture("stream.pt"));
}

static void the_model_in_a_dict_of_training_loses_its_wrappers_names(void **state)
{
    (void)state;
    assert_holds_expected(fixture("training.pth"));
}

static void a_model_among_other_tensors_and_all_that_trainers_save_is_found(void **state)
{
    (void)state;
    assert_holds_expected(fixture("trainer.pt"));
}

static void a_negative_view_is_refused_rather_than_read_with_the_wrong_sign(void **state)
{
    (void)state;
    model_folder *folder;
    assert_int_equal(model_folder_open(fixture("negated.pt"), &folder), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "tensor turned"));
    assert_non_null(strstr(fsdp_last_error(), "resolve_neg"));
}

static void copy_to(const char *from, const char *to, size_t cut)
{
    char *data;
    size_t bytes;
    assert_ok(file_read(from, &data, &bytes));
    scratch_write(to, data, bytes - cut);
    free(data);
}

static void folders_with_pytorch_model_bin_and_its_index_open(void **state)
{
    (void)state;
    const char *single = scratch_path("single"), *parts = scratch_path("parts");
    assert_ok(file_make_directories(single));
    assert_ok(file_make_directories(parts));
    char *file = file_join(single, "pytorch_model.bin"), *part = file_join(parts, "pytorch_model-00001-of-00001.bin"),
         *index = file_join(parts, "pytorch_model.bin.index.json");
    static const char map[] = "{\"weight_map\": {\"scalar\": \"pytorch_model-00001-of-00001.bin\"}}";
    copy_to(fixture("plain.pt"), file, 0);
    copy_to(fixture("stream.pt"), part, 0);
    scratch_write(index, map, strlen(map));
    assert_holds_expected(single);
    model_folder *folder;
    assert_ok(model_folder_open(parts, &folder));
    assert_int_equal(model_folder_count(folder), 1);
    assert_non_null(model_folder_find(folder, "scalar"));
    model_folder_close(folder);
    free(index);
    free(part);
    free(file);
}

static void element_types_that_are_not_ours_are_listed_by_name(void **state)
{
    (void)state;
    model_folder *folder;
    float value;
    assert_ok(model_folder_open(fixture("types.pt"), &folder));
    assert_int_equal(model_folder_count(folder), 5);
    assert_string_equal(model_folder_find(folder, "fp8")->dtype_name, "F8_E4M3");
    assert_string_equal(model_folder_find(folder, "uint16")->dtype_name, "U16");
    assert_int_equal(model_folder_find(folder, "int64")->dtype, FSDP_I64);
    assert_int_equal(safetensors_read_f32(model_folder_find(folder, "bool"), 0, 1, &value), FSDP_ERR_INPUT);
    model_folder_close(folder);
}

static void a_pickled_module_is_refused_by_its_class(void **state)
{
    (void)state;
    torch_file *file;
    assert_int_equal(torch_file_open(fixture("module.pt"), &file), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "torch.nn.modules.linear.Linear"));
}

/* Every prefix of a file is refused or, where a tensor's end is missing, refused when that tensor is asked for. */
static void files_cut_anywhere_are_refused(void **state)
{
    (void)state;
    static const char *const names[] = {"plain.pt", "stream.pt"};
    for (int k = 0; k < 2; k++) {
        char *data;
        size_t bytes;
        assert_ok(file_read(fixture(names[k]), &data, &bytes));
        for (size_t kept = 0; kept < bytes; kept++) {
            torch_file *file;
            uint8_t *cut = malloc(kept + 1); /* of its own size: a read past the end is seen */
            memcpy(cut, data, kept);
            if (torch_file_open_memory("cut.pt", cut, kept, 0, &file) == FSDP_OK)
                fail_msg("%s: the first %zu of %zu bytes open", names[k], kept, bytes);
            free(cut);
        }
        free(data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(strided_shared_and_half_tensors_are_what_pytorch_had),
        cmocka_unit_test(the_stream_before_version_1_6_is_read),
        cmocka_unit_test(the_model_in_a_dict_of_training_loses_its_wrappers_names),
        cmocka_unit_test(a_model_among_other_tensors_and_all_that_trainers_save_is_found),
        cmocka_unit_test(a_negative_view_is_refused_rather_than_read_with_the_wrong_sign),
        cmocka_unit_test(folders_with_pytorch_model_bin_and_its_index_open),
        cmocka_unit_test(element_types_that_are_not_ours_are_listed_by_name),
        cmocka_unit_test(a_pickled_module_is_refused_by_its_class),
        cmocka_unit_test(files_cut_anywhere_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
