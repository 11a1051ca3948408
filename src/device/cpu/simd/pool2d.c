/* Pooling over windows of planes. Backward gathers instead of scattering: an input row collects from the windows that
 * cover it, so overlapping windows need no second buffer and dtypes narrower than fp32 round once. */
#include "device/cpu/simd/span.h"

static void average_window(const pool2d_args *a, int64_t plane, int64_t oh, int64_t ow, int64_t out_at)
{
    float sum = 0.0f;
    for (int64_t i = 0; i < a->kernel_h; i++) {
        int64_t at = (plane * a->in_h + oh * a->stride_h + i) * a->in_w + ow * a->stride_w;
        for (int64_t j = 0; j < a->kernel_w; j++)
            sum += element_read(a->x, at + j);
    }
    element_write(a->y, out_at, sum / (float)(a->kernel_h * a->kernel_w));
}

/* The first of equal maxima wins; a NaN wins over all. */
static void max_window(const pool2d_args *a, int64_t plane, int64_t oh, int64_t ow, int64_t out_at)
{
    int64_t plane_at = plane * a->in_h * a->in_w, best_at = oh * a->stride_h * a->in_w + ow * a->stride_w;
    float best = element_read(a->x, plane_at + best_at);
    for (int64_t i = 0; i < a->kernel_h; i++) {
        int64_t at = (oh * a->stride_h + i) * a->in_w + ow * a->stride_w;
        for (int64_t j = 0; j < a->kernel_w; j++) {
            float value = element_read(a->x, plane_at + at + j);
            if (value > best || (value != value && best == best)) {
                best = value;
                best_at = at + j;
            }
        }
    }
    element_write(a->y, out_at, best);
    a->index[out_at] = (int32_t)best_at;
}

SIMD_KERNEL(pool2d_forward, pool2d_args)
{
    int threads = cpu_threads_for(s, a->planes * a->in_h * a->in_w);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t plane = 0; plane < a->planes; plane++) {
        for (int64_t oh = 0; oh < a->out_h; oh++) {
            for (int64_t ow = 0; ow < a->out_w; ow++) {
                int64_t out_at = (plane * a->out_h + oh) * a->out_w + ow;
                if (a->average)
                    average_window(a, plane, oh, ow, out_at);
                else
                    max_window(a, plane, oh, ow, out_at);
            }
        }
    }
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

SIMD_KERNEL(pool2d_backward, pool2d_args)
{
    int threads = cpu_threads_for(s, a->planes * a->in_h * a->in_w);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t plane = 0; plane < a->planes; plane++) {
        for (int64_t ih = 0; ih < a->in_h; ih++) {
            for (int64_t first = 0; first < a->in_w; first += SPAN)
                collect_row(a, plane, ih, first, min_i64(SPAN, a->in_w - first));
        }
    }
    return FSDP_OK;
}
