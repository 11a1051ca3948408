/* The table of one instruction set's kernels. */
#include "device/cpu/simd/simd.h"

#define ENTRY(entry, args) .entry = SIMD_NAME(entry),
#define ENTRY_WITH_WORKSPACE(entry, args) .entry = SIMD_NAME(entry), .entry##_workspace = SIMD_NAME(entry##_workspace),

const kernel_table SIMD_NAME(cpu_kernels) = {KERNELS(ENTRY, ENTRY_WITH_WORKSPACE)};
