/* Prompts as conversations: the tokens that a model is shown are those of transformers' rendering, wherever the
 * template comes from. Templates and renderings are the golden folder's. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "generate/generate.h"

typedef struct place {
    char folder[64], file[96], config[96], template[96]; /* the folder and its files; the template is there or not */
    fsdp_tokenizer *tokenizer;
} place;

static const char *golden_root(void)
{
    const char *root = getenv("FSDP_GOLDEN_DIR");
    return root ? root : FSDP_GOLDEN_DEFAULT;
}

static void write_file(const char *path, const char *text, size_t bytes)
{
    assert_int_equal(file_write_atomic(path, text, bytes), FSDP_OK);
}

static void copy_file(const char *from, const char *to)
{
    char *text = NULL;
    size_t bytes;
    assert_int_equal(file_read_at_most(from, 1 << 20, &text, &bytes), FSDP_OK);
    write_file(to, text, bytes);
    free(text);
}

/* A folder with a tokenizer whose special tokens a template may ask for. */
static int make_place(void **state)
{
    static place p;
    static const char tokens[] = "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}}";
    char from[4096];
    snprintf(p.folder, sizeof p.folder, "/tmp/fsdp-chat-prompts-XXXXXX");
    assert_non_null(mkdtemp(p.folder));
    snprintf(p.file, sizeof p.file, "%s/tokenizer.json", p.folder);
    snprintf(p.config, sizeof p.config, "%s/tokenizer_config.json", p.folder);
    snprintf(p.template, sizeof p.template, "%s/chat_template.jinja", p.folder);
    snprintf(from, sizeof from, "%s/tokenizer_cases/tokenizer.json", golden_root());
    copy_file(from, p.file);
    write_file(p.config, tokens, sizeof tokens - 1);
    assert_int_equal(fsdp_tokenizer_load(p.folder, &p.tokenizer), FSDP_OK);
    *state = &p;
    return 0;
}

static int remove_place(void **state)
{
    const place *p = *state;
    const char *const all[] = {p->file, p->config, p->template};
    fsdp_tokenizer_free(p->tokenizer);
    for (int i = 0; i < 3; i++)
        unlink(all[i]);
    return rmdir(p->folder);
}

/* The prompt's tokens are those of `text`. */
static void assert_shown(const place *p, const char *template, const json_t *prompt, const json_t *text)
{
    model_config model = model_config_default(MODEL_DECODER);
    fsdp_generate_config config = FSDP_GENERATE_CONFIG_INIT;
    fsdp_tokenizer *tokenizer = p->tokenizer;
    chat_template *opened;
    const int32_t *want;
    size_t n;
    model.decoder.vocabulary = fsdp_tokenizer_vocab_size(tokenizer);
    config.prompt = json_string_value(prompt);
    config.prompt_bytes = json_string_length(prompt);
    config.chat_template = template;
    text_writer w = {.config = &config, .model_config = &model, .tokenizer = tokenizer, .source = "the test"};
    assert_int_equal(text_writer_open_chat(&w, NULL, &opened), FSDP_OK);
    w.chat = opened;
    assert_int_equal(text_writer_read_prompt(&w), FSDP_OK);
    assert_int_equal(
        fsdp_tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text), false, &want, &n), FSDP_OK);
    assert_int_equal(w.n_prompt, n);
    assert_memory_equal(w.ids, want, n * sizeof *want);
    text_writer_free(&w);
    chat_template_free(opened);
}

/* A question by itself, of a template that does not ask for the date. */
static bool is_prompt(const json_t *vector, const char *template)
{
    const json_t *messages = json_object_get(vector, "messages"), *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    return json_array_size(messages) == 1 && strcmp(role, "user") == 0 &&
           json_is_string(json_object_get(first, "content")) && json_is_null(json_object_get(vector, "tools")) &&
           json_is_true(json_object_get(vector, "add_generation_prompt")) &&
           json_is_string(json_object_get(vector, "text")) && !strstr(template, "strftime_now");
}

static void check_vector(const place *p, const json_t *vector, const char *path)
{
    const json_t *message = json_array_get(json_object_get(vector, "messages"), 0);
    const json_t *prompt = json_object_get(message, "content"), *text = json_object_get(vector, "text");
    unlink(p->template);
    assert_shown(p, path, prompt, text);
    copy_file(path, p->template);
    assert_shown(p, "", prompt, text);
    assert_shown(p, p->folder, prompt, text);
}

static void prompts_are_shown_as_transformers_renders_them(void **state)
{
    char path[4096], *line = NULL, *template = NULL;
    size_t capacity = 0, bytes;
    int n = 0;
    snprintf(path, sizeof path, "%s/chat_templates/vectors.jsonl", golden_root());
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (getline(&line, &capacity, file) > 0) {
        json_t *vector = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(vector);
        snprintf(path, sizeof path, "%s/chat_templates/%s", golden_root(),
                 json_string_value(json_object_get(vector, "template")));
        assert_int_equal(file_read_at_most(path, 1 << 20, &template, &bytes), FSDP_OK);
        if (is_prompt(vector, template)) {
            check_vector(*state, vector, path);
            n++;
        }
        free(template);
        json_decref(vector);
    }
    fclose(file);
    free(line);
    assert_true(n >= 50);
}

/* Of a plain prompt the tokenizer's end token is taken away; one that the template wrote stays. */
static void an_end_that_the_template_writes_stays(void **state)
{
    const place *p = *state;
    static const char template[] = "{{ bos_token }}{{ messages[0]['content'] }}{{ eos_token }}";
    json_t *prompt = json_string("hello"), *text = json_string("<s>hello</s>");
    write_file(p->template, template, sizeof template - 1);
    assert_shown(p, "", prompt, text);
    json_decref(prompt);
    json_decref(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(prompts_are_shown_as_transformers_renders_them, make_place, remove_place),
        cmocka_unit_test_setup_teardown(an_end_that_the_template_writes_stays, make_place, remove_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
