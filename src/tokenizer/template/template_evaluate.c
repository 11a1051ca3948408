/* Expressions of a template: the value of each kind of node. */
#include <math.h>
#include <string.h>

#include "base/error.h"
#include "tokenizer/template/template_eval_internal.h"
#include "tokenizer/text/utf8.h"

static fsdp_status evaluate_list(renderer *r, const node *n, value *out)
{
    FSDP_TRY(value_new_list(r->room.arena, out));
    out->list->is_tuple = n->operator[0] == ',';
    for (size_t i = 0; i < n->items.n; i++) {
        value item;
        FSDP_TRY(renderer_evaluate(r, n->items.items[i], &item));
        FSDP_TRY(value_append(r->room.arena, *out, item));
    }
    return FSDP_OK;
}

static fsdp_status evaluate_dict(renderer *r, const node *n, value *out)
{
    FSDP_TRY(value_new_dict(r->room.arena, out));
    for (size_t i = 0; i + 1 < n->items.n; i += 2) {
        value key, item;
        FSDP_TRY(renderer_evaluate(r, n->items.items[i], &key));
        FSDP_TRY(renderer_evaluate(r, n->items.items[i + 1], &item));
        FSDP_TRY(value_set(r->room.arena, out->dict, key, item));
    }
    return FSDP_OK;
}

/* The index-th item, counted from the end where it is negative; undefined outside. */
static value item_at(value v, int64_t index)
{
    int64_t n = (int64_t)value_length(v);
    index += index < 0 ? n : 0;
    if (index < 0 || index >= n)
        return (value){.kind = VALUE_UNDEFINED};
    if (v.kind == VALUE_LIST)
        return v.list->items[index];
    size_t start = value_point_place(v.text, v.bytes, (size_t)index);
    return value_string(v.text + start, utf8_length((uint8_t)v.text[start]));
}

static fsdp_status evaluate_item(renderer *r, const node *n, value *out)
{
    value object, key;
    FSDP_TRY(renderer_evaluate(r, n->a, &object));
    FSDP_TRY(renderer_evaluate(r, n->b, &key));
    *out = (value){.kind = VALUE_UNDEFINED};
    if ((object.kind == VALUE_LIST || object.kind == VALUE_STRING) && key.kind == VALUE_INTEGER)
        *out = item_at(object, key.integer);
    else if (object.kind == VALUE_DICT)
        value_get(object.dict, key, out);
    else if (object.kind == VALUE_UNDEFINED)
        return error_set(FSDP_ERR_INPUT, "an item of what is undefined");
    return FSDP_OK;
}

/* A bound of a slice, moved into the value as Python does. */
static fsdp_status slice_bound(renderer *r, const node *n, int64_t otherwise, int64_t low, int64_t high, int64_t length,
                               int64_t *out)
{
    value v = {.kind = VALUE_NONE};
    if (n != NULL)
        FSDP_TRY(renderer_evaluate(r, n, &v));
    *out = otherwise;
    if (v.kind == VALUE_NONE)
        return FSDP_OK;
    if (v.kind != VALUE_INTEGER)
        return error_set(FSDP_ERR_INPUT, "a bound of a slice must be an integer, it is %s", value_kind_name(v.kind));
    int64_t bound = v.integer < 0 ? v.integer + length : v.integer;
    *out = bound < low ? low : bound > high ? high : bound;
    return FSDP_OK;
}

