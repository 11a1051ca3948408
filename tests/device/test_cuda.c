/* The CUDA device: every case of the common list, the sizes that the list leaves out, cuDNN against the own attention
 * kernel, products of training size, recorded graphs, caches, errors; then timings. Skipped (77) where there is no GPU.
 * Arguments choose among the tests: those whose name contains one of the words; "cases" stands for the whole case list.
 * For runs under a checker that makes everything slow: "untuned" takes products as the library suggests them, "brief"
 * leaves out the large sizes of the cases and runs each once. */
#include "device/cuda_timings.h"

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"

static device *gpu;
static bool brief;

static bench start_bench(void)
{
    bench b = {.d = gpu};
    MUST(gpu->stream_create(gpu, 0, &b.s));
    return b;
}

static void end_bench(bench *b)
{
    bench_clear(b);
    gpu->stream_free(b->s);
}

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

/* --- sizes that take the vectorised paths --- */

static void vector_rmsnorm(kernel_check *c)
{
    const int64_t shapes[][2] = {{7, 8},    {37, 256}, {1100, 64}, {19, 2048}, {70, 512},
                                 {5, 4104}, {3, 4096}, {3, 8192},  {3, 16384}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        rmsnorm_one(c, shapes[i][0], shapes[i][1], (int)i % 4, i % 2);
}

static void vector_layernorm(kernel_check *c)
{
    layernorm_one(c, 19, 1024, 0);
    layernorm_one(c, 600, 64, 3);
    layernorm_one(c, 3, 6000, 1);
}

static void vector_gated(kernel_check *c)
{
    for (int kind = 0; kind < 4; kind++)
        gated_one(c, (activation_kind)kind, 9, 4096, kind & 1);
    gated_one(c, ACTIVATION_SILU, 2100, 264, false); /* more rows than blocks that measure */
}

static void vector_rope(kernel_check *c)
{
    rope_one(c, 40, 64, 3072, false, false);
    rope_one(c, 3, 64, 256, true, true);
}

static void vector_cross_entropy(kernel_check *c)
{
    cross_entropy_one(c, 9, 4096, 8, false);
    cross_entropy_one(c, 5, 32000, 8, true);
    cross_entropy_one(c, 2, 40000, 300, true);
    cross_entropy_one(c, 3, 128256, 8, false);
    cross_entropy_strided(c, 3, 50257, 50304, 8, true);
    cross_entropy_strided(c, 5, 4093, 4096, 8, false);
}

static void vector_embedding(kernel_check *c)
{
    embedding_one(c, 300, 512, 1000, false);
    embedding_one(c, 2000, 64, 5, true);
    embedding_one(c, 40, 1024, 9000, true);
}

static void vector_gemm(kernel_check *c)
{
    for (int i = 0; i < 8; i++)
        gemm_one(c, i & 1, i & 2, 128, 253, 261, 2, i & 4);
}

static const kernel_case vector_cases[] = {
    {"vectors: rmsnorm", vector_rmsnorm},
    {"vectors: layernorm", vector_layernorm},
    {"vectors: gated", vector_gated},
    {"vectors: rope", vector_rope},
    {"vectors: cross_entropy", vector_cross_entropy},
    {"vectors: embedding", vector_embedding},
    {"vectors: gemm", vector_gemm},
};

#define N_VECTOR_CASES (sizeof vector_cases / sizeof *vector_cases)

/* --- attention and products of training size --- */

static const fused_attention llama_1b = {4, 2048, 32, 8, 64, true, false, FSDP_BF16};

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

static void random_numbers_have_the_bits_of_the_host(void **state)
{
    (void)state;
    enum { N = 100003 };
    static float want[N], got[N];
    bench b = start_bench();
    rng_key key = rng_key_fold_text(rng_key_make(7), "layers.3.weight");
    for (int normal = 0; normal < 2; normal++) {
        random_args a = {.n = N,
                         .key = {key.k[0], key.k[1]},
                         .first = 1000001,
                         .normal = normal,
                         .a = normal ? 0 : -0.5f,
                         .b = 0.25f};
        if (normal)
            rng_fill_normal(key, a.first, N, a.a, a.b, want);
        else
            rng_fill_uniform(key, a.first, N, a.a, a.b, want);
        a.out = bench_take(&b, sizeof got);
        MUST(gpu->random(b.s, &a));
        MUST(gpu->copy(b.s, got, a.out, sizeof got));
        MUST(gpu->stream_synchronize(b.s));
        assert_memory_equal(want, got, sizeof got);
    }
    end_bench(&b);
}

/* The same update of masters as halves and as whole numbers, over a few steps; the halves join to the same bits. */
static void masters_as_halves_are_updated_like_whole_ones(void **state)
{
    (void)state;
    enum { N = 4099 };
    static float start[N], gradient[N], zeros[N], whole[N], joined[N];
    bench b = start_bench();
    rng_fill_normal(rng_key_make(1), 0, N, 0, 0.02f, start);
    rng_fill_normal(rng_key_make(2), 0, N, 0, 1, gradient);
    optimizer_scalars numbers = {.lr = 1e-3f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .weight_decay = 0.1f,
                                 .bias_correction1 = 0.1f,
                                 .bias_correction2 = 0.05f,
                                 .gradient_scale = 0.5f};
    float *memory[6]; /* master, gradient, moments of either */
    const float *from[6] = {start, gradient, zeros, zeros, zeros, zeros};
    for (int i = 0; i < 6; i++) {
        memory[i] = bench_take(&b, sizeof start);
        MUST(gpu->copy(b.s, memory[i], from[i], sizeof start));
    }
    optimizer_scalars *at = bench_take(&b, sizeof numbers);
    uint16_t *copy = bench_take(&b, sizeof start), *high = bench_take(&b, sizeof start),
             *low = bench_take(&b, sizeof start);
    float *join = bench_take(&b, sizeof start);
    MUST(gpu->copy(b.s, at, &numbers, sizeof numbers));
    halves_args split = {.n = N, .whole = memory[0], .high = high, .low = low};
    MUST(gpu->halves(b.s, &split));
    optimizer_args a = {.kind = FSDP_ADAMW,
                        .n = N,
                        .decay = true,
                        .parameter = memory[0],
                        .gradient = memory[1],
                        .moment1 = memory[2],
                        .moment2 = memory[3],
                        .copy = {copy, FSDP_BF16},
                        .scalars = at};
    optimizer_args h = a;
    h.parameter = NULL, h.moment1 = memory[4], h.moment2 = memory[5], h.copy.p = high, h.low = low;
    for (int step = 0; step < 5; step++) {
        MUST(gpu->kernels->optimizer(b.s, &a));
        MUST(gpu->kernels->optimizer(b.s, &h));
    }
    halves_args back = {.n = N, .whole = join, .high = high, .low = low, .join = true};
    MUST(gpu->halves(b.s, &back));
    MUST(gpu->copy(b.s, whole, memory[0], sizeof whole));
    MUST(gpu->copy(b.s, joined, join, sizeof joined));
    MUST(gpu->stream_synchronize(b.s));
    assert_memory_equal(whole, joined, sizeof whole);
    assert_true(whole[0] != start[0]);
    end_bench(&b);
}

/* Three steps of one kind on the GPU and on the processor. `half`: moments and gradients of 16 bits. */
static void update_on_both(device *cpu, fsdp_optimizer_kind kind, int64_t n, uint64_t element, bool half)
{
    enum { MOST = 70001, ARRAYS = 6 }; /* master, gradient, two moments, average, copy */
    static float host[ARRAYS][MOST], back[MOST];
    bench b = start_bench();
    stream *s;
    void *at[ARRAYS];
    fsdp_dtype kept = half ? FSDP_BF16 : FSDP_F32;
    MUST(cpu->stream_create(cpu, 0, &s));
    memset(host, 0, sizeof host);
    rng_fill_normal(rng_key_make(element), 0, n, 0, 0.02f, host[0]);
    rng_fill_normal(rng_key_make(n), 0, n, 0, 0.5f, host[1]);
    for (int64_t i = 0; half && i < n; i++) /* in place: element i lies before what is read next */
        dtype_put(FSDP_BF16, host[1], i, (double)host[1][i]);
    for (int i = 0; i < ARRAYS; i++) {
        at[i] = bench_take(&b, sizeof host[i]);
        MUST(gpu->copy(b.s, at[i], host[i], sizeof host[i]));
    }
    optimizer_scalars *numbers = bench_take(&b, sizeof *numbers);
    optimizer_args a = {.kind = kind, .n = n, .decay = true, .gradient_dtype = kept, .moment_dtype = kept};
    a.key[0] = 7, a.element = element, a.copy_half = n % 2;
    optimizer_args c = a;
    a.parameter = at[0], a.gradient = at[1], a.moment1 = at[2], a.moment2 = at[3], a.average = at[4];
    a.copy = (buffer){at[5], FSDP_BF16}, a.scalars = numbers;
    c.parameter = host[0], c.gradient = host[1], c.moment1 = host[2], c.moment2 = host[3], c.average = host[4];
    c.copy = (buffer){host[5], FSDP_BF16};
    for (uint64_t step = 1; step <= 3; step++) {
        optimizer_scalars now = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.9f, 0.1f, 0.05f, 0.37f, 0, step == 1 ? 0 : 0.9f,
                                 step};
        if (kind == FSDP_SGD)
            now.bias_correction1 = step == 1;
        c.scalars = &now;
        MUST(gpu->copy(b.s, numbers, &now, sizeof now));
        MUST(gpu->kernels->optimizer(b.s, &a));
        MUST(cpu->kernels->optimizer(s, &c));
        MUST(gpu->stream_synchronize(b.s));
    }
    for (int i = 0; i < ARRAYS; i++) {
        MUST(gpu->copy(b.s, back, at[i], sizeof back));
        MUST(gpu->stream_synchronize(b.s));
        if (memcmp(back, host[i], sizeof back) != 0)
            fail_msg("kind %d, %lld elements, half %d: array %d differs", (int)kind, (long long)n, half, i);
    }
    cpu->stream_free(s);
    end_bench(&b);
}

