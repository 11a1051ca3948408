/* Attention forward: per tile of queries, one walk over the keys with a running maximum and denominator. */
#include "device/cpu/simd/attention.h"

/* One thread's memory, in floats. */
typedef struct scratch {
    float *query;       /* (head_dim, lanes), times scale */
    float *scores;      /* (KEYS, lanes) */
    float *out;         /* (QUERIES, padded head) */
    float *key, *value; /* (KEYS, padded head), for operands that must be converted */
    float *factors;     /* (KEYS, lanes), of dropout */
} scratch;

static size_t scratch_floats(const attention_args *a)
{
    size_t width = (size_t)padded_head(a);
    return round_up(2 * QUERIES * width + KEYS * QUERIES + 2 * KEYS * width + dropout_floats(a), 64);
}

static scratch scratch_at(const attention_args *a, int thread)
{
    int64_t width = padded_head(a);
    float *p = (float *)a->workspace + scratch_floats(a) * (size_t)thread;
    return (scratch){.query = p,
                     .scores = p + QUERIES * width,
                     .out = p + QUERIES * width + KEYS * QUERIES,
                     .key = p + 2 * QUERIES * width + KEYS * QUERIES,
                     .value = p + 2 * QUERIES * width + KEYS * QUERIES + KEYS * width,
                     .factors = p + 2 * QUERIES * width + KEYS * QUERIES + 2 * KEYS * width};
}

/* Turns scores into exp(score - maximum), with the maximum of everything so far; `out` and `sum` follow when it moves.
 */
static void softmax_step(const query_tile *t, int64_t n_keys, int64_t width, float *restrict scores,
                         float *restrict highest, float *restrict sum, float *restrict out)
{
    float top[QUERIES], part[QUERIES], shrink[QUERIES];
    bool moved = false;
    memcpy(top, highest, (size_t)t->lanes * sizeof(float));
    for (int64_t j = 0; j < n_keys; j++) {
        const float *row = scores + j * t->lanes;
#pragma omp simd
        for (int64_t i = 0; i < t->lanes; i++)
            top[i] = row[i] > top[i] ? row[i] : top[i];
    }
    for (int64_t i = 0; i < t->lanes; i++) {
        moved |= top[i] > highest[i];
        /* A query that has seen no key yet has nothing to subtract and nothing to shrink. */
        float base = top[i] == -INFINITY ? 0.0f : top[i];
        shrink[i] = simd_exp(highest[i] - base);
        highest[i] = top[i];
        top[i] = base;
        part[i] = 0.0f;
    }
    for (int64_t j = 0; j < n_keys; j++) {
        float *row = scores + j * t->lanes;
#pragma omp simd
        for (int64_t i = 0; i < t->lanes; i++) {
            float e = simd_exp(row[i] - top[i]);
            row[i] = e;
            part[i] += e;
        }
    }
    for (int64_t i = 0; i < t->lanes; i++)
        sum[i] = sum[i] * shrink[i] + part[i];
    if (!moved)
        return;
    for (int64_t i = 0; i < t->n; i++) {
        float *row = out + i * width, factor = shrink[i];
#pragma omp simd
        for (int64_t c = 0; c < width; c++)
            row[c] *= factor;
    }
}

static void write_tile(const attention_args *a, const query_tile *t, const float *highest, const float *sum, float *out)
{
    int64_t width = padded_head(a), at = out_at(a, t);
    float *lse = a->lse + (t->batch * a->q_heads + t->head) * a->q_length + t->first;
    for (int64_t i = 0; i < t->n; i++) {
        float *row = out + i * width, factor = sum[i] > 0.0f ? 1.0f / sum[i] : 0.0f;
        factor = sum[i] != sum[i] ? sum[i] : factor;
#pragma omp simd
        for (int64_t c = 0; c < width; c++)
            row[c] *= factor;
        span_write(a->out, at + i * out_row(a), a->head_dim, row, false);
        lse[i] = sum[i] == 0.0f ? -INFINITY : highest[i] + logf(sum[i]);
    }
}

static void forward_tile(const attention_args *a, const query_tile *t, const scratch *m)
{
    int64_t width = padded_head(a), kv_head = t->head / (a->q_heads / a->kv_heads);
    float highest[QUERIES], sum[QUERIES];
    for (int i = 0; i < QUERIES; i++) {
        highest[i] = -INFINITY;
        sum[i] = 0.0f;
    }
    tile_transpose(a, a->q, query_at(a, t), a->q_row, t, a->scale, m->query);
    memset(m->out, 0, (size_t)(t->n * width) * sizeof(float));
    int64_t end = visible_keys(a, t);
    for (int64_t first = first_visible_key(a, t); first < end; first += KEYS) {
        int64_t n = min_i64(KEYS, end - first), token = t->batch * a->kv_length + first;
        tile_rows key = tile_rows_read(a, a->k, token * a->k_row + kv_head * a->head_dim, a->k_row, n, false, m->key);
        tile_rows value =
            tile_rows_read(a, a->v, token * a->v_row + kv_head * a->head_dim, a->v_row, n, true, m->value);
        SIMD_NAME(tile_product)
        (n, t->lanes, a->head_dim, key.p, key.row, 1, m->query, t->lanes, m->scores, t->lanes, false);
        tile_bias_and_mask(a, t, first, n, m->scores);
        softmax_step(t, n, width, m->scores, highest, sum, m->out);
        if (a->dropout > 0) {
            tile_dropout_factors(a, t, first, n, m->factors);
            tile_multiply(t, n, m->factors, m->scores);
        }
        SIMD_NAME(tile_product)(t->n, width, n, m->scores, 1, t->lanes, value.p, value.row, m->out, width, true);
    }
    write_tile(a, t, highest, sum, m->out);
}

SIMD_WORKSPACE(attention_forward, attention_args)
{
    return (size_t)cpu_device_threads(d) * scratch_floats(a) * sizeof(float);
}

/* Tiles differ in length when causal, so threads take the next one as they get free; each tile writes only its own. */
static void forward_tiles(void *context, int rank, int size)
{
    (void)size;
    attention_work *w = context;
    const attention_args *a = w->args;
    int64_t n_tiles = ceil_div(a->q_length, QUERIES), item;
    scratch m = scratch_at(a, rank);
    while (attention_next(w, &item)) {
        /* Longest first. */
        query_tile t = {.first = (n_tiles - 1 - item % n_tiles) * QUERIES};
        t.head = item / n_tiles % a->q_heads;
        t.batch = item / n_tiles / a->q_heads;
        t.n = min_i64(QUERIES, a->q_length - t.first);
        t.lanes = (int64_t)round_up((size_t)t.n, VEC);
        forward_tile(a, &t, &m);
    }
}

SIMD_KERNEL(attention_forward, attention_args)
{
    FSDP_TRY(attention_check(a));
    attention_work w = {.args = a, .n_items = a->batch * a->q_heads * ceil_div(a->q_length, QUERIES)};
    int threads = cpu_threads_for(s, a->batch * a->q_heads * a->q_length * a->kv_length);
    parallel_team(threads, threads, forward_tiles, &w);
    return FSDP_OK;
}
