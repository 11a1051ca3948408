/* Open addressing over fixed pools of text and ids. */
#include "tokenizer/model/word_cache.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tokenizer/model/vocabulary.h"

enum {
    N_SLOTS = 1 << 16,
    MAX_WORDS = N_SLOTS / 2,
    POOL_BYTES = 1 << 20,
    POOL_IDS = 1 << 18,
};

typedef struct slot {
    uint64_t hash; /* 0: free */
    uint32_t text; /* offset into the pool of texts */
    uint32_t ids;  /* offset into the pool of ids */
    uint16_t bytes, n;
    uint32_t unused;
} slot;

struct word_cache {
    slot slots[N_SLOTS];
    char texts[POOL_BYTES];
    int32_t ids[POOL_IDS];
    size_t n_words, n_bytes, n_ids;
};

fsdp_status word_cache_create(word_cache **out)
{
    *out = calloc(1, sizeof **out);
    return *out != NULL ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of memory: %zu bytes of word cache", sizeof **out);
}

void word_cache_free(word_cache *c)
{
    free(c);
}

const int32_t *word_cache_find(const word_cache *c, const char *word, size_t bytes, size_t *n, uint64_t *hash)
{
    uint64_t h = vocabulary_hash(word, bytes);
    h += h == 0;
    *hash = h;
    for (size_t i = h & (N_SLOTS - 1); c->slots[i].hash != 0; i = (i + 1) & (N_SLOTS - 1)) {
        const slot *s = &c->slots[i];
        if (s->hash == h && s->bytes == bytes && memcmp(c->texts + s->text, word, bytes) == 0) {
            *n = s->n;
            return c->ids + s->ids;
        }
    }
    return NULL;
}

void word_cache_add(word_cache *c, const char *word, size_t bytes, uint64_t hash, const int32_t *ids, size_t n)
{
    if (bytes > WORD_CACHE_LONGEST || n > WORD_CACHE_LONGEST * 4)
        return;
    if (c->n_words >= MAX_WORDS || c->n_bytes + bytes > POOL_BYTES || c->n_ids + n > POOL_IDS) {
        memset(c->slots, 0, sizeof c->slots);
        c->n_words = c->n_bytes = c->n_ids = 0;
    }
    size_t i = hash & (N_SLOTS - 1);
    while (c->slots[i].hash != 0)
        i = (i + 1) & (N_SLOTS - 1);
    c->slots[i] = (slot){hash, (uint32_t)c->n_bytes, (uint32_t)c->n_ids, (uint16_t)bytes, (uint16_t)n, 0};
    memcpy(c->texts + c->n_bytes, word, bytes);
    if (n > 0)
        memcpy(c->ids + c->n_ids, ids, n * sizeof *ids);
    c->n_bytes += bytes;
    c->n_ids += n;
    c->n_words++;
}
