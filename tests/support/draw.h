/* Random numbers of tests: the same on every machine, and again from the same state. */
#ifndef TESTS_SUPPORT_DRAW_H
#define TESTS_SUPPORT_DRAW_H

#include <stdint.h>

/* Moves the state on and returns it: a linear congruential generator, whose upper bits are the random ones. */
static inline uint64_t draw_state(uint64_t *state)
{
    return *state = *state * 6364136223846793005u + 1442695040888963407u;
}

/* 0 .. 2^31 - 1 */
static inline uint64_t draw_word(uint64_t *state)
{
    return draw_state(state) >> 33;
}

/* 0 .. n - 1 */
static inline int draw_below(uint64_t *state, int n)
{
    return (int)(draw_word(state) % (uint64_t)n);
}

/* All 64 bits, also from states that differ in one bit: splitmix64. */
static inline uint64_t draw_mixed(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

#endif
