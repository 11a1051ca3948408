/* Attention over heads inside wider rows, rotary embedding, and T5's relative position bias. */
#include <math.h>

#include <fsdp/ops.h>

#include "base/checked.h"
#include "tensor/linear.h"

/* q, k and v may lie in one, two or three tensors; each distinct tensor is one input. */
typedef struct attention_attributes {
    int64_t batch, q_length, kv_length, q_heads, kv_heads, head_dim;
    int64_t offset[3];
    int32_t tensor[3]; /* input that holds q, k, v */
    float scale, dropout;
    rng_key key; /* of dropout */
    int32_t causal, relative;
    int64_t window;
} attention_attributes;

enum { BIAS = 3, KEY_MASK = 4, STARTS = 5, N_INPUTS = 6 };

static buffer at_column(buffer b, int64_t column)
{
    if (b.p)
        b.p = (uint8_t *)b.p + (size_t)column * fsdp_dtype_size(b.dtype);
    return b;
}

static void set_bias(attention_args *a, const fsdp_tensor *bias, const attention_attributes *o)
{
    if (!bias)
        return;
    if (o->relative) {
        a->bias_head = o->q_length + o->kv_length - 1;
        a->bias_query = -1;
        a->bias_key = 1;
        return;
    }
    a->bias_key = 1;
    a->bias_query = o->kv_length;
    a->bias_head = o->q_length * o->kv_length;
    a->bias_batch = bias->n_dims == 4 ? o->q_heads * a->bias_head : 0;
}

/* Everything but the pointers. */
static attention_args describe(const node *n)
{
    const attention_attributes *o = n->attributes;
    fsdp_dtype dtype = n->outputs[0]->dtype;
    attention_args a = {.batch = o->batch,
                        .q_length = o->q_length,
                        .kv_length = o->kv_length,
                        .q_heads = o->q_heads,
                        .kv_heads = o->kv_heads,
                        .head_dim = o->head_dim,
                        .scale = o->scale,
                        .causal = o->causal,
                        .window = o->window,
                        .dropout = o->dropout,
                        .dropout_key = {o->key.k[0], o->key.k[1]},
                        .q_row = tensor_columns(n->inputs[o->tensor[0]]),
                        .k_row = tensor_columns(n->inputs[o->tensor[1]]),
                        .v_row = tensor_columns(n->inputs[o->tensor[2]])};
    a.q.dtype = a.k.dtype = a.v.dtype = a.out.dtype = a.d_out.dtype = a.d_q.dtype = a.d_k.dtype = a.d_v.dtype = dtype;
    a.bias.dtype = FSDP_F32;
    set_bias(&a, n->inputs[BIAS], o);
    return a;
}

static attention_args bind(const run_context *c, const node *n)
{
    const attention_attributes *o = n->attributes;
    attention_args a = describe(n);
    a.q = at_column(run_data(c, n->inputs[o->tensor[0]]), o->offset[0]);
    a.k = at_column(run_data(c, n->inputs[o->tensor[1]]), o->offset[1]);
    a.v = at_column(run_data(c, n->inputs[o->tensor[2]]), o->offset[2]);
    a.out = run_data(c, n->outputs[0]);
    a.lse = run_data(c, n->outputs[1]).p;
    a.bias = run_data(c, n->inputs[BIAS]);
    if (a.bias.p && o->relative)
        a.bias = at_column(a.bias, o->q_length - 1);
    a.key_mask = run_data(c, n->inputs[KEY_MASK]).p;
    a.starts = run_data(c, n->inputs[STARTS]).p;
    a.scalars = c->scalars;
    a.deterministic = c->deterministic;
    a.workspace = c->workspace;
    return a;
}

static fsdp_status attention_forward(const run_context *c, const node *n)
{
    attention_args a = bind(c, n);
    return c->dev->kernels->attention_forward(c->compute, &a);
}

