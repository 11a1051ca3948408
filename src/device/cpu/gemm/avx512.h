/* What the kernels with AVX-512 have in common: packing, storing, few rows. Packing moves everything in units of 32
 * bits: an fp32 element (16-bit ones are widened on the way), or two bf16 elements that follow each other in k. */
#ifndef DEVICE_CPU_GEMM_AVX512_H
#define DEVICE_CPU_GEMM_AVX512_H

#include <immintrin.h>

#include "device/cpu/gemm/kernel.h"

#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")))
#define AVX512_INLINE AVX512 __attribute__((always_inline)) static inline

/* The first n of 16 lanes; n may be out of range on either side. */
AVX512_INLINE __mmask16 first16(int64_t n)
{
    return n >= 16 ? 0xffff : n <= 0 ? 0 : (__mmask16)((1u << n) - 1);
}

/* Panel layout [k][width], fp32, from any floating dtype. */
void avx512_pack_fp32(const panel_source *source, float *panel, int width);

/* Panel layout [k/2][width][2], bf16 from bf16, or rounded from fp32, which takes AVX-512 bf16. */
void avx512_pack_pairs(const panel_source *source, uint16_t *panel, int width);

/* Panels for tiles, 32 wide, from the same. Each 32 of k is two tiles of 16 rows of 64 bytes, one after the other:
 * rows: [k/32][2][16 of i][32 of k]. pairs: [k/32][2][16 pairs of k][16 of i][2]. */
void avx512_pack_tile_rows(const panel_source *source, uint16_t *panel);
void avx512_pack_tile_pairs(const panel_source *source, uint16_t *panel);

/* d = alpha * sums + beta * c + bias for one row, any floating dtypes. */
void avx512_store(const result_row *row, int64_t n);

/* A strip of a product with few rows, 16-bit operands widened to fp32. */
void avx512_few_rows(const few_rows_strip *strip, float (*sums)[FEW_COLUMNS]);

#endif
