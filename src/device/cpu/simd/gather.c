/* Elements by index along one dimension, their gradient, and indices as one-hot rows. Backward lets one thread own all
 * elements that share their place in the other dimensions, so sums run in order. */
#include "device/cpu/simd/span.h"

static int64_t index_at(const gather_args *a, int64_t o, int64_t k, int64_t i)
{
    return a->per_element ? a->index[(o * a->count + k) * a->inner + i] : a->index[k];
}

static void gather_rows(const void *context, int64_t row)
{
    const gather_args *a = context;
    int64_t o = row / a->count, k = row % a->count;
    for (int64_t i = 0; i < a->inner; i++) {
        int64_t from = index_at(a, o, k, i);
        float value = from >= 0 && from < a->n ? element_read(a->x, (o * a->n + from) * a->inner + i) : 0.0f;
        element_write(a->y, row * a->inner + i, value);
    }
}

SIMD_KERNEL(gather_forward, gather_args)
{
    int64_t rows = a->outer * a->count;
    parallel_for(cpu_threads_for(s, rows * a->inner), rows, 1, gather_rows, a);
    return FSDP_OK;
}

static void gather_backward_outer(const void *context, int64_t column)
{
    const gather_args *a = context;
    int64_t o = column / a->inner, i = column % a->inner;
    for (int64_t j = 0; !a->add_dx && j < a->n; j++)
        element_write(a->dx, (o * a->n + j) * a->inner + i, 0.0f);
    for (int64_t k = 0; k < a->count; k++) {
        int64_t from = index_at(a, o, k, i), to = (o * a->n + from) * a->inner + i;
        if (from >= 0 && from < a->n)
            element_write(a->dx, to, element_read(a->dx, to) + element_read(a->dy, (o * a->count + k) * a->inner + i));
    }
}

SIMD_KERNEL(gather_backward, gather_args)
{
    int64_t columns = a->outer * a->inner;
    parallel_for(cpu_threads_for(s, columns * (a->n + a->count)), columns, 1, gather_backward_outer, a);
    return FSDP_OK;
}

static void one_hot_row(const void *context, int64_t row)
{
    const one_hot_args *a = context;
    int32_t id = a->ids[row];
    float off = id == a->ignore ? 0.0f : a->off;
    for (int64_t c = 0; c < a->classes; c++)
        element_write(a->y, row * a->classes + c, id != a->ignore && c == id ? a->on : off);
}

SIMD_KERNEL(one_hot, one_hot_args)
{
    parallel_for(cpu_threads_for(s, a->rows * a->classes), a->rows, 1, one_hot_row, a);
    return FSDP_OK;
}
