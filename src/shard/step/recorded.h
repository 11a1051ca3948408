/* Work recorded as graphs of the device: a whole program where nothing but the compute stream takes part, and otherwise
 * the stretches of instructions between the schedule's events, so that collectives and transfers stay outside, in one
 * order on every rank. */
#ifndef SHARD_STEP_RECORDED_H
#define SHARD_STEP_RECORDED_H

#include "device/device.h"
#include "shard/plan/schedule.h"
#include "tensor/program.h"

/* What may change from run to run and a recording depends on: plain bytes without padding. */
typedef struct recorded_facts {
    const void *bytes;
    size_t n;
} recorded_facts;

/* `fixed` is the same for as long as its recordings are kept: pointers to memory, chosen kernels; code that changes any
 * of it drops them. `facts` is all that may differ from one run to the next. */
typedef fsdp_status (*recordable)(const void *fixed, const void *facts);

/* One recording for each of the facts seen: plainly run once (which lets libraries choose and prepare), recorded the
 * second time, launched from then on. */
typedef struct recorded_graph {
    uint64_t key; /* hash of the facts */
    bool ran;     /* false: the place is free */
    graph *graph;
} recorded_graph;

enum { RECORDED_MAX = 4 };

typedef struct recorded_work {
    recorded_graph list[RECORDED_MAX];
    int oldest; /* gives way when facts are new and all places are taken */
} recorded_work;

/* Records only if the device has graphs and no listener wants operations (a graph reports none); otherwise just runs
 * `work`. Work that fails is forgotten. */
fsdp_status recorded_run(device *dev, stream *s, recorded_work *r, recordable work, const void *fixed,
                         recorded_facts facts);
void recorded_forget(device *dev, recorded_work *r);

/* Instructions [first, end): no event of the schedule falls between them. */
typedef struct stretch {
    int first, end;
    bool recordable; /* long enough to be worth it, and no other stream or rank takes part */
    recorded_work work;
} stretch;

typedef struct stretches {
    stretch *list;
    int n;
} stretches;

/* Whether no instruction must be run each time it is asked for. */
bool program_is_recordable(const program *p);
/* Covers the program; `turn` is where backward begins. Freed by stretches_free, which also forgets what was recorded.
 */
fsdp_status stretches_cut(const program *p, const schedule *s, int turn, stretches *out);
void stretches_forget(device *dev, stretches *s);
void stretches_free(device *dev, stretches *s);

#endif
