/* Model folders: one file or indexed parts give the same set of tensors; all that is missing is told at once. */
#include "format/scratch.h"

#include "format/weights/model_folder.h"
#include "format/weights/safetensors_writer.h"

/* A file of one-element tensors whose value is their place in the list, from `first` on. */
static void write_part(const char *path, const char *const *names, int n, float first)
{
    safetensors_writer *w;
    assert_ok(safetensors_writer_create(path, &w));
    for (int i = 0; i < n; i++)
        assert_ok(safetensors_writer_add(w, names[i], FSDP_F32, 1, (int64_t[]){1}, NULL));
    assert_ok(safetensors_writer_begin(w));
    for (int i = 0; i < n; i++)
        assert_ok(safetensors_writer_write(w, (size_t)i, 0, (float[]){first + (float)i}, sizeof(float)));
    assert_ok(safetensors_writer_commit(w));
}

static const char *make_folder(const char *name)
{
    const char *path = scratch_path(name);
    assert_ok(file_make_directories(path));
    return path;
}

static void put(const char *folder, const char *name, const char *text)
{
    char *path = file_join(folder, name);
    scratch_write(path, text, strlen(text));
    free(path);
}

static void put_part(const char *folder, const char *name, const char *const *names, int n, float first)
{
    char *path = file_join(folder, name);
    write_part(path, names, n, first);
    free(path);
}

static void assert_tensor(const model_folder *folder, const char *name, float value)
{
    float got;
    const safetensors_tensor *tensor = model_folder_find(folder, name);
    assert_non_null(tensor);
    assert_ok(safetensors_read_f32(tensor, 0, 1, &got));
    assert_true(got == value);
}

static const char good_index[] = "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"z\":\"part-1.safetensors\","
                                 "\"a\":\"part-2.safetensors\",\"m\":\"part-1.safetensors\"}}";

static void a_single_file_is_opened_by_folder_and_by_name(void **state)
{
    (void)state;
    const char *path = make_folder("single");
    put_part(path, "model.safetensors", (const char *[]){"w", "b"}, 2, 5);
    model_folder *folder;
    assert_ok(model_folder_open(path, &folder));
    assert_int_equal(model_folder_count(folder), 2);
    assert_string_equal(model_folder_at(folder, 0)->name, "b");
    assert_tensor(folder, "w", 5);
    assert_tensor(folder, "b", 6);
    model_folder_close(folder);
    char *file = file_join(path, "model.safetensors");
    assert_ok(model_folder_open(file, &folder));
    assert_tensor(folder, "b", 6);
    model_folder_close(folder);
    free(file);
    model_folder_close(NULL);
}

static void indexed_parts_are_one_set_sorted_by_name(void **state)
{
    (void)state;
    const char *path = make_folder("indexed");
    put_part(path, "part-1.safetensors", (const char *[]){"m", "z"}, 2, 1);
    put_part(path, "part-2.safetensors", (const char *[]){"a", "unlisted"}, 2, 3);
    put(path, "model.safetensors.index.json", good_index);
    model_folder *folder;
    assert_ok(model_folder_open(path, &folder));
    assert_int_equal(model_folder_count(folder), 3);
    assert_string_equal(model_folder_at(folder, 0)->name, "a");
    assert_string_equal(model_folder_at(folder, 2)->name, "z");
    assert_tensor(folder, "m", 1);
    assert_tensor(folder, "z", 2);
    assert_tensor(folder, "a", 3);
    assert_null(model_folder_find(folder, "unlisted"));
    model_folder_close(folder);
}

