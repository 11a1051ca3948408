/* Cases: the optimizer step, several in a row, against the textbook update in double precision; and what leads up to
 * it: the sum of norms and the clip factor. */
#ifndef TESTS_DEVICE_KERNEL_CASES_OPTIMIZER_H
#define TESTS_DEVICE_KERNEL_CASES_OPTIMIZER_H

#include "device/halves.h"
#include "device/kernel_check.h"

typedef struct optimizer_state {
    double *p, *m, *v, *average;
} optimizer_state;

static void optimizer_reference(const optimizer_args *a, const optimizer_scalars *h, const double *gradient,
                                optimizer_state *s)
{
    double decay = a->grouped ? (double)a->weight_decay : a->decay ? (double)h->weight_decay : 0.0;
    double lr = (double)h->lr * (a->grouped ? (double)a->lr_factor : 1.0);
    for (int64_t i = 0; i < a->n; i++) {
        double g = gradient[i] * (double)h->gradient_scale;
        if (a->kind == FSDP_ADAMW)
            s->p[i] *= 1.0 - lr * decay;
        else
            g += decay * s->p[i];
        if (a->kind == FSDP_SGD) {
            if (h->momentum != 0.0f)
                g = s->m[i] = h->bias_correction1 == 1.0f ? g : (double)h->momentum * s->m[i] + g;
            s->p[i] -= lr * g;
        } else {
            s->m[i] = (double)h->beta1 * s->m[i] + (1.0 - (double)h->beta1) * g;
            s->v[i] = (double)h->beta2 * s->v[i] + (1.0 - (double)h->beta2) * g * g;
            double root = sqrt(s->v[i] / (double)h->bias_correction2) + (double)h->eps;
            s->p[i] -= lr * (s->m[i] / (double)h->bias_correction1) / root;
        }
        s->average[i] = (double)h->average_decay * s->average[i] + (1.0 - (double)h->average_decay) * s->p[i];
    }
}

static void optimizer_one(kernel_check *c, fsdp_optimizer_kind kind, int64_t n, bool decay, float momentum)
{
    operand p = check_random(c, FSDP_F32, n, 1), copy = check_random(c, c->dtype, n, 1);
    double *zeros = check_doubles(c, n);
    operand m = check_operand(c, FSDP_F32, n, zeros), v = check_operand(c, FSDP_F32, n, zeros);
    operand average = check_operand(c, FSDP_F32, n, zeros);
    optimizer_state s = {check_doubles(c, n), check_doubles(c, n), check_doubles(c, n), check_doubles(c, n)};
    memcpy(s.p, p.host, (size_t)n * sizeof(double));
    optimizer_args a = {.kind = kind,
                        .n = n,
                        .decay = decay,
                        .grouped = n % 3 == 0 && decay,
                        .lr_factor = 0.25f,
                        .weight_decay = 0.5f,
                        .parameter = p.device,
                        .moment1 = m.device,
                        .moment2 = v.device,
                        .average = average.device,
                        .copy = operand_buffer(&copy)};
    double none = 0, above_all = 1e6;
    for (int step = 1; step <= 3; step++) {
        operand g = check_random(c, FSDP_F32, n, 2), largest = check_operand(c, FSDP_F32, 1, &none);
        optimizer_scalars h = {.lr = 1e-2f,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .eps = 1e-5f,
                               .weight_decay = 0.1f,
                               .momentum = momentum,
                               .bias_correction1 = (float)(1.0 - pow(0.9, step)),
                               .bias_correction2 = (float)(1.0 - pow(0.95, step)),
                               .gradient_scale = 0.5f,
                               .average_decay = step == 1 ? 0.0f : 0.9f};
        if (kind == FSDP_SGD)
            h.bias_correction1 = step == 1 ? 1.0f : 0.5f;
        a.gradient = g.device;
        optimizer_reference(&a, &h, g.host, &s);
        a.scalars = check_upload(c, &h, sizeof h);
        a.magnitude = decay ? largest.device : NULL;
        CHECK_RUN(c, optimizer, &a);
        if (decay)
            check_magnitude(c, &copy, &largest, 0);
        h.skip = 1;
        a.scalars = check_upload(c, &h, sizeof h);
        largest = check_operand(c, FSDP_F32, 1, &none);
        a.magnitude = decay ? largest.device : NULL;
        CHECK_RUN(c, optimizer, &a); /* must change nothing */
        if (decay)
            check_magnitude(c, &copy, &largest, 0);
        largest = check_operand(c, FSDP_F32, 1, &above_all);
        a.magnitude = decay ? largest.device : NULL;
        CHECK_RUN(c, optimizer, &a);
        check_expect(c, &largest, &above_all, false, "a larger magnitude that was there");
    }
    check_expect(c, &p, s.p, false, "parameter");
    check_expect(c, &copy, s.p, false, "copy");
    check_expect(c, &m, s.m, false, "moment1");
    check_expect(c, &v, s.v, false, "moment2");
    check_expect(c, &average, s.average, false, "average");
    check_clear(c);
}

