/* Weights in 8 bits, for the kernels of all devices: blocks of 64 numbers, each a whole number from -127 to 127 times
 * the block's scale. The scale is the block's largest magnitude / 127, rounded up to 17 bits of mantissa: then code *
 * scale has no rounding in fp32, and narrowing such products again gives the same block.
 * A block with a NaN or an infinity is NaN throughout; one without a magnitude of 2^-100 or more is zero. */
#ifndef DEVICE_INT8_BLOCK_H
#define DEVICE_INT8_BLOCK_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INT8_BLOCK 64

typedef struct int8_block {
    float scale;
    int8_t codes[INT8_BLOCK];
} int8_block;

#ifdef __CUDACC__
#define INT8_INLINE __host__ __device__ static inline
#else
#define INT8_INLINE static inline
#endif

/* The bits of a block's largest magnitude give those of its scale; bits, because NaN and infinity must stay what they
 * are whatever a compiler assumes about floats. */
INT8_INLINE float int8_scale(uint32_t largest)
{
    float magnitude, scale;
    uint32_t bits = 0;
    memcpy(&magnitude, &largest, sizeof magnitude);
    magnitude /= 127.0f;
    memcpy(&bits, &magnitude, sizeof bits);
    bits = (bits + 0x7fu) & ~0x7fu;
    if (largest >= 0x7f800000u)
        bits = 0x7fc00000u;
    if (largest < 27u << 23) /* 2^-100 */
        bits = 0;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

/* The code of x in a block of that scale. */
INT8_INLINE int8_t int8_code(float x, float scale)
{
    return (int8_t)(scale > 0.0f ? (int)rintf(x / scale) : 0);
}

#endif
