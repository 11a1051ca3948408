/* A training step in shapes: which model, which batch. What plans are made of. */
#ifndef PLAN_WORKLOAD_H
#define PLAN_WORKLOAD_H

#include "models/config.h"
#include "shard/memory_plan.h"

typedef struct workload {
    model_config model;
    int64_t batch;         /* samples of one rank in one micro-batch */
    int64_t width, target; /* tokens of a sample; of its target (T5) */
    int moments;           /* of the optimizer */
    const char *backend;   /* of communication; NULL: what fits */
} workload;

/* The plan of one setting. `dev` gives the workspaces. */
fsdp_status workload_plan(const workload *w, const fsdp_config *config, device *dev, int n_ranks, int ranks_per_node,
                          memory_plan *out);

/* Floating-point operations of one step on one rank: 6 per parameter and token (an untied embedding not counted), and
 * causal attention's products. Without what checkpointing computes again. 0 for images. */
double workload_flops(const workload *w);

#endif
