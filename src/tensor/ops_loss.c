/* Losses and reductions to a scalar. A loss is a sum and a count; the gradient of the sum arrives as a device scalar.
 */
#include <fsdp/ops.h>

#include <string.h>

#include "base/checked.h"
#include "tensor/op.h"

static const int64_t one_element = 1;

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Cross-entropy of given logits. Inputs: logits, labels. Outputs: sum, count. */

static cross_entropy_args describe_cross_entropy(const node *n)
{
    const fsdp_tensor *logits = n->inputs[0];
    cross_entropy_args a = {.rows = tensor_rows(logits),
                            .vocabulary = tensor_columns(logits),
                            .stride = tensor_columns(logits),
                            .ignore = *(const int32_t *)n->attributes};
    a.logits.dtype = a.d_logits.dtype = logits->dtype;
    return a;
}

enum { RIGHT = 2 }; /* the output of fsdp_loss_right, where somebody asked for it */

static fsdp_status count_right(const run_context *c, const node *n, const cross_entropy_args *loss)
{
    if (n->n_outputs <= RIGHT)
        return FSDP_OK;
    count_right_args a = {.rows = loss->rows,
                          .vocabulary = loss->vocabulary,
                          .stride = loss->stride,
                          .logits = loss->logits,
                          .labels = loss->labels,
                          .ignore = loss->ignore,
                          .right = run_data(c, n->outputs[RIGHT]).p,
                          .add = loss->add_loss};
    return c->dev->kernels->count_right(c->compute, &a);
}

static fsdp_status cross_entropy_forward(const run_context *c, const node *n)
{
    cross_entropy_args a = describe_cross_entropy(n);
    a.logits = run_data(c, n->inputs[0]);
    a.labels = run_data(c, n->inputs[1]).p;
    a.loss_sum = run_data(c, n->outputs[0]).p;
    a.count = run_data(c, n->outputs[1]).p;
    a.workspace = c->workspace;
    FSDP_TRY(count_right(c, n, &a));
    return c->dev->kernels->cross_entropy_forward(c->compute, &a);
}

static fsdp_status cross_entropy_backward(const run_context *c, const node *n)
{
    cross_entropy_args a = describe_cross_entropy(n);
    a.logits = run_data(c, n->inputs[0]);
    a.labels = run_data(c, n->inputs[1]).p;
    a.seed = run_output_grad(c, n, 0).p;
    a.d_logits = run_input_grad(c, n, 0, &a.add_logits);
    return c->dev->kernels->cross_entropy_backward(c->compute, &a);
}

static size_t cross_entropy_workspace(const device *d, const node *n, bool backward)
{
    cross_entropy_args a = describe_cross_entropy(n);
    return backward ? 0 : d->kernels->cross_entropy_forward_workspace(d, &a);
}

static const op_def cross_entropy_op = {.name = "cross_entropy",
                                        .forward = cross_entropy_forward,
                                        .backward = cross_entropy_backward,
                                        .workspace = cross_entropy_workspace};

static fsdp_loss record_loss(fsdp_tape *t, const op_def *op, int n_inputs, fsdp_tensor *const *inputs,
                             const void *attributes, size_t bytes, uint32_t saves)
{
    fsdp_tensor *outputs[] = {tape_value(t, FSDP_F32, 1, &one_element), tape_value(t, FSDP_F32, 1, &one_element)};
    if (!outputs[0] || !outputs[1] || !tape_record(t, op, n_inputs, inputs, 2, outputs, attributes, bytes, saves, 0))
        return (fsdp_loss){NULL, NULL};
    return (fsdp_loss){fsdp_output(t, outputs[0]), fsdp_output(t, outputs[1])};
}

fsdp_loss fsdp_cross_entropy(fsdp_tape *t, fsdp_tensor *logits, fsdp_tensor *labels, int32_t ignore)
{
    if (!logits || !labels)
        return (fsdp_loss){NULL, NULL};
    if (labels->dtype != FSDP_I32 || labels->numel != tensor_rows(logits)) {
        tape_refuse(t, "cross_entropy: labels %s for logits %s; one int32 label a row is expected",
                    tape_shape_text(t, labels), tape_shape_text(t, logits));
        return (fsdp_loss){NULL, NULL};
    }
    fsdp_tensor *inputs[] = {logits, labels};
    return record_loss(t, &cross_entropy_op, 2, inputs, &ignore, sizeof ignore, 3);
}

/* Cross-entropy of a linear layer, in chunks of rows. The gradient takes the place of the logits, chunk by chunk, so
 * as the loss of a training step forward and backward are one pass and each logit is computed once. */

typedef struct chunked_attributes {
    int32_t ignore;
    int64_t chunk_rows;
} chunked_attributes;

enum { X, WEIGHT, LABELS };

