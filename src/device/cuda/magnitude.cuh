/* The largest magnitude of what a kernel reads or writes, for scales of 8-bit operands. Magnitudes compare as their
 * bits do, and a NaN is above all of them; a maximum does not depend on its order, so the bits repeat. */
#ifndef DEVICE_CUDA_MAGNITUDE_CUH
#define DEVICE_CUDA_MAGNITUDE_CUH

#include "device/cuda/vector.cuh"

static __device__ __forceinline__ uint32_t magnitude_bits(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

template <int V> static __device__ __forceinline__ uint32_t largest_of(uint32_t bits, const floats<V> &x)
{
#pragma unroll
    for (int j = 0; j < V; j++)
        bits = max(bits, magnitude_bits(x.v[j]));
    return bits;
}

/* Magnitude of the number that a buffer of this type takes it for. Rounding keeps the order of numbers, so rounding the
 * largest gives the largest of the rounded. */
static __device__ __forceinline__ uint32_t magnitude_as_stored(uint32_t bits, int dtype)
{
    const float x = __uint_as_float(bits);
    if (dtype == FSDP_F32)
        return bits;
    return magnitude_bits(dtype == FSDP_BF16 ? __bfloat162float(__float2bfloat16_rn(x))
                                             : __half2float(__float2half_rn(x)));
}

/* Every thread of a block comes here with its own largest, to which *out is raised. */
static __device__ __forceinline__ void magnitude_leave(uint32_t bits, uint32_t *out)
{
    __shared__ uint32_t warps[32];
    const unsigned n_warps = (blockDim.x + 31) / 32, lanes = min(32u, blockDim.x - threadIdx.x / 32 * 32);
    const unsigned mask = lanes == 32 ? 0xffffffffu : (1u << lanes) - 1;
    bits = __reduce_max_sync(mask, bits);
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = bits;
    __syncthreads();
    if (threadIdx.x == 0) {
        for (unsigned i = 1; i < n_warps; i++)
            bits = max(bits, warps[i]);
        if (bits > *(volatile uint32_t *)out) /* most blocks find a larger one there */
            atomicMax(out, bits);
    }
}

#endif
