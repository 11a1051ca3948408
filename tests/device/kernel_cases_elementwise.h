/* Cases: kernels that touch each element once, copies, reductions, matrix products. */
#ifndef TESTS_DEVICE_KERNEL_CASES_ELEMENTWISE_H
#define TESTS_DEVICE_KERNEL_CASES_ELEMENTWISE_H

#include <float.h>

#include "base/rng.h"
#include "device/kernel_check.h"

static const int64_t odd_sizes[] = {1, 3, 17, 33, 1025, 20011};
#define N_ODD_SIZES (sizeof odd_sizes / sizeof odd_sizes[0])

static int64_t padded(int64_t columns, int64_t more, bool aligned)
{
    return aligned ? (columns + 7) / 8 * 8 : columns + more;
}

/* aligned: rows begin at multiples of 8 elements, whatever the sizes. */
static void gemm_padded(kernel_check *c, bool ta, bool tb, int64_t m, int64_t n, int64_t k, int64_t batch, bool add,
                        bool aligned)
{
    if (check_leaves_out(c, 8 * batch * m * n * k))
        return;
    int64_t lda = padded(ta ? m : k, 3, aligned), ldb = padded(tb ? k : n, 1, aligned), ldd = padded(n, 2, aligned);
    int64_t stride_a = (ta ? k : m) * lda, stride_b = (tb ? n : k) * ldb, stride_d = m * ldd;
    operand a = check_random(c, c->dtype, batch * stride_a, 1), b = check_random(c, c->dtype, batch * stride_b, 1);
    operand d = check_random(c, c->gradient_dtype, batch * stride_d, 1), bias = check_random(c, c->dtype, n, 1);
    double *want = check_doubles(c, d.n);
    float alpha = 0.5f, beta = add ? 1.0f : 0.0f;
    memcpy(want, d.host, (size_t)d.n * sizeof(double));
    for (int64_t q = 0; q < batch; q++) {
        for (int64_t i = 0; i < m; i++) {
            for (int64_t j = 0; j < n; j++) {
                double sum = 0.0, *to = want + q * stride_d + i * ldd + j;
                for (int64_t p = 0; p < k; p++)
                    sum += a.host[q * stride_a + (ta ? p * lda + i : i * lda + p)] *
                           b.host[q * stride_b + (tb ? j * ldb + p : p * ldb + j)];
                *to = (double)alpha * sum + (add ? *to : 0.0) + bias.host[j];
            }
        }
    }
    gemm_args args = {.transpose_a = ta,
                      .transpose_b = tb,
                      .m = m,
                      .n = n,
                      .k = k,
                      .alpha = alpha,
                      .beta = beta,
                      .a = operand_buffer(&a),
                      .b = operand_buffer(&b),
                      .c = operand_buffer(&d),
                      .d = operand_buffer(&d),
                      .lda = lda,
                      .ldb = ldb,
                      .ldc = ldd,
                      .ldd = ldd,
                      .batch = batch,
                      .stride_a = stride_a,
                      .stride_b = stride_b,
                      .stride_c = stride_d,
                      .stride_d = stride_d,
                      .bias = operand_buffer(&bias)};
    CHECK_RUN_WITH_WORKSPACE(c, gemm, &args);
    check_expect(c, &d, want, false, "d");
    check_clear(c);
}

static void gemm_one(kernel_check *c, bool ta, bool tb, int64_t m, int64_t n, int64_t k, int64_t batch, bool add)
{
    gemm_padded(c, ta, tb, m, n, k, batch, add, false);
}

static void case_gemm(kernel_check *c)
{
    for (int i = 0; i < 8; i++) {
        gemm_one(c, i & 1, i & 2, 17, 33, 19, 3, i & 4);
        gemm_one(c, i & 1, i & 2, 1, 3, 65, 1, i & 4);
        gemm_padded(c, i & 1, i & 2, 16, 1029, 17, 1, i & 4, true);
        gemm_padded(c, i & 1, i & 2, 1025, 16, 24, 1, i & 4, true);
        gemm_padded(c, i & 1, i & 2, 9, 24, 1031, 1, i & 4, true);
    }
}

