/* Functions of one element, and arithmetic whose operands are repeated along dimensions of size 1 (broadcasting). The
 * gradient of a repeated operand is summed over where it was repeated. */
#include <string.h>

#include <fsdp/ops.h>

#include "base/checked.h"
#include "tensor/op.h"
#include "tensor/strides.h"

/* Functions of one element. */

typedef struct map_attributes {
    int32_t kind;
    float power;
} map_attributes;

static map_args describe_map(const run_context *c, const node *n)
{
    const map_attributes *o = n->attributes;
    return (map_args){
        .kind = (map_kind)o->kind, .power = o->power, .n = n->outputs[0]->numel, .x = run_data(c, n->inputs[0])};
}

static fsdp_status map_run(const run_context *c, const node *n)
{
    map_args a = describe_map(c, n);
    a.y = run_data(c, n->outputs[0]);
    return c->dev->kernels->map_forward(c->compute, &a);
}

static fsdp_status map_gradient(const run_context *c, const node *n)
{
    map_args a = describe_map(c, n);
    a.dy = run_output_grad(c, n, 0);
    a.dx = run_input_grad(c, n, 0, &a.add_dx);
    return c->dev->kernels->map_backward(c->compute, &a);
}

static const op_def map_op = {
    .name = "map", .forward = map_run, .backward = map_gradient, .pass_through = 1, .cheap = true};

static fsdp_tensor *map(fsdp_tape *t, fsdp_tensor *x, map_kind kind, float power)
{
    map_attributes o = {(int32_t)kind, power};
    if (!x)
        return NULL;
    if (x->dtype > FSDP_F16)
        return tape_refuse(t, "a function of %s %s: floating values are expected", fsdp_dtype_name(x->dtype),
                           tape_shape_text(t, x));
    fsdp_tensor *y = tape_value(t, x->dtype, x->n_dims, x->shape);
    return y && tape_record(t, &map_op, 1, &x, 1, &y, &o, sizeof o, 1, 0) ? y : NULL;
}

fsdp_tensor *fsdp_exp(fsdp_tape *t, fsdp_tensor *x)
{
    return map(t, x, MAP_EXP, 0);
}

fsdp_tensor *fsdp_log(fsdp_tape *t, fsdp_tensor *x)
{
    return map(t, x, MAP_LOG, 0);
}

fsdp_tensor *fsdp_sqrt(fsdp_tape *t, fsdp_tensor *x)
{
    return map(t, x, MAP_SQRT, 0);
}

fsdp_tensor *fsdp_sigmoid(fsdp_tape *t, fsdp_tensor *x)
{
    return map(t, x, MAP_SIGMOID, 0);
}

fsdp_tensor *fsdp_tanh(fsdp_tape *t, fsdp_tensor *x)
{
    return map(t, x, MAP_TANH, 0);
}

fsdp_tensor *fsdp_softplus(fsdp_tape *t, fsdp_tensor *x)
{
    return map(t, x, MAP_SOFTPLUS, 0);
}

fsdp_tensor *fsdp_pow(fsdp_tape *t, fsdp_tensor *x, float exponent)
{
    return map(t, x, MAP_POWER, exponent);
}

/* Broadcasting. Inputs: a, b, and for a selection the mask. Strides are those of each input within the output. */

typedef struct combine_attributes {
    int32_t kind, n_dims;
    int64_t shape[FSDP_MAX_DIMS];
    int64_t stride[3][FSDP_MAX_DIMS]; /* of a, b, mask */
    float a_value, b_value;           /* of an operand that is a constant */
} combine_attributes;

static void fill_combine(const combine_attributes *o, combine_args *a)
{
    a->n_dims = o->n_dims;
    memcpy(a->shape, o->shape, sizeof a->shape);
}

static fsdp_status combine_run(const run_context *c, const node *n)
{
    const combine_attributes *o = n->attributes;
    combine_args a = {.kind = (combine_kind)o->kind,
                      .a = run_data(c, n->inputs[0]),
                      .b = run_data(c, n->inputs[1]),
                      .a_value = o->a_value,
                      .b_value = o->b_value,
                      .out = run_data(c, n->outputs[0])};
    fill_combine(o, &a);
    memcpy(a.a_stride, o->stride[0], sizeof a.a_stride);
    memcpy(a.b_stride, o->stride[1], sizeof a.b_stride);
    if (n->n_inputs > 2) {
        a.c = run_data(c, n->inputs[2]);
        memcpy(a.c_stride, o->stride[2], sizeof a.c_stride);
    }
    return c->dev->kernels->combine(c->compute, &a);
}

