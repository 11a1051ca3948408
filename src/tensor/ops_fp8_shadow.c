/* A linear layer of a shadow step: it computes in the type of its operands, so that the step runs as without 8 bits,
 * and beside that makes its forward product and its weight's gradient in 8 bits from the same operands. Sums of squares
 * of both results and of their difference, and how many numbers 8 bits could not hold, go to the weight's figures. */
#include "base/checked.h"
#include "tensor/linear.h"

enum { OF_X, OF_WEIGHT, OF_DY };
/* Scales of two operands; the GPU wants them 16 bytes apart. */
enum { SCALE_BYTES = 256, SECOND_SCALE = 4 };

/* Scratch memory of one comparison: d (+)= a b^T with a (m, k) and b (n, k) in 8 bits. The batch's rows are filled up
 * there, forward m and backward k; `rows` are those it has. */
typedef struct comparison {
    int64_t m, n, k, rows;
    size_t scales, a, b, unturned, d,
        rest; /* offsets; unturned: an operand before it is transposed; rest: kernels' own */
} comparison;

static comparison lay_out(int64_t m, int64_t n, int64_t k, int64_t unturned)
{
    comparison s = {.m = m, .n = n, .k = k};
    s.a = s.scales + SCALE_BYTES;
    s.b = s.a + round_up((size_t)(m * k), 256);
    s.unturned = s.b + round_up((size_t)(n * k), 256);
    s.d = s.unturned + round_up((size_t)unturned, 256);
    s.rest = s.d + round_up((size_t)(m * n) * sizeof(float), 256);
    return s;
}

static comparison forward_comparison(const node *n)
{
    const fsdp_tensor *x = n->inputs[LINEAR_X], *w = n->inputs[LINEAR_WEIGHT];
    comparison s = lay_out(fp8_padded_rows(tensor_rows(x)), w->shape[0], w->shape[1], 0);
    s.rows = tensor_rows(x);
    return s;
}

/* The weight's gradient: both operands are transposed, and what they lose is counted before that. */
static comparison backward_comparison(const node *n)
{
    const fsdp_tensor *x = n->inputs[LINEAR_X], *w = n->inputs[LINEAR_WEIGHT];
    int64_t rows = fp8_padded_rows(tensor_rows(x));
    comparison s = lay_out(w->shape[0], w->shape[1], rows, rows * max_i64(w->shape[0], w->shape[1]));
    s.rows = tensor_rows(x);
    return s;
}

static gemm_args in_8_bits(const comparison *s, buffer a, buffer b, buffer d)
{
    return (gemm_args){.transpose_b = true,
                       .m = s->m,
                       .n = s->n,
                       .k = s->k,
                       .alpha = 1,
                       .beta = -1, /* the difference from what is there */
                       .a = a,
                       .b = b,
                       .c = d,
                       .d = d,
                       .lda = s->k,
                       .ldb = s->k,
                       .ldc = s->n,
                       .ldd = s->n,
                       .batch = 1};
}

/* The same product of the operands as they are: forward x (m, k) and weight (n, k); backward dy (k, m) and x (k, n). */
static gemm_args as_they_are(const comparison *s, bool backward, buffer a, buffer b, buffer d)
{
    gemm_args g = in_8_bits(s, a, b, d);
    g.beta = 0;
    *(backward ? &g.k : &g.m) = s->rows;
    if (backward) {
        g.transpose_a = true;
        g.transpose_b = false;
        g.lda = s->m;
        g.ldb = s->n;
    }
    return g;
}

