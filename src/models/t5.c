/* T5, v1.0 and v1.1, mT5 and UMT5: encoder and decoder stacks with relative position bias, relu or gated-gelu
 * feed-forward. Self-attention projects q|k|v in one product, cross-attention k|v. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <fsdp/models.h>

#include "base/error.h"
#include "base/sized.h"
#include "models/config.h"
#include "models/decode.h"
#include "nn/lora.h"
#include "nn/module.h"

typedef struct t5_block {
    fsdp_module base;
    int64_t heads, head_dim;
    float dropout;
    bool decoder, gated;
    fsdp_module *self_norm, *cross_norm, *mlp_norm;
    fsdp_parameter *qkv, *self_out; /* qkv heads q|k|v */
    fsdp_parameter *cross_q, *cross_kv, *cross_out;
    fsdp_parameter *wi, *wo;  /* wi heads wi_0|wi_1 when gated */
    fsdp_parameter *relative; /* (buckets, heads); NULL: those of the first block serve */
} t5_block;

typedef struct t5_stack {
    t5_block **blocks;
    int64_t n_blocks;
    fsdp_module *norm;
} t5_stack;

typedef struct t5 {
    fsdp_module base;
    fsdp_t5_config config;
    fsdp_parameter *shared, *head; /* head NULL: tied */
    t5_stack encoder, decoder;
} t5;

/* x (B, T, C) -> x + wo(act(wi(norm(x)))) */
static fsdp_tensor *feed_forward(t5_block *b, fsdp_tape *t, fsdp_tensor *x)
{
    fsdp_tensor *y = lora_project(t, fsdp_call(b->mlp_norm, t, x), b->wi, NULL, NULL);
    y = b->gated ? fsdp_geglu_tanh(t, y) : fsdp_relu(t, y);
    y = fsdp_dropout(t, y, b->dropout);
    if (b->dropout == 0 || !fsdp_training(t))
        return lora_project(t, y, b->wo, NULL, x);
    return fsdp_add(t, x, fsdp_dropout(t, lora_project(t, y, b->wo, NULL, NULL), b->dropout));
}

/* Projects the heads back and adds the residual. */
static fsdp_tensor *attention_out(t5_block *b, fsdp_tape *t, fsdp_tensor *heads, fsdp_parameter *out,
                                  fsdp_tensor *residual)
{
    heads = fsdp_keep(t, heads);
    if (b->dropout == 0 || !fsdp_training(t))
        return fsdp_keep(t, lora_project(t, heads, out, NULL, residual));
    return fsdp_keep(t, fsdp_add(t, residual, fsdp_dropout(t, lora_project(t, heads, out, NULL, NULL), b->dropout)));
}

static fsdp_tensor *self_attention(t5_block *b, fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *bias, fsdp_tensor *mask)
{
    int64_t width = b->heads * b->head_dim;
    fsdp_tensor *qkv = lora_project(t, fsdp_call(b->self_norm, t, x), b->qkv, NULL, NULL);
    fsdp_attention_config a = {.q = {qkv, 0},
                               .k = {qkv, width},
                               .v = {qkv, 2 * width},
                               .q_heads = b->heads,
                               .kv_heads = b->heads,
                               .head_dim = b->head_dim,
                               .scale = 1,
                               .causal = b->decoder,
                               .bias = bias,
                               .relative = true,
                               .key_mask = mask,
                               .dropout = b->dropout};
    return attention_out(b, t, fsdp_attention(t, &a), b->self_out, x);
}

static fsdp_tensor *cross_attention(t5_block *b, fsdp_tape *t, fsdp_tensor *x, fsdp_tensor *memory, fsdp_tensor *mask)
{
    int64_t width = b->heads * b->head_dim;
    fsdp_tensor *q = lora_project(t, fsdp_call(b->cross_norm, t, x), b->cross_q, NULL, NULL);
    fsdp_tensor *kv = lora_project(t, memory, b->cross_kv, NULL, NULL);
    fsdp_attention_config a = {.q = {q, 0},
                               .k = {kv, 0},
                               .v = {kv, width},
                               .q_heads = b->heads,
                               .kv_heads = b->heads,
                               .head_dim = b->head_dim,
                               .scale = 1,
                               .key_mask = mask,
                               .dropout = b->dropout};
    return attention_out(b, t, fsdp_attention(t, &a), b->cross_out, x);
}

