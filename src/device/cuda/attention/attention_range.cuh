/* Which keys a tile of queries may see at all, and which queries a tile of keys: one range each, from the causal mask,
 * the window and the starts of documents. */
#ifndef DEVICE_CUDA_ATTENTION_ATTENTION_RANGE_CUH
#define DEVICE_CUDA_ATTENTION_ATTENTION_RANGE_CUH

#include "device/kernels.h"

/* Where the document of a query starts; 0 without documents. Queries past the end count as the last. */
static __device__ __forceinline__ int start_of(const attention_args &a, int64_t b, int64_t query)
{
    return a.starts ? a.starts[b * a.q_length + min(query, a.q_length - 1)] : 0;
}

/* End of the keys that queries first_q .. first_q + n - 1 may see. */
static __device__ __forceinline__ int64_t keys_end(const attention_args &a, int64_t first_q, int n)
{
    const int64_t last = min(first_q + n, a.q_length) - 1 + a.kv_length - a.q_length + 1;
    return a.causal ? max((int64_t)0, min(a.kv_length, last)) : a.kv_length;
}

/* Start of the first tile of `tile` keys that queries from first_q on may see. */
static __device__ __forceinline__ int64_t keys_begin(const attention_args &a, int64_t b, int64_t first_q, int tile)
{
    const int64_t first = a.window > 0 ? first_q + a.kv_length - a.q_length - a.window + 1 : 0;
    return max((int64_t)0, max(first, (int64_t)start_of(a, b, first_q))) / tile * tile;
}

/* The first of queries begin .. end - 1 whose document starts at `key` or later; `end`: none. All threads of a warp
 * call it together and get the same: 32 probes at a time, so that a long row takes three rounds of memory. */
static __device__ __forceinline__ int64_t first_started(const int32_t *starts, int64_t begin, int64_t end, int64_t key)
{
    const int lane = threadIdx.x & 31;
    while (begin < end) {
        const int64_t step = (end - begin + 31) / 32, probe = begin + (lane + 1) * step - 1;
        const bool found = probe >= end || starts[probe] >= key;
        const int64_t before = __popc(__ballot_sync(0xffffffffu, !found)) * step; /* starts never fall */
        end = min(end, begin + before + step - 1); /* what is left, less the probe that was found */
        begin = min(end, begin + before);
    }
    return begin;
}

/* End of the queries of sample b that may see keys first_k .. first_k + n - 1. Whole warps call it. */
static __device__ __forceinline__ int64_t queries_end(const attention_args &a, int64_t b, int64_t first_k, int n)
{
    int64_t end = a.q_length;
    if (a.window > 0)
        end = max((int64_t)0, min(end, first_k + n - 1 - (a.kv_length - a.q_length) + a.window));
    if (a.starts)
        end = first_started(a.starts + b * a.q_length, min(first_k, end), end, first_k + n);
    return end;
}

#endif
