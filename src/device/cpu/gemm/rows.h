/* Products with few rows (generation, one token at a time): bound by reading op(b) once, so nothing is packed. */
#ifndef DEVICE_CPU_GEMM_ROWS_H
#define DEVICE_CPU_GEMM_ROWS_H

#include "device/cpu/gemm/kernel.h"

bool gemm_rows_fit(const gemm_args *args);

/* Needs no workspace. Wants gemm_rows_fit, n and batch positive. */
void gemm_rows(const gemm_kernel *kernel, int max_threads, const gemm_args *args);

#endif