/* In: x, bias, mask of the encoder; the decoder has also the encoder's output. Mask may be NULL. */
static void block_forward(fsdp_module *self, fsdp_tape *t, fsdp_tensor *const *in, int n_in, fsdp_tensor **out,
                          int n_out)
{
    (void)n_out;
    t5_block *b = (t5_block *)self;
    fsdp_tensor *x = self_attention(b, t, in[0], in[1], b->decoder ? NULL : in[2]);
    if (b->decoder && n_in == 4)
        x = cross_attention(b, t, x, in[3], in[2]);
    out[0] = feed_forward(b, t, x);
}

static const fsdp_module_class block_class = {.type = "t5_block", .forward_list = block_forward};

static fsdp_parameter *matrix(void *m, const char *name, int64_t rows, int64_t columns, float deviation)
{
    int64_t shape[] = {rows, columns};
    return fsdp_module_parameter(m, name, 2, shape, FSDP_INIT_NORMAL, deviation);
}

/* The weight of a linear layer. */
static fsdp_parameter *weight(void *m, const char *name, int64_t outputs, int64_t inputs, float deviation)
{
    fsdp_parameter *p = matrix(m, name, outputs, inputs, deviation);
    if (p)
        p->linear = LINEAR_OUTPUT_MAJOR;
    return p;
}

static fsdp_parameter *group(fsdp_parameter **members, int n)
{
    fsdp_parameter_group(members, n);
    return members[0];
}

static t5_block *block_new(const fsdp_t5_config *c, bool decoder, bool has_bias)
{
    t5_block *b = fsdp_module_new(&block_class, sizeof *b);
    if (!b)
        return NULL;
    int64_t width = c->heads * c->head_dim;
    float f = c->init_factor, hidden = 1 / sqrtf((float)c->hidden), query = 1 / sqrtf((float)(c->hidden * c->head_dim));
    float back = 1 / sqrtf((float)width);
    b->heads = c->heads;
    b->head_dim = c->head_dim;
    b->dropout = c->dropout;
    b->decoder = decoder;
    b->gated = c->gated;
    fsdp_parameter *qkv[] = {weight(b, "layer.0.SelfAttention.q.weight", width, c->hidden, f * query),
                             weight(b, "layer.0.SelfAttention.k.weight", width, c->hidden, f * hidden),
                             weight(b, "layer.0.SelfAttention.v.weight", width, c->hidden, f * hidden)};
    b->qkv = group(qkv, 3);
    b->self_out = weight(b, "layer.0.SelfAttention.o.weight", c->hidden, width, f * back);
    if (has_bias)
        b->relative =
            matrix(b, "layer.0.SelfAttention.relative_attention_bias.weight", c->buckets, c->heads, f * hidden);
    b->self_norm = fsdp_module_add(b, "layer.0.layer_norm", fsdp_rmsnorm_new(c->hidden, c->norm_eps));
    if (decoder) {
        b->cross_q = weight(b, "layer.1.EncDecAttention.q.weight", width, c->hidden, f * query);
        fsdp_parameter *kv[] = {weight(b, "layer.1.EncDecAttention.k.weight", width, c->hidden, f * hidden),
                                weight(b, "layer.1.EncDecAttention.v.weight", width, c->hidden, f * hidden)};
        b->cross_kv = group(kv, 2);
        b->cross_out = weight(b, "layer.1.EncDecAttention.o.weight", c->hidden, width, f * back);
        b->cross_norm = fsdp_module_add(b, "layer.1.layer_norm", fsdp_rmsnorm_new(c->hidden, c->norm_eps));
    }
    char name[64];
    const char *at = decoder ? "layer.2" : "layer.1";
    if (c->gated) {
        fsdp_parameter *wi[2];
        for (int i = 0; i < 2; i++) {
            snprintf(name, sizeof name, "%s.DenseReluDense.wi_%d.weight", at, i);
            wi[i] = weight(b, name, c->intermediate, c->hidden, f * hidden);
        }
        b->wi = group(wi, 2);
    } else {
        snprintf(name, sizeof name, "%s.DenseReluDense.wi.weight", at);
        b->wi = weight(b, name, c->intermediate, c->hidden, f * hidden);
    }
    snprintf(name, sizeof name, "%s.DenseReluDense.wo.weight", at);
    b->wo = weight(b, name, c->hidden, c->intermediate, f / sqrtf((float)c->intermediate));
    snprintf(name, sizeof name, "%s.layer_norm", at);
    b->mlp_norm = fsdp_module_add(b, name, fsdp_rmsnorm_new(c->hidden, c->norm_eps));
    return b;
}

