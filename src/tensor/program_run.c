/* Execution of a program: inputs are staged, instructions run in order, hooks above are called in between. Values that
 * wait in host memory are copied on a stream beside the compute stream. */
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/record/hooks.h"
#include "tensor/program_internal.h"

static void *storage_pointer(const run_context *c, storage *s)
{
    s = storage_of(s);
    return c->slab + s->offset;
}

buffer run_data(const run_context *c, const fsdp_tensor *x)
{
    if (!x)
        return (buffer){NULL, FSDP_F32};
    if (x->kind == TENSOR_PARAMETER)
        return (buffer){x->parameter->data, x->dtype};
    storage *s = c->phase == PHASE_FORWARD || !x->replay ? x->data : x->replay;
    if (s)
        return (buffer){storage_pointer(c, s), x->dtype};
    return (buffer){(void *)(uintptr_t)x->pointer, x->dtype};
}

buffer run_output_grad(const run_context *c, const node *n, int i)
{
    const fsdp_tensor *y = n->outputs[i];
    if (!y->grad)
        return (buffer){(void *)(uintptr_t)c->seed, FSDP_F32};
    return (buffer){storage_pointer(c, y->grad), y->dtype};
}

buffer run_input_grad(const run_context *c, const node *n, int i, bool *add)
{
    *add = false;
    if (!node_wants_grad(n, i))
        return (buffer){NULL, FSDP_F32};
    const fsdp_tensor *x = n->inputs[i];
    *add = c->add >> i & 1;
    if (x->kind == TENSOR_PARAMETER) {
        *add |= c->accumulate_parameters;
        return (buffer){x->parameter->grad, x->parameter->grad_dtype};
    }
    return (buffer){storage_pointer(c, x->grad), x->dtype};
}

/* The tensor of the program that stands for `x` of a recording with the same signature. */
static const fsdp_tensor *counterpart(const program *p, const fsdp_tensor *x)
{
    return x->tape == p->tape ? x : p->tape->tensors[x->id];
}

fsdp_status program_stage_inputs(program *p, const fsdp_tape *recording, const program_run_args *args)
{
    for (int i = 0; i < recording->n_tensors; i++) {
        const fsdp_tensor *given = recording->tensors[i];
        if (given->kind != TENSOR_INPUT)
            continue;
        fsdp_tensor *x = p->tape->tensors[i];
        if (!given->pointer)
            return error_set(FSDP_ERR_STATE, "input %d of the step has no data", i);
        x->pointer = given->pointer;
        if (x->data)
            FSDP_TRY(args->dev->copy(args->compute, args->slab + storage_of(x->data)->offset, given->pointer,
                                     tensor_bytes(x)));
    }
    return FSDP_OK;
}

static const char *const phase_names[] = {"forward", "replay", "backward", "store", "stored", "fetch", "fetched"};

/* Once for a program: a run after the first creates nothing. */
static fsdp_status open_events(program *p, const program_run_args *args)
{
    if (!args->host || !args->transfers)
        return error_set(FSDP_ERR_STATE, "%d values of the step wait in host memory, but there is none for them",
                         p->n_transfers);
    p->events_of = args->dev;
    FSDP_TRY(args->dev->event_create(args->dev, &p->ready));
    for (int i = 0; i < p->n_transfers; i++)
        FSDP_TRY(args->dev->event_create(args->dev, &p->transfers[i].done));
    return FSDP_OK;
}

/* A copy starts when the compute stream has come here: the value is computed, the memory it goes to is free. */
static fsdp_status start_copy(program *p, const program_run_args *args, const transfer *moved, bool to_host)
{
    device *dev = args->dev;
    uint8_t *host = args->host + moved->host_offset;
    FSDP_TRY(dev->event_record(args->compute, p->ready));
    FSDP_TRY(dev->stream_wait(args->transfers, p->ready));
    if (to_host)
        FSDP_TRY(dev->copy(args->transfers, host, args->slab + moved->from->offset, moved->from->bytes));
    else
        FSDP_TRY(dev->copy(args->transfers, args->slab + moved->to->offset, host, moved->to->bytes));
    return dev->event_record(args->transfers, moved->done);
}

static fsdp_status run_transfer(program *p, const program_run_args *args, const instruction *step)
{
    const char *phase = phase_names[step->phase];
    int64_t bytes = (int64_t)step->moved->from->bytes;
    if (!p->events_of)
        FSDP_TRY(open_events(p, args));
    HOOK(HOOK_OP, HOOK_BEGIN, "offload", phase, bytes, 2);
    fsdp_status status = step->phase == PHASE_STORE || step->phase == PHASE_FETCH
                             ? start_copy(p, args, step->moved, step->phase == PHASE_STORE)
                             : args->dev->stream_wait(args->compute, step->moved->done);
    HOOK(HOOK_OP, HOOK_END, "offload", phase, bytes, 2);
    return status == FSDP_OK ? FSDP_OK : error_prefix(status, "offload.%s: ", phase);
}

