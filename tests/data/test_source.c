/* Which files a name stands for: parts of a data set, files that are no data, kinds that are not text, links. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <locale.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "base/scratch.h"
#include "data/files.h"
#include "data/source.h"
#include "data/log_lines.h"

/* The files that `name` (in the scratch folder) stands for, by their paths inside `name`'s folder, joined by spaces. */
static void expect(void **state, const char *name, fsdp_dataset_part part, const char *expected)
{
    char found[2048] = "", full[4096];
    source_list list;
    snprintf(full, sizeof full, "%s/%s", (char *)*state, name);
    fsdp_status status = source_list_make((const char *[]){full}, 1, NULL, part, false, &list);
    if (status != FSDP_OK)
        fail_msg("%s: %s", name, fsdp_last_error());
    for (size_t i = 0; i < list.n_files; i++) {
        const char *inner = list.files[i].path + strlen(*state) + 1;
        snprintf(found + strlen(found), sizeof found - strlen(found), "%s%s", i ? " " : "", inner);
    }
    source_list_free(&list);
    assert_string_equal(found, expected);
}

static void refuse(void **state, const char *name, const char *said)
{
    char full[4096];
    source_list list;
    snprintf(full, sizeof full, "%s/%s", (char *)*state, name);
    assert_int_equal(source_list_make((const char *[]){full}, 1, NULL, FSDP_PART_TRAINING, false, &list),
                     FSDP_ERR_INPUT);
    if (!strstr(fsdp_last_error(), said))
        fail_msg("%s: \"%s\" does not say \"%s\"", name, fsdp_last_error(), said);
}

static void make(void **state, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        files_text(*state, names[i], "{\"text\": \"some\"}\n");
}

#define MAKE(...)                                                                                                      \
    make(state, (const char *[]){__VA_ARGS__}, sizeof((const char *[]){__VA_ARGS__}) / sizeof(const char *))

static void outer_folders_say_nothing_of_the_part(void **state)
{
    MAKE("lm_values/a.jsonl", "lm_values/b.jsonl", "validation/x.txt", "validation/y.txt", "test_runs/train.txt",
         "test_runs/val.txt");
    expect(state, "lm_values", FSDP_PART_TRAINING, "lm_values/a.jsonl lm_values/b.jsonl");
    expect(state, "lm_values", FSDP_PART_VALIDATION, "");
    expect(state, "lm_values/*.jsonl", FSDP_PART_VALIDATION, "");
    expect(state, "validation", FSDP_PART_TRAINING, "validation/x.txt validation/y.txt");
    expect(state, "validation", FSDP_PART_VALIDATION, ""); /* not what is trained on */
    expect(state, "test_runs", FSDP_PART_TRAINING, "test_runs/train.txt");
    expect(state, "test_runs", FSDP_PART_VALIDATION, "test_runs/val.txt");
}

static void words_of_names_say_the_part_and_parts_of_words_do_not(void **state)
{
    MAKE("d/contest.txt", "d/evaluate_me.txt", "d/interval.jsonl", "d/medieval.txt", "d/my_values.txt",
         "d/retrained.txt", "d/c4-validation.00000-of-00008.json", "d/Dev.JSONL", "d/test_2.txt");
    expect(state, "d", FSDP_PART_TRAINING,
           "d/contest.txt d/evaluate_me.txt d/interval.jsonl d/medieval.txt d/my_values.txt d/retrained.txt");
    expect(state, "d", FSDP_PART_VALIDATION, "d/Dev.JSONL d/c4-validation.00000-of-00008.json");
    MAKE("e/train-0.txt", "e/test-0.txt");
    expect(state, "e", FSDP_PART_VALIDATION, "e/test-0.txt"); /* without validation files */
}

static void folders_inside_a_data_set_that_are_called_so_are_its_parts(void **state)
{
    MAKE("s/train/0.jsonl", "s/train/1.jsonl", "s/val/0.jsonl", "s/values/0.jsonl", "s/test/deep/0.jsonl");
    expect(state, "s", FSDP_PART_TRAINING, "s/train/0.jsonl s/train/1.jsonl s/values/0.jsonl");
    expect(state, "s", FSDP_PART_VALIDATION, "s/val/0.jsonl");
    expect(state, "s/*/*.jsonl", FSDP_PART_VALIDATION, "s/val/0.jsonl");
    expect(state, "s/val", FSDP_PART_TRAINING, "s/val/0.jsonl"); /* named itself: meant */
    expect(state, "s/test", FSDP_PART_TRAINING, "s/test/deep/0.jsonl");
}

