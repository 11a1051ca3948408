/* Instruction data: conversations rendered by the tokenizer's template, with labels on responses alone. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fsdp/ops.h>

#include "base/error.h"
#include "base/scratch.h"
#include "data/files.h"
#include "data/log_lines.h"
#include "format/table/table_file.h"

enum { WIDTH = 56 };

/* A token a character, '?' for others, and ChatML's marks. */
static fsdp_tokenizer *make_tokenizer(const char *folder, const char *template)
{
    char json[4096] = "{\"added_tokens\":[{\"id\":0,\"content\":\"<|im_start|>\",\"special\":true},"
                      "{\"id\":1,\"content\":\"<|im_end|>\",\"special\":true}],"
                      "\"pre_tokenizer\":{\"type\":\"FixedLength\",\"length\":1},\"decoder\":{\"type\":\"Fuse\"},"
                      "\"model\":{\"type\":\"WordLevel\",\"unk_token\":\"?\",\"vocab\":{"
                      "\"<|im_start|>\":0,\"<|im_end|>\":1,\"?\":2,\"\\n\":3";
    char config[4096];
    fsdp_tokenizer *t = NULL;
    for (int c = 'A'; c <= 'z'; c++)
        if (c <= 'Z' || c >= 'a')
            sprintf(json + strlen(json), ",\"%c\":%d", c, c);
    strcat(json, "}}}");
    files_text(folder, "tokenizer.json", json);
    if (template != NULL) {
        snprintf(config, sizeof config, "{\"eos_token\": \"<|im_end|>\", \"chat_template\": \"%s\"}", template);
        files_text(folder, "tokenizer_config.json", config);
    }
    if (fsdp_tokenizer_load(folder, &t) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    return t;
}

static const char chatml[] =
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* All text of a sample, and what its labels say, without special tokens: "text/labels". */
static void expect_sample(const fsdp_dataset *d, fsdp_tokenizer *t, int64_t index, const char *expected)
{
    int32_t ids[WIDTH], labels[WIDTH], trained[WIDTH];
    void *fields[] = {ids, labels};
    char got[512];
    const char *text;
    size_t n = 0, bytes;
    assert_int_equal(fsdp_dataset_read(d, index, fields), FSDP_OK);
    for (int i = 0; i < WIDTH; i++) {
        if (labels[i] == FSDP_IGNORE)
            continue;
        assert_true(i + 1 < WIDTH && labels[i] == ids[i + 1]);
        trained[n++] = labels[i];
    }
    assert_int_equal(fsdp_tokenizer_decode(t, trained, n, false, &text, &bytes), FSDP_OK);
    snprintf(got, sizeof got, "%.*s", (int)bytes, text);
    assert_string_equal(got, expected);
}

static fsdp_dataset *open_chat(const char *path, fsdp_tokenizer *t, bool chat)
{
    fsdp_dataset *d = NULL;
    fsdp_dataset_config o = FSDP_DATASET_CONFIG_INIT;
    const char *names[] = {path};
    o.tokenizer = t;
    o.width = WIDTH;
    o.chat = chat;
    o.names = names;
    o.n_names = 1;
    if (fsdp_dataset_open(&o, &d) != FSDP_OK)
        return NULL;
    return d;
}

static void labels_are_on_responses_alone(void **state)
{
    fsdp_tokenizer *t = make_tokenizer(*state, chatml);
    const char *path = files_text(*state, "train.jsonl",
                                  "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, "
                                  "{\"role\": \"assistant\", \"content\": \"Yes\"}, {\"role\": \"user\", \"content\": "
                                  "\"o\"}, {\"role\": \"assistant\", \"content\": \"No\"}]}\n"
                                  "{\"messages\": [{\"role\": \"user\", \"content\": \"Q\"}]}\n"
                                  "{\"messages\": [{\"role\": \"user\", \"content\": \"\\ud83d\"}, {\"role\": "
                                  "\"assistant\", \"content\": \"x\"}]}\n"
                                  "{\"messages\": 5}\n"
                                  "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
                                  "\"assistant\", \"content\": \"b\"}], \"tools\": \"[{}]\"}\n"
                                  "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, \"b\"]}\n");
    fsdp_dataset *d = open_chat(path, t, false);
    assert_non_null(d);
    assert_int_equal(fsdp_dataset_count(d), 1);
    expect_sample(d, t, 0, "Yes<|im_end|>\nNo<|im_end|>\n");
    assert_non_null(strstr(log_lines, "train.jsonl:2: no response within the context width"));
    assert_non_null(strstr(log_lines, "train.jsonl:3: half of a surrogate pair"));
    assert_non_null(strstr(log_lines, "train.jsonl:4: no string under \"prompt\""));
    assert_non_null(strstr(log_lines, "train.jsonl:5: the chat_template of tokenizer_config.json: \"tools\" must be"));
    assert_non_null(
        strstr(log_lines, "train.jsonl:6: the chat_template of tokenizer_config.json: message 2 is a string"));
    fsdp_dataset_free(d);
    fsdp_tokenizer_free(t);
}

static void prompts_and_responses_are_conversations_of_two(void **state)
{
    fsdp_tokenizer *t = make_tokenizer(*state, chatml);
    const char *path = files_text(*state, "p.jsonl",
                                  "{\"prompt\": \"Hi\", \"completion\": \"Yes\"}\n"
                                  "{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], "
                                  "\"completion\": [{\"role\": \"assistant\", \"content\": \"b\"}]}\n");
    fsdp_dataset *d = open_chat(path, t, true);
    assert_non_null(d);
    expect_sample(d, t, 0, "Yes<|im_end|>\n");
    expect_sample(d, t, 1, "b<|im_end|>\n");
    fsdp_dataset_free(d);
    fsdp_tokenizer_free(t);
}

/* A table of tests/format with three conversations, of which the first ends alike in all. */
static fsdp_dataset *open_table(const char *name, fsdp_tokenizer *t, bool chat)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/../format/tables/%s", FSDP_GOLDEN_DEFAULT, name);
    fsdp_dataset *d = open_chat(path, t, chat);
    assert_non_null(d);
    assert_int_equal(fsdp_dataset_count(d), 3);
    expect_sample(d, t, 0, "xx<|im_end|>\n");
    return d;
}

