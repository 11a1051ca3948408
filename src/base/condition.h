/* Condition variables on a clock that nobody sets, and waits on them that end. */
#ifndef BASE_CONDITION_H
#define BASE_CONDITION_H

#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

static inline void condition_init(pthread_cond_t *c)
{
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(c, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

static inline struct timespec condition_after(double seconds)
{
    struct timespec until;
    double whole, fraction = modf(seconds, &whole);
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)whole;
    until.tv_nsec += (long)(fraction * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_nsec -= 1000000000L;
        until.tv_sec++;
    }
    return until;
}

/* Waits for a change; wakes up by itself after a second, so that no lost signal can hang a run. Under the lock. */
static inline void condition_wait_a_second(pthread_cond_t *c, pthread_mutex_t *lock)
{
    struct timespec until = condition_after(1);
    pthread_cond_timedwait(c, lock, &until);
}

#endif
