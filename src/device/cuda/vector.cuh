/* Reading and writing buffers of any floating type as fp32, eight elements (16 bytes of bf16) at a time where rows
 * allow. Kernels are compiled per element type for the usual case of one type throughout, and once more with the type
 * looked up at run time (DYNAMIC) for mixed ones; V is 8 with aligned rows and 1 otherwise. */
#ifndef DEVICE_CUDA_VECTOR_CUH
#define DEVICE_CUDA_VECTOR_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "device/cuda/launch.h"

#define DYNAMIC -1

template <int V> struct floats {
    float v[V];
};

static __device__ __forceinline__ void unpack_bf16(uint32_t word, float *out)
{
    out[0] = __uint_as_float(word << 16);
    out[1] = __uint_as_float(word & 0xffff0000u);
}

static __device__ __forceinline__ void unpack_f16(uint32_t word, float *out)
{
    __half2 pair;
    memcpy(&pair, &word, sizeof pair);
    float2 wide = __half22float2(pair);
    out[0] = wide.x;
    out[1] = wide.y;
}

static __device__ __forceinline__ uint32_t pack_bf16(float a, float b)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

static __device__ __forceinline__ uint32_t pack_f16(float a, float b)
{
    __half2 pair = __floats2half2_rn(a, b);
    uint32_t word;
    memcpy(&word, &pair, sizeof word);
    return word;
}

static __device__ __forceinline__ float load_one(const void *p, int dtype, int64_t i)
{
    if (dtype == FSDP_F32)
        return ((const float *)p)[i];
    if (dtype == FSDP_BF16)
        return __bfloat162float(((const __nv_bfloat16 *)p)[i]);
    return __half2float(((const __half *)p)[i]);
}

static __device__ __forceinline__ void store_one(void *p, int dtype, int64_t i, float value)
{
    if (dtype == FSDP_F32)
        ((float *)p)[i] = value;
    else if (dtype == FSDP_BF16)
        ((__nv_bfloat16 *)p)[i] = __float2bfloat16_rn(value);
    else
        ((__half *)p)[i] = __float2half_rn(value);
}

/* Eight elements as they lie in memory. */
static __device__ __forceinline__ void unpack8(int dtype, uint4 raw, float *out)
{
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (dtype == FSDP_BF16)
            unpack_bf16(words[i], out + 2 * i);
        else
            unpack_f16(words[i], out + 2 * i);
}

/* 16 bytes of one type, as they lie in memory: how many elements, and to and from fp32. */
template <int D> static constexpr int in_16_bytes = D == FSDP_F32 ? 4 : 8;

template <int D> static __device__ __forceinline__ void unpack16(uint4 raw, float *out)
{
    if constexpr (D == FSDP_F32) {
        out[0] = __uint_as_float(raw.x);
        out[1] = __uint_as_float(raw.y);
        out[2] = __uint_as_float(raw.z);
        out[3] = __uint_as_float(raw.w);
    } else {
        unpack8(D, raw, out);
    }
}

template <int D> static __device__ __forceinline__ uint4 pack16(const float *x)
{
    if constexpr (D == FSDP_F32)
        return make_uint4(__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3]));
    else if constexpr (D == FSDP_BF16)
        return make_uint4(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7]));
    else
        return make_uint4(pack_f16(x[0], x[1]), pack_f16(x[2], x[3]), pack_f16(x[4], x[5]), pack_f16(x[6], x[7]));
}

/* Elements i .. i+V-1 of b. D: the element type, or DYNAMIC. */
template <int D, int V> static __device__ __forceinline__ floats<V> load(const buffer b, int64_t i)
{
    const int dtype = D == DYNAMIC ? (int)b.dtype : D;
    floats<V> out;
    if constexpr (V == 1) {
        out.v[0] = load_one(b.p, dtype, i);
    } else if (dtype == FSDP_F32) {
        const float4 *p = (const float4 *)((const float *)b.p + i);
#pragma unroll
        for (int j = 0; j < V / 4; j++) {
            float4 part = p[j];
            out.v[4 * j] = part.x;
            out.v[4 * j + 1] = part.y;
            out.v[4 * j + 2] = part.z;
            out.v[4 * j + 3] = part.w;
        }
    } else {
        unpack8(dtype, *(const uint4 *)((const uint16_t *)b.p + i), out.v);
    }
    return out;
}

