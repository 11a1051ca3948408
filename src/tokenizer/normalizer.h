/* Normalizers of tokenizer.json: a list of rewrites of the text before it is split. */
#ifndef TOKENIZER_NORMALIZER_H
#define TOKENIZER_NORMALIZER_H

#include "base/json.h"
#include "tokenizer/pattern.h"

typedef struct normalizer normalizer;

/* `object` may be NULL or null: then nothing is rewritten. Borrows `u`. */
fsdp_status normalizer_create(const char *name, const json_t *object, const unicode *u, normalizer **out);
void normalizer_free(normalizer *n);

/* Memory of one thread for rewriting. */
typedef struct normalizer_room {
    text_buffer texts[2], bert;
    id_vector points;
    pattern_room search;
} normalizer_room;

void normalizer_room_free(normalizer_room *room);

/* The text rewritten: `text` itself where there is nothing to do, else in `room` until its next use. `continues`: it is
 * a later part of a text, so what is done to the start of one is left out. */
fsdp_status normalizer_apply(const normalizer *n, normalizer_room *room, const char *text, size_t bytes, bool continues,
                             const char **out, size_t *out_bytes);

/* True when no step looks further than the characters around it, and none at letters beside spaces (text_cut.h). */
bool normalizer_is_local(const normalizer *n);
/* True when something is done to the start of a text that is not done elsewhere. */
bool normalizer_asks_for_start(const normalizer *n);

/* True when the first character of a text can vanish, so that the result no longer starts where the text did. */
bool normalizer_drops_front(const normalizer *n);
bool normalizer_is_empty(const normalizer *n);

#endif
