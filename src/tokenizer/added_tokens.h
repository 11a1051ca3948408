/* Added tokens: found in the text before the model sees it, as wholes. Those that are not `normalized` are looked for
 * in the text as given, the others in the normalized text, in their own normalized spelling. */
#ifndef TOKENIZER_ADDED_TOKENS_H
#define TOKENIZER_ADDED_TOKENS_H

#include "base/json.h"
#include "tokenizer/normalizer.h"
#include "tokenizer/text/unicode.h"
#include "tokenizer/model/vocabulary.h"

typedef struct added_tokens added_tokens;

/* `array` is "added_tokens" of a tokenizer.json, NULL or null for none. Ids come from `model` where it has the token,
 * else follow its last one. Borrows `u`. */
fsdp_status added_tokens_create(const char *name, const json_t *array, const vocabulary *model, const normalizer *n,
                                const unicode *u, added_tokens **out);
void added_tokens_free(added_tokens *a);

/* Spans of the text, in order: `matched` is the id of an added token plus one, 0 for text. They cover the text but for
 * the rare overlap that the library makes too (stripped spaces that are tokens themselves). */
fsdp_status added_tokens_split(const added_tokens *a, bool normalized, const char *text, size_t bytes,
                               span_vector *spans);

/* False when a token may reach over the place between a letter and a single space or line break before a letter, or
 * takes the space (text_cut.h). `start_matters`: the text after a token is rewritten as the start of one. */
bool added_tokens_allow_cuts(const added_tokens *a, bool start_matters);

const vocabulary *added_tokens_vocabulary(const added_tokens *a); /* by content */
/* The spelling that decoders see, NULL when `id` is not an added token. */
const char *added_tokens_spelling(const added_tokens *a, int32_t id, size_t *bytes);
/* True when the text is the content of a special token. */
bool added_tokens_is_special(const added_tokens *a, const char *text, size_t bytes);

#endif
