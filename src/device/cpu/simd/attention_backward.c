/* Attention backward: the scores of each tile are computed again from the saved log-sum-exp, then
 *   dv += p^T do    dp = do v^T    ds = p (dp - delta)    dk += ds^T q    dq += ds k,    delta = sum(do * out).
 * With dropout, dp and then p are multiplied by its factors before they are used further.
 * One thread owns a key/value head of one sample, with fp32 sums for all of its keys, and walks its tiles in order. */
#include "device/cpu/simd/attention.h"

/* One thread's memory. */
typedef struct scratch {
    float *query_t, *d_out_t;       /* (head_dim, lanes); the query times scale */
    float *query, *d_out, *d_query; /* (QUERIES, padded head) */
    float *p, *ds;                  /* (KEYS, lanes) */
    float *key, *value;             /* (KEYS, padded head) */
    float *d_key, *d_value;         /* (kv_length, padded head) */
    float *factors;                 /* (KEYS, lanes), of dropout */
} scratch;

static size_t scratch_floats(const attention_args *a)
{
    size_t width = (size_t)padded_head(a);
    size_t tiles = 5 * QUERIES * width + 2 * KEYS * QUERIES + 2 * KEYS * width + dropout_floats(a);
    return round_up(tiles + 2 * (size_t)a->kv_length * width, 64);
}

