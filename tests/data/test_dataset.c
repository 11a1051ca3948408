/* Data sets of every kind, from files written here: what their samples are, and what is refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/scratch.h"
#include "data/dataset.h"
#include "data/files.h"
#include "format/hub/hub.h"
#include "format/weights/safetensors_writer.h"
#include "format/token/token_file.h"
#include "data/log_lines.h"

static fsdp_tokenizer *bytes(void)
{
    fsdp_tokenizer *t = NULL;
    assert_int_equal(fsdp_tokenizer_byte(&t), FSDP_OK);
    return t;
}

static fsdp_dataset *open_or_fail(const char *const *names, size_t n, const fsdp_dataset_config *options)
{
    fsdp_dataset *d = NULL;
    fsdp_status status = files_open(names, n, options, &d);
    if (status != FSDP_OK)
        print_error("%s\n", fsdp_last_error());
    assert_int_equal(status, FSDP_OK);
    assert_non_null(d);
    return d;
}

/* All tokens of a text data set as characters, with '|' for the end token. */
static void expect_text(const char *const *names, size_t n, fsdp_dataset_config options, const char *expected)
{
    int32_t ids[8], labels[8];
    char text[512] = "";
    size_t used = 0;
    options.width = 4;
    fsdp_tokenizer *t = bytes();
    options.tokenizer = t;
    fsdp_dataset *d = open_or_fail(names, n, &options);
    fsdp_dataset_info info = files_describe(d);
    assert_int_equal(info.kind, FSDP_DATASET_TEXT);
    assert_int_equal(info.vocabulary, 256);
    for (int64_t i = 0; i < info.n_samples; i++) {
        assert_int_equal(fsdp_dataset_read(d, i, (void *[]){ids, labels}), FSDP_OK);
        for (int k = 0; k < 4; k++) {
            text[used++] = ids[k] == 0 ? '|' : (char)ids[k];
            assert_int_equal(labels[k], k < 3 ? ids[k + 1] : FSDP_IGNORE);
        }
    }
    text[used] = '\0';
    assert_string_equal(text, expected);
    fsdp_dataset_free(d);
    fsdp_tokenizer_free(t);
}

static void text_is_packed_with_end_tokens_and_the_rest_is_left(void **state)
{
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    const char *names[] = {files_text(*state, "a.txt", "hello\nworld"), files_text(*state, "b.md", "xyz")};
    expect_text(names, 2, o, "hello\nworld|xyz|");
    expect_text(names, 1, o, "hello\nworld|");
    files_text(*state, "c.txt", "12345"); /* the last two tokens do not fill a sample */
    expect_text((const char *[]){files_path(*state, "c.txt")}, 1, o, "1234");
}

static void records_come_from_plain_and_compressed_jsonl(void **state)
{
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    const char *lines =
        "{\"text\":\"abc\"}\n\n{\"text\":\"d\\u00e9f\",\"url\":\"u\"}\n{\"text\":\"\"}\n{\"text\":\"gh\"}";
    const char *expected = "abc|d\xC3\xA9"
                           "f|gh|";
    expect_text((const char *[]){files_text(*state, "a.jsonl", lines)}, 1, o, expected);
    expect_text((const char *[]){files_gzip(*state, "c4-train.00000-of-01024.json.gz", lines)}, 1, o, expected);
    expect_text((const char *[]){files_zstd(*state, "a.jsonl.zst", lines)}, 1, o, expected);
    o.source_field = "body";
    expect_text((const char *[]){files_text(*state, "b.jsonl", "{\"body\":\"abc\",\"text\":\"no\"}")}, 1, o, "abc|");
}

