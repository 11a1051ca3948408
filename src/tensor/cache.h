/* Rows that outlive steps, written at places that are data: the keys and values of past positions. A step that writes
 * and reads them has the same program whatever the places are. */
#ifndef TENSOR_CACHE_H
#define TENSOR_CACHE_H

#include "tensor/tape.h"

typedef struct row_cache {
    void *memory; /* device memory of (capacity, columns), cleared before the first write */
    fsdp_dtype dtype;
    int64_t capacity, columns;
} row_cache;

/* Records: row i of x (..., columns) goes to row places[i] of the cache, int32, one for each row of x; a place outside
 * the cache is skipped. Rows are added to what is there, so a row is written once between two clearings. */
void cache_write(fsdp_tape *t, const row_cache *cache, fsdp_tensor *x, fsdp_tensor *places);

/* The first `length` rows as (1, length, columns), with what was recorded before this call written. */
fsdp_tensor *cache_read(fsdp_tape *t, const row_cache *cache, int64_t length);
/* All rows, as n even parts: (n, capacity / n, columns). */
fsdp_tensor *cache_read_parts(fsdp_tape *t, const row_cache *cache, int64_t n);

#endif