static fsdp_status evaluate_slice(renderer *r, const node *n, value *out)
{
    value object, by = value_integer(1);
    int64_t from, to, length;
    text_buffer b = {0};
    FSDP_TRY(renderer_evaluate(r, n->a, &object));
    if (n->d != NULL)
        FSDP_TRY(renderer_evaluate(r, n->d, &by));
    if ((object.kind != VALUE_LIST && object.kind != VALUE_STRING) || by.kind != VALUE_INTEGER || by.integer == 0)
        return error_set(FSDP_ERR_INPUT, "%s cannot be sliced so", value_kind_name(object.kind));
    bool back = by.integer < 0;
    length = (int64_t)value_length(object);
    FSDP_TRY(slice_bound(r, n->b, back ? length - 1 : 0, back ? -1 : 0, back ? length - 1 : length, length, &from));
    FSDP_TRY(slice_bound(r, n->c, back ? -1 : length, back ? -1 : 0, back ? length - 1 : length, length, &to));
    if (object.kind == VALUE_STRING && by.integer == 1) {
        size_t start = value_point_place(object.text, object.bytes, (size_t)from);
        size_t end = from < to ? value_point_place(object.text, object.bytes, (size_t)to) : start;
        *out = value_string(object.text + start, end - start);
        return FSDP_OK;
    }
    FSDP_TRY(value_new_list(r->room.arena, out));
    out->list->is_tuple = object.kind == VALUE_LIST && object.list->is_tuple;
    for (int64_t i = from; back ? i > to : i < to; i += by.integer)
        FSDP_TRY(value_append(r->room.arena, *out, item_at(object, i)));
    if (object.kind != VALUE_STRING)
        return FSDP_OK;
    for (size_t i = 0; i < out->list->n; i++)
        FSDP_TRY(text_append(&b, out->list->items[i].text, out->list->items[i].bytes));
    fsdp_status status = value_copy_string(r->room.arena, b.data, b.bytes, out);
    text_free(&b);
    return status;
}

/* Arguments of a call in the arena; named ones behind. */
static fsdp_status evaluate_arguments(renderer *r, const node *n, arguments *out)
{
    value list, named;
    FSDP_TRY(value_new_list(r->room.arena, &list));
    FSDP_TRY(value_new_dict(r->room.arena, &named));
    for (size_t i = 0; i < n->items.n; i++) {
        const node *item = n->items.items[i];
        value v;
        FSDP_TRY(renderer_evaluate(r, item->kind == NODE_ARGUMENT ? item->a : item, &v));
        if (item->kind == NODE_ARGUMENT)
            FSDP_TRY(value_set(r->room.arena, named.dict, item->constant, v));
        else
            FSDP_TRY(value_append(r->room.arena, list, v));
    }
    *out = (arguments){list.list->items, list.list->n, named.dict};
    return FSDP_OK;
}

static fsdp_status call_macro(renderer *r, const node *macro, const arguments *args, value *out)
{
    frame *before = r->frame;
    if (args->n > macro->items.n)
        return error_set(FSDP_ERR_INPUT, "the macro \"%.*s\" takes %zu arguments, not %zu", (int)macro->constant.bytes,
                         macro->constant.text, macro->items.n, args->n);
    FSDP_TRY(renderer_push_frame(r, r->root));
    for (size_t i = 0; i < macro->items.n; i++) {
        const node *parameter = macro->items.items[i];
        value v = {.kind = VALUE_UNDEFINED};
        if (i < args->n)
            v = args->items[i];
        else if (!value_get(args->named, parameter->constant, &v) && parameter->a != NULL)
            FSDP_TRY(renderer_evaluate(r, parameter->a, &v));
        FSDP_TRY(renderer_assign(r, parameter->constant, v));
    }
    fsdp_status status = renderer_capture(r, &macro->body, out);
    r->frame = before;
    return status;
}

static fsdp_status call_method(renderer *r, const node *callee, const arguments *args, value *out)
{
    value object, member;
    FSDP_TRY(renderer_evaluate(r, callee->a, &object));
    if (object.kind == VALUE_UNDEFINED)
        return error_set(FSDP_ERR_INPUT, "\"%.*s\" of what is undefined", (int)callee->constant.bytes,
                         callee->constant.text);
    if (object.kind == VALUE_DICT && value_get(object.dict, callee->constant, &member) && member.kind == VALUE_MACRO &&
        member.macro != NULL)
        return call_macro(r, member.macro, args, out);
    if (object.kind == VALUE_DICT && value_equal(callee->constant, value_literal("cycle")) && args->n > 0 &&
        value_get(object.dict, value_literal("index0"), &member)) {
        *out = args->items[(size_t)member.integer % args->n];
        return FSDP_OK;
    }
    return builtin_method(&r->room, object, callee->constant, args, out);
}

