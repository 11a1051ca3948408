/* Numbers as blocks of 8 bits (int8_block.h), and back. Widening runs in every step and is bound by memory: a thread
 * reads two words of a block and writes 16 bytes. Narrowing happens once, as weights are loaded: a warp a block. */
#include "device/cuda/vector.cuh"

#include "device/int8_block.h"

#define THREADS 256

template <int D, int V> __global__ void __launch_bounds__(THREADS) widen(const int8_args a)
{
    const int8_block *blocks = (const int8_block *)a.blocks;
    for (int64_t i = (blockIdx.x * (int64_t)THREADS + threadIdx.x) * V; i < a.n;
         i += gridDim.x * (int64_t)THREADS * V) {
        const int8_block *block = &blocks[i / INT8_BLOCK];
        const int8_t *codes = block->codes + i % INT8_BLOCK;
        const float scale = block->scale;
        floats<V> x;
        if constexpr (V == 1) {
            x.v[0] = (float)codes[0] * scale;
        } else {
            const uint32_t *words = (const uint32_t *)codes;
#pragma unroll
            for (int j = 0; j < V / 4; j++) {
                const uint32_t word = words[j];
#pragma unroll
                for (int k = 0; k < 4; k++)
                    x.v[4 * j + k] = (float)(int8_t)(word >> (8 * k)) * scale;
            }
        }
        store<D, V>(a.values, i, x);
    }
}

extern "C" cudaError_t launch_widen(const launch *l, const int8_args *a)
{
    if (a->n == 0)
        return cudaSuccess;
#define CALL(D, V) widen<D, V><<<flat_blocks(l, launch_ceil(a->n, V), THREADS), THREADS, 0, l->stream>>>(*a)
    DISPATCH((int)a->values.dtype, is_aligned(a->values), CALL);
#undef CALL
    return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS) narrow(const int8_args a)
{
    const int64_t warps = gridDim.x * (int64_t)(THREADS / 32), lane = threadIdx.x % 32;
    for (int64_t at = blockIdx.x * (int64_t)(THREADS / 32) + threadIdx.x / 32; at < a.n / INT8_BLOCK; at += warps) {
        const float x = load_one(a.values.p, (int)a.values.dtype, at * INT8_BLOCK + lane),
                    y = load_one(a.values.p, (int)a.values.dtype, at * INT8_BLOCK + 32 + lane);
        const uint32_t larger = max(__float_as_uint(x) & 0x7fffffffu, __float_as_uint(y) & 0x7fffffffu);
        const float scale = int8_scale(__reduce_max_sync(0xffffffffu, larger));
        int8_block *block = (int8_block *)a.blocks + at;
        block->codes[lane] = int8_code(x, scale);
        block->codes[32 + lane] = int8_code(y, scale);
        if (lane == 0)
            block->scale = scale;
    }
}

extern "C" cudaError_t launch_narrow(const launch *l, const int8_args *a)
{
    if (a->n > 0)
        narrow<<<flat_blocks(l, a->n / 2, THREADS), THREADS, 0, l->stream>>>(*a);
    return cudaGetLastError();
}
