/* Writing token by token with a model that is open (writer.c): the cache and its steps (steps.c), the choice of a token
 * (pick.c), and tokens back to text as they come (stream.c). Models of a program's own have no cache (own_logits.c). */
#ifndef GENERATE_GENERATE_H
#define GENERATE_GENERATE_H

#include <fsdp/generate.h>

#include "models/config.h"
#include "tokenizer/template/chat_template.h"
#include "tokenizer/text/utf8.h"

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

/* Texts side by side, of a decoder: each has room for `capacity` tokens. */
fsdp_status generator_create_texts(fsdp_model *m, const model_config *config, int64_t capacity, int64_t n_texts,
                                   generator **out);
/* Forgets all of them. */
fsdp_status generator_clear(generator *g);
/* Reads the prompt of one, of at most `capacity` tokens. Logits (vocabulary) of its first new token. */
fsdp_status generator_read(generator *g, int64_t text, const int32_t *ids, int64_t n, float *logits);
/* Reads one more token of each; -1: none of this one, which has ended. Logits (n_texts, vocabulary). */
fsdp_status generator_step(generator *g, const int32_t *tokens, float *logits);

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

enum { MAX_ENDS = 16 };

/* One text: a prompt and what follows it. The caller fills the first group and borrows all of it to the writer. */
typedef struct text_writer {
    const fsdp_generate_config *config;
    const model_config *model_config;
    fsdp_tokenizer *tokenizer;
    const char *source;        /* the model, for messages */
    const chat_template *chat; /* renders prompts; NULL: they are plain text */

    int64_t vocabulary; /* of the model's logits; own models: 0 before the first */
    int32_t ends[MAX_ENDS];
    int n_ends;
    int32_t *ids; /* the prompt, followed by the new tokens */
    int64_t n_prompt, n;
    float *logits;
    void *scratch;
    int32_t *window; /* (config->window): own models, what they are shown */
    text_buffer shown;
} text_writer;

/* Checks the configuration, and that the model writes text. */
fsdp_status text_writer_check(const text_writer *w);
/* config->chat_template, NULL where there is none; `model` is the model's folder, or NULL. The caller frees it. */
fsdp_status text_writer_open_chat(const text_writer *w, const char *model, chat_template **out);
/* A token that ends the text. */
void text_writer_add_end(text_writer *w, int64_t id);
/* The prompt as the model's tokens. */
fsdp_status text_writer_read_prompt(text_writer *w);
/* The prompt has no token that the model does not know. */
fsdp_status text_writer_check_vocabulary(const text_writer *w);
/* Room for logits of that vocabulary. */
fsdp_status text_writer_allocate(text_writer *w, int64_t n_tokens);
/* w->logits of the token after the last of w->ids, from a model of the program's own (own_logits.c). */
fsdp_status own_logits(text_writer *w, fsdp_model *m);
/* Rows of the cache for this prompt and what follows it. */
int64_t text_writer_capacity(const text_writer *w);
bool text_writer_is_end(const text_writer *w, int32_t id);
/* Gives out what the ids since the last call add to the text; `last`: all of it. */
fsdp_status text_writer_give(text_writer *w, text_stream *output, bool last);
/* The text as it is given out, from its beginning. */
text_stream text_writer_begin(const text_writer *w);
/* Whether it answers, as a T5 does, and does not go on with the prompt. */
bool text_writer_answers(const text_writer *w);
/* All of config->prompts, `batch` of them side by side (many.c). */
fsdp_status write_many(const text_writer *model, fsdp_model *m, fsdp_generate_result *result);
/* Rows of a cache that hold the longest of them. */
fsdp_status many_capacity(const text_writer *model, int64_t *capacity);
/* Writes to the end, or up to the limit. Every rank of the model's world calls it. */
fsdp_status text_writer_write(text_writer *w, fsdp_model *m, fsdp_generate_result *result);
void text_writer_free(text_writer *w); /* what the writer allocated */

#endif
