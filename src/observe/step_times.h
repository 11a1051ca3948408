/* The times of a run's steps, in little memory however long it is, and the median step among them. */
#ifndef OBSERVE_STEP_TIMES_H
#define OBSERVE_STEP_TIMES_H

#include <stdint.h>

enum { STEP_TIMES_KEPT = 2048 };

typedef struct step_time {
    double seconds;
    int64_t samples, tokens; /* over all ranks */
} step_time;

/* Every `stride`-th step is kept; when the room is full, every other one of them. */
typedef struct step_times {
    step_time kept[STEP_TIMES_KEPT];
    int n;
    int64_t stride, seen;
    double seconds; /* of all steps */
} step_times;

void step_times_add(step_times *t, step_time step); /* `t` begins zeroed */
/* The step of the middle duration among those kept; zeroes when there is none. */
step_time step_times_median(const step_times *t);

#endif
