/* GPT-2's alphabet: each of the 256 bytes as one printable code point, so that byte-level vocabularies are text. */
#ifndef TOKENIZER_MODEL_BYTE_ALPHABET_H
#define TOKENIZER_MODEL_BYTE_ALPHABET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tokenizer/text/text_buffer.h"

typedef struct byte_alphabet {
    uint16_t point_of[256]; /* below U+0144 */
    int16_t byte_of[512];   /* -1: not in the alphabet */
} byte_alphabet;

void byte_alphabet_init(byte_alphabet *a);

/* Appends every byte of `text` as its code point. */
fsdp_status byte_alphabet_encode(const byte_alphabet *a, const char *text, size_t bytes, text_buffer *out);
/* Appends the bytes that `text` spells, and says true; false, with nothing appended, when it has other code points. */
fsdp_status byte_alphabet_decode(const byte_alphabet *a, const char *text, size_t bytes, text_buffer *out,
                                 bool *spelled);

#endif
