/* Times every kernel that a device is asked for, where it runs: in the middle of a step, with the caches, clocks and
 * neighbours that it has there. Samples of the same work are put together. */
#ifndef BENCH_KERNEL_TIMES_H
#define BENCH_KERNEL_TIMES_H

#include "device/device.h"
#include "device/kernel_work.h"

typedef struct kernel_times kernel_times;

/* From now on, for calls of this thread; one at a time. On a GPU, steps run launch by launch meanwhile. The caller owns
 * *out. */
fsdp_status kernel_times_start(device *d, kernel_times **out);
/* Between two steps: the device has done what was asked, and the samples are taken. *busy: seconds since the last call
 * in which kernels ran, of a device with its own time those from the first of them to the last. */
fsdp_status kernel_times_collect(kernel_times *t, double *busy);
void kernel_times_stop(kernel_times *t); /* calls are no longer timed */
void kernel_times_free(kernel_times *t); /* stops, too; NULL is legal */

/* Seconds of a call, the longest and shortest tenth left out; rows 0 .. n-1. */
int64_t kernel_times_calls(const kernel_times *t);  /* that were timed */
double kernel_times_seconds(const kernel_times *t); /* of all of them together */
int kernel_times_rows(const kernel_times *t);
double kernel_times_row(kernel_times *t, int index, kernel_work *work);

#endif
