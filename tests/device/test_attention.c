/* Attention on CPUs with every kernel for bf16 products that this machine runs, of which a device by itself takes the
 * fastest: shapes drawn from seeds, and scores of any size. FSDP_TEST_SEED and FSDP_TEST_CASES draw others. */
#include "device/kernel_cases.h"

#include <stdio.h>

#include "base/host/threads.h"
#include "device/cpu/cpu_device.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/gemm/probe.h"

static device *open_with(const gemm_kernel *bf16, int threads)
{
    device *d = NULL;
    threads_set(threads, 1);
    assert_int_equal(device_open_cpu_level(CPU_GEMM_AUTO, cpu_best_level(), &d), FSDP_OK);
    ((device_cpu *)d)->product.bf16 = bf16;
    return d;
}

/* The same bits on one thread as on three. */
static void run_with_kernel(const gemm_kernel *kernel, const kernel_case *one)
{
    device *alone = open_with(kernel, 1), *shared = open_with(kernel, 3);
    if (run_case(alone, one, 1.0) != run_case(shared, one, 1.0))
        fail_msg("%s, %s: one and three threads differ", one->name, kernel->name);
    device_close(alone);
    device_close(shared);
}

static void run_with_every_kernel(const kernel_case *one)
{
    run_with_kernel(&gemm_portable, one); /* products in fp32 */
#if defined(__x86_64__)
    if (cpu_features_get()->avx512_bf16)
        run_with_kernel(&avx512_bf16, one);
    if (cpu_features_get()->avx512_bf16 && !gemm_probe_amx())
        run_with_kernel(&amx_bf16, one);
#endif
}

/* Sizes around those of tiles and vectors, or any. */
static int64_t draw_length(uint64_t *random, int most)
{
    static const int edges[] = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 97, 127, 128, 129, 192, 193};
    return draw_below(random, 2) ? edges[draw_below(random, 16)] : 1 + draw_below(random, most);
}

static attention_case draw_case(uint64_t *random)
{
    enum { MOST_WORK = 3 << 19 };
    attention_case k;
    do {
        bool many = draw_below(random, 8) == 0; /* keys: more than a thread keeps packed */
        k = (attention_case){.batch = 1 + draw_below(random, 3), .kv_heads = 1 + draw_below(random, 3)};
        k.q_heads = k.kv_heads * (1 + draw_below(random, 3));
        k.head_dim = draw_below(random, 2) ? 8 << draw_below(random, 6) : 1 + draw_below(random, many ? 16 : 256);
        k.q_length = many ? 17 + draw_below(random, 9) : draw_length(random, 260);
        k.kv_length = many ? 4090 + draw_below(random, 200) : k.q_length;
        if (!many && draw_below(random, 2))
            k.kv_length = draw_length(random, 400);
        k.causal = draw_below(random, 3) > 0;
        k.masked = draw_below(random, 4) == 0;
        k.bias = draw_below(random, 2) ? BIAS_NONE : (bias_form)draw_below(random, 5);
        k.add = draw_below(random, 16);
    } while (k.batch * k.q_heads * k.q_length * k.kv_length * k.head_dim > MOST_WORK);
    return k;
}

static attention_way draw_way(uint64_t *random, const attention_case *k)
{
    static const float scales[] = {0, 0, 0, 0.1f, 0.8f, 3.0f, -0.2f};
    attention_way w = {.aligned = draw_below(random, 2), .scale = scales[draw_below(random, 7)]};
    w.dropout = draw_below(random, 4) ? 0 : 0.1f + 0.1f * (float)draw_below(random, 8);
    w.window = k->causal && draw_below(random, 3) == 0 ? 1 + draw_below(random, (int)k->kv_length + 9) : 0;
    w.documents = k->causal && k->q_length == k->kv_length && draw_below(random, 3) == 0;
    return w;
}

/* In bf16 only: other numbers have no kernels to choose from. Of many keys an average is left, of one no gradient. */
static void case_attention_of_random_shapes(kernel_check *c)
{
    const char *given = getenv("FSDP_TEST_SEED"), *cases = getenv("FSDP_TEST_CASES");
    int first = given ? atoi(given) : 1, n = cases ? atoi(cases) : 24;
    for (int seed = first; seed < first + n && c->dtype == FSDP_BF16; seed++) {
        char name[64];
        snprintf(name, sizeof name, "attention, FSDP_TEST_SEED=%d FSDP_TEST_CASES=1", seed);
        c->name = name;
        uint64_t random = (uint64_t)seed * 977 + (c->gradient_dtype == FSDP_F32);
        attention_case k = draw_case(&random);
        c->random = random;
        c->slack = 4.0;
        c->cancelled = 1.0;
        attention_one(c, &k, draw_way(&random, &k));
    }
}

static void random_shapes_match_the_reference(void **state)
{
    (void)state;
    run_with_every_kernel(&(kernel_case){"attention_of_random_shapes", case_attention_of_random_shapes});
}

/* Scores so large that the maximum rises by little in some tiles of keys and by much in others: sums follow it or not.
 */
static void case_attention_of_rising_scores(kernel_check *c)
{
    const attention_case k = {2, 70, 700, 4, 2, 64, true, false, BIAS_NONE, 0};
    for (int i = 0; i < 4 && c->dtype == FSDP_BF16 && c->gradient_dtype == FSDP_F32; i++)
        attention_one(c, &k, (attention_way){.aligned = i % 2, .scale = i < 2 ? 0.8f : 3.0f});
}

static void sums_follow_the_maximum_of_the_scores(void **state)
{
    (void)state;
    run_with_every_kernel(&(kernel_case){"attention_of_rising_scores", case_attention_of_rising_scores});
}

/* One key has all of the weight: its value is the result, and its gradient that of the result. Scores are far beyond
 * those whose steps in fp32 are smaller than 1. */
static void case_attention_of_huge_scores(kernel_check *c)
{
    const attention_case k = {1, 70, 90, 2, 1, 80, true, false, BIAS_NONE, 0};
    const float scales[] = {1.3e6f, 1.3e7f, 1.3e9f, 1.3e30f};
    for (int i = 0; i < 4 && c->dtype == FSDP_BF16; i++) {
        attention_data t = attention_make(c, &k, (attention_way){.scale = scales[i]});
        attention_args *a = &t.args;
        CHECK_RUN_WITH_WORKSPACE(c, attention_forward, a);
        attention_want w = attention_reference(c, &t, t.out.host);
        check_expect(c, &t.out, w.out, false, "out");
        check_expect(c, &t.lse, w.lse, false, "lse");
        CHECK_RUN_WITH_WORKSPACE(c, attention_backward, a);
        attention_expect_rows(c, &t.d_v, w.d_v, a->v_row, k.kv_heads * k.head_dim, false, "d_v");
        check_clear(c);
    }
}

static void scores_may_have_any_size(void **state)
{
    (void)state;
    run_with_every_kernel(&(kernel_case){"attention_of_huge_scores", case_attention_of_huge_scores});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_shapes_match_the_reference),
        cmocka_unit_test(sums_follow_the_maximum_of_the_scores),
        cmocka_unit_test(scores_may_have_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
