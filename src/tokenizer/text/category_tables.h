/* The generated tables behind pattern_classes.c: what \p{...} and \w of a regular expression stand for. */
#ifndef TOKENIZER_TEXT_CATEGORY_TABLES_H
#define TOKENIZER_TEXT_CATEGORY_TABLES_H

#include <stddef.h>
#include <stdint.h>

enum { UNICODE_CATEGORY_WORD = 128 }; /* beside a category: \w */

/* From `first` up to the next run: general category (Cn, Lu, Ll, ... in the order of pattern_classes.c) and script. */
typedef struct unicode_category_run {
    uint32_t first;
    uint8_t category;
    uint8_t script; /* 1 + its place in unicode_scripts; 0: none */
} unicode_category_run;

extern const unicode_category_run unicode_categories[];
extern const size_t unicode_n_categories;
extern const char *const unicode_scripts[]; /* in lower case, without underscores */
extern const size_t unicode_n_scripts;

#endif
