/* Times single kernels on a device: memory for their operands, filled with random numbers, and rounds of calls. Which
 * kernels, at which shapes, is kernels.c's. */
#ifndef BENCH_TIMER_H
#define BENCH_TIMER_H

#include <fsdp/bench.h>

#include "device/device.h"

enum { BENCH_TIMER_BLOCKS = 32 };

typedef struct bench_timer {
    device *dev;
    stream *stream;
    fsdp_bench_kernels *result;
    fsdp_status status; /* the first failure: everything after it does nothing */
    struct {
        void *memory;
        size_t bytes;
    } blocks[BENCH_TIMER_BLOCKS];
    int n_blocks;
    float *noise; /* random numbers that buffers are filled from */
} bench_timer;

typedef fsdp_status (*bench_call)(const kernel_table *k, stream *s, const void *args);

fsdp_status bench_timer_open(bench_timer *t, device *d, stream *s, fsdp_bench_kernels *result);
void bench_timer_close(bench_timer *t);

/* Memory until bench_timer_free_all; NULL after a failure. */
void *bench_timer_take(bench_timer *t, size_t bytes);
buffer bench_timer_values(bench_timer *t, fsdp_dtype dtype, int64_t n); /* normal numbers */
void *bench_timer_put(bench_timer *t, const void *host, size_t bytes);  /* a copy of host memory */
float *bench_timer_zeros(bench_timer *t, size_t n);
void bench_timer_free_all(bench_timer *t);

/* Adds a row: what one call takes, and the rate that it amounts to, of floating-point operations where flops > 0, else
 * of bytes. */
void bench_timer_run(bench_timer *t, const char *name, const char *shape, bench_call call, const void *args,
                     double flops, double bytes);

/* A bench_call for each kernel: call_gemm, call_rope, ... */
#define BENCH_CALL(entry, args_type)                                                                                   \
    __attribute__((unused)) static fsdp_status call_##entry(const kernel_table *k, stream *s, const void *args)        \
    {                                                                                                                  \
        return k->entry(s, (const args_type *)args);                                                                   \
    }

/* Workspace for the arguments, taken from the timer. */
#define BENCH_WORKSPACE(t, entry, args)                                                                                \
    (args).workspace = bench_timer_take(t, (t)->dev->kernels->entry##_workspace((t)->dev, &(args)))

#endif