/* Arrays, objects over several lines, byte order marks: the same records as in lines. */
static void records_that_are_not_lines_are_read_all(void **state)
{
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    static const char *const forms[] = {
        "[\n  {\n    \"text\": \"abc\"\n  },\n  {\n    \"text\": \"d],}{\\\"ef\"\n  },\n  {\"text\": \"gh\"}\n]\n",
        "[{\"text\":\"abc\"},{\"text\":\"d],}{\\\"ef\"},{\"text\":\"gh\"}]",
        "{\n  \"text\": \"abc\"\n}\n{\n  \"text\": \"d],}{\\\"ef\"\n}\n{\"text\": \"gh\"}\n",
        "\xEF\xBB\xBF{\"text\":\"abc\"}\n{\"text\":\"d],}{\\\"ef\"}\n{\"text\":\"gh\"}\n",
        "\xEF\xBB\xBF[{\"text\":\"abc\"},\n{\"text\":\"d],}{\\\"ef\"},\n{\"text\":\"gh\"}]\r\n",
        "{\"text\":\"abc\"}\r\n{\"text\":\"d],}{\\\"ef\"}\r\n\r\n{\"text\":\"gh\"}\r\n",
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        expect_text((const char *[]){files_text(*state, "a.json", forms[i])}, 1, o, "abc|d],}{\"ef|gh|");
        expect_text((const char *[]){files_gzip(*state, "a.JSON.gz", forms[i])}, 1, o, "abc|d],}{\"ef|gh|");
    }
    assert_string_equal(log_lines, "");
    /* Bad elements are bad records, with their lines. */
    expect_text((const char *[]){files_text(*state, "b.json",
                                            "[\n{\"text\": \"abc\"},\n7, {\"text\": 5},\n{bad}\n,"
                                            "{\"text\":\"def\"}]")},
                1, o, "abc|def|");
    assert_non_null(strstr(log_lines, "b.json:3: no string under"));
    assert_non_null(strstr(log_lines, "b.json:4: not JSON"));
    /* Lines that begin with an array stay lines. */
    expect_text((const char *[]){files_text(*state, "c.jsonl", "[1]\n{\"text\": \"abc\"}\n[2]\n{\"text\":\"def\"}")}, 1,
                o, "abc|def|");
    expect_text((const char *[]){files_text(*state, "d.txt",
                                            "\xEF\xBB\xBF"
                                            "abc")},
                1, o, "abc|"); /* nor is it text */
    fsdp_dataset *d = NULL;
    fsdp_tokenizer *t = bytes();
    o.tokenizer = t;
    o.width = 2;
    static const char *const cut[] = {"[{\"text\":\"abc\"},", "[{\"text\":\"abc\"}, {\"te", "[", "{\n\"text\": \"a"};
    for (size_t i = 0; i < sizeof cut / sizeof *cut; i++) {
        const char *path = files_text(*state, "cut.json", cut[i]);
        assert_int_equal(files_open(&path, 1, &o, &d), FSDP_ERR_INPUT);
        assert_non_null(strstr(fsdp_last_error(), "truncated?"));
    }
    fsdp_tokenizer_free(t);
}

/* A line has no length that text could not have. */
static void text_without_line_breaks_is_read(void **state)
{
    enum { BYTES = 65 << 20 };
    char *text = malloc(BYTES);
    for (size_t i = 0; i < BYTES; i++)
        text[i] = i % 7 == 6 ? ' ' : (char)('a' + i % 5);
    const char *path = files_write(*state, "line.txt", text, BYTES);
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    fsdp_tokenizer *t = bytes();
    o.tokenizer = t;
    o.width = 1024;
    fsdp_dataset *d = open_or_fail(&path, 1, &o);
    assert_int_equal(files_describe(d).n_samples, BYTES / 1024);
    int32_t ids[1024], labels[1024];
    for (int64_t i = 0; i < BYTES / 1024; i += 777) {
        assert_int_equal(fsdp_dataset_read(d, i, (void *[]){ids, labels}), FSDP_OK);
        for (int k = 0; k < 1024; k++)
            assert_int_equal(ids[k], text[i * 1024 + k]);
    }
    fsdp_dataset_free(d);
    fsdp_tokenizer_free(t);
    free(text);
}

static void globs_and_folders_give_sorted_files_of_the_right_part(void **state)
{
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    char pattern[4096];
    files_gzip(*state, "en/c4-train.00001.json.gz", "{\"text\":\"222\"}");
    files_gzip(*state, "en/c4-train.00000.json.gz", "{\"text\":\"111\"}");
    files_gzip(*state, "en/c4-validation.00000.json.gz", "{\"text\":\"vvv\"}");
    files_text(*state, "en/picture.png", "not text");
    snprintf(pattern, sizeof pattern, "%s/en/*train*.json.gz", (char *)*state);
    expect_text((const char *[]){pattern}, 1, o, "111|222|");
    o.part = FSDP_PART_TRAINING;
    expect_text((const char *[]){files_path(*state, "en")}, 1, o, "111|222|");
    o.part = FSDP_PART_VALIDATION;
    expect_text((const char *[]){files_path(*state, "en")}, 1, o, "vvv|");
    o.part = FSDP_PART_ALL;
    expect_text((const char *[]){files_path(*state, "en")}, 1, o, "111|222|vvv|");
    files_text(*state, "tree/train/valid.c", "code");
    o.part = FSDP_PART_TRAINING; /* names of source files say nothing */
    expect_text((const char *[]){files_path(*state, "tree"), files_text(*state, "tree2/x.md", "mark")}, 2, o,
                "code|mar");
    fsdp_dataset *d = NULL;
    o.part = FSDP_PART_VALIDATION;
    o.width = 4;
    files_text(*state, "plain/x.txt", "abcd");
    assert_int_equal(files_open((const char *[]){files_path(*state, "plain")}, 1, &o, &d), FSDP_OK);
    assert_null(d);
}

