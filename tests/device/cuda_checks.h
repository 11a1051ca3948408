/* Checks of the CUDA device beyond the common case list: sizes that take the vectorised paths, cuDNN against the own
 * kernel, large products, recorded graphs, caches. What they stand on: buffers of any size with random contents. */
#ifndef TESTS_DEVICE_CUDA_CHECKS_H
#define TESTS_DEVICE_CUDA_CHECKS_H

#include <stdio.h>

#include "device/cuda/cuda.h"
#include "device/kernel_cases.h"

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != FSDP_OK)                                                                                         \
            fail_msg("%s: %s", #call, fsdp_last_error());                                                              \
    } while (0)

static device *gpu; /* the device under test, opened by main */

/* Memory of a test, given back together. */
typedef struct bench {
    device *d;
    stream *s;
    int n;
    struct {
        void *p;
        size_t bytes;
    } taken[64];
} bench;

static inline void *bench_take(bench *b, size_t bytes)
{
    assert_true(b->n < 64);
    MUST(b->d->allocate(b->d, MEMORY_DEVICE, bytes, &b->taken[b->n].p));
    b->taken[b->n].bytes = bytes;
    return b->taken[b->n++].p;
}

static inline void bench_clear(bench *b)
{
    MUST(b->d->stream_synchronize(b->s));
    while (b->n) {
        b->n--;
        b->d->release(b->d, MEMORY_DEVICE, b->taken[b->n].p, b->taken[b->n].bytes);
    }
}

static inline bench start_bench(void)
{
    bench b = {.d = gpu};
    MUST(gpu->stream_create(gpu, 0, &b.s));
    return b;
}

static inline void end_bench(bench *b)
{
    bench_clear(b);
    gpu->stream_free(b->s);
}

/* What the program returns where there is no GPU to use: 77, which counts as skipped, or 1 on failure. 0: gpu is open.
 */
static inline int open_first_gpu(void)
{
    fsdp_status status = device_open_cuda(0, &gpu);
    if (status == FSDP_ERR_UNSUPPORTED)
        printf("no CUDA device: %s\n", fsdp_last_error());
    else if (status != FSDP_OK)
        printf("the CUDA device does not open: %s\n", fsdp_last_error());
    return status == FSDP_OK ? 0 : status == FSDP_ERR_UNSUPPORTED ? 77 : 1;
}

/* Uniform in [-scale, scale): a pattern of a million numbers (a prime less, so that rows differ), repeated. */
static inline buffer bench_random(bench *b, fsdp_dtype dtype, int64_t n, double scale)
{
    enum { PATTERN = 999983 };
    size_t element = fsdp_dtype_size(dtype);
    buffer out = {bench_take(b, (size_t)n * element), dtype};
    int64_t pattern = n < PATTERN ? n : PATTERN;
    char *host = malloc((size_t)pattern * element);
    assert_non_null(host);
    uint64_t random = 12345u + (uint64_t)n + (uint64_t)b->n * 77u;
    for (int64_t i = 0; i < pattern; i++)
        dtype_put(dtype, host, i, scale * ((double)(draw_state(&random) >> 40) / (double)(1 << 23) - 1.0));
    MUST(b->d->copy(b->s, out.p, host, (size_t)pattern * element));
    MUST(b->d->stream_synchronize(b->s));
    free(host);
    for (int64_t done = pattern; done < n;) {
        int64_t more = n - done < done ? n - done : done;
        MUST(b->d->copy(b->s, (char *)out.p + (size_t)done * element, out.p, (size_t)more * element));
        done += more;
    }
    return out;
}

/* Ids below `below`, all alike or, as words are, the more frequent the lower; the last `padding` of them are 0. */
static inline int32_t *bench_drawn_ids(bench *b, int64_t n, int32_t below, bool words, int64_t padding)
{
    int32_t *host = malloc((size_t)n * sizeof *host), *out = bench_take(b, (size_t)n * sizeof *host);
    uint64_t random = 99u;
    for (int64_t i = 0; i < n; i++) {
        int32_t id = draw_below(&random, below);
        host[i] = i >= n - padding ? 0 : words ? (int32_t)pow(below, (double)id / below) : id;
    }
    MUST(b->d->copy(b->s, out, host, (size_t)n * sizeof *host));
    MUST(b->d->stream_synchronize(b->s));
    free(host);
    return out;
}

