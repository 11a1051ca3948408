/* Chat templates: which parts are responses, where templates are found, and what is refused. That renderings are those
 * of transformers is golden/chat_templates's to show. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/scratch.h"
#include "tokenizer/template/chat_template.h"

static json_t *parse(const char *text)
{
    json_t *value = NULL;
    assert_int_equal(json_parse("test", text, strlen(text), &value), FSDP_OK);
    return value;
}

static const char two_turns[] = "[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":\"A\"},"
                                "{\"role\":\"assistant\",\"content\":\"B\"},{\"role\":\"user\",\"content\":\"C\"},"
                                "{\"role\":\"assistant\",\"content\":\"D\"}]";

/* The responses, each in brackets. */
static char *responses_of(const char *template, const char *messages)
{
    json_t *variables = parse("{\"bos_token\":\"<s>\",\"eos_token\":\"</s>\"}");
    chat c = {.messages = parse(messages)};
    chat_template *t = NULL;
    text_buffer text = {0}, shown = {0};
    span_vector spans = {0};
    if (chat_template_create("test", template, strlen(template), variables, &t) != FSDP_OK ||
        chat_template_responses(t, &c, &text, &spans) != FSDP_OK)
        text_append(&shown, fsdp_last_error(), strlen(fsdp_last_error()));
    for (size_t i = 0; i < spans.n; i++) {
        text_append(&shown, "[", 1);
        text_append(&shown, text.data + spans.data[i].start, spans.data[i].end - spans.data[i].start);
        text_append(&shown, "]", 1);
    }
    text_append(&shown, "", 1);
    json_decref((json_t *)(uintptr_t)c.messages);
    json_decref(variables);
    chat_template_free(t);
    text_free(&text);
    span_free(&spans);
    return shown.data;
}

static void expect_responses(const char *template, const char *messages, const char *expected)
{
    char *shown = responses_of(template, messages);
    if (strstr(shown, expected) == NULL)
        fail_msg("\"%s\" is not in \"%s\"", expected, shown);
    free(shown);
}

static char *golden(const char *name)
{
    char path[4096], *text;
    size_t bytes;
    const char *root = getenv("FSDP_SOURCE");
    snprintf(path, sizeof path, "%s/tests/golden/chat_templates/%s", root == NULL ? ".." : root, name);
    if (file_read(path, &text, &bytes) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    text = realloc(text, bytes + 1);
    text[bytes] = '\0';
    return text;
}

static void responses_are_what_the_assistant_adds(void **state)
{
    (void)state;
    static const struct {
        const char *name, *expected;
    } cases[] = {
        {"chatml.jinja", "[B<|im_end|>\n][D<|im_end|>\n]"}, {"qwen2_5.jinja", "[B<|im_end|>\n][D<|im_end|>\n]"},
        {"llama3.jinja", "[B<|eot_id|>][D<|eot_id|>]"},     {"llama3_tools.jinja", "[B<|eot_id|>][D<|eot_id|>]"},
        {"phi3.jinja", "[B<|end|>\n][D<|end|>\n</s>]"},     {"zephyr.jinja", "[B</s>\n][D</s>\n]"},
        {"generation.jinja", "[B</s>\n][D</s>\n]"},         {"gemma3.jinja", "[B<end_of_turn>\n][D<end_of_turn>\n]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = golden(cases[i].name);
        expect_responses(text, two_turns, cases[i].expected);
        free(text);
    }
}

/* Mistral's puts the system message into the last question, wherever that is. */
static void a_template_that_rewrites_earlier_turns_is_refused(void **state)
{
    (void)state;
    char *text = golden("mistral_tools.jinja");
    expect_responses(text, two_turns, "is rendered otherwise when others follow it");
    expect_responses(text,
                     "[{\"role\":\"user\",\"content\":\"A\"},{\"role\":\"assistant\",\"content\":\"B\"},"
                     "{\"role\":\"user\",\"content\":\"C\"},{\"role\":\"assistant\",\"content\":\"D\"}]",
                     "[ B</s>][ D</s>]");
    free(text);
}

static void a_refusal_of_the_template_is_an_error_with_its_words(void **state)
{
    (void)state;
    char *text = golden("gemma.jinja");
    expect_responses(text, two_turns, "System role not supported");
    free(text);
}

static void what_is_not_known_is_refused_by_name_and_line(void **state)
{
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"a\n{% include 'x' %}", "line 2: the statement \"include\""},
        {"{{ 1 | wordcount }}", "line 1: the filter \"wordcount\""},
        {"\n\n{{ 'a'.encode() }}", "line 3: the method \"encode\" of a string"},
        {"{{ open('x') }}", "the function \"open\""},
        {"{{ 1 is prime }}", "the test \"prime\""},
        {"{{ messages[0].content.missing.more }}", "\"more\" of what is undefined"},
        {"{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}", "takes too long"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "nested too deep"},
        {"{% if 1 %}", "elif is expected"},
        {"{{ 'x }}", "a string has no end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_responses(cases[i].text, two_turns, cases[i].expected);
    char deep[4001];
    memset(deep, '(', 4000);
    memcpy(deep, "{{", 2);
    deep[4000] = '\0';
    expect_responses(deep, two_turns, "a tag has no end");
    memset(deep + 3000, ')', 998);
    memcpy(deep + 3998, "}}", 2);
    expect_responses(deep, two_turns, "a tag has no end");
    memset(deep + 2, '-', 3995);
    expect_responses(deep, two_turns, "less deep");
}

static void write_text(const char *folder, const char *name, const char *text)
{
    char *path = file_join(folder, name);
    assert_int_equal(file_write_atomic(path, text, strlen(text)), FSDP_OK);
    free(path);
}

static void expect_loaded(const char *folder, const char *file, const char *expected)
{
    chat_template *t = NULL;
    text_buffer text = {0};
    chat c = {.messages = parse("[]")};
    assert_int_equal(chat_template_load(folder, file, &t), FSDP_OK);
    assert_int_equal(t != NULL, expected != NULL);
    if (t != NULL) {
        assert_int_equal(chat_template_render(t, &c, &text, NULL), FSDP_OK);
        assert_int_equal(text.bytes, strlen(expected));
        assert_memory_equal(text.data, expected, text.bytes);
    }
    json_decref((json_t *)(uintptr_t)c.messages);
    text_free(&text);
    chat_template_free(t);
}

static void a_folders_template_is_found_in_its_place(void **state)
{
    const char *folder = *state;
    expect_loaded(folder, NULL, NULL);
    write_text(folder, "tokenizer_config.json",
               "{\"model_max_length\": 1000000000000000019884624838656, \"bos_token\": "
               "{\"content\": \"<s>\"}, \"chat_template\": \"one {{ bos_token }}\"}");
    expect_loaded(folder, NULL, "one <s>");
    write_text(folder, "chat_template.jinja", "two {{ bos_token }}");
    expect_loaded(folder, NULL, "two <s>");
    write_text(folder, "other", "three {{ bos_token }}");
    char *path = file_join(folder, "other");
    expect_loaded(folder, path, "three <s>");
    free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(responses_are_what_the_assistant_adds),
        cmocka_unit_test(a_template_that_rewrites_earlier_turns_is_refused),
        cmocka_unit_test(a_refusal_of_the_template_is_an_error_with_its_words),
        cmocka_unit_test(what_is_not_known_is_refused_by_name_and_line),
        cmocka_unit_test_setup_teardown(a_folders_template_is_found_in_its_place, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