static void data_named_for_validation_is_its_validation_part(void **state)
{
    MAKE("n/train.jsonl", "n/validation.jsonl", "n/test.jsonl", "m/a.jsonl", "m/b.jsonl");
    expect(state, "n", FSDP_PART_NAMED_VALIDATION, "n/validation.jsonl");
    expect(state, "n/train.jsonl", FSDP_PART_NAMED_VALIDATION, "n/train.jsonl");
    expect(state, "n/t*.jsonl", FSDP_PART_NAMED_VALIDATION, "n/test.jsonl n/train.jsonl");
    expect(state, "m", FSDP_PART_NAMED_VALIDATION, "m/a.jsonl m/b.jsonl");
    expect(state, "n/validation.jsonl", FSDP_PART_VALIDATION, ""); /* the one file is trained on */
}

static void a_downloaded_data_set_is_not_its_description(void **state)
{
    MAKE("hub/README.md", "hub/dataset_info.json", "hub/dataset_infos.json", "hub/data/train.jsonl", "only/README.md",
         "only/data/train-00000-of-00001.npy", "table/data/train-00000-of-00001.parquet");
    expect(state, "hub", FSDP_PART_ALL, "hub/data/train.jsonl");
    expect(state, "hub/README.md", FSDP_PART_ALL, "hub/README.md"); /* named itself: meant */
    expect(state, "table", FSDP_PART_ALL, "table/data/train-00000-of-00001.parquet");
    refuse(state, "only", "train-00000-of-00001.npy must be converted");
    MAKE("hub/data/more.npy");
    expect(state, "hub", FSDP_PART_ALL, "hub/data/train.jsonl");
    assert_non_null(strstr(log_lines, "more.npy: files of this kind are not read"));
}

static void files_that_are_not_text_are_refused_by_their_first_bytes(void **state)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *said;
    } cases[] = {
#define BYTES(text) text, sizeof(text) - 1
        {BYTES("PAR1\x15\x04\x15"), "Parquet"},
        {BYTES("ARROW1\0\0\xFF"), "Arrow"},
        {BYTES("\xFF\xFF\xFF\xFF\x10\0\0\0"), "Arrow"},
        {BYTES("\x93NUMPY\x01\0v\0{'descr'"), "NumPy"},
        {BYTES("PK\x03\x04\x14\0"), "zip"},
        {BYTES("\x80\x04\x95\x10\0"), "pickle"},
        {BYTES("\x80\x02}q\0"), "pickle"},
        {BYTES("BZh91AY&SY\x12\x34"), "bzip2"},
        {BYTES("\xFD"
               "7zXZ\0\0\x04"),
         "xz"},
        {BYTES("\x04\x22\x4D\x18\x64\x40"), "lz4"},
        {BYTES("\x1F\x8B\x08\0\0\0\0\0"), "end its name in .gz"},
        {BYTES("\x28\xB5\x2F\xFD\x24\x04"), "end its name in .zst"},
        {BYTES("\xFF\xFEH\0i\0"), "iconv -f UTF-16"},
        {BYTES("\xFE\xFF\0H\0i"), "iconv -f UTF-16"},
        {BYTES("H\0e\0l\0l\0o\0"), "UTF-16"},
        {BYTES("\0H\0e\0l\0l\0o"), "UTF-16"},
        {BYTES("some text, then a \0 byte"), "byte 18 is zero"},
        {BYTES("FSDPTOKN\x01\0\0\0"), "token file"},
    };
    static const char *const names[] = {"x.txt", "x.jsonl", "x.unheard-of", "folder/x.txt"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
            files_write(*state, names[k], cases[i].bytes, cases[i].n);
            refuse(state, k == 3 ? "folder" : names[k], cases[i].said);
        }
    }
    files_text(*state, "x.txt", "BZh is how a sentence may begin");
    expect(state, "x.txt", FSDP_PART_ALL, "x.txt");
    files_text(*state, "x.txt", "\xEF\xBB\xBFtext with a mark of its encoding");
    expect(state, "x.txt", FSDP_PART_ALL, "x.txt");
    files_text(*state, "x.txt", "");
    expect(state, "x.txt", FSDP_PART_ALL, "x.txt");
}

