/* CPU kernels that `fsdp bench kernel` does not time, since no decoder step has them: those of T5 and GPT-2, of images,
 * and flat ones, at the shapes of a 512-wide model on 4 x 512 tokens. --level chooses the instruction set. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/host/threads.h"
#include "bench.h"
#include "bench/timer.h"
#include "device/cpu/cpu_device.h"

enum { ROWS = 2048, LENGTH = 512, WIDTH = 512, FFN = 1408, HEADS = 8, PARAMETERS = 8 << 20 };

typedef struct shapes {
    fsdp_dtype dtype;
    double element; /* bytes */
} shapes;

KERNELS(BENCH_CALL, BENCH_CALL)

static void time_relative_attention(bench_timer *t, const shapes *s)
{
    int64_t row = 3 * WIDTH, batch = ROWS / LENGTH, dim = WIDTH / HEADS, span = 2 * LENGTH - 1;
    buffer qkv = bench_timer_values(t, s->dtype, ROWS * row), d_qkv = bench_timer_values(t, s->dtype, ROWS * row);
    size_t column = WIDTH * (size_t)s->element;
    attention_args a = {.batch = batch,
                        .q_length = LENGTH,
                        .kv_length = LENGTH,
                        .q_heads = HEADS,
                        .kv_heads = HEADS,
                        .head_dim = dim,
                        .scale = 0.125f,
                        .q = qkv,
                        .k = qkv,
                        .v = qkv,
                        .q_row = row,
                        .k_row = row,
                        .v_row = row,
                        .out = bench_timer_values(t, s->dtype, ROWS * WIDTH),
                        .lse = bench_timer_zeros(t, ROWS * HEADS),
                        .d_out = bench_timer_values(t, s->dtype, ROWS * WIDTH),
                        .d_q = d_qkv,
                        .d_k = d_qkv,
                        .d_v = d_qkv,
                        .bias = bench_timer_values(t, FSDP_F32, HEADS * span),
                        .bias_query = -1,
                        .bias_key = 1,
                        .bias_head = span,
                        .d_bias_first = 1 - LENGTH,
                        .d_bias_numel = HEADS * span,
                        .deterministic = true};
    float *d_bias = bench_timer_zeros(t, (size_t)(HEADS * span));
    if (t->status != FSDP_OK)
        return;
    a.k.p = (char *)qkv.p + column, a.v.p = (char *)qkv.p + 2 * column;
    a.d_k.p = (char *)d_qkv.p + column, a.d_v.p = (char *)d_qkv.p + 2 * column;
    a.bias.p = (float *)a.bias.p + LENGTH - 1;
    a.d_bias = d_bias + LENGTH - 1;
    double products = (double)(batch * HEADS * LENGTH * LENGTH * dim);
    BENCH_WORKSPACE(t, attention_forward, a);
    bench_timer_run(t, "attention, relative bias", "4 x 8 x 512", call_attention_forward, &a, 4 * products, 0);
    BENCH_WORKSPACE(t, attention_backward, a);
    bench_timer_run(t, "its gradient", "4 x 8 x 512", call_attention_backward, &a, 10 * products, 0);
    bench_timer_free_all(t);
}

static void time_layernorm(bench_timer *t, const shapes *s)
{
    double n = (double)ROWS * WIDTH * s->element;
    layernorm_args l = {.rows = ROWS,
                        .columns = WIDTH,
                        .eps = 1e-5f,
                        .x = bench_timer_values(t, s->dtype, ROWS * WIDTH),
                        .weight = bench_timer_values(t, s->dtype, WIDTH),
                        .bias = bench_timer_values(t, s->dtype, WIDTH),
                        .y = bench_timer_values(t, s->dtype, ROWS * WIDTH),
                        .mean = bench_timer_zeros(t, ROWS),
                        .rstd = bench_timer_zeros(t, ROWS),
                        .dy = bench_timer_values(t, s->dtype, ROWS * WIDTH),
                        .dx = bench_timer_values(t, s->dtype, ROWS * WIDTH),
                        .d_weight = bench_timer_values(t, FSDP_F32, WIDTH),
                        .d_bias = bench_timer_values(t, FSDP_F32, WIDTH)};
    bench_timer_run(t, "layernorm", "2048 x 512", call_layernorm_forward, &l, 0, 2 * n);
    BENCH_WORKSPACE(t, layernorm_backward, l);
    bench_timer_run(t, "its gradient", "2048 x 512", call_layernorm_backward, &l, 0, 3 * n);
    bench_timer_free_all(t);
}