static void hub_names_are_found_in_the_folders_they_are_kept_in(void **state)
{
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    char *path = NULL;
    setenv("FSDP_DATA", files_path(*state, "data"), 1);
    setenv("HF_HUB_CACHE", files_path(*state, "cache"), 1);
    files_text(*state, "data/my/set/a.txt", "aaa");
    expect_text((const char *[]){"my/set"}, 1, o, "aaa|");
    files_text(*state, "cache/datasets--allenai--c4/snapshots/0123abc/en/c4-train.json", "{\"text\":\"ccc\"}");
    files_text(*state, "cache/datasets--allenai--c4/snapshots/old/en/c4-train.json", "{\"text\":\"old\"}");
    files_text(*state, "cache/datasets--allenai--c4/refs/main", "0123abc");
    o.config_name = "en";
    expect_text((const char *[]){"allenai/c4"}, 1, o, "ccc|");
    files_text(*state, "cache/models--org--model/snapshots/rev/tokenizer.json", "{}");
    assert_int_equal(hub_find(HUB_MODEL, "org/model", NULL, &path), FSDP_OK);
    assert_non_null(strstr(path, "models--org--model/snapshots/rev"));
    free(path);
    assert_int_equal(hub_find(HUB_DATASET, "allenai/other", "en", &path), FSDP_ERR_INPUT);
    const char *const said[] = {"allenai/other", "/data", "/cache",
                                "fsdp fetch --dataset allenai/other --dataset_config_name en"};
    for (size_t i = 0; i < 4; i++)
        assert_non_null(strstr(fsdp_last_error(), said[i]));
    assert_int_equal(hub_find(HUB_DATASET, "./no/such/file", NULL, &path), FSDP_ERR_INPUT);
    unsetenv("FSDP_DATA");
    unsetenv("HF_HUB_CACHE");
}

/* A place is looked into only when those before it are not set or do not have the name. */
static void places_of_the_hub_are_looked_into_in_their_order(void **state)
{
    static const struct {
        const char *variable, *folder, *entry;
    } places[] = {
        {"FSDP_DATA", "p1", "p1/some/set/x.txt"},
        {"HF_HUB_CACHE", "p2", "p2/datasets--some--set/snapshots/r/x.txt"},
        {"HUGGINGFACE_HUB_CACHE", "p3", "p3/datasets--some--set/snapshots/r/x.txt"},
        {"HF_HOME", "p4", "p4/hub/datasets--some--set/snapshots/r/x.txt"},
        {"XDG_CACHE_HOME", "p5", "p5/huggingface/hub/datasets--some--set/snapshots/r/x.txt"},
        {"HOME", "p6", "p6/.cache/huggingface/hub/datasets--some--set/snapshots/r/x.txt"},
    };
    enum { N = sizeof places / sizeof *places };
    char *path = NULL, *before[N];
    for (int i = 0; i < N; i++) {
        const char *value = getenv(places[i].variable);
        before[i] = value ? strdup(value) : NULL;
        files_text(*state, places[i].entry, "text");
        setenv(places[i].variable, files_path(*state, places[i].folder), 1);
    }
    for (int i = 0; i < N; i++) {
        char part[16];
        assert_int_equal(hub_find(HUB_DATASET, "some/set", NULL, &path), FSDP_OK);
        snprintf(part, sizeof part, "/%s/", places[i].folder);
        if (!strstr(path, part))
            fail_msg("%s is set, and %s was found", places[i].variable, path);
        free(path);
        unsetenv(places[i].variable);
    }
    for (int i = 0; i < N; i++) {
        if (before[i])
            setenv(places[i].variable, before[i], 1);
        free(before[i]);
    }
}

