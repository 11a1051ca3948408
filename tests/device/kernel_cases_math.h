/* Cases: functions of one element, arithmetic with strides, reductions, softmax, elements by index. */
#ifndef TESTS_DEVICE_KERNEL_CASES_MATH_H
#define TESTS_DEVICE_KERNEL_CASES_MATH_H

#include "device/kernel_check.h"

static double map_reference(map_kind kind, double power, double x, double *slope)
{
    double s = 1 / (1 + exp(-x));
    switch (kind) {
    case MAP_EXP:
        *slope = exp(x);
        return exp(x);
    case MAP_LOG:
        *slope = 1 / x;
        return log(x);
    case MAP_SQRT:
        *slope = 0.5 / sqrt(x);
        return sqrt(x);
    case MAP_SIGMOID:
        *slope = s * (1 - s);
        return s;
    case MAP_TANH:
        *slope = 1 - tanh(x) * tanh(x);
        return tanh(x);
    case MAP_SOFTPLUS:
        *slope = s;
        return x > 30 ? x : log1p(exp(x));
    default:
        *slope = power * pow(x, power - 1);
        return pow(x, power);
    }
}

static void case_map(kernel_check *c)
{
    const float powers[] = {2.0f, -0.5f, 3.5f};
    for (int i = 0; i < 3 * MAP_COUNT; i++) {
        map_kind kind = (map_kind)(i / 3);
        int64_t n = odd_sizes[(size_t)i % N_ODD_SIZES];
        bool positive = kind == MAP_LOG || kind == MAP_SQRT || kind == MAP_POWER;
        operand x = check_random(c, c->dtype, n, 4), y = check_random(c, c->dtype, n, 1),
                dy = check_random(c, c->dtype, n, 1), dx = check_random(c, c->dtype, n, 1);
        double *values = check_doubles(c, n), *want = check_doubles(c, n), *gradient = check_doubles(c, n);
        for (int64_t j = 0; j < n; j++)
            values[j] = positive ? fabs(x.host[j]) + 0.5 : x.host[j];
        x = check_operand(c, c->dtype, n, values);
        for (int64_t j = 0; j < n; j++) {
            double slope;
            want[j] = map_reference(kind, (double)powers[i % 3], x.host[j], &slope);
            gradient[j] = slope * dy.host[j];
        }
        map_args args = {.kind = kind,
                         .power = powers[i % 3],
                         .n = n,
                         .x = operand_buffer(&x),
                         .y = operand_buffer(&y),
                         .dy = operand_buffer(&dy),
                         .dx = operand_buffer(&dx),
                         .add_dx = i & 1};
        CHECK_RUN(c, map_forward, &args);
        check_expect(c, &y, want, false, "y");
        CHECK_RUN(c, map_backward, &args);
        check_expect(c, &dx, gradient, args.add_dx, "dx");
        check_clear(c);
    }
}

/* Offset of element `index` of (3, 5, width) in an operand that is repeated along the dimensions in `repeats`. */
static int64_t repeated_at(int64_t index, const int64_t *shape, int repeats, int64_t *stride)
{
    int64_t at = 0, next = 1;
    for (int d = 2; d >= 0; d--) {
        bool repeated = repeats >> d & 1;
        stride[d] = repeated ? 0 : next;
        at += index % shape[d] * stride[d];
        index /= shape[d];
        next *= repeated ? 1 : shape[d];
    }
    return at;
}

