/* Pre-tokenizers of tokenizer.json: cut a normalized text into the words that the model sees one by one. */
#ifndef TOKENIZER_PRETOKENIZER_H
#define TOKENIZER_PRETOKENIZER_H

#include "base/json.h"
#include "tokenizer/pattern.h"

typedef struct pretokenizer pretokenizer;

/* `object` may be NULL or null: then the text is one word. Borrows `u`. */
fsdp_status pretokenizer_create(const char *name, const json_t *object, const unicode *u, pretokenizer **out);
void pretokenizer_free(pretokenizer *p);

/* True when words come out spelled in GPT-2's byte alphabet by the last step. A model that knows may ask for the bytes
 * themselves instead, which saves spelling them. */
bool pretokenizer_spells_bytes(const pretokenizer *p);
void pretokenizer_keep_bytes(pretokenizer *p);

/* The step, counted from 1, that is a Metaspace which looks at whether its piece begins the text; 0: none does. */
size_t pretokenizer_asks_for_start(const pretokenizer *p);

/* What a separator (a space, or what the normalizer made of it) between two letters does, whatever stands around them.
 */
typedef enum separator_effect {
    SEPARATOR_UNKNOWN,   /* a step may look further */
    SEPARATOR_IN_WORD,   /* the letters before it and the ones after are in one word, which is the same but for that
                            when the text begins with the separator, or ends in front of it */
    SEPARATOR_ENDS_WORD, /* a word ends in front of it, as it does when the text ends there */
} separator_effect;

/* `separator` is " ", "\n" or U+2581; *is_mark says whether it is U+2581 when the model sees it. */
separator_effect pretokenizer_at_separator(const pretokenizer *p, const char *separator, bool *is_mark);

/* Memory of one thread for cutting. */
typedef struct pretokenizer_room {
    struct pretokenizer_scratch *steps; /* one per step */
    size_t n_steps;
    pattern_room search;
} pretokenizer_room;

fsdp_status pretokenizer_room_create(const pretokenizer *p, pretokenizer_room *room);
void pretokenizer_room_free(pretokenizer_room *room);

/* Gets every word, in order; the text is valid during the call only. */
typedef fsdp_status (*pretokenizer_sink)(void *context, const char *word, size_t bytes);

/* `at_start`: the text begins where the whole input does. */
fsdp_status pretokenizer_apply(const pretokenizer *p, pretokenizer_room *room, const char *text, size_t bytes,
                               bool at_start, pretokenizer_sink sink, void *context);

#endif
