/* Operations over the ranks of a group: the differentiable all_gather. */
#include <string.h>

#include <fsdp/ops.h>

#include "tensor/op.h"

static bool alone(const run_context *c)
{
    return !c->peers || c->peers->size <= 1;
}

static fsdp_status gather_forward(const run_context *c, const node *n)
{
    buffer x = run_data(c, n->inputs[0]), y = run_data(c, n->outputs[0]);
    if (alone(c))
        return c->dev->copy(c->compute, y.p, x.p, tensor_bytes(n->inputs[0]));
    return c->peers->gather(c->peers->context, c->compute, x, y, n->inputs[0]->numel);
}

static fsdp_status gather_backward(const run_context *c, const node *n)
{
    bool add;
    buffer dy = run_output_grad(c, n, 0), dx = run_input_grad(c, n, 0, &add);
    int64_t numel = n->inputs[0]->numel;
    if (!alone(c))
        return c->peers->scatter_sum(c->peers->context, c->compute, dy, dx, numel, add);
    axpby_args a = {.n = numel, .alpha = 1, .beta = 1, .a = dy, .b = add ? dx : (buffer){NULL, dx.dtype}, .out = dx};
    return c->dev->kernels->axpby(c->compute, &a);
}

static const op_def gather_op = {
    .name = "all_gather", .forward = gather_forward, .backward = gather_backward, .meets_peers = true};

fsdp_tensor *fsdp_all_gather(fsdp_tape *t, fsdp_tensor *x)
{
    if (!x)
        return NULL;
    int64_t shape[FSDP_MAX_DIMS];
    memcpy(shape, x->shape, sizeof shape);
    shape[0] *= t->peers > 1 ? t->peers : 1;
    fsdp_tensor *y = tape_value(t, x->dtype, x->n_dims, shape);
    return y && tape_record(t, &gather_op, 1, &x, 1, &y, NULL, 0, 0, 0) ? y : NULL;
}
