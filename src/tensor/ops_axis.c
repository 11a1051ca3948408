/* Operations along one dimension: reductions, softmax, elements by index, one-hot rows. */
#include <string.h>

#include <fsdp/ops.h>

#include "base/checked.h"
#include "tensor/op.h"
#include "tensor/strides.h"

/* Reductions. Outputs: the result, and for maxima and minima where they were found. */

typedef struct reduce_attributes {
    int32_t kind, dim;
    float alpha;
} reduce_attributes;

static reduce_dims_args describe_reduce(const node *n)
{
    const reduce_attributes *o = n->attributes;
    const fsdp_tensor *x = n->inputs[0];
    reduce_dims_args r = {.kind = (fsdp_reduction)o->kind, .alpha = o->alpha};
    int64_t own[FSDP_MAX_DIMS];
    strides_of(x->n_dims, x->shape, own);
    for (int d = 0; d < x->n_dims; d++) {
        int *count = d == o->dim ? &r.n_reduced : &r.n_kept;
        (d == o->dim ? r.reduced : r.kept)[*count] = x->shape[d];
        (d == o->dim ? r.reduced_stride : r.kept_stride)[*count] = own[d];
        ++*count;
    }
    reduce_stand_in(&r);
    return r;
}

static fsdp_status reduce_run(const run_context *c, const node *n)
{
    reduce_dims_args r = describe_reduce(n);
    r.x = run_data(c, n->inputs[0]);
    r.y = run_data(c, n->outputs[0]);
    r.index = n->n_outputs > 1 ? run_data(c, n->outputs[1]).p : NULL;
    return c->dev->kernels->reduce(c->compute, &r);
}

static fsdp_status reduce_gradient(const run_context *c, const node *n)
{
    reduce_dims_args r = describe_reduce(n);
    r.dy = run_output_grad(c, n, 0);
    r.dx = run_input_grad(c, n, 0, &r.add);
    r.index = n->n_outputs > 1 ? run_data(c, n->outputs[1]).p : NULL;
    return c->dev->kernels->reduce_backward(c->compute, &r);
}

static const op_def reduce_op = {.name = "reduce", .forward = reduce_run, .backward = reduce_gradient};

static fsdp_tensor *reduce(fsdp_tape *t, const char *name, fsdp_tensor *x, int dim, bool keep, fsdp_reduction kind,
                           bool mean)
{
    reduce_attributes o;
    int64_t shape[FSDP_MAX_DIMS] = {1};
    int n_dims = 0, d = x ? dimension_of(x, dim) : -1;
    if (!x)
        return NULL;
    if (x->dtype > FSDP_F16 || d < 0)
        return tape_refuse(t, "%s: %s %s has no floating dimension %d", name, fsdp_dtype_name(x->dtype),
                           tape_shape_text(t, x), dim);
    if (x->shape[d] == 0 && (kind != FSDP_REDUCE_SUM || mean))
        return tape_refuse(t, "%s: dimension %d of %s is empty", name, dim, tape_shape_text(t, x));
    memset(&o, 0, sizeof o);
    o.kind = (int32_t)kind;
    o.dim = d;
    o.alpha = mean ? 1.0f / (float)x->shape[d] : 1.0f;
    for (int i = 0; i < x->n_dims; i++) {
        if (i != d || keep)
            shape[n_dims++] = i == d ? 1 : x->shape[i];
    }
    n_dims = n_dims == 0 ? 1 : n_dims;
    bool indexed = kind != FSDP_REDUCE_SUM;
    fsdp_tensor *outputs[] = {tape_value(t, x->dtype, n_dims, shape),
                              indexed ? tape_value(t, FSDP_I32, n_dims, shape) : NULL};
    if (!outputs[0] || (indexed && !outputs[1]))
        return NULL;
    return tape_record(t, &reduce_op, 1, &x, indexed ? 2 : 1, outputs, &o, sizeof o, 0, indexed ? 2 : 0) ? outputs[0]
                                                                                                         : NULL;
}

fsdp_tensor *fsdp_sum_dim(fsdp_tape *t, fsdp_tensor *x, int dim, bool keep)
{
    return reduce(t, "sum_dim", x, dim, keep, FSDP_REDUCE_SUM, false);
}

fsdp_tensor *fsdp_mean_dim(fsdp_tape *t, fsdp_tensor *x, int dim, bool keep)
{
    return reduce(t, "mean_dim", x, dim, keep, FSDP_REDUCE_SUM, true);
}

