/* The CUDA device: every case of the common list, the sizes that the list leaves out, cuDNN against the own attention
 * kernel, products of training size, recorded graphs, caches, errors; then timings. Skipped (77) where there is no GPU.
 * Arguments choose among the tests: those whose name contains one of the words; "cases" stands for the whole case list.
 * For runs under a checker that makes everything slow: "untuned" takes products as the library suggests them, "brief"
 * leaves out the large sizes of the cases and runs each once. */
#include "device/cuda_timings.h"
#include "device/cuda_updates.h"
#include "device/cuda_vector_cases.h"

#include "base/file.h"

static bool brief;

/* Multiplications of the largest size that a brief run works on. */
#define BRIEF_WORK 800000

/* fp32 arithmetic throughout, but sums in another order than the CPU's and exp to two units in the last place. */
#define SLACK 2.0

/* The case, twice: right, and the same bits. Products of a shape are timed by the first run, so that comes before. */
static void case_matches_the_reference(void **state)
{
    const kernel_case *one = *state;
    cuda_set_cudnn(gpu, false);
    if (brief) {
        run_case_within(gpu, one, SLACK, BRIEF_WORK);
    } else {
        uint64_t first = run_case(gpu, one, SLACK), second = run_case(gpu, one, SLACK);
        assert_int_equal(first, second);
    }
    cuda_set_cudnn(gpu, true);
}

/* --- attention and products of training size --- */

static void cudnn_attention_matches_the_own_kernel(void **state)
{
    (void)state;
    bench b = start_bench();
    const struct {
        const char *name;
        fused_attention f;
    } all[] = {
        {"1B causal, grouped heads", llama_1b},
        {"the same, deterministic", {4, 2048, 32, 8, 64, true, true, FSDP_BF16}},
        {"heads of 128, fp16", {2, 512, 8, 4, 128, true, false, FSDP_F16}},
        {"odd length", {3, 1000, 4, 4, 64, true, false, FSDP_BF16}},
        {"not causal, very odd length", {2, 333, 6, 2, 64, false, false, FSDP_BF16}},
    };
    unsigned major = 0, minor = 0;
    const char *cudnn = strstr(gpu->description, "cuDNN ");
    assert_non_null(cudnn);
    assert_int_equal(sscanf(cudnn, "cuDNN %u.%u", &major, &minor), 2);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].f.length % 128 && major * 100 + minor < 916)
            print_message("%s: left to the own kernel before cuDNN 9.16\n", all[i].name);
        else
            cudnn_matches_the_own_kernel_on(&b, &all[i].f, all[i].name);
    }
    end_bench(&b);
}

static void deterministic_attention_gives_the_same_bits(void **state)
{
    (void)state;
    bench b = start_bench();
    fused_attention f = llama_1b;
    f.deterministic = true;
    int64_t numel = f.batch * f.length * fused_row(&f);
    attention_args a = fused_attention_make(&b, &f);
    MUST(gpu->kernels->attention_forward(b.s, &a));
    MUST(gpu->kernels->attention_backward(b.s, &a));
    float *first = bench_read(&b, a.d_q, numel);
    MUST(gpu->kernels->attention_backward(b.s, &a));
    float *second = bench_read(&b, a.d_q, numel);
    int different = memcmp(first, second, (size_t)numel * sizeof *first);
    free(first);
    free(second);
    assert_int_equal(different, 0);
    end_bench(&b);
}

/* The convolutions of the case list once more, by cuDNN: right, and the same bits every time. */
static void cudnn_convolution_matches_the_reference(void **state)
{
    (void)state;
    static const kernel_case convolution = {"conv2d", case_conv2d};
    conv2d_args a = {.batch = 8, .in_channels = 16, .in_h = 32, .in_w = 32, .out_channels = 32, .kernel_h = 3};
    a.kernel_w = 3, a.out_h = a.out_w = 32, a.stride_h = a.stride_w = a.padding_h = a.padding_w = 1;
    const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    for (int i = 0; i < 3; i++) {
        a.x.dtype = a.weight.dtype = a.y.dtype = a.dy.dtype = a.dx.dtype = types[i];
        assert_string_equal(cuda_conv2d_engine(gpu, &a, false), "cudnn");
        assert_string_equal(cuda_conv2d_engine(gpu, &a, true), "cudnn"); /* weight gradient in fp32 */
    }
    uint64_t first = run_case(gpu, &convolution, SLACK), second = run_case(gpu, &convolution, SLACK);
    assert_int_equal(first, second);
}

