/* Times matrix products on the CPU: oneDNN called directly, our fp32 and our bf16, one after the other in every round,
 * so that a noisy machine troubles all three alike. A shape is a linear layer: M tokens, N outputs, K inputs.
 *
 *     bench_product [--json] [--quick] [--best] [--cpu-time] [--rounds R] [--product auto|onednn|amx|avx512|portable]
 *                   [--bf16-blocks ROWS,COLUMNS,DEPTH]
 *
 * The number of threads is OpenMP's (OMP_NUM_THREADS). Figures are GFLOP/s, medians over the rounds, or with
 * --best those of the quickest round. --cpu-time counts the processor time of all threads instead of the time that
 * passes: GFLOP/s of one core, hardly troubled by others on the machine (set OMP_WAIT_POLICY=passive). --bf16-blocks
 * tries other block sizes for the bf16 kernel, counted in tiles, and another depth of a pass (k_step), to tune it on a
 * new processor. */
#include <omp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"
#include "device/cpu/gemm/gemm.h"
#include "device/cpu/gemm/kernel.h"

#ifdef FSDP_WITH_ONEDNN
#include <dnnl.h>
#endif

enum { MAX_ROUNDS = 101, N_CONTENDERS = 3, HUGE_PAGE = 2 << 20 };

typedef struct options {
    bool json, quick, best, cpu_time;
    int rounds;
    cpu_gemm product;
    int rows, columns, depth; /* --bf16-blocks; 0: the kernel's own */
} options;

typedef struct layer_shape {
    int64_t tokens, outputs, inputs;
} layer_shape;

/* The three products of a linear layer. Operands are named as gemm_args names them. */
typedef enum variant { FORWARD_NT, INPUT_GRADIENT_NN, WEIGHT_GRADIENT_TN, N_VARIANTS } variant;

static const char *const variant_names[] = {"NT forward", "NN d_input", "TN d_weight"};

/* Operands of one case, in both dtypes. */
typedef struct operands {
    float *a, *b, *d;
    uint16_t *a_bf16, *b_bf16, *d_bf16;
} operands;

typedef struct contender {
    double seconds[MAX_ROUNDS];
} contender;

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

static void *take(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, HUGE_PAGE, bytes ? bytes : 1) != 0) {
        fprintf(stderr, "bench_product: out of memory (%zu bytes)\n", bytes);
        exit(1);
    }
    madvise(memory, bytes, MADV_HUGEPAGE); /* as device memory is */
    memset(memory, 0, bytes);
    return memory;
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
    operands o;
    int64_t a = g->m * g->k, b = g->k * g->n, d = g->m * g->n;
    o.a = take((size_t)a * 4), o.b = take((size_t)b * 4), o.d = take((size_t)d * 4);
    o.a_bf16 = take((size_t)a * 2), o.b_bf16 = take((size_t)b * 2), o.d_bf16 = take((size_t)d * 2);
    fill(o.a, o.a_bf16, a, 1);
    fill(o.b, o.b_bf16, b, 2);
    return o;
}

static void operands_free(operands *o)
{
    free(o->a), free(o->b), free(o->d), free(o->a_bf16), free(o->b_bf16), free(o->d_bf16);
}

