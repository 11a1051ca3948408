/* Hashes: FNV-1a for signatures and names, XXH64-style checksums for data. Stable across machines and releases. */
#ifndef BASE_HASH_H
#define BASE_HASH_H

#include <stddef.h>
#include <stdint.h>

#define HASH_START 0xcbf29ce484222325ull

uint64_t hash_bytes(uint64_t hash, const void *data, size_t bytes); /* FNV-1a, for short inputs */
uint64_t hash_text(uint64_t hash, const char *text);
uint64_t hash_u64(uint64_t hash, uint64_t value);

/* XXH64 with seed 0: for checksums of large data, several GB/s. The state form takes the data in pieces. */
typedef struct hash_stream {
    uint64_t lanes[4];
    uint64_t total;
    uint8_t tail[32];
    size_t tail_bytes;
} hash_stream;

void hash_stream_start(hash_stream *s);
void hash_stream_add(hash_stream *s, const void *data, size_t bytes);
uint64_t hash_stream_end(const hash_stream *s);

/* Adds bytes[i] bytes at data[i] to streams[i], for each of the n. One stream is a chain of multiplications that must
 * wait for each other; side by side they fill wide multipliers, several times as quick where the processor has them. */
enum { HASH_ABREAST = 8 }; /* as many as are worth it */
void hash_streams_add(hash_stream *const *streams, const void *const *data, const size_t *bytes, int n);

#endif
