/* LLaMA: pre-norm decoder with rotary positions, grouped query heads and a gated feed-forward.
 * Projections that share their input are one product each: q|k|v and gate|up. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <fsdp/models.h>

#include "base/error.h"
#include "base/sized.h"
#include "models/config.h"
#include "models/decode.h"
#include "nn/module.h"

typedef struct llama_block {
    fsdp_module base;
    int64_t heads, kv_heads, head_dim;
    fsdp_module *attention_norm, *mlp_norm;
    fsdp_parameter *qkv, *out, *gate_up, *down; /* qkv and gate_up head their groups */
    fsdp_parameter *qkv_bias, *out_bias, *gate_up_bias, *down_bias;
} llama_block;

typedef struct llama {
    fsdp_module base;
    fsdp_module *embedding, *norm, *head; /* head NULL: tied to the embedding */
    llama_block **blocks;
    int64_t n_blocks;
    fsdp_buffer *cosine, *sine; /* (positions, head_dim/2) */
} llama;

static fsdp_tensor *use_optional(fsdp_tape *t, fsdp_parameter *p)
{
    return p ? fsdp_use_group(t, p) : NULL;
}

/* Hidden states (B, T, C) -> q|k|v (B, T, ...), rotated. */
static fsdp_tensor *project(llama_block *b, fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *cosine, fsdp_tensor *sine)
{
    x = fsdp_call(b->attention_norm, t, x);
    fsdp_tensor *qkv = fsdp_linear(t, x, fsdp_use_group(t, b->qkv), use_optional(t, b->qkv_bias));
    return fsdp_rope(t, qkv, cosine, sine, b->heads + b->kv_heads, b->head_dim, 0);
}

/* Causal attention among the positions of qkv. */
static fsdp_attention_config attention_within(const llama_block *b, fsdp_tensor *qkv)
{
    int64_t q_width = b->heads * b->head_dim, kv_width = b->kv_heads * b->head_dim;
    return (fsdp_attention_config){.q = {qkv, 0},
                                   .k = {qkv, q_width},
                                   .v = {qkv, q_width + kv_width},
                                   .q_heads = b->heads,
                                   .kv_heads = b->kv_heads,
                                   .head_dim = b->head_dim,
                                   .scale = 1 / sqrtf((float)b->head_dim),
                                   .causal = true};
}

/* What follows attention: its projection, the feed-forward, both residuals. */
static fsdp_tensor *finish(llama_block *b, fsdp_tape *t, fsdp_tensor *heads, fsdp_tensor *residual)
{
    heads = fsdp_keep(t, heads);
    fsdp_tensor *h = fsdp_linear_add(t, heads, fsdp_use(t, b->out), use_optional(t, b->out_bias), residual);
    h = fsdp_keep(t, h);
    fsdp_tensor *x = fsdp_call(b->mlp_norm, t, h);
    x = fsdp_swiglu(t, fsdp_linear(t, x, fsdp_use_group(t, b->gate_up), use_optional(t, b->gate_up_bias)));
    return fsdp_linear_add(t, x, fsdp_use(t, b->down), use_optional(t, b->down_bias), h);
}

/* In: hidden states (B, T, C), cosine, sine. Out: hidden states. */
static void block_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *const *in, int n_in, fsdp_tensor **out,
                          int n_out)
{
    (void)n_in;
    (void)n_out;
    llama_block *b = (llama_block *)self;
    fsdp_attention_config attention = attention_within(b, project(b, t, in[0], in[1], in[2]));
    out[0] = finish(b, t, fsdp_attention(t, &attention), in[0]);
}

static const fsdp_module_class block_class = {.type = "llama_block", .forward_list = block_forward};

/* A projection's weight inside the block, under its Hugging Face name. */
static fsdp_parameter *projection(llama_block *b, const char *name, int64_t outputs, int64_t inputs, float deviation)
{
    int64_t shape[] = {outputs, inputs};
    return fsdp_module_parameter(b, name, 2, shape, FSDP_INIT_NORMAL, deviation);
}

static fsdp_parameter *bias(llama_block *b, const char *name, int64_t outputs)
{
    return fsdp_module_parameter(b, name, 1, &outputs, FSDP_INIT_ZERO, 0);
}

static fsdp_parameter *group(fsdp_parameter **members, int n)
{
    fsdp_parameter_group(members, n);
    return members[0];
}

