/* The decoder of every family: blocks of attention and feed-forward, each with its norm and a residual, built from the
 * family's row of traits (family.c). Projections that share their input are one product each, q|k|v and gate|up, but
 * where heads are normalised: then q, k and v are products of their own. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/error.h"
#include "base/sized.h"
#include "models/config.h"
#include "models/decode.h"
#include "models/family.h"
#include "models/rope.h"
#include "nn/lora.h"
#include "nn/module.h"

/* One projection, or several of one input packed. */
typedef struct projection {
    fsdp_parameter *weight, *bias; /* head their groups; bias may be NULL */
} projection;

typedef struct decoder_block {
    fsdp_module base;
    const family_traits *traits;
    int64_t heads, kv_heads, head_dim, window;
    float scale, residual_dropout, attention_dropout;
    fsdp_feed_forward_function function;
    fsdp_module *norm_1, *norm_2, *post_1, *post_2, *q_norm, *k_norm;
    projection qkv, q, k, v; /* qkv, or the other three */
    projection out, up, down;
} decoder_block;

typedef struct rope_tables {
    fsdp_buffer *cosine, *sine; /* (positions, head_dim/2) */
} rope_tables;

typedef struct decoder {
    fsdp_module base;
    const family_traits *traits;
    fsdp_module *embedding, *positions, *norm, *head; /* positions NULL: rotary; head NULL: tied to the embedding */
    decoder_block **blocks;
    int64_t n_blocks;
    float embedding_scale, embedding_dropout;
    rope_tables rope, local_rope; /* local: of layers with a window, where theirs differ */
} decoder;

/* ---- Forward ---- */

/* x (..., inputs) -> (..., outputs), with `residual` added unless it is NULL. */
static fsdp_tensor *project(const projection *p, fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *residual)
{
    return lora_project(t, x, p->weight, p->bias, residual);
}

/* What a layer's part gives, normalised and thinned out where the family does so, plus the stream that it came from. */
static fsdp_tensor *add_to_stream(const decoder_block *b, fsdp_tape *t, const projection *p, fsdp_tensor *x,
                                  fsdp_module *norm, fsdp_tensor *residual)
{
    bool drops = b->residual_dropout > 0 && fsdp_training(t);
    if (!norm && !drops)
        return project(p, t, x, residual);
    x = project(p, t, x, NULL);
    if (norm)
        x = fsdp_call(norm, t, x);
    return fsdp_add(t, residual, drops ? fsdp_dropout(t, x, b->residual_dropout) : x);
}

/* Heads (B, T, n*head_dim), each normalised. */
static fsdp_tensor *normalise_heads(const decoder_block *b, fsdp_tape *t, fsdp_module *norm, fsdp_tensor *x)
{
    if (!x)
        return NULL;
    int64_t flat[] = {fsdp_tensor_size(x, 0), fsdp_tensor_size(x, 1), fsdp_tensor_size(x, 2)};
    int64_t apart[] = {flat[0], flat[1], flat[2] / b->head_dim, b->head_dim};
    return fsdp_reshape(t, fsdp_call(norm, t, fsdp_reshape(t, x, 4, apart)), 3, flat);
}

/* How tokens stand in their rows. */
typedef struct placement {
    fsdp_tensor *cosine, *sine; /* NULL: no rotation */
    fsdp_tensor *starts;        /* int32 (B, T), of documents; NULL: a row is one */
    fsdp_tensor *positions;     /* int32 (B, T); NULL: counted from 0 */
} placement;

static fsdp_tensor *rotate(const decoder_block *b, fsdp_tape *t, fsdp_tensor *x, const placement *at, int64_t heads)
{
    if (!at->cosine)
        return x;
    return at->positions ? fsdp_rope_at(t, x, at->cosine, at->sine, at->positions, heads, b->head_dim)
                         : fsdp_rope(t, x, at->cosine, at->sine, heads, b->head_dim, 0);
}

