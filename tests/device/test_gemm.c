/* Matrix products on the CPU: every implementation this machine runs, in turn, against sums in double precision. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <malloc.h>
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/checked.h"
#include "base/host/threads.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/gemm/gemm.h"
#include "device/cpu/gemm/convert.h"
#include "device/cpu/gemm/kernel.h"
#include "device/cpu/gemm/probe.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

/* ---- counting allocations: the calls of the C library, wrapped ---- */

static volatile int64_t n_allocations
    __attribute__((unused)); /* volatile: compilers assume that malloc changes nothing else */

#ifndef SANITIZED
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

static void count_allocation(void)
{
    __atomic_fetch_add(&n_allocations, 1, __ATOMIC_RELAXED);
}

__attribute__((visibility("default"))) void *malloc(size_t bytes)
{
    count_allocation();
    return __libc_malloc(bytes);
}

__attribute__((visibility("default"))) void *calloc(size_t n, size_t bytes)
{
    count_allocation();
    return __libc_calloc(n, bytes);
}

__attribute__((visibility("default"))) void *realloc(void *memory, size_t bytes)
{
    count_allocation();
    return __libc_realloc(memory, bytes);
}

__attribute__((visibility("default"))) void *aligned_alloc(size_t alignment, size_t bytes)
{
    count_allocation();
    return __libc_memalign(alignment, bytes);
}

__attribute__((visibility("default"))) void *memalign(size_t alignment, size_t bytes)
{
    count_allocation();
    return __libc_memalign(alignment, bytes);
}

__attribute__((visibility("default"))) int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    count_allocation();
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : 12;
}
#endif

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

/* ---- one case: its shape, its memory, its result in double precision ---- */

typedef struct product_shape {
    int64_t m, n, k, batch;
    bool transpose_a, transpose_b;
    fsdp_dtype in, out;
    float alpha, beta;
    bool bias, separate_c;
    int64_t padding; /* elements between the end of a stored row and the start of the next */
} product_shape;

typedef struct product_case {
    gemm_args args;
    int64_t a_numel, b_numel, c_numel, d_numel;
    void *d_start;            /* what d holds before the product */
    double *expected, *scale; /* (batch, m, n); scale: the same sums of absolute values */
} product_case;

static uint32_t random_state = 1;

static float random_value(void)
{
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(int32_t)random_state * 0x1p-31f;
}

static int64_t stored_numel(int64_t batch, int64_t rows, int64_t ld)
{
    return batch * rows * ld;
}

/* Memory for `numel` elements, exactly: sanitizers see a step beyond. Rows are filled, the padding between is NaN. */
static buffer random_buffer(fsdp_dtype dtype, int64_t numel, int64_t width, int64_t ld)
{
    buffer b = {calloc((size_t)numel + 1, fsdp_dtype_size(dtype)), dtype};
    assert_non_null(b.p);
    for (int64_t i = 0; i < numel; i++)
        convert_store(b.p, dtype, i, ld && i % ld >= width ? NAN : random_value());
    return b;
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
    *g = (gemm_args){.transpose_a = s->transpose_a, .transpose_b = s->transpose_b, .m = s->m, .n = s->n, .k = s->k};
    g->alpha = s->alpha, g->beta = s->beta, g->batch = s->batch;
    int64_t a_width = s->transpose_a ? s->m : s->k, a_rows = s->transpose_a ? s->k : s->m;
    int64_t b_width = s->transpose_b ? s->k : s->n, b_rows = s->transpose_b ? s->n : s->k;
    g->lda = a_width + s->padding, g->ldb = b_width + 2 * s->padding, g->ldd = s->n + s->padding;
    g->ldc = s->separate_c ? s->n + 3 * s->padding : g->ldd;
    g->stride_a = a_rows * g->lda, g->stride_b = b_rows * g->ldb, g->stride_c = s->m * g->ldc,
    g->stride_d = s->m * g->ldd;
    c->a_numel = stored_numel(s->batch, a_rows, g->lda), c->b_numel = stored_numel(s->batch, b_rows, g->ldb);
    c->c_numel = stored_numel(s->batch, s->m, g->ldc), c->d_numel = stored_numel(s->batch, s->m, g->ldd);
    g->a = random_buffer(s->in, c->a_numel, a_width, g->lda);
    g->b = random_buffer(s->in, c->b_numel, b_width, g->ldb);
    g->d = random_buffer(s->out, c->d_numel, s->beta == 0 || s->separate_c ? 0 : s->n, g->ldd);
    g->c = g->d;
    if (s->separate_c)
        g->c = random_buffer(s->out == FSDP_F32 ? FSDP_BF16 : FSDP_F32, c->c_numel, s->beta == 0 ? 0 : s->n, g->ldc);
    if (s->bias)
        g->bias = random_buffer(s->in, s->n, s->n, 0);
    size_t bytes = ((size_t)c->d_numel + 1) * fsdp_dtype_size(s->out);
    c->d_start = malloc(bytes);
    c->expected = malloc((size_t)(s->batch * s->m * s->n + 1) * sizeof(double));
    c->scale = malloc((size_t)(s->batch * s->m * s->n + 1) * sizeof(double));
    assert_true(c->d_start && c->expected && c->scale);
    memcpy(c->d_start, g->d.p, bytes);
    expect(c);
}

