/* Finds, keeps and renders chat templates; the language is template_parser.c's and template_eval.c's. */
#include "tokenizer/template/chat_template.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "tokenizer/template/template_eval.h"

enum { LONGEST_TEMPLATE = 1 << 20 };

struct chat_template {
    char *name;
    arena *arena; /* of the tree */
    node_list body;
    json_t *variables;
};

fsdp_status chat_template_create(const char *name, const char *text, size_t bytes, const json_t *variables,
                                 chat_template **out)
{
    fsdp_status status;
    chat_template *t = calloc(1, sizeof *t);
    if (t == NULL || (t->name = strdup(name)) == NULL) {
        free(t);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    }
    t->variables = variables == NULL ? json_object() : json_deep_copy(variables);
    TRY_OR(fail, arena_create(0, &t->arena));
    if (bytes > LONGEST_TEMPLATE)
        TRY_OR(fail, error_set(FSDP_ERR_INPUT, "a chat template of %zu bytes is too long", bytes));
    TRY_OR(fail, template_parse(t->arena, text, bytes, &t->body));
    *out = t;
    return FSDP_OK;
fail:
    error_prefix(status, "%s: ", name);
    chat_template_free(t);
    return status;
}

void chat_template_free(chat_template *t)
{
    if (t == NULL)
        return;
    json_decref(t->variables);
    arena_free(t->arena);
    free(t->name);
    free(t);
}

/* --- finding ----------------------------------------------------------------------------------------------------- */

/* "chat_template" is a text, or a list of named ones, of which "default" is meant. */
static const json_t *template_of(const json_t *config)
{
    const json_t *found = json_object_get(config, "chat_template"), *entry;
    size_t i;
    json_array_foreach(found, i, entry)
    {
        const char *name = json_string_value(json_object_get(entry, "name"));
        if (name != NULL && strcmp(name, "default") == 0)
            return json_object_get(entry, "template");
    }
    return json_is_string(found) ? found : NULL;
}

/* Special tokens by their roles, as texts. */
static json_t *special_tokens(const json_t *config)
{
    static const char *const roles[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    json_t *found = json_object();
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++) {
        json_t *token = json_object_get(config, roles[i]);
        token = json_is_object(token) ? json_object_get(token, "content") : token;
        if (json_is_string(token))
            json_object_set(found, roles[i], token);
    }
    return found;
}

static fsdp_status read_template(const char *folder, const char *file, const json_t *config, chat_template **out)
{
    char *path = file != NULL ? strdup(file) : file_join(folder, "chat_template.jinja"), *text = NULL;
    size_t bytes = 0;
    json_t *variables = special_tokens(config);
    const json_t *listed = template_of(config);
    fsdp_status status = FSDP_OK;
    if (path == NULL || variables == NULL)
        TRY_OR(done, error_set(FSDP_ERR_MEMORY, "out of memory for a chat template"));
    if (file != NULL || file_exists(path)) {
        TRY_OR(done, file_read_at_most(path, LONGEST_TEMPLATE, &text, &bytes));
        TRY_OR(done, chat_template_create(path, text, bytes, variables, out));
    } else if (listed != NULL) {
        TRY_OR(done, chat_template_create("the chat_template of tokenizer_config.json", json_string_value(listed),
                                          json_string_length(listed), variables, out));
    }
done:
    json_decref(variables);
    free(text);
    free(path);
    return status;
}

fsdp_status chat_template_load(const char *folder, const char *file, chat_template **out)
{
    json_t *config = NULL;
    char *path = folder == NULL ? NULL : file_join(folder, "tokenizer_config.json");
    *out = NULL;
    if (folder == NULL)
        return file == NULL ? FSDP_OK : read_template(NULL, file, NULL, out);
    fsdp_status status = path == NULL ? error_set(FSDP_ERR_MEMORY, "out of memory for a chat template") : FSDP_OK;
    if (status == FSDP_OK && file_exists(path))
        status = json_read_file_as(path, JSON_AS_PYTHON | JSON_WITH_NUL, &config);
    if (status == FSDP_OK)
        status = read_template(folder, file, config, out);
    json_decref(config);
    free(path);
    return status;
}

/* --- rendering --------------------------------------------------------------------------------------------------- */

static fsdp_status set_variable(arena *a, value dict, const char *name, value v)
{
    return value_set(a, dict.dict, value_literal(name), v);
}

/* transformers gives a message's reasoning to the template under two names, whichever of three the data has. */
static fsdp_status name_reasoning(arena *a, value message, value *out)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    value reasoning = value_none();
    for (size_t i = 0; i < 3 && reasoning.kind == VALUE_NONE; i++)
        if (!value_get(message.dict, value_literal(names[i]), &reasoning))
            reasoning = value_none();
    *out = message;
    if (reasoning.kind == VALUE_NONE)
        return FSDP_OK;
    FSDP_TRY(value_new_dict(a, out));
    FSDP_TRY(set_variable(a, *out, "thinking", reasoning));
    for (size_t i = 0; i < message.dict->n; i++)
        FSDP_TRY(value_set(a, out->dict, message.dict->keys[i], message.dict->values[i]));
    return set_variable(a, *out, "reasoning_content", reasoning);
}