static void case_optimizer(kernel_check *c)
{
    const int64_t sizes[] = {1, 3, 17, 1023, 1025, 20011};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (int decay = 0; decay < 2; decay++) {
            optimizer_one(c, FSDP_ADAMW, sizes[i], decay, 0.0f);
            optimizer_one(c, FSDP_ADAM, sizes[i], decay, 0.0f);
            optimizer_one(c, FSDP_SGD, sizes[i], decay, 0.0f);
            optimizer_one(c, FSDP_SGD, sizes[i], decay, 0.9f);
        }
    }
}

/* Copies that are rounded as high halves: among random numbers lie ties of either sign and a number that rounds to
 * infinity. A step of rate 0 leaves the masters as they are. Large ranges go past the caches. */
static void case_optimizer_copies_as_halves(kernel_check *c)
{
    static const uint32_t special[] = {0x3f808000u, 0x3f818000u, 0xbf808000u, 0xbf818000u,
                                       0x7f7fffffu, 0x00008000u, 0x80018000u, 0x3f807fffu};
    enum { SPECIAL = sizeof special / sizeof *special };
    const int64_t sizes[] = {1, 13, 4099, ((int64_t)4 << 20) + 77};
    const optimizer_scalars numbers = {.bias_correction1 = 1, .gradient_scale = 1};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int64_t n = sizes[k];
        uint32_t *bits = (uint32_t *)(void *)check_doubles(c, n);
        uint16_t *got = (uint16_t *)(void *)check_doubles(c, n);
        operand copy = check_random(c, FSDP_BF16, n, 1), g = check_random(c, FSDP_F32, n, 1);
        for (int64_t i = 0; i < n; i++)
            bits[i] = i % 3 ? special[i % SPECIAL] : 0x3e000000u + (uint32_t)i * 40503u % 0x2000000u;
        optimizer_args a = {.kind = FSDP_SGD,
                            .n = n,
                            .parameter = check_upload(c, bits, (size_t)n * sizeof *bits),
                            .gradient = g.device,
                            .copy = operand_buffer(&copy),
                            .copy_half = true,
                            .scalars = check_upload(c, &numbers, sizeof numbers)};
        CHECK_RUN(c, optimizer, &a);
        assert_int_equal(c->device->copy(c->stream, got, copy.device, (size_t)n * sizeof *got), FSDP_OK);
        assert_int_equal(c->device->stream_synchronize(c->stream), FSDP_OK);
        for (int64_t i = 0; i < n; i++) {
            uint32_t low, high = halves_split(bits[i], &low);
            if (got[i] != high)
                fail_msg("element %lld of %lld: %08x became %04x instead of %04x", (long long)i, (long long)n, bits[i],
                         got[i], high);
        }
        check_clear(c);
    }
}

