/* A byte trie in one hash table of edges: prefixes of a text that are keys, shortest first, or the longest. */
#ifndef TOKENIZER_MODEL_TRIE_H
#define TOKENIZER_MODEL_TRIE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/status.h>

typedef struct trie_edge {
    uint32_t key; /* node * 256 + byte + 1; 0: free */
    uint32_t child;
} trie_edge;

typedef struct trie {
    trie_edge *edges;
    uint32_t slot_bits; /* there are 1 << slot_bits slots */
    size_t n_edges;
    int32_t *values; /* of each node; -1: no key ends here */
    size_t n_nodes, nodes_capacity;
} trie;

fsdp_status trie_create(trie **out);
void trie_free(trie *t);

/* value >= 0. False in *fresh when the key was there already; it then gets the new value. */
fsdp_status trie_add(trie *t, const char *key, size_t bytes, int32_t value, bool *fresh);

static inline size_t trie_slot(uint32_t key, uint32_t slot_bits)
{
    return (key * 0x9E3779B1u) >> (32 - slot_bits);
}

/* The child of `node` for `byte`, 0 (the root, never a child) when there is none. */
static inline uint32_t trie_child(const trie *t, uint32_t node, uint8_t byte)
{
    uint32_t key = node * 256 + byte + 1;
    size_t i = trie_slot(key, t->slot_bits), mask = ((size_t)1 << t->slot_bits) - 1;
    while (t->edges[i].key != key) {
        if (t->edges[i].key == 0)
            return 0;
        i = (i + 1) & mask;
    }
    return t->edges[i].child;
}

/* The longest key that begins text[0..bytes): its length, 0 when none; *value its value. */
size_t trie_longest(const trie *t, const char *text, size_t bytes, int32_t *value);

#endif
