/* The parts of a step: listens to hooks and adds up, by operation and by class of kernels. Waits for the device at both
 * ends of every operation, so the parts are true and the whole is slower. */
#ifndef BENCH_PARTS_H
#define BENCH_PARTS_H

#include <fsdp/bench.h>

#include "device/device.h"

typedef struct bench_parts bench_parts;

/* From now on, on this thread. The caller owns *out. */
fsdp_status bench_parts_start(device *d, stream *s, bench_parts **out);

/* Ends listening and fills in what was heard over `steps` steps that took `seconds` together. Frees p. */
void bench_parts_end(bench_parts *p, int steps, double seconds, fsdp_bench_result *result);

#endif
