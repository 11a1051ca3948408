/* The kernels that make a step, at the shapes of a workload: the products of a decoder layer and of the output head
 * with their two gradients, attention, norms, rope, swiglu, the loss, the embedding, the optimizer. */
#include <fsdp/bench.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/sized.h"
#include "comm/world.h"
#include "plan/assemble.h"
#include "settings/settings_table.h"
#include "bench/timer.h"
#include "bench/workload.h"
#include "device/peak.h"

KERNELS(BENCH_CALL, BENCH_CALL)

typedef struct shapes {
    const bench_workload *w;
    int64_t rows, head_dim, qkv; /* tokens of a batch; elements of q|k|v */
    fsdp_dtype dtype, gradient;
    double element; /* bytes */
    bool deterministic;
} shapes;

/* ---- products ---- */

/* y (rows, n) = x (rows, k) w^T (n, k), and the gradients of x and w. */
static void time_product(bench_timer *t, const shapes *s, const char *what, int64_t rows, int64_t n, int64_t k)
{
    char name[FSDP_BENCH_NAME], shape[FSDP_BENCH_NAME];
    double flops = 2.0 * (double)rows * (double)n * (double)k;
    buffer x = bench_timer_values(t, s->dtype, rows * k), w = bench_timer_values(t, s->dtype, n * k),
           y = bench_timer_values(t, s->dtype, rows * n),
           dw = {bench_timer_take(t, (size_t)(n * k) * fsdp_dtype_size(s->gradient)), s->gradient};
    snprintf(shape, sizeof shape, "%lld x %lld x %lld", (long long)rows, (long long)n, (long long)k);
    gemm_args forward = {.transpose_b = true, .m = rows, .n = n, .k = k, .alpha = 1, .a = x, .b = w, .c = y, .d = y};
    forward.lda = forward.ldb = k;
    forward.ldc = forward.ldd = n;
    gemm_args input = {.m = rows, .n = k, .k = n, .alpha = 1, .a = y, .b = w, .c = x, .d = x};
    input.lda = n;
    input.ldb = input.ldc = input.ldd = k;
    gemm_args weight = {.transpose_a = true, .m = n, .n = k, .k = rows, .alpha = 1, .a = y, .b = x, .c = dw, .d = dw};
    weight.lda = n;
    weight.ldb = weight.ldc = weight.ldd = k;
    struct {
        const char *phase;
        gemm_args *args;
    } phases[] = {{"forward", &forward}, {"input gradient", &input}, {"weight gradient", &weight}};
    for (int i = 0; i < 3; i++) {
        phases[i].args->batch = 1;
        BENCH_WORKSPACE(t, gemm, *phases[i].args);
        snprintf(name, sizeof name, "%s, %s", what, phases[i].phase);
        bench_timer_run(t, name, shape, call_gemm, phases[i].args, flops, 0);
    }
    bench_timer_free_all(t);
}

/* Rows of logits that lie in memory at a time. */
static int64_t logit_rows(const bench_timer *t, const shapes *s)
{
    size_t chunk = t->dev->chunk_bytes ? t->dev->chunk_bytes : (size_t)64 << 20;
    int64_t rows = (int64_t)(chunk / ((size_t)s->w->vocabulary * fsdp_dtype_size(s->dtype)));
    return rows < 1 ? 1 : rows < s->rows ? rows : s->rows;
}

static void time_products(bench_timer *t, const shapes *s)
{
    const bench_workload *w = s->w;
    time_product(t, s, "q|k|v", s->rows, s->qkv, w->hidden);
    time_product(t, s, "attention output", s->rows, w->hidden, w->heads * s->head_dim);
    time_product(t, s, "gate|up", s->rows, 2 * w->intermediate, w->hidden);
    time_product(t, s, "down", s->rows, w->hidden, w->intermediate);
    time_product(t, s, "output head", logit_rows(t, s), w->vocabulary, w->hidden);
}

/* ---- attention ---- */

