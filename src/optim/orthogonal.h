/* The orthogonal matrix nearest to a given one, about: five steps of Newton and Schulz's iteration in bf16, as Muon has
 * them. Singular values come out between 0.7 and 1.2, which is all that Muon wants. */
#ifndef OPTIM_ORTHOGONAL_H
#define OPTIM_ORTHOGONAL_H

#include "device/device.h"

/* Device memory that orthogonalize() needs for a matrix. */
size_t orthogonal_workspace(const device *dev, int64_t rows, int64_t columns);

/* x and out: (rows, columns), bf16. They do not overlap. A matrix of zeros gives zeros. */
fsdp_status orthogonalize(device *dev, stream *s, int64_t rows, int64_t columns, const uint16_t *x, uint16_t *out,
                          void *workspace);

#endif
