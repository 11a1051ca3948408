/* Making, comparing and printing values, with Python's rules. */
#include "tokenizer/template/template_value.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tokenizer/text/utf8.h"

static fsdp_status no_memory(void)
{
    return error_set(FSDP_ERR_MEMORY, "out of memory for a chat template");
}

fsdp_status value_copy_string(arena *a, const char *text, size_t bytes, value *out)
{
    char *copy = arena_alloc(a, bytes + 1);
    if (copy == NULL)
        return no_memory();
    if (bytes > 0)
        memcpy(copy, text, bytes);
    *out = value_string(copy, bytes);
    return FSDP_OK;
}

fsdp_status value_new_list(arena *a, value *out)
{
    *out = (value){.kind = VALUE_LIST, .list = arena_alloc(a, sizeof(value_list))};
    return out->list != NULL ? FSDP_OK : no_memory();
}

fsdp_status value_new_dict(arena *a, value *out)
{
    *out = (value){.kind = VALUE_DICT, .dict = arena_alloc(a, sizeof(value_dict))};
    return out->dict != NULL ? FSDP_OK : no_memory();
}

static fsdp_status grow(arena *a, value **items, size_t n, size_t capacity)
{
    value *larger = arena_alloc(a, capacity * sizeof *larger);
    if (larger == NULL)
        return no_memory();
    if (n > 0)
        memcpy(larger, *items, n * sizeof *larger);
    *items = larger;
    return FSDP_OK;
}

fsdp_status value_append(arena *a, value list, value item)
{
    value_list *l = list.list;
    if (l->n == l->capacity) {
        l->capacity = l->capacity * 2 + 4;
        FSDP_TRY(grow(a, &l->items, l->n, l->capacity));
    }
    l->items[l->n++] = item;
    return FSDP_OK;
}

fsdp_status value_set(arena *a, value_dict *d, value key, value item)
{
    for (size_t i = 0; i < d->n; i++) {
        if (value_equal(d->keys[i], key)) {
            d->values[i] = item;
            return FSDP_OK;
        }
    }
    if (d->n == d->capacity) {
        d->capacity = d->capacity * 2 + 4;
        FSDP_TRY(grow(a, &d->keys, d->n, d->capacity));
        FSDP_TRY(grow(a, &d->values, d->n, d->capacity));
    }
    d->keys[d->n] = key;
    d->values[d->n++] = item;
    return FSDP_OK;
}

bool value_get(const value_dict *d, value key, value *item)
{
    for (size_t i = 0; i < d->n; i++) {
        if (value_equal(d->keys[i], key)) {
            *item = d->values[i];
            return true;
        }
    }
    return false;
}

static fsdp_status dict_from_json(arena *a, const json_t *json, value *out)
{
    const char *name;
    size_t bytes;
    json_t *member = NULL;
    FSDP_TRY(value_new_dict(a, out));
    json_object_keylen_foreach((json_t *)(uintptr_t)json, name, bytes, member)
    {
        value key, item;
        FSDP_TRY(value_copy_string(a, name, bytes, &key));
        FSDP_TRY(value_from_json(a, member, &item));
        FSDP_TRY(value_set(a, out->dict, key, item));
    }
    return FSDP_OK;
}

fsdp_status value_from_json(arena *a, const json_t *json, value *out)
{
    json_t *item;
    size_t i;
    switch (json == NULL ? JSON_NULL : json_typeof(json)) {
    case JSON_NULL:
        *out = value_none();
        return FSDP_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = value_bool(json_is_true(json));
        return FSDP_OK;
    case JSON_INTEGER:
        *out = value_integer(json_integer_value(json));
        return FSDP_OK;
    case JSON_REAL:
        *out = (value){.kind = VALUE_REAL, .real = json_real_value(json)};
        return FSDP_OK;
    case JSON_STRING:
        return value_copy_string(a, json_string_value(json), json_string_length(json), out);
    case JSON_ARRAY:
        FSDP_TRY(value_new_list(a, out));
        json_array_foreach(json, i, item)
        {
            value v;
            FSDP_TRY(value_from_json(a, item, &v));
            FSDP_TRY(value_append(a, *out, v));
        }
        return FSDP_OK;
    default:
        return dict_from_json(a, json, out);
    }
}

