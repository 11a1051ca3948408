/* Monotonic time, for durations and timeouts, and the date for those who print one. */
#include "base/clock.h"

#include <stdio.h>
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

const char *clock_utc(char text[CLOCK_UTC_BYTES])
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(text, CLOCK_UTC_BYTES, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + n, CLOCK_UTC_BYTES - n, ".%03uZ", (unsigned)(now.tv_nsec / 1000000) % 1000);
    return text;
}
