/* Packing with AVX-512: 16 by 16 units at a time, turned around in registers where the source runs the other way. */
#if defined(__x86_64__)
#include "device/cpu/gemm/avx512.h"

#include "base/checked.h"

/* How far ahead of the loads a source that runs across k is fetched: the next band of blocked.c. Addresses
 * past the end are harmless. */
enum { AHEAD_ROWS = 32 };

typedef enum unit_kind { UNIT_FP32, UNIT_WIDENED_BF16, UNIT_WIDENED_F16, UNIT_BF16_PAIR, UNIT_ROUNDED_PAIR } unit_kind;

AVX512_INLINE bool holds_two(unit_kind kind)
{
    return kind == UNIT_BF16_PAIR || kind == UNIT_ROUNDED_PAIR;
}

/* The first n of 32 lanes. */
AVX512_INLINE __mmask32 first32(int64_t n)
{
    return n >= 32 ? 0xffffffffu : n <= 0 ? 0 : (1u << n) - 1;
}

AVX512_INLINE __m512i widen(__m256i x, unit_kind kind)
{
    if (kind == UNIT_WIDENED_F16)
        return _mm512_castps_si512(_mm512_cvtph_ps(x));
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16);
}

/* 32 bf16 numbers, `low` first. In assembly, because functions that processors without the instruction run, too, cannot
 * have it as an intrinsic; who packs fp32 for a bf16 kernel has made sure of it. */
AVX512_INLINE __m512i round_to_bf16(__m512 low, __m512 high)
{
    __m512i rounded;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(rounded) : "v"(high), "v"(low));
    return rounded;
}

AVX512_INLINE __m512i load_rounded_along_k(const float *row, int64_t k, int64_t depth, bool whole)
{
    if (whole)
        return round_to_bf16(_mm512_loadu_ps(row + k), _mm512_loadu_ps(row + k + 16));
    return round_to_bf16(_mm512_maskz_loadu_ps(first16(depth - k), row + k),
                         _mm512_maskz_loadu_ps(first16(depth - k - 16), row + k + 16));
}

/* 16 units of row i, from unit `u` of its depth on. Wants stride_k 1. With `whole` all of them are there. */
AVX512_INLINE __m512i load_along_k(const panel_source *s, unit_kind kind, int64_t i, int64_t u, bool whole)
{
    if (kind == UNIT_ROUNDED_PAIR)
        return load_rounded_along_k((const float *)s->p + i * s->stride_i, 2 * u, s->depth, whole);
    const char *row = (const char *)s->p + i * s->stride_i * (kind == UNIT_FP32 ? 4 : 2);
    if (whole && (kind == UNIT_FP32 || kind == UNIT_BF16_PAIR))
        return _mm512_loadu_si512(row + 4 * u);
    if (whole)
        return widen(_mm256_loadu_si256((const __m256i *)(row + 2 * u)), kind);
    if (kind == UNIT_FP32)
        return _mm512_maskz_loadu_epi32(first16(s->depth - u), row + 4 * u);
    if (kind == UNIT_BF16_PAIR)
        return _mm512_maskz_loadu_epi16(first32(s->depth - 2 * u), row + 4 * u);
    return widen(_mm256_maskz_loadu_epi16(first16(s->depth - u), row + 2 * u), kind);
}

