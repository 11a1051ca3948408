/* X' = a X + (b A + c A A) X with A = X X^T, from X of norm 1: three products a step. A tall matrix has the products on
 * its other side, so that A is always the smaller square. */
#include "optim/orthogonal.h"

#include "base/checked.h"

enum { STEPS = 5 }; /* odd: the last step writes into `out` */

static const float a = 3.4445f, b = -4.7750f, c = 2.0315f; /* steepest at 0 of those that keep [0, 1] near 1 */

/* The workspace, cut. */
typedef struct scratch {
    uint16_t *x;       /* (rows, columns) */
    uint16_t *gram;    /* A: (small, small) */
    uint16_t *poly;    /* b A + c A A: (small, small) */
    double *squares;   /* one, and what it is summed from */
    void *of_products; /* what the products want */
    size_t bytes;
} scratch;

static gemm_args product(int64_t m, int64_t n, int64_t k, const uint16_t *left, const uint16_t *right, uint16_t *out)
{
    return (gemm_args){.m = m,
                       .n = n,
                       .k = k,
                       .alpha = 1,
                       .a = {(void *)(uintptr_t)left, FSDP_BF16},
                       .b = {(void *)(uintptr_t)right, FSDP_BF16},
                       .c = {out, FSDP_BF16},
                       .d = {out, FSDP_BF16},
                       .lda = k,
                       .ldb = n,
                       .ldc = n,
                       .ldd = n,
                       .batch = 1};
}

static gemm_args gram_of(int64_t rows, int64_t columns, const uint16_t *x, uint16_t *out)
{
    int64_t small = min_i64(rows, columns);
    gemm_args g = product(small, small, max_i64(rows, columns), x, x, out);
    g.transpose_a = rows > columns;
    g.transpose_b = !g.transpose_a;
    g.lda = g.ldb = columns;
    return g;
}

static gemm_args polynomial_of(int64_t small, uint16_t *gram, uint16_t *out)
{
    gemm_args g = product(small, small, small, gram, gram, out);
    g.alpha = c;
    g.beta = b;
    g.c.p = gram;
    return g;
}

static gemm_args next_of(int64_t rows, int64_t columns, uint16_t *x, const uint16_t *poly, uint16_t *out)
{
    bool tall = rows > columns;
    gemm_args g = product(rows, columns, min_i64(rows, columns), tall ? x : poly, tall ? poly : x, out);
    g.beta = a;
    g.c.p = x;
    return g;
}

static size_t products_workspace(const device *dev, int64_t rows, int64_t columns)
{
    const gemm_args all[] = {gram_of(rows, columns, NULL, NULL), polynomial_of(min_i64(rows, columns), NULL, NULL),
                             next_of(rows, columns, NULL, NULL, NULL)};
    size_t most = 0;
    for (int i = 0; i < 3; i++) {
        size_t bytes = dev->kernels->gemm_workspace(dev, &all[i]);
        most = bytes > most ? bytes : most;
    }
    return most;
}

static uint8_t *take(uint8_t *base, size_t *at, size_t bytes)
{
    uint8_t *memory = base ? base + *at : NULL;
    *at += round_up(bytes, 256);
    return memory;
}

static scratch cut(const device *dev, int64_t rows, int64_t columns, uint8_t *base)
{
    size_t square = (size_t)(min_i64(rows, columns) * min_i64(rows, columns)) * sizeof(uint16_t), numel = 0;
    scratch w = {.bytes = 0};
    numel = (size_t)(rows * columns);
    w.x = (void *)take(base, &w.bytes, numel * sizeof(uint16_t));
    w.gram = (void *)take(base, &w.bytes, square);
    w.poly = (void *)take(base, &w.bytes, square);
    w.squares = (void *)take(base, &w.bytes, (1 + (size_t)ceil_div((int64_t)numel, NORM_BLOCK)) * sizeof(double));
    w.of_products = take(base, &w.bytes, products_workspace(dev, rows, columns));
    return w;
}

size_t orthogonal_workspace(const device *dev, int64_t rows, int64_t columns)
{
    return cut(dev, rows, columns, NULL).bytes;
}

static fsdp_status run(device *dev, stream *s, gemm_args g, const scratch *w)
{
    g.workspace = w->of_products;
    return dev->kernels->gemm(s, &g);
}

/* w->x = x / |x| */
static fsdp_status begin(device *dev, stream *s, int64_t n, const uint16_t *x, const scratch *w)
{
    buffer given = {(void *)(uintptr_t)x, FSDP_BF16};
    norm_blocks_args blocks = {.n = n, .x = given, .blocks = w->squares + 1};
    sum_f64_args sum = {.n = ceil_div(n, NORM_BLOCK), .x = w->squares + 1, .out = w->squares};
    normalize_args scale = {.n = n, .x = given, .out = {w->x, FSDP_BF16}, .squares = w->squares, .least = 1e-7f};
    FSDP_TRY(dev->kernels->norm_blocks(s, &blocks));
    FSDP_TRY(dev->kernels->sum_f64(s, &sum));
    return dev->kernels->normalize(s, &scale);
}

fsdp_status orthogonalize(device *dev, stream *s, int64_t rows, int64_t columns, const uint16_t *x, uint16_t *out,
                          void *workspace)
{
    scratch w = cut(dev, rows, columns, workspace);
    uint16_t *from = w.x, *to = out;
    FSDP_TRY(begin(dev, s, rows * columns, x, &w));
    for (int i = 0; i < STEPS; i++) {
        FSDP_TRY(run(dev, s, gram_of(rows, columns, from, w.gram), &w));
        FSDP_TRY(run(dev, s, polynomial_of(min_i64(rows, columns), w.gram, w.poly), &w));
        FSDP_TRY(run(dev, s, next_of(rows, columns, from, w.poly, to), &w));
        uint16_t *swapped = from;
        from = to;
        to = swapped;
    }
    return FSDP_OK;
}
