/* What the arguments of all kernels are made of (kernels.h). */
#ifndef DEVICE_KERNELS_OPERAND_H
#define DEVICE_KERNELS_OPERAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/dtype.h>

typedef struct buffer {
    void *p;
    fsdp_dtype dtype;
} buffer;

/* Numbers that change from step to step, in device memory, so that a recorded graph sees them. */
typedef struct step_scalars {
    uint64_t step; /* counts micro-batches since the start of training */
    /* Global index of this rank's first sample in this micro-batch: first_sample, and so many times the samples that an
     * operation works on as are before this rank's share (samples.h). */
    uint64_t first_sample, share;
} step_scalars;

#endif
