/* Cases: a NaN stays a NaN. Kernels that look for maxima, compare or split numbers must not lose one. */
#ifndef TESTS_DEVICE_KERNEL_CASES_NAN_H
#define TESTS_DEVICE_KERNEL_CASES_NAN_H

#include "device/kernel_check.h"

/* Elements first .. first+n-1 are NaN, and no other is. */
static void check_nans(kernel_check *c, const operand *o, int64_t first, int64_t n, const char *what)
{
    const void *raw = check_download(c, o);
    for (int64_t i = 0; i < o->n; i++) {
        bool want = i >= first && i < first + n;
        if (!isnan(dtype_get(o->dtype, raw, i)) == want)
            fail_msg("%s, %s, %s: element %lld of %lld is %s NaN", c->name, fsdp_dtype_name(c->dtype), what,
                     (long long)i, (long long)o->n, want ? "no" : "a");
    }
}

/* Random numbers, of which elements first .. first+n-1 are NaN. */
static operand check_with_nans(kernel_check *c, int64_t numel, int64_t first, int64_t n)
{
    double *values = check_doubles(c, numel);
    for (int64_t i = 0; i < numel; i++)
        values[i] = i >= first && i < first + n ? (i & 1 ? -NAN : NAN) : 2.0 * check_uniform(c) - 1.0;
    return check_operand(c, c->dtype, numel, values);
}

static void case_activation_of_nan(kernel_check *c)
{
    for (int kind = 0; kind < 4; kind++) {
        operand x = check_with_nans(c, 40, 13, 9), y = check_random(c, c->dtype, 40, 1);
        activation_args a = {.kind = (activation_kind)kind, .n = 40, .x = operand_buffer(&x), .y = operand_buffer(&y)};
        CHECK_RUN(c, activation_forward, &a);
        check_nans(c, &y, 13, 9, "y");
        operand gates = check_with_nans(c, 2 * 16, 3, 1), gated = check_random(c, c->dtype, 16, 1);
        gated_args g = {.kind = (activation_kind)kind,
                        .rows = 1,
                        .columns = 16,
                        .x = operand_buffer(&gates),
                        .y = operand_buffer(&gated)};
        CHECK_RUN(c, gated_forward, &g);
        check_nans(c, &gated, 3, 1, "gated");
        check_clear(c);
    }
}

/* One query is NaN, so all its scores are. */
static void attention_of_nan(kernel_check *c, int64_t head_dim, int64_t gap)
{
    enum { LENGTH = 20, HEADS = 2, AT = 11 };
    int64_t width = HEADS * head_dim, row = width + gap;
    operand q = check_with_nans(c, LENGTH * row, AT * row, head_dim);
    operand k = check_random(c, c->dtype, LENGTH * row, 1), v = check_random(c, c->dtype, LENGTH * row, 1);
    operand out = check_random(c, c->dtype, LENGTH * width, 1), lse = check_random(c, FSDP_F32, HEADS * LENGTH, 1);
    attention_args a = {.batch = 1,
                        .q_length = LENGTH,
                        .kv_length = LENGTH,
                        .q_heads = HEADS,
                        .kv_heads = HEADS,
                        .head_dim = head_dim,
                        .scale = 0.25f,
                        .causal = true,
                        .q = operand_buffer(&q),
                        .k = operand_buffer(&k),
                        .v = operand_buffer(&v),
                        .q_row = row,
                        .k_row = row,
                        .v_row = row,
                        .out = operand_buffer(&out),
                        .lse = lse.device};
    a.workspace = check_workspace(c, c->device->kernels->attention_forward_workspace(c->device, &a));
    CHECK_RUN(c, attention_forward, &a);
    check_nans(c, &out, AT * width, head_dim, "out");
    check_nans(c, &lse, AT, 1, "lse");
    check_clear(c);
}

static void case_attention_of_nan(kernel_check *c)
{
    attention_of_nan(c, 16, 0);
    attention_of_nan(c, 16, 3);
    attention_of_nan(c, 64, 0);
    attention_of_nan(c, 64, 8);
    attention_of_nan(c, 7, 1);
}

