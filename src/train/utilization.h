/* The peak rate of a job's devices, so that a step can be given as a share of it. */
#ifndef TRAIN_UTILIZATION_H
#define TRAIN_UTILIZATION_H

#include "comm/comm.h"
#include "comm/world.h"

/* Operations a second of all ranks together in products of `dtype`: the maker's figure for a GPU that is known, on CPUs
 * the rate of a short product, measured by all ranks at the same time (tens of milliseconds). 0: not known. Collective.
 */
fsdp_status utilization_peak(fsdp_world *world, fsdp_dtype dtype, double *flops);

#endif
