/* Inside of the CUDA device: what its C files share. Others see device.h and cuda.h. */
#ifndef DEVICE_CUDA_CUDA_DEVICE_H
#define DEVICE_CUDA_CUDA_DEVICE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include <cuda_runtime_api.h>

#include "device/cuda/cuda.h"
#include "device/cuda/launch.h"
#include "device/cuda/libraries.h"
#include "device/gpu.h"
#include "device/pacer.h"

typedef struct gemm_table gemm_table;
typedef struct cudnn_plans cudnn_plans;
typedef struct paced_copies paced_copies;

typedef struct cuda_device {
    device base;
    int index; /* -1: only described */
    gpu_properties gpu;
    int priority_normal, priority_ahead;
    cuda_libraries libraries;
    gemm_table *gemms;
    cudnn_plans *plans;
    paced_copies *paced; /* NULL: none so far */
    bool tf32, tuning, cudnn;
    void *described; /* the GPU as cuDNN's plans take it; NULL: the one at hand */
    char *cache;     /* file of the chosen products; NULL: not kept */
} cuda_device;

struct stream {
    launch launch;
    cuda_device *device;
    bool recording;
    _Atomic uint32_t *pace; /* of paced copies; NULL: none so far */
};

struct event {
    cudaEvent_t handle;
    int device_index;
};

struct graph {
    cudaGraphExec_t executable;
};

/* FSDP_OK, or FSDP_ERR_DEVICE (FSDP_ERR_MEMORY when that ran out) with `what` and CUDA's words. */
fsdp_status cuda_check(cudaError_t error, const char *what);

/* The device table, for a device that is open or described. */
extern const device cuda_device_table;

/* Makes the device current for this thread. FSDP_ERR_UNSUPPORTED for one that is only described. */
fsdp_status cuda_enter(const cuda_device *d);

/* describe.c: frees what device_describe made for cuDNN. */
void cuda_forget_description(cuda_device *d);

/* pinned.c. Host memory that transfers can use while the host does something else. */
fsdp_status pinned_allocate(size_t bytes, void **out);
void pinned_release(void *memory, size_t bytes);

/* cache.c. Choices of earlier runs are read, and those of this one kept. Both only warn: work goes on without. */
void cuda_cache_open(cuda_device *d);
void cuda_cache_save(cuda_device *d);

/* gemm_cache.c: autotune_export and autotune_import of the device table */
fsdp_status cuda_autotune_export(device *d, char **bytes, size_t *n);
fsdp_status cuda_autotune_import(device *d, const char *name, const char *bytes, size_t n);

/* cupti.c: activity_begin and activity_end of the device table */
fsdp_status cuda_activity_begin(device *d);
fsdp_status cuda_activity_end(device *d, activity_sink sink, void *context);

/* gemm.c */
fsdp_status gemm_table_create(gemm_table **out);
void gemm_table_free(cuda_device *d, gemm_table *table);
fsdp_status cuda_gemm(stream *s, const gemm_args *a);

/* symmetric.c */
fsdp_status cuda_symmetric(stream *s, const symmetric_args *a);

/* cudnn_plans.c */
fsdp_status cudnn_plans_create(cudnn_plans **out);
void cudnn_plans_free(cuda_device *d, cudnn_plans *plans);

/* attention.c */
fsdp_status cuda_attention_forward(stream *s, const attention_args *a);
size_t cuda_attention_forward_workspace(const device *d, const attention_args *a);
fsdp_status cuda_attention_backward(stream *s, const attention_args *a);
size_t cuda_attention_backward_workspace(const device *d, const attention_args *a);

/* conv2d.c */
fsdp_status cuda_conv2d_forward(stream *s, const conv2d_args *a);
size_t cuda_conv2d_forward_workspace(const device *d, const conv2d_args *a);
fsdp_status cuda_conv2d_backward(stream *s, const conv2d_args *a);
size_t cuda_conv2d_backward_workspace(const device *d, const conv2d_args *a);

/* paced_copy.c: paced moves without blocks, which cannot be recorded; a stream that ends leaves before it */
fsdp_status cuda_paced_copy(stream *s, const paced_move_args *a);
void paced_copies_leave(stream *s);
void paced_copies_free(paced_copies *c);

/* kernels_cuda.c */
extern const kernel_table cuda_kernels;

#endif
