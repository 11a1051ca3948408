/* Compilation of a recording: forward in order, backward in reverse; before a backward instruction, whatever it reads
 * that was not kept is computed again, at the last moment and only as far as needed. */
#include "tensor/program.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "tensor/program_internal.h"

static fsdp_status no_memory(const program *p)
{
    return error_set(FSDP_ERR_MEMORY, "planning a step of %d operations: out of host memory", p->tape->n_nodes);
}

bool node_wants_grad(const node *n, int i)
{
    return n->inputs[i] && n->inputs[i]->requires_grad;
}

static fsdp_status emit(program *p, run_phase phase, node *n, uint32_t add)
{
    if (p->length == p->capacity) {
        int wanted = p->capacity ? p->capacity * 2 : 512;
        instruction *grown = realloc(p->list, (size_t)wanted * sizeof *grown);
        if (!grown)
            return no_memory(p);
        p->list = grown;
        p->capacity = wanted;
    }
    instruction step = {.phase = phase, .n = n, .add = add};
    size_t bytes = n->op->workspace ? n->op->workspace(p->tape->target, n, phase == PHASE_BACKWARD) : 0;
    if (bytes > 0 && !(step.workspace = program_new_storage(p, bytes)))
        return no_memory(p);
    p->list[p->length++] = step;
    return FSDP_OK;
}

/* Values that backward reads. */

static fsdp_status replay_node(program *p, node *n);

static fsdp_status make_available(program *p, fsdp_tensor *x)
{
    if (!x || x->replay)
        return FSDP_OK;
    if (x->kind != TENSOR_VALUE || program_keeps(p, x)) {
        x->replay = x->data;
        return FSDP_OK;
    }
    return replay_node(p, x->producer);
}

static fsdp_status replay_node(program *p, node *n)
{
    for (int i = 0; i < n->n_inputs; i++)
        FSDP_TRY(make_available(p, n->inputs[i]));
    for (int i = 0; i < n->n_outputs; i++) {
        fsdp_tensor *y = n->outputs[i];
        if (program_keeps(p, y))
            y->replay = y->data;
        else if (n->op->view)
            y->replay = n->inputs[0]->replay;
        else if (i == 0 && program_shares_in_place(n))
            y->replay = n->inputs[n->op->in_place - 1]->replay;
        else if (!(y->replay = program_new_value(p, y)))
            return no_memory(p);
    }
    return n->op->view ? FSDP_OK : emit(p, PHASE_REPLAY, n, 0);
}

static fsdp_status make_saved_available(program *p, const node *n)
{
    for (int i = 0; i < n->n_inputs; i++) {
        if (n->saves_inputs >> i & 1)
            FSDP_TRY(make_available(p, n->inputs[i]));
    }
    for (int i = 0; i < n->n_outputs; i++) {
        if (n->saves_outputs >> i & 1)
            FSDP_TRY(make_available(p, n->outputs[i]));
    }
    return FSDP_OK;
}

/* Gradients. */

/* *written: the parameter (or every member of the group read as one) has been written before in this program. */
static fsdp_status mark_parameter_written(program *p, const fsdp_tensor *x, bool *written)
{
    const fsdp_parameter *member = x->parameter;
    int n_written = 0, n_fresh = 0;
    for (int64_t rows = x->shape[0]; rows > 0 && member; member = member->group_next) {
        for (int i = 0; i < p->n_uses; i++) {
            if (p->uses[i].parameter != member)
                continue;
            if (p->uses[i].grad_first >= 0) {
                n_written++;
                continue;
            }
            n_fresh++;
            p->uses[i].grad_first = p->length;
        }
        rows -= member->shape[0];
    }
    *written = n_written > 0;
    if (n_written > 0 && n_fresh > 0) /* one product cannot add to some members and overwrite others */
        return error_set(
            FSDP_ERR_UNSUPPORTED,
            "%s heads a group of which a member is used by itself after the group; use it before, or ungroup them",
            x->parameter->name);
    return FSDP_OK;
}