static void case_combine(kernel_check *c)
{
    for (int i = 0; i < 48; i++) {
        combine_kind kind = (combine_kind)(i % 6);
        int repeats_a = i / 6, repeats_b = (i * 5 + 3) & 7, repeats_c = (i * 3) & 7;
        combine_args args = {.kind = kind, .n_dims = 3, .shape = {3, 5, i % 7 == 0 ? 1500 : 33}, .add = i & 1};
        int64_t n = 15 * args.shape[2];
        operand a = check_random(c, c->dtype, n, 2), b = check_random(c, c->dtype, n, 2), out;
        int32_t *mask = check_host(c, (size_t)n * sizeof *mask);
        double *divisor = check_doubles(c, n), *want = check_doubles(c, n);
        for (int64_t j = 0; j < n; j++) {
            divisor[j] = b.host[j] + (b.host[j] < 0 ? -1 : 1);
            mask[j] = (int32_t)(check_uniform(c) * 3) - 1;
        }
        b = check_operand(c, c->dtype, n, divisor);
        operand third = check_operand(c, c->dtype, n, divisor);
        out = check_random(c, c->gradient_dtype, n, 1);
        for (int64_t j = 0; j < n; j++) {
            double x = a.host[repeated_at(j, args.shape, repeats_a, args.a_stride)],
                   y = b.host[repeated_at(j, args.shape, repeats_b, args.b_stride)];
            int64_t at = repeated_at(j, args.shape, repeats_c, args.c_stride);
            const double results[] = {x + y, x - y, x * y, x / y, -x * y / third.host[at], mask[at] != 0 ? x : y};
            want[j] = results[kind];
        }
        args.a = operand_buffer(&a);
        args.b = operand_buffer(&b);
        args.c = kind == COMBINE_SELECT ? (buffer){check_ints(c, mask, n), FSDP_I32} : operand_buffer(&third);
        args.out = operand_buffer(&out);
        CHECK_RUN(c, combine, &args);
        check_expect(c, &out, want, args.add, "out");
        check_clear(c);
    }
}

/* x (kept_a, reduced_a, kept_b, reduced_b): kept and reduced dimensions alternate. */
static void reduce_one_case(kernel_check *c, fsdp_reduction kind, const int64_t *shape, bool add)
{
    int64_t n = shape[0] * shape[1] * shape[2] * shape[3], kept = shape[0] * shape[2], reduced = shape[1] * shape[3];
    operand x = check_random(c, c->dtype, n, 2), y = check_random(c, c->gradient_dtype, kept, 1),
            dy = check_random(c, c->dtype, kept, 1), dx = check_random(c, c->gradient_dtype, n, 1);
    double *want = check_doubles(c, kept), *gradient = check_doubles(c, n);
    int32_t *index = check_host(c, (size_t)kept * sizeof *index);
    reduce_dims_args args = {.kind = kind,
                             .n_kept = 2,
                             .n_reduced = 2,
                             .kept = {shape[0], shape[2]},
                             .kept_stride = {shape[1] * shape[2] * shape[3], shape[3]},
                             .reduced = {shape[1], shape[3]},
                             .reduced_stride = {shape[2] * shape[3], 1},
                             .alpha = 0.25f,
                             .x = operand_buffer(&x),
                             .y = operand_buffer(&y),
                             .add = add,
                             .dy = operand_buffer(&dy),
                             .dx = operand_buffer(&dx)};
    for (int64_t k = 0; k < kept; k++) {
        int64_t base = k / shape[2] * args.kept_stride[0] + k % shape[2] * args.kept_stride[1];
        double best = 0;
        for (int64_t r = 0; r < reduced; r++) {
            int64_t at = base + r / shape[3] * args.reduced_stride[0] + r % shape[3];
            double value = x.host[at];
            want[k] += 0.25 * value;
            if (r == 0 || (kind == FSDP_REDUCE_MAX ? value > best : value < best)) {
                best = value;
                index[k] = (int32_t)r;
            }
        }
        want[k] = kind == FSDP_REDUCE_SUM ? want[k] : best;
        for (int64_t r = 0; r < reduced; r++)
            gradient[base + r / shape[3] * args.reduced_stride[0] + r % shape[3]] = kind == FSDP_REDUCE_SUM
                                                                                        ? 0.25 * dy.host[k]
                                                                                    : r == index[k] ? dy.host[k]
                                                                                                    : 0;
    }
    args.index = kind == FSDP_REDUCE_SUM ? NULL : check_ints(c, index, kept);
    CHECK_RUN(c, reduce, &args);
    check_expect(c, &y, want, add, "y");
    CHECK_RUN(c, reduce_backward, &args);
    check_expect(c, &dx, gradient, add, "dx");
    check_clear(c);
}

static void case_reduce(kernel_check *c)
{
    const int64_t shapes[][4] = {{3, 5, 7, 9}, {1, 1, 1, 1}, {2, 1, 1, 5000}, {1, 300, 5, 1}, {17, 1, 33, 2}};
    for (int i = 0; i < 30; i++)
        reduce_one_case(c, (fsdp_reduction)(i % 3), shapes[i / 6], i % 6 >= 3);
}