/* d_input, as large as the output and not yet summed over where the input was repeated, as one combination. */
static combine_args combine_gradient(const run_context *c, const node *n, int input)
{
    const combine_attributes *o = n->attributes;
    buffer dy = run_output_grad(c, n, 0), none = {NULL, FSDP_F32};
    combine_args a = {.kind = COMBINE_ADD, .a = dy, .b = none};
    int64_t own[FSDP_MAX_DIMS];
    fill_combine(o, &a);
    strides_of(o->n_dims, o->shape, own);
    memcpy(a.a_stride, own, sizeof own);
    switch ((combine_kind)o->kind) {
    case COMBINE_SUBTRACT:
        a.kind = COMBINE_MULTIPLY;
        a.b_value = input == 0 ? 1 : -1;
        break;
    case COMBINE_MULTIPLY:
    case COMBINE_DIVIDE:
        a.kind = o->kind == COMBINE_MULTIPLY ? COMBINE_MULTIPLY : COMBINE_DIVIDE;
        a.b = run_data(c, n->inputs[1 - input]);
        memcpy(a.b_stride, o->stride[1 - input], sizeof a.b_stride);
        if (o->kind == COMBINE_DIVIDE && input == 1) { /* -dy * y / b */
            a.kind = COMBINE_DIVISOR_GRADIENT;
            a.b = run_data(c, n->outputs[0]);
            a.c = run_data(c, n->inputs[1]);
            memcpy(a.b_stride, own, sizeof own);
            memcpy(a.c_stride, o->stride[1], sizeof a.c_stride);
        }
        break;
    case COMBINE_SELECT:
        a.kind = COMBINE_SELECT;
        a.c = run_data(c, n->inputs[2]);
        memcpy(a.c_stride, o->stride[2], sizeof a.c_stride);
        if (input == 1) {
            a.b = dy;
            memcpy(a.b_stride, own, sizeof own);
            a.a = none;
        }
        break;
    default:
        break;
    }
    return a;
}

static bool is_repeated(const node *n, int input)
{
    return n->inputs[input] && n->inputs[input]->numel != n->outputs[0]->numel;
}

/* Sums `from`, which has the output's shape, over the dimensions along which the input was repeated. */
static fsdp_status sum_repeats(const run_context *c, const node *n, int input, buffer from, buffer dx, bool add)
{
    const combine_attributes *o = n->attributes;
    reduce_dims_args r = {.kind = FSDP_REDUCE_SUM, .alpha = 1, .x = from, .y = dx, .add = add};
    int64_t own[FSDP_MAX_DIMS];
    strides_of(o->n_dims, o->shape, own);
    for (int d = 0; d < o->n_dims; d++) {
        bool kept = o->stride[input][d] != 0 || o->shape[d] == 1;
        int *count = kept ? &r.n_kept : &r.n_reduced;
        (kept ? r.kept : r.reduced)[*count] = o->shape[d];
        (kept ? r.kept_stride : r.reduced_stride)[*count] = own[d];
        ++*count;
    }
    reduce_stand_in(&r);
    return c->dev->kernels->reduce(c->compute, &r);
}

static fsdp_status combine_backward(const run_context *c, const node *n)
{
    for (int i = 0; i < 2; i++) {
        bool add;
        if (!n->inputs[i])
            continue;
        buffer dx = run_input_grad(c, n, i, &add);
        if (!dx.p)
            continue;
        combine_args a = combine_gradient(c, n, i);
        bool repeated = is_repeated(n, i);
        a.out = repeated ? (buffer){c->workspace, FSDP_F32} : dx;
        a.add = !repeated && add;
        FSDP_TRY(c->dev->kernels->combine(c->compute, &a));
        if (repeated)
            FSDP_TRY(sum_repeats(c, n, i, a.out, dx, add));
    }
    return FSDP_OK;
}

static size_t combine_workspace(const device *d, const node *n, bool backward)
{
    (void)d;
    bool repeated = (is_repeated(n, 0) && node_wants_grad(n, 0)) || (is_repeated(n, 1) && node_wants_grad(n, 1));
    return backward && repeated ? (size_t)n->outputs[0]->numel * sizeof(float) : 0;
}

static const op_def combine_op = {
    .name = "combine", .forward = combine_run, .backward = combine_backward, .workspace = combine_workspace};

/* The shape that all operands are repeated to; false when there is none. Dimensions are counted from the last. */
static bool join_shapes(fsdp_tensor *const *x, int n, int *n_dims, int64_t *shape)
{
    *n_dims = 1;
    for (int i = 0; i < n; i++)
        *n_dims = x[i] && x[i]->n_dims > *n_dims ? x[i]->n_dims : *n_dims;
    for (int d = 0; d < *n_dims; d++) {
        shape[d] = 1;
        for (int i = 0; i < n; i++) {
            int at = x[i] ? d - (*n_dims - x[i]->n_dims) : -1;
            int64_t size = at >= 0 ? x[i]->shape[at] : 1;
            if (size != 1 && shape[d] != 1 && size != shape[d])
                return false;
            shape[d] = size != 1 ? size : shape[d];
        }
    }
    return true;
}

