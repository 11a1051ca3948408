/* Pooling over windows of planes. Backward gathers instead of scattering: an input row collects from the windows that
 * cover it, so overlapping windows need no second buffer and dtypes narrower than fp32 round once. */
#include "device/cpu/simd/span.h"

/* Output columns handled at a time, and kernel columns: what they read together fits one span. */
#define PART (SPAN / 2)

typedef struct pool_row {
    float value[PART];
    int32_t at[PART]; /* max: where in the plane */
} pool_row;

/* Takes kernel columns first_j .. first_j+n_j of one input row into n windows: x is that row from the first window's
 * column first_j on, and `at` where x[0] lies in the plane. The first of equal maxima stays; a NaN wins over all. */
static void take_row(const pool2d_args *a, const float *x, int64_t at, int64_t n_j, int64_t n, pool_row *out)
{
    for (int64_t j = 0; j < n_j; j++) {
        if (a->average) {
            for (int64_t i = 0; i < n; i++)
                out->value[i] += x[i * a->stride_w + j];
            continue;
        }
        for (int64_t i = 0; i < n; i++) {
            float value = x[i * a->stride_w + j];
            bool better = value > out->value[i] || out->at[i] < 0 || (value != value && out->value[i] == out->value[i]);
            out->value[i] = better ? value : out->value[i];
            out->at[i] = better ? (int32_t)(at + i * a->stride_w + j) : out->at[i];
        }
    }
}

/* Output columns first .. first+n of row oh. */
static void pool_columns(const pool2d_args *a, int64_t plane, int64_t oh, int64_t first, int64_t n)
{
    pool_row out;
    float scratch[SPAN];
    for (int64_t i = 0; i < n; i++) {
        out.value[i] = 0.0f;
        out.at[i] = -1;
    }
    for (int64_t kh = 0; kh < a->kernel_h; kh++) {
        for (int64_t j = 0; j < a->kernel_w; j += PART) {
            int64_t n_j = min_i64(PART, a->kernel_w - j), length = (n - 1) * a->stride_w + n_j;
            int64_t at = (oh * a->stride_h + kh) * a->in_w + first * a->stride_w + j;
            take_row(a, span_read(a->x, plane * a->in_h * a->in_w + at, length, scratch), at, n_j, n, &out);
        }
    }
    int64_t out_at = (plane * a->out_h + oh) * a->out_w + first;
    if (a->average) {
        for (int64_t i = 0; i < n; i++)
            out.value[i] /= (float)(a->kernel_h * a->kernel_w);
    } else {
        memcpy(a->index + out_at, out.at, (size_t)n * sizeof(int32_t));
    }
    span_write(a->y, out_at, n, out.value, false);
}

static void pool_plane(const void *context, int64_t plane)
{
    const pool2d_args *a = context;
    int64_t step = max_i64(1, PART / a->stride_w);
    for (int64_t oh = 0; oh < a->out_h; oh++) {
        for (int64_t first = 0; first < a->out_w; first += step)
            pool_columns(a, plane, oh, first, min_i64(step, a->out_w - first));
    }
}

SIMD_KERNEL(pool2d_forward, pool2d_args)
{
    parallel_for(cpu_threads_for(s, a->planes * a->in_h * a->in_w), a->planes, 1, pool_plane, a);
    return FSDP_OK;
}

/* Adds to `row` (columns first .. first+n of input row ih) what window (oh, ow) passes back. */
static void collect_window(const pool2d_args *a, int64_t plane, int64_t ih, int64_t first, int64_t n, int64_t oh,
                           int64_t ow, float *row)
{
    int64_t out_at = (plane * a->out_h + oh) * a->out_w + ow;
    float dy = element_read(a->dy, out_at);
    if (a->average) {
        int64_t from = max_i64(ow * a->stride_w - first, 0), to = min_i64(ow * a->stride_w + a->kernel_w - first, n);
        float share = dy / (float)(a->kernel_h * a->kernel_w);
        for (int64_t i = from; i < to; i++)
            row[i] += share;
    } else {
        int64_t at = a->index[out_at] - ih * a->in_w - first;
        if (at >= 0 && at < n)
            row[at] += dy;
    }
}

static void collect_row(const pool2d_args *a, int64_t plane, int64_t ih, int64_t first, int64_t n)
{
    float row[SPAN];
    memset(row, 0, (size_t)n * sizeof(float));
    int64_t oh_from = max_i64(0, ceil_div(max_i64(0, ih - a->kernel_h + 1), a->stride_h));
    int64_t oh_to = min_i64(a->out_h - 1, ih / a->stride_h);
    int64_t ow_from = ceil_div(max_i64(0, first - a->kernel_w + 1), a->stride_w);
    int64_t ow_to = min_i64(a->out_w - 1, (first + n - 1) / a->stride_w);
    for (int64_t oh = oh_from; oh <= oh_to; oh++) {
        for (int64_t ow = ow_from; ow <= ow_to; ow++)
            collect_window(a, plane, ih, first, n, oh, ow, row);
    }
    span_write(a->dx, (plane * a->in_h + ih) * a->in_w + first, n, row, a->add_dx);
}

static void collect_plane(const void *context, int64_t plane)
{
    const pool2d_args *a = context;
    for (int64_t ih = 0; ih < a->in_h; ih++) {
        for (int64_t first = 0; first < a->in_w; first += SPAN)
            collect_row(a, plane, ih, first, min_i64(SPAN, a->in_w - first));
    }
}

SIMD_KERNEL(pool2d_backward, pool2d_args)
{
    parallel_for(cpu_threads_for(s, a->planes * a->in_h * a->in_w), a->planes, 1, collect_plane, a);
    return FSDP_OK;
}
