/* The kernel table of the CUDA device: each entry makes the device current, starts the launcher of the .cu files and
 * turns its result into a status. Workspace sizes are here too, next to each other. */
#include "device/cuda/cuda_device.h"

#define ENTRY(name, args)                                                                                              \
    static fsdp_status run_##name(stream *s, const args *a)                                                            \
    {                                                                                                                  \
        FSDP_TRY(cuda_enter(s->device));                                                                               \
        return cuda_check(launch_##name(&s->launch, a), #name);                                                        \
    }
LAUNCHED_KERNELS(ENTRY)
#undef ENTRY

static int64_t row_partials(const device *d, int64_t rows)
{
    return partial_rows(((const cuda_device *)d)->n_multiprocessors, rows);
}

static size_t column_sum_workspace(const device *d, const column_sum_args *a)
{
    return (size_t)(row_partials(d, a->rows) * a->columns) * sizeof(float);
}

static size_t rmsnorm_backward_workspace(const device *d, const rmsnorm_args *a)
{
    return (size_t)(row_partials(d, a->rows) * a->columns) * sizeof(float);
}

static size_t layernorm_backward_workspace(const device *d, const layernorm_args *a)
{
    return (size_t)(row_partials(d, a->rows) * a->columns) * 2 * sizeof(float);
}

static size_t embedding_backward_workspace(const device *d, const embedding_args *a)
{
    (void)d;
    return embedding_workspace_bytes(a->rows, a->vocabulary);
}

static size_t cross_entropy_forward_workspace(const device *d, const cross_entropy_args *a)
{
    (void)d;
    return (size_t)a->rows * 2 * sizeof(float);
}

static size_t sum_workspace(const device *d, const sum_args *a)
{
    (void)d;
    (void)a;
    return SUM_PARTIALS * sizeof(double);
}

const kernel_table cuda_kernels = {
#define LAUNCHED_ENTRY(name, args) .name = run_##name,
    LAUNCHED_KERNELS(LAUNCHED_ENTRY)
#undef LAUNCHED_ENTRY
        .gemm = cuda_gemm,
    .gemm_workspace = cuda_gemm_workspace,
    .attention_forward = cuda_attention_forward,
    .attention_forward_workspace = cuda_attention_forward_workspace,
    .attention_backward = cuda_attention_backward,
    .attention_backward_workspace = cuda_attention_backward_workspace,
    .conv2d_forward = cuda_conv2d_forward,
    .conv2d_forward_workspace = cuda_conv2d_forward_workspace,
    .conv2d_backward = cuda_conv2d_backward,
    .conv2d_backward_workspace = cuda_conv2d_backward_workspace,
    .column_sum_workspace = column_sum_workspace,
    .rmsnorm_backward_workspace = rmsnorm_backward_workspace,
    .layernorm_backward_workspace = layernorm_backward_workspace,
    .embedding_backward_workspace = embedding_backward_workspace,
    .cross_entropy_forward_workspace = cross_entropy_forward_workspace,
    .sum_workspace = sum_workspace,
};