static void case_axpby(kernel_check *c)
{
    for (size_t i = 0; i < N_ODD_SIZES; i++) {
        int64_t n = odd_sizes[i];
        operand x = check_random(c, c->dtype, n, 2), y = check_random(c, c->gradient_dtype, n, 2);
        operand out = check_random(c, c->dtype, n, 1), cast = check_random(c, c->gradient_dtype, n, 1);
        double *want = check_doubles(c, n);
        for (int64_t j = 0; j < n; j++)
            want[j] = 0.75 * x.host[j] - 1.5 * y.host[j];
        axpby_args args = {.n = n,
                           .alpha = 0.75f,
                           .beta = -1.5f,
                           .a = operand_buffer(&x),
                           .b = operand_buffer(&y),
                           .out = operand_buffer(&out)};
        CHECK_RUN(c, axpby, &args);
        check_expect(c, &out, want, false, "alpha a + beta b");
        axpby_args cast_args = {.n = n, .alpha = 1.0f, .a = operand_buffer(&x), .out = operand_buffer(&cast)};
        CHECK_RUN(c, axpby, &cast_args);
        check_exact(c, &cast, x.host, "cast");
        args.out = args.a;
        CHECK_RUN(c, axpby, &args);
        check_expect(c, &x, want, false, "in place");
        check_clear(c);
    }
}

/* Casts to the dtype round to nearest even, keep NaN and infinity, and pass through subnormal numbers of the target. */
static void case_axpby_of_special_numbers(kernel_check *c)
{
    const double values[] = {0.0,    -0.0,    1.0,           1.00390625,    1.01171875, 65504.0, 65519.9, 65520.0,
                             1e30,   -1e30,   INFINITY,      -INFINITY,     NAN,        6e-8,    2.9e-8,  -3.1e-8,
                             6.1e-5, 6.09e-5, 1.00048828125, 1.00146484375, 3.3e38,     -2.0,    0.1,     1e-20};
    int64_t n = (int64_t)(sizeof values / sizeof values[0]);
    operand x = check_operand(c, FSDP_F32, n, values), out = check_random(c, c->dtype, n, 1);
    double *want = check_doubles(c, n);
    for (int64_t i = 0; i < n; i++)
        want[i] = c->dtype == FSDP_BF16  ? bf16_value(bf16_nearest(x.host[i]))
                  : c->dtype == FSDP_F16 ? half_value(half_nearest(x.host[i]))
                                         : x.host[i];
    axpby_args args = {.n = n, .alpha = 1.0f, .a = operand_buffer(&x), .out = operand_buffer(&out)};
    CHECK_RUN(c, axpby, &args);
    check_exact(c, &out, want, "cast from fp32");
    args.a = args.out, args.out = operand_buffer(&x);
    CHECK_RUN(c, axpby, &args);
    check_exact(c, &x, want, "cast to fp32");
}

static void case_multiply(kernel_check *c)
{
    for (size_t i = 0; i < 2 * N_ODD_SIZES; i++) {
        int64_t n = odd_sizes[i / 2];
        operand x = check_random(c, c->dtype, n, 2), y = check_random(c, c->dtype, n, 2);
        operand out = check_random(c, c->gradient_dtype, n, 1);
        double *want = check_doubles(c, n);
        for (int64_t j = 0; j < n; j++)
            want[j] = x.host[j] * y.host[j];
        multiply_args args = {
            .n = n, .a = operand_buffer(&x), .b = operand_buffer(&y), .out = operand_buffer(&out), .add = i & 1};
        CHECK_RUN(c, multiply, &args);
        check_expect(c, &out, want, args.add, "product");
        check_clear(c);
    }
}

static void case_fill(kernel_check *c)
{
    for (size_t i = 0; i < 4 * N_ODD_SIZES; i++) {
        int64_t n = odd_sizes[i / 4];
        operand out = check_random(c, c->dtype, n, 1), scalar = check_random(c, FSDP_F32, 1, 1);
        double *want = check_doubles(c, n);
        for (int64_t j = 0; j < n; j++)
            want[j] = 3.0 * (i & 2 ? scalar.host[0] : 1.0);
        fill_args args = {
            .n = n, .alpha = 3.0f, .scalar = i & 2 ? scalar.device : NULL, .out = operand_buffer(&out), .add = i & 1};
        CHECK_RUN(c, fill, &args);
        check_expect(c, &out, want, args.add, "filled");
        check_clear(c);
    }
}

