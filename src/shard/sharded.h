/* A sharded model as the layers above may see it, beyond <fsdp/shard.h>: the one header of shard that bench and
 * generate include. */
#ifndef SHARD_SHARDED_H
#define SHARD_SHARDED_H

#include <fsdp/shard.h>

/* What all units compute in. FSDP_ERR_UNSUPPORTED, with both, where two differ; the caller's message says what that
 * keeps from working. */
fsdp_status model_param_dtype(const fsdp_model *m, fsdp_dtype *out);

/* The update of offloaded units and all transfers are over: host memory and copies may be read and written, listeners
 * changed. Nothing to do without offload. */
fsdp_status offload_settle(fsdp_model *m);

/* Where the time of offloaded units went since the model was made. */
typedef struct offload_figures {
    double update_seconds; /* the worker's arithmetic */
    double span_seconds;   /* from the start of each update to its last unit */
    double wait_seconds;   /* the caller's thread, for units not updated yet */
    int64_t updates;
    int64_t parameters; /* updated each time */
    int64_t on_device;  /* parameters that the device updated, all times together, */
    int64_t ahead;      /* those whose update was made before the norm was known, and stood, */
    int64_t redone;     /* and those where it was made again */
} offload_figures;
offload_figures offload_figures_of(const fsdp_model *m);

#endif