/* Causal attention among the positions of x (B, T, C): queries, keys and values, rotated. */
static fsdp_attention_config attention_within(decoder_block *b, fsdp_tape *t, fsdp_tensor *x, const placement *at)
{
    int64_t q_width = b->heads * b->head_dim, kv_width = b->kv_heads * b->head_dim;
    fsdp_attention_config a = {.q_heads = b->heads,
                               .kv_heads = b->kv_heads,
                               .head_dim = b->head_dim,
                               .scale = b->scale,
                               .causal = true,
                               .window = b->window,
                               .starts = at->starts,
                               .dropout = b->attention_dropout};
    x = fsdp_call(b->norm_1, t, x);
    if (b->q_norm) {
        fsdp_tensor *q = normalise_heads(b, t, b->q_norm, project(&b->q, t, x, NULL));
        fsdp_tensor *k = normalise_heads(b, t, b->k_norm, project(&b->k, t, x, NULL));
        a.q.x = rotate(b, t, q, at, b->heads);
        a.k.x = rotate(b, t, k, at, b->kv_heads);
        a.v.x = project(&b->v, t, x, NULL);
        return a;
    }
    fsdp_tensor *qkv = rotate(b, t, project(&b->qkv, t, x, NULL), at, b->heads + b->kv_heads);
    a.q = (fsdp_heads){qkv, 0};
    a.k = (fsdp_heads){qkv, q_width};
    a.v = (fsdp_heads){qkv, q_width + kv_width};
    return a;
}

/* The feed-forward's function of up (..., F), or of gate|up (..., 2F). */
static fsdp_tensor *activate(const decoder_block *b, fsdp_tape *t, fsdp_tensor *x)
{
    bool silu = b->function == FSDP_FUNCTION_SILU;
    if (!b->traits->ungated)
        return silu ? fsdp_swiglu(t, x) : fsdp_geglu_tanh(t, x);
    if (b->function == FSDP_FUNCTION_GELU_TANH)
        return fsdp_gelu_tanh(t, x);
    if (b->function == FSDP_FUNCTION_GELU)
        return fsdp_gelu(t, x);
    return silu ? fsdp_silu(t, x) : fsdp_relu(t, x);
}

/* What follows attention: its projection, the feed-forward, both residuals. */
static fsdp_tensor *finish(decoder_block *b, fsdp_tape *t, fsdp_tensor *heads, fsdp_tensor *residual)
{
    heads = fsdp_keep(t, heads);
    fsdp_tensor *h = fsdp_keep(t, add_to_stream(b, t, &b->out, heads, b->post_1, residual));
    fsdp_tensor *x = fsdp_call(b->norm_2, t, h);
    x = activate(b, t, project(&b->up, t, x, NULL));
    return add_to_stream(b, t, &b->down, x, b->post_2, h);
}

void decoder_block_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *const *in, int n_in, fsdp_tensor **out,
                           int n_out)
{
    (void)n_out;
    decoder_block *b = (decoder_block *)self;
    int rotary = n_in > 2 ? 2 : 0; /* tensors of rotation come first */
    placement at = {.cosine = rotary ? in[1] : NULL, .sine = rotary ? in[2] : NULL};
    at.starts = n_in > 1 + rotary ? in[1 + rotary] : NULL;
    at.positions = n_in > 2 + rotary ? in[2 + rotary] : NULL;
    fsdp_attention_config attention = attention_within(b, t, in[0], &at);
    out[0] = finish(b, t, fsdp_attention(t, &attention), in[0]);
}

/* ---- Building ---- */

/* Parameter NAME.weight of the block, in the family's layout. */
static fsdp_parameter *add_weight(decoder_block *b, const char *name, int64_t outputs, int64_t inputs, float deviation)
{
    bool input_major = b->traits->input_major;
    int64_t shape[] = {input_major ? inputs : outputs, input_major ? outputs : inputs};
    char full[64];
    snprintf(full, sizeof full, "%s.weight", name);
    fsdp_parameter *p = fsdp_module_parameter(b, full, 2, shape, FSDP_INIT_NORMAL, deviation);
    if (p)
        p->linear = input_major ? LINEAR_INPUT_MAJOR : LINEAR_OUTPUT_MAJOR;
    return p;
}

static fsdp_parameter *add_bias(decoder_block *b, const char *name, int64_t outputs)
{
    char full[64];
    snprintf(full, sizeof full, "%s.bias", name);
    return fsdp_module_parameter(b, full, 1, &outputs, FSDP_INIT_ZERO, 0);
}

/* Projections of one input: n names with a number of outputs each, or one name for all of them together. */
typedef struct parts {
    const char *const *names;
    int n;
    const int64_t *outputs;
    int64_t inputs;
    float deviation;
} parts;

static int names_in(const parts *p)
{
    return p->n > 1 && !p->names[1] ? 1 : p->n;
}

