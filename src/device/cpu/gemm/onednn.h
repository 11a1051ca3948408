/* fp32 products through oneDNN. Absent from builds without it: onednn_available says so. */
#ifndef DEVICE_CPU_GEMM_ONEDNN_H
#define DEVICE_CPU_GEMM_ONEDNN_H

#include <stdbool.h>
#include <stddef.h>

#include <fsdp/status.h>

#include "device/kernels.h"

/* Keeps the library at AVX-512 unless `tiles_safe`. Call before its first product; false when built without it. */
bool onednn_available(bool tiles_safe);

/* "oneDNN 2.6"; empty when built without it. Writes at most `bytes`, with the NUL. */
void onednn_name(char *out, size_t bytes);

/* a, b, c, d, bias all fp32; m, n, k and batch positive. Takes memory from the heap at every call, inside the library.
 */
fsdp_status onednn_gemm(const gemm_args *a, int threads);

#endif
