/* A GPU as numbers, and the workspaces of its kernels, which follow from them: what plans are made of. The device that
 * is open reads the numbers from the hardware; one that is only described (device_describe) has them from a table, so
 * that a plan needs no GPU at hand. */
#ifndef DEVICE_GPU_H
#define DEVICE_GPU_H

#include "device/device.h"

struct gpu_properties {
    char name[128];         /* as the driver says it */
    int compute_capability; /* 90 for 9.0 */
    int n_multiprocessors;
    int shared_bytes; /* most that one block may ask for */
    int l2_bytes;
    size_t memory_bytes;
    char pci_bus_id[32]; /* "0000:19:00.0"; "" for one that is only described */
};

#define GPU_WORKSPACE_LIMIT ((size_t)32 << 20)
#define GPU_CHUNK_BYTES                                                                                                \
    ((size_t)512 << 20) /* 2048 rows of 128k logits: products of a size at which they run fastest                      \
                         */

#define GPU_CONTEXT_BYTES ((size_t)512 << 20) /* about what CUDA takes before anything is allocated */

/* Of `bytes` that are free, what a job may plan with: libraries load their kernels later, and NCCL its buffers. */
static inline size_t gpu_usable(size_t bytes)
{
    return bytes / 100 * 98;
}

/* gpu_workspaces.c: entries of the kernel table. Attention and convolution are those of our own kernels; what cuDNN
 * takes is not known here. */
size_t gpu_gemm_workspace(const device *d, const gemm_args *a);
size_t gpu_symmetric_workspace(const device *d, const symmetric_args *a);
size_t gpu_attention_forward_workspace(const device *d, const attention_args *a);
size_t gpu_attention_backward_workspace(const device *d, const attention_args *a);
size_t gpu_conv2d_forward_workspace(const device *d, const conv2d_args *a);
size_t gpu_conv2d_backward_workspace(const device *d, const conv2d_args *a);
size_t gpu_column_sum_workspace(const device *d, const column_sum_args *a);
size_t gpu_rmsnorm_backward_workspace(const device *d, const rmsnorm_args *a);
size_t gpu_layernorm_backward_workspace(const device *d, const layernorm_args *a);
size_t gpu_embedding_backward_workspace(const device *d, const embedding_args *a);
size_t gpu_cross_entropy_forward_workspace(const device *d, const cross_entropy_args *a);
size_t gpu_sum_workspace(const device *d, const sum_args *a);

/* Whether it multiplies matrices of 8-bit floats: GPUs do from compute capability 8.9 on, CPUs by way of fp32. */
static inline bool device_has_fp8(const device *d)
{
    return !d->gpu || d->gpu->compute_capability >= 89;
}

static inline bool gpu_is_fp8(fsdp_dtype dtype)
{
    return dtype == FSDP_E4M3 || dtype == FSDP_E5M2;
}

/* A product into a type that cuBLASLt does not write passes through fp32 memory, which lies in front of what the
 * library may use. */
size_t gpu_gemm_scratch(const gemm_args *a);
size_t gpu_gemm_library(const device *d, const gemm_args *a);

/* Convolution as products of columns. In elements: */
typedef struct gpu_conv_sizes {
    int64_t depth;  /* in_channels * kernel_h * kernel_w */
    int64_t area;   /* out_h * out_w */
    int64_t weight; /* out_channels * depth */
    int64_t images; /* worked on at a time */
    size_t columns_bytes, total_bytes;
} gpu_conv_sizes;
gpu_conv_sizes gpu_conv_measure(const device *d, const conv2d_args *a, bool backward);

/* described.c. The numbers of a GPU by its short name; NULL: it is not known. */
const gpu_properties *gpu_find(const char *name);

#endif
