/* Compares renderings with reference vectors: golden_templates FOLDER, where FOLDER holds vectors.jsonl: template (a
 * file beside it), variables, messages, tools, add_generation_prompt, now, and text, or null where the template
 * refuses; perhaps generated, the places of its generation blocks in code points. Prints what differs; exits 0 only
 * when nothing does. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <fsdp/status.h>

#include "base/file.h"
#include "base/json.h"
#include "tokenizer/template/chat_template.h"
#include "tokenizer/template/template_value.h"

static int differ(size_t line, const json_t *vector, const char *what, const char *got, size_t bytes)
{
    printf("line %zu (%s): %s: %.*s\n", line, json_string_value(json_object_get(vector, "template")), what, (int)bytes,
           got);
    return 1;
}

static chat_template *open_template(const char *folder, const json_t *vector)
{
    chat_template *t = NULL;
    char *path = file_join(folder, json_string_value(json_object_get(vector, "template"))), *text = NULL;
    size_t bytes;
    if (file_read(path, &text, &bytes) == FSDP_OK)
        chat_template_create(path, text, bytes, json_object_get(vector, "variables"), &t);
    free(text);
    free(path);
    return t;
}

static int check_generated(const json_t *vector, size_t line, const text_buffer *text, const span_vector *spans)
{
    const json_t *expected = json_object_get(vector, "generated");
    if (expected == NULL)
        return 0;
    if (json_array_size(expected) != spans->n)
        return differ(line, vector, "number of generation blocks", "", 0);
    for (size_t i = 0; i < spans->n; i++) {
        const json_t *pair = json_array_get(expected, i);
        if ((int64_t)value_count_points(text->data, spans->data[i].start) !=
                json_integer_value(json_array_get(pair, 0)) ||
            (int64_t)value_count_points(text->data, spans->data[i].end) != json_integer_value(json_array_get(pair, 1)))
            return differ(line, vector, "place of a generation block", "", 0);
    }
    return 0;
}

static int check_vector(const char *folder, const json_t *vector, size_t line)
{
    const json_t *expected = json_object_get(vector, "text");
    chat c = {.messages = json_object_get(vector, "messages"),
              .tools = json_object_get(vector, "tools"),
              .add_generation_prompt = json_is_true(json_object_get(vector, "add_generation_prompt")),
              .now = json_integer_value(json_object_get(vector, "now"))};
    text_buffer text = {0};
    span_vector generated = {0};
    chat_template *t = open_template(folder, vector);
    if (t == NULL)
        return differ(line, vector, "does not parse", fsdp_last_error(), strlen(fsdp_last_error()));
    fsdp_status status = chat_template_render(t, &c, &text, &generated);
    int failed = 0;
    if (status != FSDP_OK)
        failed =
            json_is_null(expected) ? 0 : differ(line, vector, "fails", fsdp_last_error(), strlen(fsdp_last_error()));
    else if (json_is_null(expected) || text.bytes != json_string_length(expected) ||
             memcmp(text.data, json_string_value(expected), text.bytes) != 0)
        failed = differ(line, vector, "text differs", text.data, text.bytes);
    else
        failed = check_generated(vector, line, &text, &generated);
    span_free(&generated);
    text_free(&text);
    chat_template_free(t);
    return failed;
}

int main(int argc, char **argv)
{
    char path[4096], *line = NULL;
    size_t capacity = 0, n = 0;
    int failures = 0;
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    snprintf(path, sizeof path, "%s/vectors.jsonl", argv[1]);
    FILE *file = fopen(path, "r");
    for (ssize_t got; file != NULL && (got = getline(&line, &capacity, file)) > 0; n++) {
        json_t *vector = json_loadb(line, (size_t)got, JSON_ALLOW_NUL, NULL);
        failures += vector == NULL ? 1 : check_vector(argv[1], vector, n + 1);
        json_decref(vector);
    }
    if (file != NULL)
        fclose(file);
    free(line);
    printf("%s: %zu renderings, %d differences\n", argv[1], n, failures);
    return n > 0 && failures == 0 ? 0 : 1;
}