/* Of four rows that pyarrow wrote one has no prompt. */
static void prompts_and_responses_of_tables_are_conversations_too(void **state)
{
    static const char *const files[] = {"conversations.parquet", "conversations.arrow"};
    fsdp_tokenizer *t = make_tokenizer(*state, chatml);
    for (int i = 0; i < 2; i++) {
        fsdp_dataset *d = open_table(files[i], t, true);
        expect_sample(d, t, 2, "ww<|im_end|>\n");
        assert_non_null(strstr(log_lines, "null under \"prompt\""));
        fsdp_dataset_free(d);
    }
    char mixed[4096], *table = NULL;
    size_t bytes;
    assert_int_equal(
        file_read_at_most(FSDP_GOLDEN_DEFAULT "/../format/tables/conversations.parquet", 1 << 20, &table, &bytes),
        FSDP_OK);
    assert_int_equal(file_write_atomic(files_path(*state, "z.parquet"), table, bytes), FSDP_OK);
    free(table);
    files_text(*state, "a.jsonl", "{\"prompt\": \"Hi\", \"completion\": \"Yes\"}\n");
    snprintf(mixed, sizeof mixed, "%s/[az].*", (const char *)*state);
    assert_null(open_chat(mixed, t, true));
    assert_non_null(strstr(fsdp_last_error(), "not from both at once"));
    fsdp_tokenizer_free(t);
}

