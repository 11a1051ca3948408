/* Which attention weights dropout leaves out, for the kernels of all devices: a pure function of key, step, global
 * sample, head, query and key, so forward, its replay, backward and any split over ranks draw the same.
 *
 * One block of random words serves DROPOUT_KEYS keys of one query: key j of the group has the low (j even) or high (j
 * odd) half of word j / 2. A weight is left out when its half is below the threshold; those that stay are multiplied by
 * the scale, the exact inverse of how often that is.
 * Forward: out = sum of p' v with p' = keep * scale * p. Backward: dv = sum of p' d_out, dp = keep * scale * (d_out .
 * v), and ds = p (dp - delta) with delta = d_out . out as without dropout. */
#ifndef DEVICE_ATTENTION_DROPOUT_H
#define DEVICE_ATTENTION_DROPOUT_H

#include "device/samples.h"

#define DROPOUT_KEYS 8

RNG_INLINE uint32_t attention_dropout_threshold(float probability)
{
    float halves = probability * 65536.0f + 0.5f;
    return halves >= 65535.0f ? 65535u : (uint32_t)halves;
}

RNG_INLINE float attention_dropout_scale(uint32_t threshold)
{
    return 65536.0f / (float)(65536u - threshold);
}

/* Blocks of random words for a row of keys. */
RNG_INLINE uint64_t attention_dropout_groups(int64_t kv_length)
{
    return ((uint64_t)kv_length + DROPOUT_KEYS - 1) / DROPOUT_KEYS;
}

/* Index of the first block of a row; that of keys 8g .. 8g+7 is g further. `first` is samples_first of the batch. */
RNG_INLINE uint64_t attention_dropout_row(const attention_args *a, uint64_t first, int64_t batch, int64_t head,
                                          int64_t query)
{
    uint64_t sample = first + (uint64_t)batch;
    uint64_t row = (sample * (uint64_t)a->q_heads + (uint64_t)head) * (uint64_t)a->q_length + (uint64_t)query;
    return row * attention_dropout_groups(a->kv_length);
}

/* The words are rng_philox(key, step, index of the block). */
RNG_INLINE bool attention_dropout_keeps(rng_block words, int key, uint32_t threshold)
{
    return (words.v[key % DROPOUT_KEYS / 2] >> (key % 2 * 16) & 0xffffu) >= threshold;
}

#endif
