/* The kernels every device offers, as one table. Their arguments are in device/kernels, a header per kind of kernel.
 *
 * All matrices are row-major. Shapes stand beside the pointers.
 * A `buffer` is a pointer with its element type; p == NULL means "not there". Floating buffers are fp32, bf16 or fp16;
 * arithmetic is always in fp32. `add` flags say that a result is added to what is there instead of overwriting it:
 * gradients are overwritten by their first contribution and added to by the rest, so nothing is ever cleared first.
 * Kernels that need scratch memory have a `<name>_workspace` beside them that says how much for given arguments
 * (pointers are not looked at); the caller passes at least that much, 256-byte aligned, in `workspace`.
 * The same arguments give the same bits on the same device and number of threads. */
#ifndef DEVICE_KERNELS_H
#define DEVICE_KERNELS_H

#include <fsdp/status.h>

#include "device/kernels/attention.h"
#include "device/kernels/elements.h"
#include "device/kernels/flat.h"
#include "device/kernels/gemm.h"
#include "device/kernels/image.h"
#include "device/kernels/rows.h"
#include "device/kernels/update.h"

struct stream;
struct device;

/* X(entry, args): a kernel. W(entry, args): a kernel that may need workspace. */
#define KERNELS(X, W)                                                                                                  \
    W(gemm, gemm_args)                                                                                                 \
    W(symmetric, symmetric_args)                                                                                       \
    X(fp8_cast, fp8_cast_args)                                                                                         \
    X(fp8_count, fp8_count_args)                                                                                       \
    W(column_sum, column_sum_args)                                                                                     \
    W(attention_forward, attention_args)                                                                               \
    W(attention_backward, attention_args)                                                                              \
    X(rope, rope_args)                                                                                                 \
    X(rmsnorm_forward, rmsnorm_args)                                                                                   \
    W(rmsnorm_backward, rmsnorm_args)                                                                                  \
    X(layernorm_forward, layernorm_args)                                                                               \
    W(layernorm_backward, layernorm_args)                                                                              \
    X(batchnorm_forward_reduce, batchnorm_args)                                                                        \
    X(batchnorm_forward_apply, batchnorm_args)                                                                         \
    X(batchnorm_backward_reduce, batchnorm_args)                                                                       \
    X(batchnorm_backward_apply, batchnorm_args)                                                                        \
    X(embedding_forward, embedding_args)                                                                               \
    W(embedding_backward, embedding_args)                                                                              \
    W(cross_entropy_forward, cross_entropy_args)                                                                       \
    X(cross_entropy_backward, cross_entropy_args)                                                                      \
    X(count_right, count_right_args)                                                                                   \
    X(activation_forward, activation_args)                                                                             \
    X(activation_backward, activation_args)                                                                            \
    X(gated_forward, gated_args)                                                                                       \
    X(gated_backward, gated_args)                                                                                      \
    X(axpby, axpby_args)                                                                                               \
    X(multiply, multiply_args)                                                                                         \
    X(fill, fill_args)                                                                                                 \
    X(strided_copy, strided_copy_args)                                                                                 \
    X(map_forward, map_args)                                                                                           \
    X(map_backward, map_args)                                                                                          \
    X(combine, combine_args)                                                                                           \
    X(reduce, reduce_dims_args)                                                                                        \
    X(reduce_backward, reduce_dims_args)                                                                               \
    X(softmax_forward, softmax_args)                                                                                   \
    X(softmax_backward, softmax_args)                                                                                  \
    X(gather_forward, gather_args)                                                                                     \
    X(gather_backward, gather_args)                                                                                    \
    X(one_hot, one_hot_args)                                                                                           \
    X(dropout, dropout_args)                                                                                           \
    W(conv2d_forward, conv2d_args)                                                                                     \
    W(conv2d_backward, conv2d_args)                                                                                    \
    X(pool2d_forward, pool2d_args)                                                                                     \
    X(pool2d_backward, pool2d_args)                                                                                    \
    W(sum, sum_args)                                                                                                   \
    X(squared_error_backward, squared_error_backward_args)                                                             \
    X(norm_blocks, norm_blocks_args)                                                                                   \
    X(sum_f64, sum_f64_args)                                                                                           \
    X(sum_parts, sum_parts_args)                                                                                       \
    X(loss_total, loss_total_args)                                                                                     \
    X(clip, clip_args)                                                                                                 \
    X(muon_direction, muon_direction_args)                                                                             \
    X(normalize, normalize_args)                                                                                       \
    X(adafactor_sums, adafactor_part)                                                                                  \
    X(adafactor_factors, adafactor_factors_args)                                                                       \
    X(adafactor_update, adafactor_part)                                                                                \
    X(adafactor_rate, adafactor_rate_args)                                                                             \
    X(narrow, int8_args)                                                                                               \
    X(widen, int8_args)                                                                                                \
    X(optimizer, optimizer_args)

#define KERNEL_ENTRY(entry, args) fsdp_status (*entry)(struct stream * s, const args *a);
#define KERNEL_ENTRY_WITH_WORKSPACE(entry, args)                                                                       \
    fsdp_status (*entry)(struct stream * s, const args *a);                                                            \
    size_t (*entry##_workspace)(const struct device *d, const args *a); /* never NULL */

typedef struct kernel_table {
    KERNELS(KERNEL_ENTRY, KERNEL_ENTRY_WITH_WORKSPACE)
} kernel_table;

#endif
