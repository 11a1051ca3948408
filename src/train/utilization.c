/* The table of GPUs is peak.c's; the product that is timed on CPUs is here, and short enough for every start. */
#include "train/utilization.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "device/peak.h"

enum { SIDE = 512, MAX_ROUNDS = 16 };
static const double longest_seconds = 0.03;

/* The best round counts: the first one faults pages in and packs for the first time. */
static fsdp_status time_products(device *dev, stream *s, const gemm_args *a, double *rate)
{
    double best = INFINITY, began = clock_seconds(), operations = 2.0 * SIDE * SIDE * SIDE;
    for (int round = 0; round < MAX_ROUNDS && (round < 2 || clock_seconds() - began < longest_seconds); round++) {
        double start = clock_seconds();
        FSDP_TRY(dev->kernels->gemm(s, a));
        FSDP_TRY(dev->stream_synchronize(s));
        best = fmin(best, clock_seconds() - start);
    }
    *rate = operations / best;
    return FSDP_OK;
}

/* Host memory from malloc: what a run takes for its own is counted to the byte, and this is no part of it. */
static fsdp_status measure_cpu(device *dev, stream *s, fsdp_dtype dtype, double *rate)
{
    gemm_args a = {.transpose_b = true, .m = SIDE, .n = SIDE, .k = SIDE, .alpha = 1, .batch = 1};
    a.a.dtype = a.b.dtype = a.c.dtype = a.d.dtype = dtype;
    a.lda = a.ldb = a.ldc = a.ldd = SIDE;
    size_t matrix = (size_t)SIDE * SIDE * sizeof(float), workspace = dev->kernels->gemm_workspace(dev, &a);
    char *memory = aligned_alloc(256, 3 * matrix + (size_t)round_up(workspace, 256));
    if (!memory)
        return error_set(FSDP_ERR_MEMORY, "measuring products: out of host memory");
    memset(memory, 0, 3 * matrix); /* a CPU multiplies zeros as fast as anything */
    a.a.p = memory;
    a.b.p = memory + matrix;
    a.c.p = a.d.p = memory + 2 * matrix;
    a.workspace = memory + 3 * matrix;
    fsdp_status status = time_products(dev, s, &a, rate);
    free(memory);
    return status;
}

fsdp_status utilization_peak(fsdp_world *world, fsdp_dtype dtype, double *flops)
{
    comm_group *all = comm_world(world->comm);
    *flops = 0;
    if (world->dev->own_memory) {
        *flops = peak_tflops(world->dev, dtype) * 1e12;
    } else {
        FSDP_TRY(comm_all_reduce_f64(all, "start of measuring", 0, FSDP_REDUCE_SUM, flops, 1)); /* together */
        FSDP_TRY(measure_cpu(world->dev, world->compute, dtype, flops));
    }
    return comm_all_reduce_f64(all, "peak rate", 0, FSDP_REDUCE_SUM, flops, 1);
}
