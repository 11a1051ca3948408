/* Arguments of kernels over images (kernels.h). */
#ifndef DEVICE_KERNELS_IMAGE_H
#define DEVICE_KERNELS_IMAGE_H

#include "device/kernels/operand.h"

/* Batch normalisation of (batch, channels, area) in three steps, so that the sums can be added over a group between
 * them: reduce fills sums in fp64, two a channel and after them the elements a channel has, and apply reads them. Only
 * the first `rows` samples are data; those after them pad the batch and enter no sum. They get a y, and no gradient.
 * forward_reduce: sum x, sum x^2. forward_apply: y, mean, rstd; with momentum > 0 the running statistics move (unbiased
 * variance). evaluate: running statistics instead of the batch's. sums == NULL: mean and rstd are there already (a
 * replay): only y is computed, nothing moves. backward_reduce: sum dy, sum dy*xhat. backward_apply: dx; d_weight,
 * d_bias from the *local* sums. */
typedef struct batchnorm_args {
    int64_t batch, channels, area;
    int64_t rows; /* of the batch, that count */
    float eps, momentum;
    bool evaluate;
    buffer x, y, weight, bias;
    double *sums;       /* (2 * channels + 1): two sums a channel, the count */
    float *mean, *rstd; /* (channels), kept for backward */
    float *running_mean, *running_var;
    buffer dy, dx, d_weight, d_bias;
    const double *local_sums; /* this rank's part of sums, for d_weight and d_bias */
    bool add_dx, add_weight, add_bias;
} batchnorm_args;

/* x (batch, in_channels, in_h, in_w), weight (out_channels, in_channels, kernel_h, kernel_w), y (batch, out_channels,
 * out_h, out_w). */
typedef struct conv2d_args {
    int64_t batch, in_channels, in_h, in_w, out_channels, kernel_h, kernel_w, out_h, out_w;
    int64_t stride_h, stride_w, padding_h, padding_w;
    buffer x, weight, bias, y; /* bias (out_channels), optional */
    buffer dy, dx, d_weight, d_bias;
    bool add_dx, add_weight, add_bias;
    void *workspace;
} conv2d_args;

/* Windows without padding; max keeps the chosen index (int32, within the plane) for backward. Windows may overlap. */
typedef struct pool2d_args {
    bool average;
    int64_t planes, in_h, in_w, out_h, out_w, kernel_h, kernel_w, stride_h, stride_w;
    buffer x, y;
    int32_t *index; /* (planes, out_h, out_w), max only */
    buffer dy, dx;
    bool add_dx;
} pool2d_args;

#endif