static int64_t outputs_of(const parts *p, int i)
{
    int64_t all = p->outputs[i];
    for (int k = 1; names_in(p) == 1 && k < p->n; k++)
        all += p->outputs[k];
    return all;
}

static fsdp_parameter *group(fsdp_parameter **members, int n)
{
    if (n > 1)
        fsdp_parameter_group(members, n);
    return members[0];
}

static projection add_weights(decoder_block *b, const parts *p)
{
    fsdp_parameter *weights[3];
    for (int i = 0; i < names_in(p); i++)
        weights[i] = add_weight(b, p->names[i], outputs_of(p, i), p->inputs, p->deviation);
    return (projection){.weight = group(weights, names_in(p))};
}

static void add_biases(decoder_block *b, projection *to, const parts *p)
{
    fsdp_parameter *biases[3];
    for (int i = 0; i < names_in(p); i++)
        biases[i] = add_bias(b, p->names[i], outputs_of(p, i));
    to->bias = group(biases, names_in(p));
}

/* NULL for a name: the family has none. */
static fsdp_module *add_norm(void *parent, const family_traits *traits, const char *name, int64_t columns, float eps)
{
    if (!name)
        return NULL;
    fsdp_module *norm = traits->norm == NORM_LAYER          ? fsdp_layernorm_new(columns, eps)
                        : traits->norm == NORM_RMS_PLUS_ONE ? fsdp_rmsnorm_plus_one_new(columns, eps)
                                                            : fsdp_rmsnorm_new(columns, eps);
    return fsdp_module_add(parent, name, norm);
}

static void add_norms(decoder_block *b, const fsdp_decoder_config *c)
{
    const family_traits *f = b->traits;
    b->norm_1 = add_norm(b, f, f->names.norm_1, c->hidden, c->norm_eps);
    b->norm_2 = add_norm(b, f, f->names.norm_2, c->hidden, c->norm_eps);
    b->post_1 = add_norm(b, f, f->names.post_1, c->hidden, c->norm_eps);
    b->post_2 = add_norm(b, f, f->names.post_2, c->hidden, c->norm_eps);
    b->q_norm = add_norm(b, f, f->names.q_norm, c->head_dim, c->norm_eps);
    b->k_norm = add_norm(b, f, f->names.k_norm, c->head_dim, c->norm_eps);
}

static void add_projections(decoder_block *b, const fsdp_decoder_config *c)
{
    const family_traits *f = b->traits;
    const family_names *names = &f->names;
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, qkv_outputs[] = {q, kv, kv};
    int64_t up_outputs[] = {c->intermediate, c->intermediate};
    float deviation = c->init_deviation;
    float back = f->scaled_residuals ? deviation / sqrtf(2 * (float)c->layers) : deviation;
    parts qkv = {names->qkv, 3, qkv_outputs, c->hidden, deviation}, out = {&names->out, 1, &c->hidden, q, back};
    parts up = {names->up, f->ungated ? 1 : 2, up_outputs, c->hidden, deviation};
    parts down = {&names->down, 1, &c->hidden, c->intermediate, back};
    projection *apart[] = {&b->q, &b->k, &b->v};
    bool split = names->q_norm != NULL, biased = f->biases != BIAS_AS_CONFIGURED || c->attention_bias;
    for (int i = 0; split && i < 3; i++)
        *apart[i] = add_weights(b, &(parts){names->qkv + i, 1, qkv_outputs + i, c->hidden, deviation});
    if (!split)
        b->qkv = add_weights(b, &qkv);
    b->out = add_weights(b, &out);
    b->up = add_weights(b, &up);
    b->down = add_weights(b, &down);
    for (int i = 0; biased && split && i < 3; i++)
        add_biases(b, apart[i], &(parts){names->qkv + i, 1, qkv_outputs + i, c->hidden, deviation});
    if (biased && !split)
        add_biases(b, &b->qkv, &qkv);
    if (biased && f->biases != BIAS_QKV)
        add_biases(b, &b->out, &out);
    if (f->biases == BIAS_ALL || c->mlp_bias) {
        add_biases(b, &b->up, &up);
        add_biases(b, &b->down, &down);
    }
}

static bool is_full(const fsdp_decoder_config *c, int64_t layer)
{
    const int64_t n = (int64_t)(8 * sizeof c->full_layers);
    return c->window == 0 || (layer < n && c->full_layers[layer / 64] >> (layer % 64) & 1);
}

