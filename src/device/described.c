/* The table of GPUs that can be planned for, and the device that stands for one of them: it has the traits and the
 * workspaces of the real one and computes nothing. Where CUDA is built in, cuda/describe.c makes it, with cuDNN's part.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/error.h"
#include "device/gpu.h"

static const struct {
    const char *name;
    gpu_properties gpu;
} known[] = {
    {"h200", {"NVIDIA H200", 90, 132, 232448, 62914560, 150109880320, ""}},
    {"h100", {"NVIDIA H100 80GB HBM3", 90, 132, 232448, 52428800, 85029158912, ""}},
    {"a100", {"NVIDIA A100-SXM4-80GB", 80, 108, 166912, 41943040, 85097971712, ""}},
};

const gpu_properties *gpu_find(const char *name)
{
    for (size_t i = 0; name && i < sizeof known / sizeof *known; i++)
        if (strcasecmp(known[i].name, name) == 0)
            return &known[i].gpu;
    return NULL;
}

bool device_is_described(const char *name)
{
    return gpu_find(name) != NULL;
}

#ifndef FSDP_WITH_CUDA

typedef struct described_device {
    device base;
    gpu_properties gpu;
} described_device;

static fsdp_status computes_nothing(void)
{
    return error_set(FSDP_ERR_UNSUPPORTED, "this GPU is only described: it can be planned for, not computed on");
}

static fsdp_status no_memory(device *d, memory_kind kind, size_t bytes, void **out)
{
    (void)d, (void)kind, (void)bytes;
    *out = NULL;
    return computes_nothing();
}

static void nothing_to_release(device *d, memory_kind kind, void *memory, size_t bytes)
{
    (void)d, (void)kind, (void)memory, (void)bytes;
}

static fsdp_status no_stream(device *d, int priority, stream **out)
{
    (void)d, (void)priority;
    *out = NULL;
    return computes_nothing();
}

static fsdp_status no_halves(stream *s, const halves_args *a)
{
    (void)s, (void)a;
    return computes_nothing();
}

static size_t all_but_the_context(device *d)
{
    return gpu_usable(d->gpu->memory_bytes - GPU_CONTEXT_BYTES);
}

static void forget(device *d)
{
    free(d);
}

static const kernel_table workspaces = {
    .gemm_workspace = gpu_gemm_workspace,
    .symmetric_workspace = gpu_symmetric_workspace,
    .attention_forward_workspace = gpu_attention_forward_workspace,
    .attention_backward_workspace = gpu_attention_backward_workspace,
    .conv2d_forward_workspace = gpu_conv2d_forward_workspace,
    .conv2d_backward_workspace = gpu_conv2d_backward_workspace,
    .column_sum_workspace = gpu_column_sum_workspace,
    .rmsnorm_backward_workspace = gpu_rmsnorm_backward_workspace,
    .layernorm_backward_workspace = gpu_layernorm_backward_workspace,
    .embedding_backward_workspace = gpu_embedding_backward_workspace,
    .cross_entropy_forward_workspace = gpu_cross_entropy_forward_workspace,
    .sum_workspace = gpu_sum_workspace,
};

fsdp_status device_describe(const char *name, device **out)
{
    const gpu_properties *gpu = gpu_find(name);
    *out = NULL;
    if (!gpu)
        return error_set(FSDP_ERR_INPUT, "no GPU named \"%s\" can be planned for; h200, h100 and a100 can", name);
    described_device *d = calloc(1, sizeof *d);
    if (!d)
        return error_set(FSDP_ERR_MEMORY, "describing a GPU: out of host memory");
    d->gpu = *gpu;
    d->base =
        (device){.name = "cuda",
                 .own_memory = true,
                 .workspace_limit = GPU_WORKSPACE_LIMIT,
                 .chunk_bytes = GPU_CHUNK_BYTES,
                 .gpu = &d->gpu,
                 .unplanned = "what cuDNN takes for attention and convolution, because this fsdp was built without "
                              "CUDA (our own kernels are planned instead)",
                 .kernels = &workspaces,
                 .allocate = no_memory,
                 .release = nothing_to_release,
                 .stream_create = no_stream,
                 .halves = no_halves,
                 .available = all_but_the_context,
                 .close = forget};
    snprintf(d->base.description, sizeof d->base.description, "%s, described", gpu->name);
    *out = &d->base;
    return FSDP_OK;
}

#endif