static bool add_stack(t5 *m, t5_stack *stack, const char *which, bool decoder, int64_t layers)
{
    const fsdp_t5_config *c = &m->config;
    char name[64];
    stack->blocks = calloc((size_t)layers, sizeof *stack->blocks);
    if (!stack->blocks)
        return false;
    stack->n_blocks = layers;
    for (int64_t i = 0; i < layers; i++) {
        snprintf(name, sizeof name, "%s.block.%lld", which, (long long)i);
        stack->blocks[i] =
            (t5_block *)fsdp_module_add(m, name, block_new(c, decoder, i == 0 || c->family == FSDP_UMT5));
    }
    snprintf(name, sizeof name, "%s.final_layer_norm", which);
    stack->norm = fsdp_module_add(m, name, fsdp_rmsnorm_new(c->hidden, c->norm_eps));
    return true;
}

static void t5_destroy(fsdp_module *self)
{
    free(((t5 *)self)->encoder.blocks);
    free(((t5 *)self)->decoder.blocks);
}

static const fsdp_module_class t5_class = {.type = "t5", .destroy = t5_destroy};

fsdp_status t5_config_check(const fsdp_t5_config *c)
{
    const config_size sizes[] = {{"vocab_size", c->vocabulary, (int64_t)MAX_WIDTH * 4},
                                 {"d_model", c->hidden, MAX_WIDTH},
                                 {"d_ff", c->intermediate, MAX_WIDTH},
                                 {"num_layers", c->layers, MAX_LAYERS},
                                 {"num_decoder_layers", c->decoder_layers, MAX_LAYERS},
                                 {"num_heads", c->heads, MAX_HEADS},
                                 {"d_kv", c->head_dim, MAX_HEAD_DIM},
                                 {"relative_attention_num_buckets", c->buckets, MAX_WIDTH},
                                 {"relative_attention_max_distance", c->max_distance, (int64_t)1 << 31}};
    FSDP_TRY(config_check_sizes(sizes, sizeof sizes / sizeof sizes[0]));
    double attention = 4 * (double)c->hidden * (double)c->head_dim * (double)c->heads;
    double feed_forward = (c->gated ? 3 : 2) * (double)c->hidden * (double)c->intermediate;
    FSDP_TRY(config_check_parameters((double)c->vocabulary * (double)c->hidden * (c->tied ? 1 : 2) +
                                     (double)c->layers * (attention + feed_forward) +
                                     (double)c->decoder_layers * (2 * attention + feed_forward)));
    if (c->buckets < 4 || c->buckets % 2 != 0 || c->max_distance <= c->buckets / 2)
        return error_set(FSDP_ERR_INPUT,
                         "relative_attention_num_buckets (%lld) must be even, at least 4 and below twice "
                         "relative_attention_max_distance (%lld)",
                         (long long)c->buckets, (long long)c->max_distance);
    if (!(c->dropout >= 0 && c->dropout < 1))
        return error_set(FSDP_ERR_INPUT, "dropout_rate is %g; it must lie in [0, 1)", (double)c->dropout);
    if (!(c->init_factor >= 0))
        return error_set(FSDP_ERR_INPUT, "initializer_factor is %g; it may not be negative", (double)c->init_factor);
    if (!(c->norm_eps > 0))
        return error_set(FSDP_ERR_INPUT, "layer_norm_epsilon is %g; it must be positive", (double)c->norm_eps);
    return FSDP_OK;
}

