/* How long the kernels take on the shapes of a 1B LLaMA (4 x 2048 tokens, 2048 wide, 8192 in between, 128256 words),
 * and what share of the memory bandwidth or matrix rate that is. Printed, not judged. */
#ifndef TESTS_DEVICE_CUDA_TIMINGS_H
#define TESTS_DEVICE_CUDA_TIMINGS_H

#include "device/cuda_checks.h"

enum { TOKENS = 4 * 2048, WIDTH = 2048, BETWEEN = 8192, VOCABULARY = 128256, PARAMETERS = 1 << 28 };

typedef struct timing {
    bench *b;
    event *from, *to;
} timing;

/* Best of three launches of a recorded graph of `repeats` runs, in milliseconds a run: as training runs them, without
 * the host's part in a launch. */
#define TIME(t, repeats, milliseconds, call)                                                                           \
    do {                                                                                                               \
        graph *recorded_ = NULL;                                                                                       \
        bench *b_ = (t)->b;                                                                                            \
        MUST(call);                                                                                                    \
        MUST(b_->d->graph_begin(b_->s));                                                                               \
        for (int i_ = 0; i_ < (repeats); i_++)                                                                         \
            MUST(call);                                                                                                \
        MUST(b_->d->graph_end(b_->s, &recorded_));                                                                     \
        (milliseconds) = 1e30;                                                                                         \
        for (int round_ = 0; round_ < 3; round_++) {                                                                   \
            double elapsed_ = 0;                                                                                       \
            MUST(b_->d->event_record(b_->s, (t)->from));                                                               \
            MUST(b_->d->graph_launch(b_->s, recorded_));                                                               \
            MUST(b_->d->event_record(b_->s, (t)->to));                                                                 \
            MUST(b_->d->event_elapsed((t)->from, (t)->to, &elapsed_));                                                 \
            if (elapsed_ / (repeats) < (milliseconds))                                                                 \
                (milliseconds) = elapsed_ / (repeats);                                                                 \
        }                                                                                                              \
        b_->d->graph_free(recorded_);                                                                                  \
    } while (0)

static inline void print_bytes(const char *name, double milliseconds, double bytes)
{
    print_message("    %-44s %8.3f ms  %7.0f GB/s\n", name, milliseconds, bytes / milliseconds / 1e6);
}

static inline void print_flops(const char *name, double milliseconds, double flops)
{
    print_message("    %-44s %8.3f ms  %7.0f TFLOP/s\n", name, milliseconds, flops / milliseconds / 1e9);
}

static inline void time_product(timing *t, const char *name, bool ta, bool tb, int64_t m, int64_t n, int64_t k,
                                fsdp_dtype out, bool residual)
{
    bench *b = t->b;
    double milliseconds;
    gemm_args g = {.transpose_a = ta,
                   .transpose_b = tb,
                   .m = m,
                   .n = n,
                   .k = k,
                   .alpha = 1,
                   .beta = residual ? 1 : 0,
                   .batch = 1,
                   .lda = ta ? m : k,
                   .ldb = tb ? k : n,
                   .ldc = n,
                   .ldd = n};
    g.a = bench_random(b, FSDP_BF16, m * k, 1);
    g.b = bench_random(b, FSDP_BF16, k * n, 1);
    g.d = bench_random(b, out, m * n, 1);
    g.c = residual ? bench_random(b, out, m * n, 1) : g.d;
    g.workspace = bench_take(b, b->d->kernels->gemm_workspace(b->d, &g));
    TIME(t, 5, milliseconds, b->d->kernels->gemm(b->s, &g));
    print_flops(name, milliseconds, 2.0 * (double)m * (double)n * (double)k);
    bench_clear(b);
}

