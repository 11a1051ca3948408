/* Memory with one lifetime: many small allocations, freed together. An arena that is reset keeps its blocks, so a
 * loop that fills it the same way each time allocates only in its first round. */
#ifndef BASE_ARENA_H
#define BASE_ARENA_H

#include <stddef.h>

#include <fsdp/status.h>

typedef struct arena arena;

/* `block_bytes` is the smallest block taken from the system at a time (0: 64 KiB). */
fsdp_status arena_create(size_t block_bytes, arena **out);
void arena_free(arena *a);

/* An arena for something that lives in the memory it fills, such as an open file: *owner gets `bytes`, zeroed, and
 * *own_name a copy of `name`, which a failure's message names. */
fsdp_status arena_create_owned(const char *name, size_t bytes, arena **out, void **owner, const char **own_name);

/* Zeroed, aligned for any type; NULL only when the system is out of memory. */
void *arena_alloc(arena *a, size_t bytes);
char *arena_strdup(arena *a, const char *text);

/* Gives up everything allocated so far, keeps the blocks. */
void arena_reset(arena *a);
size_t arena_bytes(const arena *a); /* taken from the system */

#endif