static fsdp_status attention_backward(const run_context *c, const node *n)
{
    const attention_attributes *o = n->attributes;
    attention_args a = bind(c, n);
    a.d_out = run_output_grad(c, n, 0);
    a.d_q = at_column(run_input_grad(c, n, o->tensor[0], &a.add_q), o->offset[0]);
    a.d_k = at_column(run_input_grad(c, n, o->tensor[1], &a.add_k), o->offset[1]);
    a.d_v = at_column(run_input_grad(c, n, o->tensor[2], &a.add_v), o->offset[2]);
    a.d_bias = run_input_grad(c, n, BIAS, &a.add_bias).p;
    if (a.d_bias) {
        a.d_bias_numel = n->inputs[BIAS]->numel;
        a.d_bias_first = o->relative ? -(o->q_length - 1) : 0;
        a.d_bias -= a.d_bias_first;
    }
    return c->dev->kernels->attention_backward(c->compute, &a);
}

static size_t attention_workspace(const device *d, const node *n, bool backward)
{
    attention_args a = describe(n);
    float wanted;
    int32_t started;
    if (n->inputs[STARTS])
        a.starts = &started; /* not read, as the bias: other kernels may take such rows */
    if (n->inputs[BIAS]) {
        a.bias.p = &wanted; /* not read: says that there is a bias */
        if (backward && node_wants_grad(n, BIAS)) {
            a.d_bias = &wanted;
            a.d_bias_numel = n->inputs[BIAS]->numel;
        }
    }
    return backward ? d->kernels->attention_backward_workspace(d, &a) : d->kernels->attention_forward_workspace(d, &a);
}

static const op_def attention_op = {.name = "attention",
                                    .forward = attention_forward,
                                    .backward = attention_backward,
                                    .workspace = attention_workspace};

/* Lists the distinct tensors that hold q, k and v as inputs 0..2, and checks that the heads cover all of each. */
static bool place_heads(fsdp_tape *t, const fsdp_attention_config *f, attention_attributes *o, fsdp_tensor **inputs)
{
    const fsdp_heads *heads[] = {&f->q, &f->k, &f->v};
    int64_t covered[3] = {0};
    int n = 0;
    for (int i = 0; i < 3; i++) {
        fsdp_tensor *x = heads[i]->x;
        int64_t width = (i == 0 ? f->q_heads : f->kv_heads) * f->head_dim;
        int at = 0;
        while (at < n && inputs[at] != x)
            at++;
        if (at == n)
            inputs[n++] = x;
        if (x->n_dims != 3 || heads[i]->offset < 0 || heads[i]->offset + width > tensor_columns(x)) {
            tape_refuse(t, "attention: %s of %lld columns at %lld do not lie in %s",
                        i == 0   ? "queries"
                        : i == 1 ? "keys"
                                 : "values",
                        (long long)width, (long long)heads[i]->offset, tape_shape_text(t, x));
            return false;
        }
        covered[at] += width;
        o->tensor[i] = at;
        o->offset[i] = heads[i]->offset;
    }
    for (int i = 0; i < n; i++) {
        if (covered[i] != tensor_columns(inputs[i])) {
            tape_refuse(t, "attention: the heads use %lld of the %lld columns of %s; slice the rest off first",
                        (long long)covered[i], (long long)tensor_columns(inputs[i]), tape_shape_text(t, inputs[i]));
            return false;
        }
    }
    return true;
}

static bool check_extras(fsdp_tape *t, const fsdp_attention_config *f, const attention_attributes *o)
{
    const fsdp_tensor *bias = f->bias, *mask = f->key_mask;
    if (mask && (mask->dtype != FSDP_I32 || mask->numel != o->batch * o->kv_length)) {
        tape_refuse(t, "attention: the key mask is %s; int32 (%lld, %lld) is expected", tape_shape_text(t, mask),
                    (long long)o->batch, (long long)o->kv_length);
        return false;
    }
    if (f->starts && (!f->causal || o->q_length != o->kv_length)) {
        tape_refuse(t, "attention: documents in a row need a causal mask, and as many queries as keys (%lld and %lld)",
                    (long long)o->q_length, (long long)o->kv_length);
        return false;
    }
    if (f->starts && (f->starts->dtype != FSDP_I32 || f->starts->numel != o->batch * o->q_length)) {
        tape_refuse(t, "attention: the starts of documents are %s; int32 (%lld, %lld) is expected",
                    tape_shape_text(t, f->starts), (long long)o->batch, (long long)o->q_length);
        return false;
    }
    if (!bias)
        return true;
    int64_t numel = o->q_heads * (f->relative ? o->q_length + o->kv_length - 1 : o->q_length * o->kv_length);
    if (!f->relative && bias->n_dims == 4)
        numel *= o->batch;
    if (bias->numel != numel) {
        tape_refuse(t, "attention: the bias %s does not fit %lld heads, %lld queries and %lld keys",
                    tape_shape_text(t, bias), (long long)o->q_heads, (long long)o->q_length, (long long)o->kv_length);
        return false;
    }
    return true;
}

