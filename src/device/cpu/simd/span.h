/* Spans: short stretches of a buffer as fp32, whatever its dtype. fp32 buffers are used where they lie; the others are
 * converted through a small array of the caller's that stays in the first-level cache. This keeps one loop per kernel
 * instead of one per combination of dtypes. */
#ifndef DEVICE_CPU_SIMD_SPAN_H
#define DEVICE_CPU_SIMD_SPAN_H

#include "device/cpu/simd/functions.h"

#include "base/checked.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

#define SPAN 1024 /* elements; three fp32 spans fit a 32 KiB cache with room to spare */

static inline float float_from_bf16(uint16_t x)
{
    return float_bits_to((uint32_t)x << 16);
}

/* Nearest, ties to even; NaN stays NaN. */
static inline uint16_t bf16_from_float(float x)
{
    uint32_t bits = float_bits_of(x);
    uint32_t rounded = bits + 0x7FFFu + ((bits >> 16) & 1u);
    uint32_t quiet = bits | 0x400000u;
    return (uint16_t)((x != x ? quiet : rounded) >> 16);
}

static inline float float_from_half(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, magnitude = x & 0x7FFFu;
    /* The multiplication moves the exponent's bias and normalises subnormal numbers, both exactly. */
    uint32_t finite = float_bits_of(float_bits_to(magnitude << 13) * 0x1p112f);
    uint32_t special = 0x7F800000u | (magnitude << 13);
    return float_bits_to(sign | (magnitude >= 0x7C00u ? special : finite));
}

/* Nearest, ties to even; beyond 65504 infinity; NaN stays NaN. */
static inline uint16_t half_from_float(float x)
{
    uint32_t bits = float_bits_of(x), sign = (bits >> 16) & 0x8000u, size = bits & 0x7FFFFFFFu;
    uint32_t normal = (size - (112u << 23) + 0xFFFu + ((size >> 13) & 1u)) >> 13;
    /* One unit of a subnormal half is one unit in the last place of 0.5, so this addition rounds there. */
    uint32_t subnormal = float_bits_of(float_bits_to(size) + 0.5f) - 0x3F000000u;
    uint32_t h = size < 0x38800000u ? subnormal : normal;
    h = size >= 0x477FF000u ? 0x7C00u : h;
    h = size > 0x7F800000u ? 0x7E00u : h;
    return (uint16_t)(sign | h);
}

static inline void *element_address(buffer b, int64_t index)
{
    return (char *)b.p + index * (b.dtype == FSDP_F32 ? 4 : 2);
}

static inline void half_to_floats(const uint16_t *from, int64_t n, float *to)
{
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + i))));
#endif
    for (; i < n; i++)
        to[i] = float_from_half(from[i]);
}

static inline void floats_to_half(const float *from, int64_t n, uint16_t *to)
{
    int64_t i = 0;
#ifdef __F16C__
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++)
        to[i] = half_from_float(from[i]);
}

/* Elements first .. first+n of `b`, converted into `to`. */
static inline void span_load(buffer b, int64_t first, int64_t n, float *restrict to)
{
    const void *from = element_address(b, first);
    if (b.dtype == FSDP_F32) {
        memcpy(to, from, (size_t)n * sizeof(float));
    } else if (b.dtype == FSDP_BF16) {
        const uint16_t *restrict source = from;
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            to[i] = float_from_bf16(source[i]);
    } else {
        half_to_floats(from, n, to);
    }
}

/* The same without the copy where the buffer is fp32: returns where the numbers lie, `scratch` (n floats) or the
 * buffer. */
static inline const float *span_read(buffer b, int64_t first, int64_t n, float *scratch)
{
    if (b.dtype == FSDP_F32)
        return (const float *)b.p + first;
    span_load(b, first, n, scratch);
    return scratch;
}

/* Where to compute a result of n elements that span_write will put at `first`: the buffer itself when it can take it.
 */
static inline float *span_target(buffer b, int64_t first, bool add, float *scratch)
{
    return b.dtype == FSDP_F32 && !add ? (float *)b.p + first : scratch;
}

static inline void span_write(buffer b, int64_t first, int64_t n, const float *values, bool add)
{
    void *to = element_address(b, first);
    if (b.dtype == FSDP_F32) {
        float *target = to;
        if (target == values)
            return;
        if (!add) {
            memcpy(target, values, (size_t)n * sizeof(float));
            return;
        }
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            target[i] += values[i];
    } else if (b.dtype == FSDP_BF16) {
        uint16_t *target = to;
        if (add) {
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                target[i] = bf16_from_float(float_from_bf16(target[i]) + values[i]);
        } else {
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                target[i] = bf16_from_float(values[i]);
        }
    } else {
        uint16_t *target = to;
        float sum[64];
        for (int64_t i = 0; i < n; i += 64) {
            int64_t part = min_i64(64, n - i);
            half_to_floats(target + i, part, sum);
            for (int64_t j = 0; j < part; j++)
                sum[j] = add ? sum[j] + values[i + j] : values[i + j];
            floats_to_half(sum, part, target + i);
        }
    }
}

/* One element, for the places where elements lie scattered. */
static inline float element_read(buffer b, int64_t index)
{
    if (b.dtype == FSDP_F32)
        return ((const float *)b.p)[index];
    uint16_t bits = ((const uint16_t *)b.p)[index];
    return b.dtype == FSDP_BF16 ? float_from_bf16(bits) : float_from_half(bits);
}

static inline void element_write(buffer b, int64_t index, float value)
{
    if (b.dtype == FSDP_F32)
        ((float *)b.p)[index] = value;
    else
        ((uint16_t *)b.p)[index] = b.dtype == FSDP_BF16 ? bf16_from_float(value) : half_from_float(value);
}

/* The largest magnitude of n elements, by its bits: a NaN is above all numbers. */
static inline float span_largest(buffer b, int64_t n)
{
    uint32_t largest = 0;
    float scratch[SPAN];
    for (int64_t first = 0; first < n; first += SPAN) {
        int64_t length = min_i64(SPAN, n - first);
        const float *x = span_read(b, first, length, scratch);
        for (int64_t i = 0; i < length; i++) {
            uint32_t bits = float_bits_of(x[i]) & 0x7fffffffu;
            largest = bits > largest ? bits : largest;
        }
    }
    return float_bits_to(largest);
}

/* Where somebody wants to know it. Magnitudes compare as their bits do. */
static inline void span_raise_largest(buffer b, int64_t n, float *magnitude)
{
    float largest = magnitude ? span_largest(b, n) : 0;
    if (magnitude && float_bits_of(largest) > float_bits_of(*magnitude))
        *magnitude = largest;
}

#endif
