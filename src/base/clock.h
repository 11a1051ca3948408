/* Monotonic time, and the date. */
#ifndef BASE_CLOCK_H
#define BASE_CLOCK_H

#include <stdint.h>

int64_t clock_nanoseconds(void);
double clock_seconds(void);

enum { CLOCK_UTC_BYTES = 25 };
/* Now, for people and logs: "2026-11-16T08:09:54.368Z". Returns `text`. */
const char *clock_utc(char text[CLOCK_UTC_BYTES]);

#endif
