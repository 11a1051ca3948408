/* Linear layers in 8 bits: x and weight are rounded to E4M3, y's gradient to E5M2 (or E4M3), each with one scale, taken
 * from its largest magnitude in this very step, so nothing is carried from step to step. The three products then run on
 * the 8-bit tensors. Between forward and backward x is kept rounded and transposed, as the weight's gradient reads it:
 * half of what x takes. In checkpointed regions, and where x is cheap to compute again and memory is wanted, nothing of
 * it is kept: backward rounds it again. A weight comes rounded where it is kept so (parameter.codes); elsewhere forward
 * and backward round it. Norms, gated activations and rotary embedding leave the magnitudes of what they write
 * (op_def.magnitude and scales); others are measured here. */
#include "base/checked.h"
#include "tensor/linear.h"

/* An input beside those of every linear layer: the magnitude of x, where its producer leaves it; or NULL. */
enum { X_MAGNITUDE = LINEAR_INPUTS, INPUTS };
/* Outputs beside y: scales and magnitudes of x, of the weight and of y's gradient; x rounded and transposed (k, rows
 * filled up), kept for the weight's gradient unless x is rounded again there. */
enum { Y, SCALES, X_TURNED, OUTPUTS };
enum { SCALE_OF_X = 0, SCALE_OF_WEIGHT = 4, SCALE_OF_DY = 8, N_SCALES = 12 }; /* the GPU wants them 16 bytes apart */

typedef struct fp8_attributes {
    int64_t rows, n, k;
    fsdp_dtype gradient; /* format of y's gradient */
    bool rounds_again;   /* backward reads x itself */
} fp8_attributes;

/* Multiples that the GPU's products want of every dimension. */
#define DIVISOR 16

/* Whether the layer has such products follows from the weight alone, so that all ranks find the same, whatever their
 * batches: rows are filled up with zeros. */
bool fp8_serves(const fsdp_tensor *weight)
{
    return weight->parameter && weight->parameter->fp8 != FSDP_FP8_OFF && weight->shape[0] % DIVISOR == 0 &&
           weight->shape[1] % DIVISOR == 0;
}

int64_t fp8_padded_rows(int64_t rows)
{
    return ceil_div(rows, DIVISOR) * DIVISOR;
}

/* Rows of the rounded operands. */
static int64_t padded_rows(const fp8_attributes *o)
{
    return fp8_padded_rows(o->rows);
}

static bool is_padded(const fp8_attributes *o)
{
    return padded_rows(o) != o->rows;
}

/* ---- Scratch memory: the rounded operands, then what the product wants ---- */

typedef struct scratch {
    size_t first, second, third, spare, product; /* offsets; spare: of padded rows, results and what is transposed */
} scratch;

static scratch lay_out(int64_t first, int64_t second, int64_t third, int64_t spare)
{
    scratch s = {.first = 0};
    s.second = round_up((size_t)first, 256);
    s.third = s.second + round_up((size_t)second, 256);
    s.spare = s.third + round_up((size_t)third, 256);
    s.product = s.spare + round_up((size_t)spare, 256);
    return s;
}

static int64_t padded_bytes(const fp8_attributes *o, int64_t columns)
{
    return is_padded(o) ? padded_rows(o) * columns * (int64_t)sizeof(float) : 0;
}

static scratch forward_scratch(const fp8_attributes *o)
{
    return lay_out(padded_rows(o) * o->k, o->n * o->k, 0, padded_bytes(o, o->n));
}

static scratch backward_scratch(const fp8_attributes *o)
{
    int64_t rows = padded_rows(o);
    return lay_out(rows * o->n, rows * o->n, /* the third for one product after the other */
                   o->rounds_again ? max_i64(o->n, rows) * o->k : o->n * o->k, padded_bytes(o, o->k));
}

static buffer at(const run_context *c, size_t offset, fsdp_dtype dtype)
{
    return (buffer){c ? (char *)c->workspace + offset : NULL, dtype};
}

/* ---- The products: d (+)= a b^T, a (m, k), b (n, k) ---- */

static gemm_args product(int64_t m, int64_t n, int64_t k, buffer a, buffer b, buffer d, bool add)
{
    return (gemm_args){.transpose_b = true,
                       .m = m,
                       .n = n,
                       .k = k,
                       .alpha = 1,
                       .beta = add,
                       .a = a,
                       .b = b,
                       .c = d,
                       .d = d,
                       .lda = k,
                       .ldb = k,
                       .ldc = n,
                       .ldd = n,
                       .batch = 1};
}

