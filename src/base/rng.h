/* Random numbers by counter: a pure function of key and index (Philox 4x32-10), so the same bits come out on every
 * device, thread count and shard layout. Uses only IEEE additions, multiplications, divisions and square roots;
 * plain C that nvcc compiles too. */
#ifndef BASE_RNG_H
#define BASE_RNG_H

#include <stdint.h>

#ifdef __CUDACC__
#define RNG_INLINE __host__ __device__ static inline
#else
#define RNG_INLINE static inline
#endif

typedef struct rng_key {
    uint32_t k[2];
} rng_key;

typedef struct rng_block {
    uint32_t v[4];
} rng_block;

/* Folds a number into a key: seed -> parameter name hash -> ... Distinct inputs give unrelated streams. */
rng_key rng_key_make(uint64_t seed);
rng_key rng_key_fold(rng_key key, uint64_t value);
rng_key rng_key_fold_text(rng_key key, const char *text);

/* The four words at (hi, lo) of the stream `key`. */
RNG_INLINE rng_block rng_philox(rng_key key, uint64_t hi, uint64_t lo)
{
    uint32_t c0 = (uint32_t)lo, c1 = (uint32_t)(lo >> 32), c2 = (uint32_t)hi, c3 = (uint32_t)(hi >> 32);
    uint32_t k0 = key.k[0], k1 = key.k[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        uint32_t n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    rng_block block = {{c0, c1, c2, c3}};
    return block;
}

/* Uniform in [0, 1), 24 bits. */
RNG_INLINE float rng_to_uniform(uint32_t word)
{
    return (float)(word >> 8) * (1.0f / 16777216.0f);
}

/* Element `index` of a stream: word index%4 of block index/4. */
RNG_INLINE uint32_t rng_word(rng_key key, uint64_t hi, uint64_t index)
{
    rng_block block = rng_philox(key, hi, index >> 2);
    return block.v[index & 3];
}

/* Standard normal numbers first..first+n-1 of the stream, times `deviation`, plus `mean`. Any split gives the same
 * bits. */
void rng_fill_normal(rng_key key, uint64_t first, int64_t n, float mean, float deviation, float *out);
/* Uniform in [low, high). */
void rng_fill_uniform(rng_key key, uint64_t first, int64_t n, float low, float high, float *out);

#endif