/* Muon's two passes over its ranges: the direction from the gradient, and the update by a direction. */
static void muon_one(kernel_check *c, int64_t n, bool decay)
{
    operand p = check_random(c, FSDP_F32, n, 1), copy = check_random(c, c->dtype, n, 1);
    double *zeros = check_doubles(c, n), *want = check_doubles(c, n), *moment = check_doubles(c, n);
    double *parameter = check_doubles(c, n);
    operand m = check_operand(c, FSDP_F32, n, zeros), direction = check_operand(c, FSDP_BF16, n, zeros);
    memcpy(parameter, p.host, (size_t)n * sizeof(double));
    for (int step = 1; step <= 3; step++) {
        operand g = check_random(c, FSDP_F32, n, 2), given = check_random(c, FSDP_BF16, n, 1);
        optimizer_scalars h = {.lr = 1e-2f, .weight_decay = 0.1f, .momentum = 0.9f, .gradient_scale = 0.5f};
        muon_direction_args a = {.n = n, .gradient = g.device, .moment = m.device, .direction = direction.device};
        optimizer_args o = {.kind = FSDP_MUON,
                            .n = n,
                            .decay = decay,
                            .grouped = n % 3 == 0,
                            .lr_factor = 0.25f,
                            .weight_decay = 0.5f,
                            .parameter = p.device,
                            .copy = operand_buffer(&copy),
                            .direction = given.device,
                            .direction_scale = 1.5f};
        double lr = 1e-2 * (o.grouped ? 0.25 : 1), rate = o.grouped ? 0.5 : decay ? 0.1 : 0;
        for (int64_t i = 0; i < n; i++) {
            moment[i] = 0.9 * moment[i] + 0.1 * 0.5 * g.host[i];
            want[i] = 0.9 * moment[i] + 0.1 * 0.5 * g.host[i];
            parameter[i] = parameter[i] * (1 - lr * rate) - lr * 1.5 * given.host[i];
        }
        for (int skip = 0; skip < 2; skip++) { /* the second must change nothing */
            h.skip = (uint32_t)skip;
            a.scalars = o.scalars = check_upload(c, &h, sizeof h);
            CHECK_RUN(c, muon_direction, &a);
            CHECK_RUN(c, optimizer, &o);
        }
    }
    check_expect(c, &m, moment, false, "moment");
    check_expect(c, &direction, want, false, "direction");
    check_expect(c, &p, parameter, false, "parameter");
    check_expect(c, &copy, parameter, false, "copy");
    check_clear(c);
}

static void case_muon(kernel_check *c)
{
    const int64_t sizes[] = {1, 3, 17, 1023, 1025, 20011};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int decay = 0; decay < 2; decay++)
            muon_one(c, sizes[i], decay);
}

