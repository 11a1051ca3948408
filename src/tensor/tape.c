/* Recording of tensors and nodes, and the tape's error. Everything lives in the tape's arena, so a reset is cheap and
 * a recording that repeats allocates nothing. */
#include "tensor/tape.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/hash.h"
#include "tensor/op.h"

fsdp_status tape_create(const device *target, fsdp_tape **out)
{
    fsdp_tape *t = calloc(1, sizeof *t);
    if (!t)
        return error_set(FSDP_ERR_MEMORY, "creating a tape: out of host memory");
    fsdp_status status = arena_create(256 * 1024, &t->memory);
    if (status != FSDP_OK) {
        free(t);
        return status;
    }
    t->target = target;
    tape_reset(t, true);
    *out = t;
    return FSDP_OK;
}

void tape_free(fsdp_tape *t)
{
    if (!t)
        return;
    arena_free(t->memory);
    free(t->nodes);
    free(t->tensors);
    free(t);
}

static fsdp_tensor **copied_list(const fsdp_tape *to, fsdp_tensor *const *list, int n)
{
    fsdp_tensor **copy = arena_alloc(to->memory, (size_t)(n ? n : 1) * sizeof *copy);
    for (int i = 0; copy && i < n; i++)
        copy[i] = list[i] ? to->tensors[list[i]->id] : NULL;
    return copy;
}

static bool copy_tensor(fsdp_tape *to, const fsdp_tensor *from)
{
    fsdp_tensor *x = arena_alloc(to->memory, sizeof *x);
    if (!x)
        return false;
    *x = *from;
    x->tape = to;
    x->producer = NULL;
    to->tensors[to->n_tensors++] = x;
    return true;
}

static bool copy_node(fsdp_tape *to, const node *from)
{
    node *n = arena_alloc(to->memory, sizeof *n);
    if (!n)
        return false;
    *n = *from;
    n->inputs = copied_list(to, from->inputs, from->n_inputs);
    n->outputs = copied_list(to, from->outputs, from->n_outputs);
    n->attributes = arena_alloc(to->memory, n->attributes_bytes ? n->attributes_bytes : 1);
    if (!n->inputs || !n->outputs || !n->attributes)
        return false;
    memcpy(n->attributes, from->attributes, n->attributes_bytes);
    for (int i = 0; i < n->n_outputs; i++)
        n->outputs[i]->producer = n;
    to->nodes[to->n_nodes++] = n;
    return true;
}

fsdp_status tape_copy(const fsdp_tape *t, fsdp_tape **out)
{
    fsdp_tape *copy = NULL;
    FSDP_TRY(tape_create(t->target, &copy));
    arena *memory = copy->memory;
    *copy = *t;
    copy->memory = memory;
    copy->n_nodes = copy->n_tensors = 0;
    copy->nodes_capacity = t->n_nodes, copy->tensors_capacity = t->n_tensors;
    copy->nodes = malloc(((size_t)t->n_nodes + 1) * sizeof *copy->nodes);
    copy->tensors = malloc(((size_t)t->n_tensors + 1) * sizeof *copy->tensors);
    copy->program = NULL;
    bool good = copy->nodes && copy->tensors;
    for (int i = 0; good && i < t->n_tensors; i++)
        good = copy_tensor(copy, t->tensors[i]);
    for (int i = 0; good && i < t->n_nodes; i++)
        good = copy_node(copy, t->nodes[i]);
    if (!good) {
        tape_free(copy);
        return error_set(FSDP_ERR_MEMORY, "copying a recording of %d operations: out of host memory", t->n_nodes);
    }
    *out = copy;
    return FSDP_OK;
}

void tape_reset(fsdp_tape *t, bool training)
{
    arena_reset(t->memory);
    t->n_nodes = t->n_tensors = 0;
    t->region = -1;
    t->n_regions = 0;
    t->no_grad_depth = 0;
    t->counted_rows = -1;
    t->training = training;
    t->status = FSDP_OK;
    t->message[0] = '\0';
    t->signature = hash_u64(HASH_START, training);
    t->program = NULL;
}