/* Nobody reads x after the backward of its only reader, and its memory is its alone. */
static bool ends_here(const fsdp_tensor *x)
{
    if (x->kind != TENSOR_VALUE || x->n_consumers != 1 || x->wanted || !x->replay)
        return false;
    const node *producer = x->producer;
    for (int i = 0; i < producer->n_outputs; i++) {
        if (producer->outputs[i] == x && (producer->saves_outputs >> i & 1))
            return false;
    }
    return !producer->op->view && !program_shares_in_place(producer);
}

/* Decides where the gradient of input i goes; sets its bit in *add when it is added to. */
static fsdp_status route_gradient(program *p, const node *n, int i, uint32_t *add)
{
    fsdp_tensor *x = n->inputs[i], *y = n->outputs[0];
    x->grad_measured = i == 0 && n->op->scales > 0 && n->op->scales <= n->n_inputs && n->inputs[n->op->scales - 1];
    if (x->kind == TENSOR_PARAMETER) {
        bool written;
        FSDP_TRY(mark_parameter_written(p, x, &written));
        *add |= (uint32_t)written << i;
        return FSDP_OK;
    }
    if (x->grad) {
        *add |= 1u << i;
        return FSDP_OK;
    }
    if (n->op->gradient_in_place == i + 1 && ends_here(x)) {
        x->grad = x->replay;
        return FSDP_OK;
    }
    bool passes = n->op->pass_through == i + 1 && y != p->root && x->dtype == y->dtype && x->numel == y->numel;
    x->grad = passes ? y->grad : program_new_storage(p, tensor_bytes(x));
    return x->grad ? FSDP_OK : no_memory(p);
}

static fsdp_status emit_backward(program *p, node *n)
{
    uint32_t add = 0;
    bool only_views = n->op->view;
    FSDP_TRY(make_saved_available(p, n));
    for (int i = 0; i < n->n_inputs; i++) {
        if (!node_wants_grad(n, i))
            continue;
        FSDP_TRY(route_gradient(p, n, i, &add));
        only_views &= storage_of(n->inputs[i]->grad) == storage_of(n->outputs[0]->grad) && !(add >> i & 1);
    }
    return only_views ? FSDP_OK : emit(p, PHASE_BACKWARD, n, add);
}

static fsdp_status add_use(program *p, fsdp_parameter *parameter)
{
    for (int i = 0; i < p->n_uses; i++) {
        if (p->uses[i].parameter == parameter)
            return FSDP_OK;
    }
    if (p->n_uses == p->uses_capacity) {
        int wanted = p->uses_capacity ? p->uses_capacity * 2 : 64;
        parameter_use *grown = realloc(p->uses, (size_t)wanted * sizeof *grown);
        if (!grown)
            return no_memory(p);
        p->uses = grown;
        p->uses_capacity = wanted;
    }
    p->uses[p->n_uses++] = (parameter_use){parameter, -1, -1, -1, -1, -1, -1};
    return FSDP_OK;
}

static fsdp_status list_parameters(program *p)
{
    for (int i = 0; i < p->tape->n_tensors; i++) {
        const fsdp_tensor *x = p->tape->tensors[i];
        if (x->kind != TENSOR_PARAMETER)
            continue;
        fsdp_parameter *member = x->parameter;
        for (int64_t rows = x->shape[0]; rows > 0 && member; member = member->group_next) {
            FSDP_TRY(add_use(p, member));
            rows -= member->shape[0];
        }
    }
    return FSDP_OK;
}

static void note_use(program *p, const fsdp_tensor *x, int at, bool value, bool gradient)
{
    fsdp_parameter *member = x->parameter;
    for (int64_t rows = x->shape[0]; rows > 0 && member; member = member->group_next) {
        rows -= member->shape[0];
        for (int i = 0; i < p->n_uses; i++) {
            parameter_use *use = &p->uses[i];
            if (use->parameter != member)
                continue;
            int *first = at < p->forward_length ? &use->forward_first : &use->backward_first;
            int *last = at < p->forward_length ? &use->forward_last : &use->backward_last;
            if (value && *first < 0)
                *first = at;
            if (value)
                *last = at;
            if (gradient && use->grad_first < 0)
                use->grad_first = at;
            if (gradient)
                use->grad_last = at;
        }
    }
}

