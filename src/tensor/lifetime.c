/* Offset assignment for planned memory. Greedy by size: big blocks are placed first, small ones fill the gaps between
 * those alive at the same time. Ties are broken by index, so the plan is the same on every machine. */
#include "tensor/lifetime.h"

#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"

#define ALIGNMENT 256

typedef struct order {
    size_t bytes;
    int index;
} order;

static int larger_first(const void *a, const void *b)
{
    const order *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes < y->bytes ? 1 : -1;
    return x->index - y->index;
}

static int by_offset(const lifetime *items, int a, int b)
{
    if (items[a].offset != items[b].offset)
        return items[a].offset < items[b].offset ? -1 : 1;
    return a - b;
}

/* Lowest offset at which `item` fits beside the already placed ones; `placed` is sorted by offset. */
static size_t lowest_fit(const lifetime *items, const int *placed, int n_placed, const lifetime *item)
{
    size_t at = 0;
    for (int i = 0; i < n_placed; i++) {
        const lifetime *other = &items[placed[i]];
        if (other->last < item->first || other->first > item->last)
            continue;
        if (at + item->bytes <= other->offset)
            break;
        size_t end = round_up(other->offset + other->bytes, ALIGNMENT);
        if (end > at)
            at = end;
    }
    return at;
}

fsdp_status lifetime_pack(lifetime *items, int n, size_t *slab_bytes)
{
    *slab_bytes = 0;
    if (n == 0)
        return FSDP_OK;
    order *sorted = malloc((size_t)n * sizeof *sorted);
    int *placed = malloc((size_t)n * sizeof *placed);
    if (!sorted || !placed) {
        free(sorted);
        free(placed);
        return error_set(FSDP_ERR_MEMORY, "planning memory for %d values: out of host memory", n);
    }
    for (int i = 0; i < n; i++)
        sorted[i] = (order){items[i].bytes, i};
    qsort(sorted, (size_t)n, sizeof *sorted, larger_first);

    int n_placed = 0;
    for (int i = 0; i < n; i++) {
        lifetime *item = &items[sorted[i].index];
        item->offset = lowest_fit(items, placed, n_placed, item);
        if (item->offset + item->bytes > *slab_bytes)
            *slab_bytes = item->offset + item->bytes;
        int at = n_placed++;
        for (; at > 0 && by_offset(items, sorted[i].index, placed[at - 1]) < 0; at--)
            placed[at] = placed[at - 1];
        placed[at] = sorted[i].index;
    }
    *slab_bytes = round_up(*slab_bytes, ALIGNMENT);
    free(sorted);
    free(placed);
    return FSDP_OK;
}
