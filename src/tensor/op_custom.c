/* Operations that a user defines: shown the operands of a node as plain memory. Attributes hold the definition,
 * followed by the user's own bytes. */
#include <fsdp/operation.h>

#include <string.h>

#include "base/error.h"
#include "base/sized.h"
#include "tensor/op.h"

typedef struct custom_attributes {
    const fsdp_operation *operation;
    uint64_t bytes; /* of the user's, which follow */
} custom_attributes;

typedef struct custom_run {
    fsdp_operation_run run;
    fsdp_operand inputs[FSDP_OPERATION_OPERANDS], outputs[FSDP_OPERATION_OPERANDS],
        output_gradients[FSDP_OPERATION_OPERANDS], input_gradients[FSDP_OPERATION_OPERANDS];
} custom_run;

fsdp_shape fsdp_shape_of(const fsdp_tensor *x)
{
    fsdp_shape shape = {.dtype = FSDP_F32};
    if (!x)
        return shape;
    shape.dtype = x->dtype;
    shape.n_dims = x->n_dims;
    memcpy(shape.sizes, x->shape, sizeof shape.sizes);
    return shape;
}

static fsdp_operand operand_of(const fsdp_tensor *x)
{
    return (fsdp_operand){.shape = fsdp_shape_of(x), .numel = x ? x->numel : 0};
}

/* Shapes and attributes; memory comes later. */
static void describe(const device *d, const node *n, custom_run *c)
{
    const custom_attributes *o = n->attributes;
    *c = (custom_run){.run = {.size = sizeof c->run,
                              .device = d->name,
                              .threads = d->threads,
                              .attributes = o->bytes ? o + 1 : NULL,
                              .n_inputs = n->n_inputs,
                              .n_outputs = n->n_outputs,
                              .inputs = c->inputs,
                              .outputs = c->outputs,
                              .output_gradients = c->output_gradients,
                              .input_gradients = c->input_gradients}};
    for (int i = 0; i < n->n_inputs; i++)
        c->inputs[i] = c->input_gradients[i] = operand_of(n->inputs[i]);
    for (int i = 0; i < n->n_outputs; i++)
        c->outputs[i] = c->output_gradients[i] = operand_of(n->outputs[i]);
}

static void prepare(const run_context *c, const node *n, custom_run *r)
{
    describe(c->dev, n, r);
    r->run.stream = c->dev->native_stream ? c->dev->native_stream(c->compute) : NULL;
    r->run.workspace = c->workspace;
}

static fsdp_status custom_forward(const run_context *c, const node *n)
{
    custom_run r;
    prepare(c, n, &r);
    for (int i = 0; i < n->n_inputs; i++)
        r.inputs[i].data = run_data(c, n->inputs[i]).p;
    for (int i = 0; i < n->n_outputs; i++)
        r.outputs[i].data = run_data(c, n->outputs[i]).p;
    return ((const custom_attributes *)n->attributes)->operation->forward(&r.run);
}

static fsdp_status custom_backward(const run_context *c, const node *n)
{
    custom_run r;
    prepare(c, n, &r);
    for (int i = 0; i < n->n_inputs; i++) {
        buffer dx = run_input_grad(c, n, i, &r.input_gradients[i].add);
        r.input_gradients[i].data = dx.p;
        r.input_gradients[i].shape.dtype = dx.dtype;
        if (n->saves_inputs >> i & 1)
            r.inputs[i].data = run_data(c, n->inputs[i]).p;
    }
    for (int i = 0; i < n->n_outputs; i++) {
        r.output_gradients[i].data = run_output_grad(c, n, i).p;
        if (n->saves_outputs >> i & 1)
            r.outputs[i].data = run_data(c, n->outputs[i]).p;
    }
    return ((const custom_attributes *)n->attributes)->operation->backward(&r.run);
}

static size_t custom_workspace(const device *d, const node *n, bool backward)
{
    const fsdp_operation *operation = ((const custom_attributes *)n->attributes)->operation;
    custom_run r;
    describe(d, n, &r);
    return operation->workspace ? operation->workspace(&r.run, backward) : 0;
}

/* With and without a gradient, in graphs and outside of them. */
#define CUSTOM(backward_, outside_)                                                                                    \
    {                                                                                                                  \
        .name = "custom", .forward = custom_forward, .backward = backward_, .workspace = custom_workspace,             \
        .outside_graphs = outside_                                                                                     \
    }
static const op_def custom_ops[2][2] = {{CUSTOM(NULL, true), CUSTOM(NULL, false)},
                                        {CUSTOM(custom_backward, true), CUSTOM(custom_backward, false)}};

static bool refuse(fsdp_tape *t, const fsdp_operation *o, const char *why)
{
    tape_refuse(t, "operation %s: %s", o && o->name ? o->name : "without a name", why);
    return false;
}

static bool check(fsdp_tape *t, const fsdp_operation *o, int n_inputs, fsdp_tensor *const *inputs, int n_outputs)
{
    if (!o->name || !o->forward)
        return refuse(t, o, "its definition needs a name and a forward function");
    if (n_inputs < 1 || n_inputs > FSDP_OPERATION_OPERANDS || n_outputs < 1 || n_outputs > FSDP_OPERATION_OPERANDS)
        return refuse(t, o, "1 to 8 inputs and 1 to 8 outputs are possible");
    for (int i = 0; i < n_inputs; i++) {
        if (!inputs[i])
            return false; /* the tape has the error already */
    }
    return true;
}

bool fsdp_operation_record(fsdp_tape *t, const fsdp_operation *operation, int n_inputs, fsdp_tensor *const *inputs,
                           int n_outputs, const fsdp_shape *shapes, const void *attributes, size_t attributes_bytes,
                           fsdp_tensor **outputs)
{
    for (int i = 0; i < n_outputs; i++)
        outputs[i] = NULL;
    fsdp_operation full = FSDP_OPERATION_INIT;
    fsdp_status status = sized_read(&full, sizeof full, operation, "fsdp_operation", "FSDP_OPERATION_INIT");
    if (status == FSDP_OK && operation->size < offsetof(fsdp_operation, recordable))
        status = error_set(FSDP_ERR_INPUT,
                           "fsdp_operation has size %zu, less than any version of it had: start from "
                           "FSDP_OPERATION_INIT",
                           operation->size);
    if (status != FSDP_OK) {
        fsdp_tape_fail(t, status);
        return false;
    }
    if (!check(t, &full, n_inputs, inputs, n_outputs))
        return false;
    for (int i = 0; i < n_outputs; i++) {
        outputs[i] = tape_value(t, shapes[i].dtype, shapes[i].n_dims, shapes[i].sizes);
        if (!outputs[i])
            return false;
    }
    size_t bytes = sizeof(custom_attributes) + attributes_bytes;
    custom_attributes *o = arena_alloc(t->memory, bytes);
    if (!o)
        return refuse(t, operation, "out of host memory");
    *o = (custom_attributes){operation, attributes_bytes};
    if (attributes_bytes)
        memcpy(o + 1, attributes, attributes_bytes);
    node *n = tape_record(t, &custom_ops[full.backward != NULL][full.recordable], n_inputs, inputs, n_outputs, outputs,
                          o, bytes, full.reads_inputs, full.reads_outputs);
    if (n)
        n->name = full.name;
    return n != NULL;
}
