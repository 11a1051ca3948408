/* Products of 8-bit operands, by way of fp32: for tests and trials of a recipe without the GPU that is fast at them. */
#ifndef DEVICE_CPU_GEMM_FP8_H
#define DEVICE_CPU_GEMM_FP8_H

#include "device/cpu/gemm/gemm.h"

static inline bool fp8_is(fsdp_dtype dtype)
{
    return dtype == FSDP_E4M3 || dtype == FSDP_E5M2;
}

fsdp_status fp8_gemm(const cpu_gemm_set *set, const gemm_args *a);
size_t fp8_gemm_workspace(const cpu_gemm_set *set, const gemm_args *a);

#endif
