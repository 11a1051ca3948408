/* What attention forward and backward share. Both walk tiles of QUERIES queries by KEYS keys, and keep scores
 * transposed, (keys, queries): queries are the vector lanes, so maxima, sums and masks need no horizontal steps, and
 * of all operands only the small query tile is ever transposed. */
#ifndef DEVICE_CPU_SIMD_ATTENTION_H
#define DEVICE_CPU_SIMD_ATTENTION_H

#include "device/cpu/simd/philox.h"
#include "device/cpu/simd/span.h"
#include "device/cpu/simd/tile.h"

#include "base/error.h"
#include "device/attention_dropout.h"

#define QUERIES 64
#define KEYS 64
#define HEAD_DIM_MAX 256

/* One tile of queries of one head. */
typedef struct query_tile {
    int64_t batch, head, first, n;
    int64_t lanes; /* n rounded up to whole vectors: the row length of score tiles */
} query_tile;

/* Rows of a tile as fp32: where the operand lies, or a converted copy. */
typedef struct tile_rows {
    const float *p;
    int64_t row;
} tile_rows;

/* What threads share out among them, item by item. */
typedef struct attention_work {
    const attention_args *args;
    int64_t n_items, n_taken;
} attention_work;

static inline bool attention_next(attention_work *w, int64_t *item)
{
    *item = __atomic_fetch_add(&w->n_taken, 1, __ATOMIC_RELAXED);
    return *item < w->n_items;
}

static inline fsdp_status attention_check(const attention_args *a)
{
    if (a->head_dim < 1 || a->head_dim > HEAD_DIM_MAX)
        return error_set(FSDP_ERR_UNSUPPORTED, "attention: head dimension %lld; the CPU kernels take 1 to %d",
                         (long long)a->head_dim, HEAD_DIM_MAX);
    if (a->kv_heads < 1 || a->q_heads % a->kv_heads != 0)
        return error_set(FSDP_ERR_INPUT, "attention: %lld query heads cannot share %lld key/value heads evenly",
                         (long long)a->q_heads, (long long)a->kv_heads);
    return FSDP_OK;
}

static inline int64_t padded_head(const attention_args *a)
{
    return (int64_t)round_up((size_t)a->head_dim, VEC);
}

static inline int64_t query_at(const attention_args *a, const query_tile *t)
{
    return (t->batch * a->q_length + t->first) * a->q_row + t->head * a->head_dim;
}

static inline int64_t out_row(const attention_args *a)
{
    return a->q_heads * a->head_dim;
}

static inline int64_t out_at(const attention_args *a, const query_tile *t)
{
    return (t->batch * a->q_length + t->first) * out_row(a) + t->head * a->head_dim;
}

/* Rows `at`, `at + row`, ... of a buffer, each head_dim long. `padded`: rows must be readable, as zeros, up to whole
 * vectors. Uses `copy` (n, padded_head) unless the buffer can be read as it is. */
static inline tile_rows tile_rows_read(const attention_args *a, buffer b, int64_t at, int64_t row, int64_t n,
                                       bool padded, float *copy)
{
    int64_t width = padded_head(a);
    if (b.dtype == FSDP_F32 && (!padded || width == a->head_dim))
        return (tile_rows){(const float *)b.p + at, row};
    for (int64_t i = 0; i < n; i++) {
        span_load(b, at + i * row, a->head_dim, copy + i * width);
        memset(copy + i * width + a->head_dim, 0, (size_t)(width - a->head_dim) * sizeof(float));
    }
    return (tile_rows){copy, width};
}

/* to (head_dim, lanes) = factor * rows^T; lanes past n are zero. */
static inline void tile_transpose(const attention_args *a, buffer b, int64_t at, int64_t row, const query_tile *t,
                                  float factor, float *restrict to)
{
    float scratch[8][HEAD_DIM_MAX];
    memset(to, 0, (size_t)(a->head_dim * t->lanes) * sizeof(float));
    for (int64_t first = 0; first < t->n; first += 8) {
        const float *rows[8];
        int64_t n = min_i64(8, t->n - first);
        for (int64_t i = 0; i < n; i++)
            rows[i] = span_read(b, at + (first + i) * row, a->head_dim, scratch[i]);
        for (int64_t d = 0; d < a->head_dim; d++) {
            for (int64_t i = 0; i < n; i++)
                to[d * t->lanes + first + i] = factor * rows[i][d];
        }
    }
}

/* Keys that the tile can see at all: 0 .. the result. */
static inline int64_t visible_keys(const attention_args *a, const query_tile *t)
{
    if (!a->causal)
        return a->kv_length;
    return max_i64(0, min_i64(a->kv_length, t->first + t->n + a->kv_length - a->q_length));
}