/* NaN logits beside the label: the loss of that row, and of no other, is one. */
static void cross_entropy_of_nan(kernel_check *c, int64_t vocabulary, int64_t first, int64_t n)
{
    operand logits = check_with_nans(c, vocabulary, first, n), d = check_random(c, c->dtype, vocabulary, 1);
    operand loss = check_random(c, FSDP_F32, 1, 1), count = check_random(c, FSDP_F32, 1, 1);
    int32_t label = (int32_t)(first > 0 ? 0 : vocabulary - 1);
    float seed = 1;
    cross_entropy_args a = {.rows = 1,
                            .vocabulary = vocabulary,
                            .stride = vocabulary,
                            .logits = operand_buffer(&logits),
                            .labels = check_ints(c, &label, 1),
                            .ignore = -100,
                            .loss_sum = loss.device,
                            .count = count.device,
                            .seed = check_upload(c, &seed, sizeof seed),
                            .d_logits = operand_buffer(&d)};
    a.workspace = check_workspace(c, c->device->kernels->cross_entropy_forward_workspace(c->device, &a));
    CHECK_RUN(c, cross_entropy_forward, &a);
    check_nans(c, &loss, 0, 1, "loss");
    check_nans(c, &d, 0, vocabulary, "gradient");
    check_clear(c);
}

static void case_cross_entropy_of_nan(kernel_check *c)
{
    const int64_t sizes[] = {9, 1304, 5003, 40000, 140000};
    for (int i = 0; i < 5; i++) {
        cross_entropy_of_nan(c, sizes[i], 0, 8);
        cross_entropy_of_nan(c, sizes[i], sizes[i] / 2, 1);
        cross_entropy_of_nan(c, sizes[i], sizes[i] - 8, 8);
    }
}

static void case_pool2d_of_nan(kernel_check *c)
{
    for (int at = 0; at < 4; at++) { /* each place of the first window */
        operand x = check_with_nans(c, 16, at / 2 * 4 + at % 2, 1), y = check_random(c, c->dtype, 4, 1);
        pool2d_args a = {.planes = 1,
                         .in_h = 4,
                         .in_w = 4,
                         .out_h = 2,
                         .out_w = 2,
                         .kernel_h = 2,
                         .kernel_w = 2,
                         .stride_h = 2,
                         .stride_w = 2,
                         .x = operand_buffer(&x),
                         .y = operand_buffer(&y),
                         .index = check_random(c, FSDP_F32, 4, 1).device};
        CHECK_RUN(c, pool2d_forward, &a);
        check_nans(c, &y, 0, 1, "y");
        check_clear(c);
    }
}

/* An update of a master kept as halves by a NaN, and NaNs of all kinds split and joined. */
static void case_halves_of_nan(kernel_check *c)
{
    static const uint32_t nans[] = {0x7fffffffu, 0xffffffffu, 0x7fff8000u, 0x7f800001u,
                                    0xff807fffu, 0x7fc00000u, 0x7f80ffffu, 0xffc00000u};
    enum { N = 19, FIRST = 5, NANS = sizeof nans / sizeof *nans };
    if (!c->device->halves)
        return;
    uint32_t bits[N];
    double zeros[N] = {0};
    for (int i = 0; i < N; i++) {
        float value = (float)i - 7.3f;
        memcpy(&bits[i], &value, sizeof value);
        if (i >= FIRST && i < FIRST + NANS)
            bits[i] = nans[i - FIRST];
    }
    operand whole = check_random(c, FSDP_F32, N, 1), high = check_random(c, FSDP_BF16, N, 1),
            low = check_random(c, FSDP_BF16, N, 1), m = check_operand(c, FSDP_F32, N, zeros),
            v = check_operand(c, FSDP_F32, N, zeros), g = check_operand(c, FSDP_F32, N, zeros);
    halves_args a = {.n = N, .whole = check_upload(c, bits, sizeof bits), .high = high.device, .low = low.device};
    assert_int_equal(c->device->halves(c->stream, &a), FSDP_OK);
    check_nans(c, &high, FIRST, NANS, "high halves");
    a.whole = whole.device, a.join = true;
    assert_int_equal(c->device->halves(c->stream, &a), FSDP_OK);
    check_nans(c, &whole, FIRST, NANS, "joined");

    optimizer_scalars numbers = {
        .lr = 0.1f, .eps = 1e-5f, .bias_correction1 = 1, .bias_correction2 = 1, .gradient_scale = NAN};
    optimizer_args step = {.kind = FSDP_ADAMW,
                           .n = N,
                           .gradient = g.device,
                           .moment1 = m.device,
                           .moment2 = v.device,
                           .copy = operand_buffer(&high),
                           .low = low.device,
                           .scalars = check_upload(c, &numbers, sizeof numbers)};
    CHECK_RUN(c, optimizer, &step);
    assert_int_equal(c->device->halves(c->stream, &a), FSDP_OK);
    check_nans(c, &high, 0, N, "copy after an update");
    check_nans(c, &whole, 0, N, "master after an update");
    check_clear(c);
}

#endif
