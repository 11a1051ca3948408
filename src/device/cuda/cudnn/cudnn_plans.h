/* Compiled cuDNN plans, found by key, and their folder on disk. What is planned is attention_plan.c's and
 * conv2d_plan.c's business. */
#ifndef DEVICE_CUDA_CUDNN_CUDNN_PLANS_H
#define DEVICE_CUDA_CUDNN_CUDNN_PLANS_H

#include "device/cuda/cuda_device.h"
#include "device/cuda/cudnn/cudnn_graph.h"

#define PLAN_KEY_CHARS 256

/* Belongs to the device. */
typedef struct cudnn_plan cudnn_plan;

size_t cudnn_plan_workspace(const cudnn_plan *plan);

#ifdef CUDA_HAS_CUDNN
/* What is wanted. The key tells all that the plan depends on, the library's version and the GPU excepted. */
typedef struct plan_request {
    const char *kind; /* its files begin with this */
    const char *key;
    void (*build)(graph_builder *b, const void *shape);
    const void *shape;
    graph_choice choice;
} plan_request;

/* The plan, loaded or compiled where it is not there yet; *out is NULL where cuDNN has no engine for it. */
fsdp_status cudnn_plans_find(cuda_device *d, const plan_request *request, const cudnn_plan **out);

/* describe.c. A GPU as cuDNN wants it described; the caller destroys *out. */
fsdp_status cudnn_describe(const cudnn_api *api, const gpu_properties *gpu, cudnnBackendDescriptor_t *out);

fsdp_status cudnn_plan_run(stream *s, const cudnn_plan *plan, int n, const int64_t *uids, void *const *pointers,
                           void *workspace);
#endif

#endif
