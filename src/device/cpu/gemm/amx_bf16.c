/* The bf16 tile with AMX: 32 rows by 32 columns in four of the eight tiles, two of op(a) and two of op(b) in the rest.
 * The tile shapes are set from palette 1 as it is defined, without asking CPUID leaf 0x1D, which some hypervisors
 * blank; gemm/gemm.c has made sure that it works before this is chosen. */
#if defined(__x86_64__)
#include "device/cpu/gemm/avx512.h"

#define AMX __attribute__((target("amx-tile,amx-bf16,avx512f,avx512bw,avx512dq,avx512vl")))

enum { TILE_ROWS = 32, TILE_COLUMNS = 32, TILE_BYTES = 64, TILE_ELEMENTS = 512, TILE_DEPTH = 32 };

/* What ldtilecfg reads. */
typedef struct tile_configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_configuration;

_Static_assert(sizeof(tile_configuration) == 64, "ldtilecfg reads 64 bytes");

static const _Alignas(64) tile_configuration configuration = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

/* The tile intrinsics of some compilers do not say that they touch memory. */
#define MEMORY_BARRIER() __asm__ volatile("" ::: "memory")

AMX static void enter(void)
{
    _tile_loadconfig(&configuration);
}

AMX static void leave(void)
{
    _tile_release();
}

static void pack_a(const panel_source *source, void *panel)
{
    avx512_pack_tile_rows(source, panel);
}

static void pack_b(const panel_source *source, void *panel)
{
    avx512_pack_tile_pairs(source, panel);
}

/* What blocked.c asks for, but for rows in place: fetching those made products 3 % slower. Nothing is fetched into the
 * first-level cache, and nothing of the result: a tile already waits for as many lines as a core can have under way.
 * Inlined by force: the compiler takes a function that only fetches for one without effect, and drops its calls. */
AMX __attribute__((always_inline)) static inline void fetch(const gemm_ahead *ahead, int64_t step)
{
    for (int64_t at = 0; at < ahead->a_step; at += 64)
        _mm_prefetch(ahead->a + step * ahead->a_step + at, _MM_HINT_T1);
    for (int64_t at = 0; at < ahead->b_step; at += 64)
        _mm_prefetch(ahead->b + step * ahead->b_step + at, _MM_HINT_T1);
}

/* Where 32 rows of op(a) lie: bytes from one row to the next, from the upper 16 to the lower ones, and for 32 of k. */
typedef struct a_tiles {
    const char *p;
    int64_t stride, half, step;
} a_tiles;

/* Tiles 0 1 / 2 3 are the sums, 4 and 5 rows of op(a), 6 and 7 columns of op(b). These are read once in a pass and are
 * loaded past the first-level cache, where they would push out the panel of op(a) that all tiles of the pass need. */
AMX static void tile_both(int64_t depth, const a_tiles *a, const uint16_t *b, const gemm_ahead *ahead, float *sums,
                          int64_t ld, bool add)
{
    int64_t stride = ld * (int64_t)sizeof(float);
    if (add) {
        _tile_loadd(0, sums, stride);
        _tile_loadd(1, sums + 16, stride);
        _tile_loadd(2, sums + 16 * ld, stride);
        _tile_loadd(3, sums + 16 * ld + 16, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t step = 0; step < depth / TILE_DEPTH; step++, b += 2 * TILE_ELEMENTS) {
        const char *upper = a->p + step * a->step, *lower = upper + a->half;
        fetch(ahead, step);
        _tile_loadd(4, upper, a->stride);
        _tile_stream_loadd(6, b, TILE_BYTES);
        _tile_stream_loadd(7, b + TILE_ELEMENTS, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, lower, a->stride);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, stride);
    _tile_stored(1, sums + 16, stride);
    _tile_stored(2, sums + 16 * ld, stride);
    _tile_stored(3, sums + 16 * ld + 16, stride);
}

/* At most 16 rows: the upper half. */
AMX static void tile_upper(int64_t depth, const uint16_t *a, const uint16_t *b, const gemm_ahead *ahead, float *sums,
                           int64_t ld, bool add)
{
    int64_t stride = ld * (int64_t)sizeof(float);
    if (add) {
        _tile_loadd(0, sums, stride);
        _tile_loadd(1, sums + 16, stride);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    for (int64_t step = 0; step < depth / TILE_DEPTH; step++, a += 2 * TILE_ELEMENTS, b += 2 * TILE_ELEMENTS) {
        fetch(ahead, step);
        _tile_loadd(4, a, TILE_BYTES);
        _tile_stream_loadd(6, b, TILE_BYTES);
        _tile_stream_loadd(7, b + TILE_ELEMENTS, TILE_BYTES);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
    }
    _tile_stored(0, sums, stride);
    _tile_stored(1, sums + 16, stride);
}

static void tile(int64_t depth, const void *a, int64_t a_stride, const gemm_columns *b, const gemm_ahead *ahead,
                 float *sums, int64_t ld, int rows, bool add)
{
    const a_tiles packed = {a, TILE_BYTES, TILE_ELEMENTS * 2, TILE_ELEMENTS * 4};
    const a_tiles in_place = {a, a_stride, TILE_ROWS / 2 * a_stride, TILE_BYTES};
    MEMORY_BARRIER();
    if (rows > TILE_ROWS / 2)
        tile_both(depth, a_stride ? &in_place : &packed, b->panel, ahead, sums, ld, add);
    else
        tile_upper(depth, a, b->panel, ahead, sums, ld, add);
    MEMORY_BARRIER();
}

/* Blocks were chosen by turns on an Emerald Rapids that others shared (docs/benchmarks.md). A block's panels of op(b),
 * its sums and the panels that are fetched take less than 1 MiB of its 2 MiB of second-level cache. */
const gemm_kernel amx_bf16 = {
    .name = "own AMX",
    .tile_rows = TILE_ROWS,
    .tile_columns = TILE_COLUMNS,
    .k_unit = TILE_DEPTH,
    .k_step = 512,
    .block_rows = 8 * TILE_ROWS,
    .block_columns = 8 * TILE_COLUMNS,
    .element_bytes = sizeof(uint16_t),
    .reads_rows = true,
    .pack_a = pack_a,
    .pack_b = pack_b,
    .tile = tile,
    .store = avx512_store,
    .few_rows = avx512_few_rows,
    .enter = enter,
    .leave = leave,
};
#else
typedef int amx_bf16_is_for_x86;
#endif
