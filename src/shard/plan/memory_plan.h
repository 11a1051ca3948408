/* What a sharded model will take, per rank, computed by the same code that allocates it, without allocating it. */
#ifndef SHARD_PLAN_MEMORY_PLAN_H
#define SHARD_PLAN_MEMORY_PLAN_H

#include <fsdp/shard.h>

#include "device/device.h"
#include "shard/plan/picture.h"
#include "shard/plan/script.h"

/* One request for memory, as the engine makes it. */
typedef struct planned_allocation {
    const char *what;
    size_t bytes;
    bool shared; /* from comm_allocate: peers reach it */
} planned_allocation;

enum { MEMORY_PLAN_ALLOCATIONS = 24 };

typedef struct memory_plan {
    /* Bytes of one rank. */
    size_t parameters;          /* fp32 masters */
    size_t copies;              /* in param_dtype, what is gathered */
    size_t gradients;           /* fp32 accumulators */
    size_t optimizer;           /* moments, the average, and what the update works in, */
    size_t optimizer_workspace; /* which is this */
    size_t gather;              /* gathered units */
    size_t full_gradients;
    size_t activations;
    size_t workspace;
    size_t buffers;       /* of the model, and the engine's numbers on the device */
    size_t communication; /* control pages and staging area of the backend */
    size_t validation;    /* what evaluating takes beyond the training step: its gathered units, its activations */
    size_t shadow;        /* what shadow steps take beyond both: activations in param_dtype, products to compare */
    size_t total;
    size_t libraries; /* beside the total: what NCCL takes for itself, as measured (comm_library_bytes) */
    /* In host memory, not part of the total. */
    size_t host_state;        /* masters, gradients and moments of offloaded units, what their copies are made from */
    size_t host_ahead;        /* of that: old values of those that are updated ahead of the norm */
    size_t host_activations;  /* that wait for backward */
    size_t host_snapshot;     /* of asynchronous checkpoints */
    size_t host_hot;          /* from which hot snapshots are written */
    size_t host_held;         /* by the launcher for this rank, copies of others' included; not part of `host` */
    size_t host_scalars;      /* of the engine */
    size_t host;              /* all of it */
    size_t host_update_bytes; /* read and written there by one update of the offloaded units */

    planned_allocation allocations[MEMORY_PLAN_ALLOCATIONS]; /* the same, request by request */
    int n_allocations;

    int n_units;
    size_t largest_unit; /* gathered, bytes */
    /* Bytes that one rank receives in one step with one micro-batch. */
    int64_t gathered_bytes, reduced_bytes, replica_bytes;
    int64_t update_bytes; /* in the optimizer's update */
} memory_plan;

/* Records what a step computes; the inputs need no data. */
typedef fsdp_loss (*plan_recorder)(void *context, fsdp_module *net, fsdp_tape *t);

enum { MEMORY_PLAN_LARGEST = -1 };

typedef struct memory_plan_request {
    device *dev; /* whose workspaces count */
    int n_ranks;
    int ranks_per_node;
    int rank;                     /* whose bytes; MEMORY_PLAN_LARGEST: of the rank that holds most */
    const char *backend;          /* of communication; NULL: what fits */
    fsdp_comm_memory comm_memory; /* that it takes */
    fsdp_reduce_accumulation accumulation;
    int moments;                   /* most numbers of optimizer state per parameter */
    int half_moments;              /* of those, how many have 16 bits; the others have 32 */
    fsdp_optimizer_kind optimizer; /* which decides whose are fewer, and what the step takes besides */
    int64_t micro_batches;         /* of a step; 0: one */
    plan_recorder record;          /* one of them */
    plan_recorder evaluate;        /* a step of validation; NULL: none */
    void *context;
    /* Host memory of an asynchronous checkpoint in which this rank writes that many bytes; NULL: checkpoints take none.
     */
    size_t (*snapshot)(int64_t bytes);
    bool snapshot_of_all; /* every rank writes all that it holds (local checkpoints), not only what is its to write */
    size_t (*hot)(int64_t bytes); /* the same of hot snapshots, in which all ranks write all; NULL: none are kept */
    plan_picture
        *picture;        /* receives the training step value by value, and is the caller's to clear; NULL: not wanted */
    plan_script *script; /* receives what happens in an optimizer step, likewise */
} memory_plan_request;

/* Takes `net` (a fresh tree), also on failure. */
fsdp_status memory_plan_make(fsdp_module *net, const fsdp_config *config, const memory_plan_request *request,
                             memory_plan *out);

#endif
