/* What the tokenizers library knows of a code point: its classes, its lower case, its grapheme breaks, normal forms.
 * Tables come from unicode_tables.c; a `unicode` is their expanded form, one lookup per code point. */
#ifndef TOKENIZER_TEXT_UNICODE_H
#define TOKENIZER_TEXT_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tokenizer/text/text_buffer.h"

enum {
    UNICODE_LETTER = 1,       /* \p{L} of Oniguruma as the library ships it */
    UNICODE_NUMBER = 2,       /* \p{N} of the same */
    UNICODE_SPACE = 4,        /* \s of the same */
    UNICODE_WORD = 8,         /* \w of Rust's regex crate */
    UNICODE_WHITE = 16,       /* char::is_whitespace */
    UNICODE_NUMERIC = 32,     /* char::is_numeric */
    UNICODE_PUNCTUATION = 64, /* ASCII punctuation and general category P */
    UNICODE_MARK = 128,       /* combining marks, category M */
};

enum {
    UNICODE_BLOCK_BITS = 7,
    UNICODE_BLOCK = 1 << UNICODE_BLOCK_BITS,
    UNICODE_N_BLOCKS = 0x110000 >> UNICODE_BLOCK_BITS,
};

/* What BertNormalizer does to a code point, option by option. */
enum {
    UNICODE_BERT_CONTROL = 1, /* clean_text drops it */
    UNICODE_BERT_MARK = 2,    /* strip_accents does */
    UNICODE_BERT_CHINESE = 4, /* handle_chinese_chars puts spaces around it */
};

enum { UNICODE_ANY_SCRIPT = 0 };

typedef struct unicode {
    uint16_t block_of[UNICODE_N_BLOCKS];
    uint16_t *properties; /* blocks of UNICODE_BLOCK: classes in the low byte, grapheme bits in the high one */
    uint16_t *extras; /* the same for what few tokenizers ask: script in the low byte, BERT's bits in the high one */
    size_t n_blocks;
} unicode;

fsdp_status unicode_create(unicode **out);
void unicode_free(unicode *u);

static inline uint16_t unicode_properties(const unicode *u, uint32_t point)
{
    return u
        ->properties[(size_t)u->block_of[point >> UNICODE_BLOCK_BITS] * UNICODE_BLOCK + (point & (UNICODE_BLOCK - 1))];
}

static inline uint8_t unicode_class(const unicode *u, uint32_t point)
{
    return (uint8_t)unicode_properties(u, point);
}

static inline uint16_t unicode_extras(const unicode *u, uint32_t point)
{
    return u->extras[(size_t)u->block_of[point >> UNICODE_BLOCK_BITS] * UNICODE_BLOCK + (point & (UNICODE_BLOCK - 1))];
}

/* The script as a number without meaning: code points of one script have the same. */
static inline uint8_t unicode_script(const unicode *u, uint32_t point)
{
    return (uint8_t)unicode_extras(u, point);
}

static inline uint8_t unicode_bert(const unicode *u, uint32_t point)
{
    return (uint8_t)(unicode_extras(u, point) >> 8);
}

/* Appends `text` in lower case, each code point by itself. */
fsdp_status unicode_lowercase(const char *text, size_t bytes, text_buffer *out);

/* The end of the extended grapheme cluster that starts at `start` (< bytes). */
size_t unicode_grapheme_end(const unicode *u, const char *text, size_t bytes, size_t start);

typedef enum normal_form { FORM_NFC, FORM_NFD, FORM_NFKC, FORM_NFKD } normal_form;

/* Appends `text` in a normal form; `points` is scratch. */
fsdp_status unicode_normalize(normal_form form, const char *text, size_t bytes, text_buffer *out, id_vector *points);

#endif
