/* Cases: attention forward and backward, against the plain formula. */
#ifndef TESTS_DEVICE_KERNEL_CASES_ATTENTION_H
#define TESTS_DEVICE_KERNEL_CASES_ATTENTION_H

#include "base/rng.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/gemm/kernel.h"
#include "device/kernel_check.h"

typedef enum bias_form { BIAS_NONE, BIAS_FULL, BIAS_TOEPLITZ, BIAS_PER_KEY, BIAS_SHARED } bias_form;

typedef struct attention_case {
    int64_t batch, q_length, kv_length, q_heads, kv_heads, head_dim;
    bool causal, masked;
    bias_form bias;
    int add; /* bits: q, k, v, bias */
} attention_case;

/* How a case is run. */
typedef struct attention_way {
    bool aligned; /* rows of whole 16-byte pieces, as models have them; odd otherwise */
    float dropout;
    int64_t window; /* 0: none */
    bool documents; /* several in a row */
    float scale;    /* 0: one under which no key stands out */
} attention_way;

/* Operands of one case. q, k and v rows are wider than their heads, as in a fused projection. */
typedef struct attention_data {
    attention_args args;
    operand q, k, v, out, lse, bias, d_out, d_q, d_k, d_v, d_bias;
    int64_t bias_origin;
    int32_t *mask;        /* host */
    int32_t *starts;      /* host */
    step_scalars scalars; /* of dropout */
} attention_data;

/* Reference results; rows and strides as in the operands. */
typedef struct attention_want {
    double *out, *lse, *d_q, *d_k, *d_v, *d_bias;
} attention_want;

static void attention_make_bias(kernel_check *c, const attention_case *k, attention_data *t)
{
    attention_args *a = &t->args;
    int64_t numel = 1, span = k->q_length + k->kv_length - 1;
    switch (k->bias) {
    case BIAS_NONE:
        return;
    case BIAS_FULL:
        a->bias_key = 1, a->bias_query = k->kv_length, a->bias_head = k->q_length * k->kv_length;
        a->bias_batch = k->q_heads * a->bias_head;
        numel = k->batch * a->bias_batch;
        break;
    case BIAS_TOEPLITZ:
        a->bias_key = 1, a->bias_query = -1, a->bias_head = span, a->bias_batch = 0;
        t->bias_origin = k->q_length - 1;
        numel = k->q_heads * span;
        break;
    case BIAS_PER_KEY:
        a->bias_key = 1, a->bias_batch = k->kv_length;
        numel = k->batch * k->kv_length;
        break;
    case BIAS_SHARED:
        a->bias_key = 1, a->bias_query = k->kv_length;
        numel = k->q_length * k->kv_length;
        break;
    }
    t->bias = check_random(c, c->gradient_dtype, numel, 1);
    t->d_bias = check_random(c, FSDP_F32, numel, 1);
    a->bias = operand_buffer(&t->bias);
    a->bias.p = (char *)a->bias.p + (size_t)t->bias_origin * fsdp_dtype_size(t->bias.dtype);
    a->d_bias = (float *)t->d_bias.device + t->bias_origin;
    a->d_bias_first = -t->bias_origin;
    a->d_bias_numel = numel;
}

/* Documents of every sort: of one token, whole tiles, what is left; the last row is one document. */
static void attention_make_starts(kernel_check *c, const attention_case *k, attention_data *t)
{
    int64_t n = k->batch * k->q_length, left = 0;
    t->starts = check_host(c, (size_t)n * sizeof(int32_t));
    for (int64_t i = 0; i < n; i++) {
        bool begins = i % k->q_length == 0, whole = i / k->q_length == k->batch - 1 && k->batch > 1;
        if (begins || (left == 0 && !whole)) {
            double kind = check_uniform(c);
            begins = true;
            left = kind < 0.25 ? 1 : kind < 0.4 ? 64 : 1 + (int64_t)(check_uniform(c) * (kind < 0.7 ? 9 : 90));
        }
        left--;
        t->starts[i] = begins ? (int32_t)(i % k->q_length) : t->starts[i - 1];
    }
    t->args.starts = check_ints(c, t->starts, n);
}

