/* The permutation is a Feistel network keyed by seed and epoch: a bijection of a power of two at least as large as n.
 * Values that fall outside n are sent through again until they fall inside, which keeps it a bijection of n. */
#include "data/sampler.h"

enum { ROUNDS = 8 };

static int half_bits_of(int64_t n)
{
    int bits = 1;
    while (bits < 31 && (int64_t)1 << (2 * bits) < n)
        bits++;
    return bits;
}

sampler sampler_make(int64_t n_samples, uint64_t seed, bool shuffle)
{
    sampler s = {.n_samples = n_samples, .shuffle = shuffle};
    s.key = rng_key_fold_text(rng_key_make(seed), "samples");
    s.half_bits = half_bits_of(n_samples);
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

static int64_t permute(rng_key key, int half_bits, int64_t n, int64_t place)
{
    uint64_t value = (uint64_t)place;
    do
        value = permute_once(key, half_bits, value);
    while (value >= (uint64_t)n);
    return (int64_t)value;
}

int64_t sampler_permute(rng_key key, int64_t n, int64_t value)
{
    return permute(key, half_bits_of(n), n, value);
}

int64_t sampler_at(const sampler *s, int64_t position)
{
    int64_t place = position % s->n_samples;
    if (!s->shuffle)
        return place;
    return permute(rng_key_fold(s->key, (uint64_t)sampler_epoch(s, position)), s->half_bits, s->n_samples, place);
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
