/* What the two halves of the parser share: template_parser.c has statements, template_expression.c expressions. */
#ifndef TOKENIZER_TEMPLATE_TEMPLATE_PARSER_INTERNAL_H
#define TOKENIZER_TEMPLATE_TEMPLATE_PARSER_INTERNAL_H

#include "tokenizer/template/template_lexer.h"
#include "tokenizer/template/template_parser.h"

enum { PARSER_MAX_LEVELS = 200 };

typedef struct parser {
    arena *arena;
    const word *at;
    int level;
} parser;

/* An error that says what belongs here instead of the next word. */
fsdp_status parser_expected(const parser *p, const char *what);

fsdp_status parser_new_node(parser *p, node_kind kind, node **out);
fsdp_status parser_add_node(parser *p, node_list *list, node *item);

/* Whether a word is what comes next; take: and if so it is taken; want: it must be. */
bool parser_is_word(const word *w, word_kind kind, const char *text);
bool parser_at_sign(const parser *p, const char *text);
bool parser_at_name(const parser *p, const char *text);
bool parser_take_sign(parser *p, const char *text);
bool parser_take_name(parser *p, const char *text);
fsdp_status parser_want_sign(parser *p, const char *text);
fsdp_status parser_want_name(parser *p, value *name);

/* An expression; and one without a choice (a if b else c) at its end, from the level of NODE_OR or NODE_AND. */
fsdp_status parser_logic(parser *p, node_kind kind, node **out);
fsdp_status parser_expression(parser *p, node **out);

#endif
