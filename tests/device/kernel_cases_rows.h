/* Cases: kernels over rows: normalisations, rotary embedding, tables, losses, column sums. */
#ifndef TESTS_DEVICE_KERNEL_CASES_ROWS_H
#define TESTS_DEVICE_KERNEL_CASES_ROWS_H

#include "device/kernel_check.h"

static const int64_t row_shapes[][2] = {{1, 1}, {3, 17}, {17, 3}, {33, 65}, {1, 1500}, {601, 33}};
#define N_ROW_SHAPES (sizeof row_shapes / sizeof row_shapes[0])

static void case_column_sum(kernel_check *c)
{
    for (size_t s = 0; s < 2 * N_ROW_SHAPES; s++) {
        int64_t rows = row_shapes[s / 2][0], columns = row_shapes[s / 2][1];
        operand x = check_random(c, c->dtype, rows * columns, 2), out = check_random(c, c->gradient_dtype, columns, 1);
        double *want = check_doubles(c, columns);
        for (int64_t i = 0; i < x.n; i++)
            want[i % columns] += x.host[i];
        column_sum_args args = {
            .rows = rows, .columns = columns, .x = operand_buffer(&x), .out = operand_buffer(&out), .add = s & 1};
        CHECK_RUN_WITH_WORKSPACE(c, column_sum, &args);
        check_expect(c, &out, want, args.add, "out");
        check_clear(c);
    }
}

/* placed: rows have positions of their own, some of which the tables do not have. */
static void rope_one(kernel_check *c, int64_t length, int64_t heads, int64_t head_dim, int64_t row, bool inverse,
                     bool placed)
{
    int64_t rows = 3 * length, first = 2, half = head_dim / 2, positions = length + first;
    operand x = check_random(c, c->dtype, rows * row, 2);
    double *cosines = check_doubles(c, positions * half), *sines = check_doubles(c, positions * half);
    for (int64_t i = 0; i < positions * half; i++) {
        cosines[i] = cos((double)i);
        sines[i] = sin((double)i);
    }
    operand cosine = check_operand(c, FSDP_F32, positions * half, cosines);
    operand sine = check_operand(c, FSDP_F32, positions * half, sines);
    int32_t *places = check_host(c, (size_t)rows * sizeof(int32_t));
    for (int64_t r = 0; r < rows; r++)
        places[r] = (int32_t)(placed ? (r * 5 + 3) % (positions + 2) - 1 : r % length + first);
    double *want = check_doubles(c, x.n);
    memcpy(want, x.host, (size_t)x.n * sizeof(double));
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < heads * half; i++) {
            int64_t low = r * row + i / half * head_dim + i % half, high = low + half;
            if (places[r] < 0 || places[r] >= positions) {
                want[low] = want[high] = 0;
                continue;
            }
            int64_t at = places[r] * half + i % half;
            double q = inverse ? -sine.host[at] : sine.host[at];
            want[low] = x.host[low] * cosine.host[at] - x.host[high] * q;
            want[high] = x.host[high] * cosine.host[at] + x.host[low] * q;
        }
    }
    rope_args args = {.rows = rows,
                      .length = length,
                      .first_position = first,
                      .heads = heads,
                      .head_dim = head_dim,
                      .row = row,
                      .positions = placed ? check_ints(c, places, rows) : NULL,
                      .n_positions = positions,
                      .x = operand_buffer(&x),
                      .cosine = cosine.device,
                      .sine = sine.device,
                      .inverse = inverse};
    operand largest = check_magnitudes(c, placed ? 0x1p99 : 0);
    args.magnitude = inverse ? (float *)largest.device + 1 : NULL;
    CHECK_RUN(c, rope, &args);
    check_expect(c, &x, want, false, "x");
    if (inverse)
        check_magnitude(c, &x, &largest, 1);
    check_clear(c);
}

static void case_rope(kernel_check *c)
{
    for (int way = 0; way < 4; way++) {
        rope_one(c, 5, 3, 34, 3 * 34 + 5, way & 1, way & 2);
        rope_one(c, 5, 1, 2, 2, way & 1, way & 2);
        rope_one(c, 5, 2, 128, 512, way & 1, way & 2);
    }
    rope_one(c, 2000, 1, 4, 6, true, false); /* more rows than a GPU has blocks for magnitudes */
    rope_one(c, 5, 0, 16, 32, true, false);  /* nothing turns, and the row has its magnitude */
}