enum { MAX_CHUNK_ROWS = 2048 }; /* products run at full speed with these; more would only take memory */

enum { ROW_ALIGNMENT = 128 }; /* bytes: products with rows that begin anywhere run at an eighth of the speed */

typedef struct chunk_sizes {
    int64_t rows, columns, vocabulary, chunk;
    int64_t stride; /* elements from one row of logits to the next */
    size_t logits_bytes, kernel_bytes;
} chunk_sizes;

static gemm_args chunk_logits(const chunk_sizes *z, int64_t rows, buffer x, buffer w, buffer logits)
{
    return (gemm_args){.transpose_b = true,
                       .m = rows,
                       .n = z->vocabulary,
                       .k = z->columns,
                       .alpha = 1,
                       .a = x,
                       .b = w,
                       .c = logits,
                       .d = logits,
                       .lda = z->columns,
                       .ldb = z->columns,
                       .ldc = z->stride,
                       .ldd = z->stride,
                       .batch = 1};
}

static gemm_args chunk_input_grad(const chunk_sizes *z, int64_t rows, buffer d_logits, buffer w, buffer dx, bool add)
{
    return (gemm_args){.m = rows,
                       .n = z->columns,
                       .k = z->vocabulary,
                       .alpha = 1,
                       .beta = add,
                       .a = d_logits,
                       .b = w,
                       .c = dx,
                       .d = dx,
                       .lda = z->stride,
                       .ldb = z->columns,
                       .ldc = z->columns,
                       .ldd = z->columns,
                       .batch = 1};
}

static gemm_args chunk_weight_grad(const chunk_sizes *z, int64_t rows, buffer d_logits, buffer x, buffer dw, bool add)
{
    return (gemm_args){.transpose_a = true,
                       .m = z->vocabulary,
                       .n = z->columns,
                       .k = rows,
                       .alpha = 1,
                       .beta = add,
                       .a = d_logits,
                       .b = x,
                       .c = dw,
                       .d = dw,
                       .lda = z->stride,
                       .ldb = z->columns,
                       .ldc = z->columns,
                       .ldd = z->columns,
                       .batch = 1};
}

static int64_t logits_stride(int64_t vocabulary, fsdp_dtype dtype)
{
    size_t element = fsdp_dtype_size(dtype);
    return (int64_t)(round_up((size_t)vocabulary * element, ROW_ALIGNMENT) / element);
}

static chunk_sizes sizes_of(const device *d, const node *n)
{
    const fsdp_tensor *x = n->inputs[X], *w = n->inputs[WEIGHT];
    chunk_sizes z = {.rows = tensor_rows(x), .columns = tensor_columns(x), .vocabulary = w->shape[0]};
    z.chunk = min_i64(z.rows, ((const chunked_attributes *)n->attributes)->chunk_rows);
    z.stride = logits_stride(z.vocabulary, x->dtype);
    z.logits_bytes = round_up((size_t)(z.chunk * z.stride) * fsdp_dtype_size(x->dtype), 256);
    buffer any = {NULL, x->dtype}, dw = {NULL, w->parameter ? w->parameter->grad_dtype : w->dtype};
    gemm_args products[] = {chunk_logits(&z, z.chunk, any, any, any),
                            chunk_input_grad(&z, z.chunk, any, any, any, false),
                            chunk_weight_grad(&z, z.chunk, any, any, dw, false)};
    for (int i = 0; i < 3; i++)
        z.kernel_bytes = larger(z.kernel_bytes, d->kernels->gemm_workspace(d, &products[i]));
    int64_t rest = z.chunk > 0 ? z.rows % z.chunk : 0; /* a short last chunk may choose other blocks */
    if (rest > 0) {
        gemm_args last[] = {chunk_logits(&z, rest, any, any, any), chunk_input_grad(&z, rest, any, any, any, false),
                            chunk_weight_grad(&z, rest, any, any, dw, false)};
        for (int i = 0; i < 3; i++)
            z.kernel_bytes = larger(z.kernel_bytes, d->kernels->gemm_workspace(d, &last[i]));
    }
    cross_entropy_args loss = {
        .rows = z.chunk, .vocabulary = z.vocabulary, .stride = z.stride, .logits = any, .d_logits = any};
    z.kernel_bytes = larger(z.kernel_bytes, d->kernels->cross_entropy_forward_workspace(d, &loss));
    return z;
}

static buffer row_of(buffer b, int64_t row, int64_t columns)
{
    if (b.p)
        b.p = (uint8_t *)b.p + (size_t)(row * columns) * fsdp_dtype_size(b.dtype);
    return b;
}