enum { WHERE_BYTES = 96 };

/* The module that the operation's parameters belong to, and the shape of its result: "layers.0.mlp.up_proj [8, 256]".
 */
static const char *where(const node *n, char text[WHERE_BYTES])
{
    size_t at = 0;
    text[0] = 0;
    for (int i = 0; i < n->n_inputs; i++) {
        const fsdp_parameter *p = n->inputs[i] ? n->inputs[i]->parameter : NULL;
        const char *dot = p ? strrchr(p->name, '.') : NULL;
        if (!dot)
            continue;
        at = (size_t)snprintf(text, WHERE_BYTES - 32, "%.*s ", (int)(dot - p->name), p->name);
        at = at < WHERE_BYTES - 32 ? at : WHERE_BYTES - 33;
        break;
    }
    const fsdp_tensor *out = n->n_outputs > 0 ? n->outputs[0] : NULL;
    for (int d = 0; out && d < out->n_dims && at < WHERE_BYTES; d++)
        at += (size_t)snprintf(text + at, WHERE_BYTES - at, "%s%lld%s", d ? ", " : "[", (long long)out->shape[d],
                               d + 1 == out->n_dims ? "]" : "");
    return text;
}

static fsdp_status run_node(run_context *c, const instruction *step)
{
    c->phase = step->phase;
    c->add = step->add;
    c->workspace = step->workspace ? storage_pointer(c, step->workspace) : NULL;
    const op_def *op = step->n->op;
    const char *name = step->n->name ? step->n->name : op->name;
    char text[WHERE_BYTES];
    hook_call call = {.where = hooks_kinds >> HOOK_OP & 1 ? where(step->n, text) : NULL};
    HOOK_CALL(HOOK_OP, HOOK_BEGIN, name, phase_names[step->phase], 0, 0, &call);
    fsdp_status status = step->phase == PHASE_BACKWARD ? op->backward(c, step->n) : op->forward(c, step->n);
    HOOK(HOOK_OP, HOOK_END, name, phase_names[step->phase], 0, 0);
    return status == FSDP_OK ? FSDP_OK : error_prefix(status, "%s.%s: ", name, phase_names[step->phase]);
}

fsdp_status program_run_range(program *p, const program_run_args *args, int first, int end)
{
    run_context c = {.dev = args->dev,
                     .compute = args->compute,
                     .training = p->tape->training,
                     .with_backward = p->options.backward,
                     .accumulate_parameters = args->accumulate_parameters,
                     .seed = args->seed,
                     .scalars = args->scalars,
                     .deterministic = args->deterministic,
                     .random_seed = p->tape->seed,
                     .statistics = args->statistics,
                     .peers = args->peers,
                     .slab = args->slab};
    if (first == 0 && p->cleared_bytes > 0)
        FSDP_TRY(args->dev->zero(args->compute, args->slab, p->cleared_bytes));
    for (int i = first; i < end; i++) {
        if (args->before)
            FSDP_TRY(args->before(args->before_context, i));
        const instruction *step = &p->list[i];
        FSDP_TRY(step->n ? run_node(&c, step) : run_transfer(p, args, step));
    }
    if (args->before && end == p->length)
        FSDP_TRY(args->before(args->before_context, p->length));
    return FSDP_OK;
}

fsdp_status program_run(program *p, const fsdp_tape *recording, const program_run_args *args)
{
    FSDP_TRY(program_stage_inputs(p, recording, args));
    return program_run_range(p, args, 0, p->length);
}

fsdp_status program_output(const program *p, const fsdp_tensor *x, const uint8_t *slab, buffer *out)
{
    const fsdp_tensor *own = counterpart(p, x);
    if (own->kind == TENSOR_PARAMETER || own->kind == TENSOR_BUFFER)
        return error_set(FSDP_ERR_INPUT,
                         "a parameter or buffer is no output of a step: read what an operation makes of "
                         "it (fsdp_scale by 1), or parameters with fsdp_parameter_read");
    if (!own->wanted || !own->data)
        return error_set(FSDP_ERR_STATE,
                         "reading a tensor that was not asked for: call fsdp_output on it while recording");
    *out = (buffer){(void *)(uintptr_t)(slab + storage_of(own->data)->offset), own->dtype};
    return FSDP_OK;
}