/* Adafactor over a parameter of `matrices` (rows, columns), or a vector where rows is 0, that lies in two parts. */
static void adafactor_one(kernel_check *c, int64_t matrices, int64_t rows, int64_t columns)
{
    int64_t n_rows = matrices * rows, n_columns = rows ? matrices * columns : 0, n = rows ? n_rows * columns : columns;
    double *zeros = check_doubles(c, 2 * n + 8), total = 0, squares[2] = {0, 0}, *want = check_doubles(c, n);
    double *row = check_doubles(c, n_rows + 1), *column = check_doubles(c, n_columns + 1), beta = 0.75, scale = 0.5;
    operand p = check_random(c, FSDP_F32, n, 1), g = check_random(c, FSDP_F32, n, 2);
    operand row_sums = check_operand(c, FSDP_F64, 2 * n_rows + 1, zeros);
    operand column_sums = check_operand(c, FSDP_F64, 2 * n_columns + 1, zeros);
    operand sums = check_operand(c, FSDP_F64, 4, zeros), rate = check_operand(c, FSDP_F32, 2, zeros);
    operand row_means = check_operand(c, FSDP_F32, n_rows + 1, zeros), moments = check_operand(c, FSDP_F32, n, zeros);
    operand column_means = check_operand(c, FSDP_F32, n_columns + 1, zeros);
    operand row_factors = check_operand(c, FSDP_F32, n_rows + 1, zeros);
    operand column_factors = check_operand(c, FSDP_F32, n_columns + 1, zeros);
    for (int64_t i = 0; i < n; i++)
        total += g.host[i] * g.host[i];
    optimizer_scalars h = {.beta2 = (float)beta, .gradient_scale = (float)scale};
    const optimizer_scalars *scalars = check_upload(c, &h, sizeof h);
    const double *all = check_upload(c, &total, sizeof total);
    for (int pass = 0; pass < 2; pass++) {
        for (int half = 0; half < 2; half++) {
            int64_t cut = n * 2 / 5, first = half ? cut : 0;
            adafactor_part a = {.n = half ? n - cut : cut,
                                .first = first,
                                .rows = rows,
                                .columns = rows ? columns : 0,
                                .n_rows = n_rows,
                                .n_columns = n_columns,
                                .gradient = (float *)g.device + first,
                                .parameter = (const float *)p.device + first,
                                .moment2 = (float *)moments.device + first,
                                .row_sums = row_sums.device,
                                .column_sums = column_sums.device,
                                .weight_squares = sums.device,
                                .update_squares = (double *)sums.device + 2,
                                .row_factors = row_factors.device,
                                .column_factors = column_factors.device,
                                .total = all,
                                .scalars = scalars};
            if (pass == 0)
                CHECK_RUN(c, adafactor_sums, &a);
            else
                CHECK_RUN(c, adafactor_update, &a);
        }
        adafactor_factors_args f = {.matrices = matrices,
                                    .rows = rows,
                                    .columns = columns,
                                    .row_sums = row_sums.device,
                                    .column_sums = column_sums.device,
                                    .row_means = row_means.device,
                                    .column_means = column_means.device,
                                    .row_factors = row_factors.device,
                                    .column_factors = column_factors.device,
                                    .scalars = scalars};
        if (pass == 0 && rows > 0)
            CHECK_RUN(c, adafactor_factors, &f);
    }
    adafactor_rate_args r = {.numel = n,
                             .weight_squares = sums.device,
                             .update_squares = (double *)sums.device + 2,
                             .scale = true,
                             .clip = 0.5f,
                             .rate = rate.device};
    CHECK_RUN(c, adafactor_rate, &r);
    for (int64_t i = 0; i < n && rows > 0; i++) {
        double square = (1 - beta) * scale * scale * g.host[i] * g.host[i];
        row[i / columns] += square / (double)columns;
        column[i / (rows * columns) * columns + i % columns] += square / (double)rows;
    }
    for (int64_t i = 0; i < n; i++) {
        double mean = 0, square = (1 - beta) * scale * scale * g.host[i] * g.host[i], matrix = 0;
        if (rows > 0) {
            matrix = (double)(i / (rows * columns));
            for (int64_t k = 0; k < rows; k++)
                mean += row[(int64_t)matrix * rows + k] / (double)rows;
            square = row[i / columns] / mean * column[(int64_t)matrix * columns + i % columns];
        }
        want[i] = g.host[i] * scale / sqrt(square);
        squares[0] += p.host[i] * p.host[i] / (double)n;
        squares[1] += want[i] * want[i] / (double)n;
    }
    check_expect(c, &g, want, false, "update");
    if (rows > 0) {
        check_expect(c, &row_means, row, false, "means of rows");
        check_expect(c, &column_means, column, false, "means of columns");
    }
    check_expect(c, &rate, (const double[]){fmax(1e-3, sqrt(squares[0])), 1 / fmax(1, sqrt(squares[1]) / 0.5)}, false,
                 "rate");
    check_clear(c);
}

static void case_adafactor(kernel_check *c)
{
    adafactor_one(c, 1, 0, 1);
    adafactor_one(c, 1, 0, 1025);
    adafactor_one(c, 1, 1, 1);
    adafactor_one(c, 1, 3, 5);
    adafactor_one(c, 1, 65, 129);
    adafactor_one(c, 1, 130, 67);
    adafactor_one(c, 35, 3, 3);
    adafactor_one(c, 4, 17, 300);
}