/* Five rows: two conversations, an empty one, a null, and one that is longer than the width. */
static void conversations_of_tables_are_those_of_jsonl(void **state)
{
    static const char *const files[] = {"messages.parquet", "messages-2.parquet"};
    fsdp_tokenizer *t = make_tokenizer(*state, chatml);
    for (int i = 0; i < 2; i++) {
        fsdp_dataset *d = open_table(files[i], t, false);
        expect_sample(d, t, 1, "yy<|im_end|>\nzz<|im_end|>\n");
        fsdp_dataset_free(d);
    }
    assert_null(open_chat(FSDP_GOLDEN_DEFAULT "/../format/tables/refused-messages.parquet", t, true));
    assert_non_null(strstr(fsdp_last_error(), "\"messages\" is no list of records with role and content alone"));
    fsdp_tokenizer_free(t);
}

/* Any outcome but a crash, an endless loop or more rows than there are. */
static void damaged_tables_of_conversations_do_no_harm(void **state)
{
    static const char *const columns[] = {"messages" TABLE_LIST "role", "messages" TABLE_LIST "content"};
    static const char *const files[] = {"messages.parquet", "messages-2.parquet"};
    for (int k = 0; k < 2; k++) {
        char path[4096], *data;
        size_t bytes;
        snprintf(path, sizeof path, "%s/../format/tables/%s", FSDP_GOLDEN_DEFAULT, files[k]);
        assert_int_equal(file_read_at_most(path, 1 << 20, &data, &bytes), FSDP_OK);
        for (size_t i = 0; i < 2 * bytes; i += 7) {
            table_file *t = NULL;
            table_text values[TABLE_MAX_COLUMNS];
            bool more = true;
            const char *broken = files_path(*state, "broken.parquet");
            data[i / 2] ^= i % 2 ? 0x41 : 0x04;
            FILE *file = fopen(broken, "wb");
            assert_true(file && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0);
            data[i / 2] ^= i % 2 ? 0x41 : 0x04;
            if (table_open(broken, columns, 2, &t) != FSDP_OK)
                continue;
            for (int rows = 0; more && table_next(t, values, &more) == FSDP_OK; rows++)
                assert_true(rows < 100000);
            table_close(t);
        }
        free(data);
    }
}

static void without_a_template_prompt_and_response_stand_side_by_side(void **state)
{
    fsdp_tokenizer *t = make_tokenizer(*state, NULL);
    const char *path = files_text(*state, "p.jsonl", "{\"prompt\": \"Hi\", \"response\": \"Yes\"}\n");
    fsdp_dataset *d = open_chat(path, t, true);
    assert_non_null(d);
    expect_sample(d, t, 0, "Yes");
    fsdp_dataset_free(d);
    path = files_text(*state, "m.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n");
    assert_null(open_chat(path, t, false));
    assert_non_null(strstr(fsdp_last_error(), "--chat_template"));
    fsdp_tokenizer_free(t);
}

static void long_conversations_are_cut_and_those_without_a_response_left_out(void **state)
{
    fsdp_tokenizer *t = make_tokenizer(*state, chatml);
    char text[1024], many[101];
    memset(many, 'a', 100);
    many[100] = '\0';
    snprintf(text, sizeof text,
             "{\"prompt\": \"b\", \"response\": \"%s\"}\n{\"prompt\": \"%s\", \"response\": \"b\"}\n", many, many);
    fsdp_dataset *d = open_chat(files_text(*state, "p.jsonl", text), t, true);
    assert_non_null(d);
    assert_int_equal(fsdp_dataset_count(d), 1);
    many[WIDTH - 20] = '\0'; /* behind <|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\n */
    expect_sample(d, t, 0, many);
    assert_non_null(strstr(log_lines, "1 of 1 conversations are longer than 56 tokens"));
    assert_non_null(strstr(log_lines, "p.jsonl:2: no response within the context width"));
    fsdp_dataset_free(d);
    fsdp_tokenizer_free(t);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, log_lines_setup, log_lines_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(labels_are_on_responses_alone),
        TEST(prompts_and_responses_are_conversations_of_two),
        TEST(prompts_and_responses_of_tables_are_conversations_too),
        TEST(conversations_of_tables_are_those_of_jsonl),
        TEST(damaged_tables_of_conversations_do_no_harm),
        TEST(without_a_template_prompt_and_response_stand_side_by_side),
        TEST(long_conversations_are_cut_and_those_without_a_response_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