static void case_free(product_case *c)
{
    gemm_args *g = &c->args;
    if (g->c.p != g->d.p)
        free(g->c.p);
    free(g->a.p), free(g->b.p), free(g->d.p), free(g->bias.p), free(c->d_start), free(c->expected), free(c->scale);
}

/* Starts d over and multiplies, with a workspace of the size asked for that holds NaNs. */
static void case_run(const cpu_gemm_set *set, product_case *c)
{
    memcpy(c->args.d.p, c->d_start, ((size_t)c->d_numel + 1) * fsdp_dtype_size(c->args.d.dtype));
    size_t bytes = gemm_workspace_bytes(set, &c->args);
    assert_true(bytes <= GEMM_WORKSPACE_LIMIT);
    void *workspace = NULL;
    if (bytes) {
        assert_int_equal(posix_memalign(&workspace, 256, bytes), 0);
        memset(workspace, 0xff, bytes);
    }
    c->args.workspace = workspace;
    if (gemm_gemm(set, &c->args) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    free(workspace);
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
        if (!(fabs(got - expected) <= limit))
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

static const fsdp_dtype dtype_pairs[][2] = {{FSDP_F32, FSDP_F32}, {FSDP_BF16, FSDP_F32}, {FSDP_BF16, FSDP_BF16},
                                            {FSDP_F16, FSDP_F32}, {FSDP_F16, FSDP_F16},  {FSDP_F32, FSDP_BF16},
                                            {FSDP_F32, FSDP_F16}, {FSDP_BF16, FSDP_F16}};

enum { N_DTYPE_PAIRS = sizeof dtype_pairs / sizeof dtype_pairs[0], N_OPTIONS = 6 };

static product_shape with_options(int64_t m, int64_t n, int64_t k, int transposes, int pair, int option)
{
    static const struct {
        float alpha, beta;
        bool bias, separate_c;
        int64_t padding, batch;
    } options[N_OPTIONS] = {{1, 0, false, false, 0, 1},    {1, 1, false, false, 5, 1}, {0.5f, 0, true, true, 1, 1},
                            {-2, 0.25f, true, true, 3, 2}, {1, 1, true, false, 0, 3},  {0, 2, false, true, 16, 1}};
    product_shape s = {.m = m, .n = n, .k = k, .transpose_a = transposes & 1, .transpose_b = transposes >> 1};
    s.in = dtype_pairs[pair][0], s.out = dtype_pairs[pair][1];
    s.alpha = options[option].alpha, s.beta = options[option].beta, s.bias = options[option].bias;
    s.separate_c = options[option].separate_c, s.padding = options[option].padding, s.batch = options[option].batch;
    return s;
}

static void small_products_match_double_precision_in_every_way_they_can_be_asked_for(void **state)
{
    static const int64_t shapes[][3] = {{1, 1, 1},   {1, 33, 17}, {3, 17, 33},  {17, 1, 64}, {17, 33, 3},
                                        {8, 70, 31}, {9, 40, 32}, {14, 32, 48}, {33, 35, 7}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int transposes = 0; transposes < 4; transposes++)
            for (int pair = 0; pair < N_DTYPE_PAIRS; pair++)
                for (int option = (pair + transposes) % 2; option < N_OPTIONS; option += 2) {
                    product_shape s = with_options(shapes[i][0], shapes[i][1], shapes[i][2], transposes, pair, option);
                    check_shape(&s);
                }
}

static void larger_products_match_double_precision(void **state)
{
    static const int64_t shapes[][3] = {{64, 64, 64},  {100, 257, 33},  {257, 100, 257}, {129, 31, 520},
                                        {15, 48, 770}, {28, 300, 1000}, {200, 520, 70},  {5, 1000, 130},
                                        {1, 700, 900}, {65, 66, 385}};
    int turn = 0;
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int transposes = 0; transposes < 4; transposes++, turn++) {
            product_shape s = with_options(shapes[i][0], shapes[i][1], shapes[i][2], transposes, turn % 3,
                                           (turn * 5 + transposes) % N_OPTIONS);
            check_shape(&s);
        }
}

static void a_depth_beyond_one_chunk_is_summed_whole(void **state)
{
    (void)state;
    for (int pair = 0; pair < 3; pair++)
        for (int transposes = 0; transposes < 4; transposes += 3) {
            product_shape s = with_options(19, 37, 17001 + pair, transposes, pair, 4);
            s.batch = 1;
            check_shape(&s);
        }
}

static void many_small_products_of_a_batch_are_each_right(void **state)
{
    (void)state;
    for (int transposes = 0; transposes < 4; transposes++) {
        product_shape s = with_options(24, 20, 40, transposes, transposes % 3, 1);
        s.batch = 37;
        check_shape(&s);
    }
}

static void without_depth_the_result_is_what_was_there_and_the_bias(void **state)
{
    (void)state;
    for (int pair = 0; pair < N_DTYPE_PAIRS; pair++)
        for (int option = 0; option < N_OPTIONS; option++) {
            product_shape s = with_options(option % 2 ? 4 : 33, 18, 0, 0, pair, option);
            check_shape(&s);
        }
}

static void empty_results_are_left_alone(void **state)
{
    static const int64_t shapes[][3] = {{0, 5, 5}, {5, 0, 5}, {0, 0, 0}};
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        product_shape s = with_options(shapes[i][0], shapes[i][1], shapes[i][2], 2, 0, 1);
        check_shape(&s);
        s.m = 4, s.n = 4, s.batch = 0;
        check_shape(&s);
    }
}

