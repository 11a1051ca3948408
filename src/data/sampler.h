/* Which sample comes when, and who takes it: pure functions of the seed and one global position, with no state to save
 * but that position. Position p is place p % n of epoch p / n; every epoch is another permutation of the n samples. */
#ifndef DATA_SAMPLER_H
#define DATA_SAMPLER_H

#include <fsdp/data.h>

#include "base/rng.h"

/* An fsdp_sampler with what every call would compute anew. */
typedef struct sampler {
    int64_t n_samples; /* positive */
    bool shuffle;      /* false: every epoch in the data's own order */
    rng_key key;
    int half_bits; /* the permutation works on 2 * half_bits bits */
} sampler;

sampler sampler_make(int64_t n_samples, uint64_t seed, bool shuffle);

/* Where 0 <= value < n goes in the permutation of n values that `key` chooses. */
int64_t sampler_permute(rng_key key, int64_t n, int64_t value);

/* The sample at a position >= 0. */
int64_t sampler_at(const sampler *s, int64_t position);

int64_t sampler_epoch(const sampler *s, int64_t position);

/* How many samples the global batch that starts at `position` has: `wanted`, but with `stop_at_epoch` no more than are
 * left of the epoch. */
int64_t sampler_batch(const sampler *s, int64_t position, int64_t wanted, bool stop_at_epoch);

#endif