static inline int32_t *bench_ids(bench *b, int64_t n, int32_t below)
{
    return bench_drawn_ids(b, n, below, false, 0);
}

static inline float *bench_floats(bench *b, int64_t n, double scale)
{
    return bench_random(b, FSDP_F32, n, scale).p;
}

/* The buffer on the host as floats; the caller frees. */
static inline float *bench_read(bench *b, buffer from, int64_t n)
{
    size_t element = fsdp_dtype_size(from.dtype);
    char *raw = malloc((size_t)n * element);
    float *out = malloc((size_t)n * sizeof *out);
    assert_true(raw && out);
    MUST(b->d->copy(b->s, raw, from.p, (size_t)n * element));
    MUST(b->d->stream_synchronize(b->s));
    for (int64_t i = 0; i < n; i++)
        out[i] = from.dtype == FSDP_F32    ? ((const float *)(void *)raw)[i]
                 : from.dtype == FSDP_BF16 ? (float)bf16_value(((const uint16_t *)(void *)raw)[i])
                                           : (float)half_value(((const uint16_t *)(void *)raw)[i]);
    free(raw);
    return out;
}

/* |a - b| / |b| over all elements; infinite when a NaN is among them. */
static inline double bench_distance(bench *b, buffer x, buffer y, int64_t n)
{
    float *a = bench_read(b, x, n), *r = bench_read(b, y, n);
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)r[i]) * ((double)a[i] - (double)r[i]);
        norm += (double)r[i] * (double)r[i];
    }
    free(a);
    free(r);
    double distance = sqrt(difference / (norm > 0 ? norm : 1.0));
    return isnan(distance) ? INFINITY : distance;
}

static inline void expect_close(bench *b, buffer x, buffer y, int64_t n, double most, const char *what)
{
    double distance = bench_distance(b, x, y, n);
    print_message("    %-60s distance %.2e (allowed %.0e)\n", what, distance, most);
    if (!(distance <= most))
        fail_msg("%s: distance %.3g, allowed %.3g", what, distance, most);
}

/* --- attention with q, k and v inside one fused projection, as the models call it --- */

typedef struct fused_attention {
    int64_t batch, length, q_heads, kv_heads, head_dim;
    bool causal, deterministic;
    fsdp_dtype dtype;
} fused_attention;

static inline int64_t fused_row(const fused_attention *f)
{
    return (f->q_heads + 2 * f->kv_heads) * f->head_dim;
}

static inline buffer buffer_at(buffer b, int64_t elements)
{
    b.p = (char *)b.p + elements * (int64_t)fsdp_dtype_size(b.dtype);
    return b;
}

static const fused_attention llama_1b = {4, 2048, 32, 8, 64, true, false, FSDP_BF16};

/* Arguments over new memory; workspace for whichever engine is larger. */
static inline attention_args fused_attention_make(bench *b, const fused_attention *f)
{
    int64_t row = fused_row(f), tokens = f->batch * f->length, width = f->q_heads * f->head_dim;
    buffer qkv = bench_random(b, f->dtype, tokens * row, 1), d_qkv = bench_random(b, f->dtype, tokens * row, 1);
    attention_args a = {.batch = f->batch,
                        .q_length = f->length,
                        .kv_length = f->length,
                        .q_heads = f->q_heads,
                        .kv_heads = f->kv_heads,
                        .head_dim = f->head_dim,
                        .scale = 1.0f / sqrtf((float)f->head_dim),
                        .causal = f->causal,
                        .deterministic = f->deterministic,
                        .q_row = row,
                        .k_row = row,
                        .v_row = row};
    a.q = qkv;
    a.k = buffer_at(qkv, width);
    a.v = buffer_at(qkv, width + f->kv_heads * f->head_dim);
    a.d_q = d_qkv;
    a.d_k = buffer_at(d_qkv, width);
    a.d_v = buffer_at(d_qkv, width + f->kv_heads * f->head_dim);
    a.out = bench_random(b, f->dtype, tokens * width, 1);
    a.lse = bench_floats(b, f->batch * f->q_heads * f->length, 1);
    a.d_out = bench_random(b, f->dtype, tokens * width, 1);
    size_t forward = b->d->kernels->attention_forward_workspace(b->d, &a);
    size_t backward = b->d->kernels->attention_backward_workspace(b->d, &a);
    a.workspace = bench_take(b, forward > backward ? forward : backward);
    return a;
}

