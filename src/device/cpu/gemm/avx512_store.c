/* The last step of a product with AVX-512: scale the sums, add c and bias, convert, store. */
#if defined(__x86_64__)
#include "device/cpu/gemm/avx512.h"

/* Rounds to nearest even, as convert.h does, so that results do not depend on which code stored them. */
AVX512_INLINE __m256i to_bf16(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}

AVX512_INLINE __m512 load(const void *p, fsdp_dtype dtype, int64_t j, __mmask16 valid)
{
    if (dtype == FSDP_F32)
        return _mm512_maskz_loadu_ps(valid, (const float *)p + j);
    __m256i half = _mm256_maskz_loadu_epi16(valid, (const uint16_t *)p + j);
    if (dtype == FSDP_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

AVX512_INLINE void store_row(const result_row *r, int64_t n, fsdp_dtype d_dtype)
{
    __m512 alpha = _mm512_set1_ps(r->alpha), beta = _mm512_set1_ps(r->beta);
    for (int64_t j = 0; j < n; j += 16) {
        __mmask16 valid = n - j >= 16 ? 0xffff : (__mmask16)((1u << (n - j)) - 1);
        __m512 x = _mm512_mul_ps(alpha, _mm512_maskz_loadu_ps(valid, r->sum + j));
        if (r->beta != 0.0f)
            x = _mm512_add_ps(x, _mm512_mul_ps(beta, load(r->c, r->c_dtype, j, valid)));
        if (r->bias)
            x = _mm512_add_ps(x, load(r->bias, r->bias_dtype, j, valid));
        if (d_dtype == FSDP_F32)
            _mm512_mask_storeu_ps((float *)r->d + j, valid, x);
        else if (d_dtype == FSDP_BF16)
            _mm256_mask_storeu_epi16((uint16_t *)r->d + j, valid, to_bf16(x));
        else
            _mm256_mask_storeu_epi16((uint16_t *)r->d + j, valid,
                                     _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
}

AVX512 void avx512_store(const result_row *r, int64_t n)
{
    if (r->d_dtype == FSDP_F32)
        store_row(r, n, FSDP_F32);
    else if (r->d_dtype == FSDP_BF16)
        store_row(r, n, FSDP_BF16);
    else
        store_row(r, n, FSDP_F16);
}
#else
typedef int avx512_store_is_for_x86;
#endif