static fsdp_status run_product(const run_context *c, gemm_args *a, const float *scale_a, const float *scale_b,
                               size_t at)
{
    a->scale_a = scale_a;
    a->scale_b = scale_b;
    a->workspace = (char *)c->workspace + at;
    return c->dev->kernels->gemm(c->compute, a);
}

fsdp_status fp8_cast_padded(const run_context *c, fp8_cast_args *a, buffer room)
{
    const kernel_table *k = c->dev->kernels;
    int64_t rows = fp8_padded_rows(a->rows);
    if (rows == a->rows)
        return k->fp8_cast(c->compute, a);
    fp8_cast_args turned = {.rows = rows, .columns = a->columns, .x = a->q.p ? a->q : room, .qt = a->qt};
    a->q = turned.x;
    a->qt.p = NULL;
    FSDP_TRY(k->fp8_cast(c->compute, a));
    FSDP_TRY(
        c->dev->zero(c->compute, (uint8_t *)a->q.p + a->rows * a->columns, (size_t)((rows - a->rows) * a->columns)));
    a->qt = turned.qt;
    return turned.qt.p ? k->fp8_cast(c->compute, &turned) : FSDP_OK;
}

/* A product (rows, columns) of padded operands goes to `spare` first: out = product (+ b). */
static fsdp_status run_padded(const run_context *c, const fp8_attributes *o, gemm_args *a, const float *scale_a,
                              const float *scale_b, const scratch *s)
{
    axpby_args rows = {.n = o->rows * a->n, .alpha = 1, .beta = a->beta, .b = a->c, .out = a->d};
    if (!is_padded(o))
        return run_product(c, a, scale_a, scale_b, s->product);
    a->c = a->d = rows.a = at(c, s->spare, a->d.dtype);
    a->beta = 0;
    FSDP_TRY(run_product(c, a, scale_a, scale_b, s->product));
    if (rows.beta == 0)
        rows.b.p = NULL;
    return c->dev->kernels->axpby(c->compute, &rows);
}

/* Codes are those of a whole group: a member that is used by itself has another scale. */
static bool fp8_reads_codes(const node *n, int i)
{
    const fsdp_tensor *x = n->inputs[i];
    int64_t numel = 0;
    for (const fsdp_parameter *p = x->parameter; p; p = p->group_next)
        numel += p->numel;
    return i == LINEAR_WEIGHT && x->parameter->coded && x->parameter->group_head == x->parameter && x->numel == numel;
}

/* The weight (n, k) in 8 bits, or (k, n) where `turned`: made in `room`, unless it is kept as it is wanted. */
static fsdp_status weight_codes(const run_context *c, const node *n, bool turned, buffer room, buffer *codes,
                                const float **scale)
{
    const fp8_attributes *o = n->attributes;
    const fsdp_parameter *p = n->inputs[LINEAR_WEIGHT]->parameter;
    bool kept = p->codes && fp8_reads_codes(n, LINEAR_WEIGHT);
    float *own = (float *)run_data(c, n->outputs[SCALES]).p + SCALE_OF_WEIGHT;
    fp8_cast_args weight = {.rows = o->n,
                            .columns = o->k,
                            .x = kept ? (buffer){p->codes, FSDP_E4M3} : run_data(c, n->inputs[LINEAR_WEIGHT]),
                            .scale = own,
                            .magnitude = turned ? own + 1 : NULL}; /* forward has measured it */
    *(turned ? &weight.qt : &weight.q) = room;
    *scale = kept ? p->codes_scale : own;
    *codes = kept && !turned ? weight.x : room;
    return kept && !turned ? FSDP_OK : c->dev->kernels->fp8_cast(c->compute, &weight);
}

