/* What tests of products stand on: the implementations that this machine runs, and a product whose operands end where
 * nothing can be read or written, with its result in double precision. */
#ifndef TESTS_DEVICE_GEMM_CASES_H
#define TESTS_DEVICE_GEMM_CASES_H

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checked.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/gemm/convert.h"
#include "device/cpu/gemm/gemm.h"
#include "device/cpu/gemm/kernel.h"
#include "support/draw.h"

/* ---- the implementations ---- */

enum { MAX_IMPLEMENTATIONS = 8, TEST_THREADS = 4 };

typedef struct implementation {
    char name[200];
    cpu_gemm_set set;
    bool own; /* no oneDNN in it: bits do not depend on the number of threads, and it never allocates */
} implementation;

static implementation implementations[MAX_IMPLEMENTATIONS];
static int n_implementations;

static void add_kernels(const char *name, const gemm_kernel *fp32, const gemm_kernel *bf16)
{
    implementation *i = &implementations[n_implementations++];
    *i = (implementation){.own = true};
    i->set = (cpu_gemm_set){.fp32 = fp32, .bf16 = bf16, .max_threads = TEST_THREADS};
    snprintf(i->name, sizeof i->name, "%s", name);
}

static int list_implementations(void **state)
{
    static const struct {
        cpu_gemm product;
        const char *name;
    } choices[] = {{CPU_GEMM_AUTO, "auto"},
                   {CPU_GEMM_ONEDNN, "onednn"},
                   {CPU_GEMM_AMX, "amx"},
                   {CPU_GEMM_AVX512, "avx512"},
                   {CPU_GEMM_PORTABLE, "portable"}};
    (void)state;
    threads_set(TEST_THREADS, 1);
    for (size_t c = 0; c < sizeof choices / sizeof choices[0]; c++) {
        implementation *i = &implementations[n_implementations];
        if (gemm_choose(choices[c].product, &i->set) != FSDP_OK) {
            print_message("skipped: %s (%s)\n", choices[c].name, fsdp_last_error());
            continue;
        }
        snprintf(i->name, sizeof i->name, "%s: %s", choices[c].name, gemm_describe(&i->set));
        i->own = !i->set.onednn;
        n_implementations++;
    }
#if defined(__x86_64__)
    /* Kernels that a faster one hides on this machine. */
    if (cpu_features_get()->avx512)
        add_kernels("bf16 widened for AVX-512", &avx512_fp32, &avx512_fp32);
    if (cpu_features_get()->avx512_bf16)
        add_kernels("bf16 with vdpbf16ps", &avx512_fp32, &avx512_bf16);
#endif
    for (int i = 0; i < n_implementations; i++)
        print_message("implementation %s\n", implementations[i].name);
    return 0;
}

/* ---- memory between pages that nobody may touch ---- */

typedef struct fenced {
    char *pages;
    size_t n_bytes;
} fenced;

/* *out: `bytes` that end where the page behind begins. */
static fenced fenced_take(size_t bytes, void **out)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), within = round_up(bytes, page);
    fenced f = {mmap(NULL, within + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), within + 2 * page};
    assert_true(f.pages != MAP_FAILED);
    if (within > 0)
        assert_int_equal(mprotect(f.pages + page, within, PROT_READ | PROT_WRITE), 0);
    *out = f.pages + page + within - bytes;
    return f;
}

static void fenced_free(fenced *f)
{
    assert_int_equal(munmap(f->pages, f->n_bytes), 0);
}

/* ---- one case: its shape, its memory, its result in double precision ---- */

typedef struct product_shape {
    int64_t m, n, k, batch;
    bool transpose_a, transpose_b;
    fsdp_dtype in, out;
    float alpha, beta;
    bool bias, separate_c;
    int64_t padding; /* elements between the end of a stored row and the start of the next */
    int n_special;   /* elements of each operand that are infinite or NaN */
} product_shape;

enum { MAX_FENCED = 5 };

typedef struct product_case {
    gemm_args args;
    int64_t a_numel, b_numel, c_numel, d_numel;
    fenced memory[MAX_FENCED];
    int n_fenced;
    void *d_start;            /* what d holds before the product */
    double *expected, *scale; /* (batch, m, n); scale: the same sums of absolute values */
} product_case;

