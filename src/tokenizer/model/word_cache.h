/* Words and the ids they became. Of fixed size: when it is full it forgets everything and starts again, so it never
 * allocates after creation. Belongs to one thread. */
#ifndef TOKENIZER_MODEL_WORD_CACHE_H
#define TOKENIZER_MODEL_WORD_CACHE_H

#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#define WORD_CACHE_LONGEST 64 /* bytes; longer words are rarely seen twice */

typedef struct word_cache word_cache;

fsdp_status word_cache_create(word_cache **out);
void word_cache_free(word_cache *c);

/* The ids of the word, NULL when it is not known. *hash is for word_cache_add. */
const int32_t *word_cache_find(const word_cache *c, const char *word, size_t bytes, size_t *n, uint64_t *hash);
void word_cache_add(word_cache *c, const char *word, size_t bytes, uint64_t hash, const int32_t *ids, size_t n);

#endif
