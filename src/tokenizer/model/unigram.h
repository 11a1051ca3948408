/* The Unigram model: of all ways to cut a word into tokens, the one with the highest sum of scores. The model is
 * read-only; each thread brings a room. */
#ifndef TOKENIZER_MODEL_UNIGRAM_H
#define TOKENIZER_MODEL_UNIGRAM_H

#include "base/json.h"
#include "tokenizer/text/text_buffer.h"
#include "tokenizer/model/vocabulary.h"
#include "tokenizer/model/word_cache.h"

typedef struct unigram unigram;

typedef struct unigram_room {
    word_cache *cache;
    struct unigram_node *nodes;
    size_t capacity;
    span_vector pieces;
} unigram_room;

/* `object` is the "model" of a tokenizer.json. */
fsdp_status unigram_create(const char *name, const json_t *object, unigram **out);
void unigram_free(unigram *m);
const vocabulary *unigram_vocabulary(const unigram *m);

fsdp_status unigram_room_create(unigram_room *room);
void unigram_room_free(unigram_room *room);

/* Appends the ids of a word. */
fsdp_status unigram_encode(const unigram *m, unigram_room *room, const char *word, size_t bytes, id_vector *ids);

#endif
