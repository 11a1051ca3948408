/* Cases: convolution, pooling, batch normalisation. */
#ifndef TESTS_DEVICE_KERNEL_CASES_IMAGE_H
#define TESTS_DEVICE_KERNEL_CASES_IMAGE_H

#include "device/kernel_check.h"

typedef struct conv_case {
    int64_t batch, in_channels, in_h, in_w, out_channels, kernel_h, kernel_w, stride_h, stride_w, padding_h, padding_w;
    int add; /* bits: dx, d_weight, d_bias */
    bool bias, split;
} conv_case;

/* Visits every (output, weight, input) triple: y += w x, dw += dy x, dx += dy w. */
static void conv_reference(const conv2d_args *a, const operand *x, const operand *w, const operand *dy, double *y,
                           double *dx, double *dw)
{
    int64_t kernel = a->kernel_h * a->kernel_w, out_area = a->out_h * a->out_w;
    for (int64_t o = 0; o < a->batch * a->out_channels * out_area; o++) {
        int64_t b = o / (a->out_channels * out_area), oc = o / out_area % a->out_channels;
        int64_t oh = o % out_area / a->out_w, ow = o % a->out_w;
        for (int64_t e = 0; e < a->in_channels * kernel; e++) {
            int64_t ic = e / kernel, ih = oh * a->stride_h + e % kernel / a->kernel_w - a->padding_h;
            int64_t iw = ow * a->stride_w + e % a->kernel_w - a->padding_w;
            if (ih < 0 || ih >= a->in_h || iw < 0 || iw >= a->in_w)
                continue;
            int64_t at = ((b * a->in_channels + ic) * a->in_h + ih) * a->in_w + iw;
            int64_t w_at = oc * a->in_channels * kernel + e;
            y[o] += w->host[w_at] * x->host[at];
            dw[w_at] += dy->host[o] * x->host[at];
            dx[at] += dy->host[o] * w->host[w_at];
        }
    }
}

static void conv_one(kernel_check *c, const conv_case *k)
{
    if (check_leaves_out(c, 8 * k->batch * k->in_channels * k->out_channels * k->in_h * k->in_w * k->kernel_h *
                                k->kernel_w))
        return;
    conv2d_args a = {.batch = k->batch,
                     .in_channels = k->in_channels,
                     .in_h = k->in_h,
                     .in_w = k->in_w,
                     .out_channels = k->out_channels,
                     .kernel_h = k->kernel_h,
                     .kernel_w = k->kernel_w,
                     .stride_h = k->stride_h,
                     .stride_w = k->stride_w,
                     .padding_h = k->padding_h,
                     .padding_w = k->padding_w,
                     .add_dx = k->add & 1,
                     .add_weight = k->add & 2,
                     .add_bias = k->add & 4};
    a.out_h = (k->in_h + 2 * k->padding_h - k->kernel_h) / k->stride_h + 1;
    a.out_w = (k->in_w + 2 * k->padding_w - k->kernel_w) / k->stride_w + 1;
    int64_t area = a.out_h * a.out_w, w_numel = k->out_channels * k->in_channels * k->kernel_h * k->kernel_w;
    operand x = check_random(c, c->dtype, k->batch * k->in_channels * k->in_h * k->in_w, 1);
    operand w = check_random(c, c->dtype, w_numel, 1), bias = check_random(c, c->dtype, k->out_channels, 1);
    operand y = check_random(c, c->dtype, k->batch * k->out_channels * area, 1), dy = check_random(c, c->dtype, y.n, 1);
    operand dx = check_random(c, c->dtype, x.n, 1), dw = check_random(c, c->gradient_dtype, w_numel, 1);
    operand db = check_random(c, c->gradient_dtype, k->out_channels, 1);
    double *y_want = check_doubles(c, y.n), *dx_want = check_doubles(c, x.n), *dw_want = check_doubles(c, w_numel);
    double *db_want = check_doubles(c, k->out_channels);
    for (int64_t i = 0; i < y.n; i++) {
        y_want[i] = k->bias ? bias.host[i / area % k->out_channels] : 0.0;
        db_want[i / area % k->out_channels] += dy.host[i];
    }
    conv_reference(&a, &x, &w, &dy, y_want, dx_want, dw_want);
    a.x = operand_buffer(&x), a.weight = operand_buffer(&w), a.y = operand_buffer(&y), a.dy = operand_buffer(&dy);
    a.dx = operand_buffer(&dx), a.d_weight = operand_buffer(&dw), a.d_bias = operand_buffer(&db);
    a.bias = k->bias ? operand_buffer(&bias) : (buffer){NULL, c->dtype};
    CHECK_RUN_WITH_WORKSPACE(c, conv2d_forward, &a);
    CHECK_RUN_WITH_WORKSPACE(c, conv2d_backward, &a);
    check_expect(c, &y, y_want, false, "y");
    check_expect(c, &dw, dw_want, a.add_weight, "d_weight");
    check_expect(c, &db, db_want, a.add_bias, "d_bias");
    double slack = c->slack;
    if (k->split && c->dtype != FSDP_F32)
        c->slack *= 200.0; /* an input row that two parts cover may be rounded once for each, before they cancel */
    check_expect(c, &dx, dx_want, a.add_dx, "dx");
    c->slack = slack;
    check_clear(c);
}

