/* cuBLASLt and cuDNN, opened at run time, so that the program starts without them and can say which one is missing. */
#ifndef DEVICE_CUDA_LIBRARIES_H
#define DEVICE_CUDA_LIBRARIES_H

#include <stdbool.h>

#include <cublasLt.h>
#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#define CUDA_HAS_CUDNN 1
#endif

#include <fsdp/status.h>

#define CUBLASLT_FUNCTIONS(X)                                                                                          \
    X(cublasLtCreate)                                                                                                  \
    X(cublasLtDestroy)                                                                                                 \
    X(cublasLtGetVersion)                                                                                              \
    X(cublasLtMatmul)                                                                                                  \
    X(cublasLtMatmulDescCreate)                                                                                        \
    X(cublasLtMatmulDescDestroy)                                                                                       \
    X(cublasLtMatmulDescSetAttribute)                                                                                  \
    X(cublasLtMatrixLayoutCreate)                                                                                      \
    X(cublasLtMatrixLayoutDestroy)                                                                                     \
    X(cublasLtMatrixLayoutSetAttribute)                                                                                \
    X(cublasLtMatmulPreferenceCreate)                                                                                  \
    X(cublasLtMatmulPreferenceDestroy)                                                                                 \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                            \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                  \
    X(cublasLtMatmulAlgoCheck)

#define LIBRARY_FUNCTION(name) __typeof__(&name) name;

typedef struct cublaslt_api {
    CUBLASLT_FUNCTIONS(LIBRARY_FUNCTION)
} cublaslt_api;

#ifdef CUDA_HAS_CUDNN
#define CUDNN_FUNCTIONS(X)                                                                                             \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnGetLastErrorString)                                                                                         \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendExecute)

typedef struct cudnn_api {
    CUDNN_FUNCTIONS(LIBRARY_FUNCTION)
} cudnn_api;
#endif

typedef struct cuda_libraries {
    void *cublaslt_file, *cudnn_file; /* NULL: not open */
    cublaslt_api cublaslt;
    cublasLtHandle_t cublaslt_handle;
    size_t cudnn_version;    /* 0: there is none */
    char cudnn_missing[256]; /* why, "" when there is */
#ifdef CUDA_HAS_CUDNN
    cudnn_api cudnn;
    cudnnHandle_t cudnn_handle; /* made at the first plan */
#endif
} cuda_libraries;

/* Opens cuBLASLt, which the device cannot do without, and cuDNN, which it can. */
fsdp_status libraries_open(cuda_libraries *l);
void libraries_close(cuda_libraries *l);

/* The driver's library, or the toolkit's stub, which carries its name: once open, cuDNN finds it under that. */
bool libraries_open_driver(void);
/* Only cuDNN's functions, without a GPU: plans can be built for a described one. */
fsdp_status libraries_open_cudnn(cuda_libraries *l);

#ifdef CUDA_HAS_CUDNN
/* cuDNN's handle, made on the first call. */
fsdp_status libraries_cudnn_handle(cuda_libraries *l, cudnnHandle_t *out);
#endif

#endif