/* --- asking ------------------------------------------------------------------------------------------------------ */

static double number_of(value v)
{
    return v.kind == VALUE_BOOL ? v.boolean : v.kind == VALUE_INTEGER ? (double)v.integer : v.real;
}

bool value_is_true(value v)
{
    switch (v.kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
    case VALUE_INTEGER:
    case VALUE_REAL:
        return number_of(v) != 0;
    case VALUE_MACRO:
        return true;
    default:
        return v.kind == VALUE_DICT && v.dict->is_namespace ? true : value_length(v) > 0;
    }
}

bool value_equal(value a, value b)
{
    if (value_is_number(a) && value_is_number(b))
        return number_of(a) == number_of(b);
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case VALUE_STRING:
        return a.bytes == b.bytes && memcmp(a.text, b.text, a.bytes) == 0;
    case VALUE_LIST:
        for (size_t i = 0; i < a.list->n && a.list->n == b.list->n; i++)
            if (!value_equal(a.list->items[i], b.list->items[i]))
                return false;
        return a.list->n == b.list->n && a.list->is_tuple == b.list->is_tuple;
    case VALUE_DICT:
        for (size_t i = 0; i < a.dict->n && a.dict->n == b.dict->n; i++) {
            value other;
            if (!value_get(b.dict, a.dict->keys[i], &other) || !value_equal(a.dict->values[i], other))
                return false;
        }
        return a.dict->n == b.dict->n;
    case VALUE_MACRO:
        return a.macro == b.macro;
    default:
        return true;
    }
}

bool value_compare(value a, value b, int *order)
{
    if (value_is_number(a) && value_is_number(b)) {
        double x = number_of(a), y = number_of(b);
        *order = x < y ? -1 : x > y;
        return true;
    }
    if (a.kind != VALUE_STRING || b.kind != VALUE_STRING)
        return false;
    int c = memcmp(a.text, b.text, a.bytes < b.bytes ? a.bytes : b.bytes);
    *order = c < 0 ? -1 : c > 0 ? 1 : a.bytes < b.bytes ? -1 : a.bytes > b.bytes;
    return true;
}

size_t value_length(value v)
{
    return v.kind == VALUE_STRING ? value_count_points(v.text, v.bytes)
           : v.kind == VALUE_LIST ? v.list->n
           : v.kind == VALUE_DICT ? v.dict->n
                                  : 0;
}

const char *value_kind_name(value_kind kind)
{
    static const char *const names[] = {"undefined", "none",   "a boolean", "an integer", "a number",
                                        "a string",  "a list", "a dict",    "a macro"};
    return names[kind];
}

size_t value_count_points(const char *text, size_t bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((uint8_t)text[i] & 0xC0) != 0x80;
    return n;
}

size_t value_point_place(const char *text, size_t bytes, size_t index)
{
    size_t i = 0;
    while (index-- > 0 && i < bytes)
        i += utf8_length((uint8_t)text[i]);
    return i < bytes ? i : bytes;
}

/* --- printing ---------------------------------------------------------------------------------------------------- */

static fsdp_status put(text_buffer *out, const char *text)
{
    return text_append(out, text, strlen(text));
}

/* The shortest decimal that reads back as the same double, in Python's form. */
static fsdp_status put_real(double x, text_buffer *out)
{
    char digits[40], text[64];
    if (!isfinite(x))
        return put(out, isnan(x) ? "nan" : x < 0 ? "-inf" : "inf");
    for (int precision = 0; precision < 17; precision++) {
        snprintf(digits, sizeof digits, "%.*e", precision, x);
        if (strtod(digits, NULL) == x)
            break;
    }
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1), places = (int)(e - digits) - (digits[0] == '-') - 2;
    *e = '\0';
    if (exponent < -4 || exponent >= 16)
        snprintf(text, sizeof text, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
    else
        snprintf(text, sizeof text, "%.*f", places - exponent > 1 ? places - exponent : 1, x);
    return put(out, text);
}

