/* The orthogonal matrix nearest to a given one, about: five steps of Newton and Schulz's iteration in bf16, as Muon has
 * them. Singular values come out between 0.7 and 1.2, which is all that Muon wants. */
#ifndef OPTIM_ORTHOGONAL_H
#define OPTIM_ORTHOGONAL_H

#include "device/device.h"

/* Matrices that are worked on side by side; none changes what becomes of another. */
enum { ORTHOGONAL_ITEMS = SYMMETRIC_ITEMS };

typedef struct orthogonal_item {
    int64_t rows, columns;
    const uint16_t *x; /* (rows, columns), bf16 */
    uint16_t *out;     /* likewise; they do not overlap */
} orthogonal_item;

/* How many of n items, at least one, are worth working on side by side: more would take much memory. */
int orthogonal_group(const orthogonal_item *items, int n);
/* Device memory that orthogonalize() needs for a group. Pointers are not looked at. */
size_t orthogonal_workspace(const device *dev, const orthogonal_item *items, int n);

/* n <= ORTHOGONAL_ITEMS. A matrix of zeros gives zeros. */
fsdp_status orthogonalize(device *dev, stream *s, const orthogonal_item *items, int n, void *workspace);

#endif