static void case_softmax(kernel_check *c)
{
    const int64_t columns[] = {1, 3, 33, 1025, 20011};
    for (int i = 0; i < 20; i++) {
        int64_t rows = i % 3 + 1, n_columns = columns[i / 4], n = rows * n_columns;
        softmax_args args = {.rows = rows, .columns = n_columns, .logarithm = i & 1, .add_dx = i & 2};
        operand x = check_random(c, c->dtype, n, 20), y = check_random(c, c->dtype, n, 1),
                dy = check_random(c, c->dtype, n, 1), dx = check_random(c, c->dtype, n, 1);
        double *want = check_doubles(c, n), *gradient = check_doubles(c, n);
        for (int64_t r = 0; r < rows; r++) {
            double sum = 0, product = 0, highest = -INFINITY;
            for (int64_t j = 0; j < n_columns; j++)
                highest = fmax(highest, x.host[r * n_columns + j]);
            for (int64_t j = 0; j < n_columns; j++)
                sum += exp(x.host[r * n_columns + j] - highest);
            for (int64_t j = r * n_columns; j < (r + 1) * n_columns; j++)
                want[j] = args.logarithm ? x.host[j] - highest - log(sum) : exp(x.host[j] - highest) / sum;
            operand kept = check_operand(c, c->dtype, n_columns, want + r * n_columns); /* y as it is stored */
            for (int64_t j = 0; j < n_columns; j++)
                product += dy.host[r * n_columns + j] * (args.logarithm ? 1 : kept.host[j]);
            for (int64_t j = 0; j < n_columns; j++)
                gradient[r * n_columns + j] = args.logarithm ? dy.host[r * n_columns + j] - exp(kept.host[j]) * product
                                                             : kept.host[j] * (dy.host[r * n_columns + j] - product);
        }
        args.x = operand_buffer(&x);
        args.y = operand_buffer(&y);
        args.dy = operand_buffer(&dy);
        args.dx = operand_buffer(&dx);
        CHECK_RUN(c, softmax_forward, &args);
        check_expect(c, &y, want, false, "y");
        operand exact = check_operand(c, c->dtype, n, want);
        args.y = operand_buffer(&exact);
        CHECK_RUN(c, softmax_backward, &args);
        check_expect(c, &dx, gradient, args.add_dx, "dx");
        check_clear(c);
    }
}

static void case_gather(kernel_check *c)
{
    for (int i = 0; i < 8; i++) {
        gather_args args = {.outer = i % 3 + 1, .n = 7, .inner = i & 4 ? 33 : 1, .count = 11, .per_element = i & 1};
        int64_t n = args.outer * args.n * args.inner, m = args.outer * args.count * args.inner;
        operand x = check_random(c, c->dtype, n, 2), y = check_random(c, c->dtype, m, 1),
                dy = check_random(c, FSDP_F32, m, 1), dx = check_random(c, FSDP_F32, n, 1);
        int32_t *index = check_host(c, (size_t)m * sizeof *index);
        double *want = check_doubles(c, m), *gradient = check_doubles(c, n);
        for (int64_t j = 0; j < m; j++)
            index[j] = (int32_t)(check_uniform(c) * 9) - 1; /* -1 and 7 are outside */
        for (int64_t j = 0; j < m; j++) {
            int64_t o = j / (args.count * args.inner), k = j / args.inner % args.count;
            int64_t from = index[args.per_element ? j : k], at = (o * args.n + from) * args.inner + j % args.inner;
            bool inside = from >= 0 && from < args.n;
            want[j] = inside ? x.host[at] : 0;
            if (inside)
                gradient[at] += dy.host[j];
        }
        args.index = check_ints(c, index, args.per_element ? m : args.count);
        args.x = operand_buffer(&x);
        args.y = operand_buffer(&y);
        args.dy = operand_buffer(&dy);
        args.dx = operand_buffer(&dx);
        args.add_dx = i & 2;
        CHECK_RUN(c, gather_forward, &args);
        check_exact(c, &y, want, "y");
        CHECK_RUN(c, gather_backward, &args);
        check_expect(c, &dx, gradient, args.add_dx, "dx");
        check_clear(c);
    }
}

static void case_one_hot(kernel_check *c)
{
    const int32_t ids[] = {0, 4, -100, 2, 7, -1};
    operand y = check_random(c, c->dtype, 30, 1);
    double *want = check_doubles(c, 30);
    for (int64_t i = 0; i < 30; i++)
        want[i] = ids[i / 5] == -100 ? 0 : i % 5 == ids[i / 5] ? 0.75 : 0.0625;
    one_hot_args args = {.rows = 6,
                         .classes = 5,
                         .ids = check_ints(c, ids, 6),
                         .ignore = -100,
                         .on = 0.75f,
                         .off = 0.0625f,
                         .y = operand_buffer(&y)};
    CHECK_RUN(c, one_hot, &args);
    check_exact(c, &y, want, "y");
    check_clear(c);
}

