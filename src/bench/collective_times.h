/* Times collectives where they run: in the middle of a step, on memory that other ranks have just written, with ranks
 * that come late. Those of the same kind, group size and bytes are put together. */
#ifndef BENCH_COLLECTIVE_TIMES_H
#define BENCH_COLLECTIVE_TIMES_H

#include "plan/predict/profile.h"

typedef struct collective_times collective_times;

/* From now on; the caller owns *out. Only of ranks whose collectives run on the host. */
fsdp_status collective_times_start(collective_times **out);
void collective_times_free(collective_times *t); /* NULL is legal */

/* Rows 0 .. n-1, with the median of their seconds. Between two steps. */
int collective_times_rows(const collective_times *t);
profile_collective collective_times_row(collective_times *t, int index);
double collective_times_calls(const collective_times *t, int index);

#endif
