/* Arithmetic on operands with strides: broadcasting, and reductions over any dimensions. Rows along the last dimension
 * go through spans, so that the loops see plain fp32 whatever the operands' types and strides. */
#include "device/cpu/simd/span.h"

#include "device/element_math.h"

/* n elements from `first` on, `stride` apart, as floats; int32 operands become 0 and 1. */
static const float *strided_span(buffer b, float value, int64_t first, int64_t stride, int64_t n, float *scratch)
{
    if (b.p && b.dtype != FSDP_I32 && stride == 1)
        return span_read(b, first, n, scratch);
    if (b.p && stride == 0)
        value = b.dtype == FSDP_I32 ? (float)(((const int32_t *)b.p)[first] != 0) : element_read(b, first);
    for (int64_t i = 0; (!b.p || stride == 0) && i < n; i++)
        scratch[i] = value;
    for (int64_t i = 0; b.p && stride != 0 && i < n; i++)
        scratch[i] = b.dtype == FSDP_I32 ? (float)(((const int32_t *)b.p)[first + i * stride] != 0)
                                         : element_read(b, first + i * stride);
    return scratch;
}

static void combine_values(combine_kind kind, int64_t n, const float *x, const float *y, const float *z, float *out)
{
#pragma omp simd
    for (int64_t i = 0; i < (kind == COMBINE_ADD ? n : 0); i++)
        out[i] = x[i] + y[i];
#pragma omp simd
    for (int64_t i = 0; i < (kind == COMBINE_SUBTRACT ? n : 0); i++)
        out[i] = x[i] - y[i];
#pragma omp simd
    for (int64_t i = 0; i < (kind == COMBINE_MULTIPLY ? n : 0); i++)
        out[i] = x[i] * y[i];
#pragma omp simd
    for (int64_t i = 0; i < (kind == COMBINE_DIVIDE ? n : 0); i++)
        out[i] = x[i] / y[i];
#pragma omp simd
    for (int64_t i = 0; i < (kind == COMBINE_DIVISOR_GRADIENT ? n : 0); i++)
        out[i] = -x[i] * y[i] / z[i];
#pragma omp simd
    for (int64_t i = 0; i < (kind == COMBINE_SELECT ? n : 0); i++)
        out[i] = z[i] != 0.0f ? x[i] : y[i];
}

static void combine_row(const void *context, int64_t row)
{
    const combine_args *a = context;
    int last = a->n_dims - 1;
    int64_t width = a->shape[last];
    int64_t at_a = offset_of(row, last, a->shape, a->a_stride), at_b = offset_of(row, last, a->shape, a->b_stride),
            at_c = offset_of(row, last, a->shape, a->c_stride);
    float x_scratch[SPAN], y_scratch[SPAN], z_scratch[SPAN], scratch[SPAN];
    for (int64_t first = 0; first < width; first += SPAN) {
        int64_t n = min_i64(SPAN, width - first), to = row * width + first;
        const float *x =
            strided_span(a->a, a->a_value, at_a + first * a->a_stride[last], a->a_stride[last], n, x_scratch);
        const float *y =
            strided_span(a->b, a->b_value, at_b + first * a->b_stride[last], a->b_stride[last], n, y_scratch);
        const float *z = strided_span(a->c, 0, at_c + first * a->c_stride[last], a->c_stride[last], n, z_scratch);
        float *out = span_target(a->out, to, a->add, scratch);
        combine_values(a->kind, n, x, y, z, out);
        span_write(a->out, to, n, out, a->add);
    }
}

SIMD_KERNEL(combine, combine_args)
{
    int64_t rows = product_of(a->n_dims - 1, a->shape);
    parallel_for(cpu_threads_for(s, rows * a->shape[a->n_dims - 1]), rows, 1, combine_row, a);
    return FSDP_OK;
}

/* Reductions. A result belongs to one thread; rows of the reduced elements along their last dimension are added up one
 * after another, each in fp32 lanes and their totals in fp64. */

static float reduced_sum(const reduce_dims_args *a, int64_t base)
{
    int last = a->n_reduced - 1;
    int64_t rows = product_of(last, a->reduced), width = a->reduced[last], stride = a->reduced_stride[last];
    float scratch[SPAN];
    double total = 0;
    for (int64_t row = 0; row < rows; row++) {
        int64_t at = base + offset_of(row, last, a->reduced, a->reduced_stride);
        for (int64_t first = 0; first < width; first += SPAN) {
            int64_t n = min_i64(SPAN, width - first);
            const float *x = strided_span(a->x, 0, at + first * stride, stride, n, scratch);
            double sum = 0;
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++)
                sum += (double)x[i];
            total += sum;
        }
    }
    return (float)(a->alpha * total);
}

/* A NaN wins, so that it stays visible. */
static bool is_better(fsdp_reduction kind, float x, float best)
{
    return x != x ? best == best : kind == FSDP_REDUCE_MAX ? x > best : x < best;
}

static float reduced_extreme(const reduce_dims_args *a, int64_t base, int32_t *index)
{
    int64_t n = product_of(a->n_reduced, a->reduced);
    float best = element_read(a->x, base);
    *index = 0;
    for (int64_t i = 1; i < n; i++) {
        float x = element_read(a->x, base + offset_of(i, a->n_reduced, a->reduced, a->reduced_stride));
        if (is_better(a->kind, x, best)) {
            best = x;
            *index = (int32_t)i;
        }
    }
    return best;
}

static void reduce_one(const void *context, int64_t at)
{
    const reduce_dims_args *a = context;
    int64_t base = offset_of(at, a->n_kept, a->kept, a->kept_stride);
    int32_t index = 0;
    float value = a->kind == FSDP_REDUCE_SUM ? reduced_sum(a, base) : reduced_extreme(a, base, &index);
    if (a->index)
        a->index[at] = index;
    element_write(a->y, at, a->add ? element_read(a->y, at) + value : value);
}

SIMD_KERNEL(reduce, reduce_dims_args)
{
    int64_t kept = product_of(a->n_kept, a->kept), reduced = product_of(a->n_reduced, a->reduced);
    parallel_for(cpu_threads_for(s, kept * reduced), kept, 1, reduce_one, a);
    return FSDP_OK;
}

static void reduce_backward_one(const void *context, int64_t at)
{
    const reduce_dims_args *a = context;
    int64_t base = offset_of(at, a->n_kept, a->kept, a->kept_stride), n = product_of(a->n_reduced, a->reduced);
    float dy = element_read(a->dy, at);
    for (int64_t i = 0; i < n; i++) {
        int64_t to = base + offset_of(i, a->n_reduced, a->reduced, a->reduced_stride);
        float value = a->kind == FSDP_REDUCE_SUM ? a->alpha * dy : i == a->index[at] ? dy : 0.0f;
        element_write(a->dx, to, a->add ? element_read(a->dx, to) + value : value);
    }
}

SIMD_KERNEL(reduce_backward, reduce_dims_args)
{
    int64_t kept = product_of(a->n_kept, a->kept), reduced = product_of(a->n_reduced, a->reduced);
    parallel_for(cpu_threads_for(s, kept * reduced), kept, 1, reduce_backward_one, a);
    return FSDP_OK;
}
