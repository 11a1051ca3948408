/* Bytes moved as slowly as a link would carry them. A block moves its share in slices and waits after each until the
 * link would have carried it; meanwhile it keeps its multiprocessor, as a collective's block does. */
#include "device/cuda/launch.h"

#define THREADS 512
#define UNROLLED 8

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

static __device__ __forceinline__ int64_t wrapped(int64_t i, int64_t n)
{
    return i < n ? i : i % n;
}

template <typename T> __global__ void __launch_bounds__(THREADS) paced_move(const paced_move_args a, int64_t share)
{
    const uint64_t start = nanoseconds();
    const double duration = a.seconds * 1e9;
    const int64_t n = (int64_t)(a.bytes / sizeof(T)), slice = THREADS * UNROLLED;
    const int64_t n_from = (int64_t)(a.from_bytes / sizeof(T)), n_to = (int64_t)(a.to_bytes / sizeof(T));
    const int64_t first = blockIdx.x * share, end = min(first + share, n);
    for (int64_t at = first; at < end; at += slice) {
        const int64_t from = at % n_from, to = at % n_to;
#pragma unroll
        for (int j = 0; j < UNROLLED; j++) {
            const int64_t i = j * THREADS + threadIdx.x;
            if (at + i < end)
                ((T *)a.to)[wrapped(to + i, n_to)] = ((const T *)a.from)[wrapped(from + i, n_from)];
        }
        if (threadIdx.x == 0)
            wait_until(start + (uint64_t)(duration * (double)(min(at + slice, end) - first) / (double)share));
        __syncthreads();
    }
    if (threadIdx.x == 0)
        wait_until(start + (uint64_t)duration);
}

extern "C" cudaError_t launch_paced_move(const launch *l, const paced_move_args *a)
{
    const uintptr_t together = (uintptr_t)a->from | (uintptr_t)a->to | a->from_bytes | a->to_bytes;
    const bool vectors = together % sizeof(uint4) == 0;
    const int64_t n = (int64_t)(a->bytes / (vectors ? sizeof(uint4) : 1));
    const int64_t share = (n + a->blocks - 1) / a->blocks;
    if (vectors)
        paced_move<uint4><<<(unsigned)a->blocks, THREADS, 0, l->stream>>>(*a, share);
    else
        paced_move<uint8_t><<<(unsigned)a->blocks, THREADS, 0, l->stream>>>(*a, share);
    return cudaGetLastError();
}