static attention_data attention_make(kernel_check *c, const attention_case *k, attention_way way)
{
    attention_data t = {0};
    attention_args *a = &t.args;
    int64_t q_row = k->q_heads * k->head_dim + (way.aligned ? 8 : 3);
    int64_t kv_row = k->kv_heads * k->head_dim + (way.aligned ? 16 : 5);
    *a = (attention_args){.batch = k->batch,
                          .q_length = k->q_length,
                          .kv_length = k->kv_length,
                          .q_heads = k->q_heads,
                          .kv_heads = k->kv_heads,
                          .head_dim = k->head_dim,
                          .scale = way.scale != 0 ? way.scale : 0.3f,
                          .causal = k->causal,
                          .window = way.window,
                          .q_row = q_row,
                          .k_row = kv_row,
                          .v_row = kv_row,
                          .deterministic = true,
                          .add_q = k->add & 1,
                          .add_k = k->add & 2,
                          .add_v = k->add & 4,
                          .add_bias = k->add & 8};
    t.q = check_random(c, c->dtype, k->batch * k->q_length * q_row, 1);
    t.k = check_random(c, c->dtype, k->batch * k->kv_length * kv_row, 1);
    t.v = check_random(c, c->dtype, t.k.n, 1);
    t.out = check_random(c, c->dtype, k->batch * k->q_length * k->q_heads * k->head_dim, 1);
    t.lse = check_random(c, FSDP_F32, k->batch * k->q_heads * k->q_length, 1);
    t.d_out = check_random(c, c->dtype, t.out.n, 1);
    t.d_q = check_random(c, c->dtype, t.q.n, 1);
    t.d_k = check_random(c, c->dtype, t.k.n, 1);
    t.d_v = check_random(c, c->dtype, t.k.n, 1);
    attention_make_bias(c, k, &t);
    if (k->masked) {
        t.mask = check_host(c, (size_t)(k->batch * k->kv_length) * sizeof(int32_t));
        for (int64_t i = 0; i < k->batch * k->kv_length; i++)
            t.mask[i] = check_uniform(c) < 0.7;
        a->key_mask = check_ints(c, t.mask, k->batch * k->kv_length);
    }
    if (way.documents)
        attention_make_starts(c, k, &t);
    if (way.dropout > 0) {
        t.scalars = (step_scalars){.step = ((uint64_t)5 << 32) + 3, .first_sample = 5000000011u, .share = 2};
        a->dropout = way.dropout;
        a->dropout_key[0] = 11, a->dropout_key[1] = 0xfedcba98u;
        a->scalars = check_upload(c, &t.scalars, sizeof t.scalars);
    }
    a->q = operand_buffer(&t.q), a->k = operand_buffer(&t.k), a->v = operand_buffer(&t.v);
    a->out = operand_buffer(&t.out), a->lse = t.lse.device, a->d_out = operand_buffer(&t.d_out);
    a->d_q = operand_buffer(&t.d_q), a->d_k = operand_buffer(&t.d_k), a->d_v = operand_buffer(&t.d_v);
    return t;
}

/* What dropout makes of the weight of key j: nothing, or more. */
static double attention_factor(const attention_data *t, int64_t b, int64_t h, int64_t i, int64_t j)
{
    const attention_args *a = &t->args;
    if (a->dropout == 0)
        return 1.0;
    rng_key key = {{a->dropout_key[0], a->dropout_key[1]}};
    uint64_t first = t->scalars.first_sample + t->scalars.share * (uint64_t)a->batch;
    uint64_t row = (first + (uint64_t)b) * (uint64_t)a->q_heads + (uint64_t)h;
    row = row * (uint64_t)a->q_length + (uint64_t)i;
    rng_block words = rng_philox(key, t->scalars.step, row * (uint64_t)((a->kv_length + 7) / 8) + (uint64_t)(j / 8));
    double limit = floor((double)a->dropout * 65536.0 + 0.5);
    double drawn = (double)(words.v[j % 8 / 2] >> (j % 2 ? 16 : 0) & 0xffff);
    return drawn >= limit ? 65536.0 / (65536.0 - limit) : 0.0;
}

