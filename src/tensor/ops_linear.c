/* Matrix products: linear layers (with bias, with a residual added in the same product) and batched matmul. */
#include <fsdp/ops.h>

#include "tensor/linear.h"

typedef struct linear_attributes {
    int64_t inputs, outputs;
    int64_t input_major; /* the weight is stored (k, n) */
    int64_t first;       /* column of y where the product begins */
    int64_t columns;     /* of y; those outside of the product are the residual's */
} linear_attributes;

/* Where the product's columns begin in (a gradient of) y. */
static buffer at_columns(const linear_attributes *o, buffer y)
{
    if (y.p)
        y.p = (uint8_t *)y.p + (size_t)o->first * fsdp_dtype_size(y.dtype);
    return y;
}

static gemm_args forward_product(const run_context *c, const node *n)
{
    const fsdp_tensor *x = n->inputs[LINEAR_X], *w = n->inputs[LINEAR_WEIGHT], *y = n->outputs[0];
    const linear_attributes *o = n->attributes;
    gemm_args a = {.transpose_b = !o->input_major,
                   .m = tensor_rows(x),
                   .n = o->outputs,
                   .k = o->inputs,
                   .alpha = 1,
                   .beta = n->inputs[LINEAR_RESIDUAL] ? 1 : 0,
                   .lda = o->inputs,
                   .ldb = w->shape[1],
                   .ldc = o->columns,
                   .ldd = o->columns,
                   .batch = 1};
    a.a.dtype = a.b.dtype = x->dtype;
    a.c.dtype = a.d.dtype = y->dtype;
    if (c) {
        a.a = run_data(c, x);
        a.b = run_data(c, w);
        a.d = at_columns(o, run_data(c, y));
        a.c = n->inputs[LINEAR_RESIDUAL] ? at_columns(o, run_data(c, n->inputs[LINEAR_RESIDUAL])) : a.d;
        a.bias = run_data(c, n->inputs[LINEAR_BIAS]);
        a.workspace = c->workspace;
    }
    return a;
}

/* dx (+)= dy w: (rows, k) */
static gemm_args input_product(const node *n, buffer dy, buffer weight, buffer dx, bool add)
{
    const linear_attributes *o = n->attributes;
    return (gemm_args){.transpose_b = o->input_major,
                       .m = tensor_rows(n->inputs[LINEAR_X]),
                       .n = o->inputs,
                       .k = o->outputs,
                       .alpha = 1,
                       .beta = add,
                       .a = at_columns(o, dy),
                       .b = weight,
                       .c = dx,
                       .d = dx,
                       .lda = o->columns,
                       .ldb = n->inputs[LINEAR_WEIGHT]->shape[1],
                       .ldc = o->inputs,
                       .ldd = o->inputs,
                       .batch = 1};
}

/* dw (+)= dy^T x: (n, k), or x^T dy: (k, n) */
static gemm_args weight_product(const node *n, buffer dy, buffer x, buffer dw, bool add)
{
    const linear_attributes *o = n->attributes;
    int64_t rows = o->input_major ? o->inputs : o->outputs, columns = o->input_major ? o->outputs : o->inputs;
    dy = at_columns(o, dy);
    return (gemm_args){.transpose_a = true,
                       .m = rows,
                       .n = columns,
                       .k = tensor_rows(n->inputs[LINEAR_X]),
                       .alpha = 1,
                       .beta = add,
                       .a = o->input_major ? x : dy,
                       .b = o->input_major ? dy : x,
                       .c = dw,
                       .d = dw,
                       .lda = o->input_major ? o->inputs : o->columns,
                       .ldb = o->input_major ? o->columns : o->inputs,
                       .ldc = columns,
                       .ldd = columns,
                       .batch = 1};
}

static column_sum_args bias_sum(const node *n, buffer dy, buffer db, bool add)
{
    return (column_sum_args){
        .rows = tensor_rows(n->outputs[0]), .columns = tensor_columns(n->outputs[0]), .x = dy, .out = db, .add = add};
}

fsdp_status linear_forward(const run_context *c, const node *n)
{
    gemm_args a = forward_product(c, n);
    const linear_attributes *o = n->attributes;
    if (o->columns != o->outputs && a.c.p != a.d.p) { /* the product writes a part of y: the rest comes first */
        axpby_args rest = {.n = n->outputs[0]->numel,
                           .alpha = 1,
                           .a = run_data(c, n->inputs[LINEAR_RESIDUAL]),
                           .out = run_data(c, n->outputs[0])};
        FSDP_TRY(c->dev->kernels->axpby(c->compute, &rest));
        a.c = a.d;
    }
    return c->dev->kernels->gemm(c->compute, &a);
}

