/* Bytes moved as slowly as a link would carry them. A block moves its share in slices and waits after each until the
 * link would have carried it; meanwhile it keeps its multiprocessor, as a collective's block does. */
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

template <typename T, bool LARGE>
__global__ void __launch_bounds__(THREADS) paced_move(const paced_move_args a, int64_t share)
{
    const uint64_t start = nanoseconds();
    const double duration = a.seconds * 1e9;
    const int64_t n = (int64_t)(a.bytes / sizeof(T));
    const int64_t n_from = (int64_t)(a.from_bytes / sizeof(T)), n_to = (int64_t)(a.to_bytes / sizeof(T));
    const int64_t first = blockIdx.x * share, end = min(first + share, n);
    int64_t from = first % n_from, to = first % n_to;
    for (int64_t at = first; at < end; at += SLICE) {
        T values[UNROLLED];
#pragma unroll
        for (int j = 0; j < UNROLLED; j++)
            if (at + j * THREADS + threadIdx.x < end)
                values[j] = ((const T *)a.from)[wrapped<LARGE>(from + j * THREADS + threadIdx.x, n_from)];
#pragma unroll
        for (int j = 0; j < UNROLLED; j++)
            if (at + j * THREADS + threadIdx.x < end)
                ((T *)a.to)[wrapped<LARGE>(to + j * THREADS + threadIdx.x, n_to)] = values[j];
        from = wrapped<LARGE>(from + SLICE, n_from);
        to = wrapped<LARGE>(to + SLICE, n_to);
        if (threadIdx.x == 0)
            wait_until(start + (uint64_t)(duration * (double)(min(at + SLICE, end) - first) / (double)share));
        __syncthreads();
    }
    if (threadIdx.x == 0)
        wait_until(start + (uint64_t)duration);
}

template <typename T> static void start(const launch *l, const paced_move_args *a)
{
    const int64_t share = ((int64_t)(a->bytes / sizeof(T)) + a->blocks - 1) / a->blocks;
    const size_t slice = SLICE * sizeof(T);
    if (a->from_bytes >= slice && a->to_bytes >= slice)
        paced_move<T, true><<<(unsigned)a->blocks, THREADS, 0, l->stream>>>(*a, share);
    else
        paced_move<T, false><<<(unsigned)a->blocks, THREADS, 0, l->stream>>>(*a, share);
}

extern "C" cudaError_t launch_paced_move(const launch *l, const paced_move_args *a)
{
    const uintptr_t together = (uintptr_t)a->from | (uintptr_t)a->to | a->from_bytes | a->to_bytes;
    if (together % sizeof(uint4) == 0)
        start<uint4>(l, a);
    else
        start<uint8_t>(l, a);
    return cudaGetLastError();
}
