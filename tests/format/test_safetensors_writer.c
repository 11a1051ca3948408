/* The safetensors writer: what it writes reads back, bytes are the same each time, and half a file never appears. */
#include "format/scratch.h"

#include <dirent.h>

#include "base/rng.h"
#include "base/float_bits.h"
#include "format/weights/safetensors.h"
#include "format/weights/safetensors_writer.h"
#include "format/weights/span_set.h"

static size_t files_in_scratch(void)
{
    size_t n = 0;
    DIR *folder = opendir(scratch_folder);
    assert_non_null(folder);
    for (struct dirent *entry; (entry = readdir(folder));)
        n += entry->d_name[0] != '.';
    closedir(folder);
    return n;
}

static const uint8_t bytes_of_u8[3] = {1, 2, 3};
static const float floats[6] = {1, -2, 0.5f, 3e20f, 0, -0.0f};
static const int64_t wholes[2] = {-7, INT64_MAX};

static safetensors_writer *start(const char *path)
{
    safetensors_writer *w;
    size_t index;
    assert_ok(safetensors_writer_create(path, &w));
    assert_ok(safetensors_writer_add(w, "narrow", FSDP_U8, 1, (int64_t[]){3}, &index));
    assert_int_equal(index, 0);
    assert_ok(safetensors_writer_add(w, "a \"quoted\"\tn\xc3\xa4me", FSDP_F32, 2, (int64_t[]){2, 3}, &index));
    assert_ok(safetensors_writer_add(w, "wide", FSDP_I64, 1, (int64_t[]){2}, &index));
    assert_ok(safetensors_writer_add(w, "none", FSDP_BF16, 2, (int64_t[]){0, 9}, NULL));
    assert_ok(safetensors_writer_begin(w));
    return w;
}

static void write_small_file(const char *path)
{
    safetensors_writer *w = start(path);
    assert_ok(safetensors_writer_write(w, 2, 8, wholes + 1, 8));
    assert_ok(safetensors_writer_write(w, 0, 0, bytes_of_u8, 3));
    assert_ok(safetensors_writer_write(w, 1, 4, floats + 1, 20));
    assert_ok(safetensors_writer_write(w, 2, 0, wholes, 8));
    assert_ok(safetensors_writer_write(w, 1, 0, floats, 8));
    assert_ok(safetensors_writer_commit(w));
}

static void slices_in_any_order_read_back(void **state)
{
    (void)state;
    const char *path = scratch_path("small.safetensors");
    write_small_file(path);
    safetensors *file;
    assert_ok(safetensors_open(path, &file));
    assert_int_equal(safetensors_count(file), 4);
    assert_memory_equal(safetensors_find(file, "narrow")->data, bytes_of_u8, 3);
    assert_memory_equal(safetensors_find(file, "a \"quoted\"\tn\xc3\xa4me")->data, floats, 24);
    assert_memory_equal(safetensors_find(file, "wide")->data, wholes, 16);
    assert_int_equal(safetensors_find(file, "none")->shape[1], 9);
    safetensors_close(file);
    assert_int_equal(remove(path), 0);
}

static void data_is_aligned_to_its_type(void **state)
{
    (void)state;
    const char *path = scratch_path("aligned.safetensors");
    write_small_file(path);
    safetensors *file;
    assert_ok(safetensors_open(path, &file));
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const safetensors_tensor *tensor = safetensors_at(file, i);
        assert_int_equal((uintptr_t)tensor->data % fsdp_dtype_size(tensor->dtype), 0);
    }
    assert_int_equal((uintptr_t)safetensors_at(file, 0)->data % SAFETENSORS_DATA_ALIGNMENT, 0);
    safetensors_close(file);
    assert_int_equal(remove(path), 0);
}

static void the_same_calls_give_the_same_bytes(void **state)
{
    (void)state;
    size_t first_bytes, second_bytes;
    const char *a = scratch_path("a"), *b = scratch_path("b");
    write_small_file(a);
    write_small_file(b);
    uint8_t *first = scratch_read(a, &first_bytes), *second = scratch_read(b, &second_bytes);
    assert_int_equal(first_bytes, second_bytes);
    assert_memory_equal(first, second, first_bytes);
    free(first);
    free(second);
    assert_int_equal(remove(a) | remove(b), 0);
}

static void a_commit_with_bytes_missing_is_refused_and_leaves_nothing(void **state)
{
    (void)state;
    const char *path = scratch_path("holes.safetensors");
    for (size_t gap = 0; gap < 24; gap++) { /* every single byte of one tensor missing in turn */
        safetensors_writer *w = start(path);
        assert_ok(safetensors_writer_write(w, 0, 0, bytes_of_u8, 3));
        assert_ok(safetensors_writer_write(w, 2, 0, wholes, 16));
        assert_ok(safetensors_writer_write(w, 1, 0, floats, gap));
        assert_ok(safetensors_writer_write(w, 1, gap + 1, (const uint8_t *)floats + gap + 1, 23 - gap));
        assert_ok(safetensors_writer_write(w, 1, 0, floats, gap)); /* twice is not more */
        assert_fails(FSDP_ERR_STATE, safetensors_writer_commit(w), path, "quoted", "1 of its 24 bytes");
    }
    assert_int_equal(files_in_scratch(), 0);
}

static void an_abort_or_an_early_commit_leaves_nothing(void **state)
{
    (void)state;
    safetensors_writer *w = start(scratch_path("aborted"));
    safetensors_writer_abort(w);
    safetensors_writer_abort(NULL);
    assert_ok(safetensors_writer_create(scratch_path("early"), &w));
    assert_fails(FSDP_ERR_STATE, safetensors_writer_commit(w), "early", "header");
    assert_int_equal(files_in_scratch(), 0);
}