static scratch scratch_at(const attention_args *a, int thread)
{
    int64_t width = padded_head(a);
    float *at = (float *)a->workspace + scratch_floats(a) * (size_t)thread;
    scratch m;
    m.query_t = at, at += QUERIES * width;
    m.d_out_t = at, at += QUERIES * width;
    m.query = at, at += QUERIES * width;
    m.d_out = at, at += QUERIES * width;
    m.d_query = at, at += QUERIES * width;
    m.p = at, at += KEYS * QUERIES;
    m.ds = at, at += KEYS * QUERIES;
    m.key = at, at += KEYS * width;
    m.value = at, at += KEYS * width;
    m.d_key = at, at += a->kv_length * width;
    m.d_value = at, at += a->kv_length * width;
    m.factors = at;
    return m;
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

/* p from scores and ds from dp, both in place. */
static void softmax_backward(const query_tile *t, int64_t n_keys, const float *restrict lse,
                             const float *restrict delta, float *restrict p, float *restrict ds)
{
    for (int64_t j = 0; j < n_keys; j++) {
        float *p_row = p + j * t->lanes, *ds_row = ds + j * t->lanes;
#pragma omp simd
        for (int64_t i = 0; i < t->lanes; i++) {
            float probability = simd_exp(p_row[i] - lse[i]);
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

static void backward_tile(const attention_args *a, const query_tile *t, int64_t kv_head, const scratch *m)
{
    int64_t width = padded_head(a), end = visible_keys(a, t);
    float lse[QUERIES], delta[QUERIES];
    lane_constants(a, t, lse, delta);
    tile_transpose(a, a->q, query_at(a, t), a->q_row, t, a->scale, m->query_t);
    tile_transpose(a, a->d_out, out_at(a, t), out_row(a), t, 1.0f, m->d_out_t);
    tile_rows query = tile_rows_read(a, a->q, query_at(a, t), a->q_row, t->n, true, m->query);
    tile_rows d_out = tile_rows_read(a, a->d_out, out_at(a, t), out_row(a), t->n, true, m->d_out);
    memset(m->d_query, 0, (size_t)(t->n * width) * sizeof(float));
    for (int64_t first = first_visible_key(a, t); first < end; first += KEYS) {
        int64_t n = min_i64(KEYS, end - first), token = t->batch * a->kv_length + first;
        tile_rows key = tile_rows_read(a, a->k, token * a->k_row + kv_head * a->head_dim, a->k_row, n, true, m->key);
        tile_rows value =
            tile_rows_read(a, a->v, token * a->v_row + kv_head * a->head_dim, a->v_row, n, false, m->value);
        SIMD_NAME(tile_product)
        (n, t->lanes, a->head_dim, key.p, key.row, 1, m->query_t, t->lanes, m->p, t->lanes, false);
        tile_bias_and_mask(a, t, first, n, m->p);
        SIMD_NAME(tile_product)
        (n, t->lanes, a->head_dim, value.p, value.row, 1, m->d_out_t, t->lanes, m->ds, t->lanes, false);
        if (a->dropout > 0) {
            tile_dropout_factors(a, t, first, n, m->factors);
            tile_multiply(t, n, m->factors, m->ds);
        }
        softmax_backward(t, n, lse, delta, m->p, m->ds);
        if (a->dropout > 0)
            tile_multiply(t, n, m->factors, m->p);
        if (a->d_bias)
            add_bias_gradient(a, t, first, n, m->ds);
        SIMD_NAME(tile_product)
        (n, width, t->n, m->p, t->lanes, 1, d_out.p, d_out.row, m->d_value + first * width, width, true);
        SIMD_NAME(tile_product)
        (n, width, t->n, m->ds, t->lanes, 1, query.p, query.row, m->d_key + first * width, width, true);
        SIMD_NAME(tile_product)(t->n, width, n, m->ds, 1, t->lanes, key.p, key.row, m->d_query, width, true);
    }
}

/* d rows `at`, `at + row`, ... (+)= factor * sums (n, padded head); the sums are spoiled. */
static void write_rows(const attention_args *a, buffer d, int64_t at, int64_t row, int64_t n, float factor, bool add,
                       float *sums)
{
    int64_t width = padded_head(a);
    for (int64_t i = 0; i < n; i++) {
        float *from = sums + i * width;
#pragma omp simd
        for (int64_t c = 0; c < width; c++)
            from[c] *= factor;
        span_write(d, at + i * row, a->head_dim, from, add);
    }
}

static void backward_head(const attention_args *a, int64_t batch, int64_t kv_head, const scratch *m)
{
    int64_t group = a->q_heads / a->kv_heads, width = padded_head(a);
    memset(m->d_key, 0, (size_t)(a->kv_length * width) * sizeof(float));
    memset(m->d_value, 0, (size_t)(a->kv_length * width) * sizeof(float));
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int64_t first = 0; first < a->q_length; first += QUERIES) {
            query_tile t = {.batch = batch, .head = head, .first = first};
            t.n = min_i64(QUERIES, a->q_length - first);
            t.lanes = (int64_t)round_up((size_t)t.n, VEC);
            backward_tile(a, &t, kv_head, m);
            if (a->d_q.p)
                write_rows(a, a->d_q, query_at(a, &t), a->q_row, t.n, a->scale, a->add_q, m->d_query);
        }
    }
    int64_t token = batch * a->kv_length, column = kv_head * a->head_dim;
    if (a->d_k.p)
        write_rows(a, a->d_k, token * a->k_row + column, a->k_row, a->kv_length, a->scale, a->add_k, m->d_key);
    if (a->d_v.p)
        write_rows(a, a->d_v, token * a->v_row + column, a->v_row, a->kv_length, 1.0f, a->add_v, m->d_value);
}

#define SCRATCH_BYTES_MAX ((size_t)512 << 20) /* of all threads together: very long sequences get fewer of them */

/* No more threads than heads to share out, nor than the memory for their sums allows. */
static int backward_threads(const struct device *d, const attention_args *a)
{
    int64_t heads = max_i64(1, a->batch * a->kv_heads);
    int64_t fit = max_i64(1, (int64_t)(SCRATCH_BYTES_MAX / (scratch_floats(a) * sizeof(float))));
    return (int)min_i64(cpu_device_threads(d), min_i64(heads, fit));
}

SIMD_WORKSPACE(attention_backward, attention_args)
{
    return (size_t)backward_threads(d, a) * scratch_floats(a) * sizeof(float);
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
    scratch m = scratch_at(a, rank);
    while (attention_next(w, &item)) {
        int64_t batch = item / n_heads, head = item % n_heads;
        int64_t batch_end = batches_apart(a) ? batch + 1 : a->batch, head_end = heads_apart(a) ? head + 1 : a->kv_heads;
        for (int64_t b = batch; b < batch_end; b++) {
            for (int64_t h = head; h < head_end; h++)
                backward_head(a, b, h, &m);
        }
    }
}

SIMD_KERNEL(attention_backward, attention_args)
{
    FSDP_TRY(attention_check(a));
    attention_work w = {.args = a};
    w.n_items = (batches_apart(a) ? a->batch : 1) * (heads_apart(a) ? a->kv_heads : 1);
    if (a->d_bias && !a->add_bias)
        memset(a->d_bias + a->d_bias_first, 0, (size_t)a->d_bias_numel * sizeof(float));
    int threads = backward_threads(&s->device->base, a);
    if (cpu_threads_for(s, a->batch * a->q_heads * a->q_length * a->kv_length) == 1)
        threads = 1;
    parallel_team(cpu_threads(s), threads, backward_heads, &w);
    return FSDP_OK;
}
