/* The table of matrix products seen so far: descriptors and the chosen algorithm for every shape. */
#ifndef DEVICE_CUDA_GEMM_GEMM_TABLE_H
#define DEVICE_CUDA_GEMM_GEMM_TABLE_H

#include "device/cuda/cuda_device.h"

#define GEMM_KEY_CHARS 256

typedef struct gemm_entry {
    struct gemm_entry *next;
    char key[GEMM_KEY_CHARS];
    bool described; /* the descriptors below exist */
    bool chosen;    /* algorithm is set: timed, suggested or loaded */
    bool usable;    /* false: the library has no algorithm for it */
    bool loaded;    /* the algorithm came from elsewhere, and the library was not yet asked whether it takes it */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t a, b, c, d; /* in the library's order: a is our b */
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    float milliseconds; /* of the timing, 0 when there was none */
} gemm_entry;

struct gemm_table {
    pthread_mutex_t mutex;
    gemm_entry *entries[256];
    bool changed; /* something was timed since the table was last read or written */
};

void gemm_table_lock(gemm_table *table);
void gemm_table_unlock(gemm_table *table);

/* The entry for these arguments, described and with an algorithm (or not usable). The table is locked by the caller. */
fsdp_status gemm_table_find(stream *s, const gemm_args *a, size_t workspace_bytes, gemm_entry **out);

/* An entry by key, made empty when there is none; NULL when out of memory. For gemm_cache.c. */
gemm_entry *gemm_table_entry(gemm_table *table, const char *key);

/* Enqueues the product with `algorithm`, or the entry's own when NULL. */
cublasStatus_t gemm_entry_run(cuda_device *d, cudaStream_t queue, gemm_entry *entry, const gemm_args *a,
                              size_t workspace_bytes, const void *c, void *out, const cublasLtMatmulAlgo_t *algorithm);

#endif
