/* Building and searching the trie of trie.h. */
#include "tokenizer/model/trie.h"

#include <stdlib.h>

#include "base/error.h"
#include "tokenizer/text/text_buffer.h"

enum { MAX_NODES = 1 << 24 }; /* node * 256 must fit 32 bits */

static fsdp_status new_node(trie *t, uint32_t *node)
{
    if (t->n_nodes >= MAX_NODES - 1)
        return error_set(FSDP_ERR_INPUT, "a vocabulary with more than %d different prefixes is not supported",
                         MAX_NODES);
    if (t->n_nodes == t->nodes_capacity)
        FSDP_TRY(array_grow((void **)&t->values, &t->nodes_capacity, t->n_nodes + 1, sizeof *t->values));
    t->values[t->n_nodes] = -1;
    *node = (uint32_t)t->n_nodes++;
    return FSDP_OK;
}

fsdp_status trie_create(trie **out)
{
    uint32_t root;
    trie *t = calloc(1, sizeof *t);
    if (t == NULL)
        return error_set(FSDP_ERR_MEMORY, "out of memory for a trie");
    t->slot_bits = 8;
    t->edges = calloc((size_t)1 << t->slot_bits, sizeof *t->edges);
    fsdp_status status = t->edges == NULL ? error_set(FSDP_ERR_MEMORY, "out of memory for a trie") : new_node(t, &root);
    if (status != FSDP_OK) {
        trie_free(t);
        return status;
    }
    *out = t;
    return FSDP_OK;
}

void trie_free(trie *t)
{
    if (t == NULL)
        return;
    free(t->values);
    free(t->edges);
    free(t);
}

static void insert_edge(trie_edge *edges, uint32_t slot_bits, trie_edge edge)
{
    size_t i = trie_slot(edge.key, slot_bits);
    while (edges[i].key != 0)
        i = (i + 1) & (((size_t)1 << slot_bits) - 1);
    edges[i] = edge;
}

static fsdp_status add_edge(trie *t, uint32_t node, uint8_t byte, uint32_t *child)
{
    size_t n_slots = (size_t)1 << t->slot_bits;
    if (t->n_edges * 2 >= n_slots) {
        trie_edge *larger = calloc(n_slots * 2, sizeof *larger);
        if (larger == NULL)
            return error_set(FSDP_ERR_MEMORY, "out of memory: a trie of %zu nodes", t->n_nodes);
        for (size_t i = 0; i < n_slots; i++)
            if (t->edges[i].key != 0)
                insert_edge(larger, t->slot_bits + 1, t->edges[i]);
        free(t->edges);
        t->edges = larger;
        t->slot_bits++;
    }
    FSDP_TRY(new_node(t, child));
    insert_edge(t->edges, t->slot_bits, (trie_edge){node * 256 + byte + 1, *child});
    t->n_edges++;
    return FSDP_OK;
}

fsdp_status trie_add(trie *t, const char *key, size_t bytes, int32_t value, bool *fresh)
{
    uint32_t node = 0;
    for (size_t i = 0; i < bytes; i++) {
        uint32_t child = trie_child(t, node, (uint8_t)key[i]);
        if (child == 0)
            FSDP_TRY(add_edge(t, node, (uint8_t)key[i], &child));
        node = child;
    }
    if (fresh != NULL)
        *fresh = t->values[node] < 0;
    t->values[node] = value;
    return FSDP_OK;
}

size_t trie_longest(const trie *t, const char *text, size_t bytes, int32_t *value)
{
    uint32_t node = 0;
    size_t longest = 0;
    for (size_t i = 0; i < bytes; i++) {
        node = trie_child(t, node, (uint8_t)text[i]);
        if (node == 0)
            break;
        if (t->values[node] >= 0) {
            longest = i + 1;
            *value = t->values[node];
        }
    }
    return longest;
}
