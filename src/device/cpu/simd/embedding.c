/* Rows of a table by id, and their gradient. Backward sorts the rows of dy by id (a counting sort, so stable) and lets
 * each row of the table sum its own in order: no two threads write one row, and the bits never change. */
#include "device/cpu/simd/span.h"

static void copy_row(const void *context, int64_t row)
{
    const embedding_args *a = context;
    float x_scratch[SPAN];
    static const float zeros[SPAN];
    int64_t id = a->ids[row];
    bool known = id >= 0 && id < a->vocabulary;
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t n = min_i64(SPAN, a->columns - first);
        const float *x = known ? span_read(a->table, id * a->columns + first, n, x_scratch) : zeros;
        span_write(a->y, row * a->columns + first, n, x, false);
    }
}

SIMD_KERNEL(embedding_forward, embedding_args)
{
    parallel_for(cpu_threads_for(s, a->rows * a->columns), a->rows, 1, copy_row, a);
    return FSDP_OK;
}

/* starts (vocabulary + 1), then order (rows). */
SIMD_WORKSPACE(embedding_backward, embedding_args)
{
    (void)d;
    return (size_t)(a->vocabulary + 1 + a->rows) * sizeof(int32_t);
}

static bool has_gradient(const embedding_args *a, int64_t id)
{
    return id >= 0 && id < a->vocabulary && !(a->has_padding && id == a->padding);
}

/* order[starts[id] .. starts[id+1]) become the rows of dy with that id, in order. */
static void sort_rows_by_id(const embedding_args *a, int32_t *starts, int32_t *order)
{
    memset(starts, 0, (size_t)(a->vocabulary + 1) * sizeof *starts);
    for (int64_t row = 0; row < a->rows; row++) {
        int64_t id = a->ids[row];
        if (has_gradient(a, id))
            starts[id]++;
    }
    int32_t end = 0;
    for (int64_t id = 0; id <= a->vocabulary; id++) {
        end += starts[id];
        starts[id] = end;
    }
    for (int64_t row = a->rows - 1; row >= 0; row--) {
        int64_t id = a->ids[row];
        if (has_gradient(a, id))
            order[--starts[id]] = (int32_t)row;
    }
}

static void sum_rows(const embedding_args *a, int64_t id, const int32_t *rows, int64_t n_rows)
{
    for (int64_t first = 0; first < a->columns; first += SPAN) {
        int64_t n = min_i64(SPAN, a->columns - first);
        float scratch[SPAN], sum[SPAN];
        memset(sum, 0, (size_t)n * sizeof(float));
        for (int64_t j = 0; j < n_rows; j++) {
            const float *dy = span_read(a->dy, rows[j] * a->columns + first, n, scratch);
#pragma omp simd
            for (int64_t i = 0; i < n; i++)
                sum[i] += dy[i];
        }
        span_write(a->d_table, id * a->columns + first, n, sum, a->add_table);
    }
}

static void sum_rows_of_id(const void *context, int64_t id)
{
    const embedding_args *a = context;
    const int32_t *starts = a->workspace, *order = starts + a->vocabulary + 1;
    int64_t n_rows = starts[id + 1] - starts[id];
    size_t row_bytes = (size_t)a->columns * (a->d_table.dtype == FSDP_F32 ? 4 : 2);
    if (n_rows > 0)
        sum_rows(a, id, order + starts[id], n_rows);
    else if (!a->add_table)
        memset(element_address(a->d_table, id * a->columns), 0, row_bytes);
}

SIMD_KERNEL(embedding_backward, embedding_args)
{
    int32_t *starts = a->workspace;
    sort_rows_by_id(a, starts, starts + a->vocabulary + 1);
    parallel_for(cpu_threads_for(s, a->vocabulary * a->columns), a->vocabulary, 1, sum_rows_of_id, a);
    return FSDP_OK;
}