/* ---- determinism ---- */

static void assert_same_bits(const implementation *who, product_case *c, const void *first, int threads)
{
    if (memcmp(first, c->args.d.p, (size_t)c->d_numel * fsdp_dtype_size(c->args.d.dtype)) != 0)
        fail_msg("%s: other bits with %d threads", who->name, threads);
}

static void own_products_have_the_same_bits_for_any_number_of_threads(void **state)
{
    static const int64_t shapes[][4] = {{300, 257, 1003, 1}, {6, 900, 333, 1}, {40, 40, 40, 23}, {130, 140, 9000, 1}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int pair = 0; pair < 3; pair++) {
            product_shape s = with_options(shapes[i][0], shapes[i][1], shapes[i][2], pair, pair, 0);
            s.batch = shapes[i][3];
            product_case c;
            case_create(&s, &c);
            size_t bytes = (size_t)c.d_numel * fsdp_dtype_size(s.out);
            void *first = malloc(bytes);
            assert_non_null(first);
            for (int who = 0; who < n_implementations; who++) {
                if (!implementations[who].own)
                    continue;
                for (int threads = 1; threads <= TEST_THREADS; threads++) {
                    omp_set_num_threads(threads);
                    case_run(&implementations[who].set, &c);
                    if (threads == 1)
                        memcpy(first, c.args.d.p, bytes);
                    assert_same_bits(&implementations[who], &c, first, threads);
                }
                cpu_gemm_set one_thread = implementations[who].set; /* other blocks, another super-block */
                one_thread.max_threads = 1;
                case_run(&one_thread, &c);
                assert_same_bits(&implementations[who], &c, first, 1);
            }
            free(first);
            case_free(&c);
        }
}

static void a_repeated_product_has_the_same_bits(void **state)
{
    (void)state;
    product_shape s = with_options(190, 210, 700, 2, 0, 0);
    product_case c;
    case_create(&s, &c);
    size_t bytes = (size_t)c.d_numel * fsdp_dtype_size(s.out);
    void *first = malloc(bytes);
    assert_non_null(first);
    for (int who = 0; who < n_implementations; who++)
        for (int round = 0; round < 4; round++) {
            case_run(&implementations[who].set, &c);
            if (round == 0)
                memcpy(first, c.args.d.p, bytes);
            assert_same_bits(&implementations[who], &c, first, TEST_THREADS);
        }
    free(first);
    case_free(&c);
}