/* `items` products of WIDTH x depth matrices by each other's transposes; the rate counts half of each. */
static inline void time_symmetric(timing *t, int items, int64_t depth, float beta)
{
    bench *b = t->b;
    char line[64];
    double milliseconds;
    symmetric_args a = {.n_items = items, .alpha = 1, .beta = beta, .gamma = beta};
    for (int i = 0; i < items; i++) {
        const uint16_t *x = bench_random(b, FSDP_BF16, WIDTH * depth, 0.02).p;
        a.items[i] = (symmetric_item){.n = WIDTH, .k = depth, .a = x, .b = x};
        a.items[i].c = bench_random(b, FSDP_BF16, WIDTH * WIDTH, 0.02).p;
        a.items[i].d = bench_random(b, FSDP_BF16, WIDTH * WIDTH, 0.02).p;
    }
    a.workspace = bench_take(b, b->d->kernels->symmetric_workspace(b->d, &a));
    TIME(t, 10, milliseconds, b->d->kernels->symmetric(b->s, &a));
    snprintf(line, sizeof line, "%d symmetric, depth %lld%s", items, (long long)depth, beta != 0 ? ", added" : "");
    print_flops(line, milliseconds, (double)items * WIDTH * WIDTH * (double)depth);
    bench_clear(b);
}

static inline void time_products(timing *t)
{
    time_product(t, "qkv forward", false, true, TOKENS, 3072, WIDTH, FSDP_BF16, false);
    time_product(t, "output projection + residual", false, true, TOKENS, WIDTH, WIDTH, FSDP_BF16, true);
    time_product(t, "gate|up forward", false, true, TOKENS, 2 * BETWEEN, WIDTH, FSDP_BF16, false);
    time_product(t, "down forward + residual", false, true, TOKENS, WIDTH, BETWEEN, FSDP_BF16, true);
    time_product(t, "gate|up input gradient", false, false, TOKENS, WIDTH, 2 * BETWEEN, FSDP_BF16, false);
    time_product(t, "down input gradient", false, false, TOKENS, BETWEEN, WIDTH, FSDP_BF16, false);
    time_product(t, "gate|up weight gradient, fp32", true, false, 2 * BETWEEN, WIDTH, TOKENS, FSDP_F32, false);
    time_product(t, "down weight gradient, fp32", true, false, WIDTH, BETWEEN, TOKENS, FSDP_F32, false);
    time_product(t, "down weight gradient, fp32, added", true, false, WIDTH, BETWEEN, TOKENS, FSDP_F32, true);
    time_product(t, "qkv weight gradient, bf16", true, false, 3072, WIDTH, TOKENS, FSDP_BF16, false);
    time_product(t, "logits of 2048 tokens", false, true, 2048, VOCABULARY, WIDTH, FSDP_BF16, false);
    time_product(t, "logits' input gradient", false, false, 2048, WIDTH, VOCABULARY, FSDP_BF16, false);
    time_product(t, "logits' weight gradient, fp32, added", true, false, VOCABULARY, WIDTH, 2048, FSDP_F32, true);
    time_product(t, "square", false, true, WIDTH, WIDTH, WIDTH, FSDP_BF16, false);
    time_product(t, "square by gate", false, false, WIDTH, BETWEEN, WIDTH, FSDP_BF16, false);
    time_symmetric(t, 1, WIDTH, 0);
    time_symmetric(t, 5, WIDTH, 0);
    time_symmetric(t, 5, WIDTH, 1);
    time_symmetric(t, 3, BETWEEN, 0);
}

static inline void time_attention(timing *t, const char *name, const fused_attention *f)
{
    bench *b = t->b;
    char line[96];
    double milliseconds, flops = 2.0 * (double)(f->batch * f->q_heads * f->length) * (double)(f->length * f->head_dim);
    attention_args a = fused_attention_make(b, f);
    TIME(t, 5, milliseconds, b->d->kernels->attention_forward(b->s, &a));
    snprintf(line, sizeof line, "%s forward (%s)", name, cuda_attention_engine(b->d, &a, false));
    print_flops(line, milliseconds, flops); /* causal: half of 4 b h s s d */
    TIME(t, 5, milliseconds, b->d->kernels->attention_backward(b->s, &a));
    snprintf(line, sizeof line, "%s backward (%s)", name, cuda_attention_engine(b->d, &a, true));
    print_flops(line, milliseconds, 2.5 * flops);
    bench_clear(b);
}

