/* fp32, fp16, bf16 and the 8-bit floats as bit patterns: conversion, rounding to nearest even, a NaN stays one and
 * becomes quiet. Plain C, so that a file means the same numbers on every machine; fast kernels over device memory are
 * the device layer's. */
#ifndef BASE_FLOAT_BITS_H
#define BASE_FLOAT_BITS_H

#include <stdint.h>
#include <string.h>

static inline uint32_t float_bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_bits_to(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline float float_bits_from_bf16(uint16_t half)
{
    return float_bits_to((uint32_t)half << 16);
}

static inline uint16_t float_bits_to_bf16(float value)
{
    uint32_t bits = float_bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float float_bits_from_f16(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t magnitude = half & 0x7fffu;
    if (magnitude >= 0x7c00u)
        return float_bits_to(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13 | (magnitude > 0x7c00u ? 0x400000u : 0u));
    if (magnitude < 0x400u) /* subnormal: a multiple of 2^-24, exact in fp32 */
        return float_bits_to(sign | float_bits_of((float)magnitude * 0x1p-24f));
    return float_bits_to(sign | ((magnitude << 13) + (112u << 23)));
}

static inline uint16_t float_bits_to_f16(float value)
{
    uint32_t bits = float_bits_of(value);
    uint32_t sign = bits >> 16 & 0x8000u;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | (bits >> 13 & 0x3ffu));
    if (bits >= 0x477ff000u) /* 65520 and up round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (bits < 0x38800000u) /* below 2^-14: adding 0.5 leaves the multiple of 2^-24, rounded, in the low bits */
        return (uint16_t)(sign | (float_bits_of(float_bits_to(bits) + 0.5f) - 0x3f000000u));
    return (uint16_t)(sign | (bits - (112u << 23) + 0xfffu + (bits >> 13 & 1u)) >> 13);
}

/* An 8-bit float. E4M3 has no infinity: what E5M2 has for it is a number there. */
typedef struct float8_format {
    uint32_t mantissa_bits, bias;
    uint32_t largest, infinity, nan; /* codes without sign; no infinity: that of NaN */
    float max;                       /* the value of `largest` */
} float8_format;

static const float8_format float8_e4m3 __attribute__((unused)) = {3, 7, 0x7e, 0x7f, 0x7f, 448.0f};
static const float8_format float8_e5m2 __attribute__((unused)) = {2, 15, 0x7b, 0x7c, 0x7f, 57344.0f};

static inline float float_bits_from_f8(uint8_t code, const float8_format *f)
{
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, magnitude = code & 0x7fu, shift = 23 - f->mantissa_bits;
    if (magnitude >= f->infinity)
        return float_bits_to(sign | (magnitude == f->infinity && f->infinity != f->nan ? 0x7f800000u : 0x7fc00000u));
    if (magnitude >> f->mantissa_bits == 0) /* subnormal: a multiple of 2^(1 - bias - mantissa_bits) */
        return float_bits_to(sign |
                             float_bits_of((float)magnitude * float_bits_to((128 - f->bias - f->mantissa_bits) << 23)));
    return float_bits_to(sign | ((magnitude << shift) + ((127 - f->bias) << 23)));
}

/* Beyond the largest number, infinity among it, lies the largest number. */
static inline uint8_t float_bits_to_f8(float value, const float8_format *f)
{
    uint32_t bits = float_bits_of(value), sign = bits >> 24 & 0x80u, shift = 23 - f->mantissa_bits;
    bits &= 0x7fffffffu;
    if (bits > 0x7f800000u)
        return (uint8_t)(sign | f->nan);
    /* Below the smallest normal number the addition rounds: a unit is one in the last place of `anchor`. */
    uint32_t anchor = (151 - f->bias - f->mantissa_bits) << 23;
    uint32_t code = bits < (128 - f->bias) << 23
                        ? float_bits_of(float_bits_to(bits) + float_bits_to(anchor)) - anchor
                        : (bits - ((127 - f->bias) << 23) + ((1u << (shift - 1)) - 1) + (bits >> shift & 1u)) >> shift;
    return (uint8_t)(sign | (code < f->largest ? code : f->largest));
}

#endif
