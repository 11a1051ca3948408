/* Byte pair encoding: a word starts as its characters (or bytes), and the pair of lowest rank is joined until none is
 * left. The model is read-only; each thread brings a room. */
#ifndef TOKENIZER_MODEL_BPE_H
#define TOKENIZER_MODEL_BPE_H

#include <stdbool.h>

#include "base/json.h"
#include "tokenizer/model/byte_alphabet.h"
#include "tokenizer/text/text_buffer.h"
#include "tokenizer/model/vocabulary.h"
#include "tokenizer/model/word_cache.h"

typedef struct bpe bpe;

/* Memory of one thread. */
typedef struct bpe_room {
    word_cache *cache;
    struct bpe_symbol *symbols;
    size_t capacity;
    uint64_t *heap;
    size_t heap_n, heap_capacity;
} bpe_room;

/* `object` is the "model" of a tokenizer.json. */
fsdp_status bpe_create(const char *name, const json_t *object, bpe **out);
void bpe_free(bpe *b);

/* Words will come as plain bytes instead of being spelled in the byte alphabet. False when the vocabulary cannot do
 * that (a byte is missing from it, or tokens carry a prefix or suffix). */
fsdp_status bpe_take_bytes(bpe *b, const byte_alphabet *alphabet, bool *taken);

const vocabulary *bpe_vocabulary(const bpe *b);

fsdp_status bpe_room_create(bpe_room *room);
void bpe_room_free(bpe_room *room);

/* Appends the ids of a word. */
fsdp_status bpe_encode(const bpe *b, bpe_room *room, const char *word, size_t bytes, id_vector *ids);

#endif