fsdp_tensor *fsdp_attention(fsdp_tape *t, const fsdp_attention_config *f)
{
    if (!f->q.x || !f->k.x || !f->v.x || tape_failed(t))
        return NULL;
    attention_attributes o;
    __builtin_memset(&o, 0, sizeof o);
    fsdp_tensor *inputs[N_INPUTS] = {NULL};
    if (f->kv_heads < 1 || f->q_heads % f->kv_heads != 0)
        return tape_refuse(t, "attention: %lld query heads cannot share %lld key heads evenly", (long long)f->q_heads,
                           (long long)f->kv_heads);
    if (!place_heads(t, f, &o, inputs))
        return NULL;
    o.batch = f->q.x->shape[0];
    o.q_length = f->q.x->shape[1];
    o.kv_length = f->k.x->shape[1];
    o.q_heads = f->q_heads;
    o.kv_heads = f->kv_heads;
    o.head_dim = f->head_dim;
    o.scale = f->scale;
    o.causal = f->causal;
    o.relative = f->relative;
    if (f->window < 0 || (f->window > 0 && !f->causal))
        return tape_refuse(t, "attention: a window of %lld keys%s", (long long)f->window,
                           f->window > 0 ? " without a causal mask" : "");
    o.window = f->window < o.kv_length ? f->window : 0; /* one that reaches past the first key hides nothing */
    if (f->dropout < 0 || f->dropout >= 1)
        return tape_refuse(t, "attention: dropout of probability %g; it must lie in [0, 1)", (double)f->dropout);
    if (f->dropout > 0 && t->training) {
        o.dropout = f->dropout;
        o.key = rng_key_fold(rng_key_make(t->seed), (uint64_t)t->n_nodes);
    }
    if (f->k.x->dtype != f->q.x->dtype || f->v.x->dtype != f->q.x->dtype)
        return tape_refuse(t, "attention: queries are %s, keys %s and values %s; cast them to one type",
                           fsdp_dtype_name(f->q.x->dtype), fsdp_dtype_name(f->k.x->dtype),
                           fsdp_dtype_name(f->v.x->dtype));
    if (f->k.x->shape[0] != o.batch || f->v.x->shape[0] != o.batch || f->v.x->shape[1] != o.kv_length)
        return tape_refuse(t, "attention: queries %s, keys %s and values %s disagree", tape_shape_text(t, f->q.x),
                           tape_shape_text(t, f->k.x), tape_shape_text(t, f->v.x));
    if (!check_extras(t, f, &o))
        return NULL;
    inputs[BIAS] = f->bias ? fsdp_cast(t, f->bias, FSDP_F32) : NULL;
    inputs[KEY_MASK] = f->key_mask;
    inputs[STARTS] = f->starts;
    int64_t out_shape[] = {o.batch, o.q_length, o.q_heads * o.head_dim}, lse_shape[] = {o.batch, o.q_heads, o.q_length};
    fsdp_tensor *outputs[] = {tape_value(t, f->q.x->dtype, 3, out_shape), tape_value(t, FSDP_F32, 3, lse_shape)};
    if (!outputs[0] || !outputs[1])
        return NULL;
    uint32_t saved = (1u << N_INPUTS) - 1;
    return tape_record(t, &attention_op, N_INPUTS, inputs, 2, outputs, &o, sizeof o, saved, 3) ? outputs[0] : NULL;
}

/* Documents of a row. They come from the data and are looked at while the model is recorded, so that kernels have
 * nothing to search for: one number a token says all that attention has to know. */

