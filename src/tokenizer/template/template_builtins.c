/* Filters, tests and functions: tables by name. Methods are template_methods.c's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tokenizer/template/template_builtins_internal.h"

/* --- tests ------------------------------------------------------------------------------------------------------- */

typedef struct kind_test {
    const char *name;
    unsigned kinds; /* bit by kind */
} kind_test;

#define BIT(kind) (1u << (kind))

static const kind_test kind_tests[] = {
    {"undefined", BIT(VALUE_UNDEFINED)},
    {"defined", ~BIT(VALUE_UNDEFINED)},
    {"none", BIT(VALUE_NONE)},
    {"string", BIT(VALUE_STRING)},
    {"mapping", BIT(VALUE_DICT)},
    {"sequence", BIT(VALUE_STRING) | BIT(VALUE_LIST) | BIT(VALUE_DICT) | BIT(VALUE_UNDEFINED)},
    {"iterable", BIT(VALUE_STRING) | BIT(VALUE_LIST) | BIT(VALUE_DICT) | BIT(VALUE_UNDEFINED)},
    {"number", BIT(VALUE_BOOL) | BIT(VALUE_INTEGER) | BIT(VALUE_REAL)},
    {"integer", BIT(VALUE_INTEGER)},
    {"float", BIT(VALUE_REAL)},
    {"boolean", BIT(VALUE_BOOL)},
    {"callable", BIT(VALUE_MACRO) | BIT(VALUE_UNDEFINED)}, /* jinja2's Undefined has __call__ */
};

/* Tests that compare with their argument; several have two names. */
static const char *const comparisons[][2] = {
    {"equalto", "=="}, {"eq", "=="}, {"==", "=="},         {"ne", "!="}, {"lt", "<"},
    {"lessthan", "<"}, {"gt", ">"},  {"greaterthan", ">"}, {"le", "<="}, {"ge", ">="},
};

fsdp_status builtin_compare(const char *operator, value a, value b, bool *out)
{
    int order = 0;
    if (operator[1] == '=' &&(operator[0] == '=' || operator[0] == '!')) {
        *out = value_equal(a, b) == (operator[0] == '=');
        return FSDP_OK;
    }
    if (!value_compare(a, b, &order))
        return error_set(FSDP_ERR_INPUT, "%s and %s have no order", value_kind_name(a.kind), value_kind_name(b.kind));
    *out = operator[0] == '<' ? order < 0 : order> 0;
    *out = *out || (operator[1] == '=' && order == 0);
    return FSDP_OK;
}

fsdp_status builtin_test(const builtin_room *room, value name, value subject, const arguments *args, bool *out)
{
    (void)room;
    for (size_t i = 0; i < sizeof kind_tests / sizeof *kind_tests; i++) {
        if (value_equal(name, value_literal(kind_tests[i].name))) {
            *out = kind_tests[i].kinds >> subject.kind & 1;
            return FSDP_OK;
        }
    }
    for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++)
        if (value_equal(name, value_literal(comparisons[i][0])))
            return builtin_compare(comparisons[i][1], subject, argument(args, 0, "other"), out);
    if (value_equal(name, value_literal("in")))
        return builtin_contains(argument(args, 0, "seq"), subject, out);
    bool is_true = value_equal(name, value_literal("true")), is_false = value_equal(name, value_literal("false"));
    if (is_true || is_false) {
        *out = subject.kind == VALUE_BOOL && subject.boolean == is_true;
        return FSDP_OK;
    }
    bool odd = value_equal(name, value_literal("odd")), even = value_equal(name, value_literal("even"));
    if (odd || even) {
        FSDP_TRY(want(subject, VALUE_INTEGER, "what is odd or even"));
        *out = (subject.integer & 1) == odd;
        return FSDP_OK;
    }
    if (value_equal(name, value_literal("divisibleby"))) {
        value by = argument(args, 0, "num");
        FSDP_TRY(want(subject, VALUE_INTEGER, "what is divided"));
        FSDP_TRY(want(by, VALUE_INTEGER, "what divides"));
        *out = by.integer != 0 && subject.integer % by.integer == 0;
        return FSDP_OK;
    }
    return error_set(FSDP_ERR_UNSUPPORTED, "the test \"%.*s\" is not supported", (int)name.bytes, name.text);
}