fsdp_status fsdp_t5_new(const fsdp_t5_config *config, fsdp_module **out)
{
    SIZED_READ(fsdp_t5_config, FSDP_T5_CONFIG_INIT, full, config);
    const fsdp_t5_config *c = &full;
    FSDP_TRY(t5_config_check(c));
    t5 *m = fsdp_module_new(&t5_class, sizeof *m);
    if (!m)
        return FSDP_ERR_MEMORY;
    m->config = *c;
    m->shared = matrix(m, "shared.weight", c->vocabulary, c->hidden, c->init_factor);
    bool built = add_stack(m, &m->encoder, "encoder", false, c->layers) &&
                 add_stack(m, &m->decoder, "decoder", true, c->decoder_layers);
    if (!c->tied)
        m->head = matrix(m, "lm_head.weight", c->vocabulary, c->hidden, c->init_factor);
    fsdp_parameter *head = c->tied ? m->shared : m->head;
    if (head)
        head->output = true;
    if (!built) {
        fsdp_module_free(&m->base);
        return error_set(FSDP_ERR_MEMORY, "building a T5: out of host memory");
    }
    return model_finish(&m->base, &(model_config){.type = MODEL_T5, .t5 = *c}, out);
}

static fsdp_tensor *run_stack(t5 *m, fsdp_tape *t, t5_stack *stack, fsdp_tensor *ids, fsdp_tensor *mask,
                              fsdp_tensor *memory)
{
    const fsdp_t5_config *c = &m->config;
    if (!ids)
        return NULL;
    int64_t length = fsdp_tensor_size(ids, 1);
    fsdp_tensor *x = fsdp_dropout(t, fsdp_embedding(t, ids, fsdp_use(t, m->shared)), c->dropout);
    fsdp_tensor *bias = NULL;
    for (int64_t i = 0; i < stack->n_blocks; i++) {
        fsdp_parameter *own = stack->blocks[i]->relative;
        if (own)
            bias = fsdp_relative_bias(t, fsdp_use(t, own), length, length, !memory, c->max_distance, 0);
        fsdp_tensor *in[] = {x, bias, mask, memory};
        fsdp_call_list(&stack->blocks[i]->base, t, in, memory ? 4 : 3, &x, 1);
    }
    return fsdp_dropout(t, fsdp_call(stack->norm, t, x), c->dropout);
}

static fsdp_tensor *scale_for_head(const t5 *m, fsdp_tape *t, fsdp_tensor *h)
{
    return m->config.scale_decoder_outputs ? fsdp_scale(t, h, 1 / sqrtf((float)m->config.hidden)) : h;
}

static fsdp_tensor *head_weight(t5 *m, fsdp_tape *t)
{
    return fsdp_use(t, m->head ? m->head : m->shared);
}

/* Decoder states (B, T, C), scaled for the head. */
static fsdp_tensor *hidden_states(t5 *m, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *mask, fsdp_tensor *decoder_ids)
{
    fsdp_tensor *memory = run_stack(m, t, &m->encoder, ids, mask, NULL);
    if (!memory)
        return NULL;
    return scale_for_head(m, t, run_stack(m, t, &m->decoder, decoder_ids, mask, memory));
}

fsdp_tensor *fsdp_t5_logits(fsdp_module *module, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *mask,
                            fsdp_tensor *decoder_ids)
{
    t5 *m = (t5 *)module;
    fsdp_tensor *h = hidden_states(m, t, ids, mask, decoder_ids);
    return fsdp_linear(t, h, head_weight(m, t), NULL);
}

fsdp_loss fsdp_t5_loss(fsdp_module *module, fsdp_tape *t, fsdp_tensor *ids, fsdp_tensor *mask, fsdp_tensor *decoder_ids,
                       fsdp_tensor *labels)
{
    t5 *m = (t5 *)module;
    fsdp_tensor *h = hidden_states(m, t, ids, mask, decoder_ids);
    return fsdp_linear_cross_entropy(t, h, head_weight(m, t), labels, FSDP_IGNORE);
}

