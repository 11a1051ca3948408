/* Operations that move elements without changing them: reshape (a view), transpose, slice, concat. */
#include <string.h>

#include <fsdp/ops.h>

#include "base/checked.h"
#include "tensor/op.h"
#include "tensor/strides.h"

/* Reshape is a view: no work forward; backward only when the gradient has another contribution already. */

static fsdp_status reshape_forward(const run_context *c, const node *n)
{
    (void)c;
    (void)n;
    return FSDP_OK;
}

static fsdp_status reshape_backward(const run_context *c, const node *n)
{
    bool add;
    buffer dx = run_input_grad(c, n, 0, &add), dy = run_output_grad(c, n, 0);
    axpby_args a = {
        .n = n->outputs[0]->numel, .alpha = 1, .beta = 1, .a = dy, .b = add ? dx : (buffer){NULL, dx.dtype}, .out = dx};
    return c->dev->kernels->axpby(c->compute, &a);
}

static const op_def reshape_op = {
    .name = "reshape", .forward = reshape_forward, .backward = reshape_backward, .view = true, .pass_through = 1};

fsdp_tensor *fsdp_reshape(fsdp_tape *t, fsdp_tensor *x, int n_dims, const int64_t *wanted)
{
    if (!x)
        return NULL;
    if (x->kind != TENSOR_VALUE)
        return tape_refuse(
            t, "reshape: only values can be reshaped; give the input or parameter the shape that is expected");
    int64_t shape[FSDP_MAX_DIMS], known = 1;
    int free_dim = -1;
    if (n_dims < 1 || n_dims > FSDP_MAX_DIMS)
        return tape_refuse(t, "reshape: %d dimensions; 1 to %d are possible", n_dims, FSDP_MAX_DIMS);
    for (int i = 0; i < n_dims; i++) {
        shape[i] = wanted[i];
        if (shape[i] == -1 && free_dim < 0)
            free_dim = i;
        else if (shape[i] < 0)
            return tape_refuse(t, "reshape: size %lld in dimension %d", (long long)shape[i], i);
        else if (checked_mul_i64(known, shape[i], &known))
            return tape_refuse(t, "reshape: %s cannot become that large", tape_shape_text(t, x));
    }
    if (free_dim >= 0)
        shape[free_dim] = known > 0 ? x->numel / known : 0;
    fsdp_tensor *y = tape_value(t, x->dtype, n_dims, shape);
    if (!y)
        return NULL;
    if (y->numel != x->numel)
        return tape_refuse(t, "reshape: %s cannot become %s", tape_shape_text(t, x), tape_shape_text(t, y));
    return tape_record(t, &reshape_op, 1, &x, 1, &y, NULL, 0, 0, 0) ? y : NULL;
}

/* Transpose, slice and concat copy between a contiguous tensor and a strided part of another. */

typedef struct copy_attributes {
    int32_t n_dims;
    int64_t shape[FSDP_MAX_DIMS];
    int64_t x_stride[FSDP_MAX_DIMS], y_stride[FSDP_MAX_DIMS];
    int64_t x_first, y_first; /* elements */
} copy_attributes;

static buffer at_element(buffer b, int64_t element)
{
    b.p = (uint8_t *)b.p + (size_t)element * fsdp_dtype_size(b.dtype);
    return b;
}

/* to[...] (+)= from[...]; forward copies x to y, backward y to x. */
static fsdp_status copy_part(const run_context *c, const copy_attributes *o, buffer x, buffer y, bool from_x, bool add)
{
    strided_copy_args a = {.n_dims = o->n_dims, .add = add};
    memcpy(a.shape, o->shape, sizeof o->shape);
    memcpy(a.from_stride, from_x ? o->x_stride : o->y_stride, sizeof o->x_stride);
    memcpy(a.to_stride, from_x ? o->y_stride : o->x_stride, sizeof o->x_stride);
    x = at_element(x, o->x_first);
    y = at_element(y, o->y_first);
    a.from = from_x ? x : y;
    a.to = from_x ? y : x;
    return c->dev->kernels->strided_copy(c->compute, &a);
}

static fsdp_status move_forward(const run_context *c, const node *n)
{
    return copy_part(c, n->attributes, run_data(c, n->inputs[0]), run_data(c, n->outputs[0]), true, false);
}

/* Of a slice: what was cut off has gradient zero. */
static fsdp_status move_backward(const run_context *c, const node *n)
{
    bool add;
    buffer dx = run_input_grad(c, n, 0, &add);
    if (!add && n->inputs[0]->numel != n->outputs[0]->numel)
        FSDP_TRY(c->dev->zero(c->compute, dx.p, (size_t)n->inputs[0]->numel * fsdp_dtype_size(dx.dtype)));
    return copy_part(c, n->attributes, dx, run_output_grad(c, n, 0), false, add);
}

static const op_def transpose_op = {.name = "transpose", .forward = move_forward, .backward = move_backward};
static const op_def slice_op = {.name = "slice", .forward = move_forward, .backward = move_backward};