static fsdp_status prepare_messages(arena *a, const json_t *messages, value *out)
{
    FSDP_TRY(value_from_json(a, messages, out));
    for (size_t i = 0; out->kind == VALUE_LIST && i < out->list->n; i++) {
        value *message = &out->list->items[i];
        if (message->kind != VALUE_DICT)
            return error_set(FSDP_ERR_INPUT, "message %zu is %s, not an object with role and content", i + 1,
                             value_kind_name(message->kind));
        FSDP_TRY(name_reasoning(a, *message, message));
    }
    return FSDP_OK;
}

/* Some data has them as a text, which a template would take letter by letter. */
static fsdp_status check_tools(const json_t *tools)
{
    size_t i;
    const json_t *tool;
    bool good = tools == NULL || json_is_null(tools) || json_is_array(tools);
    json_array_foreach(tools, i, tool) good &= json_is_object(tool);
    return good ? FSDP_OK : error_set(FSDP_ERR_INPUT, "\"tools\" must be a list of objects");
}

static fsdp_status render(const chat_template *t, const chat *c, const json_t *messages, bool prompt, text_buffer *out,
                          span_vector *generated)
{
    arena *a = NULL;
    value variables, v;
    fsdp_status status;
    FSDP_TRY(arena_create(0, &a));
    TRY_OR(done, value_from_json(a, t->variables, &variables));
    TRY_OR(done, prepare_messages(a, messages, &v));
    TRY_OR(done, set_variable(a, variables, "messages", v));
    TRY_OR(done, check_tools(c->tools));
    TRY_OR(done, value_from_json(a, c->tools, &v));
    TRY_OR(done, set_variable(a, variables, "tools", v));
    TRY_OR(done, set_variable(a, variables, "documents", value_none()));
    TRY_OR(done, set_variable(a, variables, "add_generation_prompt", value_bool(prompt)));
    TRY_OR(done, template_render(&t->body, a, variables, c->now, out, generated));
done:
    arena_free(a);
    return status == FSDP_OK ? FSDP_OK : error_prefix(status, "%s: ", t->name);
}

fsdp_status chat_template_render(const chat_template *t, const chat *c, text_buffer *out, span_vector *generated)
{
    span_vector ignored = {0};
    fsdp_status status =
        render(t, c, c->messages, c->add_generation_prompt, out, generated != NULL ? generated : &ignored);
    span_free(&ignored);
    return status;
}

static bool begins_with(const text_buffer *whole, const text_buffer *part)
{
    return part->bytes == 0 || (part->bytes <= whole->bytes && memcmp(whole->data, part->data, part->bytes) == 0);
}

/* Some templates end every conversation with the end token, also one that goes on elsewhere. */
static void drop_end_token(const chat_template *t, text_buffer *text)
{
    const json_t *end = json_object_get(t->variables, "eos_token");
    size_t bytes = json_string_length(end);
    if (bytes > 0 && text->bytes >= bytes &&
        memcmp(text->data + text->bytes - bytes, json_string_value(end), bytes) == 0)
        text->bytes -= bytes;
}

/* What the last of the first `n` messages adds. */
static fsdp_status add_response(const chat_template *t, const chat *c, size_t n, const text_buffer *whole,
                                text_buffer *before, text_buffer *with, span_vector *responses)
{
    span_vector none = {0};
    json_t *messages = json_array();
    fsdp_status status = messages == NULL ? error_set(FSDP_ERR_MEMORY, "out of memory for a chat template") : FSDP_OK;
    before->bytes = with->bytes = 0;
    for (size_t i = 0; i + 1 < n && status == FSDP_OK; i++)
        json_array_append(messages, json_array_get(c->messages, i));
    if (status == FSDP_OK)
        status = render(t, c, messages, true, before, &none);
    if (status == FSDP_OK && json_array_append(messages, json_array_get(c->messages, n - 1)) == 0)
        status = render(t, c, messages, false, with, &none);
    json_decref(messages);
    span_free(&none);
    FSDP_TRY(status);
    if (!begins_with(whole, with))
        drop_end_token(t, with);
    if (!begins_with(whole, with) || !begins_with(with, before))
        return error_set(FSDP_ERR_INPUT,
                         "%s: message %zu is rendered otherwise when others follow it, so the assistant's responses "
                         "cannot be told; mark them with {%% generation %%} blocks in the template",
                         t->name, n);
    return before->bytes < with->bytes ? span_append(responses, before->bytes, with->bytes, 1) : FSDP_OK;
}

static bool has_generation(const node_list *list)
{
    for (size_t i = 0; i < list->n; i++)
        if (list->items[i]->kind == NODE_GENERATION || has_generation(&list->items[i]->body) ||
            has_generation(&list->items[i]->other))
            return true;
    return false;
}

fsdp_status chat_template_responses(const chat_template *t, const chat *c, text_buffer *out, span_vector *responses)
{
    text_buffer before = {0}, with = {0};
    span_vector generated = {0};
    fsdp_status status = render(t, c, c->messages, false, out, has_generation(&t->body) ? responses : &generated);
    span_free(&generated);
    if (status != FSDP_OK || has_generation(&t->body))
        return status;
    status = text_reserve(out, 1);
    for (size_t i = 0; i < json_array_size(c->messages) && status == FSDP_OK; i++) {
        const char *role = json_string_value(json_object_get(json_array_get(c->messages, i), "role"));
        if (role != NULL && strcmp(role, "assistant") == 0)
            status = add_response(t, c, i + 1, out, &before, &with, responses);
    }
    text_free(&before);
    text_free(&with);
    return status;
}
