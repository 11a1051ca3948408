/* One element of floating memory at a time, whatever its type. */
#ifndef DEVICE_CPU_GEMM_CONVERT_H
#define DEVICE_CPU_GEMM_CONVERT_H

#include <fsdp/dtype.h>

#include "base/float_bits.h"

static inline float convert_load(const void *p, fsdp_dtype dtype, int64_t i)
{
    switch (dtype) {
    case FSDP_BF16:
        return float_bits_from_bf16(((const uint16_t *)p)[i]);
    case FSDP_F16:
        return float_bits_from_f16(((const uint16_t *)p)[i]);
    default:
        return ((const float *)p)[i];
    }
}

static inline void convert_store(void *p, fsdp_dtype dtype, int64_t i, float value)
{
    switch (dtype) {
    case FSDP_BF16:
        ((uint16_t *)p)[i] = float_bits_to_bf16(value);
        break;
    case FSDP_F16:
        ((uint16_t *)p)[i] = float_bits_to_f16(value);
        break;
    default:
        ((float *)p)[i] = value;
    }
}

#endif
