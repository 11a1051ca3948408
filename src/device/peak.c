/* The table of known devices, and the two measurements every other figure is compared with. */
#include "device/peak.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/rng.h"

enum { CPU_SIDE = 1024, GPU_SIDE = 8192, MAX_ROUNDS = 1000 };
static const double warm_seconds = 0.1, measured_seconds = 0.25;
static const size_t cpu_copy_bytes = (size_t)64 << 20, gpu_copy_bytes = (size_t)512 << 20;

/* Dense peaks of the data sheets, TFLOP/s. The first row whose words all occur in the device's name counts. */
static const struct {
    const char *words[2];
    double bf16, fp32;
} devices[] = {
    {{"GB200", ""}, 2500, 80},      {{"B300", ""}, 2250, 75},      {{"B200", ""}, 2250, 75},
    {{"B100", ""}, 1750, 60},       {{"GH200", ""}, 989.4, 66.9},  {{"H200", "NVL"}, 835.5, 60},
    {{"H200", ""}, 989.4, 66.9},    {{"H100", "PCIe"}, 756, 51.2}, {{"H100", "NVL"}, 835.5, 60},
    {{"H100", ""}, 989.4, 66.9},    {{"H800", ""}, 989.4, 66.9},   {{"H20", ""}, 148, 44},
    {{"A100", ""}, 312, 19.5},      {{"A800", ""}, 312, 19.5},     {{"A40", ""}, 149.7, 37.4},
    {{"A30", ""}, 165, 10.3},       {{"A10", ""}, 125, 31.2},      {{"A10G", ""}, 70, 31.5},
    {{"L40S", ""}, 362, 91.6},      {{"L40", ""}, 181, 90.5},      {{"L4", ""}, 121, 30.3},
    {{"6000", "Ada"}, 364, 91.1},   {{"A6000", ""}, 154.8, 38.7},  {{"RTX", "5090"}, 209.5, 104.8},
    {{"RTX", "4090"}, 165.2, 82.6}, {{"RTX", "3090"}, 71, 35.6},
};

/* `word` stands alone in the first `length` characters of `text`: L4 is not in "L40". */
static bool has_word(const char *text, size_t length, const char *word)
{
    size_t n = strlen(word);
    for (size_t at = 0; at + n <= length; at++)
        if (strncmp(text + at, word, n) == 0 && (at == 0 || !isalnum((unsigned char)text[at - 1])) &&
            (at + n == length || !isalnum((unsigned char)text[at + n])))
            return true;
    return n == 0;
}

double peak_tflops(const device *d, fsdp_dtype dtype)
{
    if (!d->own_memory)
        return 0;
    size_t length = strcspn(d->description, "("); /* the name comes first */
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (has_word(d->description, length, devices[i].words[0]) &&
            has_word(d->description, length, devices[i].words[1]))
            return dtype == FSDP_F32 ? devices[i].fp32 : devices[i].bf16;
    return 0;
}

/* Random numbers, because a card that multiplies zeros clocks higher. */
static fsdp_status fill_random(device *d, stream *s, int64_t n, uint64_t seed, float *out)
{
    rng_key key = rng_key_make(seed);
    if (d->random) {
        random_args a = {.n = n, .key = {key.k[0], key.k[1]}, .normal = true, .b = 1, .out = out};
        return d->random(s, &a);
    }
    rng_fill_normal(key, 0, n, 0, 1, out);
    return FSDP_OK;
}

/* a (n, n) of `dtype`; `whole` is fp32 room of the same count. */
static fsdp_status fill_matrix(device *d, stream *s, buffer a, int64_t n, uint64_t seed, float *whole)
{
    FSDP_TRY(fill_random(d, s, n, seed, whole));
    axpby_args cast = {.n = n, .alpha = 1, .a = {whole, FSDP_F32}, .out = a};
    return d->kernels->axpby(s, &cast);
}

typedef fsdp_status (*round_work)(device *d, stream *s, const void *args);