/* Generation. */

void t5_encode(fsdp_module *module, fsdp_tape *t, int64_t n_tokens, const int32_t *ids, const int32_t *mask,
               const int32_t *places, const row_cache *memory)
{
    t5 *m = (t5 *)module;
    int64_t shape[] = {1, n_tokens};
    fsdp_tensor *where = fsdp_input(t, FSDP_I32, 1, &n_tokens, places);
    fsdp_tensor *encoded = run_stack(m, t, &m->encoder, fsdp_input(t, FSDP_I32, 2, shape, ids),
                                     fsdp_input(t, FSDP_I32, 2, shape, mask), NULL);
    for (int64_t i = 0; i < m->decoder.n_blocks; i++)
        cache_write(t, &memory[i], lora_project(t, encoded, m->decoder.blocks[i]->cross_kv, NULL, NULL), where);
}

/* Attention of one token, its queries q (1, 1, width), to rows of a cache of keys | values. */
static fsdp_tensor *attend_cache(const t5_block *b, fsdp_tape *t, fsdp_tensor *q, const row_cache *cache,
                                 int64_t length, fsdp_tensor *bias, fsdp_tensor *mask)
{
    fsdp_tensor *kv = cache_read(t, cache, length);
    fsdp_attention_config a = {.q = {q, 0},
                               .k = {kv, 0},
                               .v = {kv, b->heads * b->head_dim},
                               .q_heads = b->heads,
                               .kv_heads = b->heads,
                               .head_dim = b->head_dim,
                               .scale = 1,
                               .bias = bias,
                               .relative = true,
                               .key_mask = mask};
    return fsdp_attention(t, &a);
}

fsdp_tensor *t5_decode(fsdp_module *module, fsdp_tape *t, const decode_step *step, const row_cache *past,
                       int64_t n_source, const int32_t *source_mask, const row_cache *memory)
{
    t5 *m = (t5 *)module;
    const fsdp_t5_config *c = &m->config;
    int64_t one[] = {1, 1}, length[] = {1, step->length}, source[] = {1, n_source}, width = c->heads * c->head_dim;
    if (step->n_tokens != 1 || step->length < 1)
        return tape_refuse(t, "T5 decodes one token at a time, not %lld", (long long)step->n_tokens);
    fsdp_tensor *position = fsdp_input(t, FSDP_I32, 1, one, step->positions);
    fsdp_tensor *mask = fsdp_input(t, FSDP_I32, 2, length, step->mask),
                *cross_mask = fsdp_input(t, FSDP_I32, 2, source, source_mask);
    fsdp_tensor *bias = NULL,
                *x = fsdp_embedding(t, fsdp_input(t, FSDP_I32, 2, one, step->ids), fsdp_use(t, m->shared));
    for (int64_t i = 0; i < m->decoder.n_blocks; i++) {
        t5_block *b = m->decoder.blocks[i];
        if (b->relative)
            bias = fsdp_relative_bias(t, fsdp_use(t, b->relative), 1, step->length, false, c->max_distance,
                                      step->positions[0]);
        fsdp_tensor *qkv = lora_project(t, fsdp_call(b->self_norm, t, x), b->qkv, NULL, NULL);
        cache_write(t, &past[i], fsdp_slice(t, qkv, 2, width, 2 * width), position);
        fsdp_tensor *heads = attend_cache(b, t, fsdp_slice(t, qkv, 2, 0, width), &past[i], step->length, bias, mask);
        x = attention_out(b, t, heads, b->self_out, x);
        fsdp_tensor *q = lora_project(t, fsdp_call(b->cross_norm, t, x), b->cross_q, NULL, NULL);
        x = attention_out(b, t, attend_cache(b, t, q, &memory[i], n_source, NULL, cross_mask), b->cross_out, x);
        x = feed_forward(b, t, x);
    }
    x = scale_for_head(m, t, fsdp_call(m->decoder.norm, t, x));
    return fsdp_linear(t, x, head_weight(m, t), NULL);
}