static void repeat_strides(const fsdp_tensor *x, int n_dims, int64_t *stride)
{
    int64_t own[FSDP_MAX_DIMS] = {0};
    memset(stride, 0, FSDP_MAX_DIMS * sizeof *stride);
    if (!x)
        return;
    strides_of(x->n_dims, x->shape, own);
    for (int d = 0; d < x->n_dims; d++)
        stride[n_dims - x->n_dims + d] = x->shape[d] == 1 ? 0 : own[d];
}

/* Which inputs and outputs the gradients read. */
static void combine_saves(combine_kind kind, uint32_t *inputs, uint32_t *outputs)
{
    *inputs = kind == COMBINE_MULTIPLY ? 3 : kind == COMBINE_DIVIDE ? 2 : kind == COMBINE_SELECT ? 4 : 0;
    *outputs = kind == COMBINE_DIVIDE;
}

static const char *const combine_names[] = {"add", "sub", "mul", "div", "", "where"};

static fsdp_tensor *combine(fsdp_tape *t, combine_kind kind, int n_inputs, fsdp_tensor *const *x, float a_value,
                            float b_value)
{
    combine_attributes o;
    uint32_t saves_inputs, saves_outputs;
    int n_dims;
    const fsdp_tensor *like = x[0] ? x[0] : x[1];
    memset(&o, 0, sizeof o);
    for (int i = 0; i < 2; i++) {
        if (x[i] && (x[i]->dtype > FSDP_F16 || x[i]->dtype != like->dtype))
            return tape_refuse(t, "%s: operands of %s and %s; floating values of one type are expected (fsdp_cast)",
                               combine_names[kind], fsdp_dtype_name(like->dtype), fsdp_dtype_name(x[i]->dtype));
    }
    if (!join_shapes(x, n_inputs, &n_dims, o.shape))
        return tape_refuse(t, "%s: %s and %s do not broadcast: sizes must be equal, or 1, counted from the last",
                           combine_names[kind], x[0] ? tape_shape_text(t, x[0]) : "a number",
                           x[1] ? tape_shape_text(t, x[1]) : "a number");
    o.kind = (int32_t)kind;
    o.n_dims = n_dims;
    o.a_value = a_value;
    o.b_value = b_value;
    for (int i = 0; i < n_inputs; i++)
        repeat_strides(x[i], n_dims, o.stride[i]);
    combine_saves(kind, &saves_inputs, &saves_outputs);
    fsdp_tensor *y = tape_value(t, like->dtype, n_dims, o.shape);
    return y && tape_record(t, &combine_op, n_inputs, x, 1, &y, &o, sizeof o, saves_inputs, saves_outputs) ? y : NULL;
}

fsdp_tensor *ops_broadcast(fsdp_tape *t, combine_kind kind, fsdp_tensor *a, fsdp_tensor *b)
{
    fsdp_tensor *x[] = {a, b};
    return a && b ? combine(t, kind, 2, x, 0, 0) : NULL;
}

fsdp_tensor *fsdp_sub(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b)
{
    return ops_broadcast(t, COMBINE_SUBTRACT, a, b);
}

fsdp_tensor *fsdp_div(fsdp_tape *t, fsdp_tensor *a, fsdp_tensor *b)
{
    return ops_broadcast(t, COMBINE_DIVIDE, a, b);
}

fsdp_tensor *fsdp_add_scalar(fsdp_tape *t, fsdp_tensor *x, float value)
{
    fsdp_tensor *operands[] = {x, NULL};
    return x ? combine(t, COMBINE_ADD, 2, operands, 0, value) : NULL;
}

static bool check_mask(fsdp_tape *t, const fsdp_tensor *mask)
{
    if (mask->dtype == FSDP_I32)
        return true;
    tape_refuse(t, "where: the mask is %s; int32 is expected, 0 for no", fsdp_dtype_name(mask->dtype));
    return false;
}

fsdp_tensor *fsdp_where(fsdp_tape *t, fsdp_tensor *mask, fsdp_tensor *a, fsdp_tensor *b)
{
    fsdp_tensor *x[] = {a, b, mask};
    return mask && a && b && check_mask(t, mask) ? combine(t, COMBINE_SELECT, 3, x, 0, 0) : NULL;
}

fsdp_tensor *fsdp_masked_fill(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *mask, float value)
{
    fsdp_tensor *operands[] = {NULL, x, mask};
    return mask && x && check_mask(t, mask) ? combine(t, COMBINE_SELECT, 3, operands, value, 0) : NULL;
}
