/* Copies between strided layouts. Dimensions are sorted by the stride they are written with and merged where both sides
 * allow it; what is left runs as rows, or as small squares when it is a transpose, so that both sides use whole lines.
 */
#include "device/cpu/simd/span.h"

#define PIECE_ROWS 32      /* also the side of a square */
#define PIECE_COLUMNS 8192 /* long rows are shared between threads */

typedef struct layout {
    int n_dims;
    int64_t shape[KERNEL_MAX_DIMS], from[KERNEL_MAX_DIMS], to[KERNEL_MAX_DIMS];
} layout;

static int64_t magnitude(int64_t x)
{
    return x < 0 ? -x : x;
}

/* Sorted from the widest written stride to the narrowest, without dimensions of size 1, neighbours merged. */
static layout layout_simplify(const strided_copy_args *a)
{
    layout l = {0};
    for (int i = 0; i < a->n_dims; i++) {
        if (a->shape[i] == 1)
            continue;
        int at = l.n_dims++;
        while (at > 0 && magnitude(l.to[at - 1]) < magnitude(a->to_stride[i])) {
            l.shape[at] = l.shape[at - 1], l.from[at] = l.from[at - 1], l.to[at] = l.to[at - 1];
            at--;
        }
        l.shape[at] = a->shape[i], l.from[at] = a->from_stride[i], l.to[at] = a->to_stride[i];
    }
    int kept = 0;
    for (int i = 1; i < l.n_dims; i++) {
        if (l.from[kept] == l.from[i] * l.shape[i] && l.to[kept] == l.to[i] * l.shape[i]) {
            l.shape[kept] *= l.shape[i], l.from[kept] = l.from[i], l.to[kept] = l.to[i];
        } else {
            kept++;
            l.shape[kept] = l.shape[i], l.from[kept] = l.from[i], l.to[kept] = l.to[i];
        }
    }
    l.n_dims = l.n_dims ? kept + 1 : 0;
    if (l.n_dims == 0)
        return (layout){.n_dims = 2, .shape = {1, 1}, .to = {1, 1}};
    if (l.n_dims == 1) /* always rows and an inner dimension */
        return (layout){.n_dims = 2, .shape = {1, l.shape[0]}, .from = {0, l.from[0]}, .to = {0, l.to[0]}};
    return l;
}

/* n elements, contiguous where they are written. */
static void copy_row(const strided_copy_args *a, int64_t from, int64_t from_stride, int64_t to, int64_t n)
{
    for (int64_t first = 0; first < n; first += SPAN) {
        int64_t part = min_i64(SPAN, n - first);
        float scratch[SPAN];
        const float *values = scratch;
        if (from_stride == 1)
            values = span_read(a->from, from + first, part, scratch);
        else
            for (int64_t i = 0; i < part; i++)
                scratch[i] = element_read(a->from, from + (first + i) * from_stride);
        span_write(a->to, to + first, part, values, a->add);
    }
}

static void copy_scattered(const strided_copy_args *a, int64_t from, int64_t from_stride, int64_t to, int64_t to_stride,
                           int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float value = element_read(a->from, from + i * from_stride);
        int64_t at = to + i * to_stride;
        element_write(a->to, at, a->add ? element_read(a->to, at) + value : value);
    }
}

static void copy_inner(const strided_copy_args *a, int64_t from, int64_t from_stride, int64_t to, int64_t to_stride,
                       int64_t n)
{
    if (to_stride == 1)
        copy_row(a, from, from_stride, to, n);
    else
        copy_scattered(a, from, from_stride, to, to_stride, n);
}

/* The last two dimensions cross over: a square is read along the dimension that is contiguous there into an array of
 * ours and written from that, so neither side needs its lines to stay in the cache while they are filled. */