static fsdp_status chunked_loss(const run_context *c, const node *n, const float *seed, buffer dx, bool add_dx,
                                buffer dw, bool add_dw)
{
    const kernel_table *k = c->dev->kernels;
    chunk_sizes z = sizes_of(c->dev, n);
    buffer x = run_data(c, n->inputs[X]), w = run_data(c, n->inputs[WEIGHT]), logits = {c->workspace, x.dtype};
    void *scratch = (uint8_t *)c->workspace + z.logits_bytes;
    const int32_t *labels = run_data(c, n->inputs[LABELS]).p;
    for (int64_t first = 0; first < z.rows; first += z.chunk) {
        int64_t rows = min_i64(z.chunk, z.rows - first);
        buffer x_rows = row_of(x, first, z.columns);
        gemm_args product = chunk_logits(&z, rows, x_rows, w, logits);
        product.workspace = scratch;
        FSDP_TRY(k->gemm(c->compute, &product));
        cross_entropy_args loss = {.rows = rows,
                                   .vocabulary = z.vocabulary,
                                   .stride = z.stride,
                                   .logits = logits,
                                   .labels = labels + first,
                                   .ignore = ((const chunked_attributes *)n->attributes)->ignore,
                                   .loss_sum = run_data(c, n->outputs[0]).p,
                                   .count = run_data(c, n->outputs[1]).p,
                                   .add_loss = first > 0,
                                   .seed = seed,
                                   .workspace = scratch};
        if (seed)
            loss.d_logits = logits;
        FSDP_TRY(count_right(c, n, &loss)); /* before the gradient takes the logits' place */
        FSDP_TRY(k->cross_entropy_forward(c->compute, &loss));
        if (dx.p) {
            gemm_args grad = chunk_input_grad(&z, rows, logits, w, row_of(dx, first, z.columns), add_dx);
            grad.workspace = scratch;
            FSDP_TRY(k->gemm(c->compute, &grad));
        }
        if (dw.p) {
            gemm_args grad = chunk_weight_grad(&z, rows, logits, x_rows, dw, add_dw || first > 0);
            grad.workspace = scratch;
            FSDP_TRY(k->gemm(c->compute, &grad));
        }
    }
    return FSDP_OK;
}

static fsdp_status linear_cross_entropy_forward(const run_context *c, const node *n)
{
    buffer none = {NULL, FSDP_F32};
    return chunked_loss(c, n, NULL, none, false, none, false);
}

static fsdp_status linear_cross_entropy_backward(const run_context *c, const node *n)
{
    bool add_dx, add_dw;
    buffer dx = run_input_grad(c, n, X, &add_dx), dw = run_input_grad(c, n, WEIGHT, &add_dw);
    return chunked_loss(c, n, run_output_grad(c, n, 0).p, dx, add_dx, dw, add_dw);
}

static size_t linear_cross_entropy_workspace(const device *d, const node *n, bool backward)
{
    (void)backward;
    chunk_sizes z = sizes_of(d, n);
    return z.logits_bytes + z.kernel_bytes;
}

static const op_def linear_cross_entropy_op = {.name = "linear_cross_entropy",
                                               .forward = linear_cross_entropy_forward,
                                               .backward = linear_cross_entropy_backward,
                                               .workspace = linear_cross_entropy_workspace,
                                               .loss_in_backward = true};

fsdp_loss fsdp_linear_cross_entropy(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *labels,
                                    int32_t ignore)
{
    if (!x || !weight || !labels)
        return (fsdp_loss){NULL, NULL};
    if (weight->n_dims != 2 || weight->shape[1] != tensor_columns(x) || labels->dtype != FSDP_I32 ||
        labels->numel != tensor_rows(x) || x->dtype != weight->dtype) {
        tape_refuse(t, "linear_cross_entropy: x %s, weight %s and labels %s do not go together", tape_shape_text(t, x),
                    tape_shape_text(t, weight), tape_shape_text(t, labels));
        return (fsdp_loss){NULL, NULL};
    }
    size_t budget = t->target->chunk_bytes ? t->target->chunk_bytes : (size_t)128 << 20;
    int64_t row_bytes = logits_stride(weight->shape[0], x->dtype) * (int64_t)fsdp_dtype_size(x->dtype);
    chunked_attributes o;
    __builtin_memset(&o, 0, sizeof o);
    o.ignore = ignore;
    int64_t rows = min_i64(MAX_CHUNK_ROWS, (int64_t)budget / max_i64(1, row_bytes));
    o.chunk_rows = rows >= 128 ? rows / 128 * 128 : max_i64(16, rows / 16 * 16); /* whole tiles of the products */
    fsdp_tensor *inputs[] = {x, weight, labels};
    return record_loss(t, &linear_cross_entropy_op, 3, inputs, &o, sizeof o, 7);
}