fsdp_tensor *fsdp_transpose(fsdp_tape *t, fsdp_tensor *x, int dim_a, int dim_b)
{
    if (!x)
        return NULL;
    int a = dimension_of(x, dim_a), b = dimension_of(x, dim_b);
    if (a < 0 || b < 0)
        return tape_refuse(t, "transpose: %s has no dimensions %d and %d", tape_shape_text(t, x), dim_a, dim_b);
    copy_attributes o;
    memset(&o, 0, sizeof o);
    o.n_dims = x->n_dims;
    memcpy(o.shape, x->shape, sizeof o.shape);
    strides_of(x->n_dims, x->shape, o.x_stride);
    o.shape[a] = x->shape[b];
    o.shape[b] = x->shape[a];
    int64_t stride = o.x_stride[a];
    o.x_stride[a] = o.x_stride[b];
    o.x_stride[b] = stride;
    fsdp_tensor *y = tape_value(t, x->dtype, x->n_dims, o.shape);
    if (!y)
        return NULL;
    strides_of(y->n_dims, y->shape, o.y_stride);
    return tape_record(t, &transpose_op, 1, &x, 1, &y, &o, sizeof o, 0, 0) ? y : NULL;
}

fsdp_tensor *fsdp_slice(fsdp_tape *t, fsdp_tensor *x, int dim, int64_t first, int64_t size)
{
    if (!x)
        return NULL;
    int d = dimension_of(x, dim);
    if (d < 0 || first < 0 || size < 0 || first > x->shape[d] - size)
        return tape_refuse(t, "slice: %lld from %lld on in dimension %d of %s", (long long)size, (long long)first, dim,
                           tape_shape_text(t, x));
    copy_attributes o;
    memset(&o, 0, sizeof o);
    o.n_dims = x->n_dims;
    memcpy(o.shape, x->shape, sizeof o.shape);
    o.shape[d] = size;
    strides_of(x->n_dims, x->shape, o.x_stride);
    o.x_first = first * o.x_stride[d];
    fsdp_tensor *y = tape_value(t, x->dtype, x->n_dims, o.shape);
    if (!y)
        return NULL;
    strides_of(y->n_dims, y->shape, o.y_stride);
    return tape_record(t, &slice_op, 1, &x, 1, &y, &o, sizeof o, 0, 0) ? y : NULL;
}

/* Concat: part i is copied to its place along one dimension. */

typedef struct concat_attributes {
    int32_t dim;
} concat_attributes;

static copy_attributes part_of(const node *n, int i)
{
    const concat_attributes *c = n->attributes;
    const fsdp_tensor *part = n->inputs[i], *y = n->outputs[0];
    copy_attributes o = {.n_dims = part->n_dims};
    int64_t before = 0;
    for (int k = 0; k < i; k++)
        before += n->inputs[k]->shape[c->dim];
    memcpy(o.shape, part->shape, sizeof o.shape);
    strides_of(part->n_dims, part->shape, o.x_stride);
    strides_of(y->n_dims, y->shape, o.y_stride);
    o.y_first = before * o.y_stride[c->dim];
    return o;
}

static fsdp_status concat_forward(const run_context *c, const node *n)
{
    for (int i = 0; i < n->n_inputs; i++) {
        copy_attributes o = part_of(n, i);
        FSDP_TRY(copy_part(c, &o, run_data(c, n->inputs[i]), run_data(c, n->outputs[0]), true, false));
    }
    return FSDP_OK;
}

static fsdp_status concat_backward(const run_context *c, const node *n)
{
    for (int i = 0; i < n->n_inputs; i++) {
        bool add;
        buffer dx = run_input_grad(c, n, i, &add);
        copy_attributes o = part_of(n, i);
        if (dx.p)
            FSDP_TRY(copy_part(c, &o, dx, run_output_grad(c, n, 0), false, add));
    }
    return FSDP_OK;
}

static const op_def concat_op = {.name = "concat", .forward = concat_forward, .backward = concat_backward};

fsdp_tensor *fsdp_concat(fsdp_tape *t, fsdp_tensor *const *parts, int n_parts, int dim)
{
    if (n_parts < 1 || n_parts > 32)
        return tape_refuse(t, "concat: %d parts; 1 to 32 are possible", n_parts);
    for (int i = 0; i < n_parts; i++) {
        if (!parts[i])
            return NULL;
    }
    const fsdp_tensor *head = parts[0];
    int d = dimension_of(head, dim);
    if (d < 0)
        return tape_refuse(t, "concat: %s has no dimension %d", tape_shape_text(t, head), dim);
    int64_t shape[FSDP_MAX_DIMS];
    memcpy(shape, head->shape, sizeof shape);
    for (int i = 1; i < n_parts; i++) {
        bool fits = parts[i]->n_dims == head->n_dims && parts[i]->dtype == head->dtype;
        for (int k = 0; fits && k < head->n_dims; k++)
            fits = k == d || parts[i]->shape[k] == head->shape[k];
        if (!fits)
            return tape_refuse(t, "concat: part %d is %s beside %s", i, tape_shape_text(t, parts[i]),
                               tape_shape_text(t, head));
        shape[d] += parts[i]->shape[d];
    }
    concat_attributes o = {d};
    fsdp_tensor *y = tape_value(t, head->dtype, head->n_dims, shape);
    return y && tape_record(t, &concat_op, n_parts, parts, 1, &y, &o, sizeof o, 0, 0) ? y : NULL;
}
