/* Recursive descent, with Jinja's order of operators. */
#include "tokenizer/template/template_parser.h"

#include <string.h>

#include "base/error.h"
#include "tokenizer/template/template_lexer.h"

enum { MOST_LEVELS = 200 };

typedef struct parser {
    arena *arena;
    const word *at;
    int level;
} parser;

static fsdp_status parse_expression(parser *p, node **out);
static fsdp_status parse_unary(parser *p, bool filters, node **out);
static fsdp_status parse_body(parser *p, const char *const *ends, node_list *out);

static fsdp_status expected(const parser *p, const char *what)
{
    value v = p->at->constant;
    bool text = v.kind == VALUE_STRING;
    return error_set(FSDP_ERR_INPUT, "line %d: %s is expected%s%.*s%s", p->at->line, what, text ? " before \"" : "",
                     text ? (int)(v.bytes > 40 ? 40 : v.bytes) : 0, text ? v.text : "", text ? "\"" : "");
}

static fsdp_status new_node(parser *p, node_kind kind, node **out)
{
    *out = arena_alloc(p->arena, sizeof **out);
    if (*out == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a chat template");
    (*out)->kind = kind;
    (*out)->line = p->at->line;
    return FSDP_OK;
}

static fsdp_status add_node(parser *p, node_list *list, node *item)
{
    if (list->n == list->capacity) {
        size_t capacity = list->capacity * 2 + 4;
        node **larger = arena_alloc(p->arena, capacity * sizeof *larger);
        if (larger == NULL)
            return error_set(FSDP_ERR_MEMORY, "out of memory for a chat template");
        if (list->n > 0)
            memcpy(larger, list->items, list->n * sizeof *larger);
        list->items = larger;
        list->capacity = capacity;
    }
    list->items[list->n++] = item;
    return FSDP_OK;
}

static bool is_word(const word *w, word_kind kind, const char *text)
{
    return w->kind == kind && w->constant.bytes == strlen(text) &&
           memcmp(w->constant.text, text, w->constant.bytes) == 0;
}

static bool at_sign(const parser *p, const char *text)
{
    return is_word(p->at, WORD_SIGN, text);
}

static bool at_name(const parser *p, const char *text)
{
    return is_word(p->at, WORD_NAME, text);
}

static bool take_sign(parser *p, const char *text)
{
    if (!at_sign(p, text))
        return false;
    p->at++;
    return true;
}

static bool take_name(parser *p, const char *text)
{
    if (!at_name(p, text))
        return false;
    p->at++;
    return true;
}

static fsdp_status want_sign(parser *p, const char *text)
{
    return take_sign(p, text) ? FSDP_OK : expected(p, text);
}

static fsdp_status want_name(parser *p, value *name)
{
    if (p->at->kind != WORD_NAME)
        return expected(p, "a name");
    *name = (p->at++)->constant;
    return FSDP_OK;
}

/* --- expressions ------------------------------------------------------------------------------------------------- */

static fsdp_status binary(parser *p, node_kind kind, const char *operator, node * a, node **out)
{
    FSDP_TRY(new_node(p, kind, out));
    (*out)->a = a;
    strncpy((*out)->operator, operator, sizeof(*out)->operator- 1);
    return FSDP_OK;
}

/* Items up to the closing sign; those of a call may be name=value. */
static fsdp_status parse_items(parser *p, const char *end, bool named, node_list *out)
{
    while (!at_sign(p, end)) {
        node *item, *argument;
        if (named && p->at->kind == WORD_NAME && is_word(p->at + 1, WORD_SIGN, "=")) {
            FSDP_TRY(new_node(p, NODE_ARGUMENT, &argument));
            argument->constant = p->at->constant;
            p->at += 2;
            FSDP_TRY(parse_expression(p, &argument->a));
            item = argument;
        } else {
            FSDP_TRY(parse_expression(p, &item));
        }
        FSDP_TRY(add_node(p, out, item));
        if (!take_sign(p, ","))
            break;
    }
    return want_sign(p, end);
}

static fsdp_status parse_dict(parser *p, node **out)
{
    FSDP_TRY(new_node(p, NODE_DICT, out));
    while (!at_sign(p, "}")) {
        node *key, *item;
        FSDP_TRY(parse_expression(p, &key));
        FSDP_TRY(want_sign(p, ":"));
        FSDP_TRY(parse_expression(p, &item));
        FSDP_TRY(add_node(p, &(*out)->items, key));
        FSDP_TRY(add_node(p, &(*out)->items, item));
        if (!take_sign(p, ","))
            break;
    }
    return want_sign(p, "}");
}

/* (a) is a; (a, b) and () are tuples, which are lists to a template. */
static fsdp_status parse_parentheses(parser *p, node **out)
{
    node *first;
    if (!at_sign(p, ")")) {
        FSDP_TRY(parse_expression(p, &first));
        if (take_sign(p, ")")) {
            *out = first;
            return FSDP_OK;
        }
        FSDP_TRY(new_node(p, NODE_LIST, out));
        FSDP_TRY(add_node(p, &(*out)->items, first));
        FSDP_TRY(want_sign(p, ","));
    } else {
        FSDP_TRY(new_node(p, NODE_LIST, out));
    }
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
        FSDP_TRY(new_node(p, NODE_NAME, out));
        (*out)->constant = w->constant;
        if (constant_name(w->constant, &(*out)->constant))
            (*out)->kind = NODE_CONSTANT;
        p->at++;
        return FSDP_OK;
    }
    if (w->kind == WORD_NUMBER || w->kind == WORD_STRING) {
        FSDP_TRY(new_node(p, NODE_CONSTANT, out));
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
    if (take_sign(p, "("))
        return parse_parentheses(p, out);
    if (take_sign(p, "[")) {
        FSDP_TRY(new_node(p, NODE_LIST, out));
        return parse_items(p, "]", false, &(*out)->items);
    }
    return take_sign(p, "{") ? parse_dict(p, out) : expected(p, "an expression");
}

/* Behind '[': an index, or a slice with up to three parts. */
static fsdp_status parse_subscript(parser *p, node *object, node **out)
{
    node *parts[3] = {0};
    int n = 0;
    FSDP_TRY(new_node(p, NODE_ITEM, out));
    while (!at_sign(p, "]")) {
        if (take_sign(p, ":")) {
            (*out)->kind = NODE_SLICE;
            if (++n > 2)
                return expected(p, "]");
        } else {
            FSDP_TRY(parse_expression(p, &parts[n]));
            if (!at_sign(p, ":") && !at_sign(p, "]"))
                return expected(p, "]");
        }
    }
    p->at++;
    if ((*out)->kind == NODE_ITEM && parts[0] == NULL)
        return expected(p, "an index");
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
        if (take_sign(p, ".")) {
            FSDP_TRY(binary(p, NODE_ATTRIBUTE, "", *object, &outer));
            if (p->at->kind == WORD_NUMBER && p->at->constant.kind == VALUE_INTEGER) {
                outer->kind = NODE_ITEM; /* a.0 */
                FSDP_TRY(parse_primary(p, &outer->b));
            } else {
                FSDP_TRY(want_name(p, &outer->constant));
            }
        } else if (take_sign(p, "[")) {
            FSDP_TRY(parse_subscript(p, *object, &outer));
        } else if (take_sign(p, "(")) {
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
        if (at_name(p, not [i]))
            return false;
    return p->at->kind == WORD_NAME || p->at->kind == WORD_STRING || p->at->kind == WORD_NUMBER || at_sign(p, "[") ||
           at_sign(p, "{");
}

static fsdp_status parse_test(parser *p, node *object, node **out)
{
    FSDP_TRY(binary(p, NODE_TEST, "", object, out));
    (*out)->negated = take_name(p, "not");
    FSDP_TRY(want_name(p, &(*out)->constant));
    if (take_sign(p, "("))
        return parse_items(p, ")", true, &(*out)->items);
    if (!begins_argument(p))
        return FSDP_OK;
    node *argument;
    FSDP_TRY(parse_primary(p, &argument));
    FSDP_TRY(parse_postfix(p, &argument));
    return add_node(p, &(*out)->items, argument);
}

static fsdp_status parse_filters(parser *p, node **object)
{
    for (;;) {
        node *outer;
        if (take_sign(p, "|")) {
            FSDP_TRY(binary(p, NODE_FILTER, "", *object, &outer));
            FSDP_TRY(want_name(p, &outer->constant));
            if (take_sign(p, "("))
                FSDP_TRY(parse_items(p, ")", true, &outer->items));
        } else if (take_name(p, "is")) {
            FSDP_TRY(parse_test(p, *object, &outer));
        } else if (at_sign(p, "(")) {
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
    if (++p->level > MOST_LEVELS)
        return expected(p, "an expression that is less deep");
    if (take_sign(p, "-")) {
        FSDP_TRY(new_node(p, NODE_NEGATIVE, out));
        FSDP_TRY(parse_unary(p, false, &(*out)->a));
    } else if (take_sign(p, "+")) {
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
        if (!take_sign(p, levels[level][i])) {
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
        bool not_in = at_name(p, "not") && is_word(p->at + 1, WORD_NAME, "in");
        for (size_t i = 0; i < sizeof signs / sizeof *signs && outer == NULL; i++)
            if (take_sign(p, signs[i]))
                FSDP_TRY(binary(p, NODE_COMPARE, signs[i], left, &outer));
        if (outer == NULL && (not_in || at_name(p, "in"))) {
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
    if (!take_name(p, "not"))
        return parse_compare(p, out);
    if (++p->level > MOST_LEVELS)
        return expected(p, "an expression that is less deep");
    FSDP_TRY(new_node(p, NODE_NOT, out));
    FSDP_TRY(parse_not(p, &(*out)->a));
    p->level--;
    return FSDP_OK;
}

static fsdp_status parse_logic(parser *p, node_kind kind, node **out)
{
    bool is_or = kind == NODE_OR;
    FSDP_TRY(is_or ? parse_logic(p, NODE_AND, out) : parse_not(p, out));
    while (take_name(p, is_or ? "or" : "and")) {
        node *outer;
        FSDP_TRY(binary(p, kind, "", *out, &outer));
        FSDP_TRY(is_or ? parse_logic(p, NODE_AND, &outer->b) : parse_not(p, &outer->b));
        *out = outer;
    }
    return FSDP_OK;
}

static fsdp_status parse_expression(parser *p, node **out)
{
    if (++p->level > MOST_LEVELS)
        return expected(p, "an expression that is less deep");
    FSDP_TRY(parse_logic(p, NODE_OR, out));
    while (take_name(p, "if")) {
        node *outer;
        FSDP_TRY(new_node(p, NODE_CHOICE, &outer));
        outer->b = *out;
        FSDP_TRY(parse_logic(p, NODE_OR, &outer->a));
        if (take_name(p, "else"))
            FSDP_TRY(parse_expression(p, &outer->c));
        *out = outer;
    }
    p->level--;
    return FSDP_OK;
}

/* --- statements -------------------------------------------------------------------------------------------------- */

static fsdp_status want_block_end(parser *p)
{
    if (p->at->kind != WORD_BLOCK_END)
        return expected(p, "%}");
    p->at++;
    return FSDP_OK;
}

/* `a` or `a, b`: names as NODE_NAME. */
static fsdp_status parse_targets(parser *p, node_list *out)
{
    bool bracket = take_sign(p, "(");
    do {
        node *name;
        FSDP_TRY(new_node(p, NODE_NAME, &name));
        FSDP_TRY(want_name(p, &name->constant));
        FSDP_TRY(add_node(p, out, name));
    } while (take_sign(p, ","));
    return bracket ? want_sign(p, ")") : FSDP_OK;
}

static const char *const if_ends[] = {"elif", "else", "endif", NULL}, *const endif_only[] = {"endif", NULL},
                         *const for_ends[] = {"else", "endfor", NULL}, *const endfor_only[] = {"endfor", NULL},
                         *const set_ends[] = {"endset", NULL}, *const macro_ends[] = {"endmacro", NULL},
                         *const generation_ends[] = {"endgeneration", NULL};

static fsdp_status parse_if(parser *p, node **out)
{
    if (++p->level > MOST_LEVELS)
        return expected(p, "fewer elif");
    FSDP_TRY(new_node(p, NODE_IF, out));
    FSDP_TRY(parse_expression(p, &(*out)->a));
    FSDP_TRY(want_block_end(p));
    FSDP_TRY(parse_body(p, if_ends, &(*out)->body));
    if (take_name(p, "elif")) {
        node *next;
        FSDP_TRY(parse_if(p, &next));
        p->level--;
        return add_node(p, &(*out)->other, next);
    }
    if (take_name(p, "else")) {
        FSDP_TRY(want_block_end(p));
        FSDP_TRY(parse_body(p, endif_only, &(*out)->other));
    }
    p->at++;
    p->level--;
    return want_block_end(p);
}

static fsdp_status parse_for(parser *p, node **out)
{
    FSDP_TRY(new_node(p, NODE_FOR, out));
    FSDP_TRY(parse_targets(p, &(*out)->items));
    if (!take_name(p, "in"))
        return expected(p, "in");
    FSDP_TRY(parse_logic(p, NODE_OR, &(*out)->a));
    if (take_name(p, "if"))
        FSDP_TRY(parse_expression(p, &(*out)->b));
    if (at_name(p, "recursive"))
        return error_set(FSDP_ERR_UNSUPPORTED, "line %d: recursive loops are not supported", p->at->line);
    FSDP_TRY(want_block_end(p));
    FSDP_TRY(parse_body(p, for_ends, &(*out)->body));
    if (take_name(p, "else")) {
        FSDP_TRY(want_block_end(p));
        FSDP_TRY(parse_body(p, endfor_only, &(*out)->other));
    }
    p->at++;
    return want_block_end(p);
}

static fsdp_status parse_set(parser *p, node **out)
{
    FSDP_TRY(new_node(p, NODE_SET, out));
    if (p->at->kind == WORD_NAME && is_word(p->at + 1, WORD_SIGN, ".")) {
        node *name;
        FSDP_TRY(new_node(p, NODE_NAME, &name));
        name->constant = p->at->constant;
        p->at += 2;
        FSDP_TRY(add_node(p, &(*out)->items, name));
        FSDP_TRY(want_name(p, &(*out)->constant));
    } else {
        FSDP_TRY(parse_targets(p, &(*out)->items));
    }
    if (p->at->kind == WORD_BLOCK_END) {
        (*out)->kind = NODE_SET_BLOCK;
        p->at++;
        FSDP_TRY(parse_body(p, set_ends, &(*out)->body));
        p->at++;
        return want_block_end(p);
    }
    FSDP_TRY(want_sign(p, "="));
    FSDP_TRY(parse_expression(p, &(*out)->a));
    if (at_sign(p, ",")) { /* a, b without parentheses */
        node *list;
        FSDP_TRY(new_node(p, NODE_LIST, &list));
        FSDP_TRY(add_node(p, &list->items, (*out)->a));
        while (take_sign(p, ",")) {
            node *item;
            FSDP_TRY(parse_expression(p, &item));
            FSDP_TRY(add_node(p, &list->items, item));
        }
        (*out)->a = list;
    }
    return want_block_end(p);
}

static fsdp_status parse_macro(parser *p, node **out)
{
    FSDP_TRY(new_node(p, NODE_MACRO, out));
    FSDP_TRY(want_name(p, &(*out)->constant));
    FSDP_TRY(want_sign(p, "("));
    while (!at_sign(p, ")")) {
        node *parameter;
        FSDP_TRY(new_node(p, NODE_ARGUMENT, &parameter));
        FSDP_TRY(want_name(p, &parameter->constant));
        if (take_sign(p, "="))
            FSDP_TRY(parse_expression(p, &parameter->a));
        FSDP_TRY(add_node(p, &(*out)->items, parameter));
        if (!take_sign(p, ","))
            break;
    }
    FSDP_TRY(want_sign(p, ")"));
    FSDP_TRY(want_block_end(p));
    FSDP_TRY(parse_body(p, macro_ends, &(*out)->body));
    p->at++;
    return want_block_end(p);
}

static fsdp_status parse_plain(parser *p, node_kind kind, node **out)
{
    FSDP_TRY(new_node(p, kind, out));
    FSDP_TRY(want_block_end(p));
    if (kind != NODE_GENERATION)
        return FSDP_OK;
    FSDP_TRY(parse_body(p, generation_ends, &(*out)->body));
    p->at++;
    return want_block_end(p);
}

static fsdp_status parse_block(parser *p, node **out)
{
    if (take_name(p, "if"))
        return parse_if(p, out);
    if (take_name(p, "for"))
        return parse_for(p, out);
    if (take_name(p, "set"))
        return parse_set(p, out);
    if (take_name(p, "macro"))
        return parse_macro(p, out);
    if (take_name(p, "break"))
        return parse_plain(p, NODE_BREAK, out);
    if (take_name(p, "continue"))
        return parse_plain(p, NODE_CONTINUE, out);
    if (take_name(p, "generation"))
        return parse_plain(p, NODE_GENERATION, out);
    value v = p->at->constant;
    if (p->at->kind != WORD_NAME)
        return expected(p, "a statement");
    return error_set(FSDP_ERR_UNSUPPORTED, "line %d: the statement \"%.*s\" is not supported here", p->at->line,
                     (int)v.bytes, v.text);
}

/* Statements up to a block that begins with one of `ends`, whose name comes next then; to the end where NULL. */
static fsdp_status parse_body(parser *p, const char *const *ends, node_list *out)
{
    if (++p->level > MOST_LEVELS)
        return expected(p, "blocks that are less deep");
    for (;;) {
        node *statement;
        const word *w = p->at;
        if (w->kind == WORD_END) {
            p->level--;
            return ends == NULL ? FSDP_OK : expected(p, ends[0]);
        }
        p->at++;
        if (w->kind == WORD_TEXT) {
            FSDP_TRY(new_node(p, NODE_TEXT, &statement));
            statement->constant = w->constant;
        } else if (w->kind == WORD_PRINT_BEGIN) {
            FSDP_TRY(new_node(p, NODE_PRINT, &statement));
            FSDP_TRY(parse_expression(p, &statement->a));
            if (p->at->kind != WORD_PRINT_END)
                return expected(p, "}}");
            p->at++;
        } else {
            for (size_t i = 0; ends != NULL && ends[i] != NULL; i++) {
                if (at_name(p, ends[i])) {
                    p->level--;
                    return FSDP_OK;
                }
            }
            FSDP_TRY(parse_block(p, &statement));
        }
        FSDP_TRY(add_node(p, out, statement));
    }
}

fsdp_status template_parse(arena *a, const char *text, size_t bytes, node_list *out)
{
    word_list_of_template words;
    FSDP_TRY(template_lex(a, text, bytes, &words));
    parser p = {.arena = a, .at = words.words};
    *out = (node_list){0};
    return parse_body(&p, NULL, out);
}
