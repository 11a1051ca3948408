/* The traces of all ranks in one file on one clock: ranks compare their clocks, then send what they heard to rank 0,
 * which writes it. */
#ifndef TRAIN_TRACE_GATHER_H
#define TRAIN_TRACE_GATHER_H

#include "comm/comm.h"
#include "observe/trace.h"

/* Rank 0 writes `path`. Collective; after trace_stop. */
fsdp_status trace_gather(comm_group *world, trace *t, const char *path);

#endif
