/* A chat template as a tree. The language is the part of Jinja that published templates use, with the settings of
 * transformers: trim_blocks, lstrip_blocks, break and continue, {% generation %}. Anything else is refused by name. */
#ifndef TOKENIZER_TEMPLATE_TEMPLATE_PARSER_H
#define TOKENIZER_TEMPLATE_TEMPLATE_PARSER_H

#include "tokenizer/template/template_value.h"

typedef enum node_kind {
    /* expressions */
    NODE_CONSTANT,
    NODE_NAME,
    NODE_LIST,      /* items; operator ',': a tuple */
    NODE_DICT,      /* items: key, value, key, value, ... */
    NODE_ATTRIBUTE, /* a.name */
    NODE_ITEM,      /* a[b] */
    NODE_SLICE,     /* a[b:c:d] */
    NODE_CALL,      /* a(items) */
    NODE_FILTER,    /* a | name(items) */
    NODE_TEST,      /* a is name(items), negated or not */
    NODE_NOT,
    NODE_NEGATIVE,
    NODE_AND,
    NODE_OR,
    NODE_IN,       /* negated or not */
    NODE_COMPARE,  /* a operator b */
    NODE_MATH,     /* a operator b */
    NODE_CHOICE,   /* b if a else c */
    NODE_ARGUMENT, /* name=a, among the items of a call */
    /* statements */
    NODE_TEXT,
    NODE_PRINT,
    NODE_IF,         /* a: body, else other */
    NODE_FOR,        /* names in a [if b]: body, else other */
    NODE_SET,        /* names = a, or name.attribute = a */
    NODE_SET_BLOCK,  /* name = what body prints */
    NODE_MACRO,      /* name(items as NODE_ARGUMENT): body */
    NODE_GENERATION, /* body */
    NODE_BREAK,
    NODE_CONTINUE,
} node_kind;

typedef struct node node;

typedef struct node_list {
    node **items;
    size_t n, capacity;
} node_list;

struct node {
    node_kind kind;
    int line;
    value constant; /* NODE_CONSTANT, NODE_TEXT; a name's text elsewhere */
    char operator[4];
    bool negated;
    node *a, *b, *c, *d;
    node_list items, body, other;
};

/* Parses `text`, which is copied; everything lies in the arena. Errors name the line. */
fsdp_status template_parse(arena *a, const char *text, size_t bytes, node_list *out);

#endif