static inline void cudnn_matches_the_own_kernel_on(bench *b, const fused_attention *f, const char *name)
{
    char what[128];
    int64_t tokens = f->batch * f->length, numel = tokens * f->q_heads * f->head_dim, row = fused_row(f);
    cuda_set_cudnn(b->d, true);
    attention_args library = fused_attention_make(b, f), own = library;
    assert_string_equal(cuda_attention_engine(b->d, &library, false), "cudnn");
    assert_string_equal(cuda_attention_engine(b->d, &library, true), "cudnn");
    MUST(b->d->kernels->attention_forward(b->s, &library));
    MUST(b->d->kernels->attention_backward(b->s, &library));
    own.out = bench_random(b, f->dtype, numel, 1);
    own.lse = bench_floats(b, f->batch * f->q_heads * f->length, 1);
    buffer d_qkv = bench_random(b, f->dtype, tokens * row, 1);
    own.d_q = d_qkv;
    own.d_k = buffer_at(d_qkv, f->q_heads * f->head_dim);
    own.d_v = buffer_at(d_qkv, (f->q_heads + f->kv_heads) * f->head_dim);
    cuda_set_cudnn(b->d, false);
    own.workspace = bench_take(b, b->d->kernels->attention_backward_workspace(b->d, &own));
    MUST(b->d->kernels->attention_forward(b->s, &own));
    MUST(b->d->kernels->attention_backward(b->s, &own));
    cuda_set_cudnn(b->d, true);
    snprintf(what, sizeof what, "%s: out", name);
    expect_close(b, library.out, own.out, numel, 1e-2, what);
    snprintf(what, sizeof what, "%s: lse", name);
    expect_close(b, (buffer){library.lse, FSDP_F32}, (buffer){own.lse, FSDP_F32}, f->batch * f->q_heads * f->length,
                 1e-3, what);
    snprintf(what, sizeof what, "%s: gradients", name);
    expect_close(b, library.d_q, own.d_q, tokens * row, 1.5e-2, what);
    bench_clear(b);
}

/* --- products --- */

/* The bf16 product against the same operands in fp32. */
static inline void product_matches_fp32_on(bench *b, bool ta, bool tb, int64_t m, int64_t n, int64_t k, fsdp_dtype out)
{
    char what[96];
    gemm_args g = {.transpose_a = ta,
                   .transpose_b = tb,
                   .m = m,
                   .n = n,
                   .k = k,
                   .alpha = 1,
                   .batch = 1,
                   .lda = ta ? m : k,
                   .ldb = tb ? k : n,
                   .ldc = n,
                   .ldd = n};
    g.a = bench_random(b, FSDP_BF16, m * k, 1);
    g.b = bench_random(b, FSDP_BF16, k * n, 1);
    g.c = bench_random(b, out, m * n, 1);
    g.beta = 1;
    g.d = bench_random(b, out, m * n, 1);
    g.workspace = bench_take(b, b->d->kernels->gemm_workspace(b->d, &g));
    MUST(b->d->kernels->gemm(b->s, &g));
    gemm_args wide = g;
    const struct {
        buffer from, *to;
        int64_t n;
    } casts[] = {{g.a, &wide.a, m * k}, {g.b, &wide.b, k * n}, {g.c, &wide.c, m * n}};
    for (int i = 0; i < 3; i++) {
        *casts[i].to = bench_random(b, FSDP_F32, casts[i].n, 1);
        axpby_args cast = {.n = casts[i].n, .alpha = 1, .a = casts[i].from, .out = *casts[i].to};
        MUST(b->d->kernels->axpby(b->s, &cast));
    }
    wide.d = bench_random(b, FSDP_F32, m * n, 1);
    MUST(b->d->kernels->gemm(b->s, &wide));
    snprintf(what, sizeof what, "%lld x %lld x %lld %s%s into %s, c beside d", (long long)m, (long long)n, (long long)k,
             ta ? "T" : "N", tb ? "T" : "N", fsdp_dtype_name(out));
    expect_close(b, g.d, wide.d, m * n, out == FSDP_F32 ? 1e-4 : 4e-3, what);
    bench_clear(b);
}

#endif