fsdp_tensor *fsdp_document_starts(fsdp_tape *t, fsdp_tensor *documents)
{
    if (!documents || tape_failed(t))
        return NULL;
    if (documents->kind != TENSOR_INPUT || documents->dtype != FSDP_I32 || documents->n_dims != 2)
        return tape_refuse(t, "documents: %s; an input of int32 (rows, tokens) is expected",
                           tape_shape_text(t, documents));
    const int32_t *ids = documents->pointer;
    int64_t length = documents->shape[1];
    int32_t *starts = NULL;
    if (ids && !(starts = arena_alloc(t->memory, (size_t)max_i64(1, documents->numel) * sizeof *starts)))
        return tape_refuse(t, "documents of %lld tokens: out of host memory", (long long)documents->numel);
    for (int64_t i = 0; ids && i < documents->numel; i++) { /* without data: a recording that is only planned */
        bool goes_on = i % length > 0 && ids[i] >= 0 && ids[i] == ids[i - 1];
        starts[i] = goes_on ? starts[i - 1] : (int32_t)(i % length);
    }
    return fsdp_input(t, FSDP_I32, 2, documents->shape, starts);
}

/* Rotary embedding: in place, and its gradient is the rotation back. */

typedef struct rope_attributes {
    int64_t heads, head_dim, first_position;
} rope_attributes;

enum { ROPE_X, COSINE, SINE, POSITIONS, ROPE_SCALES, ROPE_INPUTS };

static fsdp_status rotate(const run_context *c, const node *n, buffer x, bool inverse, float *magnitude)
{
    const rope_attributes *o = n->attributes;
    const fsdp_tensor *shape = n->outputs[0];
    rope_args a = {.rows = tensor_rows(shape),
                   .length = shape->shape[1],
                   .first_position = o->first_position,
                   .heads = o->heads,
                   .head_dim = o->head_dim,
                   .row = tensor_columns(shape),
                   .n_positions = n->inputs[COSINE]->shape[0],
                   .positions = run_data(c, n->inputs[POSITIONS]).p,
                   .x = x,
                   .cosine = run_data(c, n->inputs[COSINE]).p,
                   .sine = run_data(c, n->inputs[SINE]).p,
                   .inverse = inverse,
                   .magnitude = magnitude};
    return c->dev->kernels->rope(c->compute, &a);
}

static fsdp_status rope_forward(const run_context *c, const node *n)
{
    buffer x = run_data(c, n->inputs[0]), y = run_data(c, n->outputs[0]);
    if (x.p != y.p)
        FSDP_TRY(c->dev->copy(c->compute, y.p, x.p, tensor_bytes(n->outputs[0])));
    return rotate(c, n, y, false, NULL);
}

static fsdp_status rope_backward(const run_context *c, const node *n)
{
    bool add;
    buffer dy = run_output_grad(c, n, 0), dx = run_input_grad(c, n, 0, &add);
    if (!dx.p)
        return FSDP_OK;
    float *magnitude = fp8_gradient_magnitude(c, n);
    FSDP_TRY(rotate(c, n, dy, true, dx.p == dy.p ? magnitude : NULL)); /* nobody reads dy after this */
    if (dx.p == dy.p)
        return FSDP_OK;
    axpby_args a = {
        .n = n->outputs[0]->numel, .alpha = 1, .beta = 1, .a = dy, .b = add ? dx : (buffer){NULL, dx.dtype}, .out = dx};
    FSDP_TRY(c->dev->kernels->axpby(c->compute, &a));
    return magnitude ? fp8_measure(c, dx, a.n, magnitude) : FSDP_OK;
}

static const op_def rope_op = {.name = "rope",
                               .forward = rope_forward,
                               .backward = rope_backward,
                               .in_place = 1,
                               .pass_through = 1,
                               .scales = ROPE_SCALES + 1};

