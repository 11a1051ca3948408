/* The blocked product: packs operands into a kernel's panels and runs its tile over cache-sized blocks with threads. */
#ifndef DEVICE_CPU_GEMM_BLOCKED_H
#define DEVICE_CPU_GEMM_BLOCKED_H

#include "device/cpu/gemm/kernel.h"

/* m, n and batch must be positive; k may be 0. Runs on at most `max_threads`, for which the workspace was sized. */
void gemm_blocked(const gemm_kernel *kernel, int max_threads, const gemm_args *args);
size_t gemm_blocked_workspace(const gemm_kernel *kernel, int max_threads, const gemm_args *args);

#endif