static void bad_records_are_skipped_with_file_and_line_or_stop_a_strict_run(void **state)
{
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    const char *names[] = {
        files_text(*state, "bad.jsonl", "{\"text\":\"abc\"}\n{\"text\":\n[1]\n{\"text\":5}\n{\"text\":\"def\"}\n")};
    expect_text(names, 1, o, "abc|def|");
    for (int line = 2; line <= 4; line++) {
        char place[32];
        snprintf(place, sizeof place, "bad.jsonl:%d: ", line);
        assert_non_null(strstr(log_lines, place));
    }
    fsdp_dataset *d = NULL;
    fsdp_tokenizer *t = bytes();
    o.strict = true;
    o.width = 4;
    o.tokenizer = t;
    assert_int_equal(files_open(names, 1, &o, &d), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "bad.jsonl:2: not JSON"));
    fsdp_tokenizer_free(t);
}

static void records_are_read_as_python_writes_them(void **state)
{
    const char *names[] = {
        files_text(*state, "python.jsonl",
                   "\xEF\xBB\xBF{\"score\": NaN, \"text\": \"ab\"}\n"
                   "{\"text\": \"cd\", \"n\": 123456789012345678901234567890, \"x\": [-Infinity, 1e999]}\n"
                   "{\"text\": \"e\\ud83d\"}\n"
                   "{\"other\": \"\\ud83d\", \"text\": \"fg\", \"text\": \"hi\"}\n"
                   "{\"text\": NaN}\n")};
    expect_text(names, 1, (fsdp_dataset_config)FSDP_DATASET_CONFIG_INIT, "ab|cd|hi");
    assert_non_null(strstr(log_lines, "python.jsonl:3: half of a surrogate pair under \"text\""));
    assert_non_null(strstr(log_lines, "python.jsonl:5: no string under \"text\""));
}

static void threads_and_the_cache_do_not_change_the_tokens(void **state)
{
    enum { N_RECORDS = 30000 };
    char *lines = malloc(N_RECORDS * 64);
    size_t used = 0;
    for (int i = 0; i < N_RECORDS; i++)
        used += (size_t)sprintf(lines + used, "{\"text\":\"record number %d of many\"}\n", i);
    const char *names[] = {files_text(*state, "many.jsonl", lines)};
    free(lines);
    fsdp_tokenizer *t = bytes();
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    o.tokenizer = t;
    o.width = 16;
    fsdp_dataset *sets[4];
    sets[0] = open_or_fail(names, 1, &o);
    o.threads = 3;
    sets[1] = open_or_fail(names, 1, &o);
    o.cache_folder = files_path(*state, "tokens");
    o.cache_from_bytes = 1 << 30; /* a small text is kept in memory all the same */
    fsdp_dataset_free(open_or_fail(names, 1, &o));
    assert_false(file_exists(o.cache_folder));
    o.cache_from_bytes = 1;
    sets[2] = open_or_fail(names, 1, &o);
    assert_true(file_is_directory(o.cache_folder));
    sets[3] = open_or_fail(names, 1, &o); /* mapped from the file that the one before made */
    int64_t n = files_describe(sets[0]).n_samples;
    for (int k = 1; k < 4; k++) {
        assert_int_equal(files_describe(sets[k]).n_samples, n);
        for (int64_t i = 0; i < n; i++) {
            int32_t a[16], b[16], labels[16];
            assert_int_equal(fsdp_dataset_read(sets[0], i, (void *[]){a, labels}), FSDP_OK);
            assert_int_equal(fsdp_dataset_read(sets[k], i, (void *[]){b, labels}), FSDP_OK);
            assert_memory_equal(a, b, sizeof a);
        }
    }
    o.max_samples = 100;
    fsdp_dataset *few = open_or_fail(names, 1, &o);
    assert_int_equal(files_describe(few).n_samples, 100);
    fsdp_dataset_free(few);
    for (int k = 0; k < 4; k++)
        fsdp_dataset_free(sets[k]);
    fsdp_tokenizer_free(t);
}

