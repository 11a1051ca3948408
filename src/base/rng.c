/* Keys, and streams of normal and uniform numbers. Each number is a function of its key and index alone, made of
 * correctly rounded operations only (no libm, no contraction), so layouts, threads and machines cannot change it. */
#include "base/rng.h"

#include <stdbool.h>

#include "base/hash.h"
#include "base/rng_values.h"

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

/* The part of block number `block` that lies in [first, first + n): words `*from` up to the returned one. */
static inline int block_range(uint64_t block, uint64_t first, int64_t n, int *from)
{
    uint64_t start = block * 4, stop = first + (uint64_t)n;
    *from = start < first ? (int)(first - start) : 0;
    return stop - start < 4 ? (int)(stop - start) : 4;
}

/* Normal: mean a, deviation b. Otherwise uniform from a to b. */
static void fill(rng_key key, uint64_t first, int64_t n, bool normal, float a, float b, float *out)
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
            out[index * 4 + (uint64_t)j - first] =
                normal ? (float)(a + b * rng_normal(block.v[j])) : rng_uniform(block.v[j], a, b);
    }
}

void rng_fill_normal(rng_key key, uint64_t first, int64_t n, float mean, float deviation, float *out)
{
    fill(key, first, n, true, mean, deviation, out);
}

void rng_fill_uniform(rng_key key, uint64_t first, int64_t n, float low, float high, float *out)
{
    fill(key, first, n, false, low, high, out);
}