/* --- filters ----------------------------------------------------------------------------------------------------- */

static fsdp_status text_of(const builtin_room *room, value v, value *out)
{
    text_buffer b = {.limit = (size_t)64 << 20};
    if (v.kind == VALUE_STRING) {
        *out = v;
        return FSDP_OK;
    }
    return finish(room, value_print(v, &b), &b, out);
}

/* Filters of text are the methods, after str(). */
static fsdp_status filter_text(const builtin_room *room, value name, value v, const arguments *args, value *out)
{
    value text;
    FSDP_TRY(text_of(room, v, &text));
    return builtin_method(room, text, value_equal(name, value_literal("trim")) ? value_literal("strip") : name, args,
                          out);
}

static fsdp_status filter_string(const builtin_room *room, value v, const arguments *args, value *out)
{
    (void)args;
    return text_of(room, v, out);
}

static fsdp_status filter_length(const builtin_room *room, value v, const arguments *args, value *out)
{
    (void)room;
    (void)args;
    if (v.kind < VALUE_STRING && v.kind != VALUE_UNDEFINED)
        return error_set(FSDP_ERR_INPUT, "%s has no length", value_kind_name(v.kind));
    *out = value_integer((int64_t)value_length(v));
    return FSDP_OK;
}

static fsdp_status filter_default(const builtin_room *room, value v, const arguments *args, value *out)
{
    (void)room;
    value otherwise = argument(args, 0, "default_value"), falsy = argument(args, 1, "boolean");
    bool replaced = v.kind == VALUE_UNDEFINED || (value_is_true(falsy) && !value_is_true(v));
    *out = !replaced ? v : otherwise.kind == VALUE_UNDEFINED ? value_literal("") : otherwise;
    return FSDP_OK;
}

static fsdp_status filter_tojson(const builtin_room *room, value v, const arguments *args, value *out)
{
    value indent = argument(args, 1, "indent"); /* ensure_ascii comes first */
    text_buffer b = {.limit = (size_t)64 << 20};
    for (size_t i = 0; i < args->named->n; i++) {
        value name = args->named->keys[i], item = args->named->values[i];
        bool known = value_equal(name, value_literal("indent")) ||
                     (value_equal(name, value_literal("ensure_ascii")) && !value_is_true(item)) ||
                     (value_equal(name, value_literal("sort_keys")) && !value_is_true(item)) || item.kind == VALUE_NONE;
        if (!known)
            return error_set(FSDP_ERR_UNSUPPORTED, "tojson with %.*s is not supported", (int)name.bytes, name.text);
    }
    if (args->n > 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "tojson with arguments that are not named is not supported");
    int by = indent.kind == VALUE_INTEGER && indent.integer >= 0 && indent.integer < 100 ? (int)indent.integer : -1;
    return finish(room, value_print_json(v, by, &b), &b, out);
}

static fsdp_status filter_first(const builtin_room *room, value v, const arguments *args, value *out)
{
    (void)args;
    value items;
    FSDP_TRY(builtin_items(room, v, &items));
    *out = items.list->n > 0 ? items.list->items[0] : (value){.kind = VALUE_UNDEFINED};
    return FSDP_OK;
}

static fsdp_status filter_last(const builtin_room *room, value v, const arguments *args, value *out)
{
    (void)args;
    value items;
    FSDP_TRY(builtin_items(room, v, &items));
    *out = items.list->n > 0 ? items.list->items[items.list->n - 1] : (value){.kind = VALUE_UNDEFINED};
    return FSDP_OK;
}

static fsdp_status filter_list(const builtin_room *room, value v, const arguments *args, value *out)
{
    (void)args;
    value items;
    FSDP_TRY(builtin_items(room, v, &items));
    FSDP_TRY(value_new_list(room->arena, out));
    for (size_t i = 0; i < items.list->n; i++)
        FSDP_TRY(value_append(room->arena, *out, items.list->items[i]));
    return FSDP_OK;
}

