/* What one call of a kernel amounts to: which kernel, on which shape, and how much it multiplies, reads and writes. Two
 * calls with the same kernel, types, variant and shape take the same time; what predicts and measures times agrees on
 * that. */
#ifndef DEVICE_KERNEL_WORK_H
#define DEVICE_KERNEL_WORK_H

#include "device/kernels.h"

#define KERNEL_ID(entry, args) KERNEL_##entry,
/* Copies and clears are no kernels of the table, and take time all the same. */
typedef enum kernel_id { KERNELS(KERNEL_ID, KERNEL_ID) KERNEL_COPY, KERNEL_COUNT } kernel_id;

enum { KERNEL_WORK_DIMS = 6 };

typedef struct kernel_work {
    kernel_id kernel;
    fsdp_dtype dtype, result;        /* of what it mainly reads and writes */
    uint32_t variant;                /* the switches that matter for its time, bit by bit; 0: the plain one */
    int64_t shape[KERNEL_WORK_DIMS]; /* products: m, n, k, batch; attention: batch, queries, keys, heads, key heads,
                                        head dimension; others: rows, columns, or a count */
    double flops, bytes;             /* flops of products and attention; 0: bound by memory */
} kernel_work;

const char *kernel_name(kernel_id kernel);
kernel_id kernel_find(const char *name); /* KERNEL_COUNT: there is none of this name */

/* `args` are those of the kernel. Pointers are compared with NULL, and nothing else. */
void kernel_work_of(kernel_id kernel, const void *args, kernel_work *out);
/* A copy or a clear that reads and writes so many bytes together. */
kernel_work kernel_work_of_copy(double bytes);
/* Whether two calls take the same time. */
bool kernel_work_same(const kernel_work *a, const kernel_work *b);

#endif
