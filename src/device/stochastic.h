/* fp32 numbers rounded to bf16 at random, for the kernels of all devices: up with the probability that is the distance
 * from the lower neighbour in units of their gap, so that the mean of many roundings is the number itself. What is
 * added to a moment in one step is often less than half such a gap; rounded to nearest, it would be lost every time.
 *
 * The random bits are those of Philox at (key, step, element of the unit): a word for each element, its low half for
 * the first moment and its high half for the second. They depend on neither ranks, threads, devices nor cuts. */
#ifndef DEVICE_STOCHASTIC_H
#define DEVICE_STOCHASTIC_H

#include <stdint.h>

#include "base/rng.h"

/* bf16 of the number with these bits; `random` has 16 bits. Infinities stay, a NaN stays one (quiet). */
RNG_INLINE uint32_t stochastic_bf16(uint32_t bits, uint32_t random)
{
    const uint32_t quiet = bits | 0x400000u, rounded = bits + random;
    return ((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded) >> 16;
}

RNG_INLINE uint32_t stochastic_bits1(uint32_t word)
{
    return word & 0xffffu;
}

RNG_INLINE uint32_t stochastic_bits2(uint32_t word)
{
    return word >> 16;
}

#endif