static fsdp_status filter_reverse(const builtin_room *room, value v, const arguments *args, value *out)
{
    (void)args;
    value items;
    FSDP_TRY(builtin_items(room, v, &items));
    FSDP_TRY(value_new_list(room->arena, out));
    for (size_t i = items.list->n; i-- > 0;)
        FSDP_TRY(value_append(room->arena, *out, items.list->items[i]));
    return v.kind == VALUE_STRING ? builtin_join(room, value_none(), *out, value_none(), true, out) : FSDP_OK;
}

static fsdp_status filter_unique(const builtin_room *room, value v, const arguments *args, value *out)
{
    (void)args;
    value items;
    bool there;
    FSDP_TRY(builtin_items(room, v, &items));
    FSDP_TRY(value_new_list(room->arena, out));
    for (size_t i = 0; i < items.list->n; i++) {
        FSDP_TRY(builtin_contains(*out, items.list->items[i], &there));
        if (!there)
            FSDP_TRY(value_append(room->arena, *out, items.list->items[i]));
    }
    return FSDP_OK;
}

static fsdp_status filter_join(const builtin_room *room, value v, const arguments *args, value *out)
{
    return builtin_join(room, argument(args, 0, "d"), v, argument(args, 1, "attribute"), false, out);
}

static fsdp_status filter_items(const builtin_room *room, value v, const arguments *args, value *out)
{
    if (v.kind == VALUE_UNDEFINED)
        return value_new_list(room->arena, out);
    FSDP_TRY(want(v, VALUE_DICT, "the subject of items"));
    return builtin_dict_items(room, v, args, out);
}

typedef struct sorted_pair {
    value key, pair; /* the key in lower case */
    size_t place;
} sorted_pair;

static int by_key(const void *left, const void *right)
{
    const sorted_pair *a = left, *b = right;
    int order = 0;
    value_compare(a->key, b->key, &order);
    return order != 0 ? order : a->place < b->place ? -1 : 1;
}

