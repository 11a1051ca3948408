/* Matrix products on the CPU: every implementation this machine runs, in turn, against sums in double precision.
 * Operands end where nothing can be read or written. FSDP_TEST_SEED and FSDP_TEST_CASES draw other random products. */
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

#include "base/host/threads.h"
#include "device/cpu/gemm/probe.h"
#include "device/gemm_cases.h"

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

/* Rows or columns of which every kernel makes enough blocks for the threads to stream them: 8 pieces for each thread,
 * of at least 4 tiles or of half a block, the widest of which have 512 columns. */
enum { MANY = 2600 * TEST_THREADS };

static void an_operand_of_many_blocks_is_multiplied_whole(void **state)
{
    (void)state;
    for (int transposes = 0; transposes < 4; transposes++)
        for (int pair = 0; pair < 3; pair++) {
            product_shape wide = with_options(35, MANY, 17, transposes, pair, (pair + transposes) % 3);
            product_shape tall = with_options(MANY + 5, 35, 16, transposes, pair, (pair + transposes + 1) % 3);
            check_shape(&wide);
            check_shape(&tall);
        }
}

static void a_depth_beyond_one_chunk_is_summed_whole(void **state)
{
    static const int64_t depths[] = {17001, 17002, 17024}; /* the last one: rows of bf16 may stay in place */
    (void)state;
    for (int pair = 0; pair < 3; pair++)
        for (int transposes = 0; transposes < 4; transposes++) {
            product_shape s = with_options(35, 37, depths[(pair + transposes) % 3], transposes, pair, 4);
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

/* Sizes around those of tiles, or any. */
static int64_t draw_extent(int most)
{
    static const int edges[] = {1, 4, 5, 8, 9, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 63, 64, 65, 96, 97};
    return draw_below(&random_state, 2) ? edges[draw_below(&random_state, 20)] : 1 + draw_below(&random_state, most);
}

static product_shape draw_shape(void)
{
    enum { MOST_WORK = 200000 };
    int64_t m, n, k, batch;
    do {
        m = draw_extent(300), n = draw_extent(300), k = draw_extent(700), batch = 1;
        switch (draw_below(&random_state, 6)) {
        case 0:
            m = 1000 + draw_below(&random_state, 3000); /* enough of them to be streamed */
            break;
        case 1:
            n = 1000 + draw_below(&random_state, 3000);
            break;
        case 2:
            k = 8000 + draw_below(&random_state, 12000); /* several chunks */
            break;
        case 3:
            batch = 1 + draw_below(&random_state, 9);
            break;
        }
    } while (m * n * k * batch > MOST_WORK);
    if (draw_below(&random_state, 2))
        k = (int64_t)round_up((size_t)k, 32); /* rows may stay in place */
    product_shape s = with_options(m, n, k, draw_below(&random_state, 4), draw_below(&random_state, N_DTYPE_PAIRS),
                                   draw_below(&random_state, N_OPTIONS));
    s.batch = batch;
    s.padding = draw_below(&random_state, 3) ? draw_below(&random_state, 70) : 0;
    s.n_special = draw_below(&random_state, 3) ? 0 : draw_below(&random_state, 4);
    return s;
}

static void random_products_match_double_precision_and_keep_to_their_memory(void **state)
{
    (void)state;
    const char *given = getenv("FSDP_TEST_SEED"), *cases = getenv("FSDP_TEST_CASES");
    int first = given ? atoi(given) : 1, n = cases ? atoi(cases) : 80;
    for (int seed = first; seed < first + n; seed++) {
        random_state = (uint64_t)seed * 977;
        product_shape s = draw_shape();
        product_case c;
        case_create(&s, &c);
        for (int i = 0; i < n_implementations; i++) {
            implementation who = implementations[i];
            who.set.max_threads = 1 + draw_below(&random_state, TEST_THREADS);
            snprintf(who.name, sizeof who.name, "FSDP_TEST_SEED=%d FSDP_TEST_CASES=1, %s on %d threads", seed,
                     who.set.bf16->name, who.set.max_threads);
            case_run(&who.set, &c);
            case_check(&who, &s, &c);
        }
        case_free(&c);
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

/* The same product by kernels with other blocks, two of which pack every row and column: blocks of a tile are never
 * streamed. */
static void check_bits_of_blocks(const implementation *who, product_case *c, const void *first)
{
    static const int blocks[][3] = {{1, 1, 1}, {3, 2, 8}, {16, 32, 1000}};
    const cpu_gemm_set *set = &who->set;
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        gemm_kernel fp32 = other_blocks(set->fp32, blocks[i][0], blocks[i][1], blocks[i][2]);
        gemm_kernel bf16 = other_blocks(set->bf16, blocks[i][0], blocks[i][1], blocks[i][2]);
        fp32.reads_rows = fp32.reads_rows && i == 2;
        bf16.reads_rows = bf16.reads_rows && i == 2;
        fp32.copies_columns = fp32.copies_columns && i == 2;
        cpu_gemm_set other = {.fp32 = &fp32, .bf16 = &bf16, .max_threads = set->max_threads};
        case_run(&other, c);
        assert_same_bits(who, c, first, TEST_THREADS);
    }
}

/* So blocks may be chosen for each processor, and a rank's sums do not depend on how many samples it holds. */
static void bits_depend_neither_on_blocks_nor_on_the_other_rows(void **state)
{
    static const struct {
        int64_t m, n, k;
        int transposes;
    } shapes[] = {{150, 130, 1100, 2}, {150, 130, 1088, 0}, {70, 70, 1024, 2},  {40, MANY, 32, 2},
                  {MANY, 40, 32, 1},   {150, 170, 1100, 1}, {700, 230, 300, 0}, {200, 97, 9000, 1}};
    (void)state;
    for (int who = 0; who < n_implementations; who++)
        for (int pair = 0; pair < 2 * (int)(sizeof shapes / sizeof shapes[0]) && implementations[who].own; pair++) {
            const cpu_gemm_set *set = &implementations[who].set;
            product_shape s = with_options(shapes[pair / 2].m, shapes[pair / 2].n, shapes[pair / 2].k,
                                           shapes[pair / 2].transposes, pair % 2, 0);
            product_case c;
            case_create(&s, &c);
            case_run(set, &c);
            size_t bytes = (size_t)c.d_numel * fsdp_dtype_size(s.out);
            char *first = malloc(bytes);
            assert_non_null(first);
            memcpy(first, c.args.d.p, bytes);
            check_bits_of_blocks(&implementations[who], &c, first);
            c.args.m = min_i64(61, s.m - 9); /* the first rows alone, as a rank that holds fewer samples has them */
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
                        g.transpose_a = i % 2, g.lda = g.transpose_a ? g.m : g.k;
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
        cmocka_unit_test(an_operand_of_many_blocks_is_multiplied_whole),
        cmocka_unit_test(a_depth_beyond_one_chunk_is_summed_whole),
        cmocka_unit_test(many_small_products_of_a_batch_are_each_right),
        cmocka_unit_test(random_products_match_double_precision_and_keep_to_their_memory),
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
