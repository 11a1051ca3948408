/* Scalar conversions between fp32 and the two 16-bit floating types, rounding to nearest even. */
#ifndef DEVICE_CPU_PRODUCT_CONVERT_H
#define DEVICE_CPU_PRODUCT_CONVERT_H

#include <stdint.h>
#include <string.h>

#include <fsdp/dtype.h>

static inline float convert_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t convert_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float convert_from_bf16(uint16_t x)
{
    return convert_bits((uint32_t)x << 16);
}

static inline uint16_t convert_to_bf16(float x)
{
    uint32_t bits = convert_to_bits(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u); /* stays a NaN, made quiet */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float convert_from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = (x >> 10) & 31u, fraction = x & 0x3ffu;
    if (exponent == 31)
        return convert_bits(sign | 0x7f800000u | fraction << 13 | (fraction ? 0x400000u : 0u));
    if (exponent == 0) /* zero and subnormals: fraction * 2^-24, exact */
        return convert_bits(sign | convert_to_bits((float)fraction * 0x1p-24f));
    return convert_bits(sign | (exponent + 112) << 23 | fraction << 13);
}

static inline uint16_t convert_to_f16(float x)
{
    uint32_t bits = convert_to_bits(x), sign = (bits >> 16) & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x38800000u) /* below 2^-14: adding 0.5 makes the fp32 adder round to a multiple of 2^-24 */
        return (uint16_t)(sign | (convert_to_bits(convert_bits(magnitude) + 0.5f) - 0x3f000000u));
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - 0x38000000u) >> 13));
}

/* Element `i` of floating memory. */
static inline float convert_load(const void *p, fsdp_dtype dtype, int64_t i)
{
    switch (dtype) {
    case FSDP_BF16:
        return convert_from_bf16(((const uint16_t *)p)[i]);
    case FSDP_F16:
        return convert_from_f16(((const uint16_t *)p)[i]);
    default:
        return ((const float *)p)[i];
    }
}

static inline void convert_store(void *p, fsdp_dtype dtype, int64_t i, float value)
{
    switch (dtype) {
    case FSDP_BF16:
        ((uint16_t *)p)[i] = convert_to_bf16(value);
        break;
    case FSDP_F16:
        ((uint16_t *)p)[i] = convert_to_f16(value);
        break;
    default:
        ((float *)p)[i] = value;
    }
}

#endif