fsdp_tensor *fsdp_max_dim(fsdp_tape *t, fsdp_tensor *x, int dim, bool keep)
{
    return reduce(t, "max_dim", x, dim, keep, FSDP_REDUCE_MAX, false);
}

fsdp_tensor *fsdp_min_dim(fsdp_tape *t, fsdp_tensor *x, int dim, bool keep)
{
    return reduce(t, "min_dim", x, dim, keep, FSDP_REDUCE_MIN, false);
}

/* Softmax over the last dimension; others are brought there and back. */

static softmax_args describe_softmax(const run_context *c, const node *n)
{
    const fsdp_tensor *y = n->outputs[0];
    return (softmax_args){.rows = tensor_rows(y),
                          .columns = tensor_columns(y),
                          .logarithm = *(const int32_t *)n->attributes != 0,
                          .y = run_data(c, y)};
}

static fsdp_status softmax_run(const run_context *c, const node *n)
{
    softmax_args a = describe_softmax(c, n);
    a.x = run_data(c, n->inputs[0]);
    return c->dev->kernels->softmax_forward(c->compute, &a);
}

static fsdp_status softmax_gradient(const run_context *c, const node *n)
{
    softmax_args a = describe_softmax(c, n);
    a.dy = run_output_grad(c, n, 0);
    a.dx = run_input_grad(c, n, 0, &a.add_dx);
    return c->dev->kernels->softmax_backward(c->compute, &a);
}

static const op_def softmax_op = {.name = "softmax", .forward = softmax_run, .backward = softmax_gradient};

static fsdp_tensor *softmax(fsdp_tape *t, fsdp_tensor *x, int dim, bool logarithm)
{
    int32_t o = logarithm;
    int d = x ? dimension_of(x, dim) : -1;
    if (!x)
        return NULL;
    if (x->dtype > FSDP_F16 || d < 0)
        return tape_refuse(t, "softmax: %s %s has no floating dimension %d", fsdp_dtype_name(x->dtype),
                           tape_shape_text(t, x), dim);
    bool last = d == x->n_dims - 1;
    fsdp_tensor *rows = last ? x : fsdp_transpose(t, x, d, -1);
    fsdp_tensor *y = rows ? tape_value(t, rows->dtype, rows->n_dims, rows->shape) : NULL;
    if (!y || !tape_record(t, &softmax_op, 1, &rows, 1, &y, &o, sizeof o, 0, 1))
        return NULL;
    return last ? y : fsdp_transpose(t, y, d, -1);
}

fsdp_tensor *fsdp_softmax(fsdp_tape *t, fsdp_tensor *x, int dim)
{
    return softmax(t, x, dim, false);
}

fsdp_tensor *fsdp_log_softmax(fsdp_tape *t, fsdp_tensor *x, int dim)
{
    return softmax(t, x, dim, true);
}

/* Elements by index. Inputs: x, index. */

typedef struct gather_attributes {
    int64_t outer, n, inner, count;
    int32_t per_element, unused;
} gather_attributes;

static gather_args describe_gather(const run_context *c, const node *n)
{
    const gather_attributes *o = n->attributes;
    return (gather_args){.outer = o->outer,
                         .n = o->n,
                         .inner = o->inner,
                         .count = o->count,
                         .per_element = o->per_element != 0,
                         .index = run_data(c, n->inputs[1]).p};
}

static fsdp_status gather_run(const run_context *c, const node *n)
{
    gather_args a = describe_gather(c, n);
    a.x = run_data(c, n->inputs[0]);
    a.y = run_data(c, n->outputs[0]);
    return c->dev->kernels->gather_forward(c->compute, &a);
}

static fsdp_status gather_gradient(const run_context *c, const node *n)
{
    gather_args a = describe_gather(c, n);
    a.dy = run_output_grad(c, n, 0);
    a.dx = run_input_grad(c, n, 0, &a.add_dx);
    return c->dev->kernels->gather_backward(c->compute, &a);
}

static const op_def gather_op = {.name = "gather", .forward = gather_run, .backward = gather_gradient};

