/* The CPU as a device: memory, streams that run inline, events that are times, and the choice of kernels. The kernels
 * are in simd/, matrix products behind gemm/gemm.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "base/host/host_memory.h"
#include "base/host/threads.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/parallel.h"

#define ALIGNMENT 256
#define HUGE_PAGE ((size_t)2 << 20)
#define PAGE ((size_t)4096)
#define WORKSPACE_LIMIT ((size_t)1 << 30)

struct event {
    int64_t time_ns;
};

static const char *const memory_names[] = {[MEMORY_DEVICE] = "device", [MEMORY_HOST] = "host"};

/* Blocks of a huge page and more are mapped, on a huge page boundary; smaller ones come from the heap. */
static bool is_mapped(size_t bytes)
{
    return bytes >= HUGE_PAGE;
}

static void touch_page(const void *context, int64_t at)
{
    volatile char *memory = *(char *const *)context;
    memory[at] = 0;
}

/* First touch takes microseconds a page: all threads share it, and it is over before the first step. */
static void touch(const device_cpu *d, char *memory, size_t bytes)
{
    parallel_for(d->n_threads, (int64_t)bytes, PAGE, touch_page, &memory);
}

static void *map_aligned(size_t bytes)
{
    size_t length = bytes + HUGE_PAGE;
    char *start = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (start == MAP_FAILED)
        return NULL;
    char *aligned = (char *)round_up((size_t)start, HUGE_PAGE);
    size_t before = (size_t)(aligned - start), after = HUGE_PAGE - before;
    if (before)
        munmap(start, before);
    if (after)
        munmap(aligned + bytes, after);
    madvise(aligned, bytes, MADV_HUGEPAGE); /* advice: a refusal changes nothing but speed */
    return aligned;
}

static fsdp_status cpu_allocate(device *base, memory_kind kind, size_t bytes, void **out)
{
    device_cpu *d = (device_cpu *)base;
    size_t taken = round_up(bytes ? bytes : 1, is_mapped(bytes) ? PAGE : ALIGNMENT);
    *out = NULL;
    if (taken < bytes || taken > SIZE_MAX - HUGE_PAGE)
        return error_set(FSDP_ERR_MEMORY, "cpu: %zu bytes are more than an address space holds", bytes);
    void *memory = is_mapped(bytes) ? map_aligned(taken) : aligned_alloc(ALIGNMENT, taken);
    if (!memory)
        return error_set_errno(
            FSDP_ERR_MEMORY,
            "cpu: no %.1f MiB of %s memory; use a smaller batch, more ranks, or a machine with more memory",
            (double)bytes / (1 << 20), memory_names[kind]);
    if (is_mapped(bytes))
        touch(d, memory, taken);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, memory_names[kind], NULL, (int64_t)bytes, 0);
    *out = memory;
    return FSDP_OK;
}

static void cpu_release(device *base, memory_kind kind, void *memory, size_t bytes)
{
    (void)base;
    if (!memory)
        return;
    if (is_mapped(bytes))
        munmap(memory, round_up(bytes, PAGE));
    else
        free(memory);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, memory_names[kind], NULL, -(int64_t)bytes, 0);
}

static fsdp_status cpu_stream_create(device *base, int priority, stream **out)
{
    (void)priority;
    stream *s = malloc(sizeof *s);
    *out = s;
    if (!s)
        return error_set(FSDP_ERR_MEMORY, "cpu: no memory for a stream");
    s->device = (const device_cpu *)base;
    return FSDP_OK;
}

static void cpu_stream_free(stream *s)
{
    free(s);
}

static fsdp_status cpu_stream_synchronize(stream *s)
{
    (void)s;
    return FSDP_OK;
}

static fsdp_status cpu_event_create(device *base, event **out)
{
    (void)base;
    *out = calloc(1, sizeof **out);
    return *out ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "cpu: no memory for an event");
}

static void cpu_event_free(event *e)
{
    free(e);
}

/* Whoever records an event on one thread and waits for it on another passes it over by means that order memory. */
static fsdp_status cpu_event_record(stream *s, event *e)
{
    (void)s;
    e->time_ns = clock_nanoseconds();
    return FSDP_OK;
}

static fsdp_status cpu_stream_wait(stream *s, event *e)
{
    (void)s;
    (void)e;
    return FSDP_OK;
}

static fsdp_status cpu_event_elapsed(event *from, event *to, double *milliseconds)
{
    if (!from->time_ns || !to->time_ns)
        return error_set(FSDP_ERR_STATE, "cpu: time asked between events of which one was never recorded");
    *milliseconds = (double)(to->time_ns - from->time_ns) * 1e-6;
    return FSDP_OK;
}

static fsdp_status cpu_event_done(event *e, bool *done)
{
    (void)e;
    *done = true;
    return FSDP_OK;
}

#define SHARED_BYTES ((int64_t)512 << 10) /* smaller blocks are not worth waking the other threads */

typedef struct transfer {
    char *to;
    const char *from; /* NULL: zeros */
    int64_t bytes, share;
} transfer;