template <int D, int V> static __device__ __forceinline__ void store(const buffer b, int64_t i, const floats<V> &x)
{
    const int dtype = D == DYNAMIC ? (int)b.dtype : D;
    if constexpr (V == 1) {
        store_one(b.p, dtype, i, x.v[0]);
    } else if (dtype == FSDP_F32) {
        float4 *p = (float4 *)((float *)b.p + i);
#pragma unroll
        for (int j = 0; j < V / 4; j++)
            p[j] = make_float4(x.v[4 * j], x.v[4 * j + 1], x.v[4 * j + 2], x.v[4 * j + 3]);
    } else if (dtype == FSDP_BF16) {
        *(uint4 *)((uint16_t *)b.p + i) = make_uint4(pack_bf16(x.v[0], x.v[1]), pack_bf16(x.v[2], x.v[3]),
                                                     pack_bf16(x.v[4], x.v[5]), pack_bf16(x.v[6], x.v[7]));
    } else {
        *(uint4 *)((uint16_t *)b.p + i) = make_uint4(pack_f16(x.v[0], x.v[1]), pack_f16(x.v[2], x.v[3]),
                                                     pack_f16(x.v[4], x.v[5]), pack_f16(x.v[6], x.v[7]));
    }
}

/* Stores x, or adds it to what is there. */
template <int D, int V>
static __device__ __forceinline__ floats<V> store_or_add(const buffer b, int64_t i, floats<V> x, bool add)
{
    if (add) {
        floats<V> old = load<D, V>(b, i);
#pragma unroll
        for (int j = 0; j < V; j++)
            x.v[j] += old.v[j];
    }
    store<D, V>(b, i, x);
    return x;
}

static __device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}

/* Sums of two numbers over the block (a multiple of 32 threads, at most 1024), the same bits in every thread. Two
 * calls need different `shared` (64 floats each) or a barrier between them. */
static __device__ __forceinline__ float2 block_sum2(float a, float b, float *shared)
{
    a = warp_sum(a);
    b = warp_sum(b);
    const int n_warps = blockDim.x >> 5, warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    if (n_warps == 1)
        return make_float2(a, b);
    if (lane == 0) {
        shared[warp] = a;
        shared[32 + warp] = b;
    }
    __syncthreads();
    a = warp_sum(lane < n_warps ? shared[lane] : 0.0f);
    b = warp_sum(lane < n_warps ? shared[32 + lane] : 0.0f);
    return make_float2(a, b);
}

static __device__ __forceinline__ double warp_sum_double(double x)
{
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* The same for one number in fp64; `shared` has 32 of them. */
static __device__ __forceinline__ double block_sum_double(double x, double *shared)
{
    x = warp_sum_double(x);
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, n_warps = blockDim.x >> 5;
    if (lane == 0)
        shared[warp] = x;
    __syncthreads();
    return warp_sum_double(lane < n_warps ? shared[lane] : 0.0);
}

/* ---- host side ---- */

static inline bool is_aligned(buffer b)
{
    return ((uintptr_t)b.p & 15) == 0;
}

/* Threads for a row of n vectors: whole warps, at most `most`. */
static inline int row_threads(int64_t n, int most)
{
    int64_t threads = launch_ceil(n, 32) * 32;
    return (int)(threads < most ? threads : most);
}

/* Blocks for n items, `threads` at a time, a grid-stride loop taking care of the rest. */
static inline unsigned flat_blocks(const launch *l, int64_t n, int threads)
{
    int64_t blocks = launch_ceil(n, threads), most = (int64_t)l->n_multiprocessors * 32;
    return (unsigned)(blocks < most ? blocks : most);
}

/* Type shared by all buffers that are there, DYNAMIC when they differ. */
static inline int common_dtype(buffer a, buffer b, buffer c, buffer d)
{
    const buffer all[4] = {a, b, c, d};
    int dtype = -2;
    for (int i = 0; i < 4; i++)
        if (all[i].p) {
            if (dtype == -2)
                dtype = (int)all[i].dtype;
            else if (dtype != (int)all[i].dtype)
                return DYNAMIC;
        }
    return dtype == -2 ? DYNAMIC : dtype;
}

/* Runs CALL(D, V) for the right instance: vectors only when `vectors`, and one type for all unless they differ. */
#define DISPATCH(dtype, vectors, CALL)                                                                                 \
    do {                                                                                                               \
        if (!(vectors))                                                                                                \
            CALL(DYNAMIC, 1);                                                                                          \
        else if ((dtype) == FSDP_F32)                                                                                  \
            CALL(FSDP_F32, 8);                                                                                         \
        else if ((dtype) == FSDP_BF16)                                                                                 \
            CALL(FSDP_BF16, 8);                                                                                        \
        else if ((dtype) == FSDP_F16)                                                                                  \
            CALL(FSDP_F16, 8);                                                                                         \
        else                                                                                                           \
            CALL(DYNAMIC, 8);                                                                                          \
    } while (0)

static const buffer no_buffer = {NULL, FSDP_F32};

#endif