/* T5's: a bias by distance, shared by the samples, with its gradient; 8 x 512 x 512, 8 heads of 64. */
static inline void time_relative_attention(timing *t, float dropout)
{
    enum { BATCH = 8, LENGTH = 512, HEADS = 8, DIM = 64, SPAN = 2 * LENGTH - 1 };
    bench *b = t->b;
    char line[96];
    const fused_attention f = {BATCH, LENGTH, HEADS, HEADS, DIM, false, true, FSDP_BF16};
    double milliseconds, flops = 4.0 * BATCH * HEADS * LENGTH * LENGTH * DIM;
    attention_args a = fused_attention_make(b, &f);
    step_scalars scalars = {.step = 3, .first_sample = 8};
    step_scalars *at = bench_take(b, sizeof scalars);
    MUST(b->d->copy(b->s, at, &scalars, sizeof scalars));
    a.scale = 1;
    a.dropout = dropout, a.scalars = at;
    a.bias = (buffer){bench_floats(b, HEADS * SPAN, 1) + LENGTH - 1, FSDP_F32};
    a.bias_head = SPAN, a.bias_query = -1, a.bias_key = 1;
    a.d_bias = bench_floats(b, HEADS * SPAN, 1) + LENGTH - 1;
    a.d_bias_first = -(LENGTH - 1), a.d_bias_numel = HEADS * SPAN;
    a.workspace = bench_take(b, b->d->kernels->attention_backward_workspace(b->d, &a));
    TIME(t, 10, milliseconds, b->d->kernels->attention_forward(b->s, &a));
    snprintf(line, sizeof line, "attention 8 x 512 with bias%s forward", dropout > 0 ? ", dropout" : "");
    print_flops(line, milliseconds, flops);
    TIME(t, 10, milliseconds, b->d->kernels->attention_backward(b->s, &a));
    snprintf(line, sizeof line, "attention 8 x 512 with bias%s backward", dropout > 0 ? ", dropout" : "");
    print_flops(line, milliseconds, 2.5 * flops);
    bench_clear(b);
}

/* 64 channels to 64, 3 x 3 over 64 images of 56 x 56. */
static inline void time_convolution(timing *t, fsdp_dtype dtype, fsdp_dtype gradient)
{
    enum { IMAGES = 64, CHANNELS = 64, SIDE = 56, KERNEL = 3 };
    const int64_t numel = (int64_t)IMAGES * CHANNELS * SIDE * SIDE, weights = CHANNELS * CHANNELS * KERNEL * KERNEL;
    bench *b = t->b;
    char line[96];
    double milliseconds, flops = 2.0 * (double)numel * CHANNELS * KERNEL * KERNEL;
    conv2d_args a = {.batch = IMAGES, .in_channels = CHANNELS, .in_h = SIDE, .in_w = SIDE, .out_channels = CHANNELS};
    a.kernel_h = a.kernel_w = KERNEL, a.out_h = a.out_w = SIDE;
    a.stride_h = a.stride_w = a.padding_h = a.padding_w = 1;
    a.x = bench_random(b, dtype, numel, 1), a.y = bench_random(b, dtype, numel, 1);
    a.dy = bench_random(b, dtype, numel, 1), a.dx = bench_random(b, dtype, numel, 1);
    a.weight = bench_random(b, dtype, weights, 1), a.d_weight = bench_random(b, gradient, weights, 1);
    a.bias = bench_random(b, dtype, CHANNELS, 1), a.d_bias = bench_random(b, gradient, CHANNELS, 1);
    size_t forward = b->d->kernels->conv2d_forward_workspace(b->d, &a);
    size_t backward = b->d->kernels->conv2d_backward_workspace(b->d, &a);
    a.workspace = bench_take(b, forward > backward ? forward : backward);
    TIME(t, 5, milliseconds, b->d->kernels->conv2d_forward(b->s, &a));
    snprintf(line, sizeof line, "convolution %s forward (%s)", fsdp_dtype_name(dtype),
             cuda_conv2d_engine(b->d, &a, false));
    print_flops(line, milliseconds, flops);
    TIME(t, 5, milliseconds, b->d->kernels->conv2d_backward(b->s, &a));
    snprintf(line, sizeof line, "convolution %s, %s gradient (%s)", fsdp_dtype_name(dtype), fsdp_dtype_name(gradient),
             cuda_conv2d_engine(b->d, &a, true));
    print_flops(line, milliseconds, 2.0 * flops);
    bench_clear(b);
}