/* Pairs by their keys, whatever their case; all keys are texts, or all are numbers. */
static fsdp_status filter_dictsort(const builtin_room *room, value v, const arguments *args, value *out)
{
    int order;
    if (args->n > 0 || args->named->n > 0)
        return error_set(FSDP_ERR_UNSUPPORTED, "dictsort with arguments is not supported");
    FSDP_TRY(want(v, VALUE_DICT, "the subject of dictsort"));
    FSDP_TRY(builtin_dict_items(room, v, args, out));
    sorted_pair *pairs = arena_alloc(room->arena, (v.dict->n + 1) * sizeof *pairs);
    if (pairs == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory");
    for (size_t i = 0; i < v.dict->n; i++) {
        pairs[i] = (sorted_pair){v.dict->keys[i], out->list->items[i], i};
        if (pairs[i].key.kind == VALUE_STRING)
            FSDP_TRY(builtin_method(room, pairs[i].key, value_literal("lower"), args, &pairs[i].key));
        if (!value_compare(pairs[0].key, pairs[i].key, &order))
            return error_set(FSDP_ERR_INPUT, "the keys of a dict to be sorted have no order");
    }
    qsort(pairs, v.dict->n, sizeof *pairs, by_key);
    for (size_t i = 0; i < v.dict->n; i++)
        out->list->items[i] = pairs[i].pair;
    return FSDP_OK;
}

static fsdp_status filter_int(const builtin_room *room, value v, const arguments *args, value *out)
{
    char number[32] = {0};
    (void)room;
    (void)args;
    if (v.kind == VALUE_STRING)
        memcpy(number, v.text, v.bytes < sizeof number ? v.bytes : sizeof number - 1);
    *out = value_integer(v.kind == VALUE_INTEGER  ? v.integer
                         : v.kind == VALUE_BOOL   ? v.boolean
                         : v.kind == VALUE_REAL   ? (int64_t)v.real
                         : v.kind == VALUE_STRING ? strtoll(number, NULL, 10)
                                                  : 0);
    return FSDP_OK;
}

/* A dotted path into an item: "function.name". */
static fsdp_status attribute_path(value item, value path, value *out)
{
    *out = item;
    while (path.bytes > 0) {
        const char *dot = memchr(path.text, '.', path.bytes);
        size_t bytes = dot == NULL ? path.bytes : (size_t)(dot - path.text);
        FSDP_TRY(builtin_attribute(*out, value_string(path.text, bytes), out));
        path = dot == NULL ? value_string("", 0) : value_string(dot + 1, path.bytes - bytes - 1);
    }
    return FSDP_OK;
}

static fsdp_status filter_map(const builtin_room *room, value v, const arguments *args, value *out)
{
    value items, name = argument(args, 0, "filter"), attribute = {.kind = VALUE_UNDEFINED};
    value_get(args->named, value_literal("attribute"), &attribute);
    value_dict none = {0};
    FSDP_TRY(builtin_items(room, v, &items));
    FSDP_TRY(value_new_list(room->arena, out));
    for (size_t i = 0; i < items.list->n; i++) {
        value item = items.list->items[i];
        if (attribute.kind == VALUE_STRING) {
            FSDP_TRY(attribute_path(item, attribute, &item));
            value otherwise = {.kind = VALUE_UNDEFINED};
            value_get(args->named, value_literal("default"), &otherwise);
            item = item.kind == VALUE_UNDEFINED ? otherwise : item;
        } else {
            FSDP_TRY(want(name, VALUE_STRING, "the argument of map"));
            arguments rest = {.items = args->items + 1, .n = args->n - 1, .named = &none};
            FSDP_TRY(builtin_filter(room, name, item, &rest, &item));
        }
        FSDP_TRY(value_append(room->arena, *out, item));
    }
    return FSDP_OK;
}

/* select, reject, selectattr and rejectattr: items that pass a test, or an attribute of theirs that does. */
static fsdp_status choose(const builtin_room *room, value v, const arguments *args, bool by_attribute, bool keep,
                          value *out)
{
    value items;
    size_t first = by_attribute;
    FSDP_TRY(builtin_items(room, v, &items));
    FSDP_TRY(value_new_list(room->arena, out));
    if (by_attribute && (args->n == 0 || args->items[0].kind != VALUE_STRING))
        return error_set(FSDP_ERR_INPUT, "selectattr and rejectattr want the name of an attribute");
    for (size_t i = 0; i < items.list->n; i++) {
        value subject = items.list->items[i];
        bool passes;
        if (by_attribute)
            FSDP_TRY(attribute_path(subject, args->items[0], &subject));
        passes = value_is_true(subject);
        if (args->n > first) {
            arguments rest = {args->items + first + 1, args->n - first - 1, args->named};
            FSDP_TRY(want(args->items[first], VALUE_STRING, "the name of a test"));
            FSDP_TRY(builtin_test(room, args->items[first], subject, &rest, &passes));
        }
        if (passes == keep)
            FSDP_TRY(value_append(room->arena, *out, items.list->items[i]));
    }
    return FSDP_OK;
}

static fsdp_status filter_select(const builtin_room *room, value v, const arguments *args, value *out)
{
    return choose(room, v, args, false, true, out);
}

static fsdp_status filter_reject(const builtin_room *room, value v, const arguments *args, value *out)
{
    return choose(room, v, args, false, false, out);
}

static fsdp_status filter_selectattr(const builtin_room *room, value v, const arguments *args, value *out)
{
    return choose(room, v, args, true, true, out);
}

static fsdp_status filter_rejectattr(const builtin_room *room, value v, const arguments *args, value *out)
{
    return choose(room, v, args, true, false, out);
}

static fsdp_status filter_safe(const builtin_room *room, value v, const arguments *args, value *out)
{
    (void)room;
    (void)args;
    *out = v;
    return FSDP_OK;
}

static const named_builtin filters[] = {
    {"string", filter_string},
    {"safe", filter_safe},
    {"length", filter_length},
    {"count", filter_length},
    {"default", filter_default},
    {"d", filter_default},
    {"tojson", filter_tojson},
    {"first", filter_first},
    {"last", filter_last},
    {"list", filter_list},
    {"reverse", filter_reverse},
    {"unique", filter_unique},
    {"join", filter_join},
    {"items", filter_items},
    {"dictsort", filter_dictsort},
    {"int", filter_int},
    {"map", filter_map},
    {"select", filter_select},
    {"reject", filter_reject},
    {"selectattr", filter_selectattr},
    {"rejectattr", filter_rejectattr},
    {NULL, NULL},
};

fsdp_status builtin_filter(const builtin_room *room, value name, value subject, const arguments *args, value *out)
{
    static const char *const texts[] = {"trim", "upper", "lower", "capitalize", "title", "replace"};
    builtin call = builtin_find(filters, name);
    if (call != NULL)
        return call(room, subject, args, out);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (value_equal(name, value_literal(texts[i])))
            return filter_text(room, name, subject, args, out);
    return error_set(FSDP_ERR_UNSUPPORTED, "the filter \"%.*s\" is not supported", (int)name.bytes, name.text);
}

/* --- functions --------------------------------------------------------------------------------------------------- */

static fsdp_status call_range(const builtin_room *room, const arguments *args, value *out)
{
    int64_t from = 0, to = 0, step = 1;
    for (size_t i = 0; i < args->n; i++)
        FSDP_TRY(want(args->items[i], VALUE_INTEGER, "an argument of range"));
    if (args->n == 1)
        to = args->items[0].integer;
    if (args->n >= 2) {
        from = args->items[0].integer;
        to = args->items[1].integer;
    }
    if (args->n == 3)
        step = args->items[2].integer;
    if (args->n == 0 || args->n > 3 || step == 0)
        return error_set(FSDP_ERR_INPUT, "range wants one to three integers");
    FSDP_TRY(value_new_list(room->arena, out));
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        if (out->list->n >= 100000)
            return error_set(FSDP_ERR_INPUT, "range of more than 100000 numbers");
        FSDP_TRY(value_append(room->arena, *out, value_integer(i)));
    }
    return FSDP_OK;
}

