/* Cases: operands in 8 bits, and products of them. */
#ifndef TESTS_DEVICE_KERNEL_CASES_FP8_H
#define TESTS_DEVICE_KERNEL_CASES_FP8_H

#include "device/gpu.h"
#include "device/kernel_check.h"

static double fp8_largest(fsdp_dtype format)
{
    return format == FSDP_E5M2 ? 57344 : 448;
}

/* Rounds x and compares every bit of the results and their scale with what the definition says. */
static void fp8_cast_one(kernel_check *c, const operand *x, int64_t rows, int64_t columns, fsdp_dtype format, int which)
{
    int64_t n = rows * columns;
    float magnitude = 0;
    for (int64_t i = 0; i < n; i++)
        magnitude = fabs(x->host[i]) > (double)magnitude ? (float)fabs(x->host[i]) : magnitude;
    float size = magnitude > 0x1p-100f ? magnitude : 0x1p-100f, max = (float)fp8_largest(format), factor = max / size;
    double *q_wanted = check_doubles(c, n), *qt_wanted = check_doubles(c, n), scales[2] = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        q_wanted[i] = fp8_value(format, fp8_nearest(format, (double)((float)x->host[i] * factor)));
        qt_wanted[i % columns * rows + i / columns] = q_wanted[i];
    }
    operand q = check_random(c, format, n, 1), qt = check_random(c, format, n, 1);
    if (which == 3) /* measured before */
        scales[1] = (double)magnitude;
    const double measured[1] = {(double)magnitude};
    operand elsewhere = check_operand(c, FSDP_F32, 1, measured);
    operand scale = check_operand(c, FSDP_F32, 2, scales);
    fp8_cast_args args = {.rows = rows, .columns = columns, .x = operand_buffer(x), .scale = scale.device};
    if (which == 3)
        args.magnitude = rows % 2 ? elsewhere.device : (const float *)scale.device + 1;
    if (which != 1)
        args.q = operand_buffer(&q);
    if (which != 2)
        args.qt = operand_buffer(&qt);
    CHECK_RUN(c, fp8_cast, &args);
    if (args.q.p)
        check_exact(c, &q, q_wanted, "q");
    if (args.qt.p)
        check_exact(c, &qt, qt_wanted, "q transposed");
    scales[0] = (double)(size / max);
    scales[1] = (double)magnitude;
    check_exact(c, &scale, scales, "scale");
}

static void case_fp8_cast(kernel_check *c)
{
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {16, 48}, {33, 130}, {129, 8}, {144, 272}, {200, 131}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int which = 0; which < 4; which++) {
            operand x = check_random(c, c->dtype, shapes[i][0] * shapes[i][1], which == 2 ? 1e-4 : 3);
            fp8_cast_one(c, &x, shapes[i][0], shapes[i][1], which % 2 ? FSDP_E5M2 : FSDP_E4M3, which);
            check_clear(c);
        }
}

/* The magnitude alone; the scale of an operand without elements, from a magnitude that others found; and codes that are
 * transposed, whatever they stand for. */
static void case_fp8_parts(kernel_check *c)
{
    static const int64_t shapes[][2] = {{1, 1}, {3, 5}, {16, 48}, {130, 33}, {144, 272}, {200, 131}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int64_t rows = shapes[i][0], columns = shapes[i][1], n = rows * columns;
        operand x = check_random(c, c->dtype, n, 3);
        double scales[2] = {7, i % 2 ? 9 : 0}; /* the second is raised */
        operand scale = check_operand(c, FSDP_F32, 2, scales);
        for (int64_t k = 0; k < n; k++)
            scales[1] = fabs(x.host[k]) > scales[1] ? fabs(x.host[k]) : scales[1];
        fp8_cast_args args = {.rows = rows, .columns = columns, .x = operand_buffer(&x), .scale = scale.device};
        CHECK_RUN(c, fp8_cast, &args);
        check_exact(c, &scale, scales, "magnitude");

        args = (fp8_cast_args){.x = operand_buffer(&x), .q = {x.device, FSDP_E4M3}, .scale = scale.device};
        args.magnitude = args.scale + 1;
        CHECK_RUN(c, fp8_cast, &args);
        scales[0] = (double)((float)scales[1] / 448.0f);
        check_exact(c, &scale, scales, "scale of nothing");

        operand codes = check_random(c, FSDP_E4M3, n, 300), turned = check_random(c, FSDP_E4M3, n, 1);
        double *wanted = check_doubles(c, n);
        for (int64_t k = 0; k < n; k++)
            wanted[k % columns * rows + k / columns] = codes.host[k];
        args = (fp8_cast_args){
            .rows = rows, .columns = columns, .x = operand_buffer(&codes), .qt = operand_buffer(&turned)};
        CHECK_RUN(c, fp8_cast, &args);
        check_exact(c, &turned, wanted, "codes transposed");
        check_clear(c);
    }
}

