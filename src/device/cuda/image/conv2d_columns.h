/* Convolution by the own kernels: as products of columns. The bias is not their business: forward adds to y where there
 * is one. */
#ifndef DEVICE_CUDA_IMAGE_CONV2D_COLUMNS_H
#define DEVICE_CUDA_IMAGE_CONV2D_COLUMNS_H

#include "device/cuda/cuda_device.h"

fsdp_status conv2d_columns_forward(stream *s, const conv2d_args *a);
fsdp_status conv2d_columns_backward(stream *s, const conv2d_args *a, bool weight, bool input);

#endif
