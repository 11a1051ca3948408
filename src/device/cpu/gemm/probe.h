/* Finds out whether AMX really works here before anything relies on it. */
#ifndef DEVICE_CPU_GEMM_PROBE_H
#define DEVICE_CPU_GEMM_PROBE_H

#include <stdbool.h>

#include "device/cpu/gemm/kernel.h"

/* NULL when the AMX kernel may be used, else the reason why not. Tried once in a process, in a child that an illegal
 * instruction kills instead of us; the answer is kept. */
const char *gemm_probe_amx(void);

/* Multiplies small matrices of whole numbers, for which every kernel must give the same exact sums, and compares with
 * the portable kernel. False also when memory is out. For bf16 operands. */
bool gemm_probe_kernel(const gemm_kernel *kernel);

#endif
