/* Attention forward: per tile of queries, one walk over the keys with a running maximum and denominator. */
#include "device/cpu/simd/attention_panels.h"

/* With bf16 products, making sums follow a rising maximum takes as long as a product; so they follow only when it has
 * risen by more than this. Weights of up to e^8 lose no more to rounding than those of up to 1. */
#define MAXIMUM_SLACK 8.0f

/* One thread's memory. Operands of products are panels with a kernel, and fp32 without. */
typedef struct scratch {
    const gemm_kernel *kernel;
    int64_t width;      /* padded head */
    float *scores;      /* (KEYS, lanes) */
    float *out;         /* (QUERIES, width) */
    float *out_t;       /* (head_dim, lanes): the sums of bf16 products */
    float *factors;     /* (KEYS, lanes), of dropout */
    void *query;        /* columns over the head; or (head_dim, lanes), times scale */
    void *weights;      /* columns over the keys */
    kept_keys keys;     /* a slot: keys as rows over the head, values as rows over the keys */
    float *key, *value; /* (KEYS, width), for fp32 operands that must be converted */
} scratch;

static scratch scratch_lay(const attention_args *a, const gemm_kernel *kernel, layout *l)
{
    scratch m = {.kernel = kernel, .width = padded_head(a, kernel)};
    m.scores = layout_floats(l, sum_rows(kernel, KEYS), QUERIES);
    m.out = layout_floats(l, QUERIES, m.width);
    m.factors = layout_floats(l, dropout_rows(a), QUERIES);
    if (kernel) {
        m.query = layout_take(l, panels_bytes(kernel, PANEL_COLUMNS, QUERIES, a->head_dim));
        m.weights = layout_take(l, panels_bytes(kernel, PANEL_COLUMNS, QUERIES, KEYS));
        m.out_t = layout_floats(l, sum_rows(kernel, a->head_dim), QUERIES);
        size_t value_bytes = panels_bytes(kernel, PANEL_ROWS, a->head_dim, KEYS);
        m.keys = kept_keys_lay(a, key_bytes(a, kernel) + value_bytes, l);
    } else {
        m.query = layout_floats(l, QUERIES, m.width);
        m.key = layout_floats(l, KEYS, m.width);
        m.value = layout_floats(l, KEYS, m.width);
    }
    return m;
}

static size_t scratch_bytes(const attention_args *a, const gemm_kernel *kernel)
{
    layout l = {0};
    scratch_lay(a, kernel, &l);
    return round_up(l.bytes, 256);
}

/* Turns scores into exp(factor * score - highest) and adds them to `sum`; `highest` is at most `slack` below the
 * maximum of everything so far. True: it has moved, and what was summed before must be multiplied by `shrink`. */
static bool softmax_step(const query_tile *t, int64_t n_keys, float factor, float slack, float *restrict scores,
                         float *restrict highest, float *restrict sum, float *restrict shrink)
{
    float top[QUERIES], part[QUERIES];
    int moved = 0;
    for (int64_t i = 0; i < t->lanes; i++)
        top[i] = -INFINITY;
    for (int64_t j = 0; j < n_keys; j++) {
        const float *row = scores + j * t->lanes;
#pragma omp simd
        for (int64_t i = 0; i < t->lanes; i++)
            top[i] = row[i] > top[i] ? row[i] : top[i];
    }
#pragma omp simd reduction(| : moved)
    for (int64_t i = 0; i < t->lanes; i++) {
        float was = highest[i], now = top[i] * factor > was + slack ? top[i] * factor : was;
        moved |= now > was;
        /* A query that has seen no key yet has nothing to subtract and nothing to shrink. */
        float base = now == -INFINITY ? 0.0f : now;
        shrink[i] = simd_exp(was - base);
        highest[i] = now;
        top[i] = base;
        part[i] = 0.0f;
    }
    for (int64_t j = 0; j < n_keys; j++) {
        float *row = scores + j * t->lanes;
#pragma omp simd
        for (int64_t i = 0; i < t->lanes; i++) {
            float e = simd_exp(row[i] * factor - top[i]); /* rounded as top is: huge scores leave no remainder */
            row[i] = e;
            part[i] += e;
        }
    }
    for (int64_t i = 0; i < t->lanes; i++)
        sum[i] = sum[i] * shrink[i] + part[i];
    return moved != 0;
}

