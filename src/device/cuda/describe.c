/* A GPU that is only described: the CUDA device without hardware. Its workspaces are those of the real one, cuDNN's
 * plans for it included. */
#include "device/cuda/cudnn/cudnn_plans.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

#ifdef CUDA_HAS_CUDNN

#define MIN_CUDNN 91100 /* that plans for a GPU by its description */

/* The numbers that cuDNN asks a GPU for. */
static const char *const cudnn_text =
    "{\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, "
    "\"multiProcessorCount\": %d, \"smClockRateKHz\": 1980000, \"memClockRateKHz\": 3201000, \"l2CacheSize\": %d, "
    "\"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, \"maxSharedMemoryPerBlockOptin\": %d, "
    "\"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"pciDeviceId\": 0, \"maxCtasPerSM\": 32, "
    "\"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
    "\"deviceVer\": %d, \"driverVer\": 13000, \"cudaDeviceId\": 0, \"totalGlobalMem\": %zu, "
    "\"deviceName\": \"%s\", \"deviceId\": 0}";

fsdp_status cudnn_describe(const cudnn_api *api, const gpu_properties *gpu, cudnnBackendDescriptor_t *out)
{
    char text[2048];
    int n = snprintf(text, sizeof text, cudnn_text, gpu->n_multiprocessors, gpu->l2_bytes, gpu->shared_bytes,
                     gpu->compute_capability * 10, gpu->memory_bytes, gpu->name);
    cudnnStatus_t status = api->cudnnBackendCreateDescriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, out);
    if (status != CUDNN_STATUS_SUCCESS)
        return error_set(FSDP_ERR_DEVICE, "cuDNN has no descriptions of GPUs: %s", api->cudnnGetErrorString(status));
    status = api->cudnnBackendSetAttribute(*out, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR, n, text);
    if (status == CUDNN_STATUS_SUCCESS)
        status = api->cudnnBackendFinalize(*out);
    if (status == CUDNN_STATUS_SUCCESS)
        return FSDP_OK;
    api->cudnnBackendDestroyDescriptor(*out);
    *out = NULL;
    return error_set(FSDP_ERR_DEVICE, "cuDNN does not take the description of %s: %s", gpu->name,
                     api->cudnnGetErrorString(status));
}

/* Why cuDNN's plans cannot be made here; NULL: they can. */
static const char *open_cudnn(cuda_device *d)
{
    if (!libraries_open_driver())
        return "what cuDNN takes for attention and convolution, because there is no driver library here, not even the "
               "toolkit's stub (our own kernels are planned instead)";
    if (libraries_open_cudnn(&d->libraries) != FSDP_OK || d->libraries.cudnn_version < MIN_CUDNN ||
        cudnn_describe(&d->libraries.cudnn, &d->gpu, (cudnnBackendDescriptor_t *)&d->described) != FSDP_OK)
        return "what cuDNN takes for attention and convolution, because cuDNN 9.11 or newer is not here (our own "
               "kernels "
               "are planned instead)";
    d->cudnn = true;
    return NULL;
}

void cuda_forget_description(cuda_device *d)
{
    if (d->described)
        d->libraries.cudnn.cudnnBackendDestroyDescriptor(d->described);
    d->described = NULL;
}

#else /* built without cuDNN: the own kernels serve everything, on the real GPU too */

static const char *open_cudnn(cuda_device *d)
{
    (void)d;
    return NULL;
}

void cuda_forget_description(cuda_device *d)
{
    (void)d;
}

#endif

fsdp_status device_describe(const char *name, device **out)
{
    const gpu_properties *gpu = gpu_find(name);
    *out = NULL;
    if (!gpu)
        return error_set(FSDP_ERR_INPUT, "no GPU named \"%s\" can be planned for; h200, h100 and a100 can", name);
    cuda_device *d = calloc(1, sizeof *d);
    if (!d)
        return error_set(FSDP_ERR_MEMORY, "describing a GPU: out of host memory");
    d->base = cuda_device_table;
    d->index = -1;
    d->gpu = *gpu;
    d->base.gpu = &d->gpu;
    snprintf(d->base.description, sizeof d->base.description, "%s, described", gpu->name);
    fsdp_status status = gemm_table_create(&d->gemms);
    if (status == FSDP_OK)
        status = cudnn_plans_create(&d->plans);
    if (status != FSDP_OK) {
        gemm_table_free(d, d->gemms);
        free(d);
        return status;
    }
    d->base.unplanned = open_cudnn(d);
    *out = &d->base;
    return FSDP_OK;
}