static void rmsnorm_one(kernel_check *c, int64_t rows, int64_t columns, int add, double shift)
{
    operand x = check_random(c, c->dtype, rows * columns, 3), w = check_random(c, c->dtype, columns, 2);
    operand y = check_random(c, c->dtype, x.n, 1), rstd = check_random(c, FSDP_F32, rows, 1);
    operand dy = check_random(c, c->dtype, x.n, 2), dx = check_random(c, c->dtype, x.n, 1);
    operand dw = check_random(c, c->gradient_dtype, columns, 1);
    double *y_want = check_doubles(c, x.n), *r_want = check_doubles(c, rows), *dx_want = check_doubles(c, x.n);
    double *dw_want = check_doubles(c, columns), eps = 1e-5;
    for (int64_t r = 0; r < rows; r++) {
        const double *xr = x.host + r * columns, *dyr = dy.host + r * columns;
        double squares = 0.0, dot = 0.0;
        for (int64_t j = 0; j < columns; j++)
            squares += xr[j] * xr[j];
        double k = r_want[r] = 1.0 / sqrt(squares / (double)columns + eps);
        for (int64_t j = 0; j < columns; j++) {
            y_want[r * columns + j] = xr[j] * k * (shift + w.host[j]);
            dw_want[j] += dyr[j] * xr[j] * k;
            dot += dyr[j] * (shift + w.host[j]) * xr[j] * k;
        }
        for (int64_t j = 0; j < columns; j++)
            dx_want[r * columns + j] = k * ((shift + w.host[j]) * dyr[j] - xr[j] * k * dot / (double)columns);
    }
    rmsnorm_args args = {.rows = rows,
                         .columns = columns,
                         .eps = (float)eps,
                         .shift = (float)shift,
                         .x = operand_buffer(&x),
                         .weight = operand_buffer(&w),
                         .y = operand_buffer(&y),
                         .rstd = rstd.device,
                         .dy = operand_buffer(&dy),
                         .dx = operand_buffer(&dx),
                         .d_weight = operand_buffer(&dw),
                         .add_dx = add & 1,
                         .add_weight = add & 2};
    operand largest = check_magnitudes(c, add == 3 ? 0x1p99 : 0);
    args.magnitude = add != 2 ? largest.device : NULL;
    CHECK_RUN(c, rmsnorm_forward, &args);
    args.magnitude = add != 2 ? (float *)largest.device + 1 : NULL;
    CHECK_RUN_WITH_WORKSPACE(c, rmsnorm_backward, &args);
    if (args.magnitude) {
        check_magnitude(c, &y, &largest, 0);
        check_magnitude(c, &dx, &largest, 1);
    }
    check_expect(c, &y, y_want, false, "y");
    check_expect(c, &rstd, r_want, false, "rstd");
    check_expect(c, &dx, dx_want, args.add_dx, "dx");
    check_expect(c, &dw, dw_want, args.add_weight, "d_weight");
    check_clear(c);
}

static void case_rmsnorm(kernel_check *c)
{
    for (size_t s = 0; s < 4 * N_ROW_SHAPES; s++)
        rmsnorm_one(c, row_shapes[s / 4][0], row_shapes[s / 4][1], (int)(s % 4), 0);
}

static void case_rmsnorm_plus_one(kernel_check *c)
{
    for (size_t s = 0; s < N_ROW_SHAPES; s++)
        rmsnorm_one(c, row_shapes[s][0], row_shapes[s][1], (int)(s % 4), 1);
}

