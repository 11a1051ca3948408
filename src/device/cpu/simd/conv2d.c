/* Convolution as matrix products over unfolded images. Images are unfolded a panel at a time (several samples, or some
 * output rows of one), so the workspace stays small whatever the batch.
 *   columns (patch, width): patch = in_channels * kernel_h * kernel_w, width = samples * rows * out_w
 *   y = weight columns;  d_weight = dy columns^T;  d_columns = weight^T dy, folded back into dx. */
#include "device/cpu/simd/span.h"

#define PANEL_BYTES ((size_t)4 << 20)

typedef struct panel {
    int64_t sample, n_samples, row, n_rows; /* rows of the output; all of them unless n_samples is 1 */
} panel;

typedef struct panel_plan {
    int64_t patch, n_samples, n_rows, width; /* of a full panel */
    size_t columns_bytes, gathered_bytes, sum_bytes, gemm_bytes;
} panel_plan;

static gemm_args product_forward(const conv2d_args *a, int64_t patch, int64_t width, const panel *p, void *columns)
{
    int64_t n = p->n_rows * a->out_w, area = a->out_h * a->out_w;
    buffer y = {a->y.p ? element_address(a->y, p->sample * a->out_channels * area + p->row * a->out_w) : NULL,
                a->y.dtype};
    return (gemm_args){
        .m = a->out_channels,
        .n = n,
        .k = patch,
        .alpha = 1.0f,
        .beta = a->bias.p ? 1.0f : 0.0f,
        .a = a->weight,
        .b = {columns, a->weight.dtype},
        .c = y,
        .d = y,
        .lda = patch,
        .ldb = width,
        .ldc = area,
        .ldd = area,
        .batch = p->n_samples,
        .stride_b = n,
        .stride_c = a->out_channels * area,
        .stride_d = a->out_channels * area,
    };
}

/* d_columns (patch, width), fp32. dy gathered: (out_channels, width). */
static gemm_args product_d_columns(const conv2d_args *a, int64_t patch, int64_t width, void *gathered, void *columns)
{
    buffer d = {columns, FSDP_F32};
    return (gemm_args){
        .transpose_a = true,
        .m = patch,
        .n = width,
        .k = a->out_channels,
        .alpha = 1.0f,
        .a = a->weight,
        .b = {gathered, a->weight.dtype},
        .c = d,
        .d = d,
        .lda = patch,
        .ldb = width,
        .ldc = width,
        .ldd = width,
        .batch = 1,
    };
}

/* Into `sum`, which is d_weight, or fp32 memory where d_weight would round after every panel. */
static gemm_args product_d_weight(const conv2d_args *a, int64_t patch, int64_t width, void *gathered, void *columns,
                                  buffer sum, bool add)
{
    return (gemm_args){
        .transpose_b = true,
        .m = a->out_channels,
        .n = patch,
        .k = width,
        .alpha = 1.0f,
        .beta = add ? 1.0f : 0.0f,
        .a = {gathered, a->weight.dtype},
        .b = {columns, a->weight.dtype},
        .c = sum,
        .d = sum,
        .lda = width,
        .ldb = width,
        .ldc = patch,
        .ldd = patch,
        .batch = 1,
    };
}

static panel panel_at(const conv2d_args *a, const panel_plan *p, int64_t index)
{
    if (p->n_rows == a->out_h) {
        int64_t sample = index * p->n_samples;
        return (panel){sample, min_i64(p->n_samples, a->batch - sample), 0, a->out_h};
    }
    int64_t per_sample = ceil_div(a->out_h, p->n_rows), row = index % per_sample * p->n_rows;
    return (panel){index / per_sample, 1, row, min_i64(p->n_rows, a->out_h - row)};
}

static int64_t panel_count(const conv2d_args *a, const panel_plan *p)
{
    return p->n_rows == a->out_h ? ceil_div(a->batch, p->n_samples) : a->batch * ceil_div(a->out_h, p->n_rows);
}

