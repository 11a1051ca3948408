/* Attention backward: the scores of each tile are computed again from the saved log-sum-exp, then
 *   dv += p^T do    dp = do v^T    ds = p (dp - delta)    dk += ds^T q    dq += ds k,    delta = sum(do * out).
 * With dropout, dp and then p are multiplied by its factors before they are used further.
 * One thread owns a key/value head of one sample, with fp32 sums for all of its keys, and walks its tiles in order. */
#include "device/cpu/simd/attention_panels.h"

/* One thread's memory. Operands of products are panels with a kernel, and fp32 without. */
typedef struct scratch {
    const gemm_kernel *kernel;
    int64_t width;                              /* padded head */
    float *d_query;                             /* (QUERIES, width) */
    float *d_query_t;                           /* (head_dim, lanes): the sums of bf16 products */
    float *p, *ds;                              /* (KEYS, lanes) */
    float *d_key, *d_value;                     /* (kv_length, width) */
    float *factors;                             /* (KEYS, lanes), of dropout */
    void *query_t, *d_out_t;                    /* columns over the head; or (head_dim, lanes), the query times scale */
    void *query, *d_out;                        /* columns over the queries; or (QUERIES, width) */
    void *weights;                              /* rows over the queries: p or ds */
    void *ds_columns;                           /* columns over the keys */
    kept_keys keys;                             /* a slot: key_panels */
    float *key, *value;                         /* (KEYS, width), for fp32 operands that must be converted */
    tile_rows query_rows, d_out_rows, key_rows; /* fp32: where they are */
} scratch;

/* A tile of keys: keys and values as rows over the head, and the head as rows over the keys. */
typedef struct key_panels {
    char *key, *value, *key_t;
} key_panels;

static void lay_panels(const attention_args *a, layout *l, scratch *m)
{
    size_t head_bytes = panels_bytes(m->kernel, PANEL_COLUMNS, QUERIES, a->head_dim);
    size_t query_bytes = panels_bytes(m->kernel, PANEL_COLUMNS, a->head_dim, QUERIES);
    m->query_t = layout_take(l, head_bytes);
    m->d_out_t = layout_take(l, head_bytes);
    m->query = layout_take(l, query_bytes);
    m->d_out = layout_take(l, query_bytes);
    m->weights = layout_take(l, panels_bytes(m->kernel, PANEL_ROWS, KEYS, QUERIES));
    m->ds_columns = layout_take(l, panels_bytes(m->kernel, PANEL_COLUMNS, QUERIES, KEYS));
    m->d_query_t = layout_floats(l, sum_rows(m->kernel, a->head_dim), QUERIES);
    size_t turned_bytes = panels_bytes(m->kernel, PANEL_ROWS, a->head_dim, KEYS);
    m->keys = kept_keys_lay(a, 2 * key_bytes(a, m->kernel) + turned_bytes, l);
}

static void lay_rows(layout *l, scratch *m)
{
    m->query_t = layout_floats(l, QUERIES, m->width);
    m->d_out_t = layout_floats(l, QUERIES, m->width);
    m->query = layout_floats(l, QUERIES, m->width);
    m->d_out = layout_floats(l, QUERIES, m->width);
    m->key = layout_floats(l, KEYS, m->width);
    m->value = layout_floats(l, KEYS, m->width);
}

static scratch scratch_lay(const attention_args *a, const gemm_kernel *kernel, layout *l)
{
    scratch m = {.kernel = kernel, .width = padded_head(a, kernel)};
    int64_t keys = a->kv_length + (kernel ? kernel->tile_rows : 0);
    m.d_query = layout_floats(l, QUERIES, m.width);
    m.p = layout_floats(l, sum_rows(kernel, KEYS), QUERIES);
    m.ds = layout_floats(l, sum_rows(kernel, KEYS), QUERIES);
    m.d_key = layout_floats(l, keys, m.width);
    m.d_value = layout_floats(l, keys, m.width);
    m.factors = layout_floats(l, dropout_rows(a), QUERIES);
    if (kernel)
        lay_panels(a, l, &m);
    else
        lay_rows(l, &m);
    return m;
}

static size_t scratch_bytes(const attention_args *a, const gemm_kernel *kernel)
{
    layout l = {0};
    scratch_lay(a, kernel, &l);
    return round_up(l.bytes, 256);
}

