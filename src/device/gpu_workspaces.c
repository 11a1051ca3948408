/* How much workspace the kernels of a GPU want, from its numbers alone. */
#include "base/checked.h"
#include "device/gpu.h"
#include "device/gpu_sizes.h"

/* Whether cuBLASLt writes results of this type from operands of that. */
static bool is_native(const gemm_args *a)
{
    return a->d.dtype == a->a.dtype || a->d.dtype == FSDP_F32 || gpu_is_fp8(a->a.dtype);
}

size_t gpu_gemm_scratch(const gemm_args *a)
{
    return is_native(a) ? 0 : round_up((size_t)max_i64(a->batch, 1) * (size_t)a->m * (size_t)a->n * sizeof(float), 256);
}

size_t gpu_gemm_library(const device *d, const gemm_args *a)
{
    size_t scratch = gpu_gemm_scratch(a);
    return d->workspace_limit > scratch ? d->workspace_limit - scratch : 0;
}

size_t gpu_gemm_workspace(const device *d, const gemm_args *a)
{
    return gpu_gemm_scratch(a) + gpu_gemm_library(d, a);
}

/* For products that the own kernel does not take. */
size_t gpu_symmetric_workspace(const device *d, const symmetric_args *a)
{
    (void)a;
    return d->workspace_limit;
}

size_t gpu_attention_forward_workspace(const device *d, const attention_args *a)
{
    (void)d;
    (void)a;
    return 0;
}

size_t gpu_attention_backward_workspace(const device *d, const attention_args *a)
{
    (void)d;
    return attention_own_backward_bytes(a);
}

gpu_conv_sizes gpu_conv_measure(const device *d, const conv2d_args *a, bool backward)
{
    gpu_conv_sizes s = {.depth = a->in_channels * a->kernel_h * a->kernel_w, .area = a->out_h * a->out_w};
    s.weight = a->out_channels * s.depth;
    /* Backward keeps fp32 columns and a weight gradient for each image, and one more for their sum. */
    size_t column = (size_t)(s.depth * s.area) * (backward ? sizeof(float) : fsdp_dtype_size(a->x.dtype));
    size_t extra = backward ? (size_t)s.weight * sizeof(float) : 0, reserve = extra + 512;
    size_t room = d->workspace_limit > reserve ? d->workspace_limit - reserve : 0;
    s.images = max_i64(1, min_i64(a->batch, (int64_t)(room / max_i64(1, (int64_t)(column + extra)))));
    s.columns_bytes = round_up(column * (size_t)s.images, 256);
    s.total_bytes = s.columns_bytes + (backward ? extra * (size_t)(s.images + 1) : 0);
    return s;
}

size_t gpu_conv2d_forward_workspace(const device *d, const conv2d_args *a)
{
    return gpu_conv_measure(d, a, false).total_bytes;
}

size_t gpu_conv2d_backward_workspace(const device *d, const conv2d_args *a)
{
    return gpu_conv_measure(d, a, true).total_bytes;
}

static size_t row_sums(const device *d, int64_t rows, int64_t columns)
{
    return (size_t)(partial_rows(d->gpu->n_multiprocessors, rows) * columns) * sizeof(float);
}

size_t gpu_column_sum_workspace(const device *d, const column_sum_args *a)
{
    return row_sums(d, a->rows, a->columns);
}

size_t gpu_rmsnorm_backward_workspace(const device *d, const rmsnorm_args *a)
{
    return row_sums(d, a->rows, a->columns);
}

size_t gpu_layernorm_backward_workspace(const device *d, const layernorm_args *a)
{
    return 2 * row_sums(d, a->rows, a->columns);
}

size_t gpu_embedding_backward_workspace(const device *d, const embedding_args *a)
{
    (void)d;
    return embedding_workspace_bytes(a->rows, a->vocabulary);
}

size_t gpu_cross_entropy_forward_workspace(const device *d, const cross_entropy_args *a)
{
    (void)d;
    return (size_t)a->rows * 2 * sizeof(float);
}

size_t gpu_sum_workspace(const device *d, const sum_args *a)
{
    (void)d;
    (void)a;
    return SUM_PARTIALS * sizeof(double);
}
