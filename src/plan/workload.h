/* A training step in shapes: which model, which batch. What plans are made of. */
#ifndef PLAN_WORKLOAD_H
#define PLAN_WORKLOAD_H

#include "models/config.h"
#include "shard/plan/memory_plan.h"

typedef struct workload {
    model_config model;
    int64_t batch;         /* samples of one rank in one micro-batch, */
    int64_t micro_batches; /* of which a step has so many; 0: one */
    int64_t width, target; /* tokens of a sample; of its target (T5) */
    bool documents;        /* samples hold several, and attention stays within each; validation's do not */
    int moments;           /* of the optimizer: most numbers per parameter, */
    int half_moments;      /* those of 16 bits among them */
    fsdp_optimizer_kind optimizer;
    const char *backend; /* of communication; NULL: what fits */
    fsdp_comm_memory comm_memory;
    fsdp_reduce_accumulation reduce_accumulation;
    /* Validation; a batch of 0 means none. */
    int64_t validation_batch, validation_width, validation_target;
    bool validation_documents;
    /* Asynchronous checkpoints, as memory_plan_request has them; NULL: none. */
    size_t (*snapshot)(int64_t bytes);
    bool snapshot_of_all;
    size_t (*hot)(int64_t bytes);
} workload;

/* Where it runs: `dev` gives traits and workspaces, and may be one that is only described (device_describe). */
typedef struct plan_world {
    device *dev;
    int n_ranks, ranks_per_node;
} plan_world;

/* The plan of one setting: of the rank that holds most, or of one rank. */
fsdp_status workload_plan(const workload *w, const fsdp_config *config, const plan_world *world, memory_plan *out);
fsdp_status workload_plan_rank(const workload *w, const fsdp_config *config, const plan_world *world, int rank,
                               memory_plan *out);
/* The first of these with its step value by value; plan_picture_clear ends *picture. */
fsdp_status workload_picture(const workload *w, const fsdp_config *config, const plan_world *world, memory_plan *out,
                             plan_picture *picture);

/* The same with what happens in an optimizer step; plan_script_clear ends *script. */
fsdp_status workload_script(const workload *w, const fsdp_config *config, const plan_world *world, memory_plan *out,
                            plan_script *script);

/* Floating-point operations of one step on one rank: 6 per parameter and token (an untied embedding not counted), and
 * causal attention's products, which are left out where the lengths of documents decide them. Without what
 * checkpointing computes again. 0 for images. */
double workload_flops(const workload *w);

#endif
