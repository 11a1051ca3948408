/* Monotonic time, for durations and timeouts; the date is left to those who print one. */
#include "base/clock.h"

#include <time.h>

int64_t clock_nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double clock_seconds(void)
{
    return (double)clock_nanoseconds() * 1e-9;
}