/* Unit `u` of 16 rows from i on. Wants stride_i 1. */
AVX512_INLINE __m512i load_along_i(const panel_source *s, unit_kind kind, int64_t i, int64_t u, int whole)
{
    __mmask16 valid = first16(whole ? whole : s->count - i);
    if (kind == UNIT_FP32) {
        const float *at = (const float *)s->p + u * s->stride_k + i;
        _mm_prefetch((const char *)(at + AHEAD_ROWS * s->stride_k), _MM_HINT_T1);
        return _mm512_maskz_loadu_epi32(whole || u < s->depth ? valid : 0, at);
    }
    if (kind == UNIT_ROUNDED_PAIR) {
        const float *low = (const float *)s->p + 2 * u * s->stride_k + i;
        __m512i pair =
            round_to_bf16(_mm512_maskz_loadu_ps(whole || 2 * u < s->depth ? valid : 0, low),
                          _mm512_maskz_loadu_ps(whole || 2 * u + 1 < s->depth ? valid : 0, low + s->stride_k));
        const __m512i halves = _mm512_set1_epi32(0x00100000); /* lane 16 of the source beside lane 0 */
        const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        __m512i from = _mm512_add_epi32(halves, _mm512_or_si512(lanes, _mm512_slli_epi32(lanes, 16)));
        return _mm512_permutexvar_epi16(from, pair);
    }
    const uint16_t *at = (const uint16_t *)s->p + i;
    if (kind == UNIT_BF16_PAIR) {
        _mm_prefetch((const char *)(at + (2 * u + AHEAD_ROWS) * s->stride_k), _MM_HINT_T1);
        _mm_prefetch((const char *)(at + (2 * u + 1 + AHEAD_ROWS) * s->stride_k), _MM_HINT_T1);
        __m256i low = _mm256_maskz_loadu_epi16(whole || 2 * u < s->depth ? valid : 0, at + 2 * u * s->stride_k);
        __m256i high =
            _mm256_maskz_loadu_epi16(whole || 2 * u + 1 < s->depth ? valid : 0, at + (2 * u + 1) * s->stride_k);
        return _mm512_or_si512(_mm512_cvtepu16_epi32(low), _mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
    }
    _mm_prefetch((const char *)(at + (u + AHEAD_ROWS) * s->stride_k), _MM_HINT_T1);
    return widen(_mm256_maskz_loadu_epi16(whole || u < s->depth ? valid : 0, at + u * s->stride_k), kind);
}

/* v[r] lane c becomes v[c] lane r. */
AVX512_INLINE void transpose(__m512i v[16])
{
    __m512i t[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i += 4) {
        __m512i a = _mm512_unpacklo_epi32(v[i], v[i + 1]), b = _mm512_unpackhi_epi32(v[i], v[i + 1]);
        __m512i c = _mm512_unpacklo_epi32(v[i + 2], v[i + 3]), d = _mm512_unpackhi_epi32(v[i + 2], v[i + 3]);
        t[i] = _mm512_unpacklo_epi64(a, c);
        t[i + 1] = _mm512_unpackhi_epi64(a, c);
        t[i + 2] = _mm512_unpacklo_epi64(b, d);
        t[i + 3] = _mm512_unpackhi_epi64(b, d);
    }
    /* t[4g + q] now holds, in its 128-bit lane l, column 4l + q of rows 4g .. 4g+3. */
#pragma GCC unroll 4
    for (int q = 0; q < 4; q++) {
        __m512i low01 = _mm512_shuffle_i32x4(t[q], t[4 + q], 0x44), high01 = _mm512_shuffle_i32x4(t[q], t[4 + q], 0xee);
        __m512i low23 = _mm512_shuffle_i32x4(t[8 + q], t[12 + q], 0x44);
        __m512i high23 = _mm512_shuffle_i32x4(t[8 + q], t[12 + q], 0xee);
        v[q] = _mm512_shuffle_i32x4(low01, low23, 0x88);
        v[4 + q] = _mm512_shuffle_i32x4(low01, low23, 0xdd);
        v[8 + q] = _mm512_shuffle_i32x4(high01, high23, 0x88);
        v[12 + q] = _mm512_shuffle_i32x4(high01, high23, 0xdd);
    }
}

/* 16 units of depth from u on, of 16 rows from i on: v[row] with the depth in its lanes, or v[depth] with the rows.
 * `whole` is a constant where this is inlined: so many rows are there over all of this depth and no more are wanted, or
 * 0: what is there must be asked row by row. */
AVX512_INLINE void load_square(const panel_source *s, unit_kind kind, int64_t i, int64_t u, bool by_rows, int whole,
                               __m512i v[16])
{
    if (s->stride_k == 1) {
#pragma GCC unroll 16
        for (int r = 0; r < 16; r++)
            v[r] = r < (whole ? whole : s->count - i) ? load_along_k(s, kind, i + r, u, whole) : _mm512_setzero_si512();
        if (!by_rows)
            transpose(v);
    } else {
#pragma GCC unroll 16
        for (int q = 0; q < 16; q++)
            v[q] = load_along_i(s, kind, i, u + q, whole);
        if (by_rows)
            transpose(v);
    }
}

/* All 16 units of depth from u on are there, for `rows` rows from i on. */
AVX512_INLINE bool square_is_whole(const panel_source *s, unit_kind kind, int64_t i, int64_t u, int64_t rows)
{
    return s->count - i >= rows && s->depth >= (u + 16) * (holds_two(kind) ? 2 : 1);
}

/* Lane e of 16 lanes that begin at lane `start` of a row of 14 and go on in the next row (lanes 16 and up). */
#define LANE(start, e) ((start) + (e) < 14 ? (start) + (e) : (start) + (e) + 2)
#define LANES(start)                                                                                                   \
    {                                                                                                                  \
        LANE(start, 0), LANE(start, 1), LANE(start, 2), LANE(start, 3), LANE(start, 4), LANE(start, 5),                \
            LANE(start, 6), LANE(start, 7), LANE(start, 8), LANE(start, 9), LANE(start, 10), LANE(start, 11),          \
            LANE(start, 12), LANE(start, 13), LANE(start, 14), LANE(start, 15)                                         \
    }

/* 16 rows of 14 lanes, one after the other: 14 whole cache lines, where 16 stores of a row each would cross two. */
AVX512_INLINE void store_rows_of_14(int32_t *to, const __m512i v[16])
{
    static const _Alignas(64)
        int32_t lanes[7][16] = {LANES(0), LANES(2), LANES(4), LANES(6), LANES(8), LANES(10), LANES(12)};
#pragma GCC unroll 7
    for (int line = 0; line < 7; line++) {
        __m512i from = _mm512_load_si512(lanes[line]);
        _mm512_storeu_si512(to + 16 * line, _mm512_permutex2var_epi32(v[line], from, v[line + 1]));
        _mm512_storeu_si512(to + 112 + 16 * line, _mm512_permutex2var_epi32(v[line + 8], from, v[line + 9]));
    }
}

/* One square of the panel layout [unit of depth][width], 32 bits each. Where the panel is no multiple of 16 wide, its
 * rows are stored whole and the next one overwrites what is too much. */
AVX512_INLINE void pack_square(const panel_source *s, unit_kind kind, int64_t n_units, int32_t *panel, int width, int i,
                               int64_t u)
{
    __m512i v[16];
    int rows = (int)min_i64(16, width - i);
    if (rows == 16 && square_is_whole(s, kind, i, u, 16))
        load_square(s, kind, i, u, false, 16, v);
    else if (rows == 14 && square_is_whole(s, kind, i, u, 14))
        load_square(s, kind, i, u, false, 14, v);
    else
        load_square(s, kind, i, u, false, 0, v);
    int32_t *to = panel + u * width + i;
    int64_t count = min_i64(16, n_units - u);
    __mmask16 fits = first16(rows);
    if (count == 16 && width == 14) {
        store_rows_of_14(to, v);
    } else if (count == 16) {
#pragma GCC unroll 16
        for (int q = 0; q < 15; q++)
            _mm512_storeu_si512(to + q * width, v[q]);
        _mm512_mask_storeu_epi32(to + 15 * width, fits, v[15]);
    } else {
        for (int q = 0; q < count; q++)
            _mm512_mask_storeu_epi32(to + q * width, fits, v[q]);
    }
}

/* Along k, 16 rows are read to their end before the next 16: few enough streams for the processor to fetch ahead.
 * Across k, a row's neighbours are read together. */
AVX512_INLINE void pack_units(const panel_source *s, unit_kind kind, int64_t n_units, int32_t *panel, int width)
{
    if (s->stride_k == 1) {
        for (int i = 0; i < width; i += 16)
            for (int64_t u = 0; u < n_units; u += 16)
                pack_square(s, kind, n_units, panel, width, i, u);
    } else {
        for (int64_t u = 0; u < n_units; u += 16)
            for (int i = 0; i < width; i += 16)
                pack_square(s, kind, n_units, panel, width, i, u);
    }
}

AVX512 void avx512_pack_fp32(const panel_source *s, float *panel, int width)
{
    if (s->dtype == FSDP_F32)
        pack_units(s, UNIT_FP32, s->depth, (int32_t *)panel, width);
    else if (s->dtype == FSDP_BF16)
        pack_units(s, UNIT_WIDENED_BF16, s->depth, (int32_t *)panel, width);
    else
        pack_units(s, UNIT_WIDENED_F16, s->depth, (int32_t *)panel, width);
}

AVX512 void avx512_pack_pairs(const panel_source *s, uint16_t *panel, int width)
{
    if (s->dtype == FSDP_F32)
        pack_units(s, UNIT_ROUNDED_PAIR, ceil_div(s->depth, 2), (int32_t *)panel, width);
    else
        pack_units(s, UNIT_BF16_PAIR, ceil_div(s->depth, 2), (int32_t *)panel, width);
}

AVX512_INLINE void pack_tile(const panel_source *s, unit_kind kind, uint16_t *panel, bool by_rows, int half, int64_t k)
{
    __m512i v[16];
    if (square_is_whole(s, kind, 16 * half, k / 2, 16))
        load_square(s, kind, 16 * half, k / 2, by_rows, 16, v);
    else
        load_square(s, kind, 16 * half, k / 2, by_rows, 0, v);
    uint16_t *to = panel + k * 32 + half * 512;
#pragma GCC unroll 16
    for (int q = 0; q < 16; q++)
        _mm512_storeu_si512(to + q * 32, v[q]);
}

AVX512_INLINE void pack_tiles_of(const panel_source *s, unit_kind kind, uint16_t *panel, bool by_rows)
{
    if (s->stride_k == 1) {
        for (int half = 0; half < 2; half++)
            for (int64_t k = 0; k < s->depth; k += 32)
                pack_tile(s, kind, panel, by_rows, half, k);
    } else {
        for (int64_t k = 0; k < s->depth; k += 32)
            for (int half = 0; half < 2; half++)
                pack_tile(s, kind, panel, by_rows, half, k);
    }
}

AVX512_INLINE void pack_tiles(const panel_source *s, uint16_t *panel, bool by_rows)
{
    if (s->dtype == FSDP_F32)
        pack_tiles_of(s, UNIT_ROUNDED_PAIR, panel, by_rows);
    else
        pack_tiles_of(s, UNIT_BF16_PAIR, panel, by_rows);
}

AVX512 void avx512_pack_tile_rows(const panel_source *s, uint16_t *panel)
{
    pack_tiles(s, panel, true);
}

AVX512 void avx512_pack_tile_pairs(const panel_source *s, uint16_t *panel)
{
    pack_tiles(s, panel, false);
}
#else
typedef int avx512_pack_is_for_x86;
#endif
