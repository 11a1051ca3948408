/* Finds a rank that slows the others down, and in which phase: one that was busy clearly longer than the rest in nearly
 * all of the last steps. What happens once or now and then (a save, a page fault, another program on the core) names
 * nobody. */
#ifndef OBSERVE_SLOW_RANK_H
#define OBSERVE_SLOW_RANK_H

#include <fsdp/status.h>

#include "base/record/laps.h"
#include "observe/snapshot.h"

typedef struct slow_rank {
    int rank; /* -1: nobody is slow */
    lap phase;
    double seconds; /* that it is longer than the others, in a step */
} slow_rank;

typedef struct slow_watch slow_watch;

fsdp_status slow_watch_new(int n_ranks, slow_watch **out); /* the caller frees *out */
void slow_watch_free(slow_watch *w);                       /* NULL is legal */

/* Another step, as all ranks measured it. Returns whom it names now. */
slow_rank slow_watch_add(slow_watch *w, const rank_snapshot *ranks);

#endif