static fsdp_tensor *gather(fsdp_tape *t, fsdp_tensor *x, int d, fsdp_tensor *index, bool per_element)
{
    gather_attributes o;
    int64_t shape[FSDP_MAX_DIMS];
    fsdp_tensor *inputs[] = {x, index};
    memset(&o, 0, sizeof o);
    memcpy(shape, x->shape, sizeof shape);
    shape[d] = per_element ? index->shape[d] : index->numel;
    o = (gather_attributes){
        .outer = 1, .n = x->shape[d], .inner = 1, .count = shape[d], .per_element = (int32_t)per_element};
    for (int i = 0; i < x->n_dims; i++)
        *(i < d ? &o.outer : &o.inner) *= i == d ? 1 : x->shape[i];
    fsdp_tensor *y = tape_value(t, x->dtype, x->n_dims, shape);
    return y && tape_record(t, &gather_op, 2, inputs, 1, &y, &o, sizeof o, 2, 0) ? y : NULL;
}

fsdp_tensor *fsdp_index_select(fsdp_tape *t, fsdp_tensor *x, int dim, fsdp_tensor *index)
{
    int d = x && index ? dimension_of(x, dim) : -1;
    if (!x || !index)
        return NULL;
    if (x->dtype > FSDP_F16 || index->dtype != FSDP_I32 || d < 0)
        return tape_refuse(t, "index_select: %s %s along %d by %s; floating values and an int32 index are expected",
                           fsdp_dtype_name(x->dtype), tape_shape_text(t, x), dim, fsdp_dtype_name(index->dtype));
    return gather(t, x, d, index, false);
}

fsdp_tensor *fsdp_gather(fsdp_tape *t, fsdp_tensor *x, int dim, fsdp_tensor *index)
{
    int d = x && index ? dimension_of(x, dim) : -1;
    if (!x || !index)
        return NULL;
    bool fits = x->dtype <= FSDP_F16 && index->dtype == FSDP_I32 && d >= 0 && index->n_dims == x->n_dims;
    for (int i = 0; fits && i < x->n_dims; i++)
        fits = i == d || index->shape[i] == x->shape[i];
    if (!fits)
        return tape_refuse(t, "gather: an index %s %s does not fit %s along %d; only that dimension may differ",
                           fsdp_dtype_name(index->dtype), tape_shape_text(t, index), tape_shape_text(t, x), dim);
    return gather(t, x, d, index, true);
}

typedef struct one_hot_attributes {
    int64_t classes;
    int32_t ignore;
    float on, off;
    int32_t unused;
} one_hot_attributes;

static fsdp_status one_hot_run(const run_context *c, const node *n)
{
    const one_hot_attributes *o = n->attributes;
    one_hot_args a = {.rows = n->inputs[0]->numel,
                      .classes = o->classes,
                      .ids = run_data(c, n->inputs[0]).p,
                      .ignore = o->ignore,
                      .on = o->on,
                      .off = o->off,
                      .y = run_data(c, n->outputs[0])};
    return c->dev->kernels->one_hot(c->compute, &a);
}

static const op_def one_hot_op = {.name = "one_hot", .forward = one_hot_run};

fsdp_tensor *ops_one_hot(fsdp_tape *t, fsdp_tensor *ids, int64_t classes, int32_t ignore, float on, float off,
                         fsdp_dtype dtype)
{
    one_hot_attributes o;
    int64_t shape[FSDP_MAX_DIMS];
    if (!ids)
        return NULL;
    if (ids->dtype != FSDP_I32 || classes < 1 || ids->n_dims >= FSDP_MAX_DIMS || dtype > FSDP_F16)
        return tape_refuse(t, "one_hot: %lld classes of %s %s as %s; int32 ids of at most %d dimensions are expected",
                           (long long)classes, fsdp_dtype_name(ids->dtype), tape_shape_text(t, ids),
                           fsdp_dtype_name(dtype), FSDP_MAX_DIMS - 1);
    memset(&o, 0, sizeof o);
    o = (one_hot_attributes){.classes = classes, .ignore = ignore, .on = on, .off = off};
    memcpy(shape, ids->shape, sizeof shape);
    shape[ids->n_dims] = classes;
    fsdp_tensor *y = tape_value(t, dtype, ids->n_dims + 1, shape);
    return y && tape_record(t, &one_hot_op, 1, &ids, 1, &y, &o, sizeof o, 0, 0) ? y : NULL;
}

fsdp_tensor *fsdp_one_hot(fsdp_tape *t, fsdp_tensor *ids, int64_t classes, fsdp_dtype dtype)
{
    return ops_one_hot(t, ids, classes, INT32_MIN, 1, 0, dtype);
}
