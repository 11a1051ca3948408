/* Attention as a cuDNN operation graph: its shape, and the numbers under which its memory is given at execution. */
#ifndef DEVICE_CUDA_CUDNN_ATTENTION_GRAPH_H
#define DEVICE_CUDA_CUDNN_ATTENTION_GRAPH_H

#include <stdbool.h>
#include <stdint.h>

#include <fsdp/dtype.h>

#include "device/cuda/cudnn/cudnn_graph.h"

/* All that a plan depends on. */
typedef struct attention_shape {
    int64_t batch, q_length, kv_length, q_heads, kv_heads, head_dim, q_row, k_row, v_row;
    fsdp_dtype dtype;
    bool causal, backward;
    bool deterministic; /* backward: no accumulator for d_q, which the engines would add to in any order */
} attention_shape;

enum {
    UID_Q = 1,
    UID_K,
    UID_V,
    UID_OUT,
    UID_LSE,
    UID_SCALE,
    UID_MINUS_INFINITY,
    UID_ONE,
    UID_D_OUT,
    UID_D_Q,
    UID_D_K,
    UID_D_V,
    UID_ROW_SUMS,
    UID_D_Q_SUMS,
};

#ifdef CUDA_HAS_CUDNN
/* Writes the operations into a started builder, in the order that cuDNN's engines recognise. */
void attention_graph_build(graph_builder *b, const attention_shape *shape);
#endif

#endif
