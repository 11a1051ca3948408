/* Where the time of a rank's steps goes, always measured: every instant of one thread belongs to one lap, the innermost
 * phase or wait that is open there. base/record/hooks.h tells when they begin and end; src/observe/attribution.h says
 * what the sums mean. Between two takes the laps add up to the time that passed. */
#ifndef BASE_RECORD_LAPS_H
#define BASE_RECORD_LAPS_H

#include <stdbool.h>
#include <stdint.h>

typedef enum lap {
    LAP_DATA,
    LAP_FORWARD,
    LAP_BACKWARD,
    LAP_OPTIMIZER,
    LAP_VALIDATION,
    LAP_SAVE,
    LAP_OTHER,
    /* Waits for collectives: communication that nothing hides, and ranks that are late. */
    LAP_ALL_GATHER,
    LAP_REDUCE_SCATTER,
    LAP_ALL_REDUCE,
    LAP_EXCHANGE, /* small ones: barriers and exchanges of values */
    LAP_COUNT,
} lap;

const char *lap_name(lap which); /* "data", "all_gather" */

/* From now on the laps of the calling thread are measured, and only those. */
void laps_begin(void);
void laps_end(void); /* on that thread */

/* Nanoseconds of each lap since the last take (or laps_begin). On the measured thread; zeros elsewhere. */
void laps_take(int64_t nanoseconds[LAP_COUNT]);

/* A phase or a wait for a collective, of this thread. */
void laps_hear(bool wait, bool begins, const char *name, int64_t now);

/* Work that the measured thread only hands out, to a stream of a device, has laps of its own there. Whoever follows is
 * told which lap is open, now and whenever it changes; false: this thread is not measured, or somebody follows
 * already. */
typedef void (*laps_follower)(void *context, lap open);
bool laps_follow(laps_follower follower, void *context);
void laps_unfollow(const void *context); /* if it is that one */
/* Ends following, if it has not ended: the time since laps_follow is divided as was measured there. What those laps
 * leave of it is LAP_OTHER. */
void laps_settle(const int64_t nanoseconds[LAP_COUNT]);

#endif