/* What each query lane subtracts: its log-sum-exp (infinity where it saw no key, so that p is 0) and its delta. */
static void lane_constants(const attention_args *a, const query_tile *t, float *lse, float *delta)
{
    const float *saved = a->lse + (t->batch * a->q_heads + t->head) * a->q_length + t->first;
    float out_scratch[HEAD_DIM_MAX], d_out_scratch[HEAD_DIM_MAX];
    for (int64_t i = 0; i < t->lanes; i++) {
        lse[i] = INFINITY;
        delta[i] = 0.0f;
    }
    for (int64_t i = 0; i < t->n; i++) {
        int64_t at = out_at(a, t) + i * out_row(a);
        const float *out = span_read(a->out, at, a->head_dim, out_scratch);
        const float *d_out = span_read(a->d_out, at, a->head_dim, d_out_scratch);
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < a->head_dim; c++)
            sum += out[c] * d_out[c];
        delta[i] = sum;
        lse[i] = saved[i] == -INFINITY ? INFINITY : saved[i];
    }
}

/* p from scores, which are multiplied by factor first, and ds from dp, both in place. */
static void softmax_backward(const query_tile *t, int64_t n_keys, float factor, const float *restrict lse,
                             const float *restrict delta, float *restrict p, float *restrict ds)
{
    for (int64_t j = 0; j < n_keys; j++) {
        float *p_row = p + j * t->lanes, *ds_row = ds + j * t->lanes;
#pragma omp simd
        for (int64_t i = 0; i < t->lanes; i++) {
            float probability = simd_exp(p_row[i] * factor - lse[i]); /* rounded as in forward */
            p_row[i] = probability;
            ds_row[i] = probability * (ds_row[i] - delta[i]);
        }
    }
}

static void add_bias_gradient(const attention_args *a, const query_tile *t, int64_t first_key, int64_t n_keys,
                              const float *ds)
{
    int64_t origin = t->batch * a->bias_batch + t->head * a->bias_head + t->first * a->bias_query;
    for (int64_t j = 0; j < n_keys; j++) {
        float *to = a->d_bias + origin + (first_key + j) * a->bias_key;
        const float *from = ds + j * t->lanes;
        if (a->bias_query == 0) {
            float sum = 0.0f;
            for (int64_t i = 0; i < t->n; i++)
                sum += from[i];
            *to += sum;
        } else if (a->bias_query == -1) {
#pragma omp simd
            for (int64_t i = 0; i < t->n; i++)
                to[-i] += from[i];
        } else {
            for (int64_t i = 0; i < t->n; i++)
                to[i * a->bias_query] += from[i];
        }
    }
}

static void read_queries(const attention_args *a, const query_tile *t, scratch *m)
{
    int64_t q_at = query_at(a, t), d_at = out_at(a, t), d_row = out_row(a);
    if (!m->kernel) {
        tile_transpose(a, a->q, q_at, a->q_row, t, a->scale, m->query_t);
        tile_transpose(a, a->d_out, d_at, d_row, t, 1.0f, m->d_out_t);
        m->query_rows = tile_rows_read(a, a->q, q_at, a->q_row, t->n, true, m->query);
        m->d_out_rows = tile_rows_read(a, a->d_out, d_at, d_row, t->n, true, m->d_out);
        return;
    }
    panel_source query = over_head(a, a->q, q_at, a->q_row, t->n), d_out = over_head(a, a->d_out, d_at, d_row, t->n);
    panels_pack(m->kernel, PANEL_COLUMNS, &query, m->query_t);
    panels_pack(m->kernel, PANEL_COLUMNS, &d_out, m->d_out_t);
    query = over_rows(a, a->q, q_at, a->q_row, t->n), d_out = over_rows(a, a->d_out, d_at, d_row, t->n);
    panels_pack(m->kernel, PANEL_COLUMNS, &query, m->query);
    panels_pack(m->kernel, PANEL_COLUMNS, &d_out, m->d_out);
}

/* The tile's panels, packed unless they have been kept. */
static key_panels read_keys(const attention_args *a, const key_tile *k, const scratch *m)
{
    bool packed;
    char *slot = kept_keys_slot(&m->keys, a, k, &packed);
    size_t bytes = key_bytes(a, m->kernel);
    key_panels panels = {slot, slot + bytes, slot + 2 * bytes};
    if (!packed) {
        panel_source key = over_head(a, a->k, k->k_at, a->k_row, k->n);
        panel_source value = over_head(a, a->v, k->v_at, a->v_row, k->n);
        panel_source key_t = over_rows(a, a->k, k->k_at, a->k_row, k->n);
        panels_pack(m->kernel, PANEL_ROWS, &key, panels.key);
        panels_pack(m->kernel, PANEL_ROWS, &value, panels.value);
        panels_pack(m->kernel, PANEL_ROWS, &key_t, panels.key_t);
    }
    return panels;
}

