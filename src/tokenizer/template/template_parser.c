/* Statements of a template, and what both halves of the parser are made with. */
#include <string.h>

#include "base/error.h"
#include "tokenizer/template/template_parser_internal.h"

static fsdp_status parse_body(parser *p, const char *const *ends, node_list *out);

fsdp_status parser_expected(const parser *p, const char *what)
{
    value v = p->at->constant;
    bool text = v.kind == VALUE_STRING;
    return error_set(FSDP_ERR_INPUT, "line %d: %s is expected%s%.*s%s", p->at->line, what, text ? " before \"" : "",
                     text ? (int)(v.bytes > 40 ? 40 : v.bytes) : 0, text ? v.text : "", text ? "\"" : "");
}

fsdp_status parser_new_node(parser *p, node_kind kind, node **out)
{
    *out = arena_alloc(p->arena, sizeof **out);
    if (*out == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a chat template");
    (*out)->kind = kind;
    (*out)->line = p->at->line;
    return FSDP_OK;
}

fsdp_status parser_add_node(parser *p, node_list *list, node *item)
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

bool parser_is_word(const word *w, word_kind kind, const char *text)
{
    return w->kind == kind && w->constant.bytes == strlen(text) &&
           memcmp(w->constant.text, text, w->constant.bytes) == 0;
}

bool parser_at_sign(const parser *p, const char *text)
{
    return parser_is_word(p->at, WORD_SIGN, text);
}

bool parser_at_name(const parser *p, const char *text)
{
    return parser_is_word(p->at, WORD_NAME, text);
}

bool parser_take_sign(parser *p, const char *text)
{
    if (!parser_at_sign(p, text))
        return false;
    p->at++;
    return true;
}

bool parser_take_name(parser *p, const char *text)
{
    if (!parser_at_name(p, text))
        return false;
    p->at++;
    return true;
}

fsdp_status parser_want_sign(parser *p, const char *text)
{
    return parser_take_sign(p, text) ? FSDP_OK : parser_expected(p, text);
}

fsdp_status parser_want_name(parser *p, value *name)
{
    if (p->at->kind != WORD_NAME)
        return parser_expected(p, "a name");
    *name = (p->at++)->constant;
    return FSDP_OK;
}

/* --- statements -------------------------------------------------------------------------------------------------- */

static fsdp_status want_block_end(parser *p)
{
    if (p->at->kind != WORD_BLOCK_END)
        return parser_expected(p, "%}");
    p->at++;
    return FSDP_OK;
}

/* `a` or `a, b`: names as NODE_NAME. */
static fsdp_status parse_targets(parser *p, node_list *out)
{
    bool bracket = parser_take_sign(p, "(");
    do {
        node *name;
        FSDP_TRY(parser_new_node(p, NODE_NAME, &name));
        FSDP_TRY(parser_want_name(p, &name->constant));
        FSDP_TRY(parser_add_node(p, out, name));
    } while (parser_take_sign(p, ","));
    return bracket ? parser_want_sign(p, ")") : FSDP_OK;
}

static const char *const if_ends[] = {"elif", "else", "endif", NULL}, *const endif_only[] = {"endif", NULL},
                         *const for_ends[] = {"else", "endfor", NULL}, *const endfor_only[] = {"endfor", NULL},
                         *const set_ends[] = {"endset", NULL}, *const macro_ends[] = {"endmacro", NULL},
                         *const generation_ends[] = {"endgeneration", NULL};

static fsdp_status parse_if(parser *p, node **out)
{
    if (++p->level > PARSER_MAX_LEVELS)
        return parser_expected(p, "fewer elif");
    FSDP_TRY(parser_new_node(p, NODE_IF, out));
    FSDP_TRY(parser_expression(p, &(*out)->a));
    FSDP_TRY(want_block_end(p));
    FSDP_TRY(parse_body(p, if_ends, &(*out)->body));
    if (parser_take_name(p, "elif")) {
        node *next;
        FSDP_TRY(parse_if(p, &next));
        p->level--;
        return parser_add_node(p, &(*out)->other, next);
    }
    if (parser_take_name(p, "else")) {
        FSDP_TRY(want_block_end(p));
        FSDP_TRY(parse_body(p, endif_only, &(*out)->other));
    }
    p->at++;
    p->level--;
    return want_block_end(p);
}

static fsdp_status parse_for(parser *p, node **out)
{
    FSDP_TRY(parser_new_node(p, NODE_FOR, out));
    FSDP_TRY(parse_targets(p, &(*out)->items));
    if (!parser_take_name(p, "in"))
        return parser_expected(p, "in");
    FSDP_TRY(parser_logic(p, NODE_OR, &(*out)->a));
    if (parser_take_name(p, "if"))
        FSDP_TRY(parser_expression(p, &(*out)->b));
    if (parser_at_name(p, "recursive"))
        return error_set(FSDP_ERR_UNSUPPORTED, "line %d: recursive loops are not supported", p->at->line);
    FSDP_TRY(want_block_end(p));
    FSDP_TRY(parse_body(p, for_ends, &(*out)->body));
    if (parser_take_name(p, "else")) {
        FSDP_TRY(want_block_end(p));
        FSDP_TRY(parse_body(p, endfor_only, &(*out)->other));
    }
    p->at++;
    return want_block_end(p);
}

static fsdp_status parse_set(parser *p, node **out)
{
    FSDP_TRY(parser_new_node(p, NODE_SET, out));
    if (p->at->kind == WORD_NAME && parser_is_word(p->at + 1, WORD_SIGN, ".")) {
        node *name;
        FSDP_TRY(parser_new_node(p, NODE_NAME, &name));
        name->constant = p->at->constant;
        p->at += 2;
        FSDP_TRY(parser_add_node(p, &(*out)->items, name));
        FSDP_TRY(parser_want_name(p, &(*out)->constant));
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
    FSDP_TRY(parser_want_sign(p, "="));
    FSDP_TRY(parser_expression(p, &(*out)->a));
    if (parser_at_sign(p, ",")) { /* a, b without parentheses */
        node *list;
        FSDP_TRY(parser_new_node(p, NODE_LIST, &list));
        list->operator[0] = ',';
        FSDP_TRY(parser_add_node(p, &list->items, (*out)->a));
        while (parser_take_sign(p, ",")) {
            node *item;
            FSDP_TRY(parser_expression(p, &item));
            FSDP_TRY(parser_add_node(p, &list->items, item));
        }
        (*out)->a = list;
    }
    return want_block_end(p);
}

static fsdp_status parse_macro(parser *p, node **out)
{
    FSDP_TRY(parser_new_node(p, NODE_MACRO, out));
    FSDP_TRY(parser_want_name(p, &(*out)->constant));
    FSDP_TRY(parser_want_sign(p, "("));
    while (!parser_at_sign(p, ")")) {
        node *parameter;
        FSDP_TRY(parser_new_node(p, NODE_ARGUMENT, &parameter));
        FSDP_TRY(parser_want_name(p, &parameter->constant));
        if (parser_take_sign(p, "="))
            FSDP_TRY(parser_expression(p, &parameter->a));
        FSDP_TRY(parser_add_node(p, &(*out)->items, parameter));
        if (!parser_take_sign(p, ","))
            break;
    }
    FSDP_TRY(parser_want_sign(p, ")"));
    FSDP_TRY(want_block_end(p));
    FSDP_TRY(parse_body(p, macro_ends, &(*out)->body));
    p->at++;
    return want_block_end(p);
}

static fsdp_status parse_plain(parser *p, node_kind kind, node **out)
{
    FSDP_TRY(parser_new_node(p, kind, out));
    FSDP_TRY(want_block_end(p));
    if (kind != NODE_GENERATION)
        return FSDP_OK;
    FSDP_TRY(parse_body(p, generation_ends, &(*out)->body));
    p->at++;
    return want_block_end(p);
}

static fsdp_status parse_block(parser *p, node **out)
{
    if (parser_take_name(p, "if"))
        return parse_if(p, out);
    if (parser_take_name(p, "for"))
        return parse_for(p, out);
    if (parser_take_name(p, "set"))
        return parse_set(p, out);
    if (parser_take_name(p, "macro"))
        return parse_macro(p, out);
    if (parser_take_name(p, "break"))
        return parse_plain(p, NODE_BREAK, out);
    if (parser_take_name(p, "continue"))
        return parse_plain(p, NODE_CONTINUE, out);
    if (parser_take_name(p, "generation"))
        return parse_plain(p, NODE_GENERATION, out);
    value v = p->at->constant;
    if (p->at->kind != WORD_NAME)
        return parser_expected(p, "a statement");
    return error_set(FSDP_ERR_UNSUPPORTED, "line %d: the statement \"%.*s\" is not supported here", p->at->line,
                     (int)v.bytes, v.text);
}

/* Statements up to a block that begins with one of `ends`, whose name comes next then; to the end where NULL. */
static fsdp_status parse_body(parser *p, const char *const *ends, node_list *out)
{
    if (++p->level > PARSER_MAX_LEVELS)
        return parser_expected(p, "blocks that are less deep");
    for (;;) {
        node *statement;
        const word *w = p->at;
        if (w->kind == WORD_END) {
            p->level--;
            return ends == NULL ? FSDP_OK : parser_expected(p, ends[0]);
        }
        p->at++;
        if (w->kind == WORD_TEXT) {
            FSDP_TRY(parser_new_node(p, NODE_TEXT, &statement));
            statement->constant = w->constant;
        } else if (w->kind == WORD_PRINT_BEGIN) {
            FSDP_TRY(parser_new_node(p, NODE_PRINT, &statement));
            FSDP_TRY(parser_expression(p, &statement->a));
            if (p->at->kind != WORD_PRINT_END)
                return parser_expected(p, "}}");
            p->at++;
        } else {
            for (size_t i = 0; ends != NULL && ends[i] != NULL; i++) {
                if (parser_at_name(p, ends[i])) {
                    p->level--;
                    return FSDP_OK;
                }
            }
            FSDP_TRY(parse_block(p, &statement));
        }
        FSDP_TRY(parser_add_node(p, out, statement));
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
