/* Stands in for the CUDA device in builds without it, and says so. */
#include "base/error.h"
#include "device/device.h"

#ifndef FSDP_WITH_CUDA
fsdp_status device_open_cuda(int index, device **out)
{
    *out = NULL;
    return error_set(
        FSDP_ERR_UNSUPPORTED,
        "device cuda:%d was asked for, but this fsdp was built without CUDA; use --device cpu, or build with "
        "-DFSDP_CUDA=ON where nvcc is installed",
        index);
}
#endif