/* What an operand lost: counted by the definition, also with a scale that is too small, where the largest saturate. */
static void case_fp8_count(kernel_check *c)
{
    static const int64_t sizes[] = {1, 15, 1000, 5003};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int kind = 0; kind < 4; kind++) {
            fsdp_dtype format = kind % 2 ? FSDP_E5M2 : FSDP_E4M3;
            int64_t n = sizes[i];
            double *values = check_doubles(c, n), *rounded = check_doubles(c, n);
            for (int64_t k = 0; k < n; k++)
                values[k] = k % 7 == 0 ? 0.0 : (check_uniform(c) - 0.5) * exp2(-40 * check_uniform(c));
            operand x = check_operand(c, c->dtype, n, values);
            float scale = (float)((kind < 2 ? 0.5 : 0.1) / fp8_largest(format));
            uint64_t wanted[2] = {3, 5}, counts[2] = {3, 5};
            for (int64_t k = 0; k < n; k++) {
                rounded[k] = fp8_value(format, fp8_nearest(format, x.host[k] / (double)scale));
                wanted[0] += x.host[k] != 0 && rounded[k] == 0;
                wanted[1] += fabs(x.host[k]) > (double)(scale * (float)fp8_largest(format) * 1.0625f);
            }
            operand q = check_operand(c, format, n, rounded);
            fp8_count_args args = {.n = n,
                                   .x = operand_buffer(&x),
                                   .q = operand_buffer(&q),
                                   .scale = check_upload(c, &scale, sizeof scale),
                                   .counts = check_upload(c, counts, sizeof counts)};
            CHECK_RUN(c, fp8_count, &args);
            assert_int_equal(c->device->copy(c->stream, counts, args.counts, sizeof counts), FSDP_OK);
            assert_int_equal(c->device->stream_synchronize(c->stream), FSDP_OK);
            assert_int_equal(counts[0], wanted[0]);
            assert_int_equal(counts[1], wanted[1]);
            assert_true(n < 1000 || (counts[1] > 5) == (kind >= 2));
            assert_true(n < 1000 || c->dtype == FSDP_F16 || counts[0] > 3); /* fp16 has no numbers that small */
            check_clear(c);
        }
}

/* Zeros; one number far above all others; ties; a NaN, an infinity: these make the scale NaN, and with it the product.
 */
static void case_fp8_cast_of_special_numbers(kernel_check *c)
{
    enum { ROWS = 17, COLUMNS = 40, N = ROWS * COLUMNS };
    for (int kind = 0; kind < 5; kind++)
        for (int e5m2 = 0; e5m2 < 2; e5m2++) {
            fsdp_dtype format = e5m2 ? FSDP_E5M2 : FSDP_E4M3;
            double *values = check_doubles(c, N);
            for (int i = 0; i < N; i++)
                values[i] =
                    kind == 0 ? (i % 2 ? 0.0 : -0.0)
                    : kind == 1
                        ? (check_uniform(c) - 0.5) * 0x1p-8
                        : 0.5 * (fp8_value(format, (uint8_t)(i % 100)) + fp8_value(format, (uint8_t)(i % 100 + 1)));
            if (kind > 0)
                values[123] = kind == 2 || kind == 1 ? (kind == 1 ? 3e4 : fp8_largest(format)) : values[123];
            operand x = check_operand(c, c->dtype, N, values);
            if (kind < 3) {
                fp8_cast_one(c, &x, ROWS, COLUMNS, format, 0);
            } else {
                values[321] = kind == 3 ? NAN : INFINITY;
                x = check_operand(c, c->dtype, N, values);
                operand q = check_random(c, format, N, 1), scale = check_magnitudes(c, 0);
                fp8_cast_args args = {.rows = ROWS,
                                      .columns = COLUMNS,
                                      .x = operand_buffer(&x),
                                      .q = operand_buffer(&q),
                                      .scale = scale.device};
                CHECK_RUN(c, fp8_cast, &args);
                const float *got = check_download(c, &scale);
                assert_true(isnan(got[0]));
            }
            check_clear(c);
        }
}

