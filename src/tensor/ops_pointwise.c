/* Element-wise operations: activations, gated activations, sums, products, casts, dropout; and the embedding lookup. */
#include <string.h>

#include <fsdp/ops.h>

#include "base/rng.h"
#include "tensor/linear.h"
#include "tensor/strides.h"

/* One input, one output of its shape. */
static fsdp_tensor *record_unary(fsdp_tape *t, const op_def *op, fsdp_tensor *x, fsdp_dtype dtype,
                                 const void *attributes, size_t bytes, uint32_t saves_inputs)
{
    if (!x)
        return NULL;
    fsdp_tensor *y = tape_value(t, dtype, x->n_dims, x->shape);
    return y && tape_record(t, op, 1, &x, 1, &y, attributes, bytes, saves_inputs, 0) ? y : NULL;
}

/* Activations. */

static fsdp_status activation_forward(const run_context *c, const node *n)
{
    activation_args a = {.kind = *(const activation_kind *)n->attributes,
                         .n = n->outputs[0]->numel,
                         .x = run_data(c, n->inputs[0]),
                         .y = run_data(c, n->outputs[0])};
    return c->dev->kernels->activation_forward(c->compute, &a);
}

static fsdp_status activation_backward(const run_context *c, const node *n)
{
    activation_args a = {.kind = *(const activation_kind *)n->attributes,
                         .n = n->outputs[0]->numel,
                         .x = run_data(c, n->inputs[0]),
                         .dy = run_output_grad(c, n, 0)};
    a.dx = run_input_grad(c, n, 0, &a.add_dx);
    return c->dev->kernels->activation_backward(c->compute, &a);
}

static const op_def activation_op = {.name = "activation",
                                     .forward = activation_forward,
                                     .backward = activation_backward,
                                     .pass_through = 1,
                                     .cheap = true};

static fsdp_tensor *activation(fsdp_tape *t, fsdp_tensor *x, activation_kind kind)
{
    return x ? record_unary(t, &activation_op, x, x->dtype, &kind, sizeof kind, 1) : NULL;
}

fsdp_tensor *fsdp_silu(fsdp_tape *t, fsdp_tensor *x)
{
    return activation(t, x, ACTIVATION_SILU);
}

fsdp_tensor *fsdp_gelu(fsdp_tape *t, fsdp_tensor *x)
{
    return activation(t, x, ACTIVATION_GELU_ERF);
}

fsdp_tensor *fsdp_gelu_tanh(fsdp_tape *t, fsdp_tensor *x)
{
    return activation(t, x, ACTIVATION_GELU_TANH);
}

fsdp_tensor *fsdp_relu(fsdp_tape *t, fsdp_tensor *x)
{
    return activation(t, x, ACTIVATION_RELU);
}

/* Gated activations: rows hold gate | up. */
enum { GATED_X, GATED_SCALES, GATED_INPUTS };
enum { GATED_Y, GATED_MAGNITUDE };

static fsdp_status gated_forward(const run_context *c, const node *n)
{
    const fsdp_tensor *y = n->outputs[0];
    gated_args a = {.kind = *(const activation_kind *)n->attributes,
                    .rows = tensor_rows(y),
                    .columns = tensor_columns(y),
                    .x = run_data(c, n->inputs[GATED_X]),
                    .y = run_data(c, y),
                    .magnitude = fp8_output_magnitude(c, n)};
    return c->dev->kernels->gated_forward(c->compute, &a);
}

static fsdp_status gated_backward(const run_context *c, const node *n)
{
    const fsdp_tensor *y = n->outputs[0];
    gated_args a = {.kind = *(const activation_kind *)n->attributes,
                    .rows = tensor_rows(y),
                    .columns = tensor_columns(y),
                    .x = run_data(c, n->inputs[GATED_X]),
                    .dy = run_output_grad(c, n, GATED_Y),
                    .magnitude = fp8_gradient_magnitude(c, n)};
    a.dx = run_input_grad(c, n, GATED_X, &a.add_dx);
    return c->dev->kernels->gated_backward(c->compute, &a);
}

