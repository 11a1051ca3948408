/* The border between C and CUDA: launchers that the .cu files define and the C files call; the sizes both must
 * agree on are in gpu_sizes.h. A launcher enqueues on l->stream and returns the launch's error; it never waits and
 * never allocates. */
#ifndef DEVICE_CUDA_LAUNCH_H
#define DEVICE_CUDA_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#include "device/gpu_sizes.h"
#include "device/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct launch {
    cudaStream_t stream;
    int n_multiprocessors;
    int shared_bytes; /* most dynamic shared memory one block may ask for */
    bool clusters;    /* blocks may be launched in clusters that read each other's shared memory */
    double *scratch;  /* (SUM_PARTIALS) of this stream, for kernels without workspace */
} launch;

/* Kernels whose launcher does all the work: LAUNCHED(name, args). Products, attention and convolution have C parts of
 * their own. */
#define LAUNCHED_KERNELS(LAUNCHED)                                                                                     \
    LAUNCHED(fp8_cast, fp8_cast_args)                                                                                  \
    LAUNCHED(fp8_count, fp8_count_args)                                                                                \
    LAUNCHED(column_sum, column_sum_args)                                                                              \
    LAUNCHED(rope, rope_args)                                                                                          \
    LAUNCHED(rmsnorm_forward, rmsnorm_args)                                                                            \
    LAUNCHED(rmsnorm_backward, rmsnorm_args)                                                                           \
    LAUNCHED(layernorm_forward, layernorm_args)                                                                        \
    LAUNCHED(layernorm_backward, layernorm_args)                                                                       \
    LAUNCHED(batchnorm_forward_reduce, batchnorm_args)                                                                 \
    LAUNCHED(batchnorm_forward_apply, batchnorm_args)                                                                  \
    LAUNCHED(batchnorm_backward_reduce, batchnorm_args)                                                                \
    LAUNCHED(batchnorm_backward_apply, batchnorm_args)                                                                 \
    LAUNCHED(embedding_forward, embedding_args)                                                                        \
    LAUNCHED(embedding_backward, embedding_args)                                                                       \
    LAUNCHED(cross_entropy_forward, cross_entropy_args)                                                                \
    LAUNCHED(cross_entropy_backward, cross_entropy_args)                                                               \
    LAUNCHED(count_right, count_right_args)                                                                            \
    LAUNCHED(activation_forward, activation_args)                                                                      \
    LAUNCHED(activation_backward, activation_args)                                                                     \
    LAUNCHED(gated_forward, gated_args)                                                                                \
    LAUNCHED(gated_backward, gated_args)                                                                               \
    LAUNCHED(axpby, axpby_args)                                                                                        \
    LAUNCHED(multiply, multiply_args)                                                                                  \
    LAUNCHED(fill, fill_args)                                                                                          \
    LAUNCHED(strided_copy, strided_copy_args)                                                                          \
    LAUNCHED(map_forward, map_args)                                                                                    \
    LAUNCHED(map_backward, map_args)                                                                                   \
    LAUNCHED(combine, combine_args)                                                                                    \
    LAUNCHED(reduce, reduce_dims_args)                                                                                 \
    LAUNCHED(reduce_backward, reduce_dims_args)                                                                        \
    LAUNCHED(softmax_forward, softmax_args)                                                                            \
    LAUNCHED(softmax_backward, softmax_args)                                                                           \
    LAUNCHED(gather_forward, gather_args)                                                                              \
    LAUNCHED(gather_backward, gather_args)                                                                             \
    LAUNCHED(one_hot, one_hot_args)                                                                                    \
    LAUNCHED(dropout, dropout_args)                                                                                    \
    LAUNCHED(pool2d_forward, pool2d_args)                                                                              \
    LAUNCHED(pool2d_backward, pool2d_args)                                                                             \
    LAUNCHED(sum, sum_args)                                                                                            \
    LAUNCHED(squared_error_backward, squared_error_backward_args)                                                      \
    LAUNCHED(norm_blocks, norm_blocks_args)                                                                            \
    LAUNCHED(sum_f64, sum_f64_args)                                                                                    \
    LAUNCHED(sum_parts, sum_parts_args)                                                                                \
    LAUNCHED(loss_total, loss_total_args)                                                                              \
    LAUNCHED(clip, clip_args)                                                                                          \
    LAUNCHED(muon_direction, muon_direction_args)                                                                      \
    LAUNCHED(normalize, normalize_args)                                                                                \
    LAUNCHED(adafactor_sums, adafactor_part)                                                                           \
    LAUNCHED(adafactor_factors, adafactor_factors_args)                                                                \
    LAUNCHED(adafactor_update, adafactor_part)                                                                         \
    LAUNCHED(adafactor_rate, adafactor_rate_args)                                                                      \
    LAUNCHED(narrow, int8_args)                                                                                        \
    LAUNCHED(widen, int8_args)                                                                                         \
    LAUNCHED(optimizer, optimizer_args)

#define DECLARE_LAUNCHER(name, args) cudaError_t launch_##name(const launch *l, const args *a);
LAUNCHED_KERNELS(DECLARE_LAUNCHER)
#undef DECLARE_LAUNCHER

/* RMS normalisation of any rows: what rmsnorm.cu leaves to norm.cu. */
cudaError_t launch_rmsnorm_any_forward(const launch *l, const rmsnorm_args *a);
cudaError_t launch_rmsnorm_any_backward(const launch *l, const rmsnorm_args *a);

cudaError_t launch_halves(const launch *l, const halves_args *a);
cudaError_t launch_random(const launch *l, const random_args *a);
cudaError_t launch_paced_move(const launch *l, const paced_move_args *a);

/* Attention by the own kernel; workspace as attention_own_*_bytes says. d_bias strides must be one of the forms that
 * attention_bias_form knows, unless d_bias is NULL. */
cudaError_t launch_attention_forward(const launch *l, const attention_args *a);
cudaError_t launch_attention_backward(const launch *l, const attention_args *a);

/* d = alpha * t + beta * c + bias, t fp32 (batch, m, n) contiguous or NULL for zeros: the end of a product that
 * cuBLASLt cannot finish by itself (mixed types, nothing to sum over). */
cudaError_t launch_gemm_finish(const launch *l, const gemm_args *a, const float *t);

/* Columns of one image for convolution as a product: (in_channels*kernel_h*kernel_w, out_h*out_w) and back. `add`
 * applies to dx. */
cudaError_t launch_image_to_columns(const launch *l, const conv2d_args *a, int64_t first, int64_t images,
                                    void *columns);
cudaError_t launch_columns_to_image(const launch *l, const conv2d_args *a, int64_t first, int64_t images,
                                    const float *columns);
cudaError_t launch_channel_bias(const launch *l, const conv2d_args *a);
cudaError_t launch_channel_bias_backward(const launch *l, const conv2d_args *a);
/* out[j] (+)= sum over p of partial[p, j], in a fixed order: the second half of sums over rows. */
cudaError_t launch_sum_partials(const launch *l, const float *partial, int64_t n_partials, int64_t n, buffer out,
                                bool add);

#ifdef __cplusplus
}
#endif
#endif