static inline void time_rows(timing *t)
{
    bench *b = t->b;
    double milliseconds, tensor = 2.0 * TOKENS * WIDTH;
    buffer x = bench_random(b, FSDP_BF16, TOKENS * WIDTH, 1), y = bench_random(b, FSDP_BF16, TOKENS * WIDTH, 1);
    buffer dy = bench_random(b, FSDP_BF16, TOKENS * WIDTH, 1), dx = bench_random(b, FSDP_BF16, TOKENS * WIDTH, 1);
    rmsnorm_args n = {.rows = TOKENS, .columns = WIDTH, .eps = 1e-5f, .x = x, .y = y, .dy = dy, .dx = dx};
    n.weight = bench_random(b, FSDP_BF16, WIDTH, 1);
    n.d_weight = bench_random(b, FSDP_F32, WIDTH, 1);
    n.rstd = bench_floats(b, TOKENS, 1);
    n.workspace = bench_take(b, b->d->kernels->rmsnorm_backward_workspace(b->d, &n));
    TIME(t, 20, milliseconds, b->d->kernels->rmsnorm_forward(b->s, &n));
    print_bytes("rmsnorm forward", milliseconds, 2 * tensor);
    TIME(t, 20, milliseconds, b->d->kernels->rmsnorm_backward(b->s, &n));
    print_bytes("rmsnorm backward", milliseconds, 3 * tensor);
    n.d_weight.p = NULL;
    TIME(t, 20, milliseconds, b->d->kernels->rmsnorm_backward(b->s, &n));
    print_bytes("rmsnorm backward, no weight gradient", milliseconds, 3 * tensor);
    n.d_weight = bench_random(b, FSDP_F32, WIDTH, 1);
    n.add_dx = true;
    TIME(t, 20, milliseconds, b->d->kernels->rmsnorm_backward(b->s, &n));
    print_bytes("rmsnorm backward, added", milliseconds, 4 * tensor);
    axpby_args add = {.n = TOKENS * WIDTH, .alpha = 1, .beta = 1, .a = x, .b = y, .out = dx};
    TIME(t, 20, milliseconds, b->d->kernels->axpby(b->s, &add));
    print_bytes("axpby", milliseconds, 3 * tensor);
    TIME(t, 20, milliseconds, b->d->copy(b->s, dx.p, x.p, (size_t)tensor));
    print_bytes("copy of the same size", milliseconds, 2 * tensor);
    embedding_args e = {.rows = TOKENS, .columns = WIDTH, .vocabulary = VOCABULARY, .dy = dy, .y = y};
    e.ids = bench_ids(b, TOKENS, VOCABULARY);
    e.table = bench_random(b, FSDP_BF16, (int64_t)VOCABULARY * WIDTH, 1);
    e.d_table = bench_random(b, FSDP_F32, (int64_t)VOCABULARY * WIDTH, 1);
    e.workspace = bench_take(b, b->d->kernels->embedding_backward_workspace(b->d, &e));
    TIME(t, 20, milliseconds, b->d->kernels->embedding_forward(b->s, &e));
    print_bytes("embedding forward", milliseconds, 2 * tensor);
    TIME(t, 10, milliseconds, b->d->kernels->embedding_backward(b->s, &e));
    print_bytes("embedding backward, overwriting", milliseconds, 4.0 * VOCABULARY * WIDTH + tensor);
    e.add_table = true;
    TIME(t, 10, milliseconds, b->d->kernels->embedding_backward(b->s, &e));
    print_bytes("embedding backward, added", milliseconds, 5 * tensor);
    e.ids = bench_drawn_ids(b, TOKENS, VOCABULARY, true, 0);
    TIME(t, 10, milliseconds, b->d->kernels->embedding_backward(b->s, &e));
    print_bytes("embedding backward, added, ids like words", milliseconds, 5 * tensor);
    e.ids = bench_drawn_ids(b, TOKENS, VOCABULARY, true, TOKENS / 2);
    TIME(t, 10, milliseconds, b->d->kernels->embedding_backward(b->s, &e));
    print_bytes("embedding backward, added, half padding", milliseconds, 5 * tensor);
    bench_clear(b);
}