static void layernorm_one(kernel_check *c, int64_t rows, int64_t columns, int add)
{
    operand x = check_random(c, c->dtype, rows * columns, 3), w = check_random(c, c->dtype, columns, 2);
    operand b = check_random(c, c->dtype, columns, 2), y = check_random(c, c->dtype, x.n, 1);
    operand mean = check_random(c, FSDP_F32, rows, 1), rstd = check_random(c, FSDP_F32, rows, 1);
    operand dy = check_random(c, c->dtype, x.n, 2), dx = check_random(c, c->dtype, x.n, 1);
    operand dw = check_random(c, c->gradient_dtype, columns, 1), db = check_random(c, c->gradient_dtype, columns, 1);
    double *y_want = check_doubles(c, x.n), *dx_want = check_doubles(c, x.n), eps = 1e-2, n = (double)columns;
    double *dw_want = check_doubles(c, columns), *db_want = check_doubles(c, columns);
    for (int64_t r = 0; r < rows; r++) {
        const double *xr = x.host + r * columns, *dyr = dy.host + r * columns;
        double m = 0.0, variance = 0.0, sum = 0.0, dot = 0.0;
        for (int64_t j = 0; j < columns; j++)
            m += xr[j] / n;
        for (int64_t j = 0; j < columns; j++)
            variance += (xr[j] - m) * (xr[j] - m) / n;
        double k = 1.0 / sqrt(variance + eps);
        for (int64_t j = 0; j < columns; j++) {
            double hat = (xr[j] - m) * k;
            y_want[r * columns + j] = hat * w.host[j] + b.host[j];
            dw_want[j] += dyr[j] * hat;
            db_want[j] += dyr[j];
            sum += dyr[j] * w.host[j];
            dot += dyr[j] * w.host[j] * hat;
        }
        for (int64_t j = 0; j < columns; j++)
            dx_want[r * columns + j] = k * (w.host[j] * dyr[j] - sum / n - (xr[j] - m) * k * dot / n);
    }
    layernorm_args args = {.rows = rows,
                           .columns = columns,
                           .eps = (float)eps,
                           .x = operand_buffer(&x),
                           .weight = operand_buffer(&w),
                           .bias = operand_buffer(&b),
                           .y = operand_buffer(&y),
                           .mean = mean.device,
                           .rstd = rstd.device,
                           .dy = operand_buffer(&dy),
                           .dx = operand_buffer(&dx),
                           .d_weight = operand_buffer(&dw),
                           .d_bias = operand_buffer(&db),
                           .add_dx = add & 1,
                           .add_weight = add & 2,
                           .add_bias = !(add & 2)};
    operand largest = check_magnitudes(c, add == 3 ? 0x1p99 : 0);
    args.magnitude = add != 2 ? largest.device : NULL;
    CHECK_RUN(c, layernorm_forward, &args);
    args.magnitude = add != 2 ? (float *)largest.device + 1 : NULL;
    CHECK_RUN_WITH_WORKSPACE(c, layernorm_backward, &args);
    if (args.magnitude) {
        check_magnitude(c, &y, &largest, 0);
        check_magnitude(c, &dx, &largest, 1);
    }
    check_expect(c, &y, y_want, false, "y");
    check_expect(c, &dx, dx_want, args.add_dx, "dx");
    check_expect(c, &dw, dw_want, args.add_weight, "d_weight");
    check_expect(c, &db, db_want, args.add_bias, "d_bias");
    check_clear(c);
}

static void case_layernorm(kernel_check *c)
{
    for (size_t s = 0; s < 4 * N_ROW_SHAPES; s++)
        layernorm_one(c, row_shapes[s / 4][0], row_shapes[s / 4][1], (int)(s % 4));
}

/* Some ids come often, some never, two lie outside the table. */
static void embedding_one(kernel_check *c, int64_t rows, int64_t columns, int64_t vocabulary, bool add)
{
    int32_t *ids = check_host(c, (size_t)rows * sizeof *ids);
    for (int64_t i = 0; i < rows; i++)
        ids[i] = (int32_t)((double)vocabulary * check_uniform(c) * check_uniform(c));
    if (rows > 2) {
        ids[0] = -1;
        ids[2] = (int32_t)vocabulary;
    }
    operand table = check_random(c, c->dtype, vocabulary * columns, 2),
            y = check_random(c, c->dtype, rows * columns, 1);
    operand dy = check_random(c, c->dtype, rows * columns, 2);
    operand d_table = check_random(c, c->gradient_dtype, table.n, 1);
    double *want = check_doubles(c, y.n), *d_want = check_doubles(c, table.n);
    bool padded = vocabulary == 7; /* small: the row is used often */
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns && ids[i] >= 0 && ids[i] < vocabulary; j++) {
            want[i * columns + j] = table.host[ids[i] * columns + j];
            if (!padded || ids[i] != 1)
                d_want[ids[i] * columns + j] += dy.host[i * columns + j];
        }
    }
    embedding_args args = {.rows = rows,
                           .columns = columns,
                           .vocabulary = vocabulary,
                           .has_padding = padded,
                           .padding = 1,
                           .ids = check_ints(c, ids, rows),
                           .table = operand_buffer(&table),
                           .y = operand_buffer(&y),
                           .dy = operand_buffer(&dy),
                           .d_table = operand_buffer(&d_table),
                           .add_table = add};
    CHECK_RUN(c, embedding_forward, &args);
    CHECK_RUN_WITH_WORKSPACE(c, embedding_backward, &args);
    check_exact(c, &y, want, "y");
    check_expect(c, &d_table, d_want, add, "d_table");
    check_clear(c);
}

static void case_embedding(kernel_check *c)
{
    for (int add = 0; add < 2; add++) {
        embedding_one(c, 1, 1, 1, add);
        embedding_one(c, 17, 33, 7, add);
        embedding_one(c, 301, 65, 999, add);
        embedding_one(c, 3, 1030, 5, add);
        embedding_one(c, 1500, 9, 7, add);
        embedding_one(c, 2500, 17, 60, add);
    }
}

