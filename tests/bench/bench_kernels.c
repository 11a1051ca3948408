/* Time of every CPU kernel at the shapes of a 512-wide decoder on 4 x 512 tokens: milliseconds, and the GB/s or GFLOP/s
 * that they amount to. Usage: bench_kernels [fp32|bf16|fp16] [baseline|AVX2|AVX-512] [name] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/rng.h"
#include "base/threads.h"
#include "device/cpu/cpu_device.h"

#define ROWS 2048
#define LENGTH 512
#define WIDTH 512
#define FFN 1408
#define HEADS 8
#define VOCABULARY 32000
#define PARAMETERS (8 << 20)

typedef struct bench {
    device *device;
    stream *stream;
    const kernel_table *kernels;
    fsdp_dtype dtype;
    double element; /* bytes */
    const char *only;
} bench;

typedef void (*bench_work)(bench *b, const void *args);

static void *take(bench *b, size_t bytes)
{
    void *p = NULL;
    if (b->device->allocate(b->device, MEMORY_DEVICE, bytes, &p) != FSDP_OK) {
        fprintf(stderr, "bench_kernels: %s\n", fsdp_last_error());
        exit(1);
    }
    return p;
}

static buffer values(bench *b, fsdp_dtype dtype, int64_t n)
{
    float *f = take(b, (size_t)n * sizeof *f);
    rng_fill_uniform(rng_key_make(7), 0, n, -1.0f, 1.0f, f);
    if (dtype == FSDP_F32)
        return (buffer){f, dtype};
    buffer out = {take(b, (size_t)n * 2), dtype};
    axpby_args cast = {.n = n, .alpha = 1.0f, .a = {f, FSDP_F32}, .out = out};
    b->kernels->axpby(b->stream, &cast);
    b->device->release(b->device, MEMORY_DEVICE, f, (size_t)n * sizeof *f);
    return out;
}

static void report(bench *b, const char *name, bench_work work, const void *args, double bytes, double flops)
{
    if (b->only && !strstr(name, b->only))
        return;
    double best = INFINITY, start = clock_seconds();
    for (int i = 0; i < 50 && (i < 3 || clock_seconds() - start < 0.5); i++) {
        double from = clock_seconds();
        work(b, args);
        double seconds = clock_seconds() - from;
        best = seconds < best ? seconds : best;
    }
    printf("%-36s %9.3f ms", name, best * 1e3);
    if (flops > 0)
        printf(" %9.1f GFLOP/s", flops / best * 1e-9);
    else
        printf(" %9.1f GB/s", bytes / best * 1e-9);
    printf("\n");
    fflush(stdout);
}