static void products_of_training_size_match_fp32(void **state)
{
    (void)state;
    bench b = start_bench();
    product_matches_fp32_on(&b, false, true, 8192, 3072, 2048, FSDP_BF16);
    product_matches_fp32_on(&b, false, false, 8192, 2048, 8192, FSDP_BF16);
    product_matches_fp32_on(&b, true, false, 2048, 8192, 8192, FSDP_F32);
    product_matches_fp32_on(&b, true, true, 1000, 1001, 999, FSDP_BF16);
    end_bench(&b);
}

/* --- graphs, caches, errors --- */

/* One block's worth of kernels, libraries included. */
static void enqueue_some(bench *b, const attention_args *a, const gemm_args *g, const rmsnorm_args *n)
{
    MUST(gpu->kernels->rmsnorm_forward(b->s, n));
    MUST(gpu->kernels->gemm(b->s, g));
    MUST(gpu->kernels->attention_forward(b->s, a));
    MUST(gpu->kernels->attention_backward(b->s, a));
}

static void replayed_graph_gives_the_same_bits(void **state)
{
    (void)state;
    bench b = start_bench();
    fused_attention f = {2, 512, 8, 2, 64, true, true, FSDP_BF16};
    int64_t row = fused_row(&f), tokens = f.batch * f.length, width = 512;
    attention_args a = fused_attention_make(&b, &f);
    rmsnorm_args n = {.rows = tokens,
                      .columns = width,
                      .eps = 1e-5f,
                      .x = bench_random(&b, FSDP_BF16, tokens * width, 1),
                      .weight = bench_random(&b, FSDP_BF16, width, 1),
                      .y = bench_random(&b, FSDP_BF16, tokens * width, 1),
                      .rstd = bench_floats(&b, tokens, 1)};
    gemm_args g = {.transpose_b = true,
                   .m = tokens,
                   .n = row,
                   .k = width,
                   .alpha = 0.1f,
                   .batch = 1,
                   .lda = width,
                   .ldb = width,
                   .ldc = row,
                   .ldd = row,
                   .a = n.y,
                   .b = bench_random(&b, FSDP_BF16, row * width, 1),
                   .c = a.q,
                   .d = a.q};
    g.workspace = bench_take(&b, gpu->kernels->gemm_workspace(gpu, &g));
    enqueue_some(&b, &a, &g, &n);
    float *direct = bench_read(&b, a.d_q, tokens * row);
    graph *recorded = NULL;
    MUST(gpu->graph_begin(b.s));
    enqueue_some(&b, &a, &g, &n);
    MUST(gpu->graph_end(b.s, &recorded));
    MUST(gpu->zero(b.s, a.d_q.p, (size_t)(tokens * row) * 2));
    for (int i = 0; i < 3; i++)
        MUST(gpu->graph_launch(b.s, recorded));
    float *replayed = bench_read(&b, a.d_q, tokens * row);
    int different = memcmp(direct, replayed, (size_t)(tokens * row) * sizeof *direct);
    free(direct);
    free(replayed);
    gpu->graph_free(recorded);
    assert_int_equal(different, 0);
    end_bench(&b);
}

