/* The two models that look words up: WordLevel, a word or nothing, and WordPiece, from the left the longest piece that
 * is there, pieces behind the first with a prefix. The model is read-only; each thread brings a room. */
#ifndef TOKENIZER_MODEL_WORD_LIST_H
#define TOKENIZER_MODEL_WORD_LIST_H

#include "base/json.h"
#include "tokenizer/model/vocabulary.h"
#include "tokenizer/model/word_cache.h"
#include "tokenizer/text/text_buffer.h"

typedef struct word_list word_list;

typedef struct word_list_room {
    word_cache *cache;
    text_buffer piece; /* with its prefix */
} word_list_room;

/* `object` is the "model" of a tokenizer.json. */
fsdp_status word_list_create(const char *name, const json_t *object, bool pieces, word_list **out);
void word_list_free(word_list *m);
const vocabulary *word_list_vocabulary(const word_list *m);

fsdp_status word_list_room_create(word_list_room *room);
void word_list_room_free(word_list_room *room);

/* Appends the ids of a word. */
fsdp_status word_list_encode(const word_list *m, word_list_room *room, const char *word, size_t bytes, id_vector *ids);

#endif
