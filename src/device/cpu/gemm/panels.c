/* Panels of small matrices: packing them and running the tiles over them. The arithmetic is the kernel's (kernel.h). */
#include "device/cpu/gemm/panels.h"

#include "base/checked.h"
#if defined(__x86_64__)
#include "device/cpu/gemm/avx512.h"
#endif

static int64_t width_of(const gemm_kernel *kernel, panel_side side)
{
    return side == PANEL_ROWS ? kernel->tile_rows : kernel->tile_columns;
}

static int64_t panel_bytes(const gemm_kernel *kernel, int64_t width, int64_t depth)
{
    return width * (int64_t)(round_up((size_t)depth, (size_t)kernel->k_unit) * kernel->element_bytes);
}

size_t panels_bytes(const gemm_kernel *kernel, panel_side side, int64_t extent, int64_t depth)
{
    int64_t width = width_of(kernel, side);
    return (size_t)(ceil_div(extent, width) * panel_bytes(kernel, width, depth));
}

void panels_pack(const gemm_kernel *kernel, panel_side side, const panel_source *source, void *panels)
{
    int64_t width = width_of(kernel, side), step = width * source->stride_i * (int64_t)fsdp_dtype_size(source->dtype);
    panel_source s = *source;
    char *panel = panels;
    for (int64_t left = source->count; left > 0; left -= width) {
        s.count = min_i64(width, left);
        (side == PANEL_ROWS ? kernel->pack_a : kernel->pack_b)(&s, panel);
        s.p = (const char *)s.p + step;
        panel += panel_bytes(kernel, width, s.depth);
    }
}

void panels_product(const gemm_kernel *kernel, int64_t m, int64_t n, int64_t depth, const void *a, const void *b,
                    float *sums, int64_t ld, bool add)
{
    int64_t down = kernel->tile_rows, across = kernel->tile_columns;
    int64_t a_bytes = panel_bytes(kernel, down, depth), b_bytes = panel_bytes(kernel, across, depth);
    int64_t packed = (int64_t)round_up((size_t)depth, (size_t)kernel->k_unit);
    const gemm_ahead nothing = {.a = a, .b = b};
    const char *panel = b;
    for (int64_t j = 0; j < n; j += across, panel += b_bytes) {
        const gemm_columns columns = {.panel = (void *)panel};
        const char *rows = a;
        for (int64_t i = 0; i < m; i += down, rows += a_bytes)
            kernel->tile(packed, rows, 0, &columns, &nothing, sums + i * ld + j, ld, (int)min_i64(down, m - i), add);
    }
}

void panels_turn(const float *from, int64_t row, int64_t rows, int64_t columns, int64_t width, float *to)
{
#if defined(__x86_64__)
    const panel_source source = {from, FSDP_F32, .stride_i = row, .stride_k = 1, .count = rows, .depth = columns};
    avx512_pack_fp32(&source, to, (int)width);
#else
    (void)from, (void)row, (void)rows, (void)columns, (void)width, (void)to; /* no kernel takes bf16 here */
#endif
}