fsdp_tensor *fsdp_loss_right(fsdp_tape *t, fsdp_loss loss)
{
    node *n = loss.sum ? loss.sum->producer : NULL;
    if (!n)
        return NULL;
    if (n->op != &cross_entropy_op && n->op != &linear_cross_entropy_op)
        return tape_refuse(t, "a loss by %s has no classes to be right about", n->op->name);
    if (n->n_outputs > RIGHT)
        return n->outputs[RIGHT];
    fsdp_tensor *right = tape_value(t, FSDP_F32, 1, &one_element);
    fsdp_tensor **outputs = right ? arena_alloc(t->memory, (RIGHT + 1) * sizeof *outputs) : NULL;
    if (!outputs)
        return NULL;
    memcpy(outputs, n->outputs, RIGHT * sizeof *outputs);
    outputs[RIGHT] = right;
    right->producer = n;
    n->outputs = outputs;
    n->n_outputs = RIGHT + 1;
    return fsdp_output(t, right);
}

/* Sums. Inputs: x, and for the squared error its target. */

static sum_args describe_sum(const node *n)
{
    const fsdp_tensor *x = n->inputs[0];
    sum_args a = {.n = x->numel, .alpha = *(const float *)n->attributes};
    a.x.dtype = x->dtype;
    a.y.dtype = n->n_inputs > 1 ? n->inputs[1]->dtype : FSDP_F32;
    return a;
}

static fsdp_status sum_forward(const run_context *c, const node *n)
{
    sum_args a = describe_sum(n);
    a.x = run_data(c, n->inputs[0]);
    if (n->n_inputs > 1)
        a.y = run_data(c, n->inputs[1]);
    a.out = run_data(c, n->outputs[0]).p;
    a.workspace = c->workspace;
    FSDP_TRY(c->dev->kernels->sum(c->compute, &a));
    if (n->n_outputs < 2)
        return FSDP_OK;
    fill_args count = {.n = 1, .alpha = (float)n->inputs[0]->numel, .out = run_data(c, n->outputs[1])};
    return c->dev->kernels->fill(c->compute, &count);
}

static fsdp_status sum_backward(const run_context *c, const node *n)
{
    fill_args a = {
        .n = n->inputs[0]->numel, .alpha = *(const float *)n->attributes, .scalar = run_output_grad(c, n, 0).p};
    a.out = run_input_grad(c, n, 0, &a.add);
    return c->dev->kernels->fill(c->compute, &a);
}

static fsdp_status squared_error_backward(const run_context *c, const node *n)
{
    for (int i = 0; i < 2; i++) {
        squared_error_backward_args a = {.n = n->inputs[0]->numel,
                                         .alpha = *(const float *)n->attributes,
                                         .scalar = run_output_grad(c, n, 0).p,
                                         .x = run_data(c, n->inputs[i]),
                                         .y = run_data(c, n->inputs[1 - i])};
        a.dx = run_input_grad(c, n, i, &a.add);
        if (a.dx.p)
            FSDP_TRY(c->dev->kernels->squared_error_backward(c->compute, &a));
    }
    return FSDP_OK;
}

static size_t sum_workspace(const device *d, const node *n, bool backward)
{
    sum_args a = describe_sum(n);
    return backward ? 0 : d->kernels->sum_workspace(d, &a);
}

static const op_def sum_op = {
    .name = "sum", .forward = sum_forward, .backward = sum_backward, .workspace = sum_workspace};
static const op_def mse_op = {
    .name = "mse", .forward = sum_forward, .backward = squared_error_backward, .workspace = sum_workspace};

static fsdp_tensor *record_sum(fsdp_tape *t, fsdp_tensor *x, float factor)
{
    fsdp_tensor *y = tape_value(t, FSDP_F32, 1, &one_element);
    return y && tape_record(t, &sum_op, 1, &x, 1, &y, &factor, sizeof factor, 0, 0) ? y : NULL;
}

fsdp_tensor *fsdp_sum(fsdp_tape *t, fsdp_tensor *x)
{
    return x ? record_sum(t, x, 1) : NULL;
}

fsdp_tensor *fsdp_mean(fsdp_tape *t, fsdp_tensor *x)
{
    if (!x)
        return NULL;
    if (x->numel == 0)
        return tape_refuse(t, "mean of an empty tensor %s", tape_shape_text(t, x));
    return record_sum(t, x, 1.0f / (float)x->numel);
}

fsdp_loss fsdp_mse(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *target)
{
    const float factor = 1;
    if (!x || !target)
        return (fsdp_loss){NULL, NULL};
    if (x->numel != target->numel || x->dtype != target->dtype) {
        tape_refuse(t, "mse: %s against a target %s", tape_shape_text(t, x), tape_shape_text(t, target));
        return (fsdp_loss){NULL, NULL};
    }
    fsdp_tensor *inputs[] = {x, target};
    return record_loss(t, &mse_op, 2, inputs, &factor, sizeof factor, 3);
}
