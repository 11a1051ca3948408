/* Decoders of tokenizer.json: from the spellings of tokens back to text. */
#ifndef TOKENIZER_DECODER_H
#define TOKENIZER_DECODER_H

#include "base/json.h"
#include "tokenizer/pattern.h"

typedef struct decoder decoder;

/* `object` may be NULL or null: tokens are then joined with spaces. Borrows `u`. */
fsdp_status decoder_create(const char *name, const json_t *object, const unicode *u, decoder **out);
void decoder_free(decoder *d);

/* A list of texts in one buffer. */
typedef struct token_list {
    text_buffer text;
    span_vector tokens;
} token_list;

fsdp_status token_list_add(token_list *l, const char *text, size_t bytes);
void token_list_clear(token_list *l);

typedef struct decoder_room {
    token_list lists[2]; /* the caller fills the first */
    text_buffer scratch;
    pattern_room search;
} decoder_room;

void decoder_room_free(decoder_room *room);

/* Decodes the tokens in room->lists[0]; the text stays in `room` until its next use, with a NUL after it. */
fsdp_status decoder_apply(const decoder *d, decoder_room *room, const char **text, size_t *bytes);

#endif