static void time_activations(bench_timer *t, const shapes *s)
{
    double n = (double)ROWS * FFN * s->element;
    gated_args g = {.kind = ACTIVATION_GELU_TANH,
                    .rows = ROWS,
                    .columns = FFN,
                    .x = bench_timer_values(t, s->dtype, ROWS * 2 * FFN),
                    .y = bench_timer_values(t, s->dtype, ROWS * FFN),
                    .dy = bench_timer_values(t, s->dtype, ROWS * FFN),
                    .dx = bench_timer_values(t, s->dtype, ROWS * 2 * FFN)};
    bench_timer_run(t, "gated gelu (tanh)", "2048 x 1408", call_gated_forward, &g, 0, 3 * n);
    bench_timer_run(t, "its gradient", "2048 x 1408", call_gated_backward, &g, 0, 5 * n);
    activation_args a = {.kind = ACTIVATION_GELU_ERF, .n = ROWS * FFN, .x = g.y, .y = g.dy, .dy = g.dy, .dx = g.dx};
    bench_timer_run(t, "gelu (erf)", "2048 x 1408", call_activation_forward, &a, 0, 2 * n);
    bench_timer_run(t, "its gradient", "2048 x 1408", call_activation_backward, &a, 0, 3 * n);
    column_sum_args c = {.rows = ROWS, .columns = FFN, .x = g.y, .out = bench_timer_values(t, FSDP_F32, FFN)};
    BENCH_WORKSPACE(t, column_sum, c);
    bench_timer_run(t, "column sum", "2048 x 1408", call_column_sum, &c, 0, n);
    bench_timer_free_all(t);
}

static void time_flat(bench_timer *t, const shapes *s)
{
    const char *shape = "8 Mi";
    const step_scalars step = {.step = 3, .first_sample = 12};
    double n = (double)PARAMETERS * s->element;
    buffer x = bench_timer_values(t, s->dtype, PARAMETERS), y = bench_timer_values(t, s->dtype, PARAMETERS),
           z = bench_timer_values(t, s->dtype, PARAMETERS);
    multiply_args m = {.n = PARAMETERS, .a = x, .b = y, .out = z};
    bench_timer_run(t, "multiply", shape, call_multiply, &m, 0, 3 * n);
    fill_args f = {.n = PARAMETERS, .alpha = 1.0f, .out = z};
    bench_timer_run(t, "fill", shape, call_fill, &f, 0, n);
    dropout_args d = {.samples = 4,
                      .sample_numel = PARAMETERS / 4,
                      .probability = 0.1f,
                      .key = {1, 2},
                      .scalars = bench_timer_put(t, &step, sizeof step),
                      .x = x,
                      .y = z};
    bench_timer_run(t, "dropout", shape, call_dropout, &d, 0, 2 * n);
    sum_args sum = {.n = PARAMETERS, .alpha = 1.0f, .x = x, .out = bench_timer_zeros(t, 1)};
    BENCH_WORKSPACE(t, sum, sum);
    bench_timer_run(t, "sum", shape, call_sum, &sum, 0, n);
    strided_copy_args c = {
        .n_dims = 2, .shape = {2048, 4096}, .from_stride = {1, 2048}, .to_stride = {4096, 1}, .from = x, .to = z};
    bench_timer_run(t, "transpose", "2048 x 4096", call_strided_copy, &c, 0, 2 * n);
    c = (strided_copy_args){.n_dims = 4,
                            .shape = {4, 512, 64, 64},
                            .from_stride = {512 * 4096, 4096, 64, 1},
                            .to_stride = {512 * 4096, 64, 512 * 64, 1},
                            .from = x,
                            .to = z};
    bench_timer_run(t, "heads apart", "4 x 512 x 64 x 64", call_strided_copy, &c, 0, 2 * n);
    bench_timer_free_all(t);
}

static void time_convolution(bench_timer *t, const shapes *s)
{
    int64_t area = 28 * 28, in = 32 * 32 * area, out = 32 * 64 * area;
    double flops = 2.0 * 32.0 * 64.0 * 288.0 * (double)area;
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
                     .padding_w = 1,
                     .x = bench_timer_values(t, s->dtype, in),
                     .dx = bench_timer_values(t, s->dtype, in),
                     .y = bench_timer_values(t, s->dtype, out),
                     .dy = bench_timer_values(t, s->dtype, out),
                     .weight = bench_timer_values(t, s->dtype, 64 * 288),
                     .bias = bench_timer_values(t, s->dtype, 64),
                     .d_weight = bench_timer_values(t, FSDP_F32, 64 * 288),
                     .d_bias = bench_timer_values(t, FSDP_F32, 64)};
    BENCH_WORKSPACE(t, conv2d_forward, c);
    bench_timer_run(t, "conv2d 3 x 3", "32 x 32>64 x 28 x 28", call_conv2d_forward, &c, flops, 0);
    BENCH_WORKSPACE(t, conv2d_backward, c);
    bench_timer_run(t, "its gradients", "32 x 32>64 x 28 x 28", call_conv2d_backward, &c, 2 * flops, 0);
    bench_timer_free_all(t);
}

