/* Normalisations: RMSNorm, LayerNorm, and BatchNorm2d with statistics summed over a group of ranks. */
#include <string.h>

#include <fsdp/ops.h>

#include "base/checked.h"
#include "tensor/linear.h"

typedef struct norm_attributes {
    float eps, momentum;
    double shift; /* rms norm: added to the weight */
    int64_t rows; /* batch norm: samples that count */
} norm_attributes;

/* Input gradient of every normalisation here reads x, the weight and the row (or channel) statistics. Those over rows
 * take magnitudes on the way. */

enum { RMS_X, RMS_WEIGHT, RMS_SCALES, RMS_INPUTS };
enum { RMS_Y, RMS_RSTD, RMS_OUTPUTS }; /* and the magnitude, where it is asked for */
enum { LAYER_X, LAYER_WEIGHT, LAYER_BIAS, LAYER_SCALES, LAYER_INPUTS };
enum { LAYER_Y, LAYER_MEAN, LAYER_RSTD, LAYER_OUTPUTS };

static rmsnorm_args describe_rmsnorm(const node *n)
{
    const fsdp_tensor *x = n->inputs[0], *w = n->inputs[1];
    const norm_attributes *o = n->attributes;
    rmsnorm_args a = {.rows = tensor_rows(x), .columns = tensor_columns(x), .eps = o->eps, .shift = (float)o->shift};
    a.x.dtype = a.y.dtype = a.dy.dtype = a.dx.dtype = x->dtype;
    a.weight.dtype = w->dtype;
    a.d_weight.dtype = w->parameter ? w->parameter->grad_dtype : w->dtype;
    return a;
}

static fsdp_status rmsnorm_forward(const run_context *c, const node *n)
{
    rmsnorm_args a = describe_rmsnorm(n);
    a.x = run_data(c, n->inputs[0]);
    a.weight = run_data(c, n->inputs[1]);
    a.y = run_data(c, n->outputs[0]);
    a.rstd = run_data(c, n->outputs[1]).p;
    a.magnitude = fp8_output_magnitude(c, n);
    return c->dev->kernels->rmsnorm_forward(c->compute, &a);
}

static fsdp_status rmsnorm_backward(const run_context *c, const node *n)
{
    rmsnorm_args a = describe_rmsnorm(n);
    a.x = run_data(c, n->inputs[0]);
    a.weight = run_data(c, n->inputs[1]);
    a.rstd = run_data(c, n->outputs[1]).p;
    a.dy = run_output_grad(c, n, 0);
    a.dx = run_input_grad(c, n, 0, &a.add_dx);
    a.d_weight = run_input_grad(c, n, 1, &a.add_weight);
    if (a.dx.p)
        a.magnitude = fp8_gradient_magnitude(c, n);
    a.workspace = c->workspace;
    return c->dev->kernels->rmsnorm_backward(c->compute, &a);
}

static size_t rmsnorm_workspace(const device *d, const node *n, bool backward)
{
    rmsnorm_args a = describe_rmsnorm(n);
    return backward ? d->kernels->rmsnorm_backward_workspace(d, &a) : 0;
}

static const op_def rmsnorm_op = {.name = "rmsnorm",
                                  .forward = rmsnorm_forward,
                                  .backward = rmsnorm_backward,
                                  .workspace = rmsnorm_workspace,
                                  .magnitude = RMS_OUTPUTS + 1,
                                  .scales = RMS_SCALES + 1,
                                  .cheap = true};

static fsdp_tensor *rmsnorm(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, float eps, double shift)
{
    if (!x || !weight)
        return NULL;
    if (weight->numel != tensor_columns(x))
        return tape_refuse(t, "rmsnorm: %lld weights for rows of %s", (long long)weight->numel, tape_shape_text(t, x));
    int64_t rows = tensor_rows(x);
    norm_attributes o = {.eps = eps, .shift = shift};
    fsdp_tensor *inputs[RMS_INPUTS] = {x, weight, fp8_gradient_scales(t, x)};
    fsdp_tensor *outputs[RMS_OUTPUTS] = {tape_value(t, x->dtype, x->n_dims, x->shape),
                                         tape_value(t, FSDP_F32, 1, &rows)};
    uint32_t saved = 1u << RMS_X | 1u << RMS_WEIGHT | 1u << RMS_SCALES;
    if (!outputs[RMS_Y] || !outputs[RMS_RSTD])
        return NULL;
    return tape_record(t, &rmsnorm_op, RMS_INPUTS, inputs, RMS_OUTPUTS, outputs, &o, sizeof o, saved, 1u << RMS_RSTD)
               ? outputs[RMS_Y]
               : NULL;
}

fsdp_tensor *fsdp_rmsnorm(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, float eps)
{
    return rmsnorm(t, x, weight, eps, 0);
}

