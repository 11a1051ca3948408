/* What the CUDA device offers beyond the device table: choices, and the caches that make the second start fast.
 * Every function takes a device from device_open_cuda; nothing here exists for other devices. */
#ifndef DEVICE_CUDA_CUDA_H
#define DEVICE_CUDA_CUDA_H

#include <stdbool.h>

#include <fsdp/status.h>

#include "device/device.h"

/* fp32 products through the tensor cores with 10 bits of mantissa. Off unless asked for. */
void cuda_set_tf32(device *d, bool on);

/* On (the default), the first product of a shape times the candidate algorithms on its own operands, unless the stream
 * is being recorded; off, the library's first suggestion is taken. */
void cuda_set_tuning(device *d, bool on);

/* Matrix algorithms chosen so far, as a small JSON file. Loading a file written by another library version or for
 * another GPU changes nothing; what is loaded is preferred to timing. */
fsdp_status cuda_gemm_cache_load(device *d, const char *path);
fsdp_status cuda_gemm_cache_save(device *d, const char *path);

/* Folder where compiled plans of cuDNN are kept between runs (made when absent); NULL: nowhere. Copied. */
fsdp_status cuda_set_plan_folder(device *d, const char *folder);

/* Which implementation attention would use for these arguments: "cudnn" or "own". Builds the plan when there is none.
 */
const char *cuda_attention_engine(device *d, const attention_args *a, bool backward);

/* The same for convolution; backward: "cudnn" only where both gradients are. */
const char *cuda_conv2d_engine(device *d, const conv2d_args *a, bool backward);

/* Whether attention and convolution may use cuDNN at all (the default). Off: the own kernels serve everything. */
void cuda_set_cudnn(device *d, bool on);

/* For libraries that work beside this one: opened where cuBLASLt would be looked for (a handle for dlsym, or NULL), a
 * stream as CUDA knows it, and whether an event has come to pass. */
void *cuda_open_library(const char *name);
void *cuda_stream_handle(stream *s);
fsdp_status cuda_event_done(event *e, bool *done);

#endif
