/* Cases: weights as blocks of 8 bits, and back. */
#ifndef TESTS_DEVICE_KERNEL_CASES_INT8_H
#define TESTS_DEVICE_KERNEL_CASES_INT8_H

#include "device/int8_block.h"
#include "device/kernel_check.h"

/* Largest magnitude / 127, rounded up to 17 bits. */
static double int8_wanted_scale(const double *x)
{
    double largest = 0;
    int exponent;
    for (int i = 0; i < INT8_BLOCK; i++)
        largest = fmax(largest, fabs(x[i]));
    if (largest < 0x1p-100)
        return 0;
    double mantissa = frexp((double)((float)largest / 127.0f), &exponent);
    return ldexp(ceil(mantissa * 0x1p17), exponent - 17);
}

/* Every code is the nearest by the definition, every number comes back with half a step's error at most, in every type
 * exactly as rounded once, and the numbers that come back in fp32 have the same blocks. */
static void int8_one(kernel_check *c, const operand *x)
{
    int64_t n = x->n;
    size_t bytes = (size_t)(n / INT8_BLOCK) * sizeof(int8_block);
    double *wanted = check_doubles(c, n);
    operand back = check_random(c, c->dtype, n, 1), wide = check_random(c, FSDP_F32, n, 1);
    int8_block *blocks = check_host(c, bytes), *again = check_host(c, bytes);
    int8_args a = {.n = n, .blocks = check_upload(c, blocks, bytes), .values = operand_buffer(x)};
    CHECK_RUN(c, narrow, &a);
    assert_int_equal(c->device->copy(c->stream, blocks, a.blocks, bytes), FSDP_OK);
    assert_int_equal(c->device->stream_synchronize(c->stream), FSDP_OK);
    for (int64_t i = 0; i < n; i++) {
        const int8_block *block = &blocks[i / INT8_BLOCK];
        double scale = int8_wanted_scale(x->host + i / INT8_BLOCK * INT8_BLOCK);
        int code = block->codes[i % INT8_BLOCK];
        assert_true((double)block->scale == scale);
        assert_int_equal(code, scale > 0 ? (int)rint((double)((float)x->host[i] / (float)scale)) : 0);
        wanted[i] = code * scale;
        assert_true(scale == 0 ? fabs(x->host[i]) < 0x1p-100
                               : fabs(wanted[i] - x->host[i]) <= scale / 2 * (1 + 1e-6) && abs(code) <= 127);
    }
    a.values = operand_buffer(&back);
    CHECK_RUN(c, widen, &a);
    for (int64_t i = 0; i < n; i++) { /* rounded to the type, as check_exact wants it */
        char raw[8];
        dtype_put(c->dtype, raw, 0, wanted[i]);
        x->host[i] = dtype_get(c->dtype, raw, 0);
    }
    check_exact(c, &back, x->host, "widened");
    a.values = operand_buffer(&wide);
    CHECK_RUN(c, widen, &a);
    check_exact(c, &wide, wanted, "widened to fp32");
    CHECK_RUN(c, narrow, &a);
    assert_int_equal(c->device->copy(c->stream, again, a.blocks, bytes), FSDP_OK);
    assert_int_equal(c->device->stream_synchronize(c->stream), FSDP_OK);
    assert_memory_equal(blocks, again, bytes);
}

static void case_int8(kernel_check *c)
{
    static const int64_t sizes[] = {1, 2, 3, 15, 16, 17, 67, 131};
    static const double scales[] = {1, 3e-4, 60000, 1e-6};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double *values = check_doubles(c, sizes[i] * INT8_BLOCK);
        for (int64_t k = 0; k < sizes[i] * INT8_BLOCK; k++)
            values[k] = scales[i % 4] * (2 * check_uniform(c) - 1) * (check_uniform(c) < 0.01 ? 100 : 1);
        for (int64_t k = 0; i == 2 && k < INT8_BLOCK; k++)
            values[k] = k == 7 ? -0.0 : 0; /* a block of zeros */
        operand x = check_operand(c, scales[i % 4] == 60000 ? FSDP_F32 : c->dtype, sizes[i] * INT8_BLOCK, values);
        int8_one(c, &x);
        check_clear(c);
    }
}

/* Blocks with a number that is none are NaN throughout, their neighbours are not; what is too small is zero. */
static void case_int8_of_special_numbers(kernel_check *c)
{
    enum { BLOCKS = 9, N = BLOCKS * INT8_BLOCK };
    static const double special[] = {NAN, 1, INFINITY, 1, -INFINITY, 0x1p-101, 0x1p-149, 0x1p-100, 1};
    double values[N];
    for (int i = 0; i < N; i++)
        values[i] = i % INT8_BLOCK == 11 ? special[i / INT8_BLOCK] : i / INT8_BLOCK < 5 ? 0.5 : 0;
    operand x = check_operand(c, FSDP_F32, N, values), back = check_random(c, FSDP_F32, N, 1);
    int8_args a = {.n = N, .blocks = check_workspace(c, BLOCKS * sizeof(int8_block)), .values = operand_buffer(&x)};
    CHECK_RUN(c, narrow, &a);
    a.values = operand_buffer(&back);
    CHECK_RUN(c, widen, &a);
    const float *out = check_download(c, &back);
    for (int i = 0; i < N; i++) {
        int block = i / INT8_BLOCK;
        if (block % 2 == 0 && block < 5)
            assert_true(isnan(out[i]));
        else
            assert_true(fabs((double)out[i] - (block == 5 || block == 6 ? 0 : values[i])) <=
                        fabs(special[block]) / 250);
    }
    check_clear(c);
}

#endif