fsdp_tensor *fsdp_rmsnorm_plus_one(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, float eps)
{
    return rmsnorm(t, x, weight, eps, 1);
}

static layernorm_args describe_layernorm(const node *n)
{
    const fsdp_tensor *x = n->inputs[0], *w = n->inputs[1];
    layernorm_args a = {
        .rows = tensor_rows(x), .columns = tensor_columns(x), .eps = ((const norm_attributes *)n->attributes)->eps};
    a.x.dtype = a.y.dtype = a.dy.dtype = a.dx.dtype = x->dtype;
    a.weight.dtype = a.bias.dtype = w->dtype;
    a.d_weight.dtype = a.d_bias.dtype = w->parameter ? w->parameter->grad_dtype : w->dtype;
    return a;
}

static fsdp_status layernorm_forward(const run_context *c, const node *n)
{
    layernorm_args a = describe_layernorm(n);
    a.x = run_data(c, n->inputs[0]);
    a.weight = run_data(c, n->inputs[1]);
    a.bias = run_data(c, n->inputs[2]);
    a.y = run_data(c, n->outputs[0]);
    a.mean = run_data(c, n->outputs[1]).p;
    a.rstd = run_data(c, n->outputs[2]).p;
    a.magnitude = fp8_output_magnitude(c, n);
    return c->dev->kernels->layernorm_forward(c->compute, &a);
}

static fsdp_status layernorm_backward(const run_context *c, const node *n)
{
    layernorm_args a = describe_layernorm(n);
    a.x = run_data(c, n->inputs[0]);
    a.weight = run_data(c, n->inputs[1]);
    a.mean = run_data(c, n->outputs[1]).p;
    a.rstd = run_data(c, n->outputs[2]).p;
    a.dy = run_output_grad(c, n, 0);
    a.dx = run_input_grad(c, n, 0, &a.add_dx);
    a.d_weight = run_input_grad(c, n, 1, &a.add_weight);
    a.d_bias = run_input_grad(c, n, 2, &a.add_bias);
    if (a.dx.p)
        a.magnitude = fp8_gradient_magnitude(c, n);
    a.workspace = c->workspace;
    return c->dev->kernels->layernorm_backward(c->compute, &a);
}

static size_t layernorm_workspace(const device *d, const node *n, bool backward)
{
    layernorm_args a = describe_layernorm(n);
    return backward ? d->kernels->layernorm_backward_workspace(d, &a) : 0;
}

static const op_def layernorm_op = {.name = "layernorm",
                                    .forward = layernorm_forward,
                                    .backward = layernorm_backward,
                                    .workspace = layernorm_workspace,
                                    .magnitude = LAYER_OUTPUTS + 1,
                                    .scales = LAYER_SCALES + 1,
                                    .cheap = true};

fsdp_tensor *fsdp_layernorm(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, float eps)
{
    if (!x || !weight || !bias)
        return NULL;
    if (weight->numel != tensor_columns(x) || bias->numel != tensor_columns(x))
        return tape_refuse(t, "layernorm: %lld weights and %lld biases for rows of %s", (long long)weight->numel,
                           (long long)bias->numel, tape_shape_text(t, x));
    int64_t rows = tensor_rows(x);
    norm_attributes o = {.eps = eps};
    fsdp_tensor *inputs[LAYER_INPUTS] = {x, weight, bias, fp8_gradient_scales(t, x)};
    fsdp_tensor *outputs[LAYER_OUTPUTS] = {tape_value(t, x->dtype, x->n_dims, x->shape),
                                           tape_value(t, FSDP_F32, 1, &rows), tape_value(t, FSDP_F32, 1, &rows)};
    uint32_t saved = 1u << LAYER_X | 1u << LAYER_WEIGHT | 1u << LAYER_SCALES;
    if (!outputs[LAYER_Y] || !outputs[LAYER_MEAN] || !outputs[LAYER_RSTD])
        return NULL;
    return tape_record(t, &layernorm_op, LAYER_INPUTS, inputs, LAYER_OUTPUTS, outputs, &o, sizeof o, saved,
                       1u << LAYER_MEAN | 1u << LAYER_RSTD)
               ? outputs[LAYER_Y]
               : NULL;
}

/* Batch norm. Outputs: y, mean, rstd. Mean and rstd are kept even when the node is computed again, so a replay only
 * normalises: statistics are neither gathered nor moved twice. */

enum { X, WEIGHT, BIAS, RUNNING_MEAN, RUNNING_VAR };

/* Two sums a channel and the count: every rank adds what it has, ranks may have different numbers of rows. */
static int64_t n_sums(const node *n)
{
    return 2 * n->inputs[X]->shape[1] + 1;
}

/* Workspace: the sums, and in backward a copy of this rank's part of them. */
static size_t sums_bytes(const node *n)
{
    return (size_t)n_sums(n) * sizeof(double);
}