/* Where documents start in rows of about eight, short and long in turns; *pairs: of a query and a key that it sees. */
static int32_t *packed_starts(bench_timer *t, const bench_workload *w, double *pairs)
{
    int64_t n = w->batch * w->width, next = 0, number = 0;
    int32_t *host = malloc((size_t)n * sizeof *host), *starts = NULL;
    *pairs = 0;
    for (int64_t i = 0; host && i < n; i++) {
        int64_t place = i % w->width;
        bool begins = place == 0 || place == next;
        if (begins)
            next = place + 1 + w->width * (number++ % 2 ? 3 : 1) / 16;
        host[i] = begins ? (int32_t)place : host[i - 1];
        *pairs += (double)(w->heads * (place - host[i] + 1));
    }
    if (host)
        starts = bench_timer_put(t, host, (size_t)n * sizeof *host);
    else if (t->status == FSDP_OK)
        t->status = error_set(FSDP_ERR_MEMORY, "out of memory for %lld documents' starts", (long long)n);
    free(host);
    return starts;
}

static void time_attention(bench_timer *t, const shapes *s)
{
    const bench_workload *w = s->w;
    size_t element = fsdp_dtype_size(s->dtype);
    int64_t q_columns = w->heads * s->head_dim, kv_columns = w->kv_heads * s->head_dim;
    char shape[FSDP_BENCH_NAME];
    buffer qkv = bench_timer_values(t, s->dtype, s->rows * s->qkv),
           d_qkv = bench_timer_values(t, s->dtype, s->rows * s->qkv);
    attention_args a = {.batch = w->batch,
                        .q_length = w->width,
                        .kv_length = w->width,
                        .q_heads = w->heads,
                        .kv_heads = w->kv_heads,
                        .head_dim = s->head_dim,
                        .scale = 1 / sqrtf((float)s->head_dim),
                        .causal = true,
                        .q = qkv,
                        .k = qkv,
                        .v = qkv,
                        .q_row = s->qkv,
                        .k_row = s->qkv,
                        .v_row = s->qkv,
                        .out = bench_timer_values(t, s->dtype, s->rows * q_columns),
                        .lse = bench_timer_zeros(t, (size_t)(s->rows * w->heads)),
                        .d_out = bench_timer_values(t, s->dtype, s->rows * q_columns),
                        .d_q = d_qkv,
                        .d_k = d_qkv,
                        .d_v = d_qkv,
                        .deterministic = s->deterministic};
    if (t->status != FSDP_OK)
        return;
    a.k.p = (char *)qkv.p + (size_t)q_columns * element;
    a.v.p = (char *)qkv.p + (size_t)(q_columns + kv_columns) * element;
    a.d_k.p = (char *)d_qkv.p + (size_t)q_columns * element;
    a.d_v.p = (char *)d_qkv.p + (size_t)(q_columns + kv_columns) * element;
    snprintf(shape, sizeof shape, "%lld x %lld, %lld/%lld heads of %lld", (long long)w->batch, (long long)w->width,
             (long long)w->heads, (long long)w->kv_heads, (long long)s->head_dim);
    double pairs = (double)(w->batch * w->heads) * (double)w->width * (double)(w->width + 1) / 2;
    BENCH_WORKSPACE(t, attention_forward, a);
    bench_timer_run(t, "attention, forward", shape, call_attention_forward, &a, pairs * 4.0 * (double)s->head_dim, 0);
    BENCH_WORKSPACE(t, attention_backward, a);
    bench_timer_run(t, "attention, backward", shape, call_attention_backward, &a, pairs * 10.0 * (double)s->head_dim,
                    0);
    if (!(a.starts = packed_starts(t, w, &pairs)))
        return;
    snprintf(shape, sizeof shape, "the same, 8 documents a row");
    BENCH_WORKSPACE(t, attention_forward, a);
    bench_timer_run(t, "packed, forward", shape, call_attention_forward, &a, pairs * 4.0 * (double)s->head_dim, 0);
    BENCH_WORKSPACE(t, attention_backward, a);
    bench_timer_run(t, "packed, backward", shape, call_attention_backward, &a, pairs * 10.0 * (double)s->head_dim, 0);
    bench_timer_free_all(t);
}

/* ---- rows ---- */

