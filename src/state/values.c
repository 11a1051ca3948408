/* Values as {"name": {"number": 0.5}}, {"integer": 3} or {"blob": hexadecimal digits}. JSON has no infinity and no NaN:
 * such numbers are texts, as printf writes them. */
#include "state/values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/log.h"

#define MAX_BLOB_BYTES ((size_t)4 << 20)
enum { MAX_NAME = 200 };

static const char *const kinds[] = {[VALUE_NUMBER] = "number", [VALUE_INTEGER] = "integer", [VALUE_BLOB] = "blob"};

static bool is_utf8(const char *text)
{
    json_t *value = json_string(text);
    bool good = value != NULL;
    json_decref(value);
    return good;
}

fsdp_status value_list_add(value_list *list, const char *name, value_kind kind, void *data, size_t bytes)
{
    if (!name || !name[0] || strlen(name) > MAX_NAME || !is_utf8(name))
        return error_set(FSDP_ERR_INPUT, "a %s of the state needs a name of 1 to %d bytes of UTF-8", kinds[kind],
                         MAX_NAME);
    if (!data && bytes > 0)
        return error_set(FSDP_ERR_INPUT, "%s %s of the state: no memory was given", kinds[kind], name);
    if (bytes > MAX_BLOB_BYTES)
        return error_set(FSDP_ERR_INPUT,
                         "blob %s of the state has %zu bytes, at most %zu can be saved: make it a persistent buffer of "
                         "the model",
                         name, bytes, MAX_BLOB_BYTES);
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->values[i].name, name) == 0)
            return error_set(FSDP_ERR_INPUT, "the state has a %s named %s already", kinds[list->values[i].kind], name);
    named_value *grown = realloc(list->values, ((size_t)list->n + 1) * sizeof *grown);
    char *copy = strdup(name);
    if (grown)
        list->values = grown;
    if (!grown || !copy) {
        free(copy);
        return error_set(FSDP_ERR_MEMORY, "%s %s of the state: out of host memory", kinds[kind], name);
    }
    list->values[list->n++] = (named_value){copy, kind, data, bytes};
    return FSDP_OK;
}

void value_list_free(value_list *list)
{
    for (int i = 0; i < list->n; i++)
        free(list->values[i].name);
    free(list->values);
    *list = (value_list){NULL, 0};
}

static json_t *number_json(double value)
{
    char text[32];
    if (isfinite(value))
        return json_real(value);
    snprintf(text, sizeof text, "%g", value);
    return json_string(text);
}

static json_t *blob_json(const uint8_t *data, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    char *text = malloc(2 * bytes + 1);
    for (size_t i = 0; text && i < bytes; i++) {
        text[2 * i] = digits[data[i] >> 4];
        text[2 * i + 1] = digits[data[i] & 15];
    }
    json_t *value = text ? json_stringn(text, 2 * bytes) : NULL;
    free(text);
    return value;
}

static json_t *value_json(const named_value *v)
{
    json_t *value = v->kind == VALUE_NUMBER    ? number_json(*(const double *)v->data)
                    : v->kind == VALUE_INTEGER ? json_integer(*(const int64_t *)v->data)
                                               : blob_json(v->data, v->bytes);
    return value ? json_pack("{s:o}", kinds[v->kind], value) : NULL;
}

json_t *value_list_json(const value_list *list)
{
    json_t *object = json_object();
    for (int i = 0; object && i < list->n; i++) {
        json_t *value = value_json(&list->values[i]);
        if (!value || json_object_set_new(object, list->values[i].name, value) != 0) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* Bytes of hexadecimal digits, into `out` where that is not NULL. */
static bool read_blob(const char *text, size_t bytes, uint8_t *out)
{
    for (size_t i = 0; i < bytes; i++) {
        int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
        if (high < 0 || low < 0)
            return false;
        if (out)
            out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

static bool read_number(const json_t *value, double *out)
{
    const char *text = json_string_value(value);
    char *end;
    *out = text ? strtod(text, &end) : json_number_value(value);
    return text ? end != text && !*end : json_is_number(value);
}

static fsdp_status check_value(const named_value *v, const char *path, const json_t *object)
{
    const json_t *found = json_object_get(object, v->name), *value = json_object_get(found, kinds[v->kind]);
    double number;
    if (!found)
        return error_set(FSDP_ERR_INPUT,
                         "%s has no value named %s; register after resuming what older checkpoints may lack", path,
                         v->name);
    bool good = v->kind == VALUE_NUMBER    ? read_number(value, &number)
                : v->kind == VALUE_INTEGER ? json_is_integer(value)
                                           : json_is_string(value);
    if (!good)
        return error_set(FSDP_ERR_INPUT, "%s: its value %s is no %s", path, v->name, kinds[v->kind]);
    if (v->kind != VALUE_BLOB)
        return FSDP_OK;
    if (json_string_length(value) != 2 * v->bytes)
        return error_set(FSDP_ERR_INPUT, "%s: its blob %s has %zu bytes, the program's has %zu", path, v->name,
                         json_string_length(value) / 2, v->bytes);
    return read_blob(json_string_value(value), v->bytes, NULL)
               ? FSDP_OK
               : error_set(FSDP_ERR_INPUT, "%s: its blob %s is damaged", path, v->name);
}

static bool has_value(const value_list *list, const char *name)
{
    for (int i = 0; i < list->n; i++)
        if (strcmp(list->values[i].name, name) == 0)
            return true;
    return false;
}

fsdp_status value_list_check(const value_list *list, const char *path, const json_t *object)
{
    const char *name;
    json_t *value;
    for (int i = 0; i < list->n; i++)
        FSDP_TRY(check_value(&list->values[i], path, object));
    json_object_foreach((json_t *)(uintptr_t)object, name, value)
    {
        if (!has_value(list, name))
            log_write(FSDP_LOG_WARNING, "%s: its value %s is of no use to this program", path, name);
    }
    return FSDP_OK;
}

void value_list_take(const value_list *list, const json_t *object)
{
    for (int i = 0; i < list->n; i++) {
        named_value *v = &list->values[i];
        const json_t *value = json_object_get(json_object_get(object, v->name), kinds[v->kind]);
        if (v->kind == VALUE_NUMBER)
            read_number(value, v->data);
        else if (v->kind == VALUE_INTEGER)
            *(int64_t *)v->data = json_integer_value(value);
        else
            read_blob(json_string_value(value), v->bytes, v->data);
    }
}
