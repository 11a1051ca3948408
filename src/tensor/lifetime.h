/* Packing: intervals of time with sizes get offsets so that what lives at the same time does not overlap. */
#ifndef TENSOR_LIFETIME_H
#define TENSOR_LIFETIME_H

#include <stddef.h>

#include <fsdp/status.h>

typedef struct lifetime {
    size_t bytes;
    int first, last; /* inclusive */
    size_t offset;   /* result, a multiple of 256 */
} lifetime;

/* Returns the total in *slab_bytes. Largest first, each at the lowest offset that is free over its whole life. */
fsdp_status lifetime_pack(lifetime *items, int n, size_t *slab_bytes);

#endif