static double now(const options *o)
{
    struct timespec t;
    if (!o->cpu_time)
        return clock_seconds();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double time_onednn(const options *how, const gemm_args *g, const operands *o)
{
#ifdef FSDP_WITH_ONEDNN
    double start = now(how);
    dnnl_sgemm(g->transpose_a ? 'T' : 'N', g->transpose_b ? 'T' : 'N', g->m, g->n, g->k, 1.0f, o->a, g->lda, o->b,
               g->ldb, 0.0f, o->d, g->ldd);
    return now(how) - start;
#else
    (void)how, (void)g, (void)o;
    return 0.0;
#endif
}

static double time_own(const options *how, const cpu_gemm_set *set, gemm_args g, const operands *o, fsdp_dtype dtype,
                       void *workspace)
{
    bool half = dtype == FSDP_BF16;
    g.a = (buffer){half ? (void *)o->a_bf16 : o->a, dtype};
    g.b = (buffer){half ? (void *)o->b_bf16 : o->b, dtype};
    g.c = g.d = (buffer){half ? (void *)o->d_bf16 : o->d, dtype};
    g.workspace = workspace;
    double start = now(how);
    if (gemm_gemm(set, &g) != FSDP_OK) {
        fprintf(stderr, "bench_product: %s\n", fsdp_last_error());
        exit(1);
    }
    return now(how) - start;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double typical(contender *c, const options *o)
{
    qsort(c->seconds, (size_t)o->rounds, sizeof(double), compare);
    return c->seconds[o->best ? 0 : o->rounds / 2];
}

static void print_row(const options *o, layer_shape s, variant v, const double rate[N_CONTENDERS], bool first)
{
    double fp32 = rate[0] > 0 ? rate[1] / rate[0] : 0, bf16 = rate[2] / rate[1];
    if (o->json)
        printf(
            "%s\n  {\"tokens\": %lld, \"outputs\": %lld, \"inputs\": %lld, \"variant\": \"%s\", \"onednn_fp32\": %.1f, "
            "\"fp32\": %.1f, \"bf16\": %.1f, \"fp32_to_onednn\": %.3f, \"bf16_to_fp32\": %.3f}",
            first ? "" : ",", (long long)s.tokens, (long long)s.outputs, (long long)s.inputs, variant_names[v], rate[0],
            rate[1], rate[2], fp32, bf16);
    else
        printf("%5lld %6lld %5lld  %-12s %9.1f %9.1f %9.1f %10.3f %10.3f\n", (long long)s.tokens, (long long)s.outputs,
               (long long)s.inputs, variant_names[v], rate[0], rate[1], rate[2], fp32, bf16);
    fflush(stdout);
}

static void bench_case(const options *o, const cpu_gemm_set *set, layer_shape s, variant v, double rate[N_CONTENDERS])
{
    static contender contenders[N_CONTENDERS];
    gemm_args g = arguments(s, v);
    operands ops = operands_create(&g);
    void *workspace = take(GEMM_WORKSPACE_LIMIT);
    for (int round = -1; round < o->rounds; round++) { /* round -1 warms up and is overwritten */
        int at = round < 0 ? 0 : round;
        contenders[0].seconds[at] = time_onednn(o, &g, &ops);
        contenders[1].seconds[at] = time_own(o, set, g, &ops, FSDP_F32, workspace);
        contenders[2].seconds[at] = time_own(o, set, g, &ops, FSDP_BF16, workspace);
    }
    double work = 2e-9 * (double)g.m * (double)g.n * (double)g.k;
    for (int i = 0; i < N_CONTENDERS; i++) {
        double seconds = typical(&contenders[i], o);
        rate[i] = seconds > 0 ? work / seconds : 0;
    }
    free(workspace);
    operands_free(&ops);
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
    if (o->json)
        printf("{\"product\": \"%s\", \"threads\": %d, \"unit\": \"GFLOP/s\", \"cases\": [", gemm_describe(set),
               omp_get_max_threads());
    else
        printf("%s, %d threads; GFLOP/s\n    M      N     K  product      oneDNN fp32  fp32      bf16  fp32/oneDNN  "
               "bf16/fp32\n",
               gemm_describe(set), omp_get_max_threads());
    for (int i = 0; i < n; i++)
        for (int v = 0; v < N_VARIANTS; v++) {
            double rate[N_CONTENDERS];
            bench_case(o, set, shapes[i], (variant)v, rate);
            print_row(o, shapes[i], (variant)v, rate, i == 0 && v == 0);
        }
    if (o->json)
        printf("\n]}\n");
}

static bool parse(int argc, char **argv, options *o)
{
    static const char *const products[] = {"auto", "onednn", "amx", "avx512", "portable"};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0)
            o->json = true;
        else if (strcmp(argv[i], "--quick") == 0)
            o->quick = true;
        else if (strcmp(argv[i], "--best") == 0)
            o->best = true;
        else if (strcmp(argv[i], "--cpu-time") == 0)
            o->cpu_time = true;
        else if (strcmp(argv[i], "--rounds") == 0 && i + 1 < argc)
            o->rounds = atoi(argv[++i]);
        else if (strcmp(argv[i], "--bf16-blocks") == 0 && i + 1 < argc) {
            if (sscanf(argv[++i], "%d,%d,%d", &o->rows, &o->columns, &o->depth) != 3 || o->rows < 1 || o->columns < 1 ||
                o->depth < 1)
                return false;
        } else if (strcmp(argv[i], "--product") == 0 && i + 1 < argc) {
            int p = 0;
            for (i++; p < 5 && strcmp(argv[i], products[p]) != 0; p++)
                ;
            if (p == 5)
                return false;
            o->product = (cpu_gemm)p;
        } else
            return false;
    }
    return o->rounds >= 1 && o->rounds <= MAX_ROUNDS;
}

int main(int argc, char **argv)
{
    options o = {.rounds = 5, .product = CPU_GEMM_AUTO};
    cpu_gemm_set set;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr,
                "usage: bench_product [--json] [--quick] [--best] [--cpu-time] [--rounds 1..%d] "
                "[--product auto|onednn|amx|avx512|portable] [--bf16-blocks ROWS,COLUMNS,DEPTH]\n",
                MAX_ROUNDS);
        return 2;
    }
    if (gemm_choose(o.product, &set) != FSDP_OK) {
        fprintf(stderr, "bench_product: %s\n", fsdp_last_error());
        return 1;
    }
    gemm_kernel tuned = *set.bf16;
    if (o.rows) {
        tuned.block_rows = o.rows * tuned.tile_rows;
        tuned.block_columns = o.columns * tuned.tile_columns;
        tuned.k_step = (o.depth + tuned.k_unit - 1) / tuned.k_unit * tuned.k_unit;
        set.bf16 = &tuned;
    }
    bench_all(&o, &set);
    return 0;
}