/* One query of one head: softmax over what it sees, then the chain rule. `out` is what backward is given. */
static void attention_reference_row(const attention_data *t, const attention_want *w, int64_t b, int64_t h, int64_t i,
                                    double *p, const double *out)
{
    const attention_args *a = &t->args;
    int64_t d = a->head_dim, kv = h / (a->q_heads / a->kv_heads), row = (b * a->q_heads + h) * a->q_length + i;
    int64_t q_at = (b * a->q_length + i) * a->q_row + h * d, o_at = ((b * a->q_length + i) * a->q_heads + h) * d;
    double top = -INFINITY, sum = 0.0, delta = 0.0, scale = (double)a->scale;
    for (int64_t j = 0; j < a->kv_length; j++) {
        int64_t k_at = (b * a->kv_length + j) * a->k_row + kv * d;
        int64_t own = i + a->kv_length - a->q_length; /* where the query stands among the keys */
        bool seen = (!a->causal || j <= own) && (!t->mask || t->mask[b * a->kv_length + j]) &&
                    (a->window == 0 || j > own - a->window) && (!t->starts || j >= t->starts[b * a->q_length + i]);
        p[j] = 0.0;
        for (int64_t x = 0; x < d; x++)
            p[j] += scale * t->q.host[q_at + x] * t->k.host[k_at + x];
        if (t->bias.host)
            p[j] +=
                t->bias
                    .host[t->bias_origin + b * a->bias_batch + h * a->bias_head + i * a->bias_query + j * a->bias_key];
        p[j] = seen ? p[j] : -INFINITY;
        top = p[j] > top ? p[j] : top;
    }
    for (int64_t j = 0; j < a->kv_length; j++)
        sum += p[j] = top == -INFINITY ? 0.0 : exp(p[j] - top);
    w->lse[row] = sum > 0.0 ? top + log(sum) : NAN;
    for (int64_t x = 0; x < d; x++)
        delta += t->d_out.host[o_at + x] * out[o_at + x];
    for (int64_t j = 0; j < a->kv_length && sum > 0.0; j++) {
        int64_t v_at = (b * a->kv_length + j) * a->v_row + kv * d;
        double share = p[j] / sum, dp = 0.0, factor = attention_factor(t, b, h, i, j);
        for (int64_t x = 0; x < d; x++) {
            w->out[o_at + x] += factor * share * t->v.host[v_at + x];
            w->d_v[v_at + x] += factor * share * t->d_out.host[o_at + x];
            dp += factor * t->d_out.host[o_at + x] * t->v.host[v_at + x];
        }
        double ds = share * (dp - delta);
        for (int64_t x = 0; x < d; x++) {
            w->d_q[q_at + x] += scale * ds * t->k.host[v_at + x];
            w->d_k[v_at + x] += scale * ds * t->q.host[q_at + x];
        }
        if (w->d_bias)
            w->d_bias[t->bias_origin + b * a->bias_batch + h * a->bias_head + i * a->bias_query + j * a->bias_key] +=
                ds;
    }
}

static attention_want attention_reference(kernel_check *c, const attention_data *t, const double *out)
{
    const attention_args *a = &t->args;
    attention_want w = {check_doubles(c, t->out.n), check_doubles(c, t->lse.n), check_doubles(c, t->q.n),
                        check_doubles(c, t->k.n),   check_doubles(c, t->v.n),   NULL};
    if (t->d_bias.n)
        w.d_bias = check_doubles(c, t->d_bias.n);
    double *p = check_doubles(c, a->kv_length);
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t h = 0; h < a->q_heads; h++)
            for (int64_t i = 0; i < a->q_length; i++)
                attention_reference_row(t, &w, b, h, i, p, out);
    return w;
}

/* Columns of a row past the heads belong to others (the fused projection): they must stay as they were. */
static void attention_expect_rows(kernel_check *c, const operand *o, double *want, int64_t row, int64_t used, bool add,
                                  const char *what)
{
    for (int64_t i = 0; i < o->n; i++)
        if (i % row >= used)
            want[i] = add ? 0.0 : o->host[i];
    check_expect(c, o, want, add, what);
}

/* Weights and their gradients are rounded to the type of q for the products: on GPUs where tensor cores take the rows,
 * on CPUs where there is a kernel for bf16 and more than a few queries to share what is packed. */
static bool attention_rounds_weights(const kernel_check *c, const attention_case *k, attention_way way)
{
    if (strcmp(c->device->name, "cpu") != 0)
        return way.aligned;
    const struct gemm_kernel *kernel = ((const device_cpu *)c->device)->product.bf16;
    return c->dtype == FSDP_BF16 && kernel->element_bytes == sizeof(uint16_t) && k->q_length > 16;
}