bool tape_failed(const fsdp_tape *t)
{
    return t->status != FSDP_OK;
}

fsdp_status fsdp_tape_status(const fsdp_tape *t)
{
    return t->status == FSDP_OK ? FSDP_OK : error_set(t->status, "%s", t->message);
}

fsdp_tensor *fsdp_tape_fail(fsdp_tape *t, fsdp_status status)
{
    if (t->status == FSDP_OK) {
        t->status = status;
        snprintf(t->message, sizeof t->message, "%s", fsdp_last_error());
    }
    return NULL;
}

fsdp_tensor *tape_refuse(fsdp_tape *t, const char *format, ...)
{
    if (t->status == FSDP_OK) {
        va_list arguments;
        va_start(arguments, format);
        t->status = FSDP_ERR_INPUT;
        vsnprintf(t->message, sizeof t->message, format, arguments);
        va_end(arguments);
    }
    return NULL;
}

static fsdp_tensor *out_of_memory(fsdp_tape *t)
{
    error_set(FSDP_ERR_MEMORY, "recording operation %d: out of host memory", t->n_nodes);
    return fsdp_tape_fail(t, FSDP_ERR_MEMORY);
}

/* Makes room for one more pointer in a growing list. */
static bool reserve(void **list, int n, int *capacity)
{
    if (n < *capacity)
        return true;
    int wanted = *capacity ? *capacity * 2 : 256;
    void *grown = realloc(*list, (size_t)wanted * sizeof(void *));
    if (!grown)
        return false;
    *list = grown;
    *capacity = wanted;
    return true;
}

static fsdp_tensor *new_tensor(fsdp_tape *t, tensor_kind kind, fsdp_dtype dtype, int n_dims, const int64_t *shape)
{
    if (tape_failed(t))
        return NULL;
    if (n_dims < 1 || n_dims > FSDP_MAX_DIMS)
        return tape_refuse(t, "a tensor of %d dimensions: 1 to %d are possible", n_dims, FSDP_MAX_DIMS);
    fsdp_tensor *x = arena_alloc(t->memory, sizeof *x);
    if (!x || !reserve((void **)&t->tensors, t->n_tensors, &t->tensors_capacity))
        return out_of_memory(t);
    x->tape = t;
    x->kind = kind;
    x->dtype = dtype;
    x->n_dims = n_dims;
    x->numel = 1;
    for (int i = 0; i < n_dims; i++) {
        x->shape[i] = shape[i];
        if (shape[i] < 0 || checked_mul_i64(x->numel, shape[i], &x->numel))
            return tape_refuse(t, "a tensor with size %lld in dimension %d: negative or too large", (long long)shape[i],
                               i);
    }
    x->id = t->n_tensors;
    t->tensors[t->n_tensors++] = x;
    t->signature = hash_u64(t->signature, (uint64_t)kind << 32 | (uint64_t)dtype << 16 | (uint64_t)n_dims);
    t->signature = hash_bytes(t->signature, x->shape, (size_t)n_dims * sizeof x->shape[0]);
    return x;
}

fsdp_tensor *fsdp_input(fsdp_tape *t, fsdp_dtype dtype, int n_dims, const int64_t *shape, const void *data)
{
    fsdp_tensor *x = new_tensor(t, TENSOR_INPUT, dtype, n_dims, shape);
    if (x)
        x->pointer = data;
    return x;
}

fsdp_tensor *tape_buffer(fsdp_tape *t, fsdp_dtype dtype, int n_dims, const int64_t *shape, void *memory)
{
    fsdp_tensor *x = new_tensor(t, TENSOR_BUFFER, dtype, n_dims, shape);
    if (x) {
        x->pointer = memory;
        t->signature = hash_u64(t->signature, (uintptr_t)memory);
    }
    return x;
}

static fsdp_tensor *parameter_tensor(fsdp_tape *t, fsdp_parameter *p, int n_dims, const int64_t *shape, bool trainable)
{
    fsdp_tensor *x = new_tensor(t, TENSOR_PARAMETER, p->dtype, n_dims, shape);
    if (x) {
        x->parameter = p;
        x->requires_grad = trainable && t->no_grad_depth == 0;
        t->signature = hash_u64(t->signature, (uint64_t)p->index << 1 | x->requires_grad);
    }
    return x;
}

