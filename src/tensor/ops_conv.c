/* Images: convolution and pooling over (N, C, H, W). */
#include <fsdp/ops.h>

#include "tensor/op.h"

enum { X, WEIGHT, BIAS };

static conv2d_args describe_conv(const node *n)
{
    const fsdp_window *w = n->attributes;
    const fsdp_tensor *x = n->inputs[X], *weight = n->inputs[WEIGHT], *y = n->outputs[0];
    conv2d_args a = {.batch = x->shape[0],
                     .in_channels = x->shape[1],
                     .in_h = x->shape[2],
                     .in_w = x->shape[3],
                     .out_channels = weight->shape[0],
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

/* Size of the output along one side; negative when the window does not fit. */
static int64_t covered(int64_t size, int64_t kernel, int64_t stride, int64_t padding)
{
    if (kernel < 1 || stride < 1 || padding < 0 || size + 2 * padding < kernel)
        return -1;
    return (size + 2 * padding - kernel) / stride + 1;
}

fsdp_tensor *fsdp_conv2d(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, fsdp_window window)
{
    if (!x || !weight)
        return NULL;
    if (x->n_dims != 4 || weight->n_dims != 4 || weight->shape[1] != x->shape[1] ||
        weight->shape[2] != window.kernel_h || weight->shape[3] != window.kernel_w || x->dtype != weight->dtype ||
        (bias && bias->numel != weight->shape[0]))
        return tape_refuse(t, "conv2d: x %s and weight %s do not go together", tape_shape_text(t, x),
                           tape_shape_text(t, weight));
    int64_t shape[] = {x->shape[0], weight->shape[0],
                       covered(x->shape[2], window.kernel_h, window.stride_h, window.padding_h),
                       covered(x->shape[3], window.kernel_w, window.stride_w, window.padding_w)};
    if (shape[2] < 1 || shape[3] < 1)
        return tape_refuse(t, "conv2d: a window of %lld x %lld does not fit %s", (long long)window.kernel_h,
                           (long long)window.kernel_w, tape_shape_text(t, x));
    fsdp_tensor *inputs[] = {x, weight, bias}, *y = tape_value(t, x->dtype, 4, shape);
    return y && tape_record(t, &conv_op, 3, inputs, 1, &y, &window, sizeof window, 3, 0) ? y : NULL;
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
        return tape_refuse(t, "%s: x is %s with padding %lld; (N, C, H, W) without padding is wanted", op->name,
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
