/* Small helpers for operations on strided memory. */
#ifndef TENSOR_STRIDES_H
#define TENSOR_STRIDES_H

#include <string.h>

#include "tensor/tape.h"

/* Elements from one index to the next in each dimension of a contiguous tensor; the rest of `stride` is zero. */
static inline void strides_of(int n_dims, const int64_t *shape, int64_t *stride)
{
    memset(stride, 0, FSDP_MAX_DIMS * sizeof *stride);
    stride[n_dims - 1] = 1;
    for (int i = n_dims - 2; i >= 0; i--)
        stride[i] = stride[i + 1] * shape[i + 1];
}

/* A reduction has at least one kept and one reduced dimension. */
static inline void reduce_stand_in(reduce_dims_args *r)
{
    if (r->n_kept == 0)
        r->kept[r->n_kept++] = 1;
    if (r->n_reduced == 0)
        r->reduced[r->n_reduced++] = 1;
}

/* Dimension counted from either end; -1 when there is no such one. */
static inline int dimension_of(const fsdp_tensor *x, int dim)
{
    int positive = dim < 0 ? dim + x->n_dims : dim;
    return positive >= 0 && positive < x->n_dims ? positive : -1;
}

/* ops_math.c. a and b repeated to a common shape. */
fsdp_tensor *ops_broadcast(fsdp_tape *t, combine_kind kind, fsdp_tensor *a, fsdp_tensor *b);
/* ops_axis.c. `on` where the class is the id's and `off` elsewhere; rows whose id is `ignore` are 0. */
fsdp_tensor *ops_one_hot(fsdp_tape *t, fsdp_tensor *ids, int64_t classes, int32_t ignore, float on, float off,
                         fsdp_dtype dtype);

#endif