static void time_images(bench_timer *t, const shapes *s)
{
    const char *shape = "32 x 64 x 28 x 28";
    int64_t area = 28 * 28, numel = 32 * 64 * area;
    double bytes = (double)numel * s->element;
    batchnorm_args n = {.batch = 32,
                        .channels = 64,
                        .area = area,
                        .rows = 32,
                        .eps = 1e-5f,
                        .x = bench_timer_values(t, s->dtype, numel),
                        .y = bench_timer_values(t, s->dtype, numel),
                        .weight = bench_timer_values(t, s->dtype, 64),
                        .bias = bench_timer_values(t, s->dtype, 64),
                        .sums = bench_timer_take(t, 129 * 8),
                        .mean = bench_timer_take(t, 256),
                        .rstd = bench_timer_take(t, 256),
                        .dy = bench_timer_values(t, s->dtype, numel),
                        .dx = bench_timer_values(t, s->dtype, numel),
                        .d_weight = bench_timer_values(t, FSDP_F32, 64),
                        .d_bias = bench_timer_values(t, FSDP_F32, 64)};
    bench_timer_run(t, "batch norm, sums", shape, call_batchnorm_forward_reduce, &n, 0, bytes);
    bench_timer_run(t, "batch norm", shape, call_batchnorm_forward_apply, &n, 0, 2 * bytes);
    bench_timer_run(t, "its gradient, sums", shape, call_batchnorm_backward_reduce, &n, 0, 2 * bytes);
    bench_timer_run(t, "its gradient", shape, call_batchnorm_backward_apply, &n, 0, 3 * bytes);
    pool2d_args p = {.planes = 32 * 64,
                     .in_h = 28,
                     .in_w = 28,
                     .out_h = 14,
                     .out_w = 14,
                     .kernel_h = 2,
                     .kernel_w = 2,
                     .stride_h = 2,
                     .stride_w = 2,
                     .x = n.x,
                     .y = bench_timer_values(t, s->dtype, numel / 4),
                     .index = bench_timer_take(t, (size_t)numel),
                     .dy = bench_timer_values(t, s->dtype, numel / 4),
                     .dx = n.dx};
    bench_timer_run(t, "max pool 2 x 2", shape, call_pool2d_forward, &p, 0, 1.25 * bytes);
    bench_timer_run(t, "its gradient", shape, call_pool2d_backward, &p, 0, 1.25 * bytes);
    bench_timer_free_all(t);
}

static void report(const fsdp_bench_kernels *r)
{
    for (int i = 0; i < r->n; i++) {
        bench_text("kernel", r->rows[i].name);
        bench_text("shape", r->rows[i].shape);
        bench_number("ms", 3, r->rows[i].milliseconds);
        bool products = r->rows[i].tflops > 0;
        bench_number("GFLOP/s", 1, products ? r->rows[i].tflops * 1e3 : NAN);
        bench_number("GB/s", 1, products ? NAN : r->rows[i].gigabytes);
        bench_row();
    }
}

static bool find_level(const char *name, simd_level *out)
{
    *out = cpu_best_level();
    for (int i = 0; name && i <= (int)cpu_best_level(); i++)
        if (strcmp(cpu_level_name((simd_level)i), name) == 0) {
            *out = (simd_level)i;
            return true;
        }
    return name == NULL;
}

static int run_kernels(int argc, char **argv)
{
    const char *dtype = "fp32", *level_name = NULL;
    const bench_option table[] = {{"dtype", BENCH_TEXT, &dtype, 0, 0},
                                  {"level", BENCH_TEXT, &level_name, 0, 0},
                                  {NULL, BENCH_SWITCH, NULL, 0, 0}};
    static void (*const groups[])(bench_timer *, const shapes *) = {
        time_relative_attention, time_layernorm, time_activations, time_flat, time_convolution, time_images};
    static fsdp_bench_kernels result = FSDP_BENCH_KERNELS_INIT;
    bench_timer t;
    shapes s;
    device *d;
    stream *compute;
    simd_level level;
    if (!bench_options(argc, argv, table) || fsdp_dtype_parse(dtype, &s.dtype) != FSDP_OK ||
        !find_level(level_name, &level)) {
        fprintf(stderr, "usage: bench kernels %s\n", case_kernels.usage);
        return 2;
    }
    s.element = (double)fsdp_dtype_size(s.dtype);
    threads_set(0, 1);
    if (device_open_cpu_level(CPU_GEMM_AUTO, level, &d) != FSDP_OK || d->stream_create(d, 0, &compute) != FSDP_OK ||
        bench_timer_open(&t, d, compute, &result) != FSDP_OK)
        bench_fail("kernels");
    bench_title("%s, %s", d->description, fsdp_dtype_name(s.dtype));
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        groups[i](&t, &s);
    if (t.status != FSDP_OK)
        bench_fail("kernels");
    report(&result);
    bench_timer_close(&t);
    d->stream_free(compute);
    device_close(d);
    return 0;
}

const bench_case case_kernels = {.name = "kernels",
                                 .summary = "CPU kernels that `fsdp bench kernel` does not time",
                                 .usage = "[--dtype fp32|bf16|fp16] [--level baseline|AVX2|AVX-512]",
                                 .run = run_kernels};
