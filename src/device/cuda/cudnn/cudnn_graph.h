/* Building cuDNN operation graphs through its backend API: tensors, operations, and the search for an engine. Knows
 * nothing of what is computed; attention_graph.c and conv2d_plan.c write the graphs. */
#ifndef DEVICE_CUDA_CUDNN_CUDNN_GRAPH_H
#define DEVICE_CUDA_CUDNN_CUDNN_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include <fsdp/status.h>

#include "device/cuda/libraries.h"

/* What a convolution's graph computes. */
typedef enum graph_convolution {
    CONVOLUTION_Y,
    CONVOLUTION_X,      /* the gradient of x */
    CONVOLUTION_WEIGHT, /* the gradient of the weight */
    CONVOLUTION_KINDS
} graph_convolution;

#ifdef CUDA_HAS_CUDNN

#define GRAPH_MAX_DESCRIPTORS 192
#define GRAPH_MAX_OPERATIONS 40

/* What a graph is built for: a GPU at hand (handle) or one described as JSON text (properties). */
typedef struct graph_target {
    const cudnn_api *api;
    cudnnHandle_t handle;                /* NULL: described */
    cudnnBackendDescriptor_t properties; /* NULL: at hand */
} graph_target;

/* A graph under construction. The first failure sticks: later calls do nothing and graph_plan returns it. */
typedef struct graph_builder {
    const graph_target *target;
    cudnnBackendDescriptor_t descriptors[GRAPH_MAX_DESCRIPTORS];
    int n_descriptors;
    cudnnBackendDescriptor_t operations[GRAPH_MAX_OPERATIONS];
    int n_operations;
    int64_t next_virtual; /* unique id of the next intermediate */
    fsdp_status status;
} graph_builder;

typedef cudnnBackendDescriptor_t graph_tensor; /* owned by its builder */

/* Four dimensions with strides, in elements. */
typedef struct graph_layout {
    int64_t size[4], stride[4];
} graph_layout;

void graph_start(graph_builder *b, const graph_target *target);
void graph_discard(graph_builder *b);

/* uid > 0: memory given at execution. uid 0: an intermediate that never reaches memory. */
graph_tensor graph_add_tensor(graph_builder *b, int64_t uid, cudnnDataType_t type, graph_layout layout);
graph_tensor graph_add_scalar(graph_builder *b, int64_t uid); /* one fp32, passed by value */

void graph_add_matmul(graph_builder *b, graph_tensor left, graph_tensor right, graph_tensor out);
/* second and mask may be NULL. type: what it is computed in. axis: of an index, -1 otherwise. */
void graph_add_pointwise(graph_builder *b, cudnnPointwiseMode_t mode, cudnnDataType_t type, int64_t axis,
                         graph_tensor first, graph_tensor second, graph_tensor mask, graph_tensor out);
void graph_add_reduction(graph_builder *b, cudnnReduceTensorOp_t mode, bool deterministic, graph_tensor in,
                         graph_tensor out);
void graph_add_reshape(graph_builder *b, graph_tensor in, graph_tensor out);

/* Cross-correlation over the last two dimensions: y of x and weight, or as its gradient x of y and weight, or weight of
 * x and y. With `add` the result is added to what is there. */
void graph_add_convolution(graph_builder *b, graph_convolution kind, const int64_t stride[2], const int64_t padding[2],
                           graph_tensor x, graph_tensor weight, graph_tensor y, bool add);

/* How many engines cuDNN suggests for the graph. Needs the driver library, but no GPU. */
fsdp_status graph_count_engines(graph_builder *b, int *n);

/* A numerical note of an engine as a bit. */
#define GRAPH_NOTE(note) (1u << CUDNN_NUMERICAL_NOTE_##note)

/* Which engines may run a graph. */
typedef struct graph_choice {
    int64_t workspace_limit;
    uint32_t forbidden; /* GRAPH_NOTE bits that none may have */
    bool plain;         /* only those of last resort, which compute as written: notes do not tell of all roundings */
} graph_choice;

/* An execution plan by the first engine that takes the graph, and its workspace; the caller destroys the plan. For a
 * described GPU *plan is NULL: compiling takes a second and ends in the driver's refusal where there is no GPU, but
 * engines say beforehand what they will want. */
fsdp_status graph_plan(graph_builder *b, const graph_choice *choice, cudnnBackendDescriptor_t *plan,
                       int64_t *workspace);

/* Plans as text, for a GPU at hand. *json is the caller's to free(). */
fsdp_status graph_plan_to_json(const cudnn_api *api, cudnnBackendDescriptor_t plan, char **json);
fsdp_status graph_plan_from_json(const graph_target *target, const char *json, cudnnBackendDescriptor_t *plan);
fsdp_status graph_plan_workspace(const cudnn_api *api, cudnnBackendDescriptor_t plan, int64_t *bytes);

/* Runs a plan on the stream of the target's handle. */
fsdp_status graph_execute(const graph_target *target, cudnnBackendDescriptor_t plan, int n, const int64_t *uids,
                          void *const *pointers, void *workspace);

#endif
#endif
