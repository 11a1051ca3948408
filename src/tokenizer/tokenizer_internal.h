/* The parts of a tokenizer: tables that handles share, and what each handle has of its own. */
#ifndef TOKENIZER_TOKENIZER_INTERNAL_H
#define TOKENIZER_TOKENIZER_INTERNAL_H

#include <stdatomic.h>

#include <fsdp/tokenizer.h>

#include "tokenizer/added_tokens.h"
#include "tokenizer/model/bpe.h"
#include "tokenizer/decoder.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/postprocessor.h"
#include "tokenizer/pretokenizer.h"
#include "tokenizer/text_cut.h"
#include "tokenizer/model/unigram.h"
#include "tokenizer/model/word_list.h"

/* Read-only once loaded. Exactly one of bpe, unigram and words is there; none in the byte tokenizer. */
typedef struct tokenizer_tables {
    atomic_int n_handles;
    unicode *unicode;
    normalizer *normalizer;
    added_tokens *added;
    pretokenizer *pretokenizer;
    bpe *bpe;
    unigram *unigram;
    word_list *words;
    postprocessor postprocessor;
    decoder *decoder;
    text_cuts cuts;
    char *folder;            /* that its files lie in; NULL for the byte tokenizer */
    uint64_t fingerprint;    /* of the file; 0 for the byte tokenizer */
    int32_t bos, eos, pad;   /* -1: none */
    char byte_texts[256][2]; /* the byte tokenizer's tokens */
} tokenizer_tables;

struct fsdp_tokenizer {
    tokenizer_tables *tables;
    text_buffer repaired; /* the text, when it was not UTF-8 */
    normalizer_room normalizer;
    pretokenizer_room pretokenizer;
    bpe_room bpe;
    unigram_room unigram;
    word_list_room words;
    decoder_room decoder;
    span_vector outer, inner;
    id_vector ids;
};

static inline bool tokenizer_is_byte(const tokenizer_tables *tables)
{
    return tables->bpe == NULL && tables->unigram == NULL && tables->words == NULL;
}

/* A handle; takes one of the handles that tables->n_handles counts, on success. */
fsdp_status tokenizer_new(tokenizer_tables *tables, fsdp_tokenizer **out);
void tokenizer_tables_free(tokenizer_tables *tables);
const vocabulary *tokenizer_tables_model(const tokenizer_tables *tables); /* not for the byte tokenizer */
int32_t tokenizer_tables_id(const tokenizer_tables *tables, const char *token, size_t bytes);

/* Which part of a text is encoded, and what is added around it. */
enum {
    TOKENIZER_FRONT = 1,     /* with what the post-processor puts in front of a text */
    TOKENIZER_BACK = 2,      /* ... and after it */
    TOKENIZER_CONTINUES = 4, /* a part that begins at a place of text_cut_place */
};

/* The ids of a part; those of all parts of a text, one after another, are the text's. */
fsdp_status tokenizer_encode_part(fsdp_tokenizer *t, const char *text, size_t bytes, int part, const int32_t **ids,
                                  size_t *n_ids);

/* Builds the tables from the JSON of a tokenizer.json called `name`; bos, eos and pad are left at -1. */
fsdp_status tokenizer_tables_read(const char *name, const json_t *root, tokenizer_tables **out);

#endif