/* Whatever changes the tokens, or whether there are any, makes another file of the cache. */
static void what_tokens_depend_on_is_in_the_key_of_their_cache(void **state)
{
    const char *name = files_text(*state, "a.jsonl", "{\"text\":\"abcdefgh\",\"body\":\"12345678\"}\nbad\n");
    fsdp_tokenizer *t = bytes();
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    fsdp_dataset *d = NULL;
    int32_t ids[4], labels[4];
    void *const row[] = {ids, labels};
    o.tokenizer = t;
    o.width = 4;
    o.cache_folder = files_path(*state, "cache");
    o.cache_from_bytes = 0;
    fsdp_dataset_free(open_or_fail(&name, 1, &o));
    glob_t files;
    char pattern[4096];
    snprintf(pattern, sizeof pattern, "%s/tokens-*.bin", o.cache_folder);
    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    assert_int_equal(files.gl_pathc, 1);
    char host[65] = "", *file = strrchr(files.gl_pathv[0], '/') + 1, name_of_remains[256];
    gethostname(host, sizeof host - 1);
    snprintf(name_of_remains, sizeof name_of_remains, "cache/%s.%s.1.tmp.1", file, host);
    const char *remains = files_text(*state, name_of_remains, "of a process that was killed");
    unlink(files.gl_pathv[0]);
    globfree(&files);
    fsdp_dataset_free(open_or_fail(&name, 1, &o));
    assert_false(file_exists(remains));
    o.strict = true; /* the bad record was passed over before */
    assert_int_equal(files_open(&name, 1, &o, &d), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "a.jsonl:2"));
    o.strict = false;
    o.source_field = "body";
    d = open_or_fail(&name, 1, &o);
    assert_int_equal(fsdp_dataset_read(d, 0, row), FSDP_OK);
    assert_int_equal(ids[0], '1');
    fsdp_dataset_free(d);
    o.source_field = "text";
    o.max_samples = 1;
    d = open_or_fail(&name, 1, &o);
    assert_int_equal(files_describe(d).n_samples, 1);
    fsdp_dataset_free(d);
    o.max_samples = 0;
    files_text(*state, "a.jsonl", "{\"text\":\"ABCDEFGH\",\"body\":\"12345678\"}\nbad\n"); /* of the same length */
    d = open_or_fail(&name, 1, &o);
    assert_int_equal(fsdp_dataset_read(d, 0, row), FSDP_OK);
    assert_int_equal(ids[0], 'A');
    fsdp_dataset_free(d);
    fsdp_tokenizer_free(t);
}

static void a_token_file_ends_where_it_is_told_to(void **state)
{
    fsdp_tokenizer *t = bytes();
    const char *inputs[] = {files_text(*state, "a.txt", "hello world, this is text"),
                            files_text(*state, "b.txt", "yes")};
    fsdp_tokenize_config c = FSDP_TOKENIZE_CONFIG_INIT;
    fsdp_tokenize_result result;
    c.inputs = inputs;
    c.n_inputs = 2;
    c.output = files_path(*state, "out.bin");
    for (int64_t most = 1; most <= 31; most++) {
        token_file *file = NULL;
        int64_t expected = most < 30 ? most : 30;
        c.max_tokens = most;
        assert_int_equal(fsdp_tokenize_files(t, &c, &result), FSDP_OK);
        assert_int_equal(result.n_tokens, expected);
        assert_int_equal(token_file_open(c.output, &file), FSDP_OK);
        assert_int_equal(token_file_count(file), expected);
        assert_int_equal(token_file_verify(file), FSDP_OK);
        assert_int_equal(token_file_documents(file), most > 26 ? 2 : 1);
        token_file_close(file);
    }
    c.output = inputs[1]; /* that would replace what is read */
    assert_int_equal(fsdp_tokenize_files(t, &c, &result), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "name another output"));
    fsdp_tokenizer_free(t);
}

static void token_files_are_read_as_one_row_of_tokens(void **state)
{
    fsdp_tokenizer *t = bytes();
    const char *inputs[] = {files_text(*state, "a.txt", "hello"), files_text(*state, "b.txt", "yes")};
    fsdp_tokenize_config c = FSDP_TOKENIZE_CONFIG_INIT;
    fsdp_tokenize_result result;
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    const char *outputs[2];
    for (int i = 0; i < 2; i++) {
        c.inputs = &inputs[i];
        c.n_inputs = 1;
        c.output = outputs[i] = files_path(*state, i == 0 ? "one.bin" : "two.bin");
        assert_int_equal(fsdp_tokenize_files(t, &c, &result), FSDP_OK);
        assert_int_equal(result.n_documents, 1);
        assert_int_equal(result.n_tokens, i == 0 ? 6 : 4);
        assert_int_equal(result.n_bytes, i == 0 ? 5 : 3);
    }
    expect_text(outputs, 2, o, "hello|ye"); /* a sample lies across both files */
    c.inputs = outputs;
    assert_int_equal(fsdp_tokenize_files(t, &c, NULL), FSDP_ERR_INPUT);
    fsdp_tokenizer_free(t);
}

