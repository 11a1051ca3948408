/* Fields of tokenizer.json components, with errors that name the file, the component and what is known instead. */
#include "tokenizer/component.h"

#include <string.h>

#include "tokenizer/text/utf8.h"

static void list_types(const component_kind *kinds, char *list, size_t bytes)
{
    size_t used = 0;
    list[0] = '\0';
    for (; kinds->type != NULL && used + 40 < bytes; kinds++)
        used += (size_t)snprintf(list + used, bytes - used, "%s%s", used == 0 ? "" : ", ", kinds->type);
}

fsdp_status component_find(const char *name, const char *role, const json_t *object, const component_kind *kinds,
                           int *kind)
{
    char list[512];
    if (!json_is_object(object))
        return error_set(FSDP_ERR_INPUT, "%s: a %s must be an object with a \"type\"", name, role);
    const char *type = json_string_value(json_object_get(object, "type"));
    if (type == NULL)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "%s: a %s has no \"type\"; save it again with a current tokenizers library", name, role);
    for (const component_kind *k = kinds; k->type != NULL; k++) {
        if (strcmp(k->type, type) == 0) {
            *kind = k->kind;
            return FSDP_OK;
        }
    }
    list_types(kinds, list, sizeof list);
    return error_set(FSDP_ERR_UNSUPPORTED, "%s: the %s \"%s\" is not supported (these are: %s)", name, role, type,
                     list);
}

fsdp_status component_count(const char *name, const char *role, size_t n_before)
{
    enum { MAX_STEPS = 64 };
    if (n_before < MAX_STEPS)
        return FSDP_OK;
    return error_set(FSDP_ERR_INPUT, "%s: the %s has more than %d steps", name, role, MAX_STEPS);
}

fsdp_status component_text(const char *name, const json_t *object, const char *key, const char **text, size_t *bytes)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value))
        return error_set(FSDP_ERR_INPUT, "%s: \"%s\" of a component must be a string", name, key);
    *text = json_string_value(value);
    *bytes = json_string_length(value);
    return FSDP_OK;
}

fsdp_status component_character(const char *name, const json_t *object, const char *key, char out[4], size_t *bytes)
{
    const char *text = NULL;
    FSDP_TRY(component_text(name, object, key, &text, bytes));
    if (*bytes == 0 || utf8_length((uint8_t)text[0]) != *bytes)
        return error_set(FSDP_ERR_INPUT, "%s: \"%s\" must be one character, not \"%s\"", name, key, text);
    memcpy(out, text, *bytes);
    return FSDP_OK;
}

fsdp_status component_array(const char *name, const json_t *object, const char *key, json_t **out)
{
    *out = json_object_get(object, key);
    if (!json_is_array(*out))
        return error_set(FSDP_ERR_INPUT, "%s: \"%s\" must be an array", name, key);
    return FSDP_OK;
}

fsdp_status component_vocabulary(const char *name, const json_t *object, vocabulary **out)
{
    const char *token;
    size_t bytes;
    json_t *id = NULL, *vocab = json_object_get(object, "vocab");
    if (!json_is_object(vocab))
        return error_set(FSDP_ERR_INPUT, "%s: the model has no \"vocab\" object", name);
    FSDP_TRY(vocabulary_create(json_object_size(vocab), out));
    json_object_keylen_foreach(vocab, token, bytes, id)
    {
        json_int_t value = json_integer_value(id);
        if (!json_is_integer(id) || value < 0 || value >= VOCABULARY_MAX_ID)
            return error_set(FSDP_ERR_INPUT, "%s: the id of token \"%s\" must be a number from 0 to %d", name, token,
                             VOCABULARY_MAX_ID - 1);
        const char *other = vocabulary_text(*out, (int32_t)value, NULL);
        if (other != NULL)
            return error_set(FSDP_ERR_INPUT, "%s: tokens \"%s\" and \"%s\" have the same id %d", name, other, token,
                             (int)value);
        FSDP_TRY(vocabulary_add(*out, token, bytes, (int32_t)value));
    }
    return FSDP_OK;
}

fsdp_status component_pattern(const char *name, const json_t *object, const char *key, const unicode *u, pattern **out)
{
    const json_t *value = json_object_get(object, key);
    const json_t *literal = json_object_get(value, "String"), *regex = json_object_get(value, "Regex");
    if (json_is_string(literal))
        return pattern_literal(name, json_string_value(literal), json_string_length(literal), u, out);
    if (json_is_string(regex))
        return pattern_regex(name, json_string_value(regex), json_string_length(regex), u, out);
    return error_set(FSDP_ERR_INPUT, "%s: \"%s\" must be {\"String\": ...} or {\"Regex\": ...}", name, key);
}