/* p = scores, scaled except that scores_factor is still to come, and ds = dp. */
static void sum_scores(const attention_args *a, const query_tile *t, const key_tile *k, const key_panels *panels,
                       scratch *m)
{
    int64_t n = k->n, lanes = t->lanes;
    if (!m->kernel) {
        m->key_rows = tile_rows_read(a, a->k, k->k_at, a->k_row, n, true, m->key);
        tile_rows key = m->key_rows, value = tile_rows_read(a, a->v, k->v_at, a->v_row, n, false, m->value);
        SIMD_NAME(tile_product)(n, lanes, a->head_dim, key.p, key.row, 1, m->query_t, lanes, m->p, lanes, false);
        SIMD_NAME(tile_product)(n, lanes, a->head_dim, value.p, value.row, 1, m->d_out_t, lanes, m->ds, lanes, false);
        return;
    }
    panels_product(m->kernel, n, lanes, a->head_dim, panels->key, m->query_t, m->p, lanes, false);
    panels_product(m->kernel, n, lanes, a->head_dim, panels->value, m->d_out_t, m->ds, lanes, false);
    if (scores_factor(a, m->kernel) != a->scale)
        tile_scale(a, t, n, m->p);
}

/* Adds what p and ds make of the gradients of queries, keys and values. */
static void sum_gradients(const attention_args *a, const query_tile *t, const key_tile *k, const key_panels *panels,
                          const scratch *m)
{
    int64_t n = k->n, lanes = t->lanes, width = m->width;
    float *d_key = m->d_key + k->first * width, *d_value = m->d_value + k->first * width;
    if (!m->kernel) {
        tile_rows query = m->query_rows, d_out = m->d_out_rows, key = m->key_rows;
        SIMD_NAME(tile_product)(n, width, t->n, m->p, lanes, 1, d_out.p, d_out.row, d_value, width, true);
        SIMD_NAME(tile_product)(n, width, t->n, m->ds, lanes, 1, query.p, query.row, d_key, width, true);
        SIMD_NAME(tile_product)(t->n, width, n, m->ds, 1, lanes, key.p, key.row, m->d_query, width, true);
        return;
    }
    panel_source p = over_queries(t, m->p, n), ds = over_queries(t, m->ds, n), ds_t = over_keys(t, m->ds, n);
    panels_pack(m->kernel, PANEL_ROWS, &p, m->weights);
    panels_product(m->kernel, n, width, t->n, m->weights, m->d_out, d_value, width, true);
    panels_pack(m->kernel, PANEL_ROWS, &ds, m->weights);
    panels_product(m->kernel, n, width, t->n, m->weights, m->query, d_key, width, true);
    panels_pack(m->kernel, PANEL_COLUMNS, &ds_t, m->ds_columns);
    panels_product(m->kernel, a->head_dim, lanes, n, panels->key_t, m->ds_columns, m->d_query_t, lanes, true);
}

static void backward_tile(const attention_args *a, const query_tile *t, scratch *m)
{
    int64_t end = visible_keys(a, t);
    float lse[QUERIES], delta[QUERIES], factor = scores_factor(a, m->kernel);
    lane_constants(a, t, lse, delta);
    read_queries(a, t, m);
    if (m->kernel)
        memset(m->d_query_t, 0, (size_t)(sum_rows(m->kernel, a->head_dim) * t->lanes) * sizeof(float));
    else
        memset(m->d_query, 0, (size_t)(t->n * m->width) * sizeof(float));
    for (int64_t first = first_visible_key(a, t); first < end; first += KEYS) {
        key_tile k = key_tile_at(a, m->kernel, t, first);
        key_panels panels = {0};
        if (m->kernel)
            panels = read_keys(a, &k, m);
        sum_scores(a, t, &k, &panels, m);
        tile_bias_and_mask(a, t, first, k.n, m->p);
        if (a->dropout > 0) {
            tile_dropout_factors(a, t, first, k.n, m->factors);
            tile_multiply(t, k.n, m->factors, m->ds);
        }
        softmax_backward(t, k.n, factor, lse, delta, m->p, m->ds);
        if (a->dropout > 0)
            tile_multiply(t, k.n, m->factors, m->p);
        if (a->d_bias)
            add_bias_gradient(a, t, first, k.n, m->ds);
        sum_gradients(a, t, &k, &panels, m);
    }
    if (m->kernel)
        panels_turn(m->d_query_t, t->lanes, a->head_dim, t->n, m->width, m->d_query);
}

