/* Keeps a thinned list of steps. */
#include "observe/step_times.h"

#include <stdlib.h>
#include <string.h>

void step_times_add(step_times *t, step_time step)
{
    t->seconds += step.seconds;
    if (t->stride == 0)
        t->stride = 1;
    if (t->n == STEP_TIMES_KEPT) {
        for (int i = 0; i < STEP_TIMES_KEPT / 2; i++)
            t->kept[i] = t->kept[2 * i];
        t->n = STEP_TIMES_KEPT / 2;
        t->stride *= 2;
    }
    if (t->seen++ % t->stride == 0)
        t->kept[t->n++] = step;
}

static int by_duration(const void *a, const void *b)
{
    double x = ((const step_time *)a)->seconds, y = ((const step_time *)b)->seconds;
    return x < y ? -1 : x > y;
}

step_time step_times_median(const step_times *t)
{
    static const step_time none;
    step_times *sorted = t->n > 0 ? malloc(sizeof *sorted) : NULL;
    if (!sorted)
        return none;
    memcpy(sorted, t, sizeof *sorted);
    qsort(sorted->kept, (size_t)sorted->n, sizeof sorted->kept[0], by_duration);
    step_time median = sorted->kept[sorted->n / 2];
    free(sorted);
    return median;
}
