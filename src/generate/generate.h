/* Writing token by token with a model that is open: the cache and its steps (steps.c), the choice of a token
 * (pick.c), and tokens back to text as they come (stream.c). */
#ifndef GENERATE_GENERATE_H
#define GENERATE_GENERATE_H

#include <fsdp/shard.h>
#include <fsdp/tokenizer.h>

#include "models/config.h"

typedef struct generator generator;

/* Keys and values of up to `capacity` tokens, for T5 those of the answer beside a source of up to `source_capacity`.
 * Borrows the model. Every rank of its world creates one and calls the same. */
fsdp_status generator_create(fsdp_model *m, const model_config *config, int64_t capacity, int64_t source_capacity,
                             generator **out);
void generator_free(generator *g); /* before the model; NULL is legal */

/* Forgets what was there and reads a prompt of at least one token. Logits (vocabulary) of the first new token. A LLaMA
 * sees the last `capacity` tokens of a longer prompt; a longer source of a T5 is refused. */
fsdp_status generator_start(generator *g, const int32_t *ids, int64_t n, float *logits);
/* Reads one more token. When the cache is full, the older half of it is forgotten. */
fsdp_status generator_next(generator *g, int32_t token, float *logits);

typedef struct choice_options {
    double temperature, top_p; /* temperature 0: the likeliest */
    int64_t top_k;             /* 0: all */
    uint64_t seed;
} choice_options;

/* The token for place `index` of the text: a function of logits, options and index alone. `scratch` has room for
 * choice_scratch_bytes(n). */
int32_t choice_make(const choice_options *options, const float *logits, int64_t n, uint64_t index, void *scratch);
size_t choice_scratch_bytes(int64_t n);

/* Text of a growing list of ids, given out only in whole characters and once it can no longer change. */
typedef struct text_stream {
    fsdp_tokenizer *tokenizer;
    size_t first; /* ids from here on are decoded: enough context for spaces between words */
    size_t given; /* ids before this one have been given out */
} text_stream;

/* Ids 0 .. n_given-1 are known to the reader already (a prompt). */
text_stream text_stream_begin(fsdp_tokenizer *tokenizer, size_t n_given);
/* The text that ids add, "" while a character is incomplete; valid until the tokenizer decodes again. `last` gives out
 * what is left as it is. */
fsdp_status text_stream_add(text_stream *s, const int32_t *ids, size_t n, bool last, const char **text, size_t *bytes);

#endif