static llama_block *block_new(const fsdp_llama_config *c)
{
    llama_block *b = fsdp_module_new(&block_class, sizeof *b);
    if (!b)
        return NULL;
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    float deviation = c->init_deviation;
    b->heads = c->heads;
    b->kv_heads = c->kv_heads;
    b->head_dim = c->head_dim;
    b->attention_norm = fsdp_module_add(b, "input_layernorm", fsdp_rmsnorm_new(c->hidden, c->norm_eps));
    b->mlp_norm = fsdp_module_add(b, "post_attention_layernorm", fsdp_rmsnorm_new(c->hidden, c->norm_eps));
    fsdp_parameter *qkv[] = {projection(b, "self_attn.q_proj.weight", q, c->hidden, deviation),
                             projection(b, "self_attn.k_proj.weight", kv, c->hidden, deviation),
                             projection(b, "self_attn.v_proj.weight", kv, c->hidden, deviation)};
    b->qkv = group(qkv, 3);
    b->out = projection(b, "self_attn.o_proj.weight", c->hidden, q, deviation);
    fsdp_parameter *gate_up[] = {projection(b, "mlp.gate_proj.weight", c->intermediate, c->hidden, deviation),
                                 projection(b, "mlp.up_proj.weight", c->intermediate, c->hidden, deviation)};
    b->gate_up = group(gate_up, 2);
    b->down = projection(b, "mlp.down_proj.weight", c->hidden, c->intermediate, deviation);
    if (c->attention_bias) {
        fsdp_parameter *biases[] = {bias(b, "self_attn.q_proj.bias", q), bias(b, "self_attn.k_proj.bias", kv),
                                    bias(b, "self_attn.v_proj.bias", kv)};
        b->qkv_bias = group(biases, 3);
        b->out_bias = bias(b, "self_attn.o_proj.bias", c->hidden);
    }
    if (c->mlp_bias) {
        fsdp_parameter *biases[] = {bias(b, "mlp.gate_proj.bias", c->intermediate),
                                    bias(b, "mlp.up_proj.bias", c->intermediate)};
        b->gate_up_bias = group(biases, 2);
        b->down_bias = bias(b, "mlp.down_proj.bias", c->hidden);
    }
    return b;
}

/* Rotation per position of pair i, after the scaling that the configuration asks for. */
static double frequency(const fsdp_llama_config *c, int64_t i)
{
    double plain = pow(c->rope_base, -2.0 * (double)i / (double)c->head_dim);
    if (c->rope_scaling == FSDP_ROPE_PLAIN)
        return plain;
    if (c->rope_scaling == FSDP_ROPE_LINEAR)
        return plain / c->rope_factor;
    double wavelength = 2 * M_PI / plain;
    if (wavelength > c->rope_original_positions / c->rope_low_factor)
        return plain / c->rope_factor;
    if (wavelength < c->rope_original_positions / c->rope_high_factor)
        return plain;
    double smooth =
        (c->rope_original_positions / wavelength - c->rope_low_factor) / (c->rope_high_factor - c->rope_low_factor);
    return (1 - smooth) * plain / c->rope_factor + smooth * plain;
}

static void add_rope_tables(llama *m, const fsdp_llama_config *c)
{
    int64_t half = c->head_dim / 2, shape[] = {c->positions, half};
    m->cosine = fsdp_module_buffer(m, "rope.cosine", 2, shape, NULL, false);
    m->sine = fsdp_module_buffer(m, "rope.sine", 2, shape, NULL, false);
    if (!m->cosine || !m->sine)
        return;
    for (int64_t i = 0; i < half; i++) {
        double turn = frequency(c, i);
        for (int64_t p = 0; p < c->positions; p++) {
            m->cosine->initial[p * half + i] = (float)cos((double)p * turn);
            m->sine->initial[p * half + i] = (float)sin((double)p * turn);
        }
    }
}

static void llama_destroy(fsdp_module *self)
{
    free(((llama *)self)->blocks);
}

static const fsdp_module_class llama_class = {.type = "llama", .destroy = llama_destroy};