/* Rows of x and d are `stride` apart. What lies between them may come out as anything: NAN in d. */
static void cross_entropy_reference(const operand *x, int64_t rows, int64_t vocabulary, int64_t stride,
                                    const int32_t *labels, int32_t ignore, double seed, double *loss, double *count,
                                    double *d)
{
    *loss = *count = 0.0;
    for (int64_t r = 0; r < rows; r++) {
        const double *row = x->host + r * stride;
        for (int64_t j = vocabulary; j < stride; j++)
            d[r * stride + j] = NAN;
        double top = -INFINITY, sum = 0.0;
        if (labels[r] == ignore)
            continue;
        for (int64_t j = 0; j < vocabulary; j++)
            top = row[j] > top ? row[j] : top;
        for (int64_t j = 0; j < vocabulary; j++)
            sum += exp(row[j] - top);
        *loss += top + log(sum) - row[labels[r]];
        *count += 1.0;
        for (int64_t j = 0; j < vocabulary; j++)
            d[r * stride + j] = (exp(row[j] - top) / sum - (j == labels[r])) * seed;
    }
}

/* Random rows of x, `stride` apart, with NaN between them: nobody may read it. */
static operand rows_apart(kernel_check *c, int64_t rows, int64_t columns, int64_t stride, double scale)
{
    operand x = check_random(c, c->dtype, rows * stride, scale);
    for (int64_t i = 0; i < x.n; i++)
        if (i % stride >= columns)
            x.host[i] = NAN;
    return stride == columns ? x : check_operand(c, c->dtype, x.n, x.host);
}

static void cross_entropy_strided(kernel_check *c, int64_t rows, int64_t vocabulary, int64_t stride, double scale,
                                  bool add)
{
    if (check_leaves_out(c, 8 * rows * stride))
        return;
    int32_t *labels = check_host(c, (size_t)rows * sizeof *labels), ignore = -100;
    for (int64_t i = 0; i < rows; i++)
        labels[i] = i % 4 == 1 ? ignore : (int32_t)((double)vocabulary * check_uniform(c));
    operand x = rows_apart(c, rows, vocabulary, stride, scale), dx = check_random(c, c->dtype, x.n, 1);
    operand loss = check_random(c, FSDP_F32, 1, 1), seed = check_random(c, FSDP_F32, 1, 1);
    operand count = check_operand(c, FSDP_F32, 1, &(double){5.0});
    double loss_want, count_want, *d_want = check_doubles(c, x.n);
    cross_entropy_reference(&x, rows, vocabulary, stride, labels, ignore, seed.host[0], &loss_want, &count_want,
                            d_want);
    cross_entropy_args args = {.rows = rows,
                               .vocabulary = vocabulary,
                               .stride = stride,
                               .logits = operand_buffer(&x),
                               .labels = check_ints(c, labels, rows),
                               .ignore = ignore,
                               .loss_sum = loss.device,
                               .count = count.device,
                               .add_loss = add,
                               .seed = seed.device};
    CHECK_RUN_WITH_WORKSPACE(c, cross_entropy_forward, &args);
    check_expect(c, &loss, &loss_want, add, "loss");
    check_expect(c, &count, &count_want, add, "count");
    args.d_logits = operand_buffer(&dx);
    args.add_logits = add;
    CHECK_RUN(c, cross_entropy_backward, &args);
    check_expect(c, &dx, d_want, add, "d_logits");
    args.d_logits = args.logits;
    args.add_logits = args.add_loss = false;
    CHECK_RUN_WITH_WORKSPACE(c, cross_entropy_forward, &args);
    check_expect(c, &loss, &loss_want, false, "loss with gradient");
    check_expect(c, &x, d_want, false, "d_logits over logits");
    check_clear(c);
}

static void cross_entropy_one(kernel_check *c, int64_t rows, int64_t vocabulary, double scale, bool add)
{
    cross_entropy_strided(c, rows, vocabulary, vocabulary, scale, add);
}

