/* The optimizer's pass over host memory, as offloaded units take it: parameters, gradients, moments and the bf16 copy
 * of a model too large for any cache. Prints what it moves a second, beside a plain copy of the same memory. Usage:
 * bench_adamw [millions of parameters] [threads ...] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/threads.h"
#include "device/device.h"

typedef struct arrays {
    int64_t n;
    float *parameter, *gradient, *moment1, *moment2;
    uint16_t *copy;
} arrays;

static void *take(device *d, size_t bytes)
{
    void *memory = NULL;
    if (d->allocate(d, MEMORY_HOST, bytes, &memory) != FSDP_OK) {
        fprintf(stderr, "bench_adamw: %s\n", fsdp_last_error());
        exit(1);
    }
    return memory;
}

static fsdp_status update(device *d, stream *s, const arrays *a, bool copy)
{
    const optimizer_scalars numbers = {.lr = 1e-4f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-8f,
                                       .weight_decay = 0.1f,
                                       .bias_correction1 = 0.1f,
                                       .bias_correction2 = 0.05f,
                                       .gradient_scale = 1.0f};
    optimizer_args o = {.kind = FSDP_ADAMW,
                        .n = a->n,
                        .decay = true,
                        .parameter = a->parameter,
                        .gradient = a->gradient,
                        .moment1 = a->moment1,
                        .moment2 = a->moment2,
                        .copy = {copy ? a->copy : NULL, FSDP_BF16},
                        .scalars = &numbers};
    return d->kernels->optimizer(s, &o);
}

static void report(const char *what, int threads, double best, double bytes)
{
    printf("%2d threads  %-24s %9.2f ms  %7.1f GB/s\n", threads, what, best * 1e3, bytes / best * 1e-9);
    fflush(stdout);
}

enum { ROUNDS = 7 };

static fsdp_status measure(device *d, stream *s, const arrays *a, int threads)
{
    const char *const names[] = {"copy (read and write)", "AdamW", "AdamW, bf16 copy"};
    const double bytes[] = {8, 28, 30};
    for (int what = 0; what < 3; what++) {
        double best = INFINITY;
        for (int i = 0; i < ROUNDS; i++) {
            double begun = clock_seconds();
            fsdp_status status = what == 0 ? d->copy(s, a->moment2, a->moment1, (size_t)a->n * sizeof(float))
                                           : update(d, s, a, what == 2);
            if (status != FSDP_OK)
                return status;
            best = fmin(best, clock_seconds() - begun);
        }
        report(names[what], threads, best, bytes[what] * (double)a->n);
    }
    return FSDP_OK;
}

/* A device of its own for every number of threads: it is fixed when the device opens. */
static fsdp_status run(int threads, int64_t n)
{
    device *d;
    stream *s;
    threads_set(threads, 1);
    if (device_open_cpu(CPU_GEMM_AUTO, &d) != FSDP_OK || d->stream_create(d, 0, &s) != FSDP_OK)
        return FSDP_ERR_DEVICE;
    size_t bytes = (size_t)n * sizeof(float);
    arrays a = {n, take(d, bytes), take(d, bytes), take(d, bytes), take(d, bytes), take(d, bytes / 2)};
    float *const all[] = {a.parameter, a.gradient, a.moment1, a.moment2};
    fsdp_status status = FSDP_OK;
    for (int i = 0; i < 4 && status == FSDP_OK; i++) {
        fill_args f = {.n = n, .alpha = 0.01f * (float)(i + 1), .out = {all[i], FSDP_F32}};
        status = d->kernels->fill(s, &f);
    }
    if (status == FSDP_OK)
        status = measure(d, s, &a, threads);
    for (int i = 0; i < 4; i++)
        d->release(d, MEMORY_HOST, all[i], bytes);
    d->release(d, MEMORY_HOST, a.copy, bytes / 2);
    d->stream_free(s);
    device_close(d);
    return status;
}

int main(int argc, char **argv)
{
    int64_t n = (argc > 1 ? atoll(argv[1]) : 256) << 20;
    fsdp_status status = FSDP_OK;
    for (int i = 2; i < argc && status == FSDP_OK; i++)
        status = run(atoi(argv[i]), n);
    if (argc < 3)
        status = run(threads_cores(), n);
    if (status != FSDP_OK)
        fprintf(stderr, "bench_adamw: %s\n", fsdp_last_error());
    return status == FSDP_OK ? 0 : 1;
}