static fsdp_status evaluate_call(renderer *r, const node *n, value *out)
{
    arguments args;
    bool known = false;
    FSDP_TRY(evaluate_arguments(r, n, &args));
    if (n->a->kind == NODE_ATTRIBUTE)
        return call_method(r, n->a, &args, out);
    if (n->a->kind != NODE_NAME)
        return error_set(FSDP_ERR_UNSUPPORTED, "only names and methods can be called");
    value callee = renderer_look_up(r, n->a->constant);
    if (callee.kind == VALUE_MACRO && callee.macro != NULL)
        return call_macro(r, callee.macro, &args, out);
    if (callee.kind == VALUE_MACRO)
        FSDP_TRY(builtin_function(&r->room, n->a->constant, &args, &known, out));
    if (known)
        return FSDP_OK;
    return error_set(FSDP_ERR_UNSUPPORTED, "the function \"%.*s\" is not supported", (int)n->a->constant.bytes,
                     n->a->constant.text);
}

static fsdp_status concatenate(renderer *r, value a, value b, value *out)
{
    text_buffer text = {.limit = RENDERER_MAX_OUTPUT};
    fsdp_status status = value_print(a, &text);
    if (status == FSDP_OK)
        status = value_print(b, &text);
    if (status == FSDP_OK)
        status = value_copy_string(r->room.arena, text.data, text.bytes, out);
    text_free(&text);
    return status;
}

static fsdp_status add_lists(renderer *r, value a, value b, value *out)
{
    FSDP_TRY(value_new_list(r->room.arena, out));
    out->list->is_tuple = a.list->is_tuple && b.list->is_tuple;
    for (size_t i = 0; i < a.list->n; i++)
        FSDP_TRY(value_append(r->room.arena, *out, a.list->items[i]));
    for (size_t i = 0; i < b.list->n; i++)
        FSDP_TRY(value_append(r->room.arena, *out, b.list->items[i]));
    return FSDP_OK;
}

static double real_of(value v)
{
    return v.kind == VALUE_REAL ? v.real : v.kind == VALUE_BOOL ? v.boolean : (double)v.integer;
}

/* Whole numbers stay whole except under '/'. Overflow wraps to an error in no template that is meant. */
static fsdp_status calculate(const char *operator, value a, value b, value *out)
{
    double x = real_of(a), y = real_of(b), z;
    bool whole = a.kind != VALUE_REAL && b.kind != VALUE_REAL && strcmp(operator, "/") != 0;
    if ((operator[0] == '/' || operator[0] == '%') && y == 0)
        return error_set(FSDP_ERR_INPUT, "division by zero");
    switch (operator[0]) {
    case '+':
        z = x + y;
        break;
    case '-':
        z = x - y;
        break;
    case '*':
        z = operator[1] == '*' ? pow(x, y) : x * y;
        break;
    case '%':
        z = x - floor(x / y) * y;
        break;
    default:
        z = operator[1] == '/' ? floor(x / y) : x / y;
        break;
    }
    if (whole && (fabs(z) > 9007199254740992.0 || z != floor(z)))
        whole = false;
    *out = whole ? value_integer((int64_t)z) : (value){.kind = VALUE_REAL, .real = z};
    return FSDP_OK;
}

static fsdp_status evaluate_math(renderer *r, const node *n, value *out)
{
    value a, b;
    FSDP_TRY(renderer_evaluate(r, n->a, &a));
    FSDP_TRY(renderer_evaluate(r, n->b, &b));
    if (n->operator[0] == '~' ||(n->operator[0] == '+' && a.kind == VALUE_STRING && b.kind == VALUE_STRING))
        return concatenate(r, a, b, out);
    if (n->operator[0] == '+' && a.kind == VALUE_LIST && b.kind == VALUE_LIST)
        return add_lists(r, a, b, out);
    if (value_is_number(a) && value_is_number(b))
        return calculate(n->operator, a, b, out);
    if (strcmp(n->operator, "*") == 0 && a.kind == VALUE_STRING && b.kind == VALUE_INTEGER) {
        *out = value_literal("");
        for (int64_t i = 0; i < b.integer; i++) {
            FSDP_TRY(renderer_step(r));
            FSDP_TRY(concatenate(r, *out, a, out));
        }
        return FSDP_OK;
    }
    return error_set(FSDP_ERR_INPUT, "%s %s %s is not possible", value_kind_name(a.kind), n->operator,
                     value_kind_name(b.kind));
}

