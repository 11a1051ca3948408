/* Reads JSON by json_parser.c, writes it by jansson, and turns failures into messages with file, line and field. */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/file.h"

fsdp_status json_parse_as(const char *name, const char *text, size_t bytes, unsigned flags, json_t **out)
{
    json_fault fault;
    json_t *value = json_parser_read(text, bytes, flags, &fault);
    if (!value && fault.out_of_memory)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory while reading JSON (%zu bytes)", name, bytes);
    if (!value)
        return error_set(FSDP_ERR_INPUT, "%s: line %d: not valid JSON: %s", name, fault.line, fault.text);
    *out = value;
    return FSDP_OK;
}

fsdp_status json_parse(const char *name, const char *text, size_t bytes, json_t **out)
{
    return json_parse_as(name, text, bytes, JSON_UNIQUE_KEYS, out);
}

/* The largest that people have (indexes of huge models, tokenizers) are some ten MiB; parsed, they take ten times that.
 */
#define MAX_FILE_BYTES ((uint64_t)256 << 20)

fsdp_status json_read_file_as(const char *path, unsigned flags, json_t **out)
{
    char *text;
    size_t bytes;
    FSDP_TRY(file_read_at_most(path, MAX_FILE_BYTES, &text, &bytes));
    fsdp_status status = json_parse_as(path, text, bytes, flags, out);
    free(text);
    return status;
}

fsdp_status json_read_file(const char *path, json_t **out)
{
    return json_read_file_as(path, JSON_UNIQUE_KEYS, out);
}

fsdp_status json_write_file(const char *path, const json_t *value)
{
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    if (!text)
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory, or a value that JSON cannot express", path);
    size_t length = strlen(text);
    text[length] = '\n'; /* takes the place of the NUL, which is not written */
    fsdp_status status = file_write_atomic(path, text, length + 1);
    free(text);
    return status;
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array",
        [JSON_STRING] = "a string",  [JSON_INTEGER] = "a whole number",
        [JSON_REAL] = "a number",    [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null",
    };
    return names[json_typeof(value)];
}

static fsdp_status refuse(const char *name, const char *key, const json_t *value, const char *wanted)
{
    return error_set(FSDP_ERR_INPUT, "%s: \"%s\" must be %s, it is %s", name, key, wanted, type_name(value));
}

/* The field, or NULL in *out when it is absent or null. */
static fsdp_status find(const char *name, const json_t *object, const char *key, const json_t **out)
{
    if (!json_is_object(object))
        return error_set(FSDP_ERR_INPUT, "%s: an object with the field \"%s\" is expected, there is %s", name, key,
                         object ? type_name(object) : "nothing");
    const json_t *value = json_object_get(object, key);
    *out = json_is_null(value) ? NULL : value;
    return FSDP_OK;
}

static fsdp_status require(const char *name, const json_t *object, const char *key)
{
    const json_t *value = NULL;
    FSDP_TRY(find(name, object, key, &value));
    if (!value)
        return error_set(FSDP_ERR_INPUT, "%s: \"%s\" is missing", name, key);
    return FSDP_OK;
}

fsdp_status json_opt_int(const char *name, const json_t *object, const char *key, int64_t *out)
{
    const json_t *value = NULL;
    FSDP_TRY(find(name, object, key, &value));
    if (!value)
        return FSDP_OK;
    if (!json_is_integer(value))
        return refuse(name, key, value, "a whole number");
    *out = json_integer_value(value);
    return FSDP_OK;
}

fsdp_status json_opt_number(const char *name, const json_t *object, const char *key, double *out)
{
    const json_t *value = NULL;
    FSDP_TRY(find(name, object, key, &value));
    if (!value)
        return FSDP_OK;
    if (!json_is_number(value))
        return refuse(name, key, value, "a number");
    *out = json_number_value(value);
    return FSDP_OK;
}

fsdp_status json_opt_bool(const char *name, const json_t *object, const char *key, bool *out)
{
    const json_t *value = NULL;
    FSDP_TRY(find(name, object, key, &value));
    if (!value)
        return FSDP_OK;
    if (!json_is_boolean(value))
        return refuse(name, key, value, "true or false");
    *out = json_is_true(value);
    return FSDP_OK;
}

fsdp_status json_opt_string(const char *name, const json_t *object, const char *key, const char **out)
{
    const json_t *value = NULL;
    FSDP_TRY(find(name, object, key, &value));
    if (!value)
        return FSDP_OK;
    if (!json_is_string(value))
        return refuse(name, key, value, "a string");
    *out = json_string_value(value);
    return FSDP_OK;
}

fsdp_status json_get_int(const char *name, const json_t *object, const char *key, int64_t *out)
{
    FSDP_TRY(require(name, object, key));
    return json_opt_int(name, object, key, out);
}

fsdp_status json_get_number(const char *name, const json_t *object, const char *key, double *out)
{
    FSDP_TRY(require(name, object, key));
    return json_opt_number(name, object, key, out);
}

fsdp_status json_get_string(const char *name, const json_t *object, const char *key, const char **out)
{
    FSDP_TRY(require(name, object, key));
    return json_opt_string(name, object, key, out);
}
