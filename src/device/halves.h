/* An fp32 number as two halves, for the kernels of all devices: the bf16 nearest to it, ties away from zero so that the
 * rest fits, and the rest: bits == (high << 16) + (int16_t)low.
 * A NaN is the exception: rounded like that, it could become an infinity or, with a carry into the sign, a zero. It
 * becomes a quiet NaN in the high half, with nothing in the low one, and stays a NaN in both forms. */
#ifndef DEVICE_HALVES_H
#define DEVICE_HALVES_H

#include <stdint.h>

#ifdef __CUDACC__
#define HALVES_INLINE __host__ __device__ static inline
#else
#define HALVES_INLINE static inline
#endif

/* The high half of a number's bits; *low gets the other. */
HALVES_INLINE uint32_t halves_split(uint32_t bits, uint32_t *low)
{
    const int nan = (bits & 0x7fffffffu) > 0x7f800000u;
    const uint32_t high = nan ? bits >> 16 | 0x40u : (bits + 0x8000u) >> 16;
    *low = nan ? 0 : (bits - (high << 16)) & 0xffffu;
    return high & 0xffffu;
}

HALVES_INLINE uint32_t halves_join(uint32_t high, uint32_t low)
{
    return (high << 16) + (uint32_t)(int32_t)(int16_t)low;
}

#endif
