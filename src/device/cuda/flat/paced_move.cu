/* Bytes moved as slowly as a link would carry them. A block moves its share in slices and waits after each until the
 * link would have carried it; meanwhile it keeps its multiprocessor, as a collective's block does. (Without blocks:
 * paced_copy.c.) */
#include "device/cuda/launch.h"

#define THREADS 512
#define UNROLLED 8
#define SLICE (THREADS * UNROLLED)

static __device__ __forceinline__ uint64_t nanoseconds(void)
{
    uint64_t now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

static __device__ void wait_until(uint64_t due)
{
    while (nanoseconds() < due)
        __nanosleep(64);
}

/* i, which is below 2n where the buffers hold a slice each (LARGE), begun again at n. */
template <bool LARGE> static __device__ __forceinline__ int64_t wrapped(int64_t i, int64_t n)
{
    return i < n ? i : LARGE ? i - n : i % n; /* a division would take longer than the move */
}

/* The slice of `from` that begins at element `first`, for the elements of the move from `at` to `end`. */
template <typename T, bool LARGE>
static __device__ __forceinline__ void load(T values[UNROLLED], const T *from, int64_t first, int64_t n_from,
                                            int64_t at, int64_t end)
{
#pragma unroll
    for (int j = 0; j < UNROLLED; j++)
        if (at + j * THREADS + threadIdx.x < end)
            values[j] = from[wrapped<LARGE>(first + j * THREADS + threadIdx.x, n_from)];
}

/* A slice is under way while the one before it is written: a block alone carries what a channel of NCCL does. */
template <typename T, bool LARGE>
__global__ void __launch_bounds__(THREADS) paced_move(const paced_move_args a, int64_t share)
{
    const uint64_t start = nanoseconds();
    const double duration = a.seconds * 1e9;
    const int64_t n = (int64_t)(a.bytes / sizeof(T));
    const int64_t n_from = (int64_t)(a.from_bytes / sizeof(T)), n_to = (int64_t)(a.to_bytes / sizeof(T));
    const int64_t first = blockIdx.x * share, end = min(first + share, n);
    int64_t from = first % n_from, to = first % n_to;
    T values[UNROLLED], next[UNROLLED];
    load<T, LARGE>(values, (const T *)a.from, from, n_from, first, end);
    for (int64_t at = first; at < end; at += SLICE) {
        from = wrapped<LARGE>(from + SLICE, n_from);
        load<T, LARGE>(next, (const T *)a.from, from, n_from, at + SLICE, end);
#pragma unroll
        for (int j = 0; j < UNROLLED; j++)
            if (at + j * THREADS + threadIdx.x < end)
                ((T *)a.to)[wrapped<LARGE>(to + j * THREADS + threadIdx.x, n_to)] = values[j];
#pragma unroll
        for (int j = 0; j < UNROLLED; j++)
            values[j] = next[j];
        to = wrapped<LARGE>(to + SLICE, n_to);
        if (threadIdx.x == 0)
            wait_until(start + (uint64_t)(duration * (double)(min(at + SLICE, end) - first) / (double)share));
        __syncthreads();
    }
    if (threadIdx.x == 0)
        wait_until(start + (uint64_t)duration);
}

/* As NCCL launches its kernels from Hopper on: clusters of four blocks where they divide the grid, spread over the
 * GPU. Single blocks would break up the pairs of multiprocessors that the clusters of products need. */
#define NCCL_CLUSTER 4

template <typename T, bool LARGE> static cudaError_t start(const launch *l, const paced_move_args *a)
{
    const int64_t share = ((int64_t)(a->bytes / sizeof(T)) + a->blocks - 1) / a->blocks;
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = a->blocks % NCCL_CLUSTER == 0 ? NCCL_CLUSTER : 1;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeClusterSchedulingPolicyPreference;
    attributes[1].val.clusterSchedulingPolicyPreference = cudaClusterSchedulingPolicySpread;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)a->blocks);
    config.blockDim = dim3(THREADS);
    config.stream = l->stream;
    config.attrs = attributes;
    config.numAttrs = l->clusters ? 2 : 0;
    return cudaLaunchKernelEx(&config, paced_move<T, LARGE>, *a, share);
}

template <typename T> static cudaError_t start_blocks(const launch *l, const paced_move_args *a)
{
    const size_t slice = SLICE * sizeof(T);
    const bool large = a->from_bytes >= slice && a->to_bytes >= slice;
    return large ? start<T, true>(l, a) : start<T, false>(l, a);
}

extern "C" cudaError_t launch_paced_move(const launch *l, const paced_move_args *a)
{
    const uintptr_t together = (uintptr_t)a->from | (uintptr_t)a->to | a->from_bytes | a->to_bytes;
    return together % sizeof(uint4) == 0 ? start_blocks<uint4>(l, a) : start_blocks<uint8_t>(l, a);
}