/* Seconds of the best round. What comes first does not count: libraries choose then, and clocks rise. */
static fsdp_status time_rounds(device *d, stream *s, round_work work, const void *args, double *best)
{
    *best = INFINITY;
    double begun = clock_seconds();
    for (int round = 0; round < MAX_ROUNDS; round++) {
        double start = clock_seconds();
        bool counts = round > 0 && start - begun > warm_seconds;
        if (isfinite(*best) && start - begun > warm_seconds + measured_seconds)
            break;
        FSDP_TRY(work(d, s, args));
        FSDP_TRY(d->stream_synchronize(s));
        if (counts)
            *best = fmin(*best, clock_seconds() - start);
    }
    return FSDP_OK;
}

static fsdp_status multiply(device *d, stream *s, const void *args)
{
    return d->kernels->gemm(s, args);
}

static fsdp_status time_product(device *d, stream *s, const gemm_args *a, double *tflops)
{
    double best;
    FSDP_TRY(time_rounds(d, s, multiply, a, &best));
    *tflops = 2.0 * (double)a->m * (double)a->n * (double)a->k / best / 1e12;
    return FSDP_OK;
}

fsdp_status peak_measure_products(device *d, stream *s, fsdp_dtype dtype, double *tflops)
{
    int64_t side = !d->own_memory ? CPU_SIDE : GPU_SIDE, n = side * side;
    size_t bytes = (size_t)n * fsdp_dtype_size(dtype), whole_bytes = (size_t)n * sizeof(float), workspace_bytes;
    void *matrices = NULL, *whole = NULL;
    gemm_args a = {.transpose_b = true, .m = side, .n = side, .k = side, .alpha = 1, .batch = 1};
    a.a.dtype = a.b.dtype = a.c.dtype = a.d.dtype = dtype;
    a.lda = a.ldb = a.ldc = a.ldd = side;
    workspace_bytes = round_up(d->kernels->gemm_workspace(d, &a), 256);
    fsdp_status status;
    TRY_OR(done, d->allocate(d, MEMORY_DEVICE, 2 * bytes, &matrices));
    TRY_OR(done, d->allocate(d, MEMORY_DEVICE, whole_bytes + workspace_bytes, &whole));
    a.a.p = matrices;
    a.b.p = (char *)matrices + bytes;
    a.c.p = a.d.p = whole; /* the result lies where the numbers came from */
    a.workspace = (char *)whole + whole_bytes;
    TRY_OR(done, fill_matrix(d, s, a.a, n, 1, whole));
    TRY_OR(done, fill_matrix(d, s, a.b, n, 2, whole));
    TRY_OR(done, d->stream_synchronize(s));
    status = time_product(d, s, &a, tflops);
done:
    d->release(d, MEMORY_DEVICE, whole, whole_bytes + workspace_bytes);
    d->release(d, MEMORY_DEVICE, matrices, 2 * bytes);
    return status;
}

static fsdp_status copy_by_kernel(device *d, stream *s, const void *args)
{
    return d->kernels->axpby(s, args);
}

static fsdp_status copy_by_device(device *d, stream *s, const void *args)
{
    const axpby_args *a = args;
    return d->copy(s, a->out.p, a->a.p, (size_t)a->n * sizeof(float));
}

/* The better of the device's own copy and of the kernel that uses all threads. */
fsdp_status peak_measure_copy(device *d, stream *s, double *gigabytes)
{
    size_t bytes = !d->own_memory ? cpu_copy_bytes : gpu_copy_bytes;
    double by_kernel, by_device;
    void *memory = NULL;
    FSDP_TRY(d->allocate(d, MEMORY_DEVICE, 2 * bytes, &memory));
    axpby_args copy = {.n = (int64_t)(bytes / sizeof(float)), .alpha = 1, .a = {memory, FSDP_F32}};
    copy.out = (buffer){(char *)memory + bytes, FSDP_F32};
    fsdp_status status;
    TRY_OR(done, d->zero(s, memory, 2 * bytes));
    TRY_OR(done, time_rounds(d, s, copy_by_kernel, &copy, &by_kernel));
    TRY_OR(done, time_rounds(d, s, copy_by_device, &copy, &by_device));
    *gigabytes = 2.0 * (double)bytes / fmin(by_kernel, by_device) / 1e9;
done:
    d->release(d, MEMORY_DEVICE, memory, 2 * bytes);
    return status;
}