static double activation_value(activation_kind kind, double x)
{
    switch (kind) {
    case ACTIVATION_SILU:
        return x / (1.0 + exp(-x));
    case ACTIVATION_GELU_ERF:
        return 0.5 * x * (1.0 + erf(x * sqrt(0.5)));
    case ACTIVATION_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    default:
        return x > 0.0 ? x : 0.0;
    }
}

/* By central differences in double: good to 1e-9, far below what is compared. */
static double activation_slope(activation_kind kind, double x)
{
    double h = 1e-5;
    return (activation_value(kind, x + h) - activation_value(kind, x - h)) / (2.0 * h);
}

static void case_activation(kernel_check *c)
{
    for (size_t i = 0; i < 4 * N_ODD_SIZES; i++) {
        int64_t n = odd_sizes[i / 4];
        activation_kind kind = (activation_kind)(i % 4);
        operand x = check_random(c, c->dtype, n, 9), dy = check_random(c, c->dtype, n, 2);
        operand y = check_random(c, c->dtype, n, 1), dx = check_random(c, c->dtype, n, 1);
        double *want = check_doubles(c, n), *slope = check_doubles(c, n);
        for (int64_t j = 0; j < n; j++) {
            want[j] = activation_value(kind, x.host[j]);
            slope[j] = activation_slope(kind, x.host[j]) * dy.host[j];
        }
        activation_args args = {.kind = kind,
                                .n = n,
                                .x = operand_buffer(&x),
                                .y = operand_buffer(&y),
                                .dy = operand_buffer(&dy),
                                .dx = operand_buffer(&dx),
                                .add_dx = i / 4 & 1};
        CHECK_RUN(c, activation_forward, &args);
        CHECK_RUN(c, activation_backward, &args);
        check_expect(c, &y, want, false, "y");
        check_expect(c, &dx, slope, args.add_dx, "dx");
        args.dx = args.dy, args.add_dx = false;
        CHECK_RUN(c, activation_backward, &args);
        check_expect(c, &dy, slope, false, "dx over dy");
        check_clear(c);
    }
}

static void gated_one(kernel_check *c, activation_kind kind, int64_t rows, int64_t columns, bool add)
{
    operand x = check_random(c, c->dtype, rows * 2 * columns, 5), dy = check_random(c, c->dtype, rows * columns, 2);
    operand y = check_random(c, c->dtype, rows * columns, 1), dx = check_random(c, c->dtype, x.n, 1);
    double *want = check_doubles(c, y.n), *d_want = check_doubles(c, x.n);
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            int64_t gate = i * 2 * columns + j, up = gate + columns, at = i * columns + j;
            double value = activation_value(kind, x.host[gate]);
            want[at] = value * x.host[up];
            d_want[gate] = dy.host[at] * x.host[up] * activation_slope(kind, x.host[gate]);
            d_want[up] = dy.host[at] * value;
        }
    }
    gated_args args = {.kind = kind,
                       .rows = rows,
                       .columns = columns,
                       .x = operand_buffer(&x),
                       .y = operand_buffer(&y),
                       .dy = operand_buffer(&dy),
                       .dx = operand_buffer(&dx),
                       .add_dx = add};
    operand largest = check_magnitudes(c, columns % 2 ? 0x1p99 : 0);
    args.magnitude = kind & 1 ? largest.device : NULL;
    CHECK_RUN(c, gated_forward, &args);
    args.magnitude = kind & 1 ? (float *)largest.device + 1 : NULL;
    CHECK_RUN(c, gated_backward, &args);
    if (kind & 1) {
        check_magnitude(c, &y, &largest, 0);
        check_magnitude(c, &dx, &largest, 1);
    }
    check_expect(c, &y, want, false, "y");
    check_expect(c, &dx, d_want, add, "dx");
    check_clear(c);
}

static void case_gated(kernel_check *c)
{
    for (int kind = 0; kind < 4; kind++) {
        gated_one(c, (activation_kind)kind, 1, 1, false);
        gated_one(c, (activation_kind)kind, 3, 33, true);
        gated_one(c, (activation_kind)kind, 17, 1100, kind & 1);
        gated_one(c, (activation_kind)kind, 29, 72, false);
    }
}

