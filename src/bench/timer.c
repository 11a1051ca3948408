/* Memory, noise and clocks. A kernel is called a few times first, for what libraries choose then; after that in rounds
 * of as many calls as fill a few milliseconds, so that neither the clock nor the way to the device counts. */
#include "bench/timer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"

enum { NOISE = 1 << 22, WARMUP = 2, ROUNDS = 5, MAX_CALLS = 200 };
static const double round_seconds = 0.02, most_seconds = 0.4;

static fsdp_status make_noise(bench_timer *t)
{
    void *memory;
    FSDP_TRY(t->dev->allocate(t->dev, MEMORY_DEVICE, NOISE * sizeof(float), &memory));
    t->noise = memory;
    rng_key key = rng_key_make(7);
    if (t->dev->random) {
        random_args a = {.n = NOISE, .key = {key.k[0], key.k[1]}, .normal = true, .b = 1, .out = t->noise};
        return t->dev->random(t->stream, &a);
    }
    rng_fill_normal(key, 0, NOISE, 0, 1, t->noise);
    return FSDP_OK;
}

fsdp_status bench_timer_open(bench_timer *t, device *d, stream *s, fsdp_bench_kernels *result)
{
    *t = (bench_timer){.dev = d, .stream = s, .result = result};
    t->status = make_noise(t);
    return t->status;
}

void bench_timer_close(bench_timer *t)
{
    bench_timer_free_all(t);
    if (t->dev)
        t->dev->release(t->dev, MEMORY_DEVICE, t->noise, t->noise ? NOISE * sizeof(float) : 0);
}

void *bench_timer_take(bench_timer *t, size_t bytes)
{
    void *memory = NULL;
    if (t->status != FSDP_OK || bytes == 0)
        return NULL;
    if (t->n_blocks == BENCH_TIMER_BLOCKS) {
        t->status = error_set(FSDP_ERR_STATE, "bench: a kernel with more than %d buffers", BENCH_TIMER_BLOCKS);
        return NULL;
    }
    t->status = t->dev->allocate(t->dev, MEMORY_DEVICE, bytes, &memory);
    if (t->status != FSDP_OK)
        return NULL;
    t->blocks[t->n_blocks].memory = memory;
    t->blocks[t->n_blocks++].bytes = bytes;
    return memory;
}

buffer bench_timer_values(bench_timer *t, fsdp_dtype dtype, int64_t n)
{
    size_t element = fsdp_dtype_size(dtype);
    buffer out = {bench_timer_take(t, (size_t)n * element), dtype};
    for (int64_t at = 0; at < n && t->status == FSDP_OK; at += NOISE) {
        axpby_args cast = {.n = n - at < NOISE ? n - at : NOISE,
                           .alpha = 1,
                           .a = {t->noise, FSDP_F32},
                           .out = {(char *)out.p + (size_t)at * element, dtype}};
        t->status = t->dev->kernels->axpby(t->stream, &cast);
    }
    return out;
}

void *bench_timer_put(bench_timer *t, const void *host, size_t bytes)
{
    void *memory = bench_timer_take(t, bytes);
    if (memory)
        t->status = t->dev->copy(t->stream, memory, host, bytes);
    if (t->status == FSDP_OK && memory)
        t->status = t->dev->stream_synchronize(t->stream);
    return memory;
}

float *bench_timer_zeros(bench_timer *t, size_t n)
{
    void *memory = bench_timer_take(t, n * sizeof(float));
    if (memory)
        t->status = t->dev->zero(t->stream, memory, n * sizeof(float));
    return memory;
}

void bench_timer_free_all(bench_timer *t)
{
    while (t->n_blocks > 0) {
        t->n_blocks--;
        t->dev->release(t->dev, MEMORY_DEVICE, t->blocks[t->n_blocks].memory, t->blocks[t->n_blocks].bytes);
    }
}

/* Seconds of `calls` calls. */
static fsdp_status time_calls(bench_timer *t, bench_call call, const void *args, int calls, double *seconds)
{
    double start = clock_seconds();
    for (int i = 0; i < calls; i++)
        FSDP_TRY(call(t->dev->kernels, t->stream, args));
    FSDP_TRY(t->dev->stream_synchronize(t->stream));
    *seconds = clock_seconds() - start;
    return FSDP_OK;
}

static fsdp_status time_kernel(bench_timer *t, bench_call call, const void *args, double *best)
{
    double seconds = 0, total = 0;
    FSDP_TRY(t->dev->stream_synchronize(t->stream));
    for (int i = 0; i < WARMUP; i++)
        FSDP_TRY(time_calls(t, call, args, 1, &seconds));
    int calls = (int)fmin(MAX_CALLS, ceil(round_seconds / fmax(seconds, 1e-6)));
    *best = INFINITY;
    for (int i = 0; i < ROUNDS && (i == 0 || total < most_seconds); i++) {
        FSDP_TRY(time_calls(t, call, args, calls, &seconds));
        *best = fmin(*best, seconds / calls);
        total += seconds;
    }
    return FSDP_OK;
}

void bench_timer_run(bench_timer *t, const char *name, const char *shape, bench_call call, const void *args,
                     double flops, double bytes)
{
    double best;
    if (t->status != FSDP_OK || t->result->n == FSDP_BENCH_ROWS)
        return;
    t->status = time_kernel(t, call, args, &best);
    if (t->status != FSDP_OK) {
        error_prefix(t->status, "%s: ", name);
        return;
    }
    fsdp_bench_kernel *row = &t->result->rows[t->result->n++];
    snprintf(row->name, sizeof row->name, "%s", name);
    snprintf(row->shape, sizeof row->shape, "%s", shape);
    row->milliseconds = best * 1e3;
    row->tflops = flops > 0 ? flops / best / 1e12 : 0;
    row->gigabytes = flops > 0 ? 0 : bytes / best / 1e9;
}
