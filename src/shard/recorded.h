/* Work recorded as graphs of the device: a whole program where nothing but the compute stream takes part, and otherwise
 * the stretches of instructions between the schedule's events, so that collectives and transfers stay outside, in one
 * order on every rank. */
#ifndef SHARD_RECORDED_H
#define SHARD_RECORDED_H

#include "device/device.h"
#include "shard/schedule.h"
#include "tensor/program.h"

/* Runs plainly once (which lets libraries choose and prepare), is recorded the second time, launched from then on. */
typedef struct recorded_work {
    graph *graph;
    bool ran;
} recorded_work;

typedef fsdp_status (*recordable)(void *context);

/* Only where the device has graphs and nobody listens to operations (a graph reports none); otherwise `work` is simply
 * run. */
fsdp_status recorded_run(device *dev, stream *s, recorded_work *r, recordable work, void *context);
void recorded_forget(device *dev, recorded_work *r);

/* Instructions [first, end): no event of the schedule falls between them. */
typedef struct stretch {
    int first, end;
    bool recordable;       /* long enough to be worth it, and no other stream or rank takes part */
    recorded_work work[2]; /* gradients overwritten; added to */
} stretch;

typedef struct stretches {
    stretch *list;
    int n;
} stretches;

/* Covers the program. Freed by stretches_free, which also forgets what was recorded. */
fsdp_status stretches_cut(const program *p, const schedule *s, stretches *out);
void stretches_forget(device *dev, stretches *s);
void stretches_free(device *dev, stretches *s);

#endif