/* The same kernel with other blocks, and passes of another depth. */
static gemm_kernel other_blocks(const gemm_kernel *kernel, int rows, int columns, int k_units)
{
    gemm_kernel other = *kernel;
    other.block_rows = rows * kernel->tile_rows, other.block_columns = columns * kernel->tile_columns;
    other.k_step = k_units * kernel->k_unit;
    return other;
}

/* So blocks may be chosen for each processor, and a rank's sums do not depend on how many samples it holds. */
static void bits_depend_neither_on_blocks_nor_on_the_other_rows(void **state)
{
    static const int blocks[][3] = {{1, 1, 1}, {3, 2, 8}, {16, 32, 1000}};
    (void)state;
    for (int who = 0; who < n_implementations; who++)
        for (int pair = 0; pair < 2 && implementations[who].own; pair++) {
            const cpu_gemm_set *set = &implementations[who].set;
            product_shape s = with_options(150, 130, 1100, 2, pair, 0);
            product_case c;
            case_create(&s, &c);
            case_run(set, &c);
            size_t bytes = (size_t)c.d_numel * fsdp_dtype_size(s.out);
            char *first = malloc(bytes);
            assert_non_null(first);
            memcpy(first, c.args.d.p, bytes);
            for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
                gemm_kernel fp32 = other_blocks(set->fp32, blocks[i][0], blocks[i][1], blocks[i][2]);
                gemm_kernel bf16 = other_blocks(set->bf16, blocks[i][0], blocks[i][1], blocks[i][2]);
                cpu_gemm_set other = {.fp32 = &fp32, .bf16 = &bf16, .max_threads = set->max_threads};
                case_run(&other, &c);
                assert_same_bits(&implementations[who], &c, first, TEST_THREADS);
            }
            c.args.m = 61; /* the first rows alone, as a rank that holds fewer samples has them */
            case_run(set, &c);
            assert_memory_equal(first, c.args.d.p, (size_t)(c.args.m * c.args.ldd) * fsdp_dtype_size(s.out));
            free(first);
            case_free(&c);
        }
}

/* ---- memory ---- */

static void no_shape_asks_for_more_workspace_than_the_limit(void **state)
{
    static const int64_t sizes[] = {1, 9, 100, 2048, 5632, 16384, 128256, 1000000};
    (void)state;
    for (int who = 0; who < n_implementations; who++)
        for (int threads = 1; threads <= 128; threads *= 2)
            for (int i = 0; i < 8 * 8 * 8; i++)
                for (int64_t batch = 1; batch <= 4096; batch *= 64)
                    for (int pair = 0; pair < 2; pair++) {
                        gemm_args g = {.m = sizes[i % 8], .n = sizes[i / 8 % 8], .k = sizes[i / 64], .batch = batch};
                        g.a.dtype = g.b.dtype = pair ? FSDP_BF16 : FSDP_F32;
                        cpu_gemm_set set = implementations[who].set;
                        set.max_threads = threads;
                        assert_true(gemm_workspace_bytes(&set, &g) <= GEMM_WORKSPACE_LIMIT);
                    }
}

static void own_products_allocate_nothing_once_the_threads_exist(void **state)
{
#ifdef SANITIZED
    (void)state;
    skip();
#else
    (void)state;
    omp_set_num_threads(TEST_THREADS);
    static const int64_t shapes[][4] = {{300, 257, 603, 1}, {6, 900, 333, 1}, {40, 40, 40, 23}};
    int64_t before = n_allocations;
    void *volatile taken = malloc(8);
    free(taken);
    assert_true(n_allocations > before); /* the counter counts */
    for (int i = 0; i < 3 * 3; i++) {
        product_shape s = with_options(shapes[i / 3][0], shapes[i / 3][1], shapes[i / 3][2], 2, i % 3, 0);
        s.batch = shapes[i / 3][3];
        product_case c;
        case_create(&s, &c);
        for (int who = 0; who < n_implementations; who++) {
            const cpu_gemm_set *set = &implementations[who].set;
            if (!implementations[who].own)
                continue;
            void *workspace = NULL;
            size_t bytes = gemm_workspace_bytes(set, &c.args);
            assert_int_equal(posix_memalign(&workspace, 256, bytes + 1), 0);
            c.args.workspace = workspace;
            assert_int_equal(gemm_gemm(set, &c.args), FSDP_OK);
            before = n_allocations;
            for (int step = 0; step < 3; step++)
                assert_int_equal(gemm_gemm(set, &c.args), FSDP_OK);
            if (n_allocations != before)
                fail_msg("%s: %lld allocations in 3 products", implementations[who].name,
                         (long long)(n_allocations - before));
            free(workspace);
        }
        case_free(&c);
    }
#endif
}

