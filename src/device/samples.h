/* Where the samples of one operation stand among those of all ranks, for kernels whose random numbers follow from it.
 */
#ifndef DEVICE_SAMPLES_H
#define DEVICE_SAMPLES_H

#include "base/rng.h"
#include "device/kernels.h"

/* Global index of the first of `samples` that an operation works on. */
RNG_INLINE uint64_t samples_first(const step_scalars *n, int64_t samples)
{
    return n->first_sample + n->share * (uint64_t)samples;
}

#endif
