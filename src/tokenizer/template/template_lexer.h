/* The words of a chat template: text outside of tags, and what stands in them. */
#ifndef TOKENIZER_TEMPLATE_TEMPLATE_LEXER_H
#define TOKENIZER_TEMPLATE_TEMPLATE_LEXER_H

#include "tokenizer/template/template_value.h"

typedef enum word_kind {
    WORD_END,
    WORD_TEXT,
    WORD_PRINT_BEGIN, /* {{ */
    WORD_PRINT_END,
    WORD_BLOCK_BEGIN, /* {% */
    WORD_BLOCK_END,
    WORD_NAME,
    WORD_STRING,
    WORD_NUMBER, /* constant holds it */
    WORD_SIGN,   /* text is the operator or bracket */
} word_kind;

typedef struct word {
    word_kind kind;
    int line;
    value constant; /* the text, or the number */
} word;

typedef struct word_list {
    word *words; /* ends with WORD_END */
    size_t n, capacity;
} word_list_of_template;

fsdp_status template_lex(arena *a, const char *text, size_t bytes, word_list_of_template *out);

#endif