/* repr() of a string: the quotes that need no escape inside, if any. */
static fsdp_status put_quoted(value v, text_buffer *out)
{
    bool twice = memchr(v.text, '\'', v.bytes) != NULL && memchr(v.text, '"', v.bytes) == NULL;
    const char *quote = twice ? "\"" : "'";
    FSDP_TRY(put(out, quote));
    for (size_t i = 0; i < v.bytes; i++) {
        char c = v.text[i], text[8];
        if (c == '\n' || c == '\r' || c == '\t')
            snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c == '\\' || c == quote[0])
            snprintf(text, sizeof text, "\\%c", c);
        else if ((uint8_t)c < 0x20 || c == 0x7F)
            snprintf(text, sizeof text, "\\x%02x", (uint8_t)c);
        else
            snprintf(text, sizeof text, "%c", c);
        FSDP_TRY(text_append(out, c == '\0' ? "\\x00" : text, c == '\0' ? 4 : strlen(text)));
    }
    return put(out, quote);
}

static fsdp_status put_json_string(value v, text_buffer *out)
{
    FSDP_TRY(put(out, "\""));
    for (size_t i = 0; i < v.bytes; i++) {
        static const char codes[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
        char c = v.text[i], text[8];
        const char *code = c == '\0' ? NULL : strchr(codes, c);
        size_t n = 1;
        text[0] = c;
        if (code != NULL)
            n = (size_t)snprintf(text, sizeof text, "\\%c", names[code - codes]);
        else if ((uint8_t)c < 0x20)
            n = (size_t)snprintf(text, sizeof text, "\\u%04x", (uint8_t)c);
        FSDP_TRY(text_append(out, text, n));
    }
    return put(out, "\"");
}

typedef struct style {
    bool json;
    int indent; /* below 0: on one line */
} style;

static fsdp_status print(value v, style s, int level, bool inside, text_buffer *out);

static fsdp_status put_line(style s, int level, text_buffer *out)
{
    if (s.indent < 0)
        return FSDP_OK;
    FSDP_TRY(put(out, "\n"));
    for (int i = 0; i < s.indent * level; i++)
        FSDP_TRY(put(out, " "));
    return FSDP_OK;
}

/* Items of a list or members of a dict, between their brackets. */
static fsdp_status put_items(value v, style s, int level, text_buffer *out)
{
    bool dict = v.kind == VALUE_DICT, tuple = !dict && !s.json && v.list->is_tuple;
    size_t n = value_length(v);
    FSDP_TRY(put(out, dict ? "{" : tuple ? "(" : "["));
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            FSDP_TRY(put(out, s.indent < 0 ? ", " : ","));
        FSDP_TRY(put_line(s, level + 1, out));
        if (dict) {
            FSDP_TRY(print(v.dict->keys[i], s, level + 1, true, out));
            FSDP_TRY(put(out, ": "));
        }
        FSDP_TRY(print(dict ? v.dict->values[i] : v.list->items[i], s, level + 1, true, out));
    }
    if (n > 0)
        FSDP_TRY(put_line(s, level, out));
    return put(out, dict ? "}" : !tuple ? "]" : n == 1 ? ",)" : ")");
}

static fsdp_status print(value v, style s, int level, bool inside, text_buffer *out)
{
    char text[32];
    if (level > 100)
        return error_set(FSDP_ERR_INPUT, "a value in a chat template is nested too deep");
    switch (v.kind) {
    case VALUE_UNDEFINED:
        return s.json ? error_set(FSDP_ERR_INPUT, "tojson of what is undefined") : FSDP_OK;
    case VALUE_NONE:
        return put(out, s.json ? "null" : "None");
    case VALUE_BOOL:
        return put(out, v.boolean ? (s.json ? "true" : "True") : (s.json ? "false" : "False"));
    case VALUE_INTEGER:
        snprintf(text, sizeof text, "%lld", (long long)v.integer);
        return put(out, text);
    case VALUE_REAL:
        return put_real(v.real, out);
    case VALUE_STRING:
        return s.json ? put_json_string(v, out) : inside ? put_quoted(v, out) : text_append(out, v.text, v.bytes);
    case VALUE_LIST:
    case VALUE_DICT:
        return put_items(v, s, level, out);
    case VALUE_MACRO:
        break;
    }
    return error_set(FSDP_ERR_INPUT, "a macro cannot be printed; call it");
}

fsdp_status value_print(value v, text_buffer *out)
{
    return print(v, (style){false, -1}, 0, false, out);
}

fsdp_status value_print_json(value v, int indent, text_buffer *out)
{
    return print(v, (style){true, indent}, 0, false, out);
}