static uint64_t random_state = 1;

static float random_value(void)
{
    return (float)(int32_t)(draw_state(&random_state) >> 32) * 0x1p-31f;
}

/* Up to the end of the last row. */
static int64_t stored_numel(int64_t batch, int64_t rows, int64_t width, int64_t ld)
{
    return batch * rows > 0 ? (batch * rows - 1) * ld + width : 0;
}

/* Memory for `numel` elements, exactly. Rows are filled, the padding between is NaN. */
static buffer random_buffer(product_case *c, fsdp_dtype dtype, int64_t numel, int64_t width, int64_t ld)
{
    buffer b = {NULL, dtype};
    c->memory[c->n_fenced++] = fenced_take((size_t)numel * fsdp_dtype_size(dtype), &b.p);
    for (int64_t i = 0; i < numel; i++)
        convert_store(b.p, dtype, i, ld && i % ld >= width ? NAN : random_value());
    return b;
}

static void make_special(buffer b, int64_t numel, int n)
{
    static const float values[] = {NAN, INFINITY, -INFINITY};
    for (int i = 0; i < n && numel > 0; i++)
        convert_store(b.p, b.dtype, draw_below(&random_state, (int)numel), values[draw_below(&random_state, 3)]);
}

static double value(const buffer *b, int64_t i)
{
    return (double)convert_load(b->p, b->dtype, i);
}

static void expect(product_case *c)
{
    const gemm_args *g = &c->args;
    for (int64_t x = 0; x < g->batch; x++)
        for (int64_t i = 0; i < g->m; i++)
            for (int64_t j = 0; j < g->n; j++) {
                double sum = 0, scale = 0;
                for (int64_t k = 0; k < g->k; k++) {
                    double a = value(&g->a, x * g->stride_a + (g->transpose_a ? k * g->lda + i : i * g->lda + k));
                    double b = value(&g->b, x * g->stride_b + (g->transpose_b ? j * g->ldb + k : k * g->ldb + j));
                    sum += a * b;
                    scale += fabs(a * b);
                }
                sum *= (double)g->alpha, scale *= fabs((double)g->alpha);
                if (g->beta != 0) {
                    double old = (double)g->beta * value(&g->c, x * g->stride_c + i * g->ldc + j);
                    sum += old, scale += fabs(old);
                }
                if (g->bias.p) {
                    sum += value(&g->bias, j);
                    scale += fabs(value(&g->bias, j));
                }
                c->expected[(x * g->m + i) * g->n + j] = sum;
                c->scale[(x * g->m + i) * g->n + j] = scale;
            }
}

static void case_create(const product_shape *s, product_case *c)
{
    gemm_args *g = &c->args;
    c->n_fenced = 0;
    *g = (gemm_args){.transpose_a = s->transpose_a, .transpose_b = s->transpose_b, .m = s->m, .n = s->n, .k = s->k};
    g->alpha = s->alpha, g->beta = s->beta, g->batch = s->batch;
    int64_t a_width = s->transpose_a ? s->m : s->k, a_rows = s->transpose_a ? s->k : s->m;
    int64_t b_width = s->transpose_b ? s->k : s->n, b_rows = s->transpose_b ? s->n : s->k;
    g->lda = a_width + s->padding, g->ldb = b_width + 2 * s->padding, g->ldd = s->n + s->padding;
    g->ldc = s->separate_c ? s->n + 3 * s->padding : g->ldd;
    g->stride_a = a_rows * g->lda, g->stride_b = b_rows * g->ldb, g->stride_c = s->m * g->ldc,
    g->stride_d = s->m * g->ldd;
    c->a_numel = stored_numel(s->batch, a_rows, a_width, g->lda);
    c->b_numel = stored_numel(s->batch, b_rows, b_width, g->ldb);
    c->c_numel = stored_numel(s->batch, s->m, s->n, g->ldc), c->d_numel = stored_numel(s->batch, s->m, s->n, g->ldd);
    g->a = random_buffer(c, s->in, c->a_numel, a_width, g->lda);
    g->b = random_buffer(c, s->in, c->b_numel, b_width, g->ldb);
    make_special(g->a, c->a_numel, s->n_special);
    make_special(g->b, c->b_numel, s->n_special);
    g->d = random_buffer(c, s->out, c->d_numel, s->beta == 0 || s->separate_c ? 0 : s->n, g->ldd);
    g->c = g->d;
    if (s->separate_c)
        g->c = random_buffer(c, s->out == FSDP_F32 ? FSDP_BF16 : FSDP_F32, c->c_numel, s->beta == 0 ? 0 : s->n, g->ldc);
    if (s->bias)
        g->bias = random_buffer(c, s->in, s->n, s->n, 0);
    size_t bytes = (size_t)c->d_numel * fsdp_dtype_size(s->out);
    c->d_start = malloc(bytes + 1);
    c->expected = malloc((size_t)(s->batch * s->m * s->n + 1) * sizeof(double));
    c->scale = malloc((size_t)(s->batch * s->m * s->n + 1) * sizeof(double));
    assert_true(c->d_start && c->expected && c->scale);
    memcpy(c->d_start, g->d.p, bytes);
    expect(c);
}

