/* Matrix products of the CPU device: ours in fp32 and bf16 beside oneDNN's sgemm. The three take turns in every round,
 * so that other work on the machine hits all three alike; their ratios are medians over rounds. A shape is a linear
 * layer: M tokens, N outputs, K inputs.
 *
 * The number of threads is OpenMP's (OMP_NUM_THREADS). Figures are GFLOP/s. --cpu_time counts the processor time of all
 * threads instead of the time that passes: GFLOP/s of one core, hardly troubled by others on the machine (set
 * OMP_WAIT_POLICY=passive). --fp32_blocks and --bf16_blocks try other block sizes, counted in tiles, and another depth
 * of a pass (k_step), to tune a kernel on a new processor. --shape M,N,K measures one shape. */
#include <math.h>
#include <omp.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "device/cpu/gemm/gemm.h"
#include "device/cpu/gemm/kernel.h"

#ifdef FSDP_WITH_ONEDNN
#include <dnnl.h>
enum { HAVE_ONEDNN = 1 };
#else
enum { HAVE_ONEDNN = 0 };
#endif

enum { N_CONTENDERS = 3 };

typedef struct layer_shape {
    int64_t tokens, outputs, inputs;
} layer_shape;

typedef struct options {
    bool quick, cpu_time;
    int rounds;
    layer_shape only; /* measured alone when it has tokens */
} options;

/* The three products of a linear layer. Operands are named as gemm_args names them. */
typedef enum variant { FORWARD_NT, INPUT_GRADIENT_NN, WEIGHT_GRADIENT_TN, N_VARIANTS } variant;

static const char *const variant_names[] = {"NT forward", "NN d_input", "TN d_weight"};

/* Operands of one case, in both dtypes. */
typedef struct operands {
    float *a, *b, *d;
    uint16_t *a_bf16, *b_bf16, *d_bf16;
} operands;

static gemm_args arguments(layer_shape s, variant v)
{
    gemm_args g = {.alpha = 1.0f, .batch = 1};
    switch (v) {
    case FORWARD_NT:
        g.transpose_b = true, g.m = s.tokens, g.n = s.outputs, g.k = s.inputs;
        break;
    case INPUT_GRADIENT_NN:
        g.m = s.tokens, g.n = s.inputs, g.k = s.outputs;
        break;
    default:
        g.transpose_a = true, g.m = s.outputs, g.n = s.inputs, g.k = s.tokens;
    }
    g.lda = g.transpose_a ? g.m : g.k;
    g.ldb = g.transpose_b ? g.k : g.n;
    g.ldc = g.ldd = g.n;
    return g;
}

static void fill(float *x, uint16_t *half, int64_t n, uint32_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        uint32_t bits;
        x[i] = (float)(int32_t)seed * 0x1p-31f;
        memcpy(&bits, &x[i], sizeof bits);
        half[i] = (uint16_t)(bits >> 16);
    }
}

static operands operands_create(const gemm_args *g)
{
    int64_t a = g->m * g->k, b = g->k * g->n, d = g->m * g->n;
    operands o = {.a = bench_take((size_t)a * 4),
                  .b = bench_take((size_t)b * 4),
                  .d = bench_take((size_t)d * 4),
                  .a_bf16 = bench_take((size_t)a * 2),
                  .b_bf16 = bench_take((size_t)b * 2),
                  .d_bf16 = bench_take((size_t)d * 2)};
    fill(o.a, o.a_bf16, a, 1);
    fill(o.b, o.b_bf16, b, 2);
    return o;
}

static void operands_free(const gemm_args *g, operands *o)
{
    size_t a = (size_t)(g->m * g->k), b = (size_t)(g->k * g->n), d = (size_t)(g->m * g->n);
    bench_give_back(o->a, a * 4), bench_give_back(o->b, b * 4), bench_give_back(o->d, d * 4);
    bench_give_back(o->a_bf16, a * 2), bench_give_back(o->b_bf16, b * 2), bench_give_back(o->d_bf16, d * 2);
}