static decoder_block *block_new(const fsdp_decoder_config *c, const family_traits *traits, int64_t layer)
{
    decoder_block *b = fsdp_module_new(&traits->block, sizeof *b);
    if (!b)
        return NULL;
    b->traits = traits;
    b->heads = c->heads;
    b->kv_heads = c->kv_heads;
    b->head_dim = c->head_dim;
    b->window = is_full(c, layer) ? 0 : c->window;
    b->scale = 1 / sqrtf(c->query_scalar > 0 ? c->query_scalar : (float)c->head_dim);
    if (c->scale_by_layer)
        b->scale /= (float)(layer + 1);
    b->residual_dropout = c->residual_dropout;
    b->attention_dropout = c->attention_dropout;
    b->function = c->function;
    add_norms(b, c);
    add_projections(b, c);
    return b;
}

static void decoder_destroy(fsdp_module *self)
{
    free(((decoder *)self)->blocks);
}

static const fsdp_module_class decoder_class = {.type = "decoder", .destroy = decoder_destroy};

static void add_parts(decoder *m, const fsdp_decoder_config *c)
{
    const family_names *names = &m->traits->names;
    m->embedding = fsdp_module_add(m, names->embedding, fsdp_embedding_new(c->vocabulary, c->hidden));
    fsdp_embedding_set_padding(m->embedding, c->padding_id);
    if (names->positions)
        m->positions = fsdp_module_add(m, names->positions, fsdp_embedding_new(c->positions, c->hidden));
    for (int64_t i = 0; i < c->layers; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s.%lld", names->layers, (long long)i);
        m->blocks[i] = (decoder_block *)fsdp_module_add(m, name, block_new(c, m->traits, i));
    }
    m->norm = add_norm(m, m->traits, names->norm, c->hidden, c->norm_eps);
    if (!c->tied)
        m->head = fsdp_module_add(m, "lm_head", fsdp_linear_new(c->hidden, c->vocabulary, false));
    if (!names->positions)
        rope_tables_add(&m->base, "rope", c, false, &m->rope.cosine, &m->rope.sine);
    if (!names->positions && c->rope_local_base > 0)
        rope_tables_add(&m->base, "local_rope", c, true, &m->local_rope.cosine, &m->local_rope.sine);
    fsdp_parameter *normal[] = {fsdp_module_weight(m->embedding), fsdp_module_weight(m->positions),
                                fsdp_module_weight(m->head)};
    for (int i = 0; i < 3; i++)
        fsdp_parameter_set_init(normal[i], FSDP_INIT_NORMAL, c->init_deviation);
    if (normal[2])
        normal[2]->linear = LINEAR_NONE; /* its product is the loss's */
    fsdp_parameter *head = c->tied ? normal[0] : normal[2];
    if (head)
        head->output = true;
}

fsdp_status fsdp_decoder_new(const fsdp_decoder_config *config, fsdp_module **out)
{
    SIZED_READ(fsdp_decoder_config, FSDP_DECODER_CONFIG_INIT, full, config);
    const fsdp_decoder_config *c = &full;
    FSDP_TRY(decoder_config_check(c));
    FSDP_TRY(decoder_tables_check(c));
    decoder *m = fsdp_module_new(&decoder_class, sizeof *m);
    if (!m || !(m->blocks = calloc((size_t)c->layers, sizeof *m->blocks))) {
        fsdp_module_free(&m->base);
        return error_set(FSDP_ERR_MEMORY, "building a decoder of %lld layers: out of host memory",
                         (long long)c->layers);
    }
    m->traits = family_of(c->family);
    m->n_blocks = c->layers;
    m->embedding_scale = m->traits->scaled_embedding ? sqrtf((float)c->hidden) : 1;
    m->embedding_dropout = c->embedding_dropout;
    add_parts(m, c);
    return model_finish(&m->base, &(model_config){.type = MODEL_DECODER, .decoder = *c}, out);
}

/* ---- The whole ---- */

/* 0, 1, ... length - 1. */
static fsdp_tensor *count_positions(fsdp_tape *t, int64_t length)
{
    int32_t *ids = arena_alloc(t->memory, (size_t)length * sizeof *ids);
    if (!ids)
        return tape_refuse(t, "positions of %lld tokens: out of host memory", (long long)length);
    for (int64_t i = 0; i < length; i++)
        ids[i] = (int32_t)i;
    return fsdp_input(t, FSDP_I32, 1, &length, ids);
}