static const op_def gated_op = {.name = "gated",
                                .forward = gated_forward,
                                .backward = gated_backward,
                                .gradient_in_place = GATED_X + 1,
                                .magnitude = GATED_MAGNITUDE + 1,
                                .scales = GATED_SCALES + 1,
                                .cheap = true};

static fsdp_tensor *gated(fsdp_tape *t, fsdp_tensor *x, activation_kind kind)
{
    if (!x)
        return NULL;
    if (tensor_columns(x) % 2 != 0)
        return tape_refuse(t, "gated activation: rows of %s cannot be halved into gate and up", tape_shape_text(t, x));
    int64_t shape[FSDP_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[x->n_dims - 1] /= 2;
    fsdp_tensor *inputs[GATED_INPUTS] = {x, fp8_gradient_scales(t, x)}, *y = tape_value(t, x->dtype, x->n_dims, shape);
    uint32_t saved = 1u << GATED_X | 1u << GATED_SCALES;
    return y && tape_record(t, &gated_op, GATED_INPUTS, inputs, 1, &y, &kind, sizeof kind, saved, 0) ? y : NULL;
}

fsdp_tensor *fsdp_swiglu(fsdp_tape *t, fsdp_tensor *x)
{
    return gated(t, x, ACTIVATION_SILU);
}

fsdp_tensor *fsdp_geglu_tanh(fsdp_tape *t, fsdp_tensor *x)
{
    return gated(t, x, ACTIVATION_GELU_TANH);
}

/* Scale, cast and sum are all alpha*a + beta*b. */

static fsdp_status linear_combination(const run_context *c, int64_t n, float alpha, buffer a, float beta, buffer b,
                                      buffer out)
{
    axpby_args args = {.n = n, .alpha = alpha, .beta = beta, .a = a, .b = b, .out = out};
    return c->dev->kernels->axpby(c->compute, &args);
}

/* grad (+)= factor * dy */
static fsdp_status give_gradient(const run_context *c, const node *n, int input, float factor)
{
    bool add;
    buffer dx = run_input_grad(c, n, input, &add), dy = run_output_grad(c, n, 0);
    if (!dx.p || (dx.p == dy.p && !add && factor == 1))
        return FSDP_OK;
    return linear_combination(c, n->outputs[0]->numel, factor, dy, 1, add ? dx : (buffer){NULL, dx.dtype}, dx);
}

static fsdp_status scale_forward(const run_context *c, const node *n)
{
    float factor = *(const float *)n->attributes;
    return linear_combination(c, n->outputs[0]->numel, factor, run_data(c, n->inputs[0]), 0, (buffer){NULL, FSDP_F32},
                              run_data(c, n->outputs[0]));
}

static fsdp_status scale_backward(const run_context *c, const node *n)
{
    return give_gradient(c, n, 0, *(const float *)n->attributes);
}

static const op_def scale_op = {
    .name = "scale", .forward = scale_forward, .backward = scale_backward, .in_place = 1, .pass_through = 1};
static const op_def cast_op = {.name = "cast", .forward = scale_forward, .backward = scale_backward};

fsdp_tensor *fsdp_scale(fsdp_tape *t, fsdp_tensor *x, float factor)
{
    return x ? record_unary(t, &scale_op, x, x->dtype, &factor, sizeof factor, 0) : NULL;
}

fsdp_tensor *fsdp_cast(fsdp_tape *t, fsdp_tensor *x, fsdp_dtype dtype)
{
    const float one = 1;
    if (!x || x->dtype == dtype)
        return x;
    if (x->dtype > FSDP_F16 || dtype > FSDP_F16)
        return tape_refuse(t, "cast: %s to %s; only fp32, bf16 and fp16 convert", fsdp_dtype_name(x->dtype),
                           fsdp_dtype_name(dtype));
    return record_unary(t, &cast_op, x, dtype, &one, sizeof one, 0);
}

static fsdp_status add_forward(const run_context *c, const node *n)
{
    return linear_combination(c, n->outputs[0]->numel, 1, run_data(c, n->inputs[0]), 1, run_data(c, n->inputs[1]),
                              run_data(c, n->outputs[0]));
}

static fsdp_status add_backward(const run_context *c, const node *n)
{
    FSDP_TRY(give_gradient(c, n, 0, 1)); /* first, as planned: x + x overwrites here and adds below */
    return give_gradient(c, n, 1, 1);
}

static const op_def add_op = {
    .name = "add", .forward = add_forward, .backward = add_backward, .in_place = 1, .pass_through = 1};

static fsdp_tensor *binary(fsdp_tape *t, const op_def *op, fsdp_tensor *a, fsdp_tensor *b, uint32_t saves)
{
    if (!a || !b)
        return NULL;
    if (!tensor_same_shape(a, b))
        return ops_broadcast(t, op == &add_op ? COMBINE_ADD : COMBINE_MULTIPLY, a, b);
    if (a->dtype != b->dtype)
        return tape_refuse(t, "%s: %s %s and %s %s differ", op->name, fsdp_dtype_name(a->dtype), tape_shape_text(t, a),
                           fsdp_dtype_name(b->dtype), tape_shape_text(t, b));
    fsdp_tensor *inputs[] = {a, b}, *y = tape_value(t, a->dtype, a->n_dims, a->shape);
    return y && tape_record(t, op, 2, inputs, 1, &y, NULL, 0, saves, 0) ? y : NULL;
}

fsdp_tensor *fsdp_add(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b)
{
    return binary(t, &add_op, a, b, 0);
}

static fsdp_status mul_forward(const run_context *c, const node *n)
{
    multiply_args a = {.n = n->outputs[0]->numel,
                       .a = run_data(c, n->inputs[0]),
                       .b = run_data(c, n->inputs[1]),
                       .out = run_data(c, n->outputs[0])};
    return c->dev->kernels->multiply(c->compute, &a);
}

static fsdp_status mul_backward(const run_context *c, const node *n)
{
    buffer dy = run_output_grad(c, n, 0);
    for (int i = 0; i < 2; i++) {
        multiply_args a = {.n = n->outputs[0]->numel, .a = dy, .b = run_data(c, n->inputs[1 - i])};
        a.out = run_input_grad(c, n, i, &a.add);
        if (a.out.p)
            FSDP_TRY(c->dev->kernels->multiply(c->compute, &a));
    }
    return FSDP_OK;
}

static const op_def mul_op = {.name = "mul", .forward = mul_forward, .backward = mul_backward};

fsdp_tensor *fsdp_mul(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b)
{
    return binary(t, &mul_op, a, b, 3);
}

/* Dropout: the gradient is the same operation with the same random numbers. */

typedef struct dropout_attributes {
    float probability;
    rng_key key;
} dropout_attributes;

static fsdp_status drop(const run_context *c, const node *n, buffer x, buffer y, bool add)
{
    const dropout_attributes *o = n->attributes;
    const fsdp_tensor *shape = n->outputs[0];
    dropout_args a = {.samples = shape->shape[0],
                      .sample_numel = shape->shape[0] ? shape->numel / shape->shape[0] : 0,
                      .probability = o->probability,
                      .key = {o->key.k[0], o->key.k[1]},
                      .scalars = c->scalars,
                      .x = x,
                      .y = y,
                      .add = add};
    return c->dev->kernels->dropout(c->compute, &a);
}

static fsdp_status dropout_forward(const run_context *c, const node *n)
{
    return drop(c, n, run_data(c, n->inputs[0]), run_data(c, n->outputs[0]), false);
}

static fsdp_status dropout_backward(const run_context *c, const node *n)
{
    bool add;
    buffer dx = run_input_grad(c, n, 0, &add);
    return drop(c, n, run_output_grad(c, n, 0), dx, add);
}

static const op_def dropout_op = {.name = "dropout",
                                  .forward = dropout_forward,
                                  .backward = dropout_backward,
                                  .in_place = 1,
                                  .pass_through = 1,
                                  .cheap = true};

fsdp_tensor *fsdp_dropout(fsdp_tape *t, fsdp_tensor *x, float p)
{
    if (!x || p == 0 || !t->training)
        return x;
    if (p < 0 || p >= 1)
        return tape_refuse(t, "dropout: probability %g; it must lie in [0, 1)", (double)p);
    dropout_attributes o = {p, rng_key_fold(rng_key_make(t->seed), (uint64_t)t->n_nodes)};
    return record_unary(t, &dropout_op, x, x->dtype, &o, sizeof o, 0);
}

/* Embedding lookup. */

static embedding_args describe_embedding(const node *n)
{
    const fsdp_tensor *ids = n->inputs[0], *table = n->inputs[1], *y = n->outputs[0];
    int64_t padding = *(const int64_t *)n->attributes;
    embedding_args a = {.rows = ids->numel,
                        .columns = table->shape[1],
                        .vocabulary = table->shape[0],
                        .has_padding = padding >= 0,
                        .padding = (int32_t)padding};
    a.table.dtype = table->dtype;
    a.y.dtype = a.dy.dtype = y->dtype;
    a.d_table.dtype = table->parameter ? table->parameter->grad_dtype : table->dtype;
    return a;
}

static fsdp_status embedding_forward(const run_context *c, const node *n)
{
    embedding_args a = describe_embedding(n);
    a.ids = run_data(c, n->inputs[0]).p;
    a.table = run_data(c, n->inputs[1]);
    a.y = run_data(c, n->outputs[0]);
    return c->dev->kernels->embedding_forward(c->compute, &a);
}

static fsdp_status embedding_backward(const run_context *c, const node *n)
{
    embedding_args a = describe_embedding(n);
    a.ids = run_data(c, n->inputs[0]).p;
    a.dy = run_output_grad(c, n, 0);
    a.d_table = run_input_grad(c, n, 1, &a.add_table);
    a.workspace = c->workspace;
    return c->dev->kernels->embedding_backward(c->compute, &a);
}

static size_t embedding_workspace(const device *d, const node *n, bool backward)
{
    embedding_args a = describe_embedding(n);
    return backward ? d->kernels->embedding_backward_workspace(d, &a) : 0;
}

static const op_def embedding_op = {.name = "embedding",
                                    .forward = embedding_forward,
                                    .backward = embedding_backward,
                                    .workspace = embedding_workspace};

fsdp_tensor *fsdp_embedding(fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *table)
{
    return fsdp_embedding_padded(t, ids, table, -1);
}

fsdp_tensor *fsdp_embedding_padded(fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *table, int64_t padding)
{
    if (!ids || !table)
        return NULL;
    if (ids->dtype != FSDP_I32 || table->n_dims != 2 || ids->n_dims + 1 > FSDP_MAX_DIMS)
        return tape_refuse(t, "embedding: ids %s %s into a table %s; int32 ids and a matrix are expected",
                           fsdp_dtype_name(ids->dtype), tape_shape_text(t, ids), tape_shape_text(t, table));
    if (padding < 0 || padding >= table->shape[0])
        padding = -1;
    int64_t shape[FSDP_MAX_DIMS];
    memcpy(shape, ids->shape, sizeof shape);
    shape[ids->n_dims] = table->shape[1];
    fsdp_tensor *inputs[] = {ids, table}, *y = tape_value(t, table->dtype, ids->n_dims + 1, shape);
    return y && tape_record(t, &embedding_op, 2, inputs, 1, &y, &padding, sizeof padding, 1, 0) ? y : NULL;
}