static batchnorm_args bind_batchnorm(const run_context *c, const node *n)
{
    const fsdp_tensor *x = n->inputs[X];
    const norm_attributes *o = n->attributes;
    batchnorm_args a = {.batch = x->shape[0],
                        .channels = x->shape[1],
                        .area = x->shape[2] * x->shape[3],
                        .rows = o->rows,
                        .eps = o->eps,
                        .momentum = o->momentum,
                        .evaluate = !c->training,
                        .x = run_data(c, x),
                        .y = run_data(c, n->outputs[0]),
                        .weight = run_data(c, n->inputs[WEIGHT]),
                        .bias = run_data(c, n->inputs[BIAS]),
                        .mean = run_data(c, n->outputs[1]).p,
                        .rstd = run_data(c, n->outputs[2]).p,
                        .running_mean = run_data(c, n->inputs[RUNNING_MEAN]).p,
                        .running_var = run_data(c, n->inputs[RUNNING_VAR]).p,
                        .sums = c->workspace};
    return a;
}

static fsdp_status sum_over_group(const run_context *c, double *sums, int64_t n)
{
    if (!c->statistics || c->statistics->size <= 1)
        return FSDP_OK;
    return c->statistics->sum(c->statistics->context, c->compute, sums, n);
}

static fsdp_status batchnorm_forward(const run_context *c, const node *n)
{
    const kernel_table *k = c->dev->kernels;
    batchnorm_args a = bind_batchnorm(c, n);
    if (c->phase == PHASE_REPLAY)
        a.sums = NULL; /* mean and rstd are there */
    else if (c->training) {
        FSDP_TRY(k->batchnorm_forward_reduce(c->compute, &a));
        FSDP_TRY(sum_over_group(c, a.sums, n_sums(n)));
    }
    return k->batchnorm_forward_apply(c->compute, &a);
}

static fsdp_status batchnorm_backward(const run_context *c, const node *n)
{
    const kernel_table *k = c->dev->kernels;
    batchnorm_args a = bind_batchnorm(c, n);
    double *local = a.sums + n_sums(n);
    a.dy = run_output_grad(c, n, 0);
    a.dx = run_input_grad(c, n, X, &a.add_dx);
    a.d_weight = run_input_grad(c, n, WEIGHT, &a.add_weight);
    a.d_bias = run_input_grad(c, n, BIAS, &a.add_bias);
    FSDP_TRY(k->batchnorm_backward_reduce(c->compute, &a));
    FSDP_TRY(c->dev->copy(c->compute, local, a.sums, sums_bytes(n)));
    a.local_sums = local;
    FSDP_TRY(sum_over_group(c, a.sums, n_sums(n)));
    return k->batchnorm_backward_apply(c->compute, &a);
}

static size_t batchnorm_workspace(const device *d, const node *n, bool backward)
{
    (void)d;
    return sums_bytes(n) * (backward ? 2 : 1);
}

static const op_def batchnorm_op = {.name = "batchnorm2d",
                                    .meets_peers = true,
                                    .forward = batchnorm_forward,
                                    .backward = batchnorm_backward,
                                    .workspace = batchnorm_workspace,
                                    .cheap = true};

fsdp_tensor *fsdp_batchnorm2d(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                              fsdp_tensor *running_mean, fsdp_tensor *running_var, float eps, float momentum)
{
    if (!x || !weight || !bias || !running_mean || !running_var)
        return NULL;
    if (x->n_dims != 4)
        return tape_refuse(t, "batchnorm2d: x is %s; (N, C, H, W) is expected", tape_shape_text(t, x));
    int64_t channels = x->shape[1];
    if (weight->numel != channels || bias->numel != channels || running_mean->numel != channels ||
        running_var->numel != channels)
        return tape_refuse(t, "batchnorm2d: weights and statistics must have %lld elements, one a channel",
                           (long long)channels);
    int64_t rows = t->counted_rows >= 0 ? min_i64(t->counted_rows, x->shape[0]) : x->shape[0];
    norm_attributes o = {.eps = eps, .momentum = momentum, .rows = rows};
    fsdp_tensor *inputs[] = {x, weight, bias, running_mean, running_var};
    fsdp_tensor *outputs[] = {tape_value(t, x->dtype, 4, x->shape), tape_value(t, FSDP_F32, 1, &channels),
                              tape_value(t, FSDP_F32, 1, &channels)};
    if (!outputs[0] || !outputs[1] || !outputs[2])
        return NULL;
    node *n = tape_record(t, &batchnorm_op, 5, inputs, 3, outputs, &o, sizeof o, 1u << X | 1u << WEIGHT, 6);
    if (!n)
        return NULL;
    n->keeps_outputs = 6;
    return outputs[0];
}