/* What goes into the first layer. positions int32 (T) or (B, T); NULL: counted from 0. */
static fsdp_tensor *embed(decoder *m, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *positions)
{
    fsdp_tensor *h = fsdp_call(m->embedding, t, ids);
    if (m->embedding_scale != 1)
        h = fsdp_scale(t, h, m->embedding_scale);
    if (m->positions && h) {
        positions = positions ? positions : count_positions(t, fsdp_tensor_size(ids, 1));
        h = fsdp_add(t, h, fsdp_call(m->positions, t, positions));
    }
    return m->embedding_dropout > 0 ? fsdp_dropout(t, h, m->embedding_dropout) : h;
}

/* The tables of a layer: all positions, or those of `positions`. False: there are none. */
static bool rope_of(const rope_tables *tables, fsdp_tape *t, fsdp_tensor *positions, fsdp_tensor *out[2])
{
    fsdp_buffer *const buffers[] = {tables->cosine, tables->sine};
    for (int i = 0; i < 2; i++) {
        out[i] = buffers[i] ? fsdp_use_buffer(t, buffers[i]) : NULL;
        if (out[i] && positions)
            out[i] = fsdp_embedding(t, positions, out[i]);
    }
    return out[0] != NULL;
}

/* Final hidden states (B, T, C). documents and positions int32 (B, T), or both NULL. */
static fsdp_tensor *hidden_states(decoder *m, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *documents,
                                  fsdp_tensor *positions)
{
    fsdp_tensor *h = embed(m, t, ids, positions), *rope[2], *local[2], *starts = fsdp_document_starts(t, documents);
    bool rotary = rope_of(&m->rope, t, NULL, rope), apart = rope_of(&m->local_rope, t, NULL, local);
    for (int64_t i = 0; i < m->n_blocks; i++) {
        fsdp_tensor **tables = apart && m->blocks[i]->window > 0 ? local : rope;
        fsdp_tensor *turned[] = {h, tables[0], tables[1], starts, positions}, *plain[] = {h, starts};
        if (rotary)
            fsdp_call_list(&m->blocks[i]->base, t, turned, starts ? 5 : 3, &h, 1);
        else
            fsdp_call_list(&m->blocks[i]->base, t, plain, starts ? 2 : 1, &h, 1);
    }
    return fsdp_call(m->norm, t, h);
}

static fsdp_tensor *head_weight(decoder *m, fsdp_tape *t)
{
    return fsdp_use(t, fsdp_module_weight(m->head ? m->head : m->embedding));
}

fsdp_tensor *fsdp_decoder_logits(fsdp_module *module, fsdp_tape *t, fsdp_tensor *ids)
{
    decoder *m = (decoder *)module;
    fsdp_tensor *h = hidden_states(m, t, ids, NULL, NULL);
    return fsdp_linear(t, h, head_weight(m, t), NULL);
}

fsdp_loss fsdp_decoder_loss(fsdp_module *module, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *labels)
{
    decoder *m = (decoder *)module;
    fsdp_tensor *h = hidden_states(m, t, ids, NULL, NULL);
    return fsdp_linear_cross_entropy(t, h, head_weight(m, t), labels, FSDP_IGNORE);
}

fsdp_tensor *fsdp_decoder_logits_packed(fsdp_module *module, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *documents,
                                        fsdp_tensor *positions)
{
    decoder *m = (decoder *)module;
    if (!documents || !positions)
        return NULL;
    fsdp_tensor *h = hidden_states(m, t, ids, documents, positions);
    return fsdp_linear(t, h, head_weight(m, t), NULL);
}

fsdp_loss fsdp_decoder_loss_packed(fsdp_module *module, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *labels,
                                   fsdp_tensor *documents, fsdp_tensor *positions)
{
    decoder *m = (decoder *)module;
    if (!documents || !positions)
        return (fsdp_loss){NULL, NULL};
    fsdp_tensor *h = hidden_states(m, t, ids, documents, positions);
    return fsdp_linear_cross_entropy(t, h, head_weight(m, t), labels, FSDP_IGNORE);
}

fsdp_status fsdp_llama_new(const fsdp_llama_config *config, fsdp_module **out)
{
    return fsdp_decoder_new(config, out);
}

fsdp_tensor *fsdp_llama_logits(fsdp_module *m, fsdp_tape *t, fsdp_tensor *ids)
{
    return fsdp_decoder_logits(m, t, ids);
}