static void case_conv2d(kernel_check *c)
{
    const conv_case cases[] = {
        {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, false, false},
        {3, 3, 9, 7, 5, 3, 3, 1, 1, 1, 1, 0, true, false},
        {2, 4, 11, 13, 3, 5, 3, 2, 3, 2, 1, 7, true, false},
        {5, 2, 8, 8, 4, 2, 2, 2, 2, 0, 0, 3, false, false},
        {1, 2, 4, 5, 3, 3, 3, 1, 1, 3, 4, 0, true, false},
        {2, 3, 6, 6, 2, 1, 1, 2, 2, 0, 0, 4, true, false},
        /* Large enough to be cut: by samples, and by rows of one sample. */
        {11, 16, 16, 16, 2, 5, 5, 1, 1, 2, 2, 0, true, false},
        {2, 16, 61, 60, 1, 5, 5, 1, 1, 2, 2, 0, false, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        conv_one(c, &cases[i]);
    /* The last part's products need more workspace than the others': their depth is packed whole. Not in 16 bits. */
    const conv_case short_end = {6, 4, 50, 50, 9, 5, 5, 1, 1, 2, 2, 0, true, false};
    if (c->dtype == FSDP_F32)
        conv_one(c, &short_end);
}

static void pool_one(kernel_check *c, bool average, int64_t in_w, int64_t kernel_h, int64_t kernel_w, int64_t stride_h,
                     int64_t stride_w, bool add)
{
    int64_t planes = 5, in_h = 9;
    pool2d_args a = {.average = average,
                     .planes = planes,
                     .in_h = in_h,
                     .in_w = in_w,
                     .kernel_h = kernel_h,
                     .kernel_w = kernel_w,
                     .stride_h = stride_h,
                     .stride_w = stride_w,
                     .add_dx = add};
    a.out_h = (in_h - kernel_h) / stride_h + 1, a.out_w = (in_w - kernel_w) / stride_w + 1;
    operand x = check_random(c, c->dtype, planes * in_h * in_w, 2);
    operand y = check_random(c, c->dtype, planes * a.out_h * a.out_w, 1), dy = check_random(c, c->dtype, y.n, 1);
    operand dx = check_random(c, c->dtype, x.n, 1), index = check_random(c, FSDP_F32, y.n, 1);
    double *y_want = check_doubles(c, y.n), *dx_want = check_doubles(c, x.n);
    for (int64_t o = 0; o < y.n; o++) {
        int64_t plane = o / (a.out_h * a.out_w), oh = o / a.out_w % a.out_h, ow = o % a.out_w, best = -1;
        double share = 1.0 / (double)(kernel_h * kernel_w);
        for (int64_t e = 0; e < kernel_h * kernel_w; e++) {
            int64_t at = (plane * in_h + oh * stride_h + e / kernel_w) * in_w + ow * stride_w + e % kernel_w;
            if (average) {
                y_want[o] += x.host[at] * share;
                dx_want[at] += dy.host[o] * share;
            } else if (best < 0 || x.host[at] > x.host[best]) {
                best = at;
            }
        }
        if (!average) {
            y_want[o] = x.host[best];
            dx_want[best] += dy.host[o];
        }
    }
    a.x = operand_buffer(&x), a.y = operand_buffer(&y), a.dy = operand_buffer(&dy), a.dx = operand_buffer(&dx);
    a.index = index.device;
    CHECK_RUN(c, pool2d_forward, &a);
    CHECK_RUN(c, pool2d_backward, &a);
    check_expect(c, &y, y_want, false, "y");
    check_expect(c, &dx, dx_want, add, "dx");
    check_clear(c);
}

static void case_pool2d(kernel_check *c)
{
    for (int i = 0; i < 4; i++) {
        pool_one(c, i & 1, 11, 2, 2, 2, 2, i & 2);
        pool_one(c, i & 1, 11, 3, 3, 2, 1, i & 2);
        pool_one(c, i & 1, 11, 1, 3, 3, 2, i & 2);
        pool_one(c, i & 1, 11, 9, 11, 1, 1, i & 2);
        pool_one(c, i & 1, 1301, 2, 3, 2, 2, i & 2);
        pool_one(c, i & 1, 1301, 1, 1300, 3, 1, i & 2);
    }
}

typedef struct batchnorm_reference {
    double *y, *mean, *rstd, *running_mean, *running_var, *dx, *d_weight, *d_bias;
} batchnorm_reference;

static void batchnorm_channel(const batchnorm_args *a, int64_t ch, const operand *x, const operand *w, const operand *b,
                              const operand *dy, const operand *rm, const operand *rv, batchnorm_reference *r)
{
    int64_t samples = a->rows; /* those behind pad the batch: they get a y, and no gradient */
    double mean = 0.0, variance = 0.0, n = (double)(a->rows * a->area), sum = 0.0, dot = 0.0;
#define EACH(at)                                                                                                       \
    for (int64_t i = 0, at;                                                                                            \
         i < samples * a->area && (at = (i / a->area * a->channels + ch) * a->area + i % a->area, true); i++)
    EACH(at) mean += x->host[at] / n;
    EACH(at) variance += (x->host[at] - mean) * (x->host[at] - mean) / n;
    r->running_mean[ch] = rm->host[ch], r->running_var[ch] = rv->host[ch];
    if (a->evaluate) {
        mean = rm->host[ch], variance = rv->host[ch];
    } else if (a->momentum > 0) {
        double move = (double)a->momentum, unbiased = n > 1 ? variance * n / (n - 1) : variance;
        r->running_mean[ch] = (1 - move) * rm->host[ch] + move * mean;
        r->running_var[ch] = (1 - move) * rv->host[ch] + move * unbiased;
    }
    double k = 1.0 / sqrt(variance + (double)a->eps);
    r->mean[ch] = mean, r->rstd[ch] = k;
    EACH(at)
    {
        sum += dy->host[at];
        dot += dy->host[at] * (x->host[at] - mean) * k;
    }
    r->d_weight[ch] = dot, r->d_bias[ch] = sum;
    EACH(at)
    r->dx[at] = a->evaluate ? w->host[ch] * k * dy->host[at]
                            : w->host[ch] * k * (dy->host[at] - sum / n - (x->host[at] - mean) * k * dot / n);
    samples = a->batch;
    EACH(at) r->y[at] = (x->host[at] - mean) * k * w->host[ch] + b->host[ch];
#undef EACH
}

static void batchnorm_one(kernel_check *c, int64_t batch, int64_t rows, int64_t channels, int64_t area, bool evaluate,
                          int add)
{
    operand x = check_random(c, c->dtype, batch * channels * area, 2), w = check_random(c, c->dtype, channels, 1);
    operand b = check_random(c, c->dtype, channels, 1), y = check_random(c, c->dtype, x.n, 1);
    operand dy = check_random(c, c->dtype, x.n, 1), dx = check_random(c, c->dtype, x.n, 1);
    operand dw = check_random(c, c->gradient_dtype, channels, 1), db = check_random(c, c->gradient_dtype, channels, 1);
    operand mean = check_random(c, FSDP_F32, channels, 1), rstd = check_random(c, FSDP_F32, channels, 1);
    operand rm = check_random(c, FSDP_F32, channels, 1), sums = check_random(c, FSDP_F64, 2 * channels + 1, 1);
    double *variances = check_doubles(c, channels);
    for (int64_t i = 0; i < channels; i++)
        variances[i] = 0.5 + check_uniform(c);
    operand rv = check_operand(c, FSDP_F32, channels, variances);
    batchnorm_args a = {.batch = batch,
                        .channels = channels,
                        .area = area,
                        .rows = rows,
                        .eps = 1e-2f,
                        .momentum = add ? 0.1f : 0.0f,
                        .evaluate = evaluate,
                        .x = operand_buffer(&x),
                        .y = operand_buffer(&y),
                        .weight = operand_buffer(&w),
                        .bias = operand_buffer(&b),
                        .sums = sums.device,
                        .local_sums = sums.device,
                        .mean = mean.device,
                        .rstd = rstd.device,
                        .running_mean = rm.device,
                        .running_var = rv.device,
                        .dy = operand_buffer(&dy),
                        .dx = operand_buffer(&dx),
                        .d_weight = operand_buffer(&dw),
                        .d_bias = operand_buffer(&db),
                        .add_dx = add & 1,
                        .add_weight = add & 2,
                        .add_bias = add & 1};
    batchnorm_reference r = {check_doubles(c, x.n),      check_doubles(c, channels), check_doubles(c, channels),
                             check_doubles(c, channels), check_doubles(c, channels), check_doubles(c, x.n),
                             check_doubles(c, channels), check_doubles(c, channels)};
    for (int64_t ch = 0; ch < channels; ch++)
        batchnorm_channel(&a, ch, &x, &w, &b, &dy, &rm, &rv, &r);
    CHECK_RUN(c, batchnorm_forward_reduce, &a);
    CHECK_RUN(c, batchnorm_forward_apply, &a);
    /* A replay has mean and rstd: y comes again, and the running statistics have moved once. */
    batchnorm_args replay = a;
    replay.sums = NULL;
    assert_int_equal(c->device->zero(c->stream, y.device, (size_t)y.n * fsdp_dtype_size(y.dtype)), FSDP_OK);
    CHECK_RUN(c, batchnorm_forward_apply, &replay);
    CHECK_RUN(c, batchnorm_backward_reduce, &a);
    CHECK_RUN(c, batchnorm_backward_apply, &a);
    check_expect(c, &y, r.y, false, "y");
    check_expect(c, &mean, r.mean, false, "mean");
    check_expect(c, &rstd, r.rstd, false, "rstd");
    check_expect(c, &rm, r.running_mean, false, "running_mean");
    check_expect(c, &rv, r.running_var, false, "running_var");
    check_expect(c, &dx, r.dx, a.add_dx, "dx");
    check_expect(c, &dw, r.d_weight, a.add_weight, "d_weight");
    check_expect(c, &db, r.d_bias, a.add_bias, "d_bias");
    check_clear(c);
}

static void case_batchnorm(kernel_check *c)
{
    for (int i = 0; i < 8; i++) {
        batchnorm_one(c, 3, 3, 5, 17, i & 4, i & 3);
        batchnorm_one(c, 33, 33, 3, 1, i & 4, i & 3);
        batchnorm_one(c, 2, 2, 7, 1100, i & 4, i & 3);
        batchnorm_one(c, 7, 4, 3, 19, i & 4, i & 3);
    }
}

#endif
