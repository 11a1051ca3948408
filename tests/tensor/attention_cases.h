/* The cases of attention and rotary positions in the table of gradient_cases.h. */
#ifndef TESTS_TENSOR_ATTENTION_CASES_H
#define TESTS_TENSOR_ATTENTION_CASES_H

#include "tensor/gradient_check.h"

/* sizes: length, heads that turn, heads in all, head_dim, first position (-1: each token has its own) */
static inline fsdp_tensor *rope_case(builder *b)
{
    const int64_t *s = b->size;
    int64_t positions = s[0] + (s[4] < 0 ? 0 : s[4]), half = s[3] / 2;
    bool fresh;
    float *cosine, *sine;
    fsdp_tensor *x = VARIABLE(b, 2, s[0], s[2] * s[3]);
    fsdp_tensor *c = buffer_of(b, 0, &cosine, &fresh, DIMS(positions, half));
    for (int64_t i = 0; fresh && i < positions * half; i++)
        cosine[i] = cosf(0.1f * (float)i);
    fsdp_tensor *d = buffer_of(b, 0, &sine, &fresh, DIMS(positions, half));
    for (int64_t i = 0; fresh && i < positions * half; i++)
        sine[i] = sinf(0.1f * (float)i);
    if (s[4] < 0)
        return fsdp_rope_at(b->t, x, c, d, INTEGERS(b, 0, (int32_t)positions - 1, 2, s[0]), s[1], s[3]);
    return fsdp_rope(b->t, x, c, d, s[1], s[3], s[4]);
}

/* sizes: queries, keys, query heads, key heads, head_dim */
static inline fsdp_attention_config heads_of(const builder *b)
{
    const int64_t *s = b->size;
    return (fsdp_attention_config){
        .q_heads = s[2], .kv_heads = s[3], .head_dim = s[4], .scale = 1 / sqrtf((float)s[4])};
}

static inline void separate_heads(builder *b, fsdp_attention_config *a)
{
    const int64_t *s = b->size;
    a->q.x = VARIABLE(b, 2, s[0], s[2] * s[4]);
    a->k.x = VARIABLE(b, 2, s[1], s[3] * s[4]);
    a->v.x = VARIABLE(b, 2, s[1], s[3] * s[4]);
}

static inline fsdp_tensor *attention_case(builder *b)
{
    fsdp_attention_config a = heads_of(b);
    separate_heads(b, &a);
    return fsdp_attention(b->t, &a);
}

static inline fsdp_tensor *attention_causal_case(builder *b)
{
    fsdp_attention_config a = heads_of(b);
    separate_heads(b, &a);
    a.causal = true;
    return fsdp_attention(b->t, &a);
}

/* Size 5: the window. */
static inline fsdp_tensor *attention_window_case(builder *b)
{
    fsdp_attention_config a = heads_of(b);
    separate_heads(b, &a);
    a.causal = true;
    a.window = b->size[5];
    return fsdp_attention(b->t, &a);
}

/* Documents of a few tokens, some of them padding; size 5: the window. */
static inline fsdp_tensor *attention_documents_case(builder *b)
{
    fsdp_attention_config a = heads_of(b);
    separate_heads(b, &a);
    a.causal = true;
    a.window = b->size[5];
    a.starts = fsdp_document_starts(b->t, INTEGERS(b, -1, 1, 2, b->size[0]));
    return fsdp_attention(b->t, &a);
}

static inline fsdp_tensor *attention_fused_case(builder *b)
{
    const int64_t *s = b->size, q = s[2] * s[4], kv = s[3] * s[4];
    fsdp_attention_config a = heads_of(b);
    a.q.x = a.k.x = a.v.x = VARIABLE(b, 2, s[0], q + 2 * kv);
    a.k.offset = q;
    a.v.offset = q + kv;
    a.causal = true;
    return fsdp_attention(b->t, &a);
}

static inline fsdp_tensor *attention_fused_kv_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_attention_config a = heads_of(b);
    a.q.x = VARIABLE(b, 2, s[0], s[2] * s[4]);
    a.k.x = a.v.x = VARIABLE(b, 2, s[1], 2 * s[3] * s[4]);
    a.v.offset = s[3] * s[4];
    return fsdp_attention(b->t, &a);
}

static inline fsdp_tensor *attention_bias_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_attention_config a = heads_of(b);
    separate_heads(b, &a);
    a.bias = VARIABLE(b, s[2], s[0], s[1]);
    return fsdp_attention(b->t, &a);
}

static inline fsdp_tensor *attention_batch_bias_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_attention_config a = heads_of(b);
    separate_heads(b, &a);
    a.bias = VARIABLE(b, 2, s[2], s[0], s[1]);
    a.causal = s[0] == s[1];
    return fsdp_attention(b->t, &a);
}

static inline fsdp_tensor *attention_masked_case(builder *b)
{
    fsdp_attention_config a = heads_of(b);
    separate_heads(b, &a);
    a.key_mask = INTEGERS(b, 0, 1, 2, b->size[1]);
    return fsdp_attention(b->t, &a);
}

/* As T5 in training: a bias, hidden keys, weights left out. */
static inline fsdp_tensor *attention_dropout_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_attention_config a = heads_of(b);
    separate_heads(b, &a);
    a.bias = VARIABLE(b, s[2], s[0], s[1]);
    a.key_mask = INTEGERS(b, 0, 1, 2, s[1]);
    a.dropout = 0.25f;
    return fsdp_attention(b->t, &a);
}

/* Every key hidden: zeros, and no gradient. */
static inline fsdp_tensor *attention_hidden_case(builder *b)
{
    fsdp_attention_config a = heads_of(b);
    separate_heads(b, &a);
    a.key_mask = INTEGERS(b, 0, 0, 2, b->size[1]);
    return fsdp_attention(b->t, &a);
}

/* T5: the gradient of the bucket table; size 5: bidirectional. Two attentions share the bias, as blocks do. */
static inline fsdp_tensor *attention_relative_case(builder *b)
{
    const int64_t *s = b->size;
    fsdp_attention_config a = heads_of(b);
    separate_heads(b, &a);
    a.relative = true;
    a.causal = !s[5];
    a.bias = fsdp_relative_bias(b->t, VARIABLE(b, 8, s[2]), s[0], s[1], s[5], 20, 0);
    fsdp_tensor *first = fsdp_attention(b->t, &a);
    fsdp_tensor *q = a.q.x;
    a.q.x = fsdp_scale(b->t, q, 0.5f);
    return fsdp_add(b->t, first, fsdp_attention(b->t, &a));
}

#endif
