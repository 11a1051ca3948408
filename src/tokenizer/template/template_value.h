/* Values of a chat template: what Python has, as far as templates see it. They live in the arena of one rendering and
 * are passed by value; lists and dicts are shared. Strings are UTF-8; lengths and places in them count code points. */
#ifndef TOKENIZER_TEMPLATE_TEMPLATE_VALUE_H
#define TOKENIZER_TEMPLATE_TEMPLATE_VALUE_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "base/arena.h"
#include "tokenizer/text/text_buffer.h"

typedef enum value_kind {
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INTEGER,
    VALUE_REAL,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_DICT,
    VALUE_MACRO,
} value_kind;

typedef struct value_list value_list;
typedef struct value_dict value_dict;

typedef struct value {
    value_kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct {
            const char *text;
            size_t bytes;
        };
        value_list *list;
        value_dict *dict;
        const struct node *macro;
    };
} value;

struct value_list {
    value *items;
    size_t n, capacity;
    bool is_tuple; /* printed in parentheses, and not equal to any list; otherwise the same */
};

struct value_dict {
    value *keys, *values;
    size_t n, capacity;
    bool is_namespace; /* the only kind that `set a.b = ...` may change */
};

static inline value value_none(void)
{
    return (value){.kind = VALUE_NONE};
}

static inline value value_bool(bool b)
{
    return (value){.kind = VALUE_BOOL, .boolean = b};
}

static inline value value_integer(int64_t i)
{
    return (value){.kind = VALUE_INTEGER, .integer = i};
}

static inline value value_string(const char *text, size_t bytes)
{
    return (value){.kind = VALUE_STRING, .text = text, .bytes = bytes};
}

/* A string of the code, with its lifetime. */
static inline value value_literal(const char *text)
{
    return value_string(text, strlen(text));
}

static inline bool value_is_number(value v)
{
    return v.kind == VALUE_BOOL || v.kind == VALUE_INTEGER || v.kind == VALUE_REAL;
}

fsdp_status value_copy_string(arena *a, const char *text, size_t bytes, value *out);
fsdp_status value_new_list(arena *a, value *out);
fsdp_status value_new_dict(arena *a, value *out);
fsdp_status value_append(arena *a, value list, value item);
fsdp_status value_set(arena *a, value_dict *dict, value key, value item); /* a key that is there keeps its place */
bool value_get(const value_dict *dict, value key, value *item);
fsdp_status value_from_json(arena *a, const json_t *json, value *out);

bool value_is_true(value v);
bool value_equal(value a, value b);
/* -1, 0, 1; false when the two have no order. */
bool value_compare(value a, value b, int *order);
size_t value_length(value v); /* of a string, list or dict */
const char *value_kind_name(value_kind kind);

/* What str() gives; strings in lists and dicts are in quotes. */
fsdp_status value_print(value v, text_buffer *out);
/* What json.dumps(ensure_ascii=False) gives; `indent` below 0: on one line. False when a value has no JSON. */
fsdp_status value_print_json(value v, int indent, text_buffer *out);

/* A string by code points. */
size_t value_count_points(const char *text, size_t bytes);
size_t value_point_place(const char *text, size_t bytes, size_t index); /* bytes in front of the index-th code point */

#endif
