/* Operations made of others: losses with targets of their own, and group normalisation. They take more memory than a
 * fused kernel would; what language models train with is in ops_loss.c. */
#include <fsdp/ops.h>

#include "tensor/op.h"
#include "tensor/strides.h"

static const fsdp_loss no_loss = {NULL, NULL};

static fsdp_loss loss_of(fsdp_tape *t, fsdp_tensor *sum, fsdp_tensor *count)
{
    return sum && count ? (fsdp_loss){fsdp_output(t, sum), fsdp_output(t, count)} : no_loss;
}

/* A number that the recording knows. Its input only places it after what it counts. */
static fsdp_status constant_run(const run_context *c, const node *n)
{
    fill_args a = {.n = 1, .alpha = *(const float *)n->attributes, .out = run_data(c, n->outputs[0])};
    return c->dev->kernels->fill(c->compute, &a);
}

static const op_def constant_op = {.name = "constant", .forward = constant_run};

static fsdp_tensor *count_of(fsdp_tape *t, fsdp_tensor *like, float value)
{
    const int64_t one = 1;
    fsdp_tensor *y = like ? tape_value(t, FSDP_F32, 1, &one) : NULL;
    return y && tape_record(t, &constant_op, 1, &like, 1, &y, &value, sizeof value, 0, 0) ? y : NULL;
}

fsdp_loss fsdp_cross_entropy_smoothed(fsdp_tape *t, fsdp_tensor *logits, fsdp_tensor *labels, int32_t ignore,
                                      float smoothing)
{
    if (!logits || !labels)
        return no_loss;
    int64_t classes = tensor_columns(logits);
    if (smoothing < 0 || smoothing >= 1 || labels->dtype != FSDP_I32 || labels->numel != tensor_rows(logits)) {
        tape_refuse(t, "cross_entropy: labels %s for logits %s, smoothing %g; a label a row and [0, 1) are expected",
                    tape_shape_text(t, labels), tape_shape_text(t, logits), (double)smoothing);
        return no_loss;
    }
    if (smoothing == 0)
        return fsdp_cross_entropy(t, logits, labels, ignore);
    float off = smoothing / (float)classes;
    fsdp_tensor *log_p = fsdp_log_softmax(t, fsdp_cast(t, logits, FSDP_F32), -1);
    fsdp_tensor *target = ops_one_hot(t, labels, classes, ignore, 1 - smoothing + off, off, FSDP_F32);
    fsdp_tensor *counted = ops_one_hot(t, labels, classes, ignore, 1, 0, FSDP_F32);
    return loss_of(t, fsdp_scale(t, fsdp_sum(t, fsdp_mul(t, log_p, target)), -1), fsdp_sum(t, counted));
}

fsdp_loss fsdp_kl_divergence(fsdp_tape *t, fsdp_tensor *log_p, fsdp_tensor *target)
{
    if (!log_p || !target)
        return no_loss;
    if (!tensor_same_shape(log_p, target) || log_p->dtype != target->dtype) {
        tape_refuse(t, "kl_divergence: %s against a target %s", tape_shape_text(t, log_p), tape_shape_text(t, target));
        return no_loss;
    }
    /* target * (log target - log_p); where the target is 0 so is the term, whatever the logarithm. */
    fsdp_tensor *p = fsdp_cast(t, target, FSDP_F32), *q = fsdp_cast(t, log_p, FSDP_F32);
    fsdp_tensor *log_target = fsdp_log(t, fsdp_add_scalar(t, p, 1e-38f));
    fsdp_tensor *sum = fsdp_sum(t, fsdp_mul(t, p, fsdp_sub(t, log_target, q)));
    return loss_of(t, sum, count_of(t, q, (float)tensor_rows(log_p)));
}

fsdp_loss fsdp_bce_with_logits(fsdp_tape *t, fsdp_tensor *logits, fsdp_tensor *target)
{
    if (!logits || !target)
        return no_loss;
    if (!tensor_same_shape(logits, target) || logits->dtype != target->dtype) {
        tape_refuse(t, "bce_with_logits: %s against a target %s", tape_shape_text(t, logits),
                    tape_shape_text(t, target));
        return no_loss;
    }
    /* -y log s(x) - (1 - y) log(1 - s(x)) = softplus(x) - x y */
    fsdp_tensor *x = fsdp_cast(t, logits, FSDP_F32), *y = fsdp_cast(t, target, FSDP_F32);
    fsdp_tensor *sum = fsdp_sum(t, fsdp_sub(t, fsdp_softplus(t, x), fsdp_mul(t, x, y)));
    return loss_of(t, sum, count_of(t, x, (float)logits->numel));
}

fsdp_tensor *fsdp_group_norm(fsdp_tape *t, fsdp_tensor *x, int64_t groups, fsdp_tensor *weight, fsdp_tensor *bias,
                             float eps)
{
    if (!x || !weight || !bias)
        return NULL;
    if (x->n_dims < 2 || groups < 1 || x->shape[1] % groups != 0 || weight->numel != x->shape[1] ||
        bias->numel != x->shape[1])
        return tape_refuse(t, "group_norm: %lld groups of %s with weight %s and bias %s", (long long)groups,
                           tape_shape_text(t, x), tape_shape_text(t, weight), tape_shape_text(t, bias));
    int64_t rows[] = {x->shape[0] * groups, -1}, affine[FSDP_MAX_DIMS] = {1, x->shape[1], 1, 1, 1, 1};
    fsdp_tensor *flat = fsdp_reshape(t, x->kind == TENSOR_VALUE ? x : fsdp_scale(t, x, 1), 2, rows);
    fsdp_tensor *centred = fsdp_sub(t, flat, fsdp_mean_dim(t, flat, 1, true));
    fsdp_tensor *variance = fsdp_mean_dim(t, fsdp_mul(t, centred, centred), 1, true);
    fsdp_tensor *y = fsdp_mul(t, centred, fsdp_pow(t, fsdp_add_scalar(t, variance, eps), -0.5f));
    fsdp_tensor *w = fsdp_reshape(t, fsdp_scale(t, weight, 1), x->n_dims, affine);
    fsdp_tensor *b = fsdp_reshape(t, fsdp_scale(t, bias, 1), x->n_dims, affine);
    return fsdp_add(t, fsdp_mul(t, fsdp_reshape(t, y, x->n_dims, x->shape), w), b);
}