/* d (+)= scale_a scale_b a b^T against double precision. GPUs keep fewer bits of the sums of 8-bit products. */
static void fp8_gemm_one(kernel_check *c, int64_t m, int64_t n, int64_t k, int kind)
{
    bool gradient = kind % 2, add = kind >= 2;
    fsdp_dtype d_dtype = gradient ? c->gradient_dtype : c->dtype;
    operand a = check_random(c, gradient ? FSDP_E5M2 : FSDP_E4M3, m * k, 300),
            b = check_random(c, FSDP_E4M3, n * k, 300), d = check_random(c, d_dtype, m * n, 1);
    const double scales[5] = {0x1p-9 * 1.25, 0, 0, 0, 0x1p-9 * 0.75};
    operand scale = check_operand(c, FSDP_F32, 5, scales);
    gemm_args args = {.transpose_b = true,
                      .m = m,
                      .n = n,
                      .k = k,
                      .alpha = 1,
                      .beta = add,
                      .lda = k,
                      .ldb = k,
                      .ldc = n,
                      .ldd = n,
                      .batch = 1,
                      .a = operand_buffer(&a),
                      .b = operand_buffer(&b),
                      .c = operand_buffer(&d),
                      .d = operand_buffer(&d),
                      .fast_sums = !gradient};
    args.scale_a = scale.device;
    args.scale_b = (const float *)scale.device + 4;
    CHECK_RUN_WITH_WORKSPACE(c, gemm, &args);
    const void *raw = check_download(c, &d);
    double bits = strcmp(c->device->name, "cpu") == 0 ? 0x1p-20 : args.fast_sums ? 0x1p-9 : 0x1p-11;
    for (int64_t i = 0; i < m * n; i++) {
        double sum = 0, sizes = 0;
        for (int64_t j = 0; j < k; j++) {
            double term = a.host[i / n * k + j] * b.host[i % n * k + j] * scales[0] * scales[4];
            sum += term;
            sizes += fabs(term);
        }
        double want = sum + (add ? d.host[i] : 0), got = dtype_get(d_dtype, raw, i);
        double allowed = dtype_tolerance(d_dtype) * (fabs(want) + 0.1) * 2 + bits * sizes;
        if (add && bits > 0x1p-20) /* a GPU may round the product before it adds */
            allowed += dtype_tolerance(d_dtype) * fmax(fabs(sum), fabs(d.host[i]));
        if (!(fabs(got - want) <= allowed))
            fail_msg("fp8_gemm %lld x %lld x %lld, kind %d: element %lld is %.9g, expected %.9g (allowed %.3g off)",
                     (long long)m, (long long)n, (long long)k, kind, (long long)i, got, want, allowed);
    }
}

static void case_fp8_gemm(kernel_check *c)
{
    static const int64_t shapes[][3] = {{16, 16, 16}, {48, 80, 32}, {128, 112, 144}, {144, 64, 272}};
    if (!device_has_fp8(c->device))
        return;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int kind = 0; kind < 4; kind++) {
            if (!check_leaves_out(c, shapes[i][0] * shapes[i][1] * shapes[i][2]))
                fp8_gemm_one(c, shapes[i][0], shapes[i][1], shapes[i][2], kind);
            check_clear(c);
        }
}

#endif