static void note_uses(program *p)
{
    for (int i = 0; i < p->n_uses; i++)
        p->uses[i].grad_first = -1; /* were marks of routing; now instruction numbers */
    for (int at = 0; at < p->length; at++) {
        const node *n = p->list[at].n;
        bool backward = p->list[at].phase == PHASE_BACKWARD;
        for (int i = 0; n && i < n->n_inputs; i++) {
            const fsdp_tensor *x = n->inputs[i];
            if (!x || x->kind != TENSOR_PARAMETER)
                continue;
            note_use(p, x, at, !backward || (n->saves_inputs >> i & 1), backward && node_wants_grad(n, i));
        }
    }
}

/* Backward may compute the loss too, when nothing of forward reads it or its count. */
static bool computes_loss_in_backward(const program *p)
{
    if (!p->root || !p->root->producer->op->loss_in_backward)
        return false;
    const node *n = p->root->producer;
    int consumers = 0;
    for (int i = 0; i < n->n_outputs; i++)
        consumers += n->outputs[i]->n_consumers;
    return consumers == 0;
}

static fsdp_status emit_all(program *p)
{
    fsdp_tape *t = p->tape;
    bool fused_loss = computes_loss_in_backward(p);
    for (int i = 0; i < t->n_nodes; i++) {
        node *n = t->nodes[i];
        if (!n->op->view && !(fused_loss && n == p->root->producer))
            FSDP_TRY(emit(p, PHASE_FORWARD, n, 0));
    }
    p->forward_length = p->length;
    if (!p->options.backward)
        return FSDP_OK;
    for (int i = t->n_nodes - 1; i >= 0; i--) {
        node *n = t->nodes[i];
        if (n->requires_grad && (n->outputs[0]->grad || n->outputs[0] == p->root))
            FSDP_TRY(emit_backward(p, n));
    }
    return FSDP_OK;
}

/* Whatever an earlier attempt left on the tape is forgotten. */
static void begin_plan(program *p)
{
    for (int i = 0; i < p->tape->n_tensors; i++) {
        fsdp_tensor *x = p->tape->tensors[i];
        x->data = x->replay = x->grad = NULL;
        x->grad_measured = false;
        x->wanted = x->is_output || x == p->root;
    }
}

fsdp_status program_compile(fsdp_tape *t, fsdp_tensor *root, const program_options *options, program **out)
{
    FSDP_TRY(fsdp_tape_status(t));
    if (options->backward && (!root || root->kind != TENSOR_VALUE || !root->requires_grad))
        return error_set(FSDP_ERR_INPUT, "the loss does not depend on any trainable parameter: nothing to train");
    program *p = calloc(1, sizeof *p);
    if (!p)
        return error_set(FSDP_ERR_MEMORY, "planning a step: out of host memory");
    p->tape = t;
    p->root = options->backward ? root : NULL;
    p->options = *options;
    begin_plan(p);

    fsdp_status status;
    TRY_OR(fail, program_place_values(p));
    TRY_OR(fail, list_parameters(p));
    TRY_OR(fail, emit_all(p));
    TRY_OR(fail, program_offload(p));
    note_uses(p);
    TRY_OR(fail, program_pack(p));
    *out = p;
    return FSDP_OK;
fail:
    p->tape = NULL;
    program_free(p);
    return status;
}

void program_free(program *p)
{
    if (!p)
        return;
    for (int i = 0; p->events_of && i < p->n_transfers; i++)
        p->events_of->event_free(p->transfers[i].done);
    if (p->events_of)
        p->events_of->event_free(p->ready);
    free(p->transfers);
    free(p->list);
    free(p->storages);
    free(p->uses);
    tape_free(p->tape);
    free(p);
}

size_t program_slab_bytes(const program *p)
{
    return p->slab_bytes;
}

size_t program_host_bytes(const program *p)
{
    return p->host_bytes;
}

int program_length(const program *p)
{
    return p->length;
}

const instruction *program_at(const program *p, int index)
{
    return &p->list[index];
}

int program_forward_length(const program *p)
{
    return p->forward_length;
}

const fsdp_tape *program_tape(const program *p)
{
    return p->tape;
}

int program_transfers(const program *p)
{
    return p->n_transfers;
}

int program_transfer_index(const program *p, const instruction *step)
{
    return (int)(step->moved - p->transfers);
}

const parameter_use *program_parameter_uses(const program *p, int *n)
{
    *n = p->n_uses;
    return p->uses;
}