static void an_existing_file_stays_until_commit(void **state)
{
    (void)state;
    size_t bytes;
    const char *path = scratch_path("old");
    scratch_write(path, "old", 3);
    safetensors_writer *w = start(path);
    safetensors_writer_abort(w);
    uint8_t *data = scratch_read(path, &bytes);
    assert_int_equal(bytes, 3);
    free(data);
    write_small_file(path);
    data = scratch_read(path, &bytes);
    assert_true(bytes > 3);
    free(data);
    assert_int_equal(remove(path), 0);
}

static void writes_out_of_range_or_out_of_order_are_refused(void **state)
{
    (void)state;
    safetensors_writer *w;
    const char *path = scratch_path("range");
    assert_ok(safetensors_writer_create(path, &w));
    assert_ok(safetensors_writer_add(w, "t", FSDP_U8, 1, (int64_t[]){4}, NULL));
    assert_fails(FSDP_ERR_STATE, safetensors_writer_write(w, 0, 0, floats, 4), path);
    assert_ok(safetensors_writer_begin(w));
    assert_fails(FSDP_ERR_STATE, safetensors_writer_begin(w), path);
    assert_fails(FSDP_ERR_STATE, safetensors_writer_add(w, "u", FSDP_U8, 0, NULL, NULL), path);
    assert_fails(FSDP_ERR_STATE, safetensors_writer_write(w, 1, 0, floats, 1), path);
    assert_fails(FSDP_ERR_STATE, safetensors_writer_write(w, 0, 0, floats, 5), path, "t:");
    assert_fails(FSDP_ERR_STATE, safetensors_writer_write(w, 0, 4, floats, 1), path, "t:");
    assert_fails(FSDP_ERR_STATE, safetensors_writer_write(w, 0, UINT64_MAX, floats, 2), path, "t:");
    safetensors_writer_abort(w);
}

static void declarations_that_cannot_be_are_refused(void **state)
{
    (void)state;
    safetensors_writer *w;
    const char *path = scratch_path("declared");
    assert_ok(safetensors_writer_create(path, &w));
    assert_fails(FSDP_ERR_INPUT, safetensors_writer_add(w, "t", FSDP_U8, 1, (int64_t[]){-1}, NULL), path, "t:");
    assert_fails(FSDP_ERR_INPUT, safetensors_writer_add(w, "t", FSDP_F32, 1, (int64_t[]){INT64_MAX / 2}, NULL), "t:");
    assert_fails(FSDP_ERR_INPUT, safetensors_writer_add(w, "t", FSDP_U8, 9, (int64_t[9]){1}, NULL), path, "t:");
    assert_fails(FSDP_ERR_INPUT, safetensors_writer_add(w, "t", FSDP_DTYPE_COUNT, 0, NULL, NULL), path, "t:");
    assert_ok(safetensors_writer_add(w, "twice", FSDP_U8, 0, NULL, NULL));
    assert_ok(safetensors_writer_add(w, "twice", FSDP_F32, 0, NULL, NULL));
    assert_fails(FSDP_ERR_INPUT, safetensors_writer_begin(w), path, "twice");
    safetensors_writer_abort(w);
    assert_ok(safetensors_writer_create(path, &w));
    assert_ok(safetensors_writer_add(w, "\xff", FSDP_U8, 0, NULL, NULL));
    assert_fails(FSDP_ERR_INPUT, safetensors_writer_begin(w), path, "UTF-8");
    safetensors_writer_abort(w);
    assert_ok(safetensors_writer_create(path, &w));
    assert_ok(safetensors_writer_add(w, "__metadata__", FSDP_U8, 0, NULL, NULL));
    assert_fails(FSDP_ERR_INPUT, safetensors_writer_begin(w), path, "__metadata__");
    safetensors_writer_abort(w);
    assert_fails(FSDP_ERR_INPUT, safetensors_writer_create(scratch_path("no/such/folder"), &w), "no/such/folder");
    assert_int_equal(files_in_scratch(), 0);
}

static void span_sets_agree_with_a_bitmap(void **state)
{
    (void)state;
    enum { RANGE = 200 };
    rng_key key = rng_key_make(11);
    for (uint64_t round = 0; round < 50; round++) {
        span_set set = {0};
        uint8_t map[RANGE] = {0};
        for (uint64_t i = 0; i < 60; i++) {
            uint32_t begin = rng_word(key, round, 2 * i) % RANGE, length = 1 + rng_word(key, round, 2 * i + 1) % 9;
            uint32_t end = begin + length < RANGE ? begin + length : RANGE;
            assert_true(span_set_add(&set, begin, end));
            memset(map + begin, 1, end - begin);
            uint64_t total = 0;
            for (int k = 0; k < RANGE; k++)
                total += map[k];
            assert_int_equal(span_set_total(&set), total);
            for (size_t k = 1; k < set.n_spans; k++)
                assert_true(set.spans[k - 1].end < set.spans[k].begin);
        }
        span_set_free(&set);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slices_in_any_order_read_back),
        cmocka_unit_test(data_is_aligned_to_its_type),
        cmocka_unit_test(the_same_calls_give_the_same_bytes),
        cmocka_unit_test(a_commit_with_bytes_missing_is_refused_and_leaves_nothing),
        cmocka_unit_test(an_abort_or_an_early_commit_leaves_nothing),
        cmocka_unit_test(an_existing_file_stays_until_commit),
        cmocka_unit_test(writes_out_of_range_or_out_of_order_are_refused),
        cmocka_unit_test(declarations_that_cannot_be_are_refused),
        cmocka_unit_test(span_sets_agree_with_a_bitmap),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