static void write_tile(const attention_args *a, const query_tile *t, const float *highest, const float *sum,
                       int64_t width, float *out)
{
    int64_t at = out_at(a, t);
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

static void read_queries(const attention_args *a, const query_tile *t, const scratch *m)
{
    if (!m->kernel) {
        tile_transpose(a, a->q, query_at(a, t), a->q_row, t, a->scale, m->query);
        return;
    }
    panel_source query = over_head(a, a->q, query_at(a, t), a->q_row, t->n);
    panels_pack(m->kernel, PANEL_COLUMNS, &query, m->query);
}

/* The tile's panels, packed unless they have been kept; its values follow key_bytes on. */
static const char *read_keys(const attention_args *a, const key_tile *k, const scratch *m)
{
    bool packed;
    char *panels = kept_keys_slot(&m->keys, a, k, &packed);
    if (!packed) {
        panel_source key = over_head(a, a->k, k->k_at, a->k_row, k->n);
        panel_source value = over_rows(a, a->v, k->v_at, a->v_row, k->n);
        panels_pack(m->kernel, PANEL_ROWS, &key, panels);
        panels_pack(m->kernel, PANEL_ROWS, &value, panels + key_bytes(a, m->kernel));
    }
    return panels;
}

/* Scores, scaled except that scores_factor is still to come. `panels` are read_keys'. */
static void sum_scores(const attention_args *a, const query_tile *t, const key_tile *k, const char *panels,
                       const scratch *m)
{
    if (!m->kernel) {
        tile_rows key = tile_rows_read(a, a->k, k->k_at, a->k_row, k->n, false, m->key);
        SIMD_NAME(tile_product)
        (k->n, t->lanes, a->head_dim, key.p, key.row, 1, m->query, t->lanes, m->scores, t->lanes, false);
        return;
    }
    panels_product(m->kernel, k->n, t->lanes, a->head_dim, panels, m->query, m->scores, t->lanes, false);
    if (scores_factor(a, m->kernel) != a->scale)
        tile_scale(a, t, k->n, m->scores);
}

/* Adds the values by their weights. */
static void sum_values(const attention_args *a, const query_tile *t, const key_tile *k, const char *panels,
                       const scratch *m)
{
    if (!m->kernel) {
        tile_rows value = tile_rows_read(a, a->v, k->v_at, a->v_row, k->n, true, m->value);
        SIMD_NAME(tile_product)
        (t->n, m->width, k->n, m->scores, 1, t->lanes, value.p, value.row, m->out, m->width, true);
        return;
    }
    panel_source weights = over_keys(t, m->scores, k->n);
    panels_pack(m->kernel, PANEL_COLUMNS, &weights, m->weights);
    panels_product(m->kernel, a->head_dim, t->lanes, k->n, panels + key_bytes(a, m->kernel), m->weights, m->out_t,
                   t->lanes, true);
}

static void clear_sums(const attention_args *a, const query_tile *t, const scratch *m)
{
    if (m->kernel)
        memset(m->out_t, 0, (size_t)(sum_rows(m->kernel, a->head_dim) * t->lanes) * sizeof(float));
    else
        memset(m->out, 0, (size_t)(t->n * m->width) * sizeof(float));
}

/* Multiplies each query's sums. */
static void shrink_sums(const attention_args *a, const query_tile *t, const float *restrict by, const scratch *m)
{
    for (int64_t c = 0; m->kernel && c < a->head_dim; c++) {
        float *restrict row = m->out_t + c * t->lanes;
#pragma omp simd
        for (int64_t i = 0; i < t->lanes; i++)
            row[i] *= by[i];
    }
    for (int64_t i = 0; !m->kernel && i < t->n; i++) {
        float *restrict row = m->out + i * m->width;
#pragma omp simd
        for (int64_t c = 0; c < m->width; c++)
            row[c] *= by[i];
    }
}

static void forward_tile(const attention_args *a, const query_tile *t, const scratch *m)
{
    float highest[QUERIES], sum[QUERIES], shrink[QUERIES], factor = scores_factor(a, m->kernel);
    float slack = m->kernel ? MAXIMUM_SLACK : 0.0f;
    for (int i = 0; i < QUERIES; i++) {
        highest[i] = -INFINITY;
        sum[i] = 0.0f;
    }
    read_queries(a, t, m);
    clear_sums(a, t, m);
    int64_t end = visible_keys(a, t);
    for (int64_t first = first_visible_key(a, t); first < end; first += KEYS) {
        key_tile k = key_tile_at(a, m->kernel, t, first);
        const char *panels = m->kernel ? read_keys(a, &k, m) : NULL;
        sum_scores(a, t, &k, panels, m);
        tile_bias_and_mask(a, t, first, k.n, m->scores);
        if (softmax_step(t, k.n, factor, slack, m->scores, highest, sum, shrink))
            shrink_sums(a, t, shrink, m);
        if (a->dropout > 0) {
            tile_dropout_factors(a, t, first, k.n, m->factors);
            tile_multiply(t, k.n, m->factors, m->scores);
        }
        sum_values(a, t, &k, panels, m);
    }
    if (m->kernel)
        panels_turn(m->out_t, t->lanes, a->head_dim, t->n, m->width, m->out);
    write_tile(a, t, highest, sum, m->width, m->out);
}

static int forward_threads(const struct device *d, const attention_args *a)
{
    int64_t fit = max_i64(1, (int64_t)(SCRATCH_BYTES_MAX / scratch_bytes(a, attention_kernel(d, a))));
    return (int)min_i64(cpu_device_threads(d), fit);
}

SIMD_WORKSPACE(attention_forward, attention_args)
{
    return (size_t)forward_threads(d, a) * scratch_bytes(a, attention_kernel(d, a));
}

/* Tiles differ in length when causal, so threads take the next one as they get free; each tile writes only its own. */
static void forward_tiles(void *context, int rank, int size)
{
    (void)size;
    attention_work *w = context;
    const attention_args *a = w->args;
    int64_t n_tiles = ceil_div(a->q_length, QUERIES), item;
    layout l = {.base = (char *)a->workspace + scratch_bytes(a, w->kernel) * (size_t)rank};
    scratch m = scratch_lay(a, w->kernel, &l);
    attention_enter(w);
    while (attention_next(w, &item)) {
        /* Longest first. */
        int64_t first = (n_tiles - 1 - item % n_tiles) * QUERIES, head = item / n_tiles;
        query_tile t = query_tile_at(a, w->kernel, head / a->q_heads, head % a->q_heads, first);
        forward_tile(a, &t, &m);
    }
    attention_leave(w);
}

SIMD_KERNEL(attention_forward, attention_args)
{
    FSDP_TRY(attention_check(a));
    attention_work w = {.args = a, .n_items = a->batch * a->q_heads * ceil_div(a->q_length, QUERIES)};
    w.kernel = attention_kernel(&s->device->base, a);
    int threads = cpu_threads_for(s, a->batch * a->q_heads * a->q_length * a->kv_length);
    parallel_team(threads, (int)min_i64(threads, forward_threads(&s->device->base, a)), forward_tiles, &w);
    return FSDP_OK;
}