static void strided_one(kernel_check *c, const strided_copy_args *shape, int64_t from_numel, int64_t to_numel,
                        int64_t from_first)
{
    operand from = check_random(c, c->dtype, from_numel, 2), to = check_random(c, c->gradient_dtype, to_numel, 2);
    double *want = check_doubles(c, to_numel);
    memcpy(want, to.host, (size_t)to_numel * sizeof(double));
    int64_t index[KERNEL_MAX_DIMS] = {0};
    for (bool more = true; more;) {
        int64_t at = 0, source = from_first;
        for (int d = 0; d < shape->n_dims; d++) {
            at += index[d] * shape->to_stride[d];
            source += index[d] * shape->from_stride[d];
        }
        want[at] = from.host[source] + (shape->add ? want[at] : 0.0);
        int d = shape->n_dims - 1;
        while (d >= 0 && ++index[d] == shape->shape[d])
            index[d--] = 0;
        more = d >= 0;
    }
    strided_copy_args args = *shape;
    args.from = (buffer){(char *)from.device + (size_t)from_first * fsdp_dtype_size(c->dtype), c->dtype};
    args.to = operand_buffer(&to);
    CHECK_RUN(c, strided_copy, &args);
    check_expect(c, &to, want, false, "to");
    check_clear(c);
}

static void case_strided_copy(kernel_check *c)
{
    for (int add = 0; add < 2; add++) {
        strided_copy_args plain = {.n_dims = 1, .shape = {9001}, .from_stride = {1}, .to_stride = {1}, .add = add};
        strided_one(c, &plain, 9001, 9001, 0);
        strided_copy_args transpose = {
            .n_dims = 2, .shape = {67, 131}, .from_stride = {1, 67}, .to_stride = {131, 1}, .add = add};
        strided_one(c, &transpose, 67 * 131, 67 * 131, 0);
        strided_copy_args heads = {.n_dims = 4,
                                   .shape = {2, 5, 3, 7},
                                   .from_stride = {105, 21, 7, 1},
                                   .to_stride = {105, 7, 35, 1},
                                   .add = add};
        strided_one(c, &heads, 210, 210, 0);
        strided_copy_args slice = {
            .n_dims = 2, .shape = {17, 33}, .from_stride = {100, 1}, .to_stride = {40, 1}, .add = add};
        strided_one(c, &slice, 1700, 680, 5);
        strided_copy_args broadcast = {
            .n_dims = 3, .shape = {3, 17, 5}, .from_stride = {5, 0, 1}, .to_stride = {85, 5, 1}, .add = add};
        strided_one(c, &broadcast, 15, 255, 0);
        strided_copy_args reverse = {.n_dims = 1, .shape = {33}, .from_stride = {-1}, .to_stride = {2}, .add = add};
        strided_one(c, &reverse, 33, 66, 32);
        strided_copy_args six = {.n_dims = 6,
                                 .shape = {2, 3, 1, 2, 3, 2},
                                 .from_stride = {36, 2, 1, 18, 6, 1},
                                 .to_stride = {1, 2, 1, 6, 12, 36},
                                 .add = add};
        strided_one(c, &six, 72, 72, 0);
        strided_copy_args one = {.n_dims = 0, .add = add};
        strided_one(c, &one, 1, 1, 0);
        strided_copy_args none = {.n_dims = 2, .shape = {0, 3}, .from_stride = {3, 1}, .to_stride = {3, 1}, .add = add};
        none.from = none.to = (buffer){NULL, c->dtype};
        CHECK_RUN(c, strided_copy, &none);
    }
}

/* Which elements stay must be exactly what base/rng.h says, wherever the samples start. */
static void case_dropout(kernel_check *c)
{
    const float probabilities[] = {0.0f, 0.1f, 0.9f, 1.0f};
    for (int i = 0; i < 8; i++) {
        int64_t samples = 3, numel = 1365 + i;
        float p = probabilities[i / 2];
        operand x = check_random(c, c->dtype, samples * numel, 2), y = check_random(c, c->dtype, samples * numel, 2);
        step_scalars scalars = {.step = 7 + ((uint64_t)i << 32), .first_sample = 5000000011u + (uint64_t)i};
        scalars.share = i >= 4 ? 3 : 0;
        if (i & 1) /* the counter carries into its upper half within these samples */
            scalars.first_sample = ((uint64_t)3 << 34) / (uint64_t)numel - 1;
        rng_key key = {{0x1234u, 0x9876u}};
        double *want = check_doubles(c, x.n);
        for (int64_t j = 0; j < x.n; j++) {
            uint64_t at = (scalars.first_sample + scalars.share * 3) * (uint64_t)numel + (uint64_t)j;
            bool keep = rng_to_uniform(rng_word(key, scalars.step, at)) >= p;
            want[j] = keep ? x.host[j] / (1.0 - (double)p) : 0.0;
        }
        dropout_args args = {.samples = samples,
                             .sample_numel = numel,
                             .probability = p,
                             .key = {key.k[0], key.k[1]},
                             .scalars = check_upload(c, &scalars, sizeof scalars),
                             .x = operand_buffer(&x),
                             .y = operand_buffer(&y),
                             .add = i & 1};
        CHECK_RUN(c, dropout, &args);
        check_expect(c, &y, want, args.add, "y");
        check_clear(c);
    }
}