static inline void time_wide(timing *t)
{
    bench *b = t->b;
    double milliseconds, tensor = 2.0 * TOKENS * BETWEEN;
    gated_args g = {.kind = ACTIVATION_SILU, .rows = TOKENS, .columns = BETWEEN};
    g.x = bench_random(b, FSDP_BF16, 2 * TOKENS * BETWEEN, 1);
    g.dx = bench_random(b, FSDP_BF16, 2 * TOKENS * BETWEEN, 1);
    g.y = bench_random(b, FSDP_BF16, TOKENS * BETWEEN, 1);
    g.dy = bench_random(b, FSDP_BF16, TOKENS * BETWEEN, 1);
    TIME(t, 10, milliseconds, b->d->kernels->gated_forward(b->s, &g));
    print_bytes("swiglu forward", milliseconds, 3 * tensor);
    TIME(t, 10, milliseconds, b->d->kernels->gated_backward(b->s, &g));
    print_bytes("swiglu backward", milliseconds, 5 * tensor);
    rope_args r = {.rows = TOKENS, .length = 2048, .heads = 40, .head_dim = 64, .row = 3072, .x = g.x};
    r.cosine = bench_floats(b, 2048 * 32, 1);
    r.sine = bench_floats(b, 2048 * 32, 1);
    TIME(t, 20, milliseconds, b->d->kernels->rope(b->s, &r));
    print_bytes("rope on q|k", milliseconds, 2.0 * 2.0 * TOKENS * 2560);
    column_sum_args c = {.rows = TOKENS, .columns = BETWEEN, .x = g.y, .out = {bench_floats(b, BETWEEN, 1), FSDP_F32}};
    c.workspace = bench_take(b, b->d->kernels->column_sum_workspace(b->d, &c));
    TIME(t, 20, milliseconds, b->d->kernels->column_sum(b->s, &c));
    print_bytes("column_sum", milliseconds, tensor);
    bench_clear(b);
    int64_t rows = 2048;
    cross_entropy_args x = {.rows = rows,
                            .vocabulary = VOCABULARY,
                            .stride = VOCABULARY,
                            .ignore = -100,
                            .labels = bench_ids(b, rows, VOCABULARY)};
    x.logits = x.d_logits = bench_random(b, FSDP_BF16, rows * VOCABULARY, 4);
    x.loss_sum = bench_floats(b, 1, 1);
    x.count = bench_floats(b, 1, 1);
    x.seed = bench_floats(b, 1, 1);
    x.workspace = bench_take(b, b->d->kernels->cross_entropy_forward_workspace(b->d, &x));
    TIME(t, 10, milliseconds, b->d->kernels->cross_entropy_forward(b->s, &x));
    print_bytes("cross-entropy with gradient, 2048 rows", milliseconds, 4.0 * (double)rows * VOCABULARY);
    bench_clear(b);
}