static void everything_missing_is_listed_in_one_error(void **state)
{
    (void)state;
    const char *path = make_folder("missing");
    put_part(path, "p1", (const char *[]){"here"}, 1, 0);
    put(path, "model.safetensors.index.json",
        "{\"weight_map\":{\"here\":\"p1\",\"gone.1\":\"p1\",\"x\":\"p2\",\"gone.2\":\"p1\",\"y\":\"p3\"}}");
    model_folder *folder;
    assert_fails(FSDP_ERR_INPUT, model_folder_open(path, &folder), path, "missing files (2): p2, p3",
                 "(2): gone.1 (in p1)", "gone.2 (in p1)");
    assert_null(folder);
    put(path, "model.safetensors.index.json", "{\"weight_map\":{\"here\":\"p1\",\"gone\":\"p1\"}}");
    assert_fails(FSDP_ERR_INPUT, model_folder_open(path, &folder), "do not have (1): gone (in p1)");
}

static void a_long_list_of_missing_names_still_fits_a_message(void **state)
{
    (void)state;
    const char *path = make_folder("long");
    size_t capacity = 100000, used = 0;
    char *text = malloc(capacity);
    used += (size_t)snprintf(text, capacity, "{\"weight_map\":{");
    for (int i = 0; i < 900; i++)
        used += (size_t)snprintf(text + used, capacity - used, "%s\"layer.%d\":\"p%d\"", i ? "," : "", i, i);
    snprintf(text + used, capacity - used, "}}");
    put(path, "model.safetensors.index.json", text);
    free(text);
    model_folder *folder;
    assert_fails(FSDP_ERR_INPUT, model_folder_open(path, &folder), path, "missing files (900): p0, p1, ");
}

static void indexes_that_lie_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *index, *reason;
    } cases[] = {
        {"{}", "weight_map"},
        {"[]", "weight_map"},
        {"{\"weight_map\":[]}", "weight_map"},
        {"{\"weight_map\":{\"w\":3}}", "entry w"},
        {"{\"weight_map\":{\"w\":\"\"}}", "entry w"},
        {"{\"weight_map\":{\"w\":\"../p1\"}}", "entry w"},
        {"{\"weight_map\":{\"w\":\"/etc/passwd\"}}", "entry w"},
        {"{\"weight_map\":{\"w\":\"..\"}}", "entry w"},
        {"{\"weight_map\":{\"w\":\"p1\",\"w\":\"p2\"}}", "duplicate"},
        {"{\"weight_map\"", "not valid JSON"},
        {"", "not valid JSON"},
    };
    const char *path = make_folder("lies");
    put_part(path, "p1", (const char *[]){"w"}, 1, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model_folder *folder;
        put(path, "model.safetensors.index.json", cases[i].index);
        assert_fails(FSDP_ERR_INPUT, model_folder_open(path, &folder), "model.safetensors.index.json", cases[i].reason);
    }
}

static void a_broken_part_is_named(void **state)
{
    (void)state;
    const char *path = make_folder("broken");
    put_part(path, "part-1.safetensors", (const char *[]){"m", "z"}, 2, 1);
    put(path, "part-2.safetensors", "not a safetensors file");
    put(path, "model.safetensors.index.json", good_index);
    model_folder *folder;
    assert_fails(FSDP_ERR_INPUT, model_folder_open(path, &folder), "part-2.safetensors");
}

static void folders_without_weights_are_refused(void **state)
{
    (void)state;
    model_folder *folder;
    const char *path = make_folder("bare");
    assert_fails(FSDP_ERR_INPUT, model_folder_open(path, &folder), path, "neither model.safetensors");
    assert_fails(FSDP_ERR_INPUT, model_folder_open(scratch_path("nowhere"), &folder), "nowhere");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_single_file_is_opened_by_folder_and_by_name),
        cmocka_unit_test(indexed_parts_are_one_set_sorted_by_name),
        cmocka_unit_test(everything_missing_is_listed_in_one_error),
        cmocka_unit_test(a_long_list_of_missing_names_still_fits_a_message),
        cmocka_unit_test(indexes_that_lie_are_refused),
        cmocka_unit_test(a_broken_part_is_named),
        cmocka_unit_test(folders_without_weights_are_refused),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
