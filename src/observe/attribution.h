/* Where the time of a step went, over all ranks: the laps (base/record/laps.h) that every rank has sent, summed up for
 * a line of metrics. Laps count from one line to the next, so they cover what lies between two steps, too. */
#ifndef OBSERVE_ATTRIBUTION_H
#define OBSERVE_ATTRIBUTION_H

#include "base/record/laps.h"
#include "observe/slow_rank.h"
#include "observe/snapshot.h"

/* Seconds over the ranks. */
typedef struct lap_spread {
    double min, mean, max;
    int rank; /* that had the most */
} lap_spread;

typedef struct attribution {
    int n_ranks;
    lap_spread laps[LAP_COUNT];
    lap_spread exposed; /* all waits for collectives together */
    lap_spread core_wait;
    int waited_for;   /* the rank that was busy longest: the one that the others waited for */
    lap waited_phase; /* in which it was longer than the others */
    slow_rank slow;   /* for several steps now */
} attribution;

/* `slow` is left to the caller. */
attribution attribution_of(const rank_snapshot *ranks, int n);

#endif
