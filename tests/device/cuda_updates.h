/* The GPU against the host to the bit: random numbers, masters as halves, and the optimizer's updates. */
#ifndef TESTS_DEVICE_CUDA_UPDATES_H
#define TESTS_DEVICE_CUDA_UPDATES_H

#include "base/rng.h"
#include "device/cuda_checks.h"

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
    float *join = bench_take(&b, sizeof start), *largest = bench_take(&b, 2 * sizeof *largest), magnitudes[2];
    MUST(gpu->copy(b.s, at, &numbers, sizeof numbers));
    MUST(gpu->zero(b.s, largest, sizeof magnitudes));
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
                        .magnitude = largest,
                        .scalars = at};
    optimizer_args h = a;
    h.magnitude = largest + 1;
    h.parameter = NULL, h.moment1 = memory[4], h.moment2 = memory[5], h.copy.p = high, h.low = low;
    for (int step = 0; step < 5; step++) {
        MUST(gpu->kernels->optimizer(b.s, &a));
        MUST(gpu->kernels->optimizer(b.s, &h));
    }
    halves_args back = {.n = N, .whole = join, .high = high, .low = low, .join = true};
    MUST(gpu->halves(b.s, &back));
    MUST(gpu->copy(b.s, whole, memory[0], sizeof whole));
    MUST(gpu->copy(b.s, joined, join, sizeof joined));
    MUST(gpu->copy(b.s, magnitudes, largest, sizeof magnitudes));
    MUST(gpu->stream_synchronize(b.s));
    assert_memory_equal(whole, joined, sizeof whole);
    assert_true(magnitudes[0] > 0 && magnitudes[0] == magnitudes[1]);
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

#endif