/* Where the documents of the tile's queries start; NULL: a row is one document. */
static inline const int32_t *tile_starts(const attention_args *a, const query_tile *t)
{
    return a->starts ? a->starts + t->batch * a->q_length + t->first : NULL;
}

/* The first tile of keys that holds one that the tile can see. */
static inline int64_t first_visible_key(const attention_args *a, const query_tile *t)
{
    int64_t first = a->window > 0 ? t->first + a->kv_length - a->q_length - a->window + 1 : 0;
    if (a->starts)
        first = max_i64(first, *tile_starts(a, t));
    return max_i64(0, first) / KEYS * KEYS;
}

/* Adds the bias to score tile (n_keys, lanes) and hides what the masks hide. */
static inline void tile_bias_and_mask(const attention_args *a, const query_tile *t, int64_t first_key, int64_t n_keys,
                                      float *scores)
{
    int64_t bias_at = t->batch * a->bias_batch + t->head * a->bias_head + t->first * a->bias_query;
    int64_t reach = a->kv_length - a->q_length + t->first; /* query lane i sees keys up to reach + i */
    const int32_t *starts = tile_starts(a, t);
    int64_t begun = 0; /* lanes whose document has begun: starts never fall */
    for (int64_t j = 0; j < n_keys; j++) {
        float *row = scores + j * t->lanes;
        int64_t key = first_key + j;
        if (a->key_mask && !a->key_mask[t->batch * a->kv_length + key]) {
            for (int64_t i = 0; i < t->lanes; i++)
                row[i] = -INFINITY;
            continue;
        }
        int64_t at = bias_at + key * a->bias_key;
        if (a->bias.p && a->bias.dtype == FSDP_F32 && a->bias_query == -1) {
            const float *bias = (const float *)a->bias.p + at;
            for (int64_t i = 0; i < t->n; i++)
                row[i] += bias[-i];
        } else if (a->bias.p) {
            for (int64_t i = 0; i < t->n; i++)
                row[i] += element_read(a->bias, at + i * a->bias_query);
        }
        int64_t hidden = a->causal ? min_i64(t->lanes, key - reach) : 0;
        for (int64_t i = 0; i < hidden; i++)
            row[i] = -INFINITY;
        if (a->window > 0)
            for (int64_t i = max_i64(0, key - reach + a->window); i < t->lanes; i++)
                row[i] = -INFINITY;
        while (starts && begun < t->n && starts[begun] <= key)
            begun++;
        for (int64_t i = begun; starts && i < t->lanes; i++)
            row[i] = -INFINITY;
    }
}

/* Floats of a tile of dropout's factors, none without it. */
static inline size_t dropout_floats(const attention_args *a)
{
    return a->dropout > 0 ? KEYS * QUERIES : 0;
}

/* factors (n_keys, lanes): 0 where a weight is left out, the scale where it stays. first_key is a multiple of KEYS. */
static inline void tile_dropout_factors(const attention_args *a, const query_tile *t, int64_t first_key, int64_t n_keys,
                                        float *restrict factors)
{
    uint32_t words[DROPOUT_KEYS / 2 * QUERIES], threshold = attention_dropout_threshold(a->dropout);
    float scale = attention_dropout_scale(threshold);
    rng_key key = {{a->dropout_key[0], a->dropout_key[1]}};
    uint64_t row = attention_dropout_row(a, samples_first(a->scalars, a->batch), t->batch, t->head, t->first);
    for (int64_t first = 0; first < n_keys; first += DROPOUT_KEYS) {
        philox_lanes(key, a->scalars->step, row + (uint64_t)((first_key + first) / DROPOUT_KEYS),
                     attention_dropout_groups(a->kv_length), (int)t->lanes, words, QUERIES);
        for (int64_t j = 0; j < min_i64(DROPOUT_KEYS, n_keys - first); j++) {
            const uint32_t *word = words + j / 2 * QUERIES;
            uint32_t shift = (uint32_t)(j % 2 * 16);
            float *to = factors + (first + j) * t->lanes;
#pragma omp simd
            for (int64_t i = 0; i < t->lanes; i++)
                to[i] = (word[i] >> shift & 0xffffu) >= threshold ? scale : 0.0f;
        }
    }
}

static inline void tile_multiply(const query_tile *t, int64_t n_keys, const float *restrict factors,
                                 float *restrict tile)
{
#pragma omp simd
    for (int64_t i = 0; i < n_keys * t->lanes; i++)
        tile[i] = factors[i] != 0.0f ? tile[i] * factors[i] : 0.0f;
}

#endif