/* a and b are anything: below the diagonal stands what they give, above it the mirror. */
static void symmetric_group(kernel_check *c, const int64_t (*sizes)[2], int n_items, float beta, float gamma)
{
    symmetric_args all = {.n_items = n_items, .alpha = 0.5f, .beta = beta, .gamma = gamma};
    operand d[SYMMETRIC_ITEMS];
    double *want[SYMMETRIC_ITEMS];
    for (int q = 0; q < n_items; q++) {
        int64_t n = sizes[q][0], k = sizes[q][1];
        operand a = check_random(c, FSDP_BF16, n * k, 1), b = check_random(c, FSDP_BF16, n * k, 1);
        operand added = check_random(c, FSDP_BF16, n * n, 1);
        d[q] = check_random(c, FSDP_BF16, n * n, 1);
        want[q] = check_doubles(c, n * n);
        for (int64_t i = 0; i < n; i++) {
            for (int64_t j = 0; j <= i; j++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++)
                    sum += a.host[i * k + l] * b.host[j * k + l];
                want[q][i * n + j] = want[q][j * n + i] =
                    0.5 * sum + (double)beta * added.host[i * n + j] + (i == j ? (double)gamma : 0);
            }
        }
        all.items[q] =
            (symmetric_item){.n = n, .k = k, .a = a.device, .b = b.device, .c = added.device, .d = d[q].device};
    }
    CHECK_RUN_WITH_WORKSPACE(c, symmetric, &all);
    for (int q = 0; q < n_items; q++)
        check_expect(c, &d[q], want[q], false, "symmetric product");
    check_clear(c);
}

static void case_symmetric(kernel_check *c)
{
    const int64_t even[][2] = {{8, 8},    {64, 64}, {136, 72}, {264, 200}, {392, 128},
                               {72, 520}, {256, 8}, {304, 64}}; /* of the kind that Hopper's kernel takes */
    const int64_t odd[][2] = {{1, 1}, {13, 7}, {65, 130}, {200, 33}};
    if (c->dtype != FSDP_BF16 || check_leaves_out(c, 30000000))
        return;
    symmetric_group(c, even, 8, 0, 0);
    symmetric_group(c, even, 8, -1.5f, 3);
    symmetric_group(c, even + 4, 1, 0, 2);
    symmetric_group(c, odd, 4, 0, 0);
    symmetric_group(c, odd, 4, 0.5f, -2);
}

static void normalize_one(kernel_check *c, int64_t rows, int64_t columns, double squares)
{
    for (int transpose = 0; transpose < 2; transpose++) {
        operand x = check_random(c, c->dtype, rows * columns, 1), out = check_random(c, c->dtype, x.n, 1);
        double *want = check_doubles(c, x.n);
        for (int64_t j = 0; j < x.n; j++)
            want[transpose ? j % columns * rows + j / columns : j] = x.host[j] / fmax(sqrt(squares), 0.25);
        normalize_args a = {.rows = rows,
                            .columns = columns,
                            .transpose = transpose,
                            .x = operand_buffer(&x),
                            .out = operand_buffer(&out),
                            .squares = check_upload(c, &squares, sizeof squares),
                            .least = 0.25f};
        CHECK_RUN(c, normalize, &a);
        check_expect(c, &out, want, false, "normalized");
        check_clear(c);
    }
}

static void case_normalize(kernel_check *c)
{
    const int64_t shapes[][2] = {{1, 1}, {1, 7}, {32, 32}, {25, 41}, {184, 104}, {1, 20011}};
    const double squares[] = {4.0, 1e-20, 0.0};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int k = 0; k < 3; k++)
            normalize_one(c, shapes[i][0], shapes[i][1], squares[k]);
}

/* 16-bit moments, from values that they have exactly: the parameter is updated with what was computed; what is kept is
 * one of the two bf16 numbers beside it, and on average it is what was computed. `element`: where the range begins. */
typedef struct half_case {
    fsdp_optimizer_kind kind;
    int64_t n;
    uint64_t element;
    fsdp_dtype gradient;
} half_case;

static optimizer_scalars half_scalars(const half_case *h)
{
    return (optimizer_scalars){.lr = 1e-2f,
                               .beta1 = 0.9f,
                               .beta2 = 0.999f,
                               .eps = 1e-5f,
                               .weight_decay = 0.1f,
                               .momentum = 0.9f,
                               .bias_correction1 = 0.5f,
                               .bias_correction2 = h->kind == FSDP_SGD ? 1.0f : 0.25f,
                               .gradient_scale = 0.5f,
                               .average_decay = 0.9f,
                               .step = 7};
}