static fsdp_status fp8_forward(const run_context *c, const node *n)
{
    const fp8_attributes *o = n->attributes;
    scratch s = forward_scratch(o);
    float *scales = run_data(c, n->outputs[SCALES]).p;
    fp8_cast_args x = {.rows = o->rows,
                       .columns = o->k,
                       .x = run_data(c, n->inputs[LINEAR_X]),
                       .q = at(c, s.first, FSDP_E4M3),
                       .scale = scales + SCALE_OF_X,
                       .magnitude = run_data(c, n->inputs[X_MAGNITUDE]).p};
    if (c->with_backward && !o->rounds_again && node_wants_grad(n, LINEAR_WEIGHT))
        x.qt = run_data(c, n->outputs[X_TURNED]);
    buffer weight;
    const float *weight_scale;
    FSDP_TRY(fp8_cast_padded(c, &x, x.q));
    FSDP_TRY(weight_codes(c, n, false, at(c, s.second, FSDP_E4M3), &weight, &weight_scale));
    gemm_args y = product(padded_rows(o), o->n, o->k, x.q, weight, run_data(c, n->outputs[Y]), false);
    if (n->inputs[LINEAR_RESIDUAL]) {
        y.c = run_data(c, n->inputs[LINEAR_RESIDUAL]);
        y.beta = 1;
    }
    y.bias = run_data(c, n->inputs[LINEAR_BIAS]);
    y.fast_sums = true;
    return run_padded(c, o, &y, x.scale, weight_scale, &s);
}

/* x (k, rows) in 8 bits, for the weight's gradient. */
static fsdp_status turned_x(const run_context *c, const node *n, float *scale, buffer room, buffer spare, buffer *out)
{
    const fp8_attributes *o = n->attributes;
    *out = room;
    if (!o->rounds_again) {
        *out = run_data(c, n->outputs[X_TURNED]);
        return FSDP_OK;
    }
    fp8_cast_args x = {.rows = o->rows,
                       .columns = o->k,
                       .x = run_data(c, n->inputs[LINEAR_X]),
                       .qt = room,
                       .scale = scale,
                       .magnitude = scale + 1};
    return fp8_cast_padded(c, &x, spare);
}

