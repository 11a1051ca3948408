/* Keys, and streams of normal and uniform numbers. Each number is a function of its key and index alone, made of
 * correctly rounded operations only (no libm, no contraction), so layouts, threads and machines cannot change it. */
#include "base/rng.h"

#include <string.h>

#include "base/hash.h"

/* The upper counter word of key derivation; streams of data use small ones (0 here, an op or step elsewhere). */
#define FOLD_STREAM 0xF01DF01DF01DF01Dull

/* Below this many numbers a parallel region costs more than it saves. */
enum { PARALLEL_NUMEL = 1 << 15 };

rng_key rng_key_make(uint64_t seed)
{
    return rng_key_fold((rng_key){{0, 0}}, seed);
}

rng_key rng_key_fold(rng_key key, uint64_t value)
{
    rng_block block = rng_philox(key, FOLD_STREAM, value);
    return (rng_key){{block.v[0], block.v[1]}};
}

rng_key rng_key_fold_text(rng_key key, const char *text)
{
    return rng_key_fold(key, hash_text(HASH_START, text));
}

/* Natural logarithm of a positive normal number: x = m 2^e with m in [1/sqrt 2, sqrt 2), log m = 2 atanh((m-1)/(m+1))
 * by its series, whose first dropped term is below 1e-15. */
static inline double log_portable(double x)
{
    static const uint64_t SQRT_HALF_BITS = 0x3FE6A09E667F3BCDull;
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
static inline double normal_from_word(uint32_t word)
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
    double r = __builtin_sqrt(-log_portable(tail)) - 1.6;
    double above = ((0.17023821103 * r + 1.3067284816) * r + 2.7568153900) * r + 1.4234372777;
    double below = (0.12021132975 * r + 0.73700164250) * r + 1.0;
    double magnitude = above / below;
    return q < 0 ? -magnitude : magnitude;
}

/* The part of block number `block` that lies in [first, first + n): words `*from` up to the returned one. */
static inline int block_range(uint64_t block, uint64_t first, int64_t n, int *from)
{
    uint64_t start = block * 4, stop = first + (uint64_t)n;
    *from = start < first ? (int)(first - start) : 0;
    return stop - start < 4 ? (int)(stop - start) : 4;
}

void rng_fill_normal(rng_key key, uint64_t first, int64_t n, float mean, float deviation, float *out)
{
    if (n <= 0)
        return;
    int64_t n_blocks = (int64_t)((first + (uint64_t)n + 3) / 4 - first / 4);
#pragma omp parallel for schedule(static) if (n >= PARALLEL_NUMEL)
    for (int64_t i = 0; i < n_blocks; i++) {
        uint64_t index = first / 4 + (uint64_t)i;
        int from, to = block_range(index, first, n, &from);
        rng_block block = rng_philox(key, 0, index);
        for (int j = from; j < to; j++)
            out[index * 4 + (uint64_t)j - first] = (float)(mean + deviation * normal_from_word(block.v[j]));
    }
}

/* Rounding can carry the largest words onto `high`; those few become `low`, which keeps the interval half open. */
static inline float uniform_from_word(uint32_t word, float low, float high)
{
    float x = low + (high - low) * rng_to_uniform(word);
    return x < high ? x : low;
}

void rng_fill_uniform(rng_key key, uint64_t first, int64_t n, float low, float high, float *out)
{
    if (n <= 0)
        return;
    int64_t n_blocks = (int64_t)((first + (uint64_t)n + 3) / 4 - first / 4);
#pragma omp parallel for schedule(static) if (n >= PARALLEL_NUMEL)
    for (int64_t i = 0; i < n_blocks; i++) {
        uint64_t index = first / 4 + (uint64_t)i;
        int from, to = block_range(index, first, n, &from);
        rng_block block = rng_philox(key, 0, index);
        for (int j = from; j < to; j++)
            out[index * 4 + (uint64_t)j - first] = uniform_from_word(block.v[j], low, high);
    }
}