static void time_norm(bench_timer *t, const shapes *s)
{
    int64_t n = s->rows * s->w->hidden;
    double bytes = (double)n * s->element;
    char shape[FSDP_BENCH_NAME];
    snprintf(shape, sizeof shape, "%lld x %lld", (long long)s->rows, (long long)s->w->hidden);
    rmsnorm_args r = {.rows = s->rows,
                      .columns = s->w->hidden,
                      .eps = 1e-5f,
                      .x = bench_timer_values(t, s->dtype, n),
                      .weight = bench_timer_values(t, s->dtype, s->w->hidden),
                      .y = bench_timer_values(t, s->dtype, n),
                      .rstd = bench_timer_zeros(t, (size_t)s->rows),
                      .dy = bench_timer_values(t, s->dtype, n),
                      .dx = bench_timer_values(t, s->dtype, n),
                      .d_weight = bench_timer_values(t, s->gradient, s->w->hidden)};
    bench_timer_run(t, "rmsnorm, forward", shape, call_rmsnorm_forward, &r, 0, 2 * bytes);
    BENCH_WORKSPACE(t, rmsnorm_backward, r);
    bench_timer_run(t, "rmsnorm, backward", shape, call_rmsnorm_backward, &r, 0, 3 * bytes);
    axpby_args add = {.n = n, .alpha = 1, .beta = 1, .a = r.x, .b = r.dy, .out = r.dx};
    bench_timer_run(t, "residual sum", shape, call_axpby, &add, 0, 3 * bytes);
    bench_timer_free_all(t);
}

static void time_rope(bench_timer *t, const shapes *s)
{
    int64_t heads = s->w->heads + s->w->kv_heads;
    size_t angles = (size_t)(s->w->width * s->head_dim / 2);
    char shape[FSDP_BENCH_NAME];
    snprintf(shape, sizeof shape, "%lld x %lld heads of %lld", (long long)s->rows, (long long)heads,
             (long long)s->head_dim);
    rope_args r = {.rows = s->rows,
                   .length = s->w->width,
                   .heads = heads,
                   .head_dim = s->head_dim,
                   .row = s->qkv,
                   .x = bench_timer_values(t, s->dtype, s->rows * s->qkv),
                   .cosine = bench_timer_zeros(t, angles),
                   .sine = bench_timer_zeros(t, angles)};
    bench_timer_run(t, "rope, on q|k in place", shape, call_rope, &r, 0,
                    2 * (double)(s->rows * heads * s->head_dim) * s->element);
    bench_timer_free_all(t);
}

static void time_swiglu(bench_timer *t, const shapes *s)
{
    int64_t n = s->rows * s->w->intermediate;
    double bytes = (double)n * s->element;
    char shape[FSDP_BENCH_NAME];
    snprintf(shape, sizeof shape, "%lld x %lld", (long long)s->rows, (long long)s->w->intermediate);
    gated_args g = {.kind = ACTIVATION_SILU,
                    .rows = s->rows,
                    .columns = s->w->intermediate,
                    .x = bench_timer_values(t, s->dtype, 2 * n),
                    .y = bench_timer_values(t, s->dtype, n),
                    .dy = bench_timer_values(t, s->dtype, n),
                    .dx = bench_timer_values(t, s->dtype, 2 * n)};
    bench_timer_run(t, "swiglu, forward", shape, call_gated_forward, &g, 0, 3 * bytes);
    bench_timer_run(t, "swiglu, backward", shape, call_gated_backward, &g, 0, 5 * bytes);
    bench_timer_free_all(t);
}

/* ---- vocabulary ---- */

static int32_t *random_ids(bench_timer *t, const shapes *s)
{
    size_t n = (size_t)s->rows;
    int32_t *host = t->status == FSDP_OK ? malloc(n * sizeof *host) : NULL;
    if (!host) {
        if (t->status == FSDP_OK)
            t->status = error_set(FSDP_ERR_MEMORY, "bench: out of host memory");
        return NULL;
    }
    for (size_t i = 0; i < n; i++)
        host[i] = (int32_t)(rng_word(rng_key_make(3), 0, i) % (uint32_t)s->w->vocabulary);
    int32_t *ids = bench_timer_put(t, host, n * sizeof *host);
    free(host);
    return ids;
}