static void capitals_in_an_ending_change_nothing(void **state)
{
    source_list list;
    const char *names[] = {files_text(*state, "A.JSONL", "{}"), files_gzip(*state, "B.Json.GZ", "{}"),
                           files_text(*state, "C.TXT", "t")};
    assert_int_equal(source_list_make(names, 3, NULL, FSDP_PART_ALL, false, &list), FSDP_OK);
    assert_int_equal(list.files[0].kind, SOURCE_JSONL);
    assert_int_equal(list.files[1].kind, SOURCE_JSONL);
    assert_int_equal(list.files[2].kind, SOURCE_TEXT);
    source_list_free(&list);
}

static void fifos_and_devices_are_neither_waited_for_nor_read(void **state)
{
    MAKE("f/a.txt");
    assert_int_equal(mkfifo(files_path(*state, "f/pipe.txt"), 0600), 0);
    assert_int_equal(symlink("/dev/zero", files_path(*state, "f/zeros.jsonl")), 0);
    expect(state, "f", FSDP_PART_ALL, "f/a.txt");
    assert_non_null(strstr(log_lines, "pipe.txt: is not a regular file"));
    assert_non_null(strstr(log_lines, "zeros.jsonl: is not a regular file"));
    refuse(state, "f/pipe.txt", "FIFO");
    refuse(state, "f/zeros.jsonl", "character device");
}

static void links_that_lead_back_or_to_the_same_file_give_nothing_twice(void **state)
{
    MAKE("l/a.txt", "l/sub/b.txt");
    assert_int_equal(symlink("..", files_path(*state, "l/sub/up")), 0);
    assert_int_equal(symlink("sub", files_path(*state, "l/zub")), 0);
    assert_int_equal(symlink("../a.txt", files_path(*state, "l/sub/same.txt")), 0);
    expect(state, "l", FSDP_PART_ALL, "l/a.txt l/sub/b.txt");
    assert_non_null(strstr(log_lines, "same.txt: is a link to a file that is read already"));
    assert_int_equal(symlink("gone", files_path(*state, "l/sub/dangling.txt")), 0);
    refuse(state, "l", "dangling.txt: cannot be read");
    const char *twice[] = {files_path(*state, "l/a.txt"), files_path(*state, "l/a.txt")};
    source_list list;
    assert_int_equal(source_list_make(twice, 2, NULL, FSDP_PART_ALL, false, &list), FSDP_OK);
    assert_int_equal(list.n_files, 2); /* who names a file twice wants it twice */
    source_list_free(&list);
}

/* Whatever the locale of a rank is. */
static void files_are_sorted_byte_by_byte(void **state)
{
    MAKE("o/b.txt", "o/B.txt", "o/a.txt", "o/_.txt", "o/C.txt");
    char *before = strdup(setlocale(LC_ALL, NULL));
    setlocale(LC_ALL, "en_US.UTF-8");
    expect(state, "o", FSDP_PART_ALL, "o/B.txt o/C.txt o/_.txt o/a.txt o/b.txt");
    expect(state, "o/*.txt", FSDP_PART_ALL, "o/B.txt o/C.txt o/_.txt o/a.txt o/b.txt");
    setlocale(LC_ALL, before);
    free(before);
}

static void deep_folders_are_read_or_refused_never_left_out(void **state)
{
    char path[4096] = "deep";
    for (int i = 0; i < 40; i++)
        strcat(path, "/d");
    strcat(path, "/x.txt");
    MAKE(path);
    expect(state, "deep", FSDP_PART_ALL, path);
    path[strlen(path) - strlen("/x.txt")] = '\0';
    for (int i = 0; i < 40; i++)
        strcat(path, "/d");
    strcat(path, "/x.txt");
    MAKE(path);
    refuse(state, "deep", "folders inside each other");
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, log_lines_setup, log_lines_teardown)
    const struct CMUnitTest tests[] = {
        TEST(outer_folders_say_nothing_of_the_part),
        TEST(words_of_names_say_the_part_and_parts_of_words_do_not),
        TEST(folders_inside_a_data_set_that_are_called_so_are_its_parts),
        TEST(data_named_for_validation_is_its_validation_part),
        TEST(a_downloaded_data_set_is_not_its_description),
        TEST(files_that_are_not_text_are_refused_by_their_first_bytes),
        TEST(capitals_in_an_ending_change_nothing),
        TEST(fifos_and_devices_are_neither_waited_for_nor_read),
        TEST(links_that_lead_back_or_to_the_same_file_give_nothing_twice),
        TEST(files_are_sorted_byte_by_byte),
        TEST(deep_folders_are_read_or_refused_never_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
