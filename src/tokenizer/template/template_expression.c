/* Expressions of a template by recursive descent, with Jinja's order of operators. */
#include <string.h>

#include "base/error.h"
#include "tokenizer/template/template_parser_internal.h"

static fsdp_status parse_unary(parser *p, bool filters, node **out);

static fsdp_status binary(parser *p, node_kind kind, const char *operator, node * a, node **out)
{
    FSDP_TRY(parser_new_node(p, kind, out));
    (*out)->a = a;
    strncpy((*out)->operator, operator, sizeof(*out)->operator- 1);
    return FSDP_OK;
}

/* Items up to the closing sign; those of a call may be name=value. */
static fsdp_status parse_items(parser *p, const char *end, bool named, node_list *out)
{
    while (!parser_at_sign(p, end)) {
        node *item, *argument;
        if (named && p->at->kind == WORD_NAME && parser_is_word(p->at + 1, WORD_SIGN, "=")) {
            FSDP_TRY(parser_new_node(p, NODE_ARGUMENT, &argument));
            argument->constant = p->at->constant;
            p->at += 2;
            FSDP_TRY(parser_expression(p, &argument->a));
            item = argument;
        } else {
            FSDP_TRY(parser_expression(p, &item));
        }
        FSDP_TRY(parser_add_node(p, out, item));
        if (!parser_take_sign(p, ","))
            break;
    }
    return parser_want_sign(p, end);
}

static fsdp_status parse_dict(parser *p, node **out)
{
    FSDP_TRY(parser_new_node(p, NODE_DICT, out));
    while (!parser_at_sign(p, "}")) {
        node *key, *item;
        FSDP_TRY(parser_expression(p, &key));
        FSDP_TRY(parser_want_sign(p, ":"));
        FSDP_TRY(parser_expression(p, &item));
        FSDP_TRY(parser_add_node(p, &(*out)->items, key));
        FSDP_TRY(parser_add_node(p, &(*out)->items, item));
        if (!parser_take_sign(p, ","))
            break;
    }
    return parser_want_sign(p, "}");
}

/* (a) is a; (a, b) and () are tuples: lists with an operator. */
static fsdp_status parse_parentheses(parser *p, node **out)
{
    node *first;
    if (!parser_at_sign(p, ")")) {
        FSDP_TRY(parser_expression(p, &first));
        if (parser_take_sign(p, ")")) {
            *out = first;
            return FSDP_OK;
        }
        FSDP_TRY(parser_new_node(p, NODE_LIST, out));
        FSDP_TRY(parser_add_node(p, &(*out)->items, first));
        FSDP_TRY(parser_want_sign(p, ","));
    } else {
        FSDP_TRY(parser_new_node(p, NODE_LIST, out));
    }
    (*out)->operator[0] = ',';
    return parse_items(p, ")", false, &(*out)->items);
}

static bool constant_name(value name, value *constant)
{
    static const char *const names[][2] = {{"true", "True"}, {"false", "False"}, {"none", "None"}};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 2; k++) {
            if (value_equal(name, value_literal(names[i][k]))) {
                *constant = i == 2 ? value_none() : value_bool(i == 0);
                return true;
            }
        }
    }
    return false;
}

static fsdp_status parse_primary(parser *p, node **out)
{
    const word *w = p->at;
    if (w->kind == WORD_NAME) {
        FSDP_TRY(parser_new_node(p, NODE_NAME, out));
        (*out)->constant = w->constant;
        if (constant_name(w->constant, &(*out)->constant))
            (*out)->kind = NODE_CONSTANT;
        p->at++;
        return FSDP_OK;
    }
    if (w->kind == WORD_NUMBER || w->kind == WORD_STRING) {
        FSDP_TRY(parser_new_node(p, NODE_CONSTANT, out));
        (*out)->constant = w->constant;
        p->at++;
        for (; w->kind == WORD_STRING && p->at->kind == WORD_STRING; p->at++) { /* strings side by side are one */
            value a = (*out)->constant, b = p->at->constant;
            char *text = arena_alloc(p->arena, a.bytes + b.bytes + 1);
            if (text == NULL)
                return error_set(FSDP_ERR_MEMORY, "out of memory for a chat template");
            memcpy(text, a.text, a.bytes);
            memcpy(text + a.bytes, b.text, b.bytes);
            (*out)->constant = value_string(text, a.bytes + b.bytes);
        }
        return FSDP_OK;
    }
    if (parser_take_sign(p, "("))
        return parse_parentheses(p, out);
    if (parser_take_sign(p, "[")) {
        FSDP_TRY(parser_new_node(p, NODE_LIST, out));
        return parse_items(p, "]", false, &(*out)->items);
    }
    return parser_take_sign(p, "{") ? parse_dict(p, out) : parser_expected(p, "an expression");
}