/* A number of part k: among ordinary ones some that cancel, that only a sum in fp32 keeps, that are tiny, infinite or
 * no numbers. */
static double part_value(kernel_check *c, int k, int64_t i)
{
    double x = 2.0 * check_uniform(c) - 1.0;
    switch (i % 41) {
    case 3:
        return k % 2 ? -30000 - x : 30000;
    case 5:
        return k ? ldexp(x, -7) : 200; /* lost one by one where the sum has 8 bits */
    case 11:
        return ldexp(x, -20);
    case 17:
        return k == 1 ? INFINITY : x;
    case 23:
        return k == 2 ? NAN : x;
    default:
        return x;
    }
}

typedef struct parts_case {
    int64_t n, stride, shift; /* shift: elements by which own part and result are out of line */
    int n_parts, own;
    fsdp_dtype to;
    bool add, in_place;
} parts_case;

static void sum_parts_once(kernel_check *c, const parts_case *k)
{
    double *all = check_doubles(c, k->n_parts * k->stride + k->shift), *mine = check_doubles(c, k->n + k->shift),
           *exact = check_doubles(c, k->n + k->shift), *near = check_doubles(c, k->n + k->shift);
    operand out = check_random(c, k->to, k->n + k->shift, 1);
    for (int part = 0; part < k->n_parts; part++)
        for (int64_t i = 0; i < k->n; i++) {
            double x = part_value(c, part, i);
            if (part == k->own)
                mine[k->shift + i] = x;
            else
                all[(part - (part > k->own)) * k->stride + i] = x;
        }
    operand own = check_operand(c, c->dtype, k->n + k->shift, mine),
            parts = check_operand(c, c->dtype, (k->n_parts - 1) * k->stride, all);
    const operand *before = k->in_place ? &own : &out;
    for (int64_t i = 0; i < k->n + k->shift; i++) {
        float sum = 0;
        double wide = 0;
        for (int part = 0; i >= k->shift && part < k->n_parts; part++) {
            double x = part == k->own ? own.host[i] : parts.host[(part - (part > k->own)) * k->stride + i - k->shift];
            sum = part ? sum + (float)x : (float)x;
            wide += x;
        }
        sum = k->add && i >= k->shift ? (float)before->host[i] + sum : i < k->shift ? (float)before->host[i] : sum;
        double rounded;
        dtype_put(k->to, &rounded, 0, (double)sum);
        exact[i] = dtype_get(k->to, &rounded, 0);
        near[i] = i < k->shift ? NAN : wide + (k->add ? before->host[i] : 0);
    }
    size_t shift = (size_t)k->shift;
    sum_parts_args a = {.n = k->n,
                        .n_parts = k->n_parts,
                        .own = k->own,
                        .parts = operand_buffer(&parts),
                        .stride = k->stride,
                        .mine = {(char *)own.device + shift * fsdp_dtype_size(c->dtype), c->dtype},
                        .out = {(char *)out.device + shift * fsdp_dtype_size(k->to), k->to},
                        .add = k->add};
    if (k->in_place)
        a.out = a.mine;
    CHECK_RUN(c, sum_parts, &a);
    check_exact(c, before, exact, "sum in order");
    check_expect(c, before, near, false, "sum");
    check_clear(c);
}

static void case_sum_parts(kernel_check *c)
{
    const int64_t sizes[] = {0, 1, 7, 8, 1024, 9001};
    const int n_parts[] = {2, 1, 3, 8, 17, 64};
    for (int i = 0; i < 96; i++) { /* bits above the sizes: result like the parts, added, out of line, in place */
        parts_case k = {.n = sizes[i % 6], .n_parts = n_parts[i / 6 % 6], .shift = i / 24 % 2};
        k.own = i % k.n_parts;
        k.stride = k.shift ? k.n + 3 : (k.n + 7) / 8 * 8;
        k.add = i / 12 % 2;
        k.in_place = i / 48 % 2 && !k.add;
        k.to = i / 6 % 2 || k.in_place ? c->dtype : c->gradient_dtype;
        if (!check_leaves_out(c, k.n * k.n_parts))
            sum_parts_once(c, &k);
    }
}

#endif
