/* The optimizer of a sharded model: joins shard (ranges, when they may be written) and optim (arithmetic). */
#ifndef SHARD_STEP_OPTIMIZER_H
#define SHARD_STEP_OPTIMIZER_H

#include <fsdp/optim.h>

#include "optim/update.h"
#include "shard/model.h"
#include "shard/offload/ahead.h"
#include "shard/offload/split.h"
#include "shard/step/adafactor.h"
#include "shard/step/muon.h"

struct fsdp_optimizer {
    fsdp_model *model;
    fsdp_optimizer_config config;
    update *update;
    update_span *spans;             /* of parameter groups and matrices; NULL: none */
    update_magnitude *magnitudes;   /* of weights that are kept as codes; NULL: none are */
    muon *muon;                     /* NULL: another kind, or no matrix of it is trained */
    adafactor *adafactor;           /* NULL: another kind */
    split *split;                   /* NULL: offloaded units are updated by the processor alone, or there are none */
    ahead *ahead;                   /* NULL: no update runs ahead of the norm */
    double last_count;              /* of the losses, in the last step */
    optimizer_scalars host_scalars; /* what the update of offloaded units reads, while it runs */
    float lr;
    int64_t average_from;   /* the step after which the average begins */
    bool swapped;           /* weights and average have changed places */
    int64_t steps;          /* updates made: what bias corrections count */
    int64_t good_steps;     /* since the loss scale last changed */
    recorded_work recorded; /* close_step */
};

/* What fsdp_step enqueues on the compute stream, and nothing else: for a step that is only written down. */
fsdp_status optimizer_close_step(const fsdp_optimizer *o);

#endif