static void time_loss(bench_timer *t, const shapes *s)
{
    int64_t rows = logit_rows(t, s), n = rows * s->w->vocabulary;
    const float seed = 1;
    char shape[FSDP_BENCH_NAME];
    snprintf(shape, sizeof shape, "%lld x %lld", (long long)rows, (long long)s->w->vocabulary);
    cross_entropy_args c = {.rows = rows,
                            .vocabulary = s->w->vocabulary,
                            .stride = s->w->vocabulary,
                            .logits = bench_timer_values(t, s->dtype, n),
                            .labels = random_ids(t, s),
                            .ignore = -100,
                            .loss_sum = bench_timer_zeros(t, 1),
                            .count = bench_timer_zeros(t, 1),
                            .seed = bench_timer_put(t, &seed, sizeof seed)};
    c.d_logits = c.logits; /* in place, as in a step: logits become their gradient */
    BENCH_WORKSPACE(t, cross_entropy_forward, c);
    bench_timer_run(t, "cross-entropy with gradient", shape, call_cross_entropy_forward, &c, 0,
                    2 * (double)n * s->element);
    bench_timer_free_all(t);
}

static void time_embedding(bench_timer *t, const shapes *s)
{
    const bench_workload *w = s->w;
    int64_t n = s->rows * w->hidden, table = w->vocabulary * w->hidden;
    double rows = (double)n * s->element, whole = (double)table * (double)fsdp_dtype_size(s->gradient);
    char shape[FSDP_BENCH_NAME];
    snprintf(shape, sizeof shape, "%lld of %lld x %lld", (long long)s->rows, (long long)w->vocabulary,
             (long long)w->hidden);
    embedding_args e = {.rows = s->rows,
                        .columns = w->hidden,
                        .vocabulary = w->vocabulary,
                        .ids = random_ids(t, s),
                        .table = bench_timer_values(t, s->dtype, table),
                        .y = bench_timer_values(t, s->dtype, n),
                        .dy = bench_timer_values(t, s->dtype, n),
                        .d_table = bench_timer_values(t, s->gradient, table)};
    bench_timer_run(t, "embedding, forward", shape, call_embedding_forward, &e, 0, 2 * rows);
    BENCH_WORKSPACE(t, embedding_backward, e);
    bench_timer_run(t, "embedding, gradient", shape, call_embedding_backward, &e, 0, rows + whole);
    bench_timer_free_all(t);
}

/* ---- parameters ---- */

/* Parameters of a decoder layer. */
static int64_t layer_numel(const shapes *s)
{
    const bench_workload *w = s->w;
    return w->hidden * (s->qkv + w->heads * s->head_dim + 3 * w->intermediate);
}

static void time_optimizer(bench_timer *t, const shapes *s)
{
    int64_t n = layer_numel(s);
    bool halves = t->dev->halves && s->dtype == FSDP_BF16, copies = s->dtype != FSDP_F32;
    const optimizer_scalars scalars = {.lr = 1e-4f,
                                       .beta1 = 0.9f,
                                       .beta2 = 0.95f,
                                       .eps = 1e-8f,
                                       .weight_decay = 0.1f,
                                       .bias_correction1 = 0.1f,
                                       .bias_correction2 = 0.05f,
                                       .gradient_scale = 1.0f};
    char shape[FSDP_BENCH_NAME];
    snprintf(shape, sizeof shape, "%lld parameters: a layer", (long long)n);
    optimizer_args o = {.kind = FSDP_ADAMW,
                        .n = n,
                        .decay = true,
                        .gradient = bench_timer_values(t, FSDP_F32, n).p,
                        .moment1 = bench_timer_zeros(t, (size_t)n),
                        .moment2 = bench_timer_zeros(t, (size_t)n),
                        .scalars = bench_timer_put(t, &scalars, sizeof scalars)};
    if (halves)
        o.low = bench_timer_take(t, (size_t)n * sizeof *o.low);
    else
        o.parameter = bench_timer_values(t, FSDP_F32, n).p;
    if (copies)
        o.copy = bench_timer_values(t, s->dtype, n);
    bench_timer_run(t, "adamw", shape, call_optimizer, &o, 0, (copies && !halves ? 30.0 : 28.0) * (double)n);
    o.moment_dtype = FSDP_BF16;
    bench_timer_run(t, "adamw, bf16 moments", shape, call_optimizer, &o, 0,
                    (copies && !halves ? 22.0 : 20.0) * (double)n);
    norm_blocks_args b = {.n = n,
                          .x = {(void *)o.gradient, FSDP_F32},
                          .blocks = bench_timer_take(t, (size_t)((n + NORM_BLOCK - 1) / NORM_BLOCK) * sizeof(double))};
    bench_timer_run(t, "gradient norm", shape, call_norm_blocks, &b, 0, 4 * (double)n);
    axpby_args copy = {.n = n, .alpha = 1, .a = {(void *)o.gradient, FSDP_F32}, .out = {o.moment1, FSDP_F32}};
    bench_timer_run(t, "copy", shape, call_axpby, &copy, 0, 8 * (double)n);
    bench_timer_free_all(t);
}