static void tables_of_steps_keep_their_order(void **state)
{
    const int32_t data[2][2][4] = {{{1, 2, 3, 4}, {5, 6, 7, 8}}, {{9, 10, 11, 12}, {13, 14, 15, 300}}};
    const char *path = files_path(*state, "data.safetensors");
    safetensors_writer *w;
    size_t index;
    int32_t ids[4], labels[4];
    assert_int_equal(safetensors_writer_create(path, &w), FSDP_OK);
    assert_int_equal(safetensors_writer_add(w, "data", FSDP_I32, 3, (const int64_t[]){2, 2, 4}, &index), FSDP_OK);
    assert_int_equal(safetensors_writer_begin(w), FSDP_OK);
    assert_int_equal(safetensors_writer_write(w, index, 0, data, sizeof data), FSDP_OK);
    assert_int_equal(safetensors_writer_commit(w), FSDP_OK);
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    fsdp_dataset *d = open_or_fail(&path, 1, &o);
    fsdp_dataset_info info = files_describe(d);
    assert_int_equal(info.n_samples, 4);
    assert_int_equal(info.width, 4);
    assert_int_equal(info.vocabulary, 301);
    assert_true(info.ordered);
    assert_int_equal(fsdp_dataset_read(d, 2, (void *[]){ids, labels}), FSDP_OK);
    assert_memory_equal(ids, data[1][0], sizeof ids);
    assert_memory_equal(labels, ((int32_t[]){10, 11, 12, FSDP_IGNORE}), sizeof labels);
    assert_int_equal(fsdp_dataset_read(d, 4, (void *[]){ids, labels}), FSDP_ERR_STATE);
    fsdp_dataset_free(d);
    o.width = 8;
    assert_int_equal(files_open(&path, 1, &o, &d), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "4 tokens"));
}

static void pairs_are_cut_padded_and_masked(void **state)
{
    const char *names[] = {files_text(*state, "pairs.jsonl",
                                      "{\"text\":\"abcdefgh\",\"summary\":\"xy\"}\n{\"text\":\"a\",\"summary\":"
                                      "\"123456\"}\n{\"text\":\"no target\"}\n")};
    fsdp_tokenizer *t = bytes();
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    int32_t ids[6], mask[6], labels[4], decoder[4];
    void *const row[] = {ids, mask, decoder, labels};
    o.tokenizer = t;
    o.pairs = true;
    o.width = 6;
    o.target_width = 4;
    o.source_prefix = "s:";
    fsdp_dataset *d = open_or_fail(names, 1, &o);
    assert_int_equal(files_describe(d).n_samples, 2);
    assert_non_null(strstr(log_lines, "pairs.jsonl:3: no string under \"summary\""));
    assert_int_equal(fsdp_dataset_read(d, 0, row), FSDP_OK);
    assert_memory_equal(ids, ((int32_t[]){'s', ':', 'a', 'b', 'c', 0}), sizeof ids); /* cut, the end token kept */
    assert_memory_equal(mask, ((int32_t[]){1, 1, 1, 1, 1, 1}), sizeof mask);
    assert_memory_equal(labels, ((int32_t[]){'x', 'y', 0, FSDP_IGNORE}), sizeof labels);
    assert_memory_equal(decoder, ((int32_t[]){0, 'x', 'y', 0}), sizeof decoder);
    assert_int_equal(fsdp_dataset_read(d, 1, row), FSDP_OK);
    assert_memory_equal(ids, ((int32_t[]){'s', ':', 'a', 0, 0, 0}), sizeof ids);
    assert_memory_equal(mask, ((int32_t[]){1, 1, 1, 1, 0, 0}), sizeof mask);
    assert_memory_equal(labels, ((int32_t[]){'1', '2', '3', 0}), sizeof labels);
    fsdp_dataset_free(d);
    fsdp_tokenizer_free(t);
}