/* In one piece (cut 0), or cut in two with the second part's place said. */
static void half_run(kernel_check *c, optimizer_args a, int64_t cut, const operand *p, const operand *g,
                     const operand *m, const operand *v)
{
    int64_t n = a.n;
    for (int64_t first = 0, end = cut ? cut : n; first < n; first = end, end = n) {
        a.n = end - first;
        a.element += first ? (uint64_t)cut : 0;
        a.parameter = (float *)p->device + first;
        a.gradient = (char *)g->device + (size_t)first * fsdp_dtype_size(g->dtype);
        a.moment1 = (uint16_t *)m->device + first;
        a.moment2 = (uint16_t *)v->device + first;
        CHECK_RUN(c, optimizer, &a);
    }
}

static void half_expect(kernel_check *c, const operand *o, const double *want, const char *what)
{
    const uint16_t *got = check_download(c, o);
    double bias = 0;
    for (int64_t i = 0; i < o->n; i++) {
        double gap = ldexp(1, ilogb(fmax(fabs(want[i]), 0x1p-126)) - 7), off = bf16_value(got[i]) - want[i];
        if (!(fabs(off) <= gap * 1.001 + 1e-7)) /* the sum of two terms in fp32 may be off by more than its gap */
            fail_msg("%s of %s, element %lld of %lld: %.9g is not beside %.9g", what, c->name, (long long)i,
                     (long long)o->n, bf16_value(got[i]), want[i]);
        bias += fmax(-1, fmin(1, off / gap));
    }
    /* One rounding deviates by at most half a gap: five deviations of the mean. Rounding down would be at -0.5. */
    if (fabs(bias) / (double)o->n > 5 * 0.5 / sqrt((double)o->n))
        fail_msg("%s of %s: %lld roundings are off by %g gaps on average", what, c->name, (long long)o->n,
                 bias / (double)o->n);
}

static void optimizer_half_one(kernel_check *c, const half_case *h)
{
    int64_t n = h->n;
    operand start = check_random(c, FSDP_F32, n, 1), g = check_random(c, h->gradient, n, 2);
    operand m = check_random(c, FSDP_BF16, n, 0.1), roots = check_random(c, FSDP_F32, n, 0.3);
    double *squares = check_doubles(c, n);
    for (int64_t i = 0; i < n; i++)
        squares[i] = roots.host[i] * roots.host[i];
    operand v = check_operand(c, FSDP_BF16, n, squares);
    operand p2 = check_operand(c, FSDP_F32, n, start.host), m2 = check_operand(c, FSDP_BF16, n, m.host),
            v2 = check_operand(c, FSDP_BF16, n, v.host);
    optimizer_state s = {check_doubles(c, n), check_doubles(c, n), check_doubles(c, n), check_doubles(c, n)};
    memcpy(s.p, start.host, (size_t)n * sizeof(double));
    memcpy(s.m, m.host, (size_t)n * sizeof(double));
    memcpy(s.v, v.host, (size_t)n * sizeof(double));
    optimizer_scalars numbers = half_scalars(h);
    optimizer_args a = {.kind = h->kind,
                        .n = n,
                        .decay = true,
                        .gradient_dtype = h->gradient,
                        .moment_dtype = FSDP_BF16,
                        .key = {17, 23},
                        .element = h->element,
                        .scalars = check_upload(c, &numbers, sizeof numbers)};
    optimizer_reference(&a, &numbers, g.host, &s);
    half_run(c, a, 0, &start, &g, &m, &v);
    half_run(c, a, n / 3, &p2, &g, &m2, &v2);
    check_expect(c, &start, s.p, false, "parameter");
    half_expect(c, &m, s.m, "moment1");
    if (h->kind != FSDP_SGD)
        half_expect(c, &v, s.v, "moment2");
    assert_memory_equal(check_download(c, &m), check_download(c, &m2), (size_t)n * sizeof(uint16_t));
    assert_memory_equal(check_download(c, &v), check_download(c, &v2), (size_t)n * sizeof(uint16_t));
    assert_memory_equal(check_download(c, &start), check_download(c, &p2), (size_t)n * sizeof(float));
    check_clear(c);
}