/* ---- refusals ---- */

static void a_forced_choice_that_cannot_run_is_refused_with_the_reason(void **state)
{
    cpu_gemm_set set;
    (void)state;
    if (gemm_probe_amx()) {
        assert_int_equal(gemm_choose(CPU_GEMM_AMX, &set), FSDP_ERR_UNSUPPORTED);
        assert_non_null(strstr(fsdp_last_error(), "AMX"));
    } else {
        assert_int_equal(gemm_choose(CPU_GEMM_AMX, &set), FSDP_OK);
        assert_non_null(strstr(gemm_describe(&set), "bf16 own AMX"));
    }
    if (!cpu_features_get()->avx512)
        assert_int_equal(gemm_choose(CPU_GEMM_AVX512, &set), FSDP_ERR_UNSUPPORTED);
#ifndef FSDP_WITH_ONEDNN
    assert_int_equal(gemm_choose(CPU_GEMM_ONEDNN, &set), FSDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(fsdp_last_error(), "oneDNN"));
#endif
}

static void operands_of_two_dtypes_negative_sizes_and_no_workspace_are_refused(void **state)
{
    float x[64 * 64] = {0}, y[64 * 64] = {0};
    gemm_args good = {.m = 20, .n = 20, .k = 20, .alpha = 1, .batch = 1, .lda = 20, .ldb = 20, .ldc = 20, .ldd = 20};
    (void)state;
    good.a = good.b = (buffer){x, FSDP_F32};
    good.c = good.d = (buffer){y, FSDP_F32};
    cpu_gemm_set set;
    assert_int_equal(gemm_choose(CPU_GEMM_PORTABLE, &set), FSDP_OK);
    gemm_args g = good;
    g.b.dtype = FSDP_BF16;
    assert_int_equal(gemm_gemm(&set, &g), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "fp32 and bf16"));
    g = good, g.m = -1;
    assert_int_equal(gemm_gemm(&set, &g), FSDP_ERR_INPUT);
    g = good, g.a.dtype = g.b.dtype = FSDP_I32;
    assert_int_equal(gemm_gemm(&set, &g), FSDP_ERR_INPUT);
    assert_int_equal(gemm_gemm(&set, &good), FSDP_ERR_STATE);
    assert_non_null(strstr(fsdp_last_error(), "workspace"));
}

static void the_probe_notices_a_kernel_that_sums_wrongly(void **state)
{
    (void)state;
    assert_true(gemm_probe_kernel(&gemm_portable));
    gemm_kernel wrong = gemm_portable;
    wrong.pack_b = gemm_portable.pack_a; /* half the width it should have */
    assert_false(gemm_probe_kernel(&wrong));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_products_match_double_precision_in_every_way_they_can_be_asked_for),
        cmocka_unit_test(larger_products_match_double_precision),
        cmocka_unit_test(a_depth_beyond_one_chunk_is_summed_whole),
        cmocka_unit_test(many_small_products_of_a_batch_are_each_right),
        cmocka_unit_test(without_depth_the_result_is_what_was_there_and_the_bias),
        cmocka_unit_test(empty_results_are_left_alone),
        cmocka_unit_test(own_products_have_the_same_bits_for_any_number_of_threads),
        cmocka_unit_test(a_repeated_product_has_the_same_bits),
        cmocka_unit_test(bits_depend_neither_on_blocks_nor_on_the_other_rows),
        cmocka_unit_test(no_shape_asks_for_more_workspace_than_the_limit),
        cmocka_unit_test(own_products_allocate_nothing_once_the_threads_exist),
        cmocka_unit_test(a_forced_choice_that_cannot_run_is_refused_with_the_reason),
        cmocka_unit_test(operands_of_two_dtypes_negative_sizes_and_no_workspace_are_refused),
        cmocka_unit_test(the_probe_notices_a_kernel_that_sums_wrongly),
    };
    return cmocka_run_group_tests(tests, list_implementations, NULL);
}