/* Behind '[': an index, or a slice with up to three parts. */
static fsdp_status parse_subscript(parser *p, node *object, node **out)
{
    node *parts[3] = {0};
    int n = 0;
    FSDP_TRY(parser_new_node(p, NODE_ITEM, out));
    while (!parser_at_sign(p, "]")) {
        if (parser_take_sign(p, ":")) {
            (*out)->kind = NODE_SLICE;
            if (++n > 2)
                return parser_expected(p, "]");
        } else {
            FSDP_TRY(parser_expression(p, &parts[n]));
            if (!parser_at_sign(p, ":") && !parser_at_sign(p, "]"))
                return parser_expected(p, "]");
        }
    }
    p->at++;
    if ((*out)->kind == NODE_ITEM && parts[0] == NULL)
        return parser_expected(p, "an index");
    (*out)->a = object;
    (*out)->b = parts[0];
    (*out)->c = parts[1];
    (*out)->d = parts[2];
    return FSDP_OK;
}

static fsdp_status parse_postfix(parser *p, node **object)
{
    for (;;) {
        node *outer;
        if (parser_take_sign(p, ".")) {
            FSDP_TRY(binary(p, NODE_ATTRIBUTE, "", *object, &outer));
            if (p->at->kind == WORD_NUMBER && p->at->constant.kind == VALUE_INTEGER) {
                outer->kind = NODE_ITEM; /* a.0 */
                FSDP_TRY(parse_primary(p, &outer->b));
            } else {
                FSDP_TRY(parser_want_name(p, &outer->constant));
            }
        } else if (parser_take_sign(p, "[")) {
            FSDP_TRY(parse_subscript(p, *object, &outer));
        } else if (parser_take_sign(p, "(")) {
            FSDP_TRY(binary(p, NODE_CALL, "", *object, &outer));
            FSDP_TRY(parse_items(p, ")", true, &outer->items));
        } else {
            return FSDP_OK;
        }
        *object = outer;
    }
}

/* The argument of a test may stand without parentheses. */
static bool begins_argument(const parser *p)
{
    static const char *const not [] = {"else", "or", "and", "is", "if", "not", "in"};
    for (size_t i = 0; i < sizeof not / sizeof *not ; i++)
        if (parser_at_name(p, not [i]))
            return false;
    return p->at->kind == WORD_NAME || p->at->kind == WORD_STRING || p->at->kind == WORD_NUMBER ||
           parser_at_sign(p, "[") || parser_at_sign(p, "{");
}

static fsdp_status parse_test(parser *p, node *object, node **out)
{
    FSDP_TRY(binary(p, NODE_TEST, "", object, out));
    (*out)->negated = parser_take_name(p, "not");
    FSDP_TRY(parser_want_name(p, &(*out)->constant));
    if (parser_take_sign(p, "("))
        return parse_items(p, ")", true, &(*out)->items);
    if (!begins_argument(p))
        return FSDP_OK;
    node *argument;
    FSDP_TRY(parse_primary(p, &argument));
    FSDP_TRY(parse_postfix(p, &argument));
    return parser_add_node(p, &(*out)->items, argument);
}

static fsdp_status parse_filters(parser *p, node **object)
{
    for (;;) {
        node *outer;
        if (parser_take_sign(p, "|")) {
            FSDP_TRY(binary(p, NODE_FILTER, "", *object, &outer));
            FSDP_TRY(parser_want_name(p, &outer->constant));
            if (parser_take_sign(p, "("))
                FSDP_TRY(parse_items(p, ")", true, &outer->items));
        } else if (parser_take_name(p, "is")) {
            FSDP_TRY(parse_test(p, *object, &outer));
        } else if (parser_at_sign(p, "(")) {
            FSDP_TRY(parse_postfix(p, object));
            continue;
        } else {
            return FSDP_OK;
        }
        *object = outer;
    }
}

