/* The steps of a pre-tokenizer, shared by its reader (pretokenizer.c) and the walk over a text (pretokenizer_cut.c). */
#ifndef TOKENIZER_PRETOKENIZER_INTERNAL_H
#define TOKENIZER_PRETOKENIZER_INTERNAL_H

#include "tokenizer/model/byte_alphabet.h"
#include "tokenizer/pretokenizer.h"

typedef enum cut_kind {
    CUT_SEQUENCE,
    CUT_PATTERN, /* Split */
    CUT_BYTE_LEVEL,
    CUT_METASPACE,
    CUT_WORDS, /* Whitespace: \w+|[^\w\s]+ */
    CUT_CLASS, /* by the class of single code points: WhitespaceSplit, Digits, Punctuation */
    CUT_WHITESPACE,
    CUT_DIGITS,
    CUT_PUNCTUATION,
    CUT_BERT,
    CUT_DELIMITER,
    CUT_FIXED_LENGTH,
    CUT_SCRIPTS,
} cut_kind;

typedef enum behavior { REMOVED, ISOLATED, CONTIGUOUS, MERGED_WITH_PREVIOUS, MERGED_WITH_NEXT } behavior;

typedef enum prepend_scheme { PREPEND_ALWAYS, PREPEND_FIRST, PREPEND_NEVER } prepend_scheme;

typedef struct cut {
    cut_kind kind;
    behavior behavior;
    pattern *pattern; /* CUT_PATTERN; CUT_BYTE_LEVEL with its expression */
    bool invert;
    bool prefix_space; /* CUT_BYTE_LEVEL */
    bool spell_bytes;  /* CUT_BYTE_LEVEL: map bytes to the alphabet */
    bool split;        /* CUT_METASPACE */
    prepend_scheme scheme;
    char replacement[4]; /* CUT_METASPACE, CUT_DELIMITER */
    size_t replacement_bytes;
    uint8_t class_bits; /* CUT_CLASS */
    size_t length;      /* CUT_FIXED_LENGTH, in code points */
} cut;

struct pretokenizer {
    const unicode *unicode;
    byte_alphabet alphabet;
    cut *cuts;
    size_t n_cuts, capacity;
};

#endif
