/* Clusters of blocks (compute capability 9.0): their barrier in two halves, and reading another block's shared memory.
 * Older GPUs compile these to nothing and never launch clusters. */
#ifndef DEVICE_CUDA_CLUSTER_CUH
#define DEVICE_CUDA_CLUSTER_CUH

#include <stdint.h>

/* Every thread of the cluster arrives, then waits for all others; what was written before is seen after. */
static __device__ __forceinline__ void cluster_arrive()
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

static __device__ __forceinline__ void cluster_wait()
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

/* *at, of this block's shared memory, as block `rank` of the cluster has it. */
static __device__ __forceinline__ float cluster_read(const float *at, int rank)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
    float value;
    const uint32_t own = (uint32_t)__cvta_generic_to_shared(at);
    asm volatile("{\n\t.reg .b32 there;\n\tmapa.shared::cluster.u32 there, %1, %2;\n\t"
                 "ld.shared::cluster.f32 %0, [there];\n\t}"
                 : "=f"(value)
                 : "r"(own), "r"(rank)
                 : "memory");
    return value;
#else
    (void)rank;
    return *at;
#endif
}

#endif