static int64_t panel_width(const conv2d_args *a, const panel *p)
{
    return p->n_samples * p->n_rows * a->out_w;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What the three products of a panel need. */
static size_t products_workspace(const struct device *d, const conv2d_args *a, int64_t patch, const panel *p)
{
    int64_t width = panel_width(a, p);
    gemm_args products[3] = {
        product_forward(a, patch, width, p, NULL),
        product_d_columns(a, patch, width, NULL, NULL),
        product_d_weight(a, patch, width, NULL, NULL, (buffer){NULL, FSDP_F32}, true),
    };
    size_t bytes = 0;
    for (int i = 0; i < 3; i++)
        bytes = larger(bytes, gemm_workspace_bytes(&((const device_cpu *)d)->product, &products[i]));
    return bytes;
}

/* Depends on shapes and dtypes only. */
static panel_plan plan_make(const struct device *d, const conv2d_args *a)
{
    panel_plan p = {.patch = a->in_channels * a->kernel_h * a->kernel_w};
    int64_t row_bytes = p.patch * a->out_w * (int64_t)sizeof(float), budget = (int64_t)PANEL_BYTES;
    int64_t rows = max_i64(1, budget / max_i64(1, row_bytes));
    p.n_rows = min_i64(a->out_h, rows);
    p.n_samples = p.n_rows == a->out_h ? max_i64(1, min_i64(a->batch, rows / max_i64(1, a->out_h))) : 1;
    p.width = p.n_samples * p.n_rows * a->out_w;
    p.columns_bytes = round_up((size_t)(p.patch * p.width) * sizeof(float), 256);
    p.gathered_bytes = round_up((size_t)(a->out_channels * p.width) * sizeof(float), 256);
    p.sum_bytes = round_up((size_t)(a->out_channels * p.patch) * sizeof(float), 256);
    /* A short last panel may choose other blocks, and ask for more. */
    panel first = panel_at(a, &p, 0), last = panel_at(a, &p, max_i64(1, panel_count(a, &p)) - 1);
    p.gemm_bytes = larger(products_workspace(d, a, p.patch, &first), products_workspace(d, a, p.patch, &last));
    return p;
}

/* out[i] = x[sample, channel, ih, ow*stride + kw - padding] for the n output columns from `first`, 0 outside. */
static void unfold_row(const conv2d_args *a, int64_t row_at, int64_t kw, int64_t first, int64_t n, float *out)
{
    int64_t start = first * a->stride_w + kw - a->padding_w;
    int64_t lead = start >= 0 ? 0 : min_i64(n, ceil_div(-start, a->stride_w));
    int64_t fit = start >= a->in_w ? 0 : min_i64(n, ceil_div(a->in_w - start, a->stride_w));
    fit = max_i64(fit, lead);
    for (int64_t i = 0; i < lead; i++)
        out[i] = 0.0f;
    for (int64_t i = fit; i < n; i++)
        out[i] = 0.0f;
    if (a->stride_w == 1) {
        span_load(a->x, row_at + start + lead, fit - lead, out + lead);
    } else {
        for (int64_t i = lead; i < fit; i++)
            out[i] = element_read(a->x, row_at + start + i * a->stride_w);
    }
}

/* A panel on its way: images to columns (patch, width), dy to gathered (out_channels, width), columns back to dx. */
typedef struct panel_move {
    const conv2d_args *args;
    const panel *panel;
    buffer matrix; /* columns or gathered dy */
    bool add;      /* to dx */
} panel_move;

/* Item: an entry of the patch, and of each its samples. */
static void unfold_entry(const void *context, int64_t item)
{
    static const float zeros[SPAN];
    const panel_move *m = context;
    const conv2d_args *a = m->args;
    const panel *p = m->panel;
    int64_t entry = item / p->n_samples, j = item % p->n_samples, kernel = a->kernel_h * a->kernel_w;
    int64_t channel = entry / kernel, kh = entry % kernel / a->kernel_w, kw = entry % a->kernel_w;
    float scratch[SPAN];
    for (int64_t r = 0; r < p->n_rows; r++) {
        int64_t ih = (p->row + r) * a->stride_h + kh - a->padding_h;
        int64_t row_at = (((p->sample + j) * a->in_channels + channel) * a->in_h + ih) * a->in_w;
        for (int64_t first = 0; first < a->out_w; first += SPAN) {
            int64_t part = min_i64(SPAN, a->out_w - first);
            int64_t to = entry * panel_width(a, p) + (j * p->n_rows + r) * a->out_w + first;
            bool inside = ih >= 0 && ih < a->in_h;
            float *target = span_target(m->matrix, to, false, scratch);
            if (inside)
                unfold_row(a, row_at, kw, first, part, target);
            span_write(m->matrix, to, part, inside ? target : zeros, false);
        }
    }
}

static void unfold(const struct stream *s, const conv2d_args *a, int64_t patch, const panel *p, buffer columns)
{
    panel_move m = {.args = a, .panel = p, .matrix = columns};
    int threads = cpu_threads_for(s, patch * panel_width(a, p));
    parallel_for(threads, patch * p->n_samples, 1, unfold_entry, &m);
}

/* Item: an output channel, and of each its samples. */
static void gather_channel(const void *context, int64_t item)
{
    const panel_move *m = context;
    const conv2d_args *a = m->args;
    const panel *p = m->panel;
    int64_t channel = item / p->n_samples, j = item % p->n_samples;
    int64_t n = p->n_rows * a->out_w, area = a->out_h * a->out_w;
    int64_t from = ((p->sample + j) * a->out_channels + channel) * area + p->row * a->out_w;
    float scratch[SPAN];
    for (int64_t first = 0; first < n; first += SPAN) {
        int64_t part = min_i64(SPAN, n - first);
        const float *dy = span_read(a->dy, from + first, part, scratch);
        span_write(m->matrix, channel * panel_width(a, p) + j * n + first, part, dy, false);
    }
}

/* In the dtype of the weight. */
static void gather_dy(const struct stream *s, const conv2d_args *a, const panel *p, buffer gathered)
{
    panel_move m = {.args = a, .panel = p, .matrix = gathered};
    int threads = cpu_threads_for(s, a->out_channels * panel_width(a, p));
    parallel_for(threads, a->out_channels * p->n_samples, 1, gather_channel, &m);
}

/* Columns first .. first+n of input row ih, summed over the patches of the panel that cover it. */
static void fold_row(const conv2d_args *a, const panel *p, const float *columns, int64_t j, int64_t channel, int64_t ih,
                     int64_t first, int64_t n, float *row)
{
    int64_t width = panel_width(a, p);
    memset(row, 0, (size_t)n * sizeof(float));
    for (int64_t kh = 0; kh < a->kernel_h; kh++) {
        int64_t reach = ih + a->padding_h - kh;
        if (reach < 0 || reach % a->stride_h)
            continue;
        int64_t r = reach / a->stride_h - p->row;
        if (r < 0 || r >= p->n_rows)
            continue;
        for (int64_t kw = 0; kw < a->kernel_w; kw++) {
            int64_t entry = (channel * a->kernel_h + kh) * a->kernel_w + kw;
            const float *from = columns + entry * width + (j * p->n_rows + r) * a->out_w;
            int64_t shift = first + a->padding_w - kw; /* iw = ow*stride - shift + first */
            int64_t ow = shift <= 0 ? 0 : ceil_div(shift, a->stride_w);
            for (; ow < a->out_w && ow * a->stride_w - shift < n; ow++)
                row[ow * a->stride_w - shift] += from[ow];
        }
    }
}

/* Item: a sample of the panel, and of each its input channels. */
static void fold_plane(const void *context, int64_t item)
{
    const panel_move *m = context;
    const conv2d_args *a = m->args;
    const panel *p = m->panel;
    int64_t j = item / a->in_channels, channel = item % a->in_channels;
    float row[SPAN];
    for (int64_t ih = 0; ih < a->in_h; ih++) {
        int64_t at = (((p->sample + j) * a->in_channels + channel) * a->in_h + ih) * a->in_w;
        for (int64_t first = 0; first < a->in_w; first += SPAN) {
            int64_t n = min_i64(SPAN, a->in_w - first);
            fold_row(a, p, m->matrix.p, j, channel, ih, first, n, row);
            span_write(a->dx, at + first, n, row, m->add);
        }
    }
}

/* columns: fp32 */
static void fold(const struct stream *s, const conv2d_args *a, const panel *p, void *columns, bool add)
{
    panel_move m = {.args = a, .panel = p, .matrix = {columns, FSDP_F32}, .add = add};
    int64_t n_planes = p->n_samples * a->in_channels;
    parallel_for(cpu_threads_for(s, n_planes * a->in_h * a->in_w), n_planes, 1, fold_plane, &m);
}

static void bias_plane(const void *context, int64_t plane)
{
    const conv2d_args *a = context;
    int64_t area = a->out_h * a->out_w;
    float values[SPAN], value = element_read(a->bias, plane % a->out_channels);
    for (int i = 0; i < SPAN; i++)
        values[i] = value;
    for (int64_t first = 0; first < area; first += SPAN)
        span_write(a->y, plane * area + first, min_i64(SPAN, area - first), values, false);
}

/* The products then add to it: one rounding instead of two. */
static void start_with_bias(const struct stream *s, const conv2d_args *a)
{
    int64_t n_planes = a->batch * a->out_channels;
    parallel_for(cpu_threads_for(s, n_planes * a->out_h * a->out_w), n_planes, 1, bias_plane, a);
}

static void bias_gradient_channel(const void *context, int64_t channel)
{
    const conv2d_args *a = context;
    int64_t area = a->out_h * a->out_w;
    double sum = 0.0;
    float scratch[SPAN];
    for (int64_t sample = 0; sample < a->batch; sample++) {
        for (int64_t first = 0; first < area; first += SPAN) {
            int64_t n = min_i64(SPAN, area - first);
            const float *dy = span_read(a->dy, (sample * a->out_channels + channel) * area + first, n, scratch);
#pragma omp simd reduction(+ : sum)
            for (int64_t i = 0; i < n; i++)
                sum += (double)dy[i];
        }
    }
    float before = a->add_bias ? element_read(a->d_bias, channel) : 0.0f;
    element_write(a->d_bias, channel, before + (float)sum);
}

static void bias_gradient(const struct stream *s, const conv2d_args *a)
{
    int threads = cpu_threads_for(s, a->batch * a->out_channels * a->out_h * a->out_w);
    parallel_for(threads, a->out_channels, 1, bias_gradient_channel, a);
}

SIMD_WORKSPACE(conv2d_forward, conv2d_args)
{
    panel_plan p = plan_make(d, a);
    return p.columns_bytes + p.gemm_bytes;
}

SIMD_KERNEL(conv2d_forward, conv2d_args)
{
    panel_plan plan = plan_make(&s->device->base, a);
    buffer columns = {a->workspace, a->weight.dtype};
    if (a->bias.p)
        start_with_bias(s, a);
    for (int64_t i = 0; i < panel_count(a, &plan); i++) {
        panel p = panel_at(a, &plan, i);
        int64_t width = panel_width(a, &p);
        unfold(s, a, plan.patch, &p, columns);
        gemm_args product = product_forward(a, plan.patch, width, &p, columns.p);
        product.workspace = (char *)a->workspace + plan.columns_bytes;
        FSDP_TRY(gemm_gemm(&s->device->product, &product));
    }
    return FSDP_OK;
}

SIMD_WORKSPACE(conv2d_backward, conv2d_args)
{
    panel_plan p = plan_make(d, a);
    return p.columns_bytes + p.gathered_bytes + p.sum_bytes + p.gemm_bytes;
}

/* Input rows that two panels share are added to (and round twice where dx is narrower than fp32), so dx starts from
 * zero. */
static void start_dx(const conv2d_args *a, const panel_plan *plan)
{
    if (a->dx.p && plan->n_rows < a->out_h && !a->add_dx) {
        size_t numel = (size_t)(a->batch * a->in_channels * a->in_h * a->in_w);
        memset(a->dx.p, 0, numel * (a->dx.dtype == FSDP_F32 ? 4 : 2));
    }
}

SIMD_KERNEL(conv2d_backward, conv2d_args)
{
    panel_plan plan = plan_make(&s->device->base, a);
    const cpu_gemm_set *set = &s->device->product;
    buffer columns = {a->workspace, a->weight.dtype};
    buffer gathered = {(char *)a->workspace + plan.columns_bytes, a->weight.dtype};
    bool direct = a->d_weight.dtype == FSDP_F32;
    buffer sum = {(char *)gathered.p + plan.gathered_bytes, FSDP_F32};
    void *product_workspace = (char *)sum.p + plan.sum_bytes;
    sum = direct ? a->d_weight : sum;
    start_dx(a, &plan);
    for (int64_t i = 0; i < panel_count(a, &plan); i++) {
        panel p = panel_at(a, &plan, i);
        int64_t width = panel_width(a, &p);
        gather_dy(s, a, &p, gathered);
        if (a->d_weight.p) {
            bool add = i > 0 || (direct && a->add_weight);
            unfold(s, a, plan.patch, &p, columns);
            gemm_args product = product_d_weight(a, plan.patch, width, gathered.p, columns.p, sum, add);
            product.workspace = product_workspace;
            FSDP_TRY(gemm_gemm(set, &product));
        }
        if (a->dx.p) {
            gemm_args product = product_d_columns(a, plan.patch, width, gathered.p, columns.p);
            product.workspace = product_workspace;
            FSDP_TRY(gemm_gemm(set, &product));
            fold(s, a, &p, columns.p, a->add_dx || plan.n_rows < a->out_h);
        }
    }
    if (a->d_weight.p && !direct)
        span_write(a->d_weight, 0, a->out_channels * plan.patch, sum.p, a->add_weight);
    if (a->d_bias.p)
        bias_gradient(s, a);
    return FSDP_OK;
}