static fsdp_status parse_unary(parser *p, bool filters, node **out)
{
    if (++p->level > PARSER_MAX_LEVELS)
        return parser_expected(p, "an expression that is less deep");
    if (parser_take_sign(p, "-")) {
        FSDP_TRY(parser_new_node(p, NODE_NEGATIVE, out));
        FSDP_TRY(parse_unary(p, false, &(*out)->a));
    } else if (parser_take_sign(p, "+")) {
        FSDP_TRY(parse_unary(p, false, out));
    } else {
        FSDP_TRY(parse_primary(p, out));
    }
    p->level--;
    FSDP_TRY(parse_postfix(p, out));
    return filters ? parse_filters(p, out) : FSDP_OK;
}

/* Operators that bind from the left, from the loosest level to the tightest. */
static const char *const levels[][5] = {{"+", "-"}, {"~"}, {"*", "/", "//", "%"}, {"**"}};
enum { N_OPERATOR_LEVELS = sizeof levels / sizeof levels[0] };

static fsdp_status parse_math(parser *p, size_t level, node **out)
{
    if (level == N_OPERATOR_LEVELS)
        return parse_unary(p, true, out);
    FSDP_TRY(parse_math(p, level + 1, out));
    for (size_t i = 0; levels[level][i] != NULL;) {
        node *outer;
        if (!parser_take_sign(p, levels[level][i])) {
            i++;
            continue;
        }
        FSDP_TRY(binary(p, NODE_MATH, levels[level][i], *out, &outer));
        FSDP_TRY(parse_math(p, level + 1, &outer->b));
        *out = outer;
        i = 0;
    }
    return FSDP_OK;
}

/* a < b < c means a < b and b < c. */
static fsdp_status parse_compare(parser *p, node **out)
{
    static const char *const signs[] = {"==", "!=", "<=", ">=", "<", ">"};
    node *left, *whole = NULL;
    FSDP_TRY(parse_math(p, 0, &left));
    for (;;) {
        node *outer = NULL;
        bool not_in = parser_at_name(p, "not") && parser_is_word(p->at + 1, WORD_NAME, "in");
        for (size_t i = 0; i < sizeof signs / sizeof *signs && outer == NULL; i++)
            if (parser_take_sign(p, signs[i]))
                FSDP_TRY(binary(p, NODE_COMPARE, signs[i], left, &outer));
        if (outer == NULL && (not_in || parser_at_name(p, "in"))) {
            FSDP_TRY(binary(p, NODE_IN, "", left, &outer));
            outer->negated = not_in;
            p->at += not_in ? 2 : 1;
        }
        if (outer == NULL)
            break;
        FSDP_TRY(parse_math(p, 0, &outer->b));
        left = outer->b;
        if (whole == NULL) {
            whole = outer;
        } else {
            node *both;
            FSDP_TRY(binary(p, NODE_AND, "", whole, &both));
            both->b = outer;
            whole = both;
        }
    }
    *out = whole == NULL ? left : whole;
    return FSDP_OK;
}

static fsdp_status parse_not(parser *p, node **out)
{
    if (!parser_take_name(p, "not"))
        return parse_compare(p, out);
    if (++p->level > PARSER_MAX_LEVELS)
        return parser_expected(p, "an expression that is less deep");
    FSDP_TRY(parser_new_node(p, NODE_NOT, out));
    FSDP_TRY(parse_not(p, &(*out)->a));
    p->level--;
    return FSDP_OK;
}

fsdp_status parser_logic(parser *p, node_kind kind, node **out)
{
    bool is_or = kind == NODE_OR;
    FSDP_TRY(is_or ? parser_logic(p, NODE_AND, out) : parse_not(p, out));
    while (parser_take_name(p, is_or ? "or" : "and")) {
        node *outer;
        FSDP_TRY(binary(p, kind, "", *out, &outer));
        FSDP_TRY(is_or ? parser_logic(p, NODE_AND, &outer->b) : parse_not(p, &outer->b));
        *out = outer;
    }
    return FSDP_OK;
}

fsdp_status parser_expression(parser *p, node **out)
{
    if (++p->level > PARSER_MAX_LEVELS)
        return parser_expected(p, "an expression that is less deep");
    FSDP_TRY(parser_logic(p, NODE_OR, out));
    while (parser_take_name(p, "if")) {
        node *outer;
        FSDP_TRY(parser_new_node(p, NODE_CHOICE, &outer));
        outer->b = *out;
        FSDP_TRY(parser_logic(p, NODE_OR, &outer->a));
        if (parser_take_name(p, "else"))
            FSDP_TRY(parser_expression(p, &outer->c));
        *out = outer;
    }
    p->level--;
    return FSDP_OK;
}