static fsdp_status call_dict(const builtin_room *room, const arguments *args, bool is_namespace, value *out)
{
    FSDP_TRY(value_new_dict(room->arena, out));
    out->dict->is_namespace = is_namespace;
    for (size_t i = 0; args->n > 0 && args->items[0].kind == VALUE_DICT && i < args->items[0].dict->n; i++)
        FSDP_TRY(value_set(room->arena, out->dict, args->items[0].dict->keys[i], args->items[0].dict->values[i]));
    for (size_t i = 0; i < args->named->n; i++)
        FSDP_TRY(value_set(room->arena, out->dict, args->named->keys[i], args->named->values[i]));
    return FSDP_OK;
}

static fsdp_status call_strftime(const builtin_room *room, const arguments *args, value *out)
{
    char format[256] = {0}, text[512];
    value f = argument(args, 0, "format");
    struct tm parts;
    time_t now = room->now != 0 ? (time_t)room->now : time(NULL);
    FSDP_TRY(want(f, VALUE_STRING, "the format of strftime_now"));
    if (f.bytes >= sizeof format || localtime_r(&now, &parts) == NULL)
        return error_set(FSDP_ERR_INPUT, "the format of strftime_now is too long");
    memcpy(format, f.text, f.bytes);
    size_t n = strftime(text, sizeof text, format, &parts);
    return value_copy_string(room->arena, text, n, out);
}

fsdp_status builtin_function(const builtin_room *room, value name, const arguments *args, bool *known, value *out)
{
    *known = true;
    if (value_equal(name, value_literal("range")))
        return call_range(room, args, out);
    if (value_equal(name, value_literal("namespace")) || value_equal(name, value_literal("dict")))
        return call_dict(room, args, name.bytes > 4, out);
    if (value_equal(name, value_literal("strftime_now")))
        return call_strftime(room, args, out);
    if (value_equal(name, value_literal("raise_exception"))) {
        value message;
        FSDP_TRY(text_of(room, argument(args, 0, "message"), &message));
        return error_set(FSDP_ERR_INPUT, "the chat template refuses: %.*s", (int)message.bytes, message.text);
    }
    *known = false;
    return FSDP_OK;
}