static void case_sum(kernel_check *c)
{
    for (size_t i = 0; i < 6 * N_ODD_SIZES; i++) {
        int64_t n = odd_sizes[i / 6];
        int kind = (int)(i % 3);
        operand x = check_random(c, c->dtype, n, 2), y = check_random(c, c->dtype, n, 2);
        operand out = check_random(c, FSDP_F32, 1, 2);
        double want = 0.0;
        for (int64_t j = 0; j < n; j++) {
            double d = x.host[j] - y.host[j];
            want += 0.5 * (kind == 0 ? x.host[j] : kind == 1 ? x.host[j] * x.host[j] : d * d);
        }
        sum_args args = {
            .n = n, .alpha = 0.5f, .squared = kind == 1, .x = operand_buffer(&x), .out = out.device, .add = i % 6 >= 3};
        if (kind == 2)
            args.y = operand_buffer(&y);
        CHECK_RUN_WITH_WORKSPACE(c, sum, &args);
        check_expect(c, &out, &want, args.add, "sum");
        check_clear(c);
    }
}

static void case_squared_error_backward(kernel_check *c)
{
    for (size_t i = 0; i < 2 * N_ODD_SIZES; i++) {
        int64_t n = odd_sizes[i / 2];
        operand x = check_random(c, c->dtype, n, 2), y = check_random(c, c->dtype, n, 2);
        operand dx = check_random(c, c->dtype, n, 2), scalar = check_random(c, FSDP_F32, 1, 2);
        double *want = check_doubles(c, n);
        for (int64_t j = 0; j < n; j++)
            want[j] = 0.25 * scalar.host[0] * 2.0 * (x.host[j] - y.host[j]);
        squared_error_backward_args args = {.n = n,
                                            .alpha = 0.25f,
                                            .scalar = scalar.device,
                                            .x = operand_buffer(&x),
                                            .y = operand_buffer(&y),
                                            .dx = operand_buffer(&dx),
                                            .add = i & 1};
        CHECK_RUN(c, squared_error_backward, &args);
        check_expect(c, &dx, want, args.add, "dx");
        check_clear(c);
    }
}

/* Defined down to the order of additions, so compared exactly. */
static void case_norm_blocks(kernel_check *c)
{
    const int64_t sizes[] = {1, 63, 64, 65, 511, 512, 513, 40001};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        int64_t n = sizes[i], n_blocks = (n + NORM_BLOCK - 1) / NORM_BLOCK;
        operand x = check_random(c, c->dtype, n, 3), blocks = check_random(c, FSDP_F64, n_blocks, 1);
        double *want = check_doubles(c, n_blocks);
        for (int64_t j = 0; j < n; j++)
            want[j / NORM_BLOCK] += (double)((float)x.host[j] * (float)x.host[j]);
        norm_blocks_args args = {.n = n, .x = operand_buffer(&x), .blocks = blocks.device};
        CHECK_RUN(c, norm_blocks, &args);
        const double *got = check_download(c, &blocks);
        /* The CPU sums in index order, to the bit; elsewhere the order is the device's. */
        double relative = strcmp(c->device->name, "cpu") == 0 ? 0 : NORM_BLOCK * DBL_EPSILON;
        for (int64_t j = 0; j < n_blocks; j++)
            if (fabs(got[j] - want[j]) > relative * want[j])
                fail_msg("norm_blocks: block %lld of %lld elements is %.17g, expected %.17g", (long long)j,
                         (long long)n, got[j], want[j]);
        check_clear(c);
    }
}

#endif
