/* Random words as normal and uniform numbers, for rng.c and for devices that fill their own memory. The same bits
 * everywhere, as long as the compiler contracts nothing (nvcc: -fmad=false). */
#ifndef BASE_RNG_VALUES_H
#define BASE_RNG_VALUES_H

#include <string.h>

#include "base/rng.h"

#ifdef __CUDA_ARCH__
#define RNG_SQRT(x) __dsqrt_rn(x)
#else
#define RNG_SQRT(x) __builtin_sqrt(x)
#endif

/* Natural logarithm of a positive normal number: x = m 2^e with m in [1/sqrt 2, sqrt 2), log m = 2 atanh((m-1)/(m+1))
 * by its series, whose first dropped term is below 1e-15. */
RNG_INLINE double rng_log(double x)
{
    const uint64_t SQRT_HALF_BITS = 0x3FE6A09E667F3BCDull;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t exponent = (int64_t)(bits - SQRT_HALF_BITS) >> 52;
    bits -= (uint64_t)exponent << 52;
    double m;
    memcpy(&m, &bits, sizeof m);
    double s = (m - 1.0) / (m + 1.0), t = s * s;
    double sum = 1.0 / 17;
    for (int power = 15; power >= 1; power -= 2)
        sum = sum * t + 1.0 / power;
    return (double)exponent * 0.69314718055994530942 + 2.0 * s * sum;
}

/* The standard normal quantile of the middle of the word's interval, ((word + 1/2) / 2^32), by the rational
 * approximations of Wichura, Applied Statistics 37 (1988), algorithm AS 241 (PPND7, relative error 1e-7). The smallest
 * probability is 2^-33, which the outer of his two tails does not reach. */
RNG_INLINE double rng_normal(uint32_t word)
{
    double p = ((double)word + 0.5) * (1.0 / 4294967296.0);
    double q = p - 0.5;
    if (q >= -0.425 && q <= 0.425) {
        double r = 0.180625 - q * q;
        double above = ((59.109374720 * r + 159.29113202) * r + 50.434271938) * r + 3.3871327179;
        double below = ((67.187563600 * r + 78.757757664) * r + 17.895169469) * r + 1.0;
        return q * above / below;
    }
    double tail = q < 0 ? p : 1.0 - p;
    double r = RNG_SQRT(-rng_log(tail)) - 1.6;
    double above = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777;
    double below = (0.12021132975 * r + 0.73700164250) * r + 1.0;
    double magnitude = above / below;
    return q < 0 ? -magnitude : magnitude;
}

/* Rounding can carry the largest words onto `high`; those few become `low`, which keeps the interval half open. */
RNG_INLINE float rng_uniform(uint32_t word, float low, float high)
{
    float x = low + (high - low) * rng_to_uniform(word);
    return x < high ? x : low;
}

#endif
