/* Times of one thing, measured several times. */
#ifndef BENCH_SAMPLES_H
#define BENCH_SAMPLES_H

#include <stdlib.h>

static inline int bench_ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static inline void bench_sort(double *samples, int n)
{
    qsort(samples, (size_t)n, sizeof *samples, bench_ascending);
}

/* Sorts them; n > 0. */
static inline double bench_median(double *samples, int n)
{
    bench_sort(samples, n);
    return samples[n / 2];
}

#endif
