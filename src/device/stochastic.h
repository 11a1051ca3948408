/* fp32 numbers rounded to bf16 at random, for the kernels of all devices: up with the probability that is the distance
 * from the lower neighbour in units of their gap, so that the mean of many roundings is the number itself. What is
 * added to a moment in one step is often less than half such a gap; rounded to nearest, it would be lost every time.
 *
 * Each element has a word of 32 random bits, its low half for the first moment and its high half for the second. Philox
 * at (key, step, block of 65536 elements of the unit) gives two numbers, with which a hash turns the element's place in
 * its block into the word: two multiplications an element, where Philox alone would cost a processor more time than
 * the moments take to come from memory. The words depend on neither ranks, threads, devices nor cuts. */
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

enum { STOCHASTIC_BLOCK = 65536 }; /* elements that share their numbers */

typedef struct stochastic_numbers {
    uint32_t before, between; /* added before the first multiplication, and mixed in before the second */
} stochastic_numbers;

RNG_INLINE stochastic_numbers stochastic_numbers_at(rng_key key, uint64_t step, uint64_t element)
{
    const rng_block block = rng_philox(key, step, element / STOCHASTIC_BLOCK);
    const stochastic_numbers numbers = {block.v[0], block.v[1]};
    return numbers;
}

/* The word at `place` in its block. The constants are those of lowbias32, whose every output bit changes with every
 * input bit half the time. */
RNG_INLINE uint32_t stochastic_word(stochastic_numbers numbers, uint32_t place)
{
    uint32_t x = place + numbers.before;
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15 ^ numbers.between) * 0x846ca68bu;
    return x ^ x >> 16;
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
