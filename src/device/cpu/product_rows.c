/* Products with few rows: strips of columns shared out among threads; a kernel's few_rows sums a strip, its store
 * finishes it. Every element is summed by one thread, so its bits do not depend on their number. */
#include "device/cpu/product_rows.h"

#include <omp.h>

#include "base/checked.h"

enum {
    TEAM_WORK = 1 << 17, /* multiplications below which starting threads costs more than it saves */
    STRIP_UNIT = 64,     /* columns: strips are multiples of it, at most FEW_COLUMNS */
};

bool product_rows_fit(const gemm_args *g)
{
    bool rows_contiguous = !g->transpose_a || (g->m == 1 && g->lda == 1);
    return g->m > 0 && g->m <= FEW_ROWS && rows_contiguous;
}

static char *element(const buffer *b, int64_t index)
{
    return (char *)b->p + (size_t)index * fsdp_dtype_size(b->dtype);
}

static void strip(const product_kernel *kernel, const gemm_args *g, int64_t index, int64_t column, int64_t width)
{
    float sums[FEW_ROWS][FEW_COLUMNS];
    few_rows_strip s = {.dtype = g->a.dtype, .transpose_b = g->transpose_b, .x_stride = g->lda, .ldb = g->ldb};
    s.rows = g->m;
    s.depth = g->k;
    s.columns = min_i64(width, g->n - column);
    s.x = element(&g->a, index * g->stride_a);
    s.b = element(&g->b, index * g->stride_b + (g->transpose_b ? column * g->ldb : column));
    kernel->few_rows(&s, sums);
    result_row r = {.alpha = g->alpha, .beta = g->beta, .d_dtype = g->d.dtype, .c_dtype = g->c.dtype};
    if (g->bias.p) {
        r.bias = element(&g->bias, column);
        r.bias_dtype = g->bias.dtype;
    }
    for (int64_t i = 0; i < g->m; i++) {
        r.sum = sums[i];
        r.d = element(&g->d, index * g->stride_d + i * g->ldd + column);
        if (g->beta != 0.0f)
            r.c = element(&g->c, index * g->stride_c + i * g->ldc + column);
        kernel->store(&r, s.columns);
    }
}

void product_rows(const product_kernel *kernel, int max_threads, const gemm_args *g)
{
    double work = (double)g->m * (double)g->n * (double)g->k * (double)g->batch;
    int64_t threads = omp_in_parallel() || work < TEAM_WORK ? 1 : min_i64(max_threads, omp_get_max_threads());
    int64_t share = ceil_div(ceil_div(g->n * g->batch, threads), STRIP_UNIT) * STRIP_UNIT;
    int64_t width = min_i64(FEW_COLUMNS, share), n_strips = ceil_div(g->n, width), total = n_strips * g->batch;
    /* Shared out by hand: clang's runtime allocates memory in every `omp for`. */
#pragma omp parallel num_threads((int)threads) if (threads > 1)
    {
        int64_t rank = omp_get_thread_num(), team = omp_get_num_threads();
        for (int64_t i = total * rank / team; i < total * (rank + 1) / team; i++)
            strip(kernel, g, i / n_strips, i % n_strips * width, width);
    }
}
