/* What attention forward and backward share. Both walk tiles of QUERIES queries by KEYS keys, and keep scores
 * transposed, (keys, queries): queries are the vector lanes, so maxima, sums and masks need no horizontal steps, and
 * of all operands only the small query tile is ever transposed.
 *
 * Products of bf16 operands are bf16 products with fp32 sums where the processor has a kernel for them: weights and
 * their gradients are rounded to bf16 as they are packed (attention_panels.h). All else is fp32, as are the products of
 * other operands (tile.h). */
#ifndef DEVICE_CPU_SIMD_ATTENTION_H
#define DEVICE_CPU_SIMD_ATTENTION_H

#include "device/cpu/simd/philox.h"
#include "device/cpu/simd/span.h"
#include "device/cpu/simd/tile.h"

#include "base/error.h"
#include "device/cpu/gemm/kernel.h"
#include "device/attention_dropout.h"

#define QUERIES 64
#define KEYS 64
#define HEAD_DIM_MAX 256
#define SCRATCH_BYTES_MAX ((size_t)768 << 20) /* of all threads together: what wants more gets fewer of them */

/* One tile of queries of one head. */
typedef struct query_tile {
    int64_t batch, head, first, n;
    int64_t lanes; /* n rounded up to whole vectors: the row length of score tiles */
} query_tile;

/* One tile of keys of one head, and their values, whose rows begin at k_at and v_at. */
typedef struct key_tile {
    int64_t batch, head, first, n;
    int64_t k_at, v_at;
} key_tile;

/* Rows of a tile as fp32: where the operand lies, or a converted copy. */
typedef struct tile_rows {
    const float *p;
    int64_t row;
} tile_rows;

/* What threads share out among them, item by item. */
typedef struct attention_work {
    const attention_args *args;
    const gemm_kernel *kernel; /* attention_kernel's */
    int64_t n_items, n_taken;
} attention_work;

static inline bool attention_next(attention_work *w, int64_t *item)
{
    *item = __atomic_fetch_add(&w->n_taken, 1, __ATOMIC_RELAXED);
    return *item < w->n_items;
}

/* Around a thread's items. */
static inline void attention_enter(const attention_work *w)
{
    if (w->kernel && w->kernel->enter)
        w->kernel->enter();
}

static inline void attention_leave(const attention_work *w)
{
    if (w->kernel && w->kernel->leave)
        w->kernel->leave();
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

/* Columns of score tiles and of sums come in multiples of this. */
static inline int64_t lane_unit(const gemm_kernel *kernel)
{
    return kernel ? kernel->tile_columns : VEC;
}

/* Rows that a tile's sums may take: the kernel writes whole tiles. */
static inline int64_t sum_rows(const gemm_kernel *kernel, int64_t n)
{
    return kernel ? (int64_t)round_up((size_t)n, (size_t)kernel->tile_rows) : n;
}

static inline int64_t padded_head(const attention_args *a, const gemm_kernel *kernel)
{
    return (int64_t)round_up((size_t)a->head_dim, (size_t)lane_unit(kernel));
}

/* The tile of queries that begins at `first`. */
static inline query_tile query_tile_at(const attention_args *a, const gemm_kernel *kernel, int64_t batch, int64_t head,
                                       int64_t first)
{
    query_tile t = {.batch = batch, .head = head, .first = first, .n = min_i64(QUERIES, a->q_length - first)};
    t.lanes = (int64_t)round_up((size_t)t.n, (size_t)lane_unit(kernel));
    return t;
}

/* One thread's memory is laid out by one function, which is asked for its size, too: `base` is NULL then. */
typedef struct layout {
    char *base;
    size_t bytes;
} layout;

static inline void *layout_take(layout *l, size_t bytes)
{
    void *taken = l->base ? l->base + l->bytes : NULL;
    l->bytes += round_up(bytes, 64);
    return taken;
}

static inline float *layout_floats(layout *l, int64_t rows, int64_t columns)
{
    return layout_take(l, (size_t)(rows * columns) * sizeof(float));
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
    int64_t width = padded_head(a, NULL);
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

/* The tile of keys that begins at `first`. Those that the queries cannot see are cut off, except where tiles are packed
 * for other queries, too: the mask hides them. */
static inline key_tile key_tile_at(const attention_args *a, const gemm_kernel *kernel, const query_tile *t,
                                   int64_t first)
{
    int64_t end = kernel ? a->kv_length : visible_keys(a, t), token = t->batch * a->kv_length + first;
    key_tile k = {.batch = t->batch, .head = t->head / (a->q_heads / a->kv_heads), .first = first};
    k.n = min_i64(KEYS, end - first);
    k.k_at = token * a->k_row + k.head * a->head_dim;
    k.v_at = token * a->v_row + k.head * a->head_dim;
    return k;
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

/* What the softmax multiplies scores by. fp32 products take queries that are scaled already; rounding would spoil those
 * for bf16 products, and a bias is added to scaled scores. */
static inline float scores_factor(const attention_args *a, const gemm_kernel *kernel)
{
    return kernel && !a->bias.p && a->scale > 0 ? a->scale : 1.0f;
}

static inline void tile_scale(const attention_args *a, const query_tile *t, int64_t n_keys, float *scores)
{
#pragma omp simd
    for (int64_t i = 0; i < n_keys * t->lanes; i++)
        scores[i] *= a->scale;
}

/* Rows of a tile of dropout's factors, none without it. */
static inline int64_t dropout_rows(const attention_args *a)
{
    return a->dropout > 0 ? KEYS : 0;
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