fsdp_tensor *tape_parameter(fsdp_tape *t, fsdp_parameter *p)
{
    return parameter_tensor(t, p, p->n_dims, p->shape, p->trainable);
}

fsdp_tensor *tape_parameter_group(fsdp_tape *t, fsdp_parameter *p)
{
    int64_t shape[FSDP_MAX_DIMS];
    memcpy(shape, p->shape, sizeof shape);
    bool trainable = p->trainable;
    for (const fsdp_parameter *member = p->group_next; member; member = member->group_next) {
        shape[0] += member->shape[0];
        if (member->n_dims != p->n_dims ||
            memcmp(member->shape + 1, p->shape + 1, (size_t)(p->n_dims - 1) * sizeof shape[0]) != 0)
            return tape_refuse(t, "%s and %s form a group, but their rows differ in length", p->name, member->name);
        if (member->trainable != p->trainable)
            return tape_refuse(t, "%s and %s form a group: freeze both or neither", p->name, member->name);
    }
    return parameter_tensor(t, p, p->n_dims, shape, trainable);
}

fsdp_tensor *tape_value(fsdp_tape *t, fsdp_dtype dtype, int n_dims, const int64_t *shape)
{
    return new_tensor(t, TENSOR_VALUE, dtype, n_dims, shape);
}

fsdp_tensor *tape_maxima(fsdp_tape *t, int64_t n)
{
    fsdp_tensor *x = tape_value(t, FSDP_F32, 1, &n);
    if (x)
        x->cleared = true;
    return x;
}

static fsdp_tensor **copy_list(fsdp_tape *t, fsdp_tensor *const *list, int n)
{
    fsdp_tensor **copy = arena_alloc(t->memory, (size_t)(n ? n : 1) * sizeof *copy);
    if (copy && n)
        memcpy(copy, list, (size_t)n * sizeof *copy);
    return copy;
}

static void sign_node(fsdp_tape *t, const node *n)
{
    t->signature = hash_text(t->signature, n->op->name);
    for (int i = 0; i < n->n_inputs; i++)
        t->signature = hash_u64(t->signature, n->inputs[i] ? (uint64_t)n->inputs[i]->id : UINT64_MAX);
    t->signature = hash_bytes(t->signature, n->attributes, n->attributes_bytes);
    t->signature = hash_u64(t->signature, (uint64_t)(n->region + 1) << 1 | n->requires_grad);
}

node *tape_record(fsdp_tape *t, const op_def *op, int n_inputs, fsdp_tensor *const *inputs, int n_outputs,
                  fsdp_tensor *const *outputs, const void *attributes, size_t attributes_bytes, uint32_t saves_inputs,
                  uint32_t saves_outputs)
{
    if (tape_failed(t))
        return NULL;
    node *n = arena_alloc(t->memory, sizeof *n);
    if (!n || !reserve((void **)&t->nodes, t->n_nodes, &t->nodes_capacity)) {
        out_of_memory(t);
        return NULL;
    }
    *n = (node){.op = op,
                .index = t->n_nodes,
                .n_inputs = n_inputs,
                .n_outputs = n_outputs,
                .inputs = copy_list(t, inputs, n_inputs),
                .outputs = copy_list(t, outputs, n_outputs),
                .attributes = arena_alloc(t->memory, attributes_bytes ? attributes_bytes : 1),
                .attributes_bytes = attributes_bytes,
                .saves_inputs = saves_inputs,
                .saves_outputs = saves_outputs,
                .region = t->region};
    if (!n->inputs || !n->outputs || !n->attributes) {
        out_of_memory(t);
        return NULL;
    }
    if (attributes_bytes)
        memcpy(n->attributes, attributes, attributes_bytes);
    for (int i = 0; i < n_inputs; i++) {
        if (!inputs[i])
            continue;
        inputs[i]->n_consumers++;
        if (inputs[i]->requires_grad && op->backward)
            n->requires_grad = true;
    }
    if (t->no_grad_depth > 0)
        n->requires_grad = false;
    for (int i = 0; i < n_outputs; i++) {
        outputs[i]->producer = n;
        outputs[i]->requires_grad = n->requires_grad && i == 0;
    }
    sign_node(t, n);
    t->nodes[t->n_nodes++] = n;
    return n;
}

