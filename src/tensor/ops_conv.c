/* Images: convolution and pooling over (N, C, H, W). */
#include <fsdp/ops.h>

#include "base/checked.h"
#include "tensor/op.h"

enum { X, WEIGHT, BIAS };

typedef struct conv_attributes {
    fsdp_window window;
    int64_t groups; /* channels are cut into this many, each convolved by itself */
} conv_attributes;

/* The convolution of one group; with one group, of all. */
static conv2d_args describe_conv(const node *n)
{
    const conv_attributes *o = n->attributes;
    const fsdp_window *w = &o->window;
    const fsdp_tensor *x = n->inputs[X], *weight = n->inputs[WEIGHT], *y = n->outputs[0];
    conv2d_args a = {.batch = x->shape[0],
                     .in_channels = x->shape[1] / o->groups,
                     .in_h = x->shape[2],
                     .in_w = x->shape[3],
                     .out_channels = weight->shape[0] / o->groups,
                     .kernel_h = w->kernel_h,
                     .kernel_w = w->kernel_w,
                     .out_h = y->shape[2],
                     .out_w = y->shape[3],
                     .stride_h = w->stride_h,
                     .stride_w = w->stride_w,
                     .padding_h = w->padding_h,
                     .padding_w = w->padding_w};
    a.x.dtype = a.y.dtype = a.dy.dtype = a.dx.dtype = x->dtype;
    a.weight.dtype = a.bias.dtype = weight->dtype;
    a.d_weight.dtype = a.d_bias.dtype = weight->parameter ? weight->parameter->grad_dtype : weight->dtype;
    return a;
}

static fsdp_status conv_forward(const run_context *c, const node *n)
{
    conv2d_args a = describe_conv(n);
    a.x = run_data(c, n->inputs[X]);
    a.weight = run_data(c, n->inputs[WEIGHT]);
    a.bias = run_data(c, n->inputs[BIAS]);
    a.y = run_data(c, n->outputs[0]);
    a.workspace = c->workspace;
    return c->dev->kernels->conv2d_forward(c->compute, &a);
}

static fsdp_status conv_backward(const run_context *c, const node *n)
{
    conv2d_args a = describe_conv(n);
    a.x = run_data(c, n->inputs[X]);
    a.weight = run_data(c, n->inputs[WEIGHT]);
    a.dy = run_output_grad(c, n, 0);
    a.dx = run_input_grad(c, n, X, &a.add_dx);
    a.d_weight = run_input_grad(c, n, WEIGHT, &a.add_weight);
    a.d_bias = run_input_grad(c, n, BIAS, &a.add_bias);
    a.workspace = c->workspace;
    return c->dev->kernels->conv2d_backward(c->compute, &a);
}

static size_t conv_workspace(const device *d, const node *n, bool backward)
{
    conv2d_args a = describe_conv(n);
    return backward ? d->kernels->conv2d_backward_workspace(d, &a) : d->kernels->conv2d_forward_workspace(d, &a);
}

static const op_def conv_op = {
    .name = "conv2d", .forward = conv_forward, .backward = conv_backward, .workspace = conv_workspace};

/* Several groups: the channels of one are copied together, convolved, and copied to their place. Weights and biases of
 * a group lie together already. Workspace: x of a group, y of a group, what one convolution needs. */

typedef struct group_memory {
    buffer x, y;
    void *kernel;
    size_t bytes;
} group_memory;

static group_memory group_memory_at(const node *n, const conv2d_args *a, uint8_t *workspace)
{
    fsdp_dtype dtype = n->inputs[X]->dtype;
    size_t element = fsdp_dtype_size(dtype),
           x = round_up((size_t)(a->batch * a->in_channels * a->in_h * a->in_w) * element, 256),
           y = round_up((size_t)(a->batch * a->out_channels * a->out_h * a->out_w) * element, 256);
    return (group_memory){{workspace, dtype}, {workspace + x, dtype}, workspace + x + y, x + y};
}

static buffer elements_from(buffer b, int64_t first)
{
    if (b.p)
        b.p = (uint8_t *)b.p + (size_t)first * fsdp_dtype_size(b.dtype);
    return b;
}

/* Channels of group g between the whole (batch, groups, size) and a group by itself (batch, size). */
static fsdp_status copy_group(const run_context *c, int64_t batch, int64_t groups, int64_t g, int64_t size,
                              buffer whole, buffer group, bool take, bool add)
{
    buffer part = elements_from(whole, g * size);
    strided_copy_args a = {.n_dims = 2,
                           .shape = {batch, size},
                           .from_stride = {take ? groups * size : size, 1},
                           .to_stride = {take ? size : groups * size, 1},
                           .from = take ? part : group,
                           .to = take ? group : part,
                           .add = add};
    return c->dev->kernels->strided_copy(c->compute, &a);
}

