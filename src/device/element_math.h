/* What operations compute for one element, and where elements with strides lie: the same for every device, in C that
 * nvcc compiles too. */
#ifndef DEVICE_ELEMENT_MATH_H
#define DEVICE_ELEMENT_MATH_H

#include <math.h>
#include <stdint.h>

#include "device/kernels.h"

#ifdef __CUDACC__
#define ELEMENT_INLINE __host__ __device__ static inline
#else
#define ELEMENT_INLINE static inline
#endif

ELEMENT_INLINE float sigmoid_of(float x)
{
    float e = expf(-fabsf(x));
    return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}

ELEMENT_INLINE float softplus_of(float x)
{
    return (x > 0.0f ? x : 0.0f) + log1pf(expf(-fabsf(x)));
}

/* The derivative at x. */
ELEMENT_INLINE float map_slope(map_kind kind, float power, float x)
{
    float t;
    switch (kind) {
    case MAP_EXP:
        return expf(x);
    case MAP_LOG:
        return 1.0f / x;
    case MAP_SQRT:
        return 0.5f / sqrtf(x);
    case MAP_SIGMOID:
        t = sigmoid_of(x);
        return t * (1.0f - t);
    case MAP_TANH:
        t = tanhf(x);
        return 1.0f - t * t;
    case MAP_SOFTPLUS:
        return sigmoid_of(x);
    default:
        return power == 0.0f ? 0.0f : power * powf(x, power - 1.0f);
    }
}

/* Element offset of position `index` of a row-major walk over n dimensions. */
ELEMENT_INLINE int64_t offset_of(int64_t index, int n, const int64_t *shape, const int64_t *stride)
{
    int64_t offset = 0;
    for (int d = n - 1; d >= 0; d--) {
        int64_t next = index / shape[d];
        offset += (index - next * shape[d]) * stride[d];
        index = next;
    }
    return offset;
}

ELEMENT_INLINE int64_t product_of(int n, const int64_t *shape)
{
    int64_t product = 1;
    for (int d = 0; d < n; d++)
        product *= shape[d];
    return product;
}

#endif
