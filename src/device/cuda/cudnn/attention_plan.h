/* Attention through cuDNN: which plan serves, and running it. */
#ifndef DEVICE_CUDA_CUDNN_ATTENTION_PLAN_H
#define DEVICE_CUDA_CUDNN_ATTENTION_PLAN_H

#include "device/cuda/cudnn/attention_graph.h"
#include "device/cuda/cudnn/cudnn_plans.h"

typedef struct attention_plan {
    const cudnn_plan *plan; /* NULL: cuDNN does not serve these arguments */
    attention_shape shape;  /* its batch is the number of sequences a run works on */
    size_t engine_bytes, row_sums_bytes, d_q_bytes;
} attention_plan;

/* The plan for these arguments. Pointers are looked at only for being there or not. */
fsdp_status attention_plan_find(cuda_device *d, const attention_args *a, bool backward, attention_plan *out);
size_t attention_plan_workspace(const attention_plan *plan);
fsdp_status attention_plan_run(stream *s, const attention_plan *plan, const attention_args *a);

#endif
