/* The permutation is a Feistel network keyed by seed and epoch: a bijection of a power of two at least as large as n.
 * Values that fall outside n are sent through again until they fall inside, which keeps it a bijection of n. */
#include "data/sampler.h"

enum { ROUNDS = 8 };

sampler sampler_make(int64_t n_samples, uint64_t seed, bool shuffle)
{
    sampler s = {.n_samples = n_samples, .shuffle = shuffle, .half_bits = 1};
    s.key = rng_key_fold_text(rng_key_make(seed), "samples");
    while (s.half_bits < 31 && (int64_t)1 << (2 * s.half_bits) < n_samples)
        s.half_bits++;
    return s;
}

static uint64_t permute_once(rng_key key, int half_bits, uint64_t value)
{
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t left = value >> half_bits, right = value & mask;
    for (uint64_t round = 0; round < ROUNDS; round++) {
        uint64_t mixed = left ^ (rng_philox(key, round, right).v[0] & mask);
        left = right;
        right = mixed;
    }
    return left << half_bits | right;
}

int64_t sampler_at(const sampler *s, int64_t position)
{
    uint64_t value = (uint64_t)(position % s->n_samples);
    if (!s->shuffle)
        return (int64_t)value;
    rng_key key = rng_key_fold(s->key, (uint64_t)sampler_epoch(s, position));
    do
        value = permute_once(key, s->half_bits, value);
    while (value >= (uint64_t)s->n_samples);
    return (int64_t)value;
}

int64_t sampler_epoch(const sampler *s, int64_t position)
{
    return position / s->n_samples;
}

int64_t sampler_batch(const sampler *s, int64_t position, int64_t wanted, bool stop_at_epoch)
{
    int64_t left = s->n_samples - position % s->n_samples;
    return stop_at_epoch && left < wanted ? left : wanted;
}

int64_t fsdp_sampler_at(const fsdp_sampler *s, int64_t position)
{
    sampler made = sampler_make(s->n_samples, s->seed, s->shuffle);
    return sampler_at(&made, position);
}

int64_t fsdp_sampler_epoch(const fsdp_sampler *s, int64_t position)
{
    return position / s->n_samples;
}

void fsdp_sampler_share(int64_t n, int rank, int world_size, int64_t *first, int64_t *count)
{
    int64_t each = n / world_size, more = n % world_size;
    *first = each * rank + (rank < more ? rank : more);
    *count = each + (rank < more);
}