fsdp_status linear_backward(const run_context *c, const node *n)
{
    const kernel_table *k = c->dev->kernels;
    buffer dy = run_output_grad(c, n, 0);
    bool add;
    buffer dx = run_input_grad(c, n, LINEAR_X, &add);
    if (dx.p) {
        gemm_args a = input_product(n, dy, run_data(c, n->inputs[LINEAR_WEIGHT]), dx, add);
        a.workspace = c->workspace;
        FSDP_TRY(k->gemm(c->compute, &a));
    }
    buffer dw = run_input_grad(c, n, LINEAR_WEIGHT, &add);
    if (dw.p) {
        gemm_args a = weight_product(n, dy, run_data(c, n->inputs[LINEAR_X]), dw, add);
        a.workspace = c->workspace;
        FSDP_TRY(k->gemm(c->compute, &a));
    }
    return linear_backward_sums(c, n);
}

fsdp_status linear_backward_sums(const run_context *c, const node *n)
{
    const kernel_table *k = c->dev->kernels;
    buffer dy = run_output_grad(c, n, 0);
    bool add;
    buffer db = run_input_grad(c, n, LINEAR_BIAS, &add);
    if (db.p) {
        column_sum_args a = bias_sum(n, dy, db, add);
        a.workspace = c->workspace;
        FSDP_TRY(k->column_sum(c->compute, &a));
    }
    buffer dr = run_input_grad(c, n, LINEAR_RESIDUAL, &add);
    if (dr.p && (add || dr.p != dy.p)) {
        axpby_args a = {.n = n->outputs[0]->numel, .alpha = 1, .beta = add, .a = dy, .b = dr, .out = dr};
        if (!add)
            a.b.p = NULL;
        FSDP_TRY(k->axpby(c->compute, &a));
    }
    return FSDP_OK;
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

uint32_t linear_saves(fsdp_tensor *const inputs[LINEAR_INPUTS])
{
    return (uint32_t)inputs[LINEAR_WEIGHT]->requires_grad << LINEAR_X | (uint32_t)inputs[LINEAR_X]->requires_grad
                                                                            << LINEAR_WEIGHT;
}

size_t linear_sums_workspace(const device *d, const node *n)
{
    const fsdp_tensor *bias = n->inputs[LINEAR_BIAS];
    if (!bias || !node_wants_grad(n, LINEAR_BIAS))
        return 0;
    column_sum_args sums = bias_sum(n, (buffer){NULL, n->outputs[0]->dtype}, (buffer){NULL, bias->dtype}, false);
    return d->kernels->column_sum_workspace(d, &sums);
}

size_t linear_workspace(const device *d, const node *n, bool backward)
{
    const kernel_table *k = d->kernels;
    if (!backward) {
        gemm_args a = forward_product(NULL, n);
        return k->gemm_workspace(d, &a);
    }
    const fsdp_tensor *w = n->inputs[LINEAR_WEIGHT];
    buffer dy = {NULL, n->outputs[0]->dtype}, x = {NULL, n->inputs[LINEAR_X]->dtype}, weight = {NULL, w->dtype};
    fsdp_dtype dw_dtype = w->parameter ? w->parameter->grad_dtype : w->dtype;
    gemm_args input = input_product(n, dy, weight, x, false),
              product = weight_product(n, dy, x, (buffer){NULL, dw_dtype}, false);
    size_t bytes = 0;
    if (node_wants_grad(n, LINEAR_X))
        bytes = larger(bytes, k->gemm_workspace(d, &input));
    if (node_wants_grad(n, LINEAR_WEIGHT))
        bytes = larger(bytes, k->gemm_workspace(d, &product));
    return larger(bytes, linear_sums_workspace(d, n));
}

static const op_def linear_op = {.name = "linear",
                                 .forward = linear_forward,
                                 .backward = linear_backward,
                                 .workspace = linear_workspace,
                                 .in_place = LINEAR_RESIDUAL + 1,
                                 .pass_through = LINEAR_RESIDUAL + 1};

static fsdp_tensor *record_linear(fsdp_tape *t, const op_def *op, fsdp_tensor *const inputs[LINEAR_INPUTS],
                                  fsdp_tensor *y, const linear_attributes *o)
{
    return tape_record(t, op, LINEAR_INPUTS, inputs, 1, &y, o, sizeof *o, linear_saves(inputs), 0) ? y : NULL;
}

static fsdp_tensor *linear(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, fsdp_tensor *residual,
                           bool input_major)
{
    if (!x || !weight)
        return NULL;
    if (weight->n_dims != 2 || weight->shape[input_major ? 0 : 1] != tensor_columns(x))
        return tape_refuse(t, "linear: x is %s and the weight %s; the last dimension%s must be equal",
                           tape_shape_text(t, x), tape_shape_text(t, weight),
                           input_major ? " and the first of the weight" : "s");
    if (x->dtype != weight->dtype)
        return tape_refuse(t, "linear: x is %s and the weight %s; cast one of them", fsdp_dtype_name(x->dtype),
                           fsdp_dtype_name(weight->dtype));
    linear_attributes o = {tensor_columns(x), weight->shape[input_major ? 1 : 0], input_major, 0, 0};
    o.columns = o.outputs;
    if (bias && bias->numel != o.outputs)
        return tape_refuse(t, "linear: the bias has %lld elements for %lld outputs", (long long)bias->numel,
                           (long long)o.outputs);
    int64_t shape[FSDP_MAX_DIMS];
    for (int i = 0; i < x->n_dims - 1; i++)
        shape[i] = x->shape[i];
    shape[x->n_dims - 1] = o.outputs;
    fsdp_tensor *y = tape_value(t, x->dtype, x->n_dims, shape);
    if (!y)
        return NULL;
    if (residual && (residual->numel != y->numel || residual->dtype != y->dtype))
        return tape_refuse(t, "linear: the residual is %s where %s is expected", tape_shape_text(t, residual),
                           tape_shape_text(t, y));
    fsdp_tensor *inputs[LINEAR_INPUTS] = {x, weight, bias, residual};
    bool in_8_bits = !input_major && fp8_serves(weight);
    if (in_8_bits && !t->shadow)
        return fp8_linear(t, inputs, y);
    return record_linear(t, in_8_bits ? &linear_shadow_op : &linear_op, inputs, y, &o);
}

fsdp_tensor *linear_add_columns(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *y, int64_t first)
{
    if (!x || !weight || !y)
        return NULL;
    bool fits = weight->n_dims == 2 && weight->shape[1] == tensor_columns(x) && tensor_rows(x) == tensor_rows(y) &&
                first >= 0 && first + weight->shape[0] <= tensor_columns(y) && x->dtype == weight->dtype &&
                y->dtype == x->dtype;
    if (!fits)
        return tape_refuse(t, "linear: x %s times weight %s cannot be added to columns of %s", tape_shape_text(t, x),
                           tape_shape_text(t, weight), tape_shape_text(t, y));
    linear_attributes o = {tensor_columns(x), weight->shape[0], false, first, tensor_columns(y)};
    fsdp_tensor *sum = tape_value(t, y->dtype, y->n_dims, y->shape);
    return sum ? record_linear(t, &linear_op, (fsdp_tensor *[LINEAR_INPUTS]){x, weight, NULL, y}, sum, &o) : NULL;
}

fsdp_tensor *fsdp_linear(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias)
{
    return linear(t, x, weight, bias, NULL, false);
}

fsdp_tensor *fsdp_linear_add(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                             fsdp_tensor *residual)
{
    return residual ? linear(t, x, weight, bias, residual, false) : NULL;
}

fsdp_tensor *fsdp_linear_input_major(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                     fsdp_tensor *residual)
{
    return linear(t, x, weight, bias, residual, true);
}

/* Batched products. a is (batch, m, k), b (batch, k, n), each possibly stored transposed. */

typedef struct matmul_attributes {
    bool transpose_a, transpose_b;
    int64_t batch, m, n, k;
} matmul_attributes;

/* One product d (+)= op(x) op(y), d (m, n) inside batches of full matrices. */
static gemm_args batched(int64_t batch, int64_t m, int64_t n, int64_t k, buffer x, bool transpose_x, buffer y,
                         bool transpose_y, buffer d, bool add)
{
    return (gemm_args){.transpose_a = transpose_x,
                       .transpose_b = transpose_y,
                       .m = m,
                       .n = n,
                       .k = k,
                       .alpha = 1,
                       .beta = add,
                       .a = x,
                       .b = y,
                       .c = d,
                       .d = d,
                       .lda = transpose_x ? m : k,
                       .ldb = transpose_y ? k : n,
                       .ldc = n,
                       .ldd = n,
                       .batch = batch,
                       .stride_a = m * k,
                       .stride_b = k * n,
                       .stride_c = m * n,
                       .stride_d = m * n};
}

static gemm_args matmul_product(const matmul_attributes *o, buffer a, buffer b, buffer y)
{
    return batched(o->batch, o->m, o->n, o->k, a, o->transpose_a, b, o->transpose_b, y, false);
}

/* da = dy op(b)^T, or its transpose when a is stored so. */
static gemm_args matmul_grad_a(const matmul_attributes *o, buffer dy, buffer b, buffer da, bool add)
{
    if (o->transpose_a)
        return batched(o->batch, o->k, o->m, o->n, b, o->transpose_b, dy, true, da, add);
    return batched(o->batch, o->m, o->k, o->n, dy, false, b, !o->transpose_b, da, add);
}

static gemm_args matmul_grad_b(const matmul_attributes *o, buffer dy, buffer a, buffer db, bool add)
{
    if (o->transpose_b)
        return batched(o->batch, o->n, o->k, o->m, dy, true, a, o->transpose_a, db, add);
    return batched(o->batch, o->k, o->n, o->m, a, !o->transpose_a, dy, false, db, add);
}

static fsdp_status matmul_forward(const run_context *c, const node *n)
{
    gemm_args a =
        matmul_product(n->attributes, run_data(c, n->inputs[0]), run_data(c, n->inputs[1]), run_data(c, n->outputs[0]));
    a.workspace = c->workspace;
    return c->dev->kernels->gemm(c->compute, &a);
}

static fsdp_status matmul_backward(const run_context *c, const node *n)
{
    const matmul_attributes *o = n->attributes;
    buffer dy = run_output_grad(c, n, 0);
    bool add;
    buffer da = run_input_grad(c, n, 0, &add);
    if (da.p) {
        gemm_args a = matmul_grad_a(o, dy, run_data(c, n->inputs[1]), da, add);
        a.workspace = c->workspace;
        FSDP_TRY(c->dev->kernels->gemm(c->compute, &a));
    }
    buffer db = run_input_grad(c, n, 1, &add);
    if (db.p) {
        gemm_args a = matmul_grad_b(o, dy, run_data(c, n->inputs[0]), db, add);
        a.workspace = c->workspace;
        FSDP_TRY(c->dev->kernels->gemm(c->compute, &a));
    }
    return FSDP_OK;
}

static size_t matmul_workspace(const device *d, const node *n, bool backward)
{
    const matmul_attributes *o = n->attributes;
    buffer any = {NULL, n->outputs[0]->dtype};
    gemm_args forward = matmul_product(o, any, any, any), a = matmul_grad_a(o, any, any, any, false),
              b = matmul_grad_b(o, any, any, any, false);
    if (!backward)
        return d->kernels->gemm_workspace(d, &forward);
    return larger(d->kernels->gemm_workspace(d, &a), d->kernels->gemm_workspace(d, &b));
}

static const op_def matmul_op = {
    .name = "matmul", .forward = matmul_forward, .backward = matmul_backward, .workspace = matmul_workspace};

fsdp_tensor *fsdp_matmul(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b, bool transpose_a, bool transpose_b)
{
    if (!a || !b)
        return NULL;
    int dims = a->n_dims;
    bool fits = dims >= 2 && b->n_dims == dims && a->dtype == b->dtype;
    int64_t batch = 1;
    for (int i = 0; fits && i < dims - 2; i++) {
        fits = a->shape[i] == b->shape[i];
        batch *= a->shape[i];
    }
    if (!fits)
        return tape_refuse(t, "matmul: operands %s and %s do not go together (same type, same leading dimensions)",
                           tape_shape_text(t, a), tape_shape_text(t, b));
    matmul_attributes o;
    __builtin_memset(&o, 0, sizeof o);
    o.transpose_a = transpose_a;
    o.transpose_b = transpose_b;
    o.batch = batch;
    o.m = a->shape[dims - (transpose_a ? 1 : 2)];
    o.k = a->shape[dims - (transpose_a ? 2 : 1)];
    o.n = b->shape[dims - (transpose_b ? 2 : 1)];
    if (b->shape[dims - (transpose_b ? 1 : 2)] != o.k)
        return tape_refuse(t, "matmul: operands %s and %s share no inner dimension", tape_shape_text(t, a),
                           tape_shape_text(t, b));
    int64_t shape[FSDP_MAX_DIMS];
    for (int i = 0; i < dims - 2; i++)
        shape[i] = a->shape[i];
    shape[dims - 2] = o.m;
    shape[dims - 1] = o.n;
    fsdp_tensor *y = tape_value(t, a->dtype, dims, shape), *inputs[] = {a, b};
    return y && tape_record(t, &matmul_op, 2, inputs, 1, &y, &o, sizeof o, 3, 0) ? y : NULL;
}
