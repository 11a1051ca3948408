/* Stretches of time: how much of it they cover together, and how much of one list lies under another. */
#ifndef OBSERVE_INTERVALS_H
#define OBSERVE_INTERVALS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct interval {
    double from, to;
} interval;

typedef struct intervals {
    interval *list; /* (n) */
    size_t n, room;
} intervals;

bool intervals_add(intervals *s, double from, double to); /* false: out of memory */
/* Puts them in order, and joins those that touch. */
void intervals_join(intervals *s);
/* Of lists that are joined. */
double intervals_length(const intervals *s);
double intervals_overlap(const intervals *a, const intervals *b);
void intervals_free(intervals *s);

#endif