fsdp_status llama_config_check(const fsdp_llama_config *c)
{
    const config_size sizes[] = {{"vocab_size", c->vocabulary, (int64_t)MOST_WIDTH * 4},
                                 {"hidden_size", c->hidden, MOST_WIDTH},
                                 {"intermediate_size", c->intermediate, MOST_WIDTH},
                                 {"num_hidden_layers", c->layers, MOST_LAYERS},
                                 {"num_attention_heads", c->heads, MOST_HEADS},
                                 {"num_key_value_heads", c->kv_heads, MOST_HEADS},
                                 {"head_dim", c->head_dim, MOST_HEAD_DIM},
                                 {"max_position_embeddings", c->positions, (int64_t)1 << 31}};
    FSDP_TRY(config_check_sizes(sizes, sizeof sizes / sizeof sizes[0]));
    double attention = (double)c->hidden * (double)c->head_dim * (double)(2 * c->heads + 2 * c->kv_heads);
    double layer = attention + 3 * (double)c->hidden * (double)c->intermediate;
    FSDP_TRY(config_check_parameters((double)c->vocabulary * (double)c->hidden * (c->tied ? 1 : 2) +
                                     (double)c->layers * layer));
    if (c->heads % c->kv_heads != 0)
        return error_set(FSDP_ERR_INPUT, "num_attention_heads (%lld) must be a multiple of num_key_value_heads (%lld)",
                         (long long)c->heads, (long long)c->kv_heads);
    if (c->head_dim % 2 != 0)
        return error_set(FSDP_ERR_INPUT, "head_dim is %lld; rotary positions need an even number",
                         (long long)c->head_dim);
    if (!(c->rope_base > 0) || !(c->norm_eps > 0))
        return error_set(FSDP_ERR_INPUT, "rope_theta (%g) and rms_norm_eps (%g) must be positive", c->rope_base,
                         (double)c->norm_eps);
    if (!(c->init_deviation >= 0))
        return error_set(FSDP_ERR_INPUT, "initializer_range is %g; it may not be negative", (double)c->init_deviation);
    if (c->rope_scaling != FSDP_ROPE_PLAIN && !(c->rope_factor > 0))
        return error_set(FSDP_ERR_INPUT, "factor of the rope scaling is %g; it must be positive", c->rope_factor);
    if (c->rope_scaling == FSDP_ROPE_LLAMA3 &&
        !(c->rope_high_factor > c->rope_low_factor && c->rope_low_factor > 0 && c->rope_original_positions > 0))
        return error_set(
            FSDP_ERR_INPUT,
            "llama3 rope scaling needs 0 < low_freq_factor < high_freq_factor and original_max_position_embeddings");
    return FSDP_OK;
}

fsdp_status llama_window_check(const fsdp_llama_config *c)
{
    if (c->window > 0 && c->positions > c->window)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "sliding_window is %lld, and texts of %lld tokens reach beyond it, which is not implemented; "
                         "shorter texts do not",
                         (long long)c->window, (long long)c->positions);
    return FSDP_OK;
}

/* The tables of positions are built whole, before anything else can refuse them. */
static fsdp_status check_tables(const fsdp_llama_config *c)
{
    double bytes = (double)c->positions * (double)c->head_dim * sizeof(float);
    if (bytes > MOST_TABLE_BYTES)
        return error_set(FSDP_ERR_INPUT, "rotary tables of %lld positions for a head_dim of %lld would take %.2g bytes",
                         (long long)c->positions, (long long)c->head_dim, bytes);
    return FSDP_OK;
}

fsdp_status fsdp_llama_new(const fsdp_llama_config *config, fsdp_module **out)
{
    SIZED_READ(fsdp_llama_config, FSDP_LLAMA_CONFIG_INIT, full, config);
    const fsdp_llama_config *c = &full;
    FSDP_TRY(llama_config_check(c));
    FSDP_TRY(llama_window_check(c));
    FSDP_TRY(check_tables(c));
    llama *m = fsdp_module_new(&llama_class, sizeof *m);
    if (!m || !(m->blocks = calloc((size_t)c->layers, sizeof *m->blocks))) {
        fsdp_module_free(&m->base);
        return error_set(FSDP_ERR_MEMORY, "building a LLaMA of %lld layers: out of host memory", (long long)c->layers);
    }
    m->n_blocks = c->layers;
    m->embedding = fsdp_module_add(m, "model.embed_tokens", fsdp_embedding_new(c->vocabulary, c->hidden));
    for (int64_t i = 0; i < c->layers; i++) {
        char name[40];
        snprintf(name, sizeof name, "model.layers.%lld", (long long)i);
        m->blocks[i] = (llama_block *)fsdp_module_add(m, name, block_new(c));
    }
    m->norm = fsdp_module_add(m, "model.norm", fsdp_rmsnorm_new(c->hidden, c->norm_eps));
    if (!c->tied)
        m->head = fsdp_module_add(m, "lm_head", fsdp_linear_new(c->hidden, c->vocabulary, false));
    add_rope_tables(m, c);
    fsdp_parameter *normal[] = {fsdp_module_weight(m->embedding), fsdp_module_weight(m->head)};
    for (int i = 0; i < 2; i++) {
        if (normal[i]) {
            normal[i]->init = FSDP_INIT_NORMAL;
            normal[i]->init_scale = c->init_deviation;
        }
    }
    return model_finish(&m->base, &(model_config){.type = MODEL_LLAMA, .llama = *c}, out);
}

