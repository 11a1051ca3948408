/* Hand-written matchers for the expressions of well-known tokenizers. */
#ifndef TOKENIZER_PATTERN_KNOWN_H
#define TOKENIZER_PATTERN_KNOWN_H

#include <stdbool.h>
#include <stddef.h>

#include "tokenizer/text/unicode.h"

typedef struct known_pattern {
    const char *expression;
    /* Expressions that match everywhere: the end of the match at `start`. */
    size_t (*cover_end)(const unicode *u, const char *text, size_t bytes, size_t start);
    /* The others: the first match at or after `from`. */
    bool (*find)(const char *text, size_t bytes, size_t from, size_t *start, size_t *end);
} known_pattern;

/* NULL when the expression is not one of them. */
const known_pattern *known_pattern_find(const char *expression, size_t bytes);

/* The one that ByteLevel uses by itself. */
#define PATTERN_GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* For tests, which compare every one with Oniguruma. */
const known_pattern *known_pattern_at(size_t index); /* NULL past the last */

#endif
