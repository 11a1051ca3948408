/* Blocks in a chain, filled front to back. After a reset the same sequence of allocations walks the same chain, and
 * each block is large enough for what opened it the first time: so a repeated round takes nothing from the system. */
#include "base/arena.h"

#include <stdalign.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"

enum { DEFAULT_BLOCK_BYTES = 64 << 10 };

typedef struct block {
    struct block *next;
    size_t capacity;
    size_t used;
    alignas(max_align_t) uint8_t data[];
} block;

struct arena {
    block *first;
    block *current;
    size_t block_bytes;
    size_t taken;
};

fsdp_status arena_create(size_t block_bytes, arena **out)
{
    arena *a = calloc(1, sizeof *a);
    if (!a)
        return error_set(FSDP_ERR_MEMORY, "out of memory for an arena (%zu bytes)", sizeof *a);
    a->block_bytes = block_bytes ? block_bytes : DEFAULT_BLOCK_BYTES;
    *out = a;
    return FSDP_OK;
}

void arena_free(arena *a)
{
    if (!a)
        return;
    for (block *b = a->first, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    free(a);
}

/* A new block after the current one, with room for `bytes`; the blocks that followed stay in the chain. */
static block *block_insert(arena *a, size_t bytes)
{
    size_t capacity = bytes > a->block_bytes ? bytes : a->block_bytes, total;
    if (checked_add(capacity, sizeof(block), &total))
        return NULL;
    block *b = malloc(total);
    if (!b)
        return NULL;
    b->capacity = capacity;
    b->used = 0;
    block **link = a->current ? &a->current->next : &a->first;
    b->next = *link;
    *link = b;
    a->taken += total;
    return b;
}

void *arena_alloc(arena *a, size_t bytes)
{
    const size_t unit = alignof(max_align_t);
    if (bytes > SIZE_MAX - unit)
        return NULL;
    bytes = bytes ? round_up(bytes, unit) : unit;
    if (!a->current || a->current->capacity - a->current->used < bytes) {
        block *b = a->current ? a->current->next : a->first;
        if (!b || b->capacity < bytes)
            b = block_insert(a, bytes);
        if (!b)
            return NULL;
        b->used = 0;
        a->current = b;
    }
    void *memory = a->current->data + a->current->used;
    a->current->used += bytes;
    return memset(memory, 0, bytes);
}

char *arena_strdup(arena *a, const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = arena_alloc(a, bytes);
    return copy ? memcpy(copy, text, bytes) : NULL;
}

fsdp_status arena_create_owned(const char *name, size_t bytes, arena **out, void **owner, const char **own_name)
{
    arena *a = NULL;
    FSDP_TRY(arena_create(0, &a));
    *owner = arena_alloc(a, bytes);
    *own_name = arena_strdup(a, name);
    if (!*owner || !*own_name) {
        arena_free(a);
        return error_set(FSDP_ERR_MEMORY, "%s: out of memory", name);
    }
    *out = a;
    return FSDP_OK;
}

void arena_reset(arena *a)
{
    a->current = NULL;
}

size_t arena_bytes(const arena *a)
{
    return a->taken;
}