/* Final hidden states (B, T, C). */
static fsdp_tensor *hidden_states(llama *m, fsdp_tape *t, fsdp_tensor *ids)
{
    fsdp_tensor *h = fsdp_call(m->embedding, t, ids);
    fsdp_tensor *cosine = fsdp_use_buffer(t, m->cosine), *sine = fsdp_use_buffer(t, m->sine);
    for (int64_t i = 0; i < m->n_blocks; i++) {
        fsdp_tensor *in[] = {h, cosine, sine};
        fsdp_call_list(&m->blocks[i]->base, t, in, 3, &h, 1);
    }
    return fsdp_call(m->norm, t, h);
}

static fsdp_tensor *head_weight(llama *m, fsdp_tape *t)
{
    return fsdp_use(t, fsdp_module_weight(m->head ? m->head : m->embedding));
}

fsdp_tensor *fsdp_llama_logits(fsdp_module *module, fsdp_tape *t, fsdp_tensor *ids)
{
    llama *m = (llama *)module;
    fsdp_tensor *h = hidden_states(m, t, ids);
    return fsdp_linear(t, h, head_weight(m, t), NULL);
}

fsdp_loss fsdp_llama_loss(fsdp_module *module, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *labels)
{
    llama *m = (llama *)module;
    fsdp_tensor *h = hidden_states(m, t, ids);
    return fsdp_linear_cross_entropy(t, h, head_weight(m, t), labels, FSDP_IGNORE);
}

/* A block over new tokens and what the cache holds of earlier ones. */
static fsdp_tensor *block_decode(llama_block *b, fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *cosine, fsdp_tensor *sine,
                                 fsdp_tensor *positions, fsdp_tensor *mask, int64_t length, const row_cache *past)
{
    int64_t q_width = b->heads * b->head_dim, kv_width = b->kv_heads * b->head_dim;
    fsdp_tensor *qkv = project(b, t, x, cosine, sine);
    cache_write(t, past, fsdp_slice(t, qkv, 2, q_width, 2 * kv_width), positions);
    fsdp_attention_config attention = attention_within(b, qkv);
    if (length > 0) {
        fsdp_tensor *seen = cache_read(t, past, length);
        attention.q.x = fsdp_slice(t, qkv, 2, 0, q_width);
        attention.k = (fsdp_heads){seen, 0};
        attention.v = (fsdp_heads){seen, kv_width};
        attention.causal = false;
        attention.key_mask = mask;
    }
    return finish(b, t, fsdp_attention(t, &attention), x);
}

fsdp_tensor *llama_decode(fsdp_module *module, fsdp_tape *t, const decode_step *step, const row_cache *past)
{
    llama *m = (llama *)module;
    int64_t n = step->n_tokens, one = 1, ids_shape[] = {1, n}, mask_shape[] = {1, step->length};
    fsdp_tensor *positions = fsdp_input(t, FSDP_I32, 1, &n, step->positions);
    fsdp_tensor *mask = step->length ? fsdp_input(t, FSDP_I32, 2, mask_shape, step->mask) : NULL;
    fsdp_tensor *cosine = fsdp_embedding(t, positions, fsdp_use_buffer(t, m->cosine));
    fsdp_tensor *sine = fsdp_embedding(t, positions, fsdp_use_buffer(t, m->sine));
    fsdp_tensor *h = fsdp_call(m->embedding, t, fsdp_input(t, FSDP_I32, 2, ids_shape, step->ids));
    for (int64_t i = 0; i < m->n_blocks; i++)
        h = block_decode(m->blocks[i], t, h, cosine, sine, positions, mask, step->length, &past[i]);
    int64_t rows[] = {n, h ? fsdp_tensor_size(h, 2) : 1};
    h = fsdp_embedding(t, fsdp_input(t, FSDP_I32, 1, &one, step->last), fsdp_reshape(t, h, 2, rows));
    return fsdp_linear(t, fsdp_call(m->norm, t, h), head_weight(m, t), NULL);
}