/* So a range may be updated in either memory, and nobody can tell which it was. */
static void device_and_processor_update_to_the_same_bits(void **state)
{
    (void)state;
    const fsdp_optimizer_kind kinds[] = {FSDP_ADAMW, FSDP_ADAM, FSDP_SGD};
    device *cpu;
    MUST(device_open_cpu(CPU_GEMM_PORTABLE, &cpu));
    for (int k = 0; k < 3; k++)
        for (int half = 0; half < 2; half++) {
            update_on_both(cpu, kinds[k], 4099, 3, half);
            update_on_both(cpu, kinds[k], 70000, 64, half);
        }
    device_close(cpu);
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

/* A link stood in for: all bytes arrive, repeated as often as they must be, and not before their time. */
static void check_paced_moves(int blocks)
{
    bench b = start_bench();
    const size_t sizes[][3] = {{16 << 20, 48 << 20, 48 << 20},
                               {1000, 3333, 3333},
                               {4096, 1024, 1 << 20},
                               {64 << 20, 256 << 20, blocks == 5 ? 3000000000 : 9000000000}};
    /* from, to, moved; the last at 450 GB/s, or 30 a block */
    for (int i = 0; i < 4; i++) {
        size_t from_bytes = sizes[i][0], to_bytes = sizes[i][1], bytes = sizes[i][2];
        uint8_t *host = malloc(from_bytes), *got = malloc(to_bytes);
        for (size_t k = 0; k < from_bytes; k++)
            host[k] = (uint8_t)(k * 2654435761u >> 11);
        paced_move_args a = {.from = bench_take(&b, from_bytes),
                             .to = bench_take(&b, to_bytes),
                             .from_bytes = from_bytes,
                             .to_bytes = to_bytes,
                             .bytes = bytes,
                             .seconds = 0.02,
                             .blocks = blocks};
        MUST(gpu->copy(b.s, (void *)a.from, host, from_bytes));
        MUST(gpu->stream_synchronize(b.s));
        paced_move_args first = a;
        first.bytes = first.from_bytes = first.to_bytes = 1000;
        MUST(gpu->paced_move(b.s, &first)); /* the first launch loads the kernel */
        MUST(gpu->stream_synchronize(b.s));
        double begun = clock_seconds();
        MUST(gpu->paced_move(b.s, &a));
        MUST(gpu->stream_synchronize(b.s));
        double took = clock_seconds() - begun;
        MUST(gpu->copy(b.s, got, a.to, to_bytes));
        MUST(gpu->stream_synchronize(b.s));
        print_message("%zu bytes with %d blocks: %.4f s\n", bytes, blocks, took);
        if (took < 0.0199 || took > 0.03)
            fail_msg("moving %zu bytes with %d blocks took %.4f s instead of 0.02", bytes, blocks, took);
        for (size_t k = 0; k < to_bytes && bytes <= to_bytes; k++)
            if (got[k] != host[k % from_bytes])
                fail_msg("byte %zu of %zu did not arrive", k, to_bytes);
        free(got);
        free(host);
        bench_clear(&b);
    }
    end_bench(&b);
}

static void paced_moves_take_their_time(void **state)
{
    (void)state;
    check_paced_moves(24);
    check_paced_moves(16);
    check_paced_moves(5); /* no cluster of four */
    check_paced_moves(0); /* copy engines */
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
        cmocka_unit_test(paced_moves_take_their_time),
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
    fsdp_status status = device_open_cuda(0, &gpu);
    if (status == FSDP_ERR_UNSUPPORTED) {
        printf("no CUDA device: %s\n", fsdp_last_error());
        return 77;
    }
    if (status != FSDP_OK) {
        printf("the CUDA device does not open: %s\n", fsdp_last_error());
        return 1;
    }
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
