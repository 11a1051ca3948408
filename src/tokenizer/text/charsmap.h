/* SentencePiece's precompiled character map: a double-array trie from short texts to their replacements. */
#ifndef TOKENIZER_TEXT_CHARSMAP_H
#define TOKENIZER_TEXT_CHARSMAP_H

#include <stddef.h>

#include "tokenizer/text/text_buffer.h"
#include "tokenizer/text/unicode.h"

typedef struct charsmap charsmap;

/* Decodes and checks the base64 text of a tokenizer.json. */
fsdp_status charsmap_create(const char *name, const char *base64, size_t bytes, charsmap **out);
void charsmap_free(charsmap *m);

/* Appends `text` with its replacements made: by whole grapheme clusters of under 6 bytes, else by code points. */
fsdp_status charsmap_apply(const charsmap *m, const unicode *u, const char *text, size_t bytes, text_buffer *out);

#endif
