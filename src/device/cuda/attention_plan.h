/* Attention through cuDNN: compiled plans and their cache. */
#ifndef DEVICE_CUDA_ATTENTION_PLAN_H
#define DEVICE_CUDA_ATTENTION_PLAN_H

#include "device/cuda/attention_graph.h"
#include "device/cuda/cuda_device.h"

typedef struct attention_plan attention_plan;

/* The plan for these arguments; *out is NULL where cuDNN does not serve them. Plans belong to the device. Pointers are
 * looked at only for being there or not. */
fsdp_status attention_plan_find(cuda_device *d, const attention_args *a, bool backward, const attention_plan **out);
size_t attention_plan_workspace(const attention_plan *plan);
fsdp_status attention_plan_run(stream *s, const attention_plan *plan, const attention_args *a);

#endif