static fsdp_status grouped_forward(const run_context *c, const node *n)
{
    int64_t groups = ((const conv_attributes *)n->attributes)->groups;
    conv2d_args a = describe_conv(n);
    group_memory m = group_memory_at(n, &a, c->workspace);
    int64_t x_size = a.in_channels * a.in_h * a.in_w, y_size = a.out_channels * a.out_h * a.out_w,
            weights = a.out_channels * a.in_channels * a.kernel_h * a.kernel_w;
    buffer x = run_data(c, n->inputs[X]), weight = run_data(c, n->inputs[WEIGHT]), bias = run_data(c, n->inputs[BIAS]),
           y = run_data(c, n->outputs[0]);
    for (int64_t g = 0; g < groups; g++) {
        FSDP_TRY(copy_group(c, a.batch, groups, g, x_size, x, m.x, true, false));
        a.x = m.x;
        a.y = m.y;
        a.weight = elements_from(weight, g * weights);
        a.bias = elements_from(bias, g * a.out_channels);
        a.workspace = m.kernel;
        FSDP_TRY(c->dev->kernels->conv2d_forward(c->compute, &a));
        FSDP_TRY(copy_group(c, a.batch, groups, g, y_size, y, m.y, false, false));
    }
    return FSDP_OK;
}

/* The gradient of x must not take the place of x while weights still read it: it has memory of its own. */
static fsdp_status grouped_backward(const run_context *c, const node *n)
{
    int64_t groups = ((const conv_attributes *)n->attributes)->groups;
    conv2d_args a = describe_conv(n);
    group_memory m = group_memory_at(n, &a, c->workspace), d = group_memory_at(n, &a, m.kernel);
    int64_t x_size = a.in_channels * a.in_h * a.in_w, y_size = a.out_channels * a.out_h * a.out_w,
            weights = a.out_channels * a.in_channels * a.kernel_h * a.kernel_w;
    bool add_dx;
    buffer x = run_data(c, n->inputs[X]), weight = run_data(c, n->inputs[WEIGHT]), dy = run_output_grad(c, n, 0),
           dx = run_input_grad(c, n, X, &add_dx), d_weight = run_input_grad(c, n, WEIGHT, &a.add_weight),
           d_bias = run_input_grad(c, n, BIAS, &a.add_bias);
    for (int64_t g = 0; g < groups; g++) {
        FSDP_TRY(copy_group(c, a.batch, groups, g, x_size, x, m.x, true, false));
        FSDP_TRY(copy_group(c, a.batch, groups, g, y_size, dy, m.y, true, false));
        a.x = m.x;
        a.dy = m.y;
        a.dx = dx.p ? d.x : (buffer){NULL, a.x.dtype};
        a.weight = elements_from(weight, g * weights);
        a.d_weight = elements_from(d_weight, g * weights);
        a.d_bias = elements_from(d_bias, g * a.out_channels);
        a.workspace = d.kernel;
        FSDP_TRY(c->dev->kernels->conv2d_backward(c->compute, &a));
        if (dx.p)
            FSDP_TRY(copy_group(c, a.batch, groups, g, x_size, dx, d.x, false, add_dx));
    }
    return FSDP_OK;
}

static size_t grouped_workspace(const device *d, const node *n, bool backward)
{
    conv2d_args a = describe_conv(n);
    return group_memory_at(n, &a, NULL).bytes * (backward ? 2 : 1) + conv_workspace(d, n, backward);
}

static const op_def grouped_op = {
    .name = "conv2d_grouped", .forward = grouped_forward, .backward = grouped_backward, .workspace = grouped_workspace};

/* Size of the output along one side; negative when the window does not fit. */
static int64_t covered(int64_t size, int64_t kernel, int64_t stride, int64_t padding)
{
    if (kernel < 1 || stride < 1 || padding < 0 || size + 2 * padding < kernel)
        return -1;
    return (size + 2 * padding - kernel) / stride + 1;
}

fsdp_tensor *fsdp_conv2d_grouped(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                                 fsdp_window window, int64_t groups)
{
    if (!x || !weight)
        return NULL;
    if (groups < 1 || x->n_dims != 4 || weight->n_dims != 4 || weight->shape[1] * groups != x->shape[1] ||
        weight->shape[0] % groups != 0 || weight->shape[2] != window.kernel_h || weight->shape[3] != window.kernel_w ||
        x->dtype != weight->dtype || (bias && bias->numel != weight->shape[0]))
        return tape_refuse(t, "conv2d: x %s and weight %s in %lld groups do not go together", tape_shape_text(t, x),
                           tape_shape_text(t, weight), (long long)groups);
    int64_t shape[] = {x->shape[0], weight->shape[0],
                       covered(x->shape[2], window.kernel_h, window.stride_h, window.padding_h),
                       covered(x->shape[3], window.kernel_w, window.stride_w, window.padding_w)};
    if (shape[2] < 1 || shape[3] < 1)
        return tape_refuse(t, "conv2d: a window of %lld x %lld does not fit %s", (long long)window.kernel_h,
                           (long long)window.kernel_w, tape_shape_text(t, x));
    conv_attributes o = {window, groups};
    fsdp_tensor *inputs[] = {x, weight, bias}, *y = tape_value(t, x->dtype, 4, shape);
    const op_def *op = groups > 1 ? &grouped_op : &conv_op;
    return y && tape_record(t, op, 3, inputs, 1, &y, &o, sizeof o, 3, 0) ? y : NULL;
}

