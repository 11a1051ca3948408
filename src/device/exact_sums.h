/* Sums that have the same bits in any order: numbers are rounded to multiples of a grid before they are added, and as
 * long as the sums stay below 2^53 of its steps, adding multiples rounds nothing. What a coarse grid leaves goes to a
 * finer one. For C and CUDA. */
#ifndef DEVICE_EXACT_SUMS_H
#define DEVICE_EXACT_SUMS_H

#include <math.h>
#include <stdint.h>

#ifdef __CUDACC__
#define EXACT_INLINE static __host__ __device__ __forceinline__
#else
#define EXACT_INLINE static inline
#endif

/* Adding one of these and taking it off again rounds to the grid: 1.5 * 2^52 steps of it. */
typedef struct exact_grid {
    double coarse, fine;
} exact_grid;

/* For at most n numbers from 0 on whose sum is at most `most`. */
EXACT_INLINE exact_grid exact_grid_of(double most, int64_t n)
{
    exact_grid g = {0, 0};
    int exponent, count = 0;
    if (!(most > 0))
        return g; /* they are all 0 */
    frexp(most, &exponent);
    while ((int64_t)1 << count < n)
        count++;
    g.coarse = ldexp(1.5, exponent + 1);
    g.fine = ldexp(1.5, exponent + count - 51);
    return g;
}

/* Steps of 2^-16 and 2^-42: for squares of weights and of updates, whose means are compared with 1e-6 and 1. */
EXACT_INLINE exact_grid exact_fixed_grid(void)
{
    exact_grid g = {1.5 * 68719476736.0, 1.5 * 1024.0}; /* 2^36, 2^10 */
    return g;
}

/* The multiple of the grid next to *x, which is taken off it. */
EXACT_INLINE double exact_take(double *x, double grid)
{
    double taken = (*x + grid) - grid;
    *x -= taken;
    return taken;
}

#endif