static inline void time_flat(timing *t)
{
    bench *b = t->b;
    double milliseconds, n = PARAMETERS;
    optimizer_scalars scalars = {.lr = 1e-4f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .weight_decay = 0.1f,
                                 .bias_correction1 = 0.5f,
                                 .bias_correction2 = 0.5f,
                                 .gradient_scale = 1};
    optimizer_args o = {.kind = FSDP_ADAMW, .n = PARAMETERS, .decay = true};
    o.parameter = bench_floats(b, PARAMETERS, 1);
    o.gradient = bench_floats(b, PARAMETERS, 1);
    o.moment1 = bench_floats(b, PARAMETERS, 1);
    o.moment2 = bench_floats(b, PARAMETERS, 0);
    o.copy = bench_random(b, FSDP_BF16, PARAMETERS, 1);
    o.scalars = bench_take(b, sizeof scalars);
    MUST(b->d->copy(b->s, (void *)(uintptr_t)o.scalars, &scalars, sizeof scalars));
    TIME(t, 5, milliseconds, b->d->kernels->optimizer(b->s, &o));
    print_bytes("adamw with bf16 copy, 268M", milliseconds, 30.0 * n);
    sum_parts_args parts = {.n = PARAMETERS / 8, .n_parts = 8, .stride = PARAMETERS / 8};
    parts.parts = bench_random(b, FSDP_BF16, PARAMETERS, 1);
    parts.mine = (buffer){(uint16_t *)parts.parts.p + 7 * parts.stride, FSDP_BF16};
    parts.out = (buffer){(void *)(uintptr_t)o.gradient, FSDP_F32};
    parts.own = 7;
    TIME(t, 5, milliseconds, b->d->kernels->sum_parts(b->s, &parts));
    print_bytes("sum of 8 parts of bf16, 268M", milliseconds, 2.5 * n);
    norm_blocks_args blocks = {.n = PARAMETERS, .x = {(void *)(uintptr_t)o.gradient, FSDP_F32}};
    blocks.blocks = bench_take(b, PARAMETERS / 64 * sizeof(double));
    TIME(t, 5, milliseconds, b->d->kernels->norm_blocks(b->s, &blocks));
    print_bytes("norm_blocks of fp32, 268M", milliseconds, 4.0 * n + n / 8);
    sum_f64_args sum = {.n = PARAMETERS / 64, .x = blocks.blocks, .out = bench_take(b, sizeof(double))};
    TIME(t, 20, milliseconds, b->d->kernels->sum_f64(b->s, &sum));
    print_bytes("sum_f64 of their blocks", milliseconds, n / 8);
    axpby_args cast = {.n = PARAMETERS, .alpha = 1, .a = {o.parameter, FSDP_F32}, .out = o.copy};
    TIME(t, 5, milliseconds, b->d->kernels->axpby(b->s, &cast));
    print_bytes("cast fp32 to bf16, 268M", milliseconds, 6.0 * n);
    TIME(t, 5, milliseconds, b->d->copy(b->s, o.moment1, o.parameter, (size_t)PARAMETERS * 4));
    print_bytes("copy on the device, 1 GiB", milliseconds, 8.0 * n);
    TIME(t, 5, milliseconds, b->d->zero(b->s, o.moment1, (size_t)PARAMETERS * 4));
    print_bytes("zero, 1 GiB", milliseconds, 4.0 * n);
    bench_clear(b);
}

/* --- the tests --- */

static void run_timings(void (*all)(timing *t))
{
    bench b = start_bench();
    timing t = {.b = &b};
    MUST(gpu->event_create(gpu, &t.from));
    MUST(gpu->event_create(gpu, &t.to));
    all(&t);
    gpu->event_free(t.from);
    gpu->event_free(t.to);
    end_bench(&b);
}

static void timings_of_flat_kernels(void **state)
{
    (void)state;
    run_timings(time_flat);
}

static void timings_of_rows(void **state)
{
    (void)state;
    run_timings(time_rows);
    run_timings(time_wide);
}

static void timings_of_products(void **state)
{
    (void)state;
    run_timings(time_products);
}

static void time_attentions(timing *t)
{
    const fused_attention deterministic = {4, 2048, 32, 8, 64, true, true, FSDP_BF16};
    const fused_attention long_8k = {1, 8192, 32, 2, 64, true, false, FSDP_BF16};
    const fused_attention wide = {4, 2048, 32, 8, 128, true, false, FSDP_BF16};
    time_attention(t, "attention 4 x 2048", &llama_1b);
    time_attention(t, "attention 4 x 2048, deterministic", &deterministic);
    time_attention(t, "attention 1 x 8192", &long_8k);
    cuda_set_cudnn(gpu, false);
    time_attention(t, "attention 4 x 2048", &llama_1b);
    time_attention(t, "attention 4 x 2048, heads of 128", &wide);
    for (int dropout = 0; dropout < 2; dropout++)
        time_relative_attention(t, dropout ? 0.1f : 0.0f);
    cuda_set_cudnn(gpu, true);
}

static void timings_of_attention(void **state)
{
    (void)state;
    run_timings(time_attentions);
}

static void time_convolutions(timing *t)
{
    for (int own = 0; own < 2; own++) {
        cuda_set_cudnn(gpu, !own);
        time_convolution(t, FSDP_BF16, FSDP_F32);
        time_convolution(t, FSDP_BF16, FSDP_BF16);
        time_convolution(t, FSDP_F32, FSDP_F32);
    }
    cuda_set_cudnn(gpu, true);
}

static void timings_of_convolution(void **state)
{
    (void)state;
    run_timings(time_convolutions);
}

#endif
