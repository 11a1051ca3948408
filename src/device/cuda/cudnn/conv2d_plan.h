/* Convolution through cuDNN: which plan serves, and running it. */
#ifndef DEVICE_CUDA_CUDNN_CONV2D_PLAN_H
#define DEVICE_CUDA_CUDNN_CONV2D_PLAN_H

#include "device/cuda/cudnn/cudnn_plans.h"

/* All that a plan depends on. */
typedef struct conv2d_shape {
    graph_convolution kind;
    conv2d_args sizes; /* without pointers */
    fsdp_dtype dtype;  /* of all three tensors */
    bool add, tensor_cores;
} conv2d_shape;

typedef struct conv2d_plan {
    const cudnn_plan *plan; /* NULL: cuDNN does not serve these arguments */
    graph_convolution kind;
    size_t engine_bytes, x_bytes, y_bytes; /* of the workspace; x and y: of their fp32 copies, 0 where there are none */
} conv2d_plan;

/* The plan for one of the three results, added to what is there or not. Pointers are not looked at. */
fsdp_status conv2d_plan_find(cuda_device *d, const conv2d_args *a, graph_convolution kind, bool add, conv2d_plan *out);
size_t conv2d_plan_workspace(const conv2d_plan *plan);
fsdp_status conv2d_plan_run(stream *s, const conv2d_plan *plan, const conv2d_args *a);

#ifdef CUDA_HAS_CUDNN
/* The graph, and which engines may run it. */
void conv2d_graph_build(graph_builder *b, const void *shape);
graph_choice conv2d_choice(const conv2d_shape *shape);
#endif

#endif
