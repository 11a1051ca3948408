/* The kernel table of the CUDA device: each entry makes the device current, starts the launcher of the .cu files and
 * turns its result into a status. Workspaces are gpu_workspaces.c's, but for what cuDNN adds. */
#include "device/cuda/cuda_device.h"

#define ENTRY(name, args)                                                                                              \
    static fsdp_status run_##name(stream *s, const args *a)                                                            \
    {                                                                                                                  \
        FSDP_TRY(cuda_enter(s->device));                                                                               \
        return cuda_check(launch_##name(&s->launch, a), #name);                                                        \
    }
LAUNCHED_KERNELS(ENTRY)
#undef ENTRY

const kernel_table cuda_kernels = {
#define LAUNCHED_ENTRY(name, args) .name = run_##name,
    LAUNCHED_KERNELS(LAUNCHED_ENTRY)
#undef LAUNCHED_ENTRY
        .gemm = cuda_gemm,
    .gemm_workspace = gpu_gemm_workspace,
    .symmetric = cuda_symmetric,
    .symmetric_workspace = gpu_symmetric_workspace,
    .attention_forward = cuda_attention_forward,
    .attention_forward_workspace = cuda_attention_forward_workspace,
    .attention_backward = cuda_attention_backward,
    .attention_backward_workspace = cuda_attention_backward_workspace,
    .conv2d_forward = cuda_conv2d_forward,
    .conv2d_forward_workspace = cuda_conv2d_forward_workspace,
    .conv2d_backward = cuda_conv2d_backward,
    .conv2d_backward_workspace = cuda_conv2d_backward_workspace,
    .column_sum_workspace = gpu_column_sum_workspace,
    .rmsnorm_backward_workspace = gpu_rmsnorm_backward_workspace,
    .layernorm_backward_workspace = gpu_layernorm_backward_workspace,
    .embedding_backward_workspace = gpu_embedding_backward_workspace,
    .cross_entropy_forward_workspace = gpu_cross_entropy_forward_workspace,
    .sum_workspace = gpu_sum_workspace,
};
