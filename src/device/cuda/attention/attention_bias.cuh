/* What the bias gradients of both attention kernels share: sums over a tile along what positions share, and the sum of
 * the tiles' partial sums. */
#ifndef DEVICE_CUDA_ATTENTION_ATTENTION_BIAS_CUH
#define DEVICE_CUDA_ATTENTION_ATTENTION_BIAS_CUH

#include "device/cuda/launch.h"

/* Sum `index` of a square tile: a diagonal (key - query = index - (tile - 1)), a column or a row. */
static __device__ __forceinline__ float sum_of_tile(const float *square, int stride, int tile, int form, int index)
{
    float sum = 0;
    if (form == BIAS_DIAGONAL) {
        const int distance = index - (tile - 1);
        for (int row = max(0, -distance); row < tile && row + distance < tile; row++)
            sum += square[row * stride + row + distance];
    } else if (index < tile) {
        for (int i = 0; i < tile; i++)
            sum += form == BIAS_KEY ? square[i * stride + index] : square[index * stride + i];
    }
    return sum;
}

/* Adds the partial sums (batches, heads, query tiles, key tiles, 2 tile) to d_bias; nothing where every position has an
 * element of its own. */
extern "C" cudaError_t launch_attention_bias_finish(const launch *l, const attention_args *a, int tile,
                                                    const float *partial);

/* d_bias is cleared unless added to, then the gradient added. */
extern "C" cudaError_t launch_attention_bias_backward(const launch *l, const attention_args *a, const float *delta);

#endif
