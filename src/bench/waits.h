/* How long steps stand still for collectives, by collective and unit: events of the compute stream before and behind
 * every wait, so that a stream that waits while the host goes on is seen as well. */
#ifndef BENCH_WAITS_H
#define BENCH_WAITS_H

#include <fsdp/bench.h>

#include "device/device.h"

typedef struct bench_waits bench_waits;

/* From now on, until bench_waits_end. The caller owns *out. */
fsdp_status bench_waits_start(device *d, stream *s, bench_waits **out);

/* Ends listening and fills in what was heard over `steps` steps, the longest first; 0: nothing, a step has
 * failed. Frees w. */
fsdp_status bench_waits_end(bench_waits *w, int steps, fsdp_bench_result *result);

#endif