static void transfer_share(const void *context, int64_t at)
{
    const transfer *t = context;
    size_t bytes = (size_t)min_i64(t->share, t->bytes - at);
    if (t->from)
        memcpy(t->to + at, t->from + at, bytes);
    else
        memset(t->to + at, 0, bytes);
}

/* One share for each thread: large pieces let memcpy choose stores that bypass the caches. */
static void transfer_run(const stream *s, transfer *t)
{
    int threads = t->bytes < SHARED_BYTES ? 1 : cpu_threads(s);
    t->share = (int64_t)round_up((size_t)(t->bytes / threads) + 1, PAGE);
    parallel_for(threads, t->bytes, t->share, transfer_share, t);
}

static fsdp_status cpu_copy(stream *s, void *to, const void *from, size_t bytes)
{
    transfer t = {.to = to, .from = from, .bytes = (int64_t)bytes};
    transfer_run(s, &t);
    return FSDP_OK;
}

static fsdp_status cpu_zero(stream *s, void *to, size_t bytes)
{
    transfer t = {.to = to, .bytes = (int64_t)bytes};
    transfer_run(s, &t);
    return FSDP_OK;
}

static size_t cpu_available(device *d)
{
    (void)d;
    return host_memory_available();
}

static void cpu_close(device *d)
{
    free(d);
}

static const char *const level_names[SIMD_LEVEL_COUNT] = {"baseline", "AVX2", "AVX-512"};

/* NULL: not in this build. */
static const kernel_table *const level_kernels[SIMD_LEVEL_COUNT] = {
#ifdef FSDP_WITH_SIMD_base
    [SIMD_BASE] = &cpu_kernels_base,
#endif
#ifdef FSDP_WITH_SIMD_avx2
    [SIMD_AVX2] = &cpu_kernels_avx2,
#endif
#ifdef FSDP_WITH_SIMD_avx512
    [SIMD_AVX512] = &cpu_kernels_avx512,
#endif
};

const char *cpu_level_name(simd_level level)
{
    return level_names[level];
}

static simd_level processor_level(void)
{
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
        return SIMD_AVX512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return SIMD_AVX2; /* every processor with AVX2 and FMA has F16C */
#endif
    return SIMD_BASE;
}

simd_level cpu_best_level(void)
{
    simd_level level = processor_level();
    while (level > SIMD_BASE && !level_kernels[level])
        level--;
    return level;
}

/* The processor's own name for itself, "" where the system does not say. */
static void processor_name(char *out, size_t size)
{
    char line[256];
    out[0] = '\0';
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && !out[0] && fgets(line, sizeof line, file)) {
        char *value = strstr(line, ": ");
        if (strncmp(line, "model name", 10) == 0 && value)
            snprintf(out, size, "%.*s", (int)strcspn(value + 2, "\n"), value + 2);
    }
    if (file)
        fclose(file);
}

static const device cpu_device_template = {
    .name = "cpu",
    .workspace_limit = WORKSPACE_LIMIT,
    .allocate = cpu_allocate,
    .release = cpu_release,
    .stream_create = cpu_stream_create,
    .stream_free = cpu_stream_free,
    .stream_synchronize = cpu_stream_synchronize,
    .event_create = cpu_event_create,
    .event_free = cpu_event_free,
    .event_record = cpu_event_record,
    .stream_wait = cpu_stream_wait,
    .event_elapsed = cpu_event_elapsed,
    .event_done = cpu_event_done,
    .copy = cpu_copy,
    .zero = cpu_zero,
    .available = cpu_available,
    .close = cpu_close,
};

fsdp_status device_open_cpu_level(cpu_gemm product, simd_level level, device **out)
{
    *out = NULL;
    if (level > cpu_best_level())
        return error_set(FSDP_ERR_UNSUPPORTED, "cpu: this processor has no %s", cpu_level_name(level));
    if (!level_kernels[level])
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "cpu: this fsdp was built for another processor (FSDP_SIMD=native) and has "
                         "no kernels for this one; build it here, or with -DFSDP_SIMD=all");
    device_cpu *d = calloc(1, sizeof *d);
    if (!d)
        return error_set(FSDP_ERR_MEMORY, "cpu: no memory for the device");
    fsdp_status status = FSDP_OK;
    TRY_OR(fail, gemm_choose(product, &d->product));
    d->base = cpu_device_template;
    d->kernels = *level_kernels[level];
    d->base.kernels = &d->kernels;
    d->level = level;
    d->n_threads = d->base.threads = d->product.max_threads;
    char processor[96];
    processor_name(processor, sizeof processor);
    snprintf(d->base.description, sizeof d->base.description, "%s%s%d threads, kernels %s, products %.120s", processor,
             processor[0] ? ", " : "", d->n_threads, cpu_level_name(level), gemm_describe(&d->product));
    *out = &d->base;
    return FSDP_OK;
fail:
    free(d);
    return status;
}

fsdp_status device_open_cpu(cpu_gemm product, device **out)
{
    return device_open_cpu_level(product, cpu_best_level(), out);
}
