/* Products with few rows: strips of columns shared out among threads; a kernel's few_rows sums a strip, its store
 * finishes it. Every element is summed by one thread, so its bits do not depend on their number. */
#include "device/cpu/gemm/rows.h"

#include <omp.h>

#include "base/checked.h"
#include "device/cpu/parallel.h"

enum {
    TEAM_WORK = 1 << 17, /* multiplications below which starting threads costs more than it saves */
    STRIP_UNIT = 64,     /* columns: strips are multiples of it, at most FEW_COLUMNS */
};

bool gemm_rows_fit(const gemm_args *g)
{
    bool rows_contiguous = !g->transpose_a || (g->m == 1 && g->lda == 1);
    return g->m > 0 && g->m <= FEW_ROWS && rows_contiguous;
}

static char *element(const buffer *b, int64_t index)
{
    return (char *)b->p + (size_t)index * fsdp_dtype_size(b->dtype);
}

typedef struct strips {
    const gemm_kernel *kernel;
    const gemm_args *args;
    int64_t width, n_across; /* columns of a strip, strips of one product */
} strips;

static void strip(const void *context, int64_t i)
{
    const strips *all = context;
    const gemm_kernel *kernel = all->kernel;
    const gemm_args *g = all->args;
    int64_t index = i / all->n_across, column = i % all->n_across * all->width;
    float sums[FEW_ROWS][FEW_COLUMNS];
    few_rows_strip s = {.dtype = g->a.dtype, .transpose_b = g->transpose_b, .x_stride = g->lda, .ldb = g->ldb};
    s.rows = g->m;
    s.depth = g->k;
    s.columns = min_i64(all->width, g->n - column);
    s.x = element(&g->a, index * g->stride_a);
    s.b = element(&g->b, index * g->stride_b + (g->transpose_b ? column * g->ldb : column));
    kernel->few_rows(&s, sums);
    result_row r = {.alpha = g->alpha, .beta = g->beta, .d_dtype = g->d.dtype, .c_dtype = g->c.dtype};
    if (g->bias.p) {
        r.bias = element(&g->bias, column);
        r.bias_dtype = g->bias.dtype;
    }
    for (int64_t row = 0; row < g->m; row++) {
        r.sum = sums[row];
        r.d = element(&g->d, index * g->stride_d + row * g->ldd + column);
        if (g->beta != 0.0f)
            r.c = element(&g->c, index * g->stride_c + row * g->ldc + column);
        kernel->store(&r, s.columns);
    }
}

void gemm_rows(const gemm_kernel *kernel, int max_threads, const gemm_args *g)
{
    double work = (double)g->m * (double)g->n * (double)g->k * (double)g->batch;
    int64_t threads = omp_in_parallel() || work < TEAM_WORK ? 1 : min_i64(max_threads, omp_get_max_threads());
    int64_t share = ceil_div(ceil_div(g->n * g->batch, threads), STRIP_UNIT) * STRIP_UNIT;
    strips s = {.kernel = kernel, .args = g, .width = min_i64(FEW_COLUMNS, share)};
    s.n_across = ceil_div(g->n, s.width);
    parallel_for((int)threads, s.n_across * g->batch, 1, strip, &s);
}