static void attention_one(kernel_check *c, const attention_case *k, attention_way way)
{
    int64_t queries = (k->q_length + 63) / 64 * 64, keys = (k->kv_length + 63) / 64 * 64; /* work is done in tiles */
    if (check_leaves_out(c, k->batch * k->q_heads * queries * keys * (k->head_dim < 64 ? 64 : k->head_dim)))
        return;
    c->rounds_twice = attention_rounds_weights(c, k, way);
    attention_data t = attention_make(c, k, way);
    attention_args *a = &t.args;
    CHECK_RUN_WITH_WORKSPACE(c, attention_forward, a);
    const void *raw = check_download(c, &t.out);
    double *out = check_doubles(c, t.out.n);
    for (int64_t i = 0; i < t.out.n; i++)
        out[i] = dtype_get(t.out.dtype, raw, i);
    attention_want w = attention_reference(c, &t, out);
    check_expect(c, &t.out, w.out, false, "out");
    check_expect(c, &t.lse, w.lse, false, "lse");
    CHECK_RUN_WITH_WORKSPACE(c, attention_backward, a);
    double slack = c->slack;
    if (!c->rounds_twice || c->dtype == FSDP_F32)
        c->slack *= 4.0; /* sums of many products, some of which cancel */
    attention_expect_rows(c, &t.d_q, w.d_q, a->q_row, k->q_heads * k->head_dim, a->add_q, "d_q");
    attention_expect_rows(c, &t.d_k, w.d_k, a->k_row, k->kv_heads * k->head_dim, a->add_k, "d_k");
    attention_expect_rows(c, &t.d_v, w.d_v, a->v_row, k->kv_heads * k->head_dim, a->add_v, "d_v");
    if (t.d_bias.n)
        check_expect(c, &t.d_bias, w.d_bias, a->add_bias, "d_bias");
    c->slack = slack;
    c->rounds_twice = false;
    check_clear(c);
}