static void copy_square(const strided_copy_args *a, const layout *l, int64_t from, int64_t to, int64_t n_rows,
                        int64_t n_columns)
{
    int last = l->n_dims - 1, rows = last - 1;
    float square[PIECE_ROWS][PIECE_ROWS + 1], scratch[PIECE_ROWS];
    buffer copied = {square, FSDP_F32};
    strided_copy_args inner = *a;
    for (int64_t j = 0; j < n_columns; j++) {
        const float *column = scratch;
        if (l->from[rows] == 1)
            column = span_read(a->from, from + j * l->from[last], n_rows, scratch);
        else
            for (int64_t i = 0; i < n_rows; i++)
                scratch[i] = element_read(a->from, from + j * l->from[last] + i * l->from[rows]);
        for (int64_t i = 0; i < n_rows; i++)
            square[i][j] = column[i];
    }
    inner.from = copied;
    for (int64_t i = 0; i < n_rows; i++)
        copy_inner(&inner, i * (PIECE_ROWS + 1), 1, to + i * l->to[rows], l->to[last], n_columns);
}

#define ROWS_AHEAD 8 /* short rows far apart: the processor does not guess where the next one is */

static void fetch_ahead(buffer from, int64_t at, int64_t n)
{
    const char *p = element_address(from, at);
    int64_t bytes = min_i64(1024, n * (from.dtype == FSDP_F32 ? 4 : 2));
    for (int64_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + i);
}

/* A part of the last two dimensions: some rows, of at most PIECE_COLUMNS columns. */
static void copy_part(const strided_copy_args *a, const layout *l, int64_t from, int64_t to, int64_t row,
                      int64_t column, bool crossing)
{
    int last = l->n_dims - 1, rows = last - 1;
    int64_t n_rows = min_i64(PIECE_ROWS, l->shape[rows] - row), n = min_i64(PIECE_COLUMNS, l->shape[last] - column);
    from += row * l->from[rows] + column * l->from[last];
    to += row * l->to[rows] + column * l->to[last];
    if (crossing) {
        for (int64_t first = 0; first < n; first += PIECE_ROWS)
            copy_square(a, l, from + first * l->from[last], to + first * l->to[last], n_rows,
                        min_i64(PIECE_ROWS, n - first));
        return;
    }
    for (int64_t i = 0; i < n_rows; i++) {
        if (i + ROWS_AHEAD < n_rows)
            fetch_ahead(a->from, from + (i + ROWS_AHEAD) * l->from[rows], n);
        copy_inner(a, from + i * l->from[rows], l->from[last], to + i * l->to[rows], l->to[last], n);
    }
}

/* The copy cut into pieces: across * down of them for each index of the outer dimensions. */
typedef struct pieces {
    const strided_copy_args *args;
    layout layout;
    int64_t across, n_inner;
    bool crossing;
} pieces;

static void copy_piece(const void *context, int64_t item)
{
    const pieces *p = context;
    const layout *l = &p->layout;
    int64_t inner = item % p->n_inner, outer = item / p->n_inner, from = 0, to = 0;
    for (int dim = l->n_dims - 3; dim >= 0; dim--) {
        int64_t i = outer % l->shape[dim];
        outer /= l->shape[dim];
        from += i * l->from[dim];
        to += i * l->to[dim];
    }
    copy_part(p->args, l, from, to, inner / p->across * PIECE_ROWS, inner % p->across * PIECE_COLUMNS, p->crossing);
}

SIMD_KERNEL(strided_copy, strided_copy_args)
{
    int64_t numel = 1;
    for (int i = 0; i < a->n_dims; i++)
        numel *= a->shape[i];
    if (numel == 0)
        return FSDP_OK;
    pieces p = {.args = a, .layout = layout_simplify(a)};
    const layout *l = &p.layout;
    int last = l->n_dims - 1, rows = last - 1;
    p.crossing = magnitude(l->from[last]) > magnitude(l->from[rows]) && l->from[rows] != 0;
    p.across = ceil_div(l->shape[last], PIECE_COLUMNS);
    p.n_inner = ceil_div(l->shape[rows], PIECE_ROWS) * p.across;
    int64_t n_outer = numel / (l->shape[rows] * l->shape[last]);
    /* Several sources for one element (a stride of 0 where it is written) must be added by one thread. */
    int threads = cpu_threads_for(s, numel);
    for (int i = 0; i <= last; i++)
        threads = l->to[i] == 0 && l->shape[i] > 1 ? 1 : threads;
    parallel_for(threads, n_outer * p.n_inner, 1, copy_piece, &p);
    return FSDP_OK;
}