static void pairs_are_padded_and_begun_with_the_models_own_tokens(void **state)
{
    const char *names[] = {files_text(*state, "pairs.jsonl", "{\"text\":\"a\",\"summary\":\"x\"}\n")};
    fsdp_tokenizer *t = bytes();
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    int32_t ids[4], mask[4], labels[4], decoder[4];
    void *const row[] = {ids, mask, decoder, labels};
    o.tokenizer = t;
    o.pairs = true;
    o.width = o.target_width = 4;
    o.pad_id = 7;
    o.start_id = 9;
    fsdp_dataset *d = open_or_fail(names, 1, &o);
    assert_int_equal(fsdp_dataset_read(d, 0, row), FSDP_OK);
    assert_memory_equal(ids, ((int32_t[]){'a', 0, 7, 7}), sizeof ids);
    assert_memory_equal(labels, ((int32_t[]){'x', 0, FSDP_IGNORE, FSDP_IGNORE}), sizeof labels);
    assert_memory_equal(decoder, ((int32_t[]){9, 'x', 0, 7}), sizeof decoder);
    fsdp_dataset_free(d);
    fsdp_tokenizer_free(t);
}

static void images_are_scaled_and_parts_told_apart(void **state)
{
    uint8_t images[16 + 2 * 4] = {0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 51, 102, 255, 1, 2, 3, 4};
    uint8_t labels[8 + 2] = {0, 0, 8, 1, 0, 0, 0, 2, 7, 3};
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    float pixels[4];
    int32_t image_class;
    files_write(*state, "mnist/train-images-idx3-ubyte", images, sizeof images);
    files_write(*state, "mnist/train-labels-idx1-ubyte", labels, sizeof labels);
    labels[8] = 9;
    files_write(*state, "mnist/t10k-images-idx3-ubyte", images, sizeof images);
    files_write(*state, "mnist/t10k-labels-idx1-ubyte", labels, sizeof labels);
    const char *names[] = {files_path(*state, "mnist")};
    for (int validation = 0; validation < 2; validation++) {
        o.part = validation ? FSDP_PART_VALIDATION : FSDP_PART_TRAINING;
        fsdp_dataset *d = open_or_fail(names, 1, &o);
        fsdp_dataset_info info = files_describe(d);
        assert_int_equal(info.kind, FSDP_DATASET_IMAGES);
        assert_int_equal(info.n_samples, 2);
        assert_int_equal(info.channels * info.height * info.image_width, 4);
        assert_int_equal(fsdp_dataset_read(d, 0, (void *[]){pixels, &image_class}), FSDP_OK);
        assert_int_equal(image_class, validation ? 9 : 7);
        assert_true(pixels[0] == 0.0f && pixels[1] == 51 / 255.0f && pixels[3] == 1.0f);
        fsdp_dataset_free(d);
    }
}

/* The class of the first image, which tells the parts apart; -1 when there is no such data. */
static int first_class(const char *folder, fsdp_dataset_part part)
{
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    float pixels[1];
    int32_t image_class = -1;
    fsdp_dataset *d = NULL;
    o.part = part;
    if (files_open(&folder, 1, &o, &d) != FSDP_OK)
        return -2;
    if (d != NULL)
        assert_int_equal(fsdp_dataset_read(d, 0, (void *[]){pixels, &image_class}), FSDP_OK);
    fsdp_dataset_free(d);
    return image_class;
}

static void images_named_for_validation_are_the_test_images(void **state)
{
    const uint8_t images[16 + 1] = {0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 200};
    uint8_t labels[8 + 1] = {0, 0, 8, 1, 0, 0, 0, 1, 0};
    static const char *const written[][2] = {
        {"both/train-", "1"}, {"both/t10k-", "2"}, {"test/t10k-", "3"}, {"train/train-", "4"}};
    for (int i = 0; i < 4; i++) {
        char name[64];
        labels[8] = (uint8_t)(written[i][1][0] - '0');
        snprintf(name, sizeof name, "%simages-idx3-ubyte", written[i][0]);
        files_write(*state, name, images, sizeof images);
        snprintf(name, sizeof name, "%slabels-idx1-ubyte", written[i][0]);
        files_write(*state, name, labels, sizeof labels);
    }
    assert_int_equal(first_class(files_path(*state, "both"), FSDP_PART_TRAINING), 1);
    assert_int_equal(first_class(files_path(*state, "both"), FSDP_PART_NAMED_VALIDATION), 2);
    assert_int_equal(first_class(files_path(*state, "test"), FSDP_PART_NAMED_VALIDATION), 3);
    assert_int_equal(first_class(files_path(*state, "train"), FSDP_PART_NAMED_VALIDATION), 4); /* it has no others */
    assert_int_equal(first_class(files_path(*state, "both"), FSDP_PART_VALIDATION), 2);
    assert_int_equal(first_class(files_path(*state, "train"), FSDP_PART_VALIDATION),
                     -1); /* there is none, which is no error */
    assert_int_equal(first_class(files_path(*state, "test"), FSDP_PART_TRAINING), -2);
    assert_non_null(strstr(fsdp_last_error(), "train-images-idx3-ubyte"));
}