fsdp_loss fsdp_llama_loss(fsdp_module *m, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *labels)
{
    return fsdp_decoder_loss(m, t, ids, labels);
}

/* ---- Generation ---- */

/* Keys | values of attention, as the cache keeps them. */
static fsdp_tensor *keys_and_values(const decoder_block *b, fsdp_tape *t, const fsdp_attention_config *a)
{
    if (a->k.x == a->v.x)
        return fsdp_slice(t, a->k.x, 2, a->k.offset, 2 * b->kv_heads * b->head_dim);
    fsdp_tensor *both[] = {a->k.x, a->v.x};
    return fsdp_concat(t, both, 2, 2);
}

/* What each of n texts sees: the first `length` rows of its part of the cache, (n, length, columns). */
static fsdp_tensor *seen_by_each(fsdp_tape *t, const row_cache *past, int64_t n, int64_t length)
{
    fsdp_tensor *all = cache_read_parts(t, past, n);
    return length < past->capacity / n ? fsdp_slice(t, all, 1, 0, length) : all;
}

/* A block over new tokens and what the cache holds of earlier ones. */
static fsdp_tensor *block_decode(decoder_block *b, fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *const rope[2],
                                 fsdp_tensor *places, fsdp_tensor *mask, const decode_step *step, const row_cache *past)
{
    int64_t n = step->n_texts, q_width = b->heads * b->head_dim;
    bool several = n > 1 && step->length > 0;
    fsdp_attention_config a = attention_within(b, t, x, &(placement){.cosine = rope[0], .sine = rope[1]});
    cache_write(t, past, keys_and_values(b, t, &a), places);
    if (step->length > 0) {
        fsdp_tensor *seen = several ? seen_by_each(t, past, n, step->length) : cache_read(t, past, step->length);
        if (a.q.x == a.k.x)
            a.q.x = fsdp_slice(t, a.q.x, 2, 0, q_width);
        if (several)
            a.q.x = fsdp_reshape(t, a.q.x, 3, (int64_t[]){n, 1, q_width});
        a.k = (fsdp_heads){seen, 0};
        a.v = (fsdp_heads){seen, b->kv_heads * b->head_dim};
        a.causal = false;
        a.window = 0; /* the mask says what is seen */
        a.key_mask = mask;
    }
    fsdp_tensor *y = fsdp_attention(t, &a);
    return finish(b, t, several ? fsdp_reshape(t, y, 3, (int64_t[]){1, n, q_width}) : y, x);
}

fsdp_tensor *decoder_decode(fsdp_module *module, fsdp_tape *t, const decode_step *step, const row_cache *past)
{
    decoder *m = (decoder *)module;
    int64_t n = step->n_tokens, n_last = step->length > 0 && step->n_texts > 1 ? step->n_texts : 1;
    int64_t ids_shape[] = {1, n}, mask_shape[] = {n_last, step->length};
    fsdp_tensor *positions = fsdp_input(t, FSDP_I32, 1, &n, step->positions), *rope[2], *local[2];
    fsdp_tensor *places = step->places ? fsdp_input(t, FSDP_I32, 1, &n, step->places) : positions;
    fsdp_tensor *mask = step->length ? fsdp_input(t, FSDP_I32, 2, mask_shape, step->mask) : NULL;
    fsdp_tensor *near = step->length ? fsdp_input(t, FSDP_I32, 2, mask_shape, step->window_mask) : NULL;
    rope_of(&m->rope, t, positions, rope);
    bool apart = rope_of(&m->local_rope, t, positions, local);
    fsdp_tensor *h = embed(m, t, fsdp_input(t, FSDP_I32, 2, ids_shape, step->ids), positions);
    for (int64_t i = 0; i < m->n_blocks; i++) {
        bool windowed = m->blocks[i]->window > 0;
        h = block_decode(m->blocks[i], t, h, apart && windowed ? local : rope, places, windowed ? near : mask, step,
                         &past[i]);
    }
    int64_t rows[] = {n, h ? fsdp_tensor_size(h, 2) : 1};
    h = fsdp_embedding(t, fsdp_input(t, FSDP_I32, 1, &n_last, step->last), fsdp_reshape(t, h, 2, rows));
    return fsdp_linear(t, fsdp_call(m->norm, t, h), head_weight(m, t), NULL);
}