bool tape_add_output(fsdp_tape *t, node *n, fsdp_tensor *output)
{
    fsdp_tensor **longer = output ? arena_alloc(t->memory, (size_t)(n->n_outputs + 1) * sizeof *longer) : NULL;
    if (!longer) {
        out_of_memory(t);
        return false;
    }
    memcpy(longer, n->outputs, (size_t)n->n_outputs * sizeof *longer);
    longer[n->n_outputs++] = output;
    n->outputs = longer;
    output->producer = n;
    return true;
}

typedef enum tape_mark { MARK_OUTPUT = 1, MARK_KEEP, MARK_REGION } tape_mark;

static void sign_mark(fsdp_tape *t, tape_mark mark, int number)
{
    t->signature = hash_u64(t->signature, (uint64_t)mark << 32 | (uint64_t)number);
}

fsdp_tensor *fsdp_output(fsdp_tape *t, fsdp_tensor *x)
{
    if (x && !x->is_output) {
        x->is_output = true;
        sign_mark(t, MARK_OUTPUT, x->id);
    }
    return x;
}

void fsdp_checkpoint_begin(fsdp_tape *t)
{
    if (t->region >= 0)
        tape_refuse(t, "a checkpointed region begins inside another: regions do not nest");
    else
        sign_mark(t, MARK_REGION, t->region = t->n_regions++);
}

void fsdp_checkpoint_end(fsdp_tape *t)
{
    if (t->region < 0)
        tape_refuse(t, "a checkpointed region ends that never began");
    t->region = -1;
}

fsdp_tensor *fsdp_keep(fsdp_tape *t, fsdp_tensor *x)
{
    if (x && !x->keep && t->selective) {
        x->keep = true;
        sign_mark(t, MARK_KEEP, x->id);
    }
    return x;
}

void fsdp_no_grad_begin(fsdp_tape *t)
{
    t->no_grad_depth++;
}

void fsdp_no_grad_end(fsdp_tape *t)
{
    if (t->no_grad_depth == 0)
        tape_refuse(t, "a no-grad section ends that never began");
    else
        t->no_grad_depth--;
}

bool fsdp_training(const fsdp_tape *t)
{
    return t->training;
}

int fsdp_tensor_dims(const fsdp_tensor *x)
{
    return x->n_dims;
}

int64_t fsdp_tensor_size(const fsdp_tensor *x, int dim)
{
    return x->shape[dim < 0 ? x->n_dims + dim : dim];
}

int64_t fsdp_tensor_numel(const fsdp_tensor *x)
{
    return x->numel;
}

fsdp_dtype fsdp_tensor_dtype(const fsdp_tensor *x)
{
    return x->dtype;
}

int64_t tensor_columns(const fsdp_tensor *x)
{
    return x->shape[x->n_dims - 1];
}

int64_t tensor_rows(const fsdp_tensor *x)
{
    int64_t rows = 1;
    for (int i = 0; i < x->n_dims - 1; i++)
        rows *= x->shape[i];
    return rows;
}

size_t tensor_bytes(const fsdp_tensor *x)
{
    return (size_t)x->numel * fsdp_dtype_size(x->dtype);
}

bool tensor_same_shape(const fsdp_tensor *a, const fsdp_tensor *b)
{
    return a->n_dims == b->n_dims && memcmp(a->shape, b->shape, (size_t)a->n_dims * sizeof a->shape[0]) == 0;
}

const char *tape_shape_text(fsdp_tape *t, const fsdp_tensor *x)
{
    char text[160] = "(";
    size_t used = 1;
    for (int i = 0; i < x->n_dims; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, i ? ", %lld" : "%lld", (long long)x->shape[i]);
    snprintf(text + used, sizeof text - used, ")");
    const char *copy = arena_strdup(t->memory, text);
    return copy ? copy : "";
}