static void run_onednn(const gemm_args *g, const operands *o)
{
#ifdef FSDP_WITH_ONEDNN
    dnnl_sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->m, g->n, g->k, 1.0f, o->a, g->lda, o->b,
               g->ldb, 0.0f, o->d, g->ldd);
#else
    (void)g, (void)o;
#endif
}

static void run_own(const cpu_gemm_set *set, gemm_args g, const operands *o, fsdp_dtype dtype, void *workspace)
{
    bool half = dtype == FSDP_BF16;
    g.a = (buffer){half ? (void *)o->a_bf16 : o->a, dtype};
    g.b = (buffer){half ? (void *)o->b_bf16 : o->b, dtype};
    g.c = g.d = (buffer){half ? (void *)o->d_bf16 : o->d, dtype};
    g.workspace = workspace;
    if (gemm_gemm(set, &g) != FSDP_OK)
        bench_fail("product");
}

/* How often `other` fits into the time of `base` in the same round. */
static double ratio_by_rounds(const double *base, const double *other, int n)
{
    double ratios[BENCH_SAMPLES];
    for (int i = 0; i < n; i++)
        ratios[i] = base[i] / other[i];
    return bench_median(ratios, n);
}

static void bench_case_of(const options *o, const cpu_gemm_set *set, layer_shape s, variant v)
{
    static bench_times times[N_CONTENDERS];
    static const char *const columns[] = {"oneDNN fp32", "fp32", "bf16"};
    gemm_args g = arguments(s, v);
    operands ops = operands_create(&g);
    void *workspace = bench_take(GEMM_WORKSPACE_LIMIT);
    for (int round = -1; round < o->rounds; round++) { /* round -1 warms up */
        for (int i = 0; i < N_CONTENDERS; i++) {
            times[i].n = round < 0 ? 0 : times[i].n;
            bench_moment begun = bench_now();
            if (i == 0)
                run_onednn(&g, &ops);
            else
                run_own(set, g, &ops, i == 1 ? FSDP_F32 : FSDP_BF16, workspace);
            if (round >= 0)
                bench_record(&times[i], begun);
        }
    }
    bench_text("product", variant_names[v]);
    bench_number("tokens", 0, (double)s.tokens);
    bench_number("outputs", 0, (double)s.outputs);
    bench_number("inputs", 0, (double)s.inputs);
    double *seconds[N_CONTENDERS];
    for (int i = 0; i < N_CONTENDERS; i++)
        seconds[i] = o->cpu_time ? times[i].cpu : times[i].wall;
    int n = times[0].n;
    double over_onednn = HAVE_ONEDNN ? ratio_by_rounds(seconds[0], seconds[1], n) : NAN;
    double over_fp32 = ratio_by_rounds(seconds[1], seconds[2], n);
    for (int i = 0; i < N_CONTENDERS; i++) { /* sorts the samples */
        double rate = 2e-9 * (double)g.m * (double)g.n * (double)g.k / bench_typical(seconds[i], n);
        bench_number(columns[i], 1, HAVE_ONEDNN || i > 0 ? rate : NAN);
    }
    bench_number("fp32/oneDNN", 3, over_onednn);
    bench_number("bf16/fp32", 3, over_fp32);
    bench_row();
    bench_give_back(workspace, GEMM_WORKSPACE_LIMIT);
    operands_free(&g, &ops);
}