/* Elements of the result, without rows that were filled up. */
static int64_t compared(const comparison *s, bool backward)
{
    return (backward ? s->m : s->rows) * s->n;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static fsdp_dtype gradient_format(const node *n)
{
    return n->inputs[LINEAR_WEIGHT]->parameter->fp8 == FSDP_FP8_E4M3 ? FSDP_E4M3 : FSDP_E5M2;
}

static size_t comparison_bytes(const device *d, const comparison *s, bool backward, fsdp_dtype dtype, fsdp_dtype format)
{
    const kernel_table *k = d->kernels;
    buffer plain = {NULL, dtype}, result = {NULL, FSDP_F32};
    gemm_args wide = as_they_are(s, backward, plain, plain, result),
              narrow = in_8_bits(s, (buffer){NULL, format}, (buffer){NULL, FSDP_E4M3}, result);
    sum_args sum = {.n = compared(s, backward), .x = result, .squared = true};
    size_t products = larger(k->gemm_workspace(d, &wide), k->gemm_workspace(d, &narrow));
    return s->rest + larger(products, k->sum_workspace(d, &sum));
}

static size_t shadow_workspace(const device *d, const node *n, bool backward)
{
    fsdp_dtype dtype = n->inputs[LINEAR_X]->dtype;
    comparison s = backward ? backward_comparison(n) : forward_comparison(n);
    size_t own = backward && !node_wants_grad(n, LINEAR_WEIGHT)
                     ? 0
                     : comparison_bytes(d, &s, backward, dtype, backward ? gradient_format(n) : FSDP_E4M3);
    return larger(own, linear_workspace(d, n, backward));
}

static buffer at(const run_context *c, size_t offset, fsdp_dtype dtype)
{
    return (buffer){(char *)c->workspace + offset, dtype};
}

static fsdp_status squares(const run_context *c, const comparison *s, int64_t n, float *out)
{
    sum_args sum = {.n = n,
                    .alpha = 1,
                    .squared = true,
                    .x = at(c, s->d, FSDP_F32),
                    .out = out,
                    .workspace = (char *)c->workspace + s->rest};
    return c->dev->kernels->sum(c->compute, &sum);
}

/* An operand (rows, columns) into q, and into qt where that is wanted, and what it lost; `room` as fp8_cast_padded's.
 */
static fsdp_status cast(const run_context *c, fp8_cast_args *a, buffer room, uint64_t *lost)
{
    fp8_count_args count = {.n = a->rows * a->columns, .x = a->x, .q = a->q, .scale = a->scale, .counts = lost};
    FSDP_TRY(c->dev->zero(c->compute, a->scale, 2 * sizeof *a->scale));
    FSDP_TRY(fp8_cast_padded(c, a, room));
    if (!lost)
        return FSDP_OK;
    FSDP_TRY(c->dev->zero(c->compute, lost, 2 * sizeof *lost));
    return c->dev->kernels->fp8_count(c->compute, &count);
}

/* Both products, their squares and those of their difference. */
static fsdp_status compare(const run_context *c, const comparison *s, bool backward, gemm_args *wide, gemm_args *narrow,
                           float *whole, float *difference)
{
    int64_t n = compared(s, backward);
    float *scales = at(c, s->scales, FSDP_F32).p;
    wide->workspace = narrow->workspace = (char *)c->workspace + s->rest;
    narrow->scale_a = scales;
    narrow->scale_b = scales + SECOND_SCALE;
    FSDP_TRY(c->dev->kernels->gemm(c->compute, wide));
    FSDP_TRY(squares(c, s, n, whole));
    FSDP_TRY(c->dev->kernels->gemm(c->compute, narrow));
    return squares(c, s, n, difference);
}

static fsdp_status shadow_forward(const run_context *c, const node *n)
{
    fp8_figures *f = n->inputs[LINEAR_WEIGHT]->parameter->figures;
    FSDP_TRY(linear_forward(c, n));
    if (!f || c->phase == PHASE_REPLAY) /* measured in forward */
        return FSDP_OK;
    comparison s = forward_comparison(n);
    buffer x = run_data(c, n->inputs[LINEAR_X]), w = run_data(c, n->inputs[LINEAR_WEIGHT]), d = at(c, s.d, FSDP_F32);
    float *scales = at(c, s.scales, FSDP_F32).p;
    fp8_cast_args of_x = {.rows = s.rows, .columns = s.k, .x = x, .q = at(c, s.a, FSDP_E4M3), .scale = scales};
    fp8_cast_args of_w = {
        .rows = s.n, .columns = s.k, .x = w, .q = at(c, s.b, FSDP_E4M3), .scale = scales + SECOND_SCALE};
    FSDP_TRY(cast(c, &of_x, of_x.q, f->lost[OF_X]));
    FSDP_TRY(cast(c, &of_w, of_w.q, f->lost[OF_WEIGHT]));
    gemm_args wide = as_they_are(&s, false, x, w, d), narrow = in_8_bits(&s, of_x.q, of_w.q, d);
    narrow.fast_sums = true;
    return compare(c, &s, false, &wide, &narrow, &f->output_squares, &f->output_error);
}

static fsdp_status shadow_backward(const run_context *c, const node *n)
{
    fp8_figures *f = n->inputs[LINEAR_WEIGHT]->parameter->figures;
    if (f && node_wants_grad(n, LINEAR_WEIGHT)) { /* before dy may be written over */
        comparison s = backward_comparison(n);
        buffer x = run_data(c, n->inputs[LINEAR_X]), dy = run_output_grad(c, n, 0), d = at(c, s.d, FSDP_F32);
        fsdp_dtype format = gradient_format(n);
        float *scales = at(c, s.scales, FSDP_F32).p;
        fp8_cast_args of_dy = {.rows = s.rows,
                               .columns = s.m,
                               .x = dy,
                               .q = at(c, s.unturned, format),
                               .qt = at(c, s.a, format),
                               .scale = scales};
        fp8_cast_args of_x = {
            .rows = s.rows, .columns = s.n, .x = x, .qt = at(c, s.b, FSDP_E4M3), .scale = scales + SECOND_SCALE};
        FSDP_TRY(cast(c, &of_dy, of_dy.q, f->lost[OF_DY]));
        FSDP_TRY(cast(c, &of_x, at(c, s.unturned, FSDP_E4M3), NULL));
        gemm_args wide = as_they_are(&s, true, dy, x, d), narrow = in_8_bits(&s, of_dy.qt, of_x.qt, d);
        FSDP_TRY(compare(c, &s, true, &wide, &narrow, &f->gradient_squares, &f->gradient_error));
    }
    return linear_backward(c, n);
}

const op_def linear_shadow_op = {.name = "linear_fp8_shadow",
                                 .forward = shadow_forward,
                                 .backward = shadow_backward,
                                 .workspace = shadow_workspace,
                                 .in_place = LINEAR_RESIDUAL + 1,
                                 .pass_through = LINEAR_RESIDUAL + 1};