static void chosen_algorithms_survive_a_round_trip(void **state)
{
    (void)state;
    char *bytes = NULL, *again = NULL;
    size_t n = 0, n_again = 0;
    device *other = NULL;
    bench b = start_bench();
    product_matches_fp32_on(&b, false, true, 8192, 3072, 2048, FSDP_BF16);
    end_bench(&b);
    MUST(gpu->autotune_export(gpu, &bytes, &n));
    MUST(device_open_cuda(0, &other));
    MUST(other->autotune_import(other, "exported", bytes, n));
    b = (bench){.d = other};
    MUST(other->stream_create(other, 0, &b.s));
    product_matches_fp32_on(&b, false, true, 8192, 3072, 2048, FSDP_BF16);
    MUST(other->autotune_export(other, &again, &n_again));
    assert_non_null(strstr(again, "8192x3072x2048"));
    other->stream_free(b.s);
    device_close(other);
    free(bytes);
    free(again);
    assert_int_not_equal(gpu->autotune_import(gpu, "damaged", "{\"cublaslt\": ", 13), FSDP_OK);
}

/* The text after the product's name: its algorithm. */
static char *algorithm_of(const char *choices, const char *product)
{
    const char *at = strstr(choices, product);
    at = at ? strstr(at, "\"algorithm\"") : NULL;
    at = at ? strchr(at + 11, ':') : NULL;
    return at ? strndup(at, strcspn(at, "\n")) : NULL;
}

/* Even for a product that this device has timed: ranks must agree on rank 0's. */
static void imported_choices_win_over_own_timing(void **state)
{
    (void)state;
    enum { M = 512, N = 768, K = 640 };
    static const char product[] = "512x768x640";
    bench b = start_bench();
    product_matches_fp32_on(&b, false, true, M, N, K, FSDP_BF16);
    char *bytes = NULL, *again = NULL;
    size_t n = 0;
    MUST(gpu->autotune_export(gpu, &bytes, &n));
    char *own = algorithm_of(bytes, product);
    if (!own) { /* only one candidate: nothing was timed */
        free(bytes);
        end_bench(&b);
        skip();
    }
    char *at = strstr(bytes, product), *words = strstr(at, "\"algorithm\": \"") + 14;
    words[7 * 17 + 15] =
        words[7 * 17 + 15] == '0' ? '1' : '0'; /* the last opaque word is not used by any algorithm of today */
    MUST(gpu->autotune_import(gpu, "changed", bytes, n));
    MUST(gpu->autotune_export(gpu, &again, &n));
    char *imported = algorithm_of(again, product);
    assert_non_null(imported);
    assert_string_not_equal(imported, own);
    product_matches_fp32_on(&b, false, true, M, N, K, FSDP_BF16);
    free(bytes);
    free(again);
    free(own);
    free(imported);
    end_bench(&b);
}

static void plans_are_kept_in_their_folder(void **state)
{
    (void)state;
    char folder[] = "/tmp/fsdp-plans-XXXXXX";
    assert_non_null(mkdtemp(folder));
    for (int round = 0; round < 2; round++) {
        device *d = NULL;
        MUST(device_open_cuda(0, &d));
        MUST(cuda_set_plan_folder(d, folder));
        bench b = {.d = d};
        MUST(d->stream_create(d, 0, &b.s));
        fused_attention f = {2, 512, 8, 2, 64, true, false, FSDP_BF16};
        cudnn_matches_the_own_kernel_on(&b, &f, round == 0 ? "compiled" : "loaded");
        d->stream_free(b.s);
        device_close(d);
    }
    MUST(file_remove_tree(folder));
}

static void too_much_memory_is_refused_with_what_is_free(void **state)
{
    (void)state;
    void *p = NULL;
    assert_int_equal(gpu->allocate(gpu, MEMORY_DEVICE, (size_t)1 << 46, &p), FSDP_ERR_MEMORY);
    assert_non_null(strstr(fsdp_last_error(), "free"));
    MUST(gpu->allocate(gpu, MEMORY_DEVICE, 1024, &p));
    gpu->release(gpu, MEMORY_DEVICE, p, 1024);
    device *none = NULL;
    assert_int_equal(device_open_cuda(999, &none), FSDP_ERR_UNSUPPORTED);
}

