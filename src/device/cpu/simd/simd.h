/* One source, three instruction sets: every file in this folder is compiled with -DSIMD_LEVEL=base, avx2 and avx512 and
 * the matching flags, and what it exports carries the level in its name. device_cpu.c chooses a table at run time.
 * Loops are plain C that compilers vectorise; only the matrix tiles (tile.h) name a vector type. */
#ifndef DEVICE_CPU_SIMD_SIMD_H
#define DEVICE_CPU_SIMD_SIMD_H

#include "device/cpu/cpu_device.h"
#include "device/cpu/parallel.h"

#ifndef SIMD_LEVEL
#error "compile with -DSIMD_LEVEL=base, avx2 or avx512"
#endif

#define SIMD_JOIN_(name, level) name##_##level
#define SIMD_JOIN(name, level) SIMD_JOIN_(name, level)
#define SIMD_NAME(name) SIMD_JOIN(name, SIMD_LEVEL)

#define SIMD_KERNEL(entry, args) fsdp_status SIMD_NAME(entry)(struct stream * s, const args *a)
#define SIMD_WORKSPACE(entry, args) size_t SIMD_NAME(entry##_workspace)(const struct device *d, const args *a)

#define SIMD_DECLARE(entry, args) SIMD_KERNEL(entry, args);
#define SIMD_DECLARE_WITH_WORKSPACE(entry, args)                                                                       \
    SIMD_KERNEL(entry, args);                                                                                          \
    SIMD_WORKSPACE(entry, args);
KERNELS(SIMD_DECLARE, SIMD_DECLARE_WITH_WORKSPACE)

/* a * b + c: fused where the level has the instruction (contraction is off, so it must be asked for). */
static inline float simd_fma(float a, float b, float c)
{
#ifdef __FMA__
    return __builtin_fmaf(a, b, c);
#else
    return a * b + c;
#endif
}

#endif
