/* The CPU device from the inside: what its streams carry, and the kernel tables it chooses from. Kernels see only this
 * much of the device; memory, streams and events are in device_cpu.c, matrix products in gemm/gemm.c. */
#ifndef DEVICE_CPU_CPU_DEVICE_H
#define DEVICE_CPU_CPU_DEVICE_H

#include "device/cpu/gemm/gemm.h"
#include "device/device.h"

/* One portable source, compiled once per level (see simd/simd.h). Processors other than x86-64 have the first only. */
typedef enum simd_level { SIMD_BASE, SIMD_AVX2, SIMD_AVX512, SIMD_LEVEL_COUNT } simd_level;

typedef struct device_cpu {
    device base;
    kernel_table kernels;
    simd_level level;
    cpu_gemm_set product;
    int n_threads; /* fixed when the device opens, so that workspaces asked for early still fit later */
} device_cpu;

struct stream {
    const device_cpu *device;
};

/* The best level this machine runs, and the name of a level. */
simd_level cpu_best_level(void);
const char *cpu_level_name(simd_level level);

/* As device_open_cpu with the level forced, for tests and timing. FSDP_ERR_UNSUPPORTED when the machine has not got it.
 */
fsdp_status device_open_cpu_level(cpu_gemm product, simd_level level, device **out);

extern const kernel_table cpu_kernels_base;
#ifdef __x86_64__
extern const kernel_table cpu_kernels_avx2;
extern const kernel_table cpu_kernels_avx512;
#endif

static inline int cpu_threads(const struct stream *s)
{
    return s->device->n_threads;
}

static inline int cpu_device_threads(const struct device *d)
{
    return ((const device_cpu *)d)->n_threads;
}

/* Threads for `work` element operations: one where waking the others would cost more than it gains. */
static inline int cpu_threads_for(const struct stream *s, int64_t work)
{
    return work < 16384 ? 1 : s->device->n_threads;
}

#endif