/* d rows `at`, `at + row`, ... (+)= factor * sums (n, width); the sums are spoiled. */
static void write_rows(const attention_args *a, buffer d, int64_t at, int64_t row, int64_t n, float factor, bool add,
                       int64_t width, float *sums)
{
    for (int64_t i = 0; i < n; i++) {
        float *from = sums + i * width;
#pragma omp simd
        for (int64_t c = 0; c < width; c++)
            from[c] *= factor;
        span_write(d, at + i * row, a->head_dim, from, add);
    }
}

static void backward_head(const attention_args *a, int64_t batch, int64_t kv_head, scratch *m)
{
    int64_t group = a->q_heads / a->kv_heads, width = m->width;
    memset(m->d_key, 0, (size_t)(a->kv_length * width) * sizeof(float));
    memset(m->d_value, 0, (size_t)(a->kv_length * width) * sizeof(float));
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int64_t first = 0; first < a->q_length; first += QUERIES) {
            query_tile t = query_tile_at(a, m->kernel, batch, head, first);
            backward_tile(a, &t, m);
            if (a->d_q.p)
                write_rows(a, a->d_q, query_at(a, &t), a->q_row, t.n, a->scale, a->add_q, width, m->d_query);
        }
    }
    int64_t token = batch * a->kv_length, column = kv_head * a->head_dim;
    if (a->d_k.p)
        write_rows(a, a->d_k, token * a->k_row + column, a->k_row, a->kv_length, a->scale, a->add_k, width, m->d_key);
    if (a->d_v.p)
        write_rows(a, a->d_v, token * a->v_row + column, a->v_row, a->kv_length, 1.0f, a->add_v, width, m->d_value);
}

/* As attention_kernel, with the gradient of the result being an operand, too. */
static const gemm_kernel *backward_kernel(const struct device *d, const attention_args *a)
{
    return a->d_out.dtype == FSDP_BF16 ? attention_kernel(d, a) : NULL;
}

/* No more threads than heads to share out, nor than the memory for their sums allows. */
static int backward_threads(const struct device *d, const attention_args *a)
{
    int64_t heads = max_i64(1, a->batch * a->kv_heads);
    int64_t fit = max_i64(1, (int64_t)(SCRATCH_BYTES_MAX / scratch_bytes(a, backward_kernel(d, a))));
    return (int)min_i64(cpu_device_threads(d), min_i64(heads, fit));
}

SIMD_WORKSPACE(attention_backward, attention_args)
{
    return (size_t)backward_threads(d, a) * scratch_bytes(a, backward_kernel(d, a));
}

/* Samples and heads that share elements of the bias stay with one thread, in order: no races, always the same bits. */
static bool batches_apart(const attention_args *a)
{
    return !a->d_bias || a->bias_batch != 0;
}

static bool heads_apart(const attention_args *a)
{
    return !a->d_bias || a->bias_head != 0;
}

static void backward_heads(void *context, int rank, int size)
{
    (void)size;
    attention_work *w = context;
    const attention_args *a = w->args;
    int64_t n_heads = heads_apart(a) ? a->kv_heads : 1, item;
    layout l = {.base = (char *)a->workspace + scratch_bytes(a, w->kernel) * (size_t)rank};
    scratch m = scratch_lay(a, w->kernel, &l);
    attention_enter(w);
    while (attention_next(w, &item)) {
        int64_t batch = item / n_heads, head = item % n_heads;
        int64_t batch_end = batches_apart(a) ? batch + 1 : a->batch, head_end = heads_apart(a) ? head + 1 : a->kv_heads;
        for (int64_t b = batch; b < batch_end; b++) {
            for (int64_t h = head; h < head_end; h++)
                backward_head(a, b, h, &m);
        }
    }
    attention_leave(w);
}

SIMD_KERNEL(attention_backward, attention_args)
{
    FSDP_TRY(attention_check(a));
    attention_work w = {.args = a, .kernel = backward_kernel(&s->device->base, a)};
    w.n_items = (batches_apart(a) ? a->batch : 1) * (heads_apart(a) ? a->kv_heads : 1);
    if (a->d_bias && !a->add_bias)
        memset(a->d_bias + a->d_bias_first, 0, (size_t)a->d_bias_numel * sizeof(float));
    int threads = backward_threads(&s->device->base, a);
    if (cpu_threads_for(s, a->batch * a->q_heads * a->q_length * a->kv_length) == 1)
        threads = 1;
    parallel_team(cpu_threads(s), threads, backward_heads, &w);
    return FSDP_OK;
}