fsdp_tensor *fsdp_conv2d(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, fsdp_window window)
{
    return fsdp_conv2d_grouped(t, x, weight, bias, window, 1);
}

/* One dimension is two of which one is 1. Inputs and parameters are copied: only values can be given another shape. */
fsdp_tensor *fsdp_conv1d(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, int64_t stride,
                         int64_t padding, int64_t groups)
{
    if (!x || !weight)
        return NULL;
    if (x->n_dims != 3 || weight->n_dims != 3)
        return tape_refuse(t, "conv1d: x %s and weight %s; (N, C, L) and (O, C / groups, kernel) are expected",
                           tape_shape_text(t, x), tape_shape_text(t, weight));
    fsdp_window window = {1, weight->shape[2], 1, stride, 0, padding};
    int64_t x_shape[] = {x->shape[0], x->shape[1], 1, x->shape[2]},
            w_shape[] = {weight->shape[0], weight->shape[1], 1, weight->shape[2]};
    fsdp_tensor *wide = fsdp_reshape(t, x->kind == TENSOR_VALUE ? x : fsdp_scale(t, x, 1), 4, x_shape);
    fsdp_tensor *w = fsdp_reshape(t, weight->kind == TENSOR_VALUE ? weight : fsdp_scale(t, weight, 1), 4, w_shape);
    fsdp_tensor *y = fsdp_conv2d_grouped(t, wide, w, bias, window, groups);
    if (!y)
        return NULL;
    int64_t shape[] = {y->shape[0], y->shape[1], y->shape[3]};
    return fsdp_reshape(t, y, 3, shape);
}

/* Pooling. Max has a second output, the chosen places. */

static pool2d_args describe_pool(const node *n)
{
    const fsdp_window *w = n->attributes;
    const fsdp_tensor *x = n->inputs[0], *y = n->outputs[0];
    return (pool2d_args){.average = n->n_outputs == 1,
                         .planes = x->shape[0] * x->shape[1],
                         .in_h = x->shape[2],
                         .in_w = x->shape[3],
                         .out_h = y->shape[2],
                         .out_w = y->shape[3],
                         .kernel_h = w->kernel_h,
                         .kernel_w = w->kernel_w,
                         .stride_h = w->stride_h,
                         .stride_w = w->stride_w};
}

static fsdp_status pool_forward(const run_context *c, const node *n)
{
    pool2d_args a = describe_pool(n);
    a.x = run_data(c, n->inputs[0]);
    a.y = run_data(c, n->outputs[0]);
    a.index = n->n_outputs > 1 ? run_data(c, n->outputs[1]).p : NULL;
    return c->dev->kernels->pool2d_forward(c->compute, &a);
}

static fsdp_status pool_backward(const run_context *c, const node *n)
{
    pool2d_args a = describe_pool(n);
    a.index = n->n_outputs > 1 ? run_data(c, n->outputs[1]).p : NULL;
    a.dy = run_output_grad(c, n, 0);
    a.dx = run_input_grad(c, n, 0, &a.add_dx);
    return c->dev->kernels->pool2d_backward(c->compute, &a);
}

static const op_def max_pool_op = {.name = "max_pool2d", .forward = pool_forward, .backward = pool_backward};
static const op_def avg_pool_op = {.name = "avg_pool2d", .forward = pool_forward, .backward = pool_backward};

static fsdp_tensor *pool(fsdp_tape *t, const op_def *op, fsdp_tensor *x, fsdp_window window, bool with_index)
{
    if (!x)
        return NULL;
    if (x->n_dims != 4 || window.padding_h != 0 || window.padding_w != 0)
        return tape_refuse(t, "%s: x is %s with padding %lld; (N, C, H, W) without padding is expected", op->name,
                           tape_shape_text(t, x), (long long)window.padding_h);
    int64_t shape[] = {x->shape[0], x->shape[1], covered(x->shape[2], window.kernel_h, window.stride_h, 0),
                       covered(x->shape[3], window.kernel_w, window.stride_w, 0)};
    if (shape[2] < 1 || shape[3] < 1)
        return tape_refuse(t, "%s: a window of %lld x %lld does not fit %s", op->name, (long long)window.kernel_h,
                           (long long)window.kernel_w, tape_shape_text(t, x));
    fsdp_tensor *outputs[] = {tape_value(t, x->dtype, 4, shape), with_index ? tape_value(t, FSDP_I32, 4, shape) : NULL};
    if (!outputs[0] || (with_index && !outputs[1]))
        return NULL;
    node *n = tape_record(t, op, 1, &x, with_index ? 2 : 1, outputs, &window, sizeof window, 0, with_index ? 2 : 0);
    return n ? outputs[0] : NULL;
}

fsdp_tensor *fsdp_max_pool2d(fsdp_tape *t, fsdp_tensor *x, fsdp_window window)
{
    return pool(t, &max_pool_op, x, window, true);
}

fsdp_tensor *fsdp_avg_pool2d(fsdp_tape *t, fsdp_tensor *x, fsdp_window window)
{
    return pool(t, &avg_pool_op, x, window, false);
}