static void held_back_samples_are_the_last_ones_and_outlive_the_rest(void **state)
{
    const char *names[] = {files_text(*state, "a.txt", "aaaabbbbccccdddd")};
    fsdp_tokenizer *t = bytes();
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    fsdp_dataset *held = NULL;
    int32_t ids[4], labels[4];
    o.tokenizer = t;
    o.width = 4;
    fsdp_dataset *d = open_or_fail(names, 1, &o);
    assert_int_equal(fsdp_dataset_hold_back(d, 4, &held), FSDP_ERR_INPUT);
    assert_int_equal(fsdp_dataset_hold_back(d, 1, &held), FSDP_OK);
    assert_int_equal(files_describe(d).n_samples, 3);
    assert_int_equal(files_describe(held).n_samples, 1);
    fsdp_dataset_free(d);
    assert_int_equal(fsdp_dataset_read(held, 0, (void *[]){ids, labels}), FSDP_OK);
    assert_int_equal(ids[0], 'd');
    fsdp_dataset_free(held);
    fsdp_tokenizer_free(t);
}

static void refuse(const char *name, const fsdp_dataset_config *o, const char *words)
{
    fsdp_dataset *d = NULL;
    assert_int_equal(files_open(&name, 1, o, &d), FSDP_ERR_INPUT);
    if (strstr(fsdp_last_error(), words) == NULL)
        fail_msg("the error does not say \"%s\": %s", words, fsdp_last_error());
}

static void what_gives_no_sample_is_one_clear_error(void **state)
{
    fsdp_tokenizer *t = bytes();
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    o.tokenizer = t;
    o.width = 100;
    refuse(files_text(*state, "short.txt", "short"), &o, "less than one context of 100");
    refuse(files_text(*state, "empty.jsonl", ""), &o, "0 tokens");
    refuse(files_path(*state, "nothing/x"), &o, "no such file");
    refuse(files_path(*state, "nothing"), &o, "no data files");
    refuse(files_path(*state, "*.none"), &o, "no file matches");
    refuse(files_text(*state, "broken.json.gz", "not gzip"), &o, "broken.json.gz");
    files_text(*state, "mixed/a.txt", "text");
    files_text(*state, "mixed/b.safetensors", "text");
    refuse(files_path(*state, "mixed"), &o, "one kind");
    o.pairs = true;
    refuse(files_text(*state, "pairs.txt", "text"), &o, "pairs need JSONL");
    o.tokenizer = NULL;
    o.pairs = false;
    refuse(files_text(*state, "a.txt", "text"), &o, "needs a tokenizer");
    o.size = 3;
    refuse("a.txt", &o, "FSDP_DATASET_CONFIG_INIT");
    fsdp_tokenizer_free(t);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, log_lines_setup, log_lines_teardown)
    const struct CMUnitTest tests[] = {
        TEST(text_is_packed_with_end_tokens_and_the_rest_is_left),
        TEST(records_come_from_plain_and_compressed_jsonl),
        TEST(records_that_are_not_lines_are_read_all),
        TEST(text_without_line_breaks_is_read),
        TEST(what_tokens_depend_on_is_in_the_key_of_their_cache),
        TEST(a_token_file_ends_where_it_is_told_to),
        TEST(globs_and_folders_give_sorted_files_of_the_right_part),
        TEST(hub_names_are_found_in_the_folders_they_are_kept_in),
        TEST(places_of_the_hub_are_looked_into_in_their_order),
        TEST(bad_records_are_skipped_with_file_and_line_or_stop_a_strict_run),
        TEST(records_are_read_as_python_writes_them),
        TEST(threads_and_the_cache_do_not_change_the_tokens),
        TEST(token_files_are_read_as_one_row_of_tokens),
        TEST(tables_of_steps_keep_their_order),
        TEST(pairs_are_cut_padded_and_masked),
        TEST(pairs_are_padded_and_begun_with_the_models_own_tokens),
        TEST(images_are_scaled_and_parts_told_apart),
        TEST(images_named_for_validation_are_the_test_images),
        TEST(held_back_samples_are_the_last_ones_and_outlive_the_rest),
        TEST(what_gives_no_sample_is_one_clear_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
