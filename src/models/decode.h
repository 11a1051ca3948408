/* Models that write: a step reads new tokens, sees earlier ones through a cache of keys and values (one row_cache of
 * keys | values a layer) and gives the logits of what comes next. Places are data, so steps of one size share a
 * program. */
#ifndef MODELS_DECODE_H
#define MODELS_DECODE_H

#include <fsdp/models.h>

#include "tensor/cache.h"

/* Host memory throughout, borrowed until the step has run. */
typedef struct decode_step {
    int64_t n_tokens;         /* padding included */
    const int32_t *ids;       /* (n_tokens) */
    const int32_t *positions; /* (n_tokens): where each stands and is cached; -1: padding */
    const int32_t *last;      /* (1): the token whose successor is wanted */
    int64_t length;           /* rows of the cache that are seen; 0: the tokens begin a text and see each other only */
    const int32_t *mask;      /* (length): 0 hides a row; of the token itself it is 1 */
    const int32_t *window_mask; /* (length): the same for layers with a window */
    /* Texts side by side (decoders): each has an even part of the cache, of which `length` rows are seen. With a length
     * there is one token of each, `last` is (n_texts) and the masks are (n_texts, length). */
    int64_t n_texts;       /* 0: one text */
    const int32_t *places; /* (n_tokens): where each is cached; -1: nowhere; NULL: at its position */
} decode_step;

/* -> (1, vocabulary); of texts side by side (n_texts, vocabulary). `past` has a cache a layer. */
fsdp_tensor *decoder_decode(fsdp_module *m, fsdp_tape *t, const decode_step *step, const row_cache *past);

/* The source of a T5: ids, mask and places (S), padding with mask 0 and place -1. Writes what the decoder's layers see
 * of the encoder into `memory`, a cache for each of them. */
void t5_encode(fsdp_module *m, fsdp_tape *t, int64_t n_tokens, const int32_t *ids, const int32_t *mask,
               const int32_t *places, const row_cache *memory);
/* One token of the target: step->length is not 0. The first `n_source` rows of `memory` are seen where source_mask
 * is 1.
 * -> (1, 1, vocabulary) */
fsdp_tensor *t5_decode(fsdp_module *m, fsdp_tape *t, const decode_step *step, const row_cache *past, int64_t n_source,
                       const int32_t *source_mask, const row_cache *memory);

#endif