static fsdp_status evaluate_logic(renderer *r, const node *n, value *out)
{
    value v;
    FSDP_TRY(renderer_evaluate(r, n->a, &v));
    if (n->kind == NODE_NOT) {
        *out = value_bool(!value_is_true(v));
        return FSDP_OK;
    }
    if (n->kind == NODE_CHOICE) {
        const node *chosen = value_is_true(v) ? n->b : n->c;
        *out = (value){.kind = VALUE_UNDEFINED};
        return chosen == NULL ? FSDP_OK : renderer_evaluate(r, chosen, out);
    }
    *out = v;
    return value_is_true(v) == (n->kind == NODE_AND) ? renderer_evaluate(r, n->b, out) : FSDP_OK;
}

static fsdp_status evaluate_relation(renderer *r, const node *n, value *out)
{
    value a, b;
    bool holds;
    FSDP_TRY(renderer_evaluate(r, n->a, &a));
    FSDP_TRY(renderer_evaluate(r, n->b, &b));
    if (n->kind == NODE_IN) {
        FSDP_TRY(builtin_contains(b, a, &holds));
        holds = holds != n->negated;
    } else {
        FSDP_TRY(builtin_compare(n->operator, a, b, &holds));
    }
    *out = value_bool(holds);
    return FSDP_OK;
}

static fsdp_status evaluate_applied(renderer *r, const node *n, value *out)
{
    value subject;
    arguments args;
    bool passes;
    FSDP_TRY(renderer_evaluate(r, n->a, &subject));
    FSDP_TRY(evaluate_arguments(r, n, &args));
    if (n->kind == NODE_FILTER)
        return builtin_filter(&r->room, n->constant, subject, &args, out);
    FSDP_TRY(builtin_test(&r->room, n->constant, subject, &args, &passes));
    *out = value_bool(passes != n->negated);
    return FSDP_OK;
}

static fsdp_status evaluate_kind(renderer *r, const node *n, value *out)
{
    value v;
    switch (n->kind) {
    case NODE_CONSTANT:
        *out = n->constant;
        return FSDP_OK;
    case NODE_NAME:
        *out = renderer_look_up(r, n->constant);
        return FSDP_OK;
    case NODE_LIST:
        return evaluate_list(r, n, out);
    case NODE_DICT:
        return evaluate_dict(r, n, out);
    case NODE_ATTRIBUTE:
        FSDP_TRY(renderer_evaluate(r, n->a, &v));
        return builtin_attribute(v, n->constant, out);
    case NODE_ITEM:
        return evaluate_item(r, n, out);
    case NODE_SLICE:
        return evaluate_slice(r, n, out);
    case NODE_CALL:
        return evaluate_call(r, n, out);
    case NODE_FILTER:
    case NODE_TEST:
        return evaluate_applied(r, n, out);
    case NODE_NOT:
    case NODE_AND:
    case NODE_OR:
    case NODE_CHOICE:
        return evaluate_logic(r, n, out);
    case NODE_IN:
    case NODE_COMPARE:
        return evaluate_relation(r, n, out);
    case NODE_MATH:
        return evaluate_math(r, n, out);
    case NODE_NEGATIVE:
        FSDP_TRY(renderer_evaluate(r, n->a, &v));
        return value_is_number(v) ? calculate("-", value_integer(0), v, out)
                                  : error_set(FSDP_ERR_INPUT, "%s has no negative", value_kind_name(v.kind));
    default:
        return error_set(FSDP_ERR_STATE, "a statement where an expression is expected");
    }
}

fsdp_status renderer_evaluate(renderer *r, const node *n, value *out)
{
    r->level++;
    FSDP_TRY(renderer_step(r));
    FSDP_TRY(evaluate_kind(r, n, out));
    r->level--;
    return FSDP_OK;
}