static void streams_wait_for_each_others_events(void **state)
{
    (void)state;
    enum { N = 1 << 22 };
    bench b = start_bench();
    stream *copies = NULL;
    event *ready = NULL;
    MUST(gpu->stream_create(gpu, 1, &copies));
    MUST(gpu->event_create(gpu, &ready));
    buffer x = bench_random(&b, FSDP_F32, N, 1);
    void *host = NULL;
    MUST(gpu->allocate(gpu, MEMORY_HOST, N * sizeof(float), &host));
    for (int i = 1; i <= 20; i++) {
        fill_args fill = {.n = N, .alpha = (float)i, .out = x};
        MUST(gpu->kernels->fill(b.s, &fill));
        MUST(gpu->event_record(b.s, ready));
        MUST(gpu->stream_wait(copies, ready));
        MUST(gpu->copy(copies, host, x.p, N * sizeof(float)));
        MUST(gpu->stream_synchronize(copies));
        assert_true(((float *)host)[0] == (float)i && ((float *)host)[N - 1] == (float)i);
    }
    gpu->release(gpu, MEMORY_HOST, host, N * sizeof(float));
    gpu->event_free(ready);
    gpu->stream_free(copies);
    end_bench(&b);
}

static bool is_chosen(const char *name, bool is_case, int n, char **words)
{
    bool any = false;
    for (int i = 1; i < n; i++) {
        if (strstr(name, words[i]) || (is_case && strcmp(words[i], "cases") == 0))
            return true;
        any = any || (strcmp(words[i], "untuned") != 0 && strcmp(words[i], "brief") != 0);
    }
    return !any;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest rest[] = {
        cmocka_unit_test(cudnn_attention_matches_the_own_kernel),
        cmocka_unit_test(deterministic_attention_gives_the_same_bits),
        cmocka_unit_test(cudnn_convolution_matches_the_reference),
        cmocka_unit_test(products_of_training_size_match_fp32),
        cmocka_unit_test(replayed_graph_gives_the_same_bits),
        cmocka_unit_test(chosen_algorithms_survive_a_round_trip),
        cmocka_unit_test(imported_choices_win_over_own_timing),
        cmocka_unit_test(plans_are_kept_in_their_folder),
        cmocka_unit_test(random_numbers_have_the_bits_of_the_host),
        cmocka_unit_test(masters_as_halves_are_updated_like_whole_ones),
        cmocka_unit_test(device_and_processor_update_to_the_same_bits),
        cmocka_unit_test(too_much_memory_is_refused_with_what_is_free),
        cmocka_unit_test(streams_wait_for_each_others_events),
        cmocka_unit_test(timings_of_flat_kernels),
        cmocka_unit_test(timings_of_rows),
        cmocka_unit_test(timings_of_products),
        cmocka_unit_test(timings_of_attention),
        cmocka_unit_test(timings_of_convolution),
    };
    struct CMUnitTest tests[N_KERNEL_CASES + N_VECTOR_CASES + sizeof rest / sizeof *rest];
    size_t n = 0;
    for (size_t i = 0; i < N_KERNEL_CASES + N_VECTOR_CASES; i++) {
        const kernel_case *one = i < N_KERNEL_CASES ? &kernel_cases[i] : &vector_cases[i - N_KERNEL_CASES];
        if (is_chosen(one->name, true, argc, argv))
            tests[n++] = (struct CMUnitTest){one->name, case_matches_the_reference, NULL, NULL, (void *)(uintptr_t)one};
    }
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++)
        if (is_chosen(rest[i].name, false, argc, argv))
            tests[n++] = rest[i];
    int unusable = open_first_gpu();
    if (unusable)
        return unusable;
    printf("%s\n", gpu->description);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "untuned") == 0)
            cuda_set_tuning(gpu, false);
        brief = brief || strcmp(argv[i], "brief") == 0;
    }
    int failed = _cmocka_run_group_tests("cuda", tests, n, NULL, NULL);
    device_close(gpu);
    return failed;
}
