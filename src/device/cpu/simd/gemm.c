/* The table's entry for matrix products; gemm/gemm.h has what is behind it. */
#include "device/cpu/simd/simd.h"

SIMD_KERNEL(gemm, gemm_args)
{
    return gemm_gemm(&s->device->product, a);
}

SIMD_WORKSPACE(gemm, gemm_args)
{
    return gemm_workspace_bytes(&((const device_cpu *)d)->product, a);
}
