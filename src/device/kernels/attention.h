/* Arguments of attention and of the rotation of its queries and keys (kernels.h). */
#ifndef DEVICE_KERNELS_ATTENTION_H
#define DEVICE_KERNELS_ATTENTION_H

#include "device/kernels/operand.h"

/* Attention over heads that lie inside wider rows (a fused projection): element (b, t, h, i) of q is at
 * q.p + ((b*q_length + t) * q_row + h*head_dim + i). Query head h reads key/value head h / (q_heads / kv_heads).
 * Causal: query t sees keys 0 .. t + kv_length - q_length.
 * bias (optional, fp32 or the dtype of q): score(b, h, i, j) += bias[b*bias_batch + h*bias_head + i*bias_query +
 * j*bias_key]; a relative position bias over distances has bias_query == -1 and bias_key == 1 with bias.p pointing at
 * distance 0. key_mask (optional): int32 (batch, kv_length), 0 hides a key. A row that sees no key gives zeros. Scores
 * are scale * q.k. Never stores a q_length x kv_length matrix beyond the cache-sized tile.
 * starts (optional, causal): int32 (batch, q_length), for rows that hold several documents: a query sees no key before
 * its start. Starts never fall along a row, so what a tile of queries sees is one range of keys, and what sees a tile
 * of keys one range of queries: kernels pass over all other tiles. dropout > 0: weights are left out at random after
 * the softmax and the rest scaled up, as attention_dropout.h says; lse is that of all keys. */
typedef struct attention_args {
    int64_t batch, q_length, kv_length, q_heads, kv_heads, head_dim;
    float scale;
    bool causal;
    int64_t window;              /* causal: a query sees so many keys, the last included; 0: all */
    buffer q, k, v;              /* read */
    int64_t q_row, k_row, v_row; /* elements from one token to the next */
    buffer out;                  /* forward: written, backward: read. (batch, q_length, q_heads*head_dim), contiguous */
    float *lse; /* log of the softmax denominator, (batch, q_heads, q_length): forward writes, backward reads */
    buffer bias;
    int64_t bias_batch, bias_head, bias_query, bias_key;
    const int32_t *key_mask;
    const int32_t *starts;
    float dropout;           /* probability that a weight is left out; 0: none, and the next two are not looked at */
    uint32_t dropout_key[2]; /* rng_key of seed and operation */
    const step_scalars *scalars; /* device memory */
    /* backward only */
    buffer d_out;         /* (batch, q_length, q_heads*head_dim) */
    buffer d_q, d_k, d_v; /* rows as q, k, v; overwritten unless the add flag is set */
    bool add_q, add_k, add_v;
    float *d_bias; /* optional, strided like bias: gradient added over everything broadcast */
    int64_t d_bias_first,
        d_bias_numel; /* the fp32 elements d_bias[d_bias_first .. +d_bias_numel) are those of the bias */
    bool add_bias;    /* false: those elements are cleared first */
    bool deterministic;
    void *workspace;
} attention_args;

/* Rotary embedding in place on the first `heads` heads of each row, pairs (i, i + head_dim/2).
 * Position of row r: r % length + first_position, or positions[r]; one outside the tables gives zeros, as it would in
 * an embedding. inverse: rotates back (the gradient). magnitude (optional): raised to the largest of whole rows
 * afterwards, what lies behind the heads included. */
typedef struct rope_args {
    int64_t rows, length, first_position, heads, head_dim, row;
    const int32_t *positions;   /* (rows), optional */
    int64_t n_positions;        /* of the tables; looked at with positions only */
    buffer x;                   /* (rows, row) */
    const float *cosine, *sine; /* (n_positions, head_dim/2) */
    bool inverse;
    float *magnitude;
} rope_args;

#endif