static void case_optimizer_halves(kernel_check *c)
{
    const fsdp_optimizer_kind kinds[] = {FSDP_ADAMW, FSDP_ADAM, FSDP_SGD};
    const int64_t sizes[] = {1, 3, 17, 1023, 1025, 20011};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
            const half_case cases[] = {{kinds[k], sizes[i], 0, FSDP_F32},
                                       {kinds[k], sizes[i], ((uint64_t)1 << 34) + 64, FSDP_BF16},
                                       {kinds[k], sizes[i], 4099, FSDP_F32},
                                       {kinds[k], sizes[i], 2 * 65536 - 770, FSDP_BF16}};
            for (size_t j = 0; j < sizeof cases / sizeof cases[0]; j++)
                optimizer_half_one(c, &cases[j]);
        }
    }
}

static void case_sum_f64(kernel_check *c)
{
    const int64_t sizes[] = {0, 1, 7, 8, 1025, 9001};
    for (int i = 0; i < 12; i++) {
        operand x = check_random(c, FSDP_F64, sizes[i / 2], 1), out = check_random(c, FSDP_F64, 1, 1);
        double want = 0.0;
        for (int64_t j = 0; j < x.n; j++)
            want += x.host[j];
        sum_f64_args args = {.n = x.n, .x = x.device, .out = out.device, .add = i & 1};
        CHECK_RUN(c, sum_f64, &args);
        check_expect(c, &out, &want, args.add, "sum");
        check_clear(c);
    }
}

static void case_loss_total(kernel_check *c)
{
    for (int add = 0; add < 2; add++) {
        operand loss = check_random(c, FSDP_F32, 1, 9), count = check_random(c, FSDP_F32, 1, 9);
        operand totals = check_random(c, FSDP_F64, 2, 1);
        loss_total_args args = {.loss_sum = loss.device, .count = count.device, .totals = totals.device, .add = add};
        CHECK_RUN(c, loss_total, &args);
        check_expect(c, &totals, (const double[]){loss.host[0], count.host[0]}, add, "totals");
        check_clear(c);
    }
}

static void clip_one(kernel_check *c, const double totals[3], double divisor, float max_norm, bool skip)
{
    optimizer_scalars before = {.lr = 0.25f, .beta1 = 0.5f, .gradient_scale = -1.0f, .skip = 7}, after;
    double unscale = 1.0 / 1024.0, factor = unscale / (divisor > 0 ? divisor : totals[2]),
           norm = sqrt(totals[0]) * factor;
    operand report = check_random(c, FSDP_F32, 4, 1);
    optimizer_scalars *numbers = check_upload(c, &before, sizeof before);
    clip_args args = {.totals = check_upload(c, totals, 3 * sizeof(double)),
                      .unscale = unscale,
                      .divisor = divisor,
                      .max_norm = max_norm,
                      .report = report.device,
                      .scalars = numbers};
    CHECK_RUN(c, clip, &args);
    assert_int_equal(c->device->copy(c->stream, &after, numbers, sizeof after), FSDP_OK);
    assert_int_equal(c->device->stream_synchronize(c->stream), FSDP_OK);
    assert_int_equal(after.skip, skip);
    assert_true(after.lr == 0.25f && after.beta1 == 0.5f);
    if (skip)
        return;
    double limit = max_norm > 0 ? fmin(1.0, (double)max_norm / (norm + 1e-6)) : 1.0;
    assert_true(fabs((double)after.gradient_scale - factor * limit) <= 1e-6 * factor);
    const double want[] = {norm, totals[1] / totals[2], totals[2], 0.0};
    check_expect(c, &report, want, false, "report");
}

static void case_clip(kernel_check *c)
{
    clip_one(c, (const double[]){4e10, 6e3, 2048}, 0.0, 0.0f, false);
    clip_one(c, (const double[]){4e10, 6e3, 2048}, 0.0, 0.05f, false);
    clip_one(c, (const double[]){4e10, 6e3, 2048}, 0.0, 50.0f, false);
    clip_one(c, (const double[]){4e10, 6e3, 2048}, 3e3, 0.05f, false);
    clip_one(c, (const double[]){INFINITY, 6e3, 2048}, 0.0, 1.0f, true);
    clip_one(c, (const double[]){NAN, 6e3, 2048}, 0.0, 1.0f, true);
    clip_one(c, (const double[]){0.0, 0.0, 0.0}, 0.0, 1.0f, true);
    clip_one(c, (const double[]){0.0, 0.0, 0.0}, 8.0, 1.0f, true);
    check_clear(c);
}

#endif
