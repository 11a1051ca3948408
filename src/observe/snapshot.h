/* A run as it is now, for whoever shows it while it trains: after every step rank 0 puts in what all ranks have sent,
 * and any thread may read it. Every rank has one; those of other ranks than 0 hold the same. */
#ifndef OBSERVE_SNAPSHOT_H
#define OBSERVE_SNAPSHOT_H

#include <stdint.h>

#include <fsdp/status.h>

#include "base/record/laps.h"
#include "base/record/memory_use.h"
#include "observe/figures.h"

/* What a rank tells the others after every step. Plain data that travels between ranks. */
typedef struct rank_snapshot {
    int64_t step;
    float seconds[LAP_COUNT]; /* of each lap since the step before */
    float core_wait; /* seconds in them that threads which compute were ready and had no core; below 0: not known */
    int32_t stop;    /* not 0: this rank was asked to end, and why */
    int64_t memory_bytes, memory_peak_bytes,
        host_peak_bytes;       /* taken by the library; the peak of host memory beside a device's */
    int64_t uses[MEMORY_USES]; /* of memory_bytes */
    uint64_t n_events;         /* of its ring */
    uint32_t sequence;         /* of the last collective in the world, from 1 */
    char collective[76];       /* the last one: "all_gather of layers.3" */
} rank_snapshot;

typedef struct run_snapshot run_snapshot;

fsdp_status snapshot_new(int n_ranks, run_snapshot **out); /* the caller frees *out */
void snapshot_free(run_snapshot *s);                       /* NULL is legal */

void snapshot_put(run_snapshot *s, const step_figures *f, const rank_snapshot *ranks);
/* The newest; `ranks` has room for all. False before the first step. `f->times` is NULL: attribution_of(ranks, n) makes
 * it again. */
bool snapshot_read(run_snapshot *s, step_figures *f, rank_snapshot *ranks);

/* This rank's own part: laps since the last call, and its last collective. On the thread that trains. */
rank_snapshot snapshot_of_rank(int64_t step);

#endif