/* Few values, so that many are equal; here and there a NaN, an infinity, and labels that are no class. */
static void count_right_one(kernel_check *c, int64_t rows, int64_t vocabulary, int64_t stride, bool add)
{
    int32_t *labels = check_host(c, (size_t)rows * sizeof *labels), ignore = -100;
    double *values = check_doubles(c, rows * stride), want = 0;
    for (int64_t r = 0; r < rows; r++) {
        double *row = values + r * stride;
        for (int64_t j = vocabulary; j < stride; j++)
            row[j] = INFINITY; /* the highest, were it read */
        for (int64_t j = 0; j < vocabulary; j++) {
            double u = check_uniform(c);
            row[j] = u < 0.001 ? NAN : u < 0.002 ? -INFINITY : floor(4 * u);
        }
        int64_t best = 0;
        for (int64_t j = 1; j < vocabulary; j++)
            best = !isnan(row[best]) && (isnan(row[j]) || row[j] > row[best]) ? j : best;
        labels[r] = r % 3 == 0 ? (int32_t)best : (int32_t)((double)vocabulary * check_uniform(c));
        bool right = labels[r] == best && !isnan(row[best]);
        if (r % 7 == 5)
            labels[r] = r % 2 ? ignore : (int32_t)vocabulary;
        want += right && r % 7 != 5;
    }
    operand x = check_operand(c, c->dtype, rows * stride, values);
    operand right = check_operand(c, FSDP_F32, 1, &(double){5.0});
    count_right_args args = {.rows = rows,
                             .vocabulary = vocabulary,
                             .stride = stride,
                             .logits = operand_buffer(&x),
                             .labels = check_ints(c, labels, rows),
                             .ignore = ignore,
                             .right = right.device,
                             .add = add};
    CHECK_RUN(c, count_right, &args);
    check_expect(c, &right, &want, add, "right");
    check_clear(c);
}

static void case_count_right(kernel_check *c)
{
    for (int add = 0; add < 2; add++) {
        count_right_one(c, 1, 1, 1, add);
        count_right_one(c, 40, 3, 3, add);
        count_right_one(c, 50, 17, 24, add);
        count_right_one(c, 33, 2057, 2057, add);
    }
}

static void case_cross_entropy(kernel_check *c)
{
    for (int add = 0; add < 2; add++) {
        cross_entropy_one(c, 1, 1, 2, add);
        cross_entropy_one(c, 3, 17, 4, add);
        cross_entropy_one(c, 17, 3, 10, add);
        cross_entropy_one(c, 33, 2057, 8, add);
        for (int64_t vocabulary = 33; vocabulary <= 40; vocabulary++)
            cross_entropy_strided(c, 5, vocabulary, 64, 4, add);
        cross_entropy_strided(c, 3, 2057, 2059, 8, add);
    }
}

/* An error at once, or a count that is no number. */
static void outside_label_one(kernel_check *c, int64_t vocabulary, int32_t label, bool gradient)
{
    int32_t labels[] = {0, -100, label, (int32_t)vocabulary - 1};
    operand x = check_random(c, c->dtype, 4 * vocabulary, 1), loss = check_random(c, FSDP_F32, 1, 1);
    operand seed = check_random(c, FSDP_F32, 1, 1), count = check_operand(c, FSDP_F32, 1, &(double){5.0});
    cross_entropy_args args = {.rows = 4,
                               .vocabulary = vocabulary,
                               .stride = vocabulary,
                               .logits = operand_buffer(&x),
                               .labels = check_ints(c, labels, 4),
                               .ignore = -100,
                               .loss_sum = loss.device,
                               .count = count.device,
                               .add_loss = gradient,
                               .seed = seed.device};
    if (gradient)
        args.d_logits = args.logits;
    args.workspace = check_workspace(c, c->device->kernels->cross_entropy_forward_workspace(c->device, &args));
    fsdp_status status = c->device->kernels->cross_entropy_forward(c->stream, &args);
    const float *counted = check_download(c, &count);
    if (status != FSDP_ERR_INPUT && !(status == FSDP_OK && isnan(*counted)))
        fail_msg("label %d of %lld tokens is %s, with a count of %g", label, (long long)vocabulary,
                 fsdp_status_name(status), (double)*counted);
    check_clear(c);
}

static void case_cross_entropy_of_labels_outside(kernel_check *c)
{
    const int64_t vocabularies[] = {17, 4096, 32000};
    for (int i = 0; i < 3; i++) {
        if (check_leaves_out(c, 32 * vocabularies[i]))
            continue;
        for (int gradient = 0; gradient < 2; gradient++) {
            outside_label_one(c, vocabularies[i], (int32_t)vocabularies[i], gradient);
            outside_label_one(c, vocabularies[i], -1, gradient);
            outside_label_one(c, vocabularies[i], INT32_MAX, gradient);
        }
    }
}

static void case_cross_entropy_of_extreme_logits(kernel_check *c)
{
    cross_entropy_one(c, 5, 1300, 3e4, false);
    cross_entropy_one(c, 5, 7, 1e-3, true);
}

#endif
