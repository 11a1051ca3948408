/* Tokens and their ids: a hash table from text to id, a list from id to text. Filled once, read-only after. */
#ifndef TOKENIZER_MODEL_VOCABULARY_H
#define TOKENIZER_MODEL_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

#define VOCABULARY_MAX_ID (1 << 24) /* more than any vocabulary; guards against absurd files */

typedef struct vocabulary vocabulary;

fsdp_status vocabulary_create(size_t expected, vocabulary **out);
void vocabulary_free(vocabulary *v);

/* A text that is already there gets the new id; an id that is already there gets the new text. */
fsdp_status vocabulary_add(vocabulary *v, const char *text, size_t bytes, int32_t id);

int32_t vocabulary_id(const vocabulary *v, const char *text, size_t bytes);  /* -1: none */
const char *vocabulary_text(const vocabulary *v, int32_t id, size_t *bytes); /* NULL: none; NUL-terminated */
size_t vocabulary_count(const vocabulary *v);                                /* different texts */
int32_t vocabulary_end(const vocabulary *v);                                 /* highest id + 1 */
size_t vocabulary_longest(const vocabulary *v);                              /* bytes of the longest text */

/* A quick 64-bit hash of a short text, for tables in memory (not stable between releases). */
static inline uint64_t vocabulary_hash(const char *text, size_t bytes)
{
    uint64_t h = 0x9E3779B97F4A7C15ull ^ bytes, word;
    for (; bytes >= 8; text += 8, bytes -= 8) {
        __builtin_memcpy(&word, text, 8);
        h = (h ^ word) * 0xD6E8FEB86659FD93ull;
        h ^= h >> 32;
    }
    if (bytes > 0) { /* the rest, its middle bytes perhaps twice */
        uint32_t front, back;
        if (bytes >= 4) {
            __builtin_memcpy(&front, text, 4);
            __builtin_memcpy(&back, text + bytes - 4, 4);
        } else {
            front = (uint8_t)text[0] | (uint32_t)(uint8_t)text[bytes / 2] << 8;
            back = (uint8_t)text[bytes - 1];
        }
        word = front | (uint64_t)back << 32;
        h = (h ^ word) * 0xD6E8FEB86659FD93ull;
        h ^= h >> 32;
    }
    h *= 0xCA5A826395121157ull;
    return h ^ h >> 29;
}

#endif