/* A bench_work for each kernel: passes the arguments on. */
#define WORK(entry, args_type)                                                                                         \
    __attribute__((unused)) static void work_##entry(bench *b, const void *args)                                       \
    {                                                                                                                  \
        if (b->kernels->entry(b->stream, (const args_type *)args) != FSDP_OK)                                          \
            fprintf(stderr, "%s: %s\n", #entry, fsdp_last_error());                                                    \
    }
KERNELS(WORK, WORK)

#define WORKSPACE(b, entry, args) (args).workspace = take(b, (b)->kernels->entry##_workspace((b)->device, &(args)))

static void bench_attention(bench *b, const char *forward, const char *backward, bool causal, bool toeplitz)
{
    int64_t row = 3 * WIDTH, batch = ROWS / LENGTH, dim = WIDTH / HEADS, span = 2 * LENGTH - 1;
    buffer qkv = values(b, b->dtype, ROWS * row), d_qkv = values(b, b->dtype, ROWS * row);
    size_t element = (size_t)b->element;
    attention_args a = {.batch = batch,
                        .q_length = LENGTH,
                        .kv_length = LENGTH,
                        .q_heads = HEADS,
                        .kv_heads = HEADS,
                        .head_dim = dim,
                        .scale = 0.125f,
                        .causal = causal,
                        .q = qkv,
                        .k = qkv,
                        .v = qkv,
                        .q_row = row,
                        .k_row = row,
                        .v_row = row,
                        .out = values(b, b->dtype, ROWS * WIDTH),
                        .lse = values(b, FSDP_F32, ROWS * HEADS).p,
                        .d_out = values(b, b->dtype, ROWS * WIDTH),
                        .d_q = d_qkv,
                        .d_k = d_qkv,
                        .d_v = d_qkv,
                        .deterministic = true};
    a.k.p = (char *)qkv.p + WIDTH * element, a.v.p = (char *)qkv.p + 2 * WIDTH * element;
    a.d_k.p = (char *)d_qkv.p + WIDTH * element, a.d_v.p = (char *)d_qkv.p + 2 * WIDTH * element;
    if (toeplitz) {
        a.bias = values(b, FSDP_F32, HEADS * span);
        a.bias.p = (float *)a.bias.p + LENGTH - 1;
        a.bias_query = -1, a.bias_key = 1, a.bias_head = span;
        a.d_bias = (float *)values(b, FSDP_F32, HEADS * span).p + LENGTH - 1;
        a.d_bias_first = 1 - LENGTH, a.d_bias_numel = HEADS * span;
    }
    /* What is needed, not what tiles on the diagonal compute besides. */
    double pairs = (double)(batch * HEADS) * (causal ? LENGTH * (LENGTH + 1) / 2 : LENGTH * LENGTH);
    WORKSPACE(b, attention_forward, a);
    report(b, forward, work_attention_forward, &a, 0, pairs * 4.0 * (double)dim);
    WORKSPACE(b, attention_backward, a);
    report(b, backward, work_attention_backward, &a, 0, pairs * 10.0 * (double)dim);
}

static void bench_rows(bench *b)
{
    double n = (double)ROWS * WIDTH * b->element;
    rmsnorm_args r = {.rows = ROWS,
                      .columns = WIDTH,
                      .eps = 1e-5f,
                      .x = values(b, b->dtype, ROWS * WIDTH),
                      .weight = values(b, b->dtype, WIDTH),
                      .y = values(b, b->dtype, ROWS * WIDTH),
                      .rstd = values(b, FSDP_F32, ROWS).p,
                      .dy = values(b, b->dtype, ROWS * WIDTH),
                      .dx = values(b, b->dtype, ROWS * WIDTH),
                      .d_weight = values(b, FSDP_F32, WIDTH)};
    report(b, "rmsnorm_forward", work_rmsnorm_forward, &r, 2 * n, 0);
    WORKSPACE(b, rmsnorm_backward, r);
    report(b, "rmsnorm_backward", work_rmsnorm_backward, &r, 3 * n, 0);
    layernorm_args l = {.rows = ROWS,
                        .columns = WIDTH,
                        .eps = 1e-5f,
                        .x = r.x,
                        .weight = r.weight,
                        .bias = r.weight,
                        .y = r.y,
                        .mean = values(b, FSDP_F32, ROWS).p,
                        .rstd = r.rstd,
                        .dy = r.dy,
                        .dx = r.dx,
                        .d_weight = r.d_weight,
                        .d_bias = values(b, FSDP_F32, WIDTH)};
    report(b, "layernorm_forward", work_layernorm_forward, &l, 2 * n, 0);
    WORKSPACE(b, layernorm_backward, l);
    report(b, "layernorm_backward", work_layernorm_backward, &l, 3 * n, 0);
    column_sum_args c = {
        .rows = ROWS, .columns = FFN, .x = values(b, b->dtype, ROWS * FFN), .out = values(b, FSDP_F32, FFN)};
    WORKSPACE(b, column_sum, c);
    report(b, "column_sum", work_column_sum, &c, (double)ROWS * FFN * b->element, 0);
    rope_args p = {.rows = ROWS,
                   .length = LENGTH,
                   .heads = 2 * HEADS,
                   .head_dim = WIDTH / HEADS,
                   .row = 3 * WIDTH,
                   .x = values(b, b->dtype, ROWS * 3 * WIDTH),
                   .cosine = values(b, FSDP_F32, LENGTH * 32).p,
                   .sine = values(b, FSDP_F32, LENGTH * 32).p};
    report(b, "rope", work_rope, &p, 4 * n, 0);
    gated_args g = {.rows = ROWS,
                    .columns = FFN,
                    .x = values(b, b->dtype, ROWS * 2 * FFN),
                    .y = values(b, b->dtype, ROWS * FFN),
                    .dy = values(b, b->dtype, ROWS * FFN),
                    .dx = values(b, b->dtype, ROWS * 2 * FFN)};
    double f = (double)ROWS * FFN * b->element;
    report(b, "gated_forward (silu)", work_gated_forward, &g, 3 * f, 0);
    report(b, "gated_backward (silu)", work_gated_backward, &g, 5 * f, 0);
    g.kind = ACTIVATION_GELU_TANH;
    report(b, "gated_forward (gelu tanh)", work_gated_forward, &g, 3 * f, 0);
    report(b, "gated_backward (gelu tanh)", work_gated_backward, &g, 5 * f, 0);
    activation_args a = {.kind = ACTIVATION_GELU_ERF, .n = ROWS * FFN, .x = g.y, .y = g.dy, .dy = g.dy, .dx = g.dx};
    report(b, "activation_forward (gelu erf)", work_activation_forward, &a, 2 * f, 0);
    report(b, "activation_backward (gelu erf)", work_activation_backward, &a, 3 * f, 0);
}

static void bench_vocabulary(bench *b)
{
    int32_t *ids = take(b, ROWS * sizeof *ids);
    for (int i = 0; i < ROWS; i++)
        ids[i] = (int32_t)(rng_word(rng_key_make(3), 0, (uint64_t)i) % VOCABULARY);
    float *numbers = take(b, 3 * sizeof(float));
    numbers[2] = 1.0f / ROWS;
    double n = (double)ROWS * VOCABULARY * b->element;
    cross_entropy_args c = {.rows = ROWS,
                            .vocabulary = VOCABULARY,
                            .logits = values(b, b->dtype, (int64_t)ROWS * VOCABULARY),
                            .labels = ids,
                            .ignore = -100,
                            .loss_sum = numbers,
                            .count = numbers + 1,
                            .seed = numbers + 2};
    WORKSPACE(b, cross_entropy_forward, c);
    report(b, "cross_entropy_forward", work_cross_entropy_forward, &c, n, 0);
    c.d_logits = c.logits;
    report(b, "cross_entropy_forward + gradient", work_cross_entropy_forward, &c, 2 * n, 0);
    double rows = (double)ROWS * WIDTH * b->element, table = (double)VOCABULARY * WIDTH * 4.0;
    embedding_args e = {.rows = ROWS,
                        .columns = WIDTH,
                        .vocabulary = VOCABULARY,
                        .ids = ids,
                        .table = values(b, b->dtype, VOCABULARY * WIDTH),
                        .y = values(b, b->dtype, ROWS * WIDTH),
                        .dy = values(b, b->dtype, ROWS * WIDTH),
                        .d_table = values(b, FSDP_F32, VOCABULARY * WIDTH)};
    WORKSPACE(b, embedding_backward, e);
    report(b, "embedding_forward", work_embedding_forward, &e, 2 * rows, 0);
    report(b, "embedding_backward", work_embedding_backward, &e, rows + table, 0);
}

static void bench_flat(bench *b)
{
    double n = (double)PARAMETERS;
    optimizer_scalars numbers = {.lr = 1e-4f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .weight_decay = 0.1f,
                                 .bias_correction1 = 0.1f,
                                 .bias_correction2 = 0.05f,
                                 .gradient_scale = 1.0f};
    optimizer_args o = {.kind = FSDP_ADAMW,
                        .n = PARAMETERS,
                        .decay = true,
                        .parameter = values(b, FSDP_F32, PARAMETERS).p,
                        .gradient = values(b, FSDP_F32, PARAMETERS).p,
                        .moment1 = values(b, FSDP_F32, PARAMETERS).p,
                        .scalars = &numbers};
    o.moment2 = take(b, PARAMETERS * sizeof(float));
    memset(o.moment2, 0, PARAMETERS * sizeof(float));
    report(b, "optimizer (adamw)", work_optimizer, &o, 28 * n, 0);
    o.copy = values(b, FSDP_BF16, PARAMETERS);
    report(b, "optimizer (adamw, bf16 copy)", work_optimizer, &o, 30 * n, 0);
    buffer x = values(b, b->dtype, PARAMETERS), y = values(b, b->dtype, PARAMETERS),
           z = values(b, b->dtype, PARAMETERS);
    norm_blocks_args nb = {.n = PARAMETERS, .x = x, .blocks = take(b, PARAMETERS / NORM_BLOCK * sizeof(double))};
    report(b, "norm_blocks", work_norm_blocks, &nb, n * b->element, 0);
    sum_f64_args s = {.n = PARAMETERS / NORM_BLOCK, .x = nb.blocks, .out = take(b, sizeof(double))};
    report(b, "sum_f64", work_sum_f64, &s, n / NORM_BLOCK * 8.0, 0);
    axpby_args a = {.n = PARAMETERS, .alpha = 1.0f, .beta = 1.0f, .a = x, .b = y, .out = x};
    report(b, "axpby (x += y)", work_axpby, &a, 3 * n * b->element, 0);
    a = (axpby_args){.n = PARAMETERS, .alpha = 1.0f, .a = {o.parameter, FSDP_F32}, .out = o.copy};
    report(b, "axpby (fp32 to bf16)", work_axpby, &a, 6 * n, 0);
    multiply_args m = {.n = PARAMETERS, .a = x, .b = y, .out = z};
    report(b, "multiply", work_multiply, &m, 3 * n * b->element, 0);
    fill_args f = {.n = PARAMETERS, .alpha = 1.0f, .out = z};
    report(b, "fill", work_fill, &f, n * b->element, 0);
    step_scalars step = {.step = 3, .first_sample = 12};
    dropout_args d = {.samples = 4,
                      .sample_numel = PARAMETERS / 4,
                      .probability = 0.1f,
                      .key = {1, 2},
                      .scalars = &step,
                      .x = x,
                      .y = z};
    report(b, "dropout", work_dropout, &d, 2 * n * b->element, 0);
    sum_args sum = {.n = PARAMETERS, .alpha = 1.0f, .x = x, .out = take(b, sizeof(float))};
    WORKSPACE(b, sum, sum);
    report(b, "sum", work_sum, &sum, n * b->element, 0);
    strided_copy_args t = {
        .n_dims = 2, .shape = {2048, 4096}, .from_stride = {1, 2048}, .to_stride = {4096, 1}, .from = x, .to = z};
    report(b, "strided_copy (transpose)", work_strided_copy, &t, 2 * n * b->element, 0);
    t = (strided_copy_args){.n_dims = 4,
                            .shape = {4, 512, 64, 64},
                            .from_stride = {512 * 4096, 4096, 64, 1},
                            .to_stride = {512 * 4096, 64, 512 * 64, 1},
                            .from = x,
                            .to = z};
    report(b, "strided_copy (heads)", work_strided_copy, &t, 2 * n * b->element, 0);
}

static void bench_images(bench *b)
{
    conv2d_args c = {.batch = 32,
                     .in_channels = 32,
                     .in_h = 28,
                     .in_w = 28,
                     .out_channels = 64,
                     .kernel_h = 3,
                     .kernel_w = 3,
                     .out_h = 28,
                     .out_w = 28,
                     .stride_h = 1,
                     .stride_w = 1,
                     .padding_h = 1,
                     .padding_w = 1};
    int64_t area = 28 * 28, in = 32 * 32 * area, out = 32 * 64 * area;
    c.x = values(b, b->dtype, in), c.dx = values(b, b->dtype, in), c.y = values(b, b->dtype, out);
    c.dy = values(b, b->dtype, out), c.weight = values(b, b->dtype, 64 * 288), c.bias = values(b, b->dtype, 64);
    c.d_weight = values(b, FSDP_F32, 64 * 288), c.d_bias = values(b, FSDP_F32, 64);
    double flops = 2.0 * 32.0 * 64.0 * 288.0 * (double)area;
    WORKSPACE(b, conv2d_forward, c);
    report(b, "conv2d_forward", work_conv2d_forward, &c, 0, flops);
    WORKSPACE(b, conv2d_backward, c);
    report(b, "conv2d_backward", work_conv2d_backward, &c, 0, 2 * flops);
    batchnorm_args n = {.batch = 32,
                        .channels = 64,
                        .area = area,
                        .rows = 32,
                        .eps = 1e-5f,
                        .x = c.y,
                        .y = c.dy,
                        .weight = values(b, b->dtype, 64),
                        .bias = c.bias,
                        .sums = take(b, 129 * 8),
                        .mean = take(b, 256),
                        .rstd = take(b, 256),
                        .dy = c.dy,
                        .dx = values(b, b->dtype, out),
                        .d_weight = values(b, FSDP_F32, 64),
                        .d_bias = c.d_bias};
    double bytes = (double)out * b->element;
    report(b, "batchnorm_forward_reduce", work_batchnorm_forward_reduce, &n, bytes, 0);
    report(b, "batchnorm_forward_apply", work_batchnorm_forward_apply, &n, 2 * bytes, 0);
    report(b, "batchnorm_backward_reduce", work_batchnorm_backward_reduce, &n, 2 * bytes, 0);
    report(b, "batchnorm_backward_apply", work_batchnorm_backward_apply, &n, 3 * bytes, 0);
    pool2d_args p = {.planes = 32 * 64,
                     .in_h = 28,
                     .in_w = 28,
                     .out_h = 14,
                     .out_w = 14,
                     .kernel_h = 2,
                     .kernel_w = 2,
                     .stride_h = 2,
                     .stride_w = 2,
                     .x = c.y,
                     .y = values(b, b->dtype, out / 4),
                     .index = take(b, (size_t)out),
                     .dy = values(b, b->dtype, out / 4),
                     .dx = n.dx};
    report(b, "pool2d_forward (max)", work_pool2d_forward, &p, 1.25 * bytes, 0);
    report(b, "pool2d_backward (max)", work_pool2d_backward, &p, 1.25 * bytes, 0);
}

int main(int argc, char **argv)
{
    bench b = {.dtype = FSDP_F32, .only = argc > 3 ? argv[3] : NULL};
    simd_level level = cpu_best_level();
    for (int i = 0; argc > 2 && i < SIMD_LEVEL_COUNT; i++)
        level =
            i <= (int)cpu_best_level() && strcmp(cpu_level_name((simd_level)i), argv[2]) == 0 ? (simd_level)i : level;
    threads_set(0, 1);
    if ((argc > 1 && fsdp_dtype_parse(argv[1], &b.dtype) != FSDP_OK) ||
        device_open_cpu_level(CPU_GEMM_AUTO, level, &b.device) != FSDP_OK ||
        b.device->stream_create(b.device, 0, &b.stream) != FSDP_OK) {
        fprintf(stderr, "bench_kernels: %s\n", fsdp_last_error());
        return 2;
    }
    b.kernels = b.device->kernels;
    b.element = (double)fsdp_dtype_size(b.dtype);
    printf("%s, %s\n", b.device->description, fsdp_dtype_name(b.dtype));
    bench_attention(&b, "attention_forward (causal)", "attention_backward (causal)", true, false);
    bench_attention(&b, "attention_forward (relative bias)", "attention_backward (relative bias)", false, true);
    bench_rows(&b);
    bench_vocabulary(&b);
    bench_flat(&b);
    bench_images(&b);
    b.device->stream_free(b.stream);
    device_close(b.device);
    return 0;
}