/* positions NULL: counted from first_position on. */
static fsdp_tensor *record_rope(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *cosine, fsdp_tensor *sine,
                                fsdp_tensor *positions, rope_attributes o)
{
    if (x->n_dims != 3 || o.head_dim % 2 != 0 || o.heads * o.head_dim > tensor_columns(x))
        return tape_refuse(t, "rope: %lld heads of %lld do not lie in %s", (long long)o.heads, (long long)o.head_dim,
                           tape_shape_text(t, x));
    if (o.first_position < 0)
        return tape_refuse(t, "rope: the first position is %lld", (long long)o.first_position);
    if (positions && (positions->dtype != FSDP_I32 || positions->numel != tensor_rows(x)))
        return tape_refuse(t, "rope: the positions of %s are %s; int32 (%lld, %lld) is expected", tape_shape_text(t, x),
                           tape_shape_text(t, positions), (long long)x->shape[0], (long long)x->shape[1]);
    int64_t reach = positions ? 1 : x->shape[1] + o.first_position;
    if (cosine->n_dims != 2 || cosine->shape[1] != o.head_dim / 2 || !tensor_same_shape(cosine, sine) ||
        cosine->shape[0] < reach)
        return tape_refuse(t, "rope: tables %s do not reach %lld positions of %lld", tape_shape_text(t, cosine),
                           (long long)reach, (long long)(o.head_dim / 2));
    fsdp_tensor *y = tape_value(t, x->dtype, x->n_dims, x->shape),
                *inputs[ROPE_INPUTS] = {x, cosine, sine, positions, fp8_gradient_scales(t, x)};
    uint32_t saved = 1u << COSINE | 1u << SINE | 1u << POSITIONS | 1u << ROPE_SCALES;
    return y && tape_record(t, &rope_op, ROPE_INPUTS, inputs, 1, &y, &o, sizeof o, saved, 0) ? y : NULL;
}

fsdp_tensor *fsdp_rope(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *cosine, fsdp_tensor *sine, int64_t heads,
                       int64_t head_dim, int64_t first_position)
{
    if (!x || !cosine || !sine)
        return NULL;
    return record_rope(t, x, cosine, sine, NULL, (rope_attributes){heads, head_dim, first_position});
}

fsdp_tensor *fsdp_rope_at(fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *cosine, fsdp_tensor *sine, fsdp_tensor *positions,
                          int64_t heads, int64_t head_dim)
{
    if (!x || !cosine || !sine || !positions)
        return NULL;
    return record_rope(t, x, cosine, sine, positions, (rope_attributes){heads, head_dim, 0});
}

/* T5: distances fall into buckets, exact when near, logarithmic up to max_distance. */
static int32_t bucket_of(int64_t distance, bool bidirectional, int64_t buckets, int64_t max_distance)
{
    int64_t first = 0; /* distance = key - query */
    if (bidirectional) {
        buckets /= 2;
        if (distance > 0)
            first = buckets;
        distance = distance < 0 ? -distance : distance;
    } else {
        distance = distance > 0 ? 0 : -distance;
    }
    int64_t exact = buckets / 2;
    if (distance < exact)
        return (int32_t)(first + distance);
    float place = logf((float)distance / (float)exact) / (float)log((double)max_distance / (double)exact) *
                  (float)(buckets - exact);
    return (int32_t)(first + min_i64(exact + (int64_t)place, buckets - 1));
}

fsdp_tensor *fsdp_relative_bias(fsdp_tape *t, fsdp_tensor *table, int64_t q_length, int64_t kv_length,
                                bool bidirectional, int64_t max_distance, int64_t first_query)
{
    if (!table || tape_failed(t))
        return NULL;
    int64_t distances = q_length + kv_length - 1, buckets = table->shape[0], exact = buckets / (bidirectional ? 4 : 2);
    if (table->n_dims != 2 || q_length < 1 || kv_length < 1 || exact < 1 || max_distance <= exact)
        return tape_refuse(t, "relative bias: a table %s for %lld queries, %lld keys and distances up to %lld",
                           tape_shape_text(t, table), (long long)q_length, (long long)kv_length,
                           (long long)max_distance);
    int32_t *ids = arena_alloc(t->memory, (size_t)distances * sizeof *ids);
    if (!ids)
        return tape_refuse(t, "relative bias over %lld distances: out of host memory", (long long)distances);
    for (int64_t i = 0; i < distances; i++)
        ids[i] = bucket_of(i - (q_length - 1) - first_query, bidirectional, buckets, max_distance);
    fsdp_tensor *rows = fsdp_embedding(t, fsdp_input(t, FSDP_I32, 1, &distances, ids), table); /* (distances, heads) */
    return fsdp_cast(t, fsdp_transpose(t, rows, 0, 1), FSDP_F32);
}