static void case_attention(kernel_check *c)
{
    const attention_case cases[] = {
        {1, 1, 1, 1, 1, 1, false, false, BIAS_NONE, 0},    {2, 33, 33, 4, 2, 64, true, false, BIAS_NONE, 0},
        {2, 17, 33, 3, 1, 17, true, false, BIAS_NONE, 7},  {1, 70, 67, 2, 2, 3, false, true, BIAS_NONE, 2},
        {2, 65, 130, 2, 1, 128, true, true, BIAS_NONE, 5}, {1, 3, 129, 2, 2, 80, false, false, BIAS_NONE, 0},
        {1, 19, 5, 1, 1, 256, false, false, BIAS_NONE, 1}, {3, 1, 17, 6, 3, 8, true, false, BIAS_NONE, 0},
        {1, 70, 20, 1, 1, 17, true, false, BIAS_NONE, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        attention_one(c, &cases[i], (attention_way){.aligned = false});
}

static void case_attention_with_bias(kernel_check *c)
{
    const attention_case cases[] = {
        {2, 33, 40, 3, 3, 16, false, true, BIAS_TOEPLITZ, 0}, {2, 70, 70, 4, 2, 32, true, false, BIAS_TOEPLITZ, 8},
        {2, 17, 66, 2, 2, 33, false, false, BIAS_FULL, 8},    {2, 33, 17, 2, 1, 8, false, true, BIAS_PER_KEY, 0},
        {2, 20, 20, 4, 2, 16, true, false, BIAS_SHARED, 0},   {1, 20, 70, 1, 1, 8, false, true, BIAS_TOEPLITZ, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        attention_one(c, &cases[i], (attention_way){.aligned = false});
}

/* Heads and rows as models have them. */
static void case_attention_of_aligned_heads(kernel_check *c)
{
    const attention_case cases[] = {
        {2, 33, 33, 4, 2, 64, true, false, BIAS_NONE, 0},       {1, 70, 150, 2, 1, 64, true, true, BIAS_NONE, 7},
        {2, 130, 67, 2, 2, 32, false, false, BIAS_NONE, 0},     {1, 65, 130, 2, 1, 128, true, true, BIAS_NONE, 5},
        {1, 70, 9, 2, 2, 80, true, false, BIAS_NONE, 0},        {3, 1, 17, 6, 3, 8, false, false, BIAS_NONE, 2},
        {2, 33, 40, 3, 3, 16, false, true, BIAS_TOEPLITZ, 0},   {3, 70, 130, 2, 1, 64, true, false, BIAS_TOEPLITZ, 8},
        {2, 17, 66, 2, 2, 96, false, false, BIAS_FULL, 8},      {2, 33, 17, 2, 1, 8, false, true, BIAS_PER_KEY, 0},
        {2, 68, 68, 4, 2, 16, true, false, BIAS_SHARED, 0},     {1, 20, 130, 1, 1, 64, false, false, BIAS_TOEPLITZ, 0},
        {1, 130, 20, 1, 1, 64, false, true, BIAS_TOEPLITZ, 0},  {1, 40, 40, 1, 1, 128, true, false, BIAS_TOEPLITZ, 0},
        {5, 130, 40, 16, 4, 16, false, true, BIAS_TOEPLITZ, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        attention_one(c, &cases[i], (attention_way){.aligned = true});
}

/* Windows that end inside tiles, at their edges and beyond the text. */
static void case_attention_with_window(kernel_check *c)
{
    const attention_case cases[] = {
        {2, 33, 33, 4, 2, 64, true, false, BIAS_NONE, 0},    {1, 150, 150, 2, 1, 64, true, false, BIAS_NONE, 7},
        {1, 200, 200, 2, 2, 32, true, false, BIAS_NONE, 0},  {1, 70, 150, 2, 1, 64, true, true, BIAS_NONE, 0},
        {2, 17, 33, 3, 1, 17, true, false, BIAS_NONE, 0},    {1, 130, 130, 2, 1, 128, true, false, BIAS_NONE, 5},
        {1, 140, 140, 2, 1, 256, true, false, BIAS_NONE, 0}, {2, 70, 70, 4, 2, 32, true, false, BIAS_TOEPLITZ, 8},
        {1, 150, 20, 1, 1, 16, true, false, BIAS_NONE, 0},
    };
    const int64_t windows[] = {16, 17, 64, 40, 1, 65, 9, 20, 7};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attention_one(c, &cases[i], (attention_way){.aligned = i % 2 == 0, .window = windows[i]});
        attention_one(c, &cases[i],
                      (attention_way){.aligned = i % 2 == 1, .dropout = i % 3 == 0 ? 0.3f : 0, .window = windows[i]});
    }
}

/* Documents in a row: their ends lie anywhere in tiles. */
static void case_attention_within_documents(kernel_check *c)
{
    const attention_case cases[] = {
        {3, 33, 33, 4, 2, 64, true, false, BIAS_NONE, 0},     {2, 150, 150, 2, 1, 64, true, false, BIAS_NONE, 7},
        {1, 330, 330, 2, 2, 16, true, false, BIAS_NONE, 0},   {2, 200, 200, 4, 2, 32, true, false, BIAS_NONE, 2},
        {1, 70, 70, 2, 1, 17, true, true, BIAS_NONE, 5},      {2, 130, 130, 2, 1, 128, true, false, BIAS_NONE, 0},
        {2, 140, 140, 1, 1, 256, true, false, BIAS_NONE, 0},  {2, 70, 70, 4, 2, 32, true, false, BIAS_TOEPLITZ, 8},
        {5, 129, 129, 16, 4, 16, true, false, BIAS_NONE, 0},  {1, 1, 1, 1, 1, 8, true, false, BIAS_NONE, 0},
        {1, 257, 257, 2, 1, 16, true, false, BIAS_SHARED, 0}, {2, 65, 65, 3, 1, 40, true, false, BIAS_NONE, 0},
    };
    const int64_t windows[] = {0, 0, 17, 64, 9};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int aligned = 0; aligned < 2; aligned++) {
            attention_way way = {.aligned = aligned, .documents = true, .window = windows[(i + (size_t)aligned) % 5]};
            attention_one(c, &cases[i], way);
            way.dropout = i % 4 == 1 ? 0.3f : 0;
            if (way.dropout > 0)
                attention_one(c, &cases[i], way);
        }
    }
}

static void attention_expect_again(kernel_check *c, const operand *o, const void *before, const char *what)
{
    double *want = check_doubles(c, o->n);
    for (int64_t i = 0; i < o->n; i++)
        want[i] = dtype_get(o->dtype, before, i);
    check_exact(c, o, want, what);
}

static buffer attention_rows_from(buffer b, int64_t elements)
{
    b.p = (char *)b.p + (size_t)elements * fsdp_dtype_size(b.dtype);
    return b;
}

/* Where a document begins on a tile, it has in a packed row the bits that it has alone: computed again in place, with
 * nothing around it, every element stays what it is. */
static void case_attention_of_a_document_alone(kernel_check *c)
{
    enum { FIRST = 128, N = 101, LENGTH = FIRST + N + 30 };
    const int64_t dims[] = {64, 128, 16, 33};
    for (int i = 0; i < 4; i++) {
        const attention_case k = {1, LENGTH, LENGTH, 4, 2, dims[i], true, false, BIAS_NONE, 0};
        attention_data t = attention_make(c, &k, (attention_way){.aligned = i < 3, .window = i == 2 ? 40 : 0});
        attention_args *a = &t.args;
        int32_t starts[LENGTH] = {0};
        for (int j = 0; j < LENGTH; j++)
            starts[j] = j < 50 ? 0 : j < FIRST ? 50 : j < FIRST + N ? FIRST : FIRST + N;
        a->starts = check_ints(c, starts, LENGTH);
        CHECK_RUN_WITH_WORKSPACE(c, attention_forward, a);
        CHECK_RUN_WITH_WORKSPACE(c, attention_backward, a);
        const operand *results[] = {&t.out, &t.d_q, &t.d_k, &t.d_v};
        const void *before[4];
        for (int r = 0; r < 4; r++)
            before[r] = check_download(c, results[r]);
        operand lse = check_random(c, FSDP_F32, k.q_heads * N, 1);
        int64_t out_row = k.q_heads * k.head_dim;
        memset(starts, 0, sizeof starts);
        a->starts = check_ints(c, starts, N);
        a->q_length = a->kv_length = N, a->lse = lse.device;
        a->q = attention_rows_from(a->q, FIRST * a->q_row), a->d_q = attention_rows_from(a->d_q, FIRST * a->q_row);
        a->k = attention_rows_from(a->k, FIRST * a->k_row), a->d_k = attention_rows_from(a->d_k, FIRST * a->k_row);
        a->v = attention_rows_from(a->v, FIRST * a->v_row), a->d_v = attention_rows_from(a->d_v, FIRST * a->v_row);
        a->out = attention_rows_from(a->out, FIRST * out_row),
        a->d_out = attention_rows_from(a->d_out, FIRST * out_row);
        CHECK_RUN_WITH_WORKSPACE(c, attention_forward, a);
        CHECK_RUN_WITH_WORKSPACE(c, attention_backward, a);
        const char *names[] = {"out", "d_q", "d_k", "d_v"};
        for (int r = 0; r < 4; r++)
            attention_expect_again(c, results[r], before[r], names[r]);
        check_clear(c);
    }
}

/* The same weights go on every device, and in backward as in forward. */
static void case_attention_with_dropout(kernel_check *c)
{
    const attention_case cases[] = {
        {2, 33, 33, 4, 2, 64, true, false, BIAS_NONE, 0},       {2, 17, 33, 3, 1, 17, true, false, BIAS_NONE, 7},
        {1, 70, 67, 2, 2, 3, false, true, BIAS_NONE, 2},        {2, 65, 130, 2, 1, 128, true, true, BIAS_NONE, 5},
        {2, 33, 40, 3, 3, 16, false, true, BIAS_TOEPLITZ, 0},   {3, 70, 130, 2, 1, 64, true, false, BIAS_TOEPLITZ, 8},
        {2, 17, 66, 2, 2, 96, false, false, BIAS_FULL, 8},      {2, 33, 17, 2, 1, 8, false, true, BIAS_PER_KEY, 0},
        {5, 130, 40, 16, 4, 16, true, false, BIAS_TOEPLITZ, 0},
    };
    const float rates[] = {0.1f, 0.5f, 0.9f, 0.3f};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        attention_one(c, &cases[i], (attention_way){.aligned = false, .dropout = rates[i % 4]});
        attention_one(c, &cases[i], (attention_way){.aligned = true, .dropout = rates[(i + 1) % 4]});
    }
}

/* Causal with more queries than keys: the first queries see nothing and must give zeros, not NaN. */
static void case_attention_without_visible_keys(kernel_check *c)
{
    const attention_case more_queries = {2, 75, 9, 2, 2, 16, true, false, BIAS_NONE, 0};
    attention_one(c, &more_queries, (attention_way){.aligned = false});
    const attention_case all_masked[] = {{1, 5, 1, 2, 2, 16, false, true, BIAS_NONE, 0},
                                         {1, 33, 1, 2, 2, 16, false, true, BIAS_NONE, 0}};
    for (int i = 0; i < 8; i++)
        attention_one(c, &all_masked[i / 4], (attention_way){.aligned = false});
}

/* The second has more tiles of keys than the CPU keeps packed. */
static void case_attention_of_long_sequences(kernel_check *c)
{
    const attention_case cases[] = {{1, 300, 300, 2, 1, 64, true, false, BIAS_NONE, 0},
                                    {1, 70, 4300, 2, 1, 16, true, false, BIAS_NONE, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        attention_one(c, &cases[i], (attention_way){.aligned = false});
}

#endif
