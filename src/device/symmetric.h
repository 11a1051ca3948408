/* A symmetric product as an ordinary one. */
#ifndef DEVICE_SYMMETRIC_H
#define DEVICE_SYMMETRIC_H

#include "device/kernels.h"

/* Rows `first` to `end` of item x, as far as the diagonal's last column. gamma is left out. */
static inline gemm_args symmetric_gemm(const symmetric_args *a, const symmetric_item *x, int64_t first, int64_t end)
{
    return (gemm_args){.transpose_b = true,
                       .m = end - first,
                       .n = end,
                       .k = x->k,
                       .alpha = a->alpha,
                       .beta = a->beta,
                       .a = {(void *)(uintptr_t)(x->a + first * x->k), FSDP_BF16},
                       .b = {(void *)(uintptr_t)x->b, FSDP_BF16},
                       .c = {a->beta != 0.0f ? (void *)(uintptr_t)(x->c + first * x->n) : NULL, FSDP_BF16},
                       .d = {x->d + first * x->n, FSDP_BF16},
                       .lda = x->k,
                       .ldb = x->k,
                       .ldc = x->n,
                       .ldd = x->n,
                       .batch = 1,
                       .workspace = a->workspace};
}

#endif
