/* Products of small matrices that one thread keeps in its cache: operands are packed once and multiplied several times.
 * What is larger, or is shared out among threads, is blocked.c's business. */
#ifndef DEVICE_CPU_GEMM_PANELS_H
#define DEVICE_CPU_GEMM_PANELS_H

#include "device/cpu/gemm/kernel.h"

/* Which operand of a product: op(a), whose rows are i of panel_source, or op(b), whose columns are. */
typedef enum panel_side { PANEL_ROWS, PANEL_COLUMNS } panel_side;

/* Memory for `extent` rows or columns of this depth. */
size_t panels_bytes(const gemm_kernel *kernel, panel_side side, int64_t extent, int64_t depth);

/* Packs all of the source: its `count` may be any number of panels wide. */
void panels_pack(const gemm_kernel *kernel, panel_side side, const panel_source *source, void *panels);

/* sums (m, n) = [sums +] a b, rows `ld` apart. Written are whole tiles: up to round_up(m, tile_rows) rows and
 * round_up(n, tile_columns) columns, of which those past m and n get zeros, or zeros added, if operands are finite.
 * The caller has entered the kernel. */
void panels_product(const gemm_kernel *kernel, int64_t m, int64_t n, int64_t depth, const void *a, const void *b,
                    float *sums, int64_t ld, bool add);

/* to (columns, width) = from^T, from being (rows, columns) with rows `row` apart; zeros past `rows`. width is a
 * multiple of 16. For where a kernel takes bf16. */
void panels_turn(const float *from, int64_t row, int64_t rows, int64_t columns, int64_t width, float *to);

#endif
