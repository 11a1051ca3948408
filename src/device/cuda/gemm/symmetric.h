/* What symmetric.c hands to symmetric.cu. */
#ifndef DEVICE_CUDA_GEMM_SYMMETRIC_H
#define DEVICE_CUDA_GEMM_SYMMETRIC_H

#include <cuda.h>

#include "device/cuda/launch.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { SYMMETRIC_BOX_ROWS = 128, SYMMETRIC_BOX_DEPTH = 64 }; /* what the copy engine brings at once */

typedef struct symmetric_matrix {
    int n, k, tiles;
    const uint16_t *c;
    uint16_t *d;
} symmetric_matrix;

typedef struct symmetric_launch {
    CUtensorMap a[SYMMETRIC_ITEMS], b[SYMMETRIC_ITEMS]; /* by boxes, swizzled by 128 bytes */
    symmetric_matrix items[SYMMETRIC_ITEMS];
    int tiles; /* of all */
    float alpha, beta, gamma;
} symmetric_launch;

/* Hopper alone (sm_90a). */
cudaError_t launch_symmetric(const launch *l, const symmetric_launch *products);
/* After the product was computed whole, without gamma. */
cudaError_t launch_mirror(const launch *l, const symmetric_args *a, const symmetric_item *x);

#ifdef __cplusplus
}
#endif

#endif