static void case_free(product_case *c)
{
    while (c->n_fenced > 0)
        fenced_free(&c->memory[--c->n_fenced]);
    free(c->d_start), free(c->expected), free(c->scale);
}

/* Starts d over and multiplies, with a workspace of the size asked for that holds NaNs. */
static void case_run(const cpu_gemm_set *set, product_case *c)
{
    memcpy(c->args.d.p, c->d_start, (size_t)c->d_numel * fsdp_dtype_size(c->args.d.dtype));
    size_t bytes = gemm_workspace_bytes(set, &c->args);
    assert_true(bytes <= GEMM_WORKSPACE_LIMIT);
    assert_true(bytes % 256 == 0); /* so that the end of a page is one of it, and its beginning is aligned */
    fenced workspace = fenced_take(bytes, &c->args.workspace);
    memset(c->args.workspace, 0xff, bytes);
    if (gemm_gemm(set, &c->args) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    fenced_free(&workspace);
}

static double tolerance(const product_case *c, double expected, double scale)
{
    static const double steps[] = {[FSDP_F32] = 0x1p-24, [FSDP_BF16] = 0x1p-8, [FSDP_F16] = 0x1p-11};
    double sums = scale * 0x1p-23 * (2 + sqrt((double)c->args.k));
    return sums + steps[c->args.d.dtype] * fabs(expected) * 1.01 + (c->args.d.dtype == FSDP_F16 ? 0x1p-24 : 1e-37);
}

static void case_check(const implementation *who, const product_shape *s, const product_case *c)
{
    const gemm_args *g = &c->args;
    for (int64_t at = 0; at < c->d_numel; at++) {
        int64_t row = at / g->ldd, column = at % g->ldd;
        if (column >= g->n) {
            size_t size = fsdp_dtype_size(g->d.dtype);
            if (memcmp((char *)g->d.p + (size_t)at * size, (char *)c->d_start + (size_t)at * size, size) != 0)
                fail_msg("%s: element %lld between rows was written", who->name, (long long)at);
            continue;
        }
        double expected = c->expected[row * g->n + column], got = value(&g->d, at);
        double limit = tolerance(c, expected, c->scale[row * g->n + column]);
        bool right = isfinite(expected) ? fabs(got - expected) <= limit
                     : isnan(expected)  ? isnan(got)
                                        : got == expected;
        if (!right)
            fail_msg("%s: %lld x %lld x %lld, batch %lld, %c%c, %s to %s, alpha %g beta %g bias %d separate c %d "
                     "padding %lld: "
                     "row %lld column %lld is %.9g, not %.9g (limit %g)",
                     who->name, (long long)s->m, (long long)s->n, (long long)s->k, (long long)s->batch,
                     s->transpose_a ? 'T' : 'N', s->transpose_b ? 'T' : 'N', fsdp_dtype_name(s->in),
                     fsdp_dtype_name(s->out), (double)s->alpha, (double)s->beta, s->bias, s->separate_c,
                     (long long)s->padding, (long long)row, (long long)column, got, expected, limit);
    }
}

static void check_shape(const product_shape *s)
{
    product_case c;
    case_create(s, &c);
    for (int i = 0; i < n_implementations; i++) {
        case_run(&implementations[i].set, &c);
        case_check(&implementations[i], s, &c);
    }
    case_free(&c);
}

#endif
