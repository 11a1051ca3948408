/* Products of matrix tiles that lie in the cache: what attention is made of. Large products are gemm/gemm.h's business.
 */
#ifndef DEVICE_CPU_SIMD_TILE_H
#define DEVICE_CPU_SIMD_TILE_H

#include "device/cpu/simd/simd.h"

#if defined(__AVX512F__)
#define VEC 16
#elif defined(__AVX2__)
#define VEC 8
#else
#define VEC 4
#endif

/* c (m, n) = [c +] a (m, k) b (k, n). Element (i, p) of a is at i*a_row + p*a_step, so a may be stored either way
 * round; rows of b and c are contiguous. n is a multiple of VEC; nothing need be aligned. */
void SIMD_NAME(tile_product)(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_step,
                             const float *b, int64_t b_row, float *c, int64_t c_row, bool add);

#endif