static void bench_all(const options *o, const cpu_gemm_set *set)
{
    static const int64_t widths[] = {512, 2048, 5632}, tokens[] = {1024, 2048};
    layer_shape shapes[2 * 3 * 3 + 2];
    int n = 0;
    for (int t = 0; t < 2; t++)
        for (int i = 0; i < 9; i++)
            if (!o->quick || (t == 1 && i / 3 != i % 3))
                shapes[n++] = (layer_shape){tokens[t], widths[i / 3], widths[i % 3]};
    shapes[n++] = (layer_shape){2048, 32000, 512};
    shapes[n++] = (layer_shape){1, 2048, 2048};
    if (o->only.tokens) {
        n = 1;
        shapes[0] = o->only;
    }
    bench_title("%s, %d threads; GFLOP/s", gemm_describe(set), omp_get_max_threads());
    for (int i = 0; i < n; i++)
        for (int v = 0; v < N_VARIANTS; v++)
            bench_case_of(o, set, shapes[i], (variant)v);
}

static bool find_product(const char *name, cpu_gemm *out)
{
    static const char *const products[] = {"auto", "onednn", "amx", "avx512", "portable"};
    for (int i = 0; i < 5; i++)
        if (strcmp(name, products[i]) == 0) {
            *out = (cpu_gemm)i;
            return true;
        }
    return false;
}

/* The kernel with blocks and depth as the option gives them, or as it was. False: they are not three numbers. */
static bool with_blocks(const char *option, gemm_kernel *kernel)
{
    int sizes[3];
    if (!option)
        return true;
    if (bench_list(option, sizes, 3) != 3)
        return false;
    kernel->block_rows = sizes[0] * kernel->tile_rows;
    kernel->block_columns = sizes[1] * kernel->tile_columns;
    kernel->k_step = (sizes[2] + kernel->k_unit - 1) / kernel->k_unit * kernel->k_unit;
    return true;
}

static bool only_shape(const char *option, layer_shape *out)
{
    int sizes[3];
    if (!option)
        return true;
    if (bench_list(option, sizes, 3) != 3)
        return false;
    *out = (layer_shape){sizes[0], sizes[1], sizes[2]};
    return true;
}

static int usage(void)
{
    fprintf(stderr, "usage: bench gemm %s\n", case_gemm.usage);
    return 2;
}

static int run_gemm(int argc, char **argv)
{
    options o = {.rounds = 5};
    const char *product = "auto", *fp32_blocks = NULL, *bf16_blocks = NULL, *shape = NULL;
    const bench_option table[] = {{"quick", BENCH_SWITCH, &o.quick, 0, 0},
                                  {"cpu_time", BENCH_SWITCH, &o.cpu_time, 0, 0},
                                  {"rounds", BENCH_INT, &o.rounds, 1, 101},
                                  {"product", BENCH_TEXT, &product, 0, 0},
                                  {"fp32_blocks", BENCH_TEXT, &fp32_blocks, 0, 0},
                                  {"bf16_blocks", BENCH_TEXT, &bf16_blocks, 0, 0},
                                  {"shape", BENCH_TEXT, &shape, 0, 0},
                                  {NULL, BENCH_SWITCH, NULL, 0, 0}};
    cpu_gemm kind;
    cpu_gemm_set set;
    if (!bench_options(argc, argv, table) || !find_product(product, &kind) || !only_shape(shape, &o.only))
        return usage();
    if (gemm_choose(kind, &set) != FSDP_OK)
        bench_fail(product);
    gemm_kernel fp32 = *set.fp32, bf16 = *set.bf16;
    if (!with_blocks(fp32_blocks, &fp32) || !with_blocks(bf16_blocks, &bf16))
        return usage();
    set.fp32 = &fp32, set.bf16 = &bf16;
    bench_all(&o, &set);
    return 0;
}

const bench_case case_gemm = {
    .name = "gemm",
    .summary = "matrix products on the CPU, beside oneDNN's",
    .usage = "[--quick] [--cpu_time] [--rounds N] [--product auto|onednn|amx|avx512|portable] [--shape M,N,K] "
             "[--fp32_blocks ROWS,COLUMNS,DEPTH] [--bf16_blocks ROWS,COLUMNS,DEPTH]",
    .run = run_gemm};