static fsdp_status fp8_backward(const run_context *c, const node *n)
{
    const fp8_attributes *o = n->attributes;
    scratch s = backward_scratch(o);
    float *scales = run_data(c, n->outputs[SCALES]).p;
    bool add_x, add_weight;
    buffer dx = run_input_grad(c, n, LINEAR_X, &add_x), dw = run_input_grad(c, n, LINEAR_WEIGHT, &add_weight);
    fp8_cast_args dy = {.rows = o->rows, .columns = o->n, .x = run_output_grad(c, n, Y), .scale = scales + SCALE_OF_DY};
    if (n->outputs[Y]->grad_measured)
        dy.magnitude = dy.scale + 1;
    if (dx.p)
        dy.q = at(c, s.first, o->gradient);
    if (dw.p)
        dy.qt = at(c, s.second, o->gradient);
    if (dx.p || dw.p)
        FSDP_TRY(fp8_cast_padded(c, &dy, at(c, s.first, o->gradient)));
    if (dx.p) {
        buffer weight;
        const float *weight_scale;
        FSDP_TRY(weight_codes(c, n, true, at(c, s.third, FSDP_E4M3), &weight, &weight_scale));
        gemm_args a = product(padded_rows(o), o->k, o->n, dy.q, weight, dx, add_x);
        FSDP_TRY(run_padded(c, o, &a, dy.scale, weight_scale, &s));
    }
    if (dw.p) {
        buffer x;
        FSDP_TRY(turned_x(c, n, scales + SCALE_OF_X, at(c, s.third, FSDP_E4M3), at(c, s.spare, FSDP_E4M3), &x));
        gemm_args a = product(o->n, o->k, padded_rows(o), dy.qt, x, dw, add_weight);
        FSDP_TRY(run_product(c, &a, dy.scale, scales + SCALE_OF_X, s.product));
    }
    return linear_backward_sums(c, n);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

static size_t fp8_workspace(const device *d, const node *n, bool backward)
{
    const fp8_attributes *o = n->attributes;
    const fsdp_parameter *weight = n->inputs[LINEAR_WEIGHT]->parameter;
    buffer x = {NULL, FSDP_E4M3}, dy = {NULL, o->gradient}, y = {NULL, n->outputs[Y]->dtype},
           dw = {NULL, weight->grad_dtype};
    if (!backward) {
        gemm_args a = product(padded_rows(o), o->n, o->k, x, x, y, false);
        return forward_scratch(o).product + d->kernels->gemm_workspace(d, &a);
    }
    gemm_args input = product(padded_rows(o), o->k, o->n, dy, x, y, false),
              own = product(o->n, o->k, padded_rows(o), dy, x, dw, false);
    size_t bytes = node_wants_grad(n, LINEAR_X) ? d->kernels->gemm_workspace(d, &input) : 0;
    if (node_wants_grad(n, LINEAR_WEIGHT))
        bytes = larger(bytes, d->kernels->gemm_workspace(d, &own));
    return larger(backward_scratch(o).product + bytes, linear_sums_workspace(d, n));
}

static const op_def fp8_op = {.name = "linear_fp8",
                              .forward = fp8_forward,
                              .backward = fp8_backward,
                              .workspace = fp8_workspace,
                              .reads_codes = fp8_reads_codes,
                              .in_place = LINEAR_RESIDUAL + 1,
                              .pass_through = LINEAR_RESIDUAL + 1};

/* Not from another checkpointed region: its layer would be computed again before it is needed. */
fsdp_tensor *fp8_gradient_scales(const fsdp_tape *t, const fsdp_tensor *x)
{
    const node *n = x->producer;
    return n && n->op == &fp8_op && x == n->outputs[Y] && x->n_consumers == 0 && n->region == t->region
               ? n->outputs[SCALES]
               : NULL;
}

float *fp8_gradient_magnitude(const run_context *c, const node *n)
{
    int at = n->op->scales - 1;
    return at < n->n_inputs && n->inputs[at] ? (float *)run_data(c, n->inputs[at]).p + SCALE_OF_DY + 1 : NULL;
}

float *fp8_output_magnitude(const run_context *c, const node *n)
{
    int at = n->op->magnitude - 1;
    return at < n->n_outputs ? run_data(c, n->outputs[at]).p : NULL;
}

fsdp_status fp8_measure(const run_context *c, buffer x, int64_t n, float *magnitude)
{
    fp8_cast_args a = {.rows = 1, .columns = n, .x = x, .scale = magnitude - 1}; /* which is not written */
    return c->dev->kernels->fp8_cast(c->compute, &a);
}

/* The magnitude of x, if its producer can leave it: the first layer that reads x asks for it. */
static fsdp_tensor *magnitude_of(fsdp_tape *t, const fsdp_tensor *x)
{
    node *n = x->producer;
    if (!n || n->op->magnitude == 0 || x != n->outputs[0])
        return NULL;
    if (n->n_outputs < n->op->magnitude && !tape_add_output(t, n, tape_maxima(t, 1)))
        return NULL;
    return n->outputs[n->op->magnitude - 1];
}

fsdp_tensor *fp8_linear(fsdp_tape *t, fsdp_tensor *const inputs[LINEAR_INPUTS], fsdp_tensor *y)
{
    const fsdp_tensor *x = inputs[LINEAR_X], *weight = inputs[LINEAR_WEIGHT];
    fp8_attributes o;
    __builtin_memset(&o, 0, sizeof o);
    o.rows = tensor_rows(x);
    o.n = weight->shape[0];
    o.k = weight->shape[1];
    o.gradient = weight->parameter->fp8 == FSDP_FP8_E4M3 ? FSDP_E4M3 : FSDP_E5M2;
    /* Of a layer whose result a checkpointed region keeps, x would be kept as well. */
    o.rounds_again = x->producer && (t->region >= 0 || (t->recompute_cheap && x->producer->op->cheap));
    const int64_t turned[] = {o.k, padded_rows(&o)};
    fsdp_tensor *outputs[OUTPUTS] = {y, tape_maxima(t, N_SCALES), NULL};
    if (!o.rounds_again)
        outputs[X_TURNED] = tape_value(t, FSDP_E4M3, 2, turned);
    if (!outputs[SCALES] || (!o.rounds_again && !outputs[X_TURNED]))
        return NULL;
    fsdp_tensor *all[INPUTS] = {inputs[LINEAR_X], inputs[LINEAR_WEIGHT], inputs[LINEAR_BIAS], inputs[LINEAR_RESIDUAL],
                                magnitude_of(t, x)};
    uint32_t saved = linear_saves(inputs), turned_saved = o.rounds_again ? 0 : (saved >> LINEAR_X & 1) << X_TURNED;
    uint32_t saved_inputs = saved & (o.rounds_again ? 1u << LINEAR_X | 1u << LINEAR_WEIGHT : 1u << LINEAR_WEIGHT);
    return tape_record(t, &fp8_op, INPUTS, all, o.rounds_again ? X_TURNED : OUTPUTS, outputs, &o, sizeof o,
                       saved_inputs, turned_saved | 1u << SCALES)
               ? y
               : NULL;
}