static fsdp_status measure_rates(device *d, stream *s, fsdp_dtype dtype, fsdp_bench_rates *r)
{
    snprintf(r->device, sizeof r->device, "%s", d->description);
    r->dtype = fsdp_dtype_name(dtype);
    r->peak_tflops = peak_tflops(d, dtype);
    FSDP_TRY(peak_measure_products(d, s, dtype, &r->matrix_tflops));
    return peak_measure_copy(d, s, &r->copy_gigabytes);
}

static fsdp_status time_all(fsdp_world *world, const shapes *s, fsdp_bench_kernels *result)
{
    bench_timer t = {.dev = NULL};
    FSDP_TRY(measure_rates(world->dev, world->compute, s->dtype, &result->rates));
    if (bench_timer_open(&t, world->dev, world->compute, result) == FSDP_OK) {
        time_products(&t, s);
        time_attention(&t, s);
        time_norm(&t, s);
        time_rope(&t, s);
        time_swiglu(&t, s);
        time_loss(&t, s);
        time_embedding(&t, s);
        time_optimizer(&t, s);
    }
    bench_timer_close(&t);
    return t.status;
}

static fsdp_status run_bench(const fsdp_settings *settings, const fsdp_bench_config *config, fsdp_bench_kernels *result)
{
    const bench_workload *w = NULL;
    fsdp_world_config world_config;
    fsdp_world *world;
    if (config->workload)
        FSDP_TRY(bench_workload_find(config->workload, &w));
    assemble_world(settings, &world_config);
    FSDP_TRY(fsdp_world_open(&world_config, &world));
    if (!w)
        w = bench_workload_for(world->dev);
    shapes s = {.w = w,
                .rows = w->batch * w->width,
                .head_dim = w->hidden / w->heads,
                .qkv = (w->heads + 2 * w->kv_heads) * (w->hidden / w->heads),
                .dtype = (fsdp_dtype)settings->param_dtype,
                .gradient = (fsdp_dtype)settings->reduce_dtype,
                .element = (double)fsdp_dtype_size((fsdp_dtype)settings->param_dtype),
                .deterministic = settings->deterministic};
    result->workload = w->name;
    fsdp_status status = time_all(world, &s, result);
    if (status != FSDP_OK)
        fsdp_world_abort(world);
    fsdp_world_close(world);
    return status;
}

fsdp_status fsdp_bench_kernels_run(const fsdp_settings *settings, const fsdp_bench_config *config,
                                   fsdp_bench_kernels *result)
{
    fsdp_bench_kernels done = FSDP_BENCH_KERNELS_INIT;
    SIZED_READ(fsdp_bench_config, FSDP_BENCH_CONFIG_INIT, full, config);
    SIZED_CHECK(fsdp_bench_kernels, FSDP_BENCH_KERNELS_INIT, result);
    FSDP_TRY(settings_check_size(settings));
    fsdp_status status = run_bench(settings, &full, &done);
    sized_write(result, &done, sizeof done);
    return status;
}
