/* Every kernel case on the CPU, at every instruction set this machine has: right, the same from run to run, and the
 * same with any number of threads. test_attention.c has attention with the kernels that a faster one hides. */
#include "device/kernel_cases.h"

#include "base/host/threads.h"
#include "device/cpu/cpu_device.h"

static device *open_level(simd_level level, int threads)
{
    device *d = NULL;
    threads_set(threads, 1);
    assert_int_equal(device_open_cpu_level(CPU_GEMM_AUTO, level, &d), FSDP_OK);
    return d;
}

static void kernels_match_the_reference(simd_level level)
{
    if (level > cpu_best_level())
        skip();
    device *d = open_level(level, 2);
    run_all_cases(d, 1.0);
    device_close(d);
}

static void baseline_kernels_match_the_reference(void **state)
{
    (void)state;
    kernels_match_the_reference(SIMD_BASE);
}

static void avx2_kernels_match_the_reference(void **state)
{
    (void)state;
    kernels_match_the_reference(SIMD_AVX2);
}

static void avx512_kernels_match_the_reference(void **state)
{
    (void)state;
    kernels_match_the_reference(SIMD_AVX512);
}

/* What processors without bf16 products compute. */
static void attention_with_fp32_products_matches_the_reference(void **state)
{
    (void)state;
    device *d = NULL;
    threads_set(2, 1);
    assert_int_equal(device_open_cpu(CPU_GEMM_PORTABLE, &d), FSDP_OK);
    for (size_t i = 0; i < N_KERNEL_CASES; i++)
        if (strstr(kernel_cases[i].name, "attention"))
            run_case(d, &kernel_cases[i], 1.0);
    device_close(d);
}

static void runs_and_thread_counts_give_the_same_bits(void **state)
{
    (void)state;
    device *one = open_level(cpu_best_level(), 1), *two = open_level(cpu_best_level(), 2);
    device *three = open_level(cpu_best_level(), 3);
    for (size_t i = 0; i < N_KERNEL_CASES; i++) {
        const kernel_case *k = &kernel_cases[i];
        uint64_t hash = run_case(two, k, 1.0);
        if (run_case(two, k, 1.0) != hash)
            fail_msg("%s: two runs differ", k->name);
        if (run_case(one, k, 1.0) != hash || run_case(three, k, 1.0) != hash)
            fail_msg("%s: one, two and three threads differ", k->name);
    }
    device_close(one);
    device_close(two);
    device_close(three);
}

static void labels_outside_the_vocabulary_are_refused_by_row(void **state)
{
    (void)state;
    device *d = open_level(cpu_best_level(), 1);
    stream *s = NULL;
    assert_int_equal(d->stream_create(d, 0, &s), FSDP_OK);
    float logits[6] = {0}, loss = 0, count = 0, workspace[64];
    int32_t labels[2] = {1, 3};
    cross_entropy_args args = {.rows = 2,
                               .vocabulary = 3,
                               .stride = 3,
                               .logits = {logits, FSDP_F32},
                               .labels = labels,
                               .ignore = -1,
                               .loss_sum = &loss,
                               .count = &count,
                               .workspace = workspace};
    assert_int_equal(d->kernels->cross_entropy_forward(s, &args), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "label 3 of row 1"));
    d->stream_free(s);
    device_close(d);
}

static void attention_shapes_that_make_no_sense_are_refused(void **state)
{
    (void)state;
    device *d = open_level(cpu_best_level(), 1);
    stream *s = NULL;
    assert_int_equal(d->stream_create(d, 0, &s), FSDP_OK);
    attention_args wide = {.batch = 1, .q_length = 1, .kv_length = 1, .q_heads = 1, .kv_heads = 1, .head_dim = 257};
    assert_int_equal(d->kernels->attention_forward(s, &wide), FSDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(fsdp_last_error(), "257"));
    attention_args uneven = {.batch = 1, .q_length = 1, .kv_length = 1, .q_heads = 4, .kv_heads = 3, .head_dim = 8};
    assert_int_equal(d->kernels->attention_backward(s, &uneven), FSDP_ERR_INPUT);
    d->stream_free(s);
    device_close(d);
}

static void workspaces_of_huge_shapes_stay_within_the_limit(void **state)
{
    (void)state;
    device *d = open_level(cpu_best_level(), 512);
    attention_args a = {
        .batch = 64, .q_length = 1 << 17, .kv_length = 1 << 17, .q_heads = 64, .kv_heads = 64, .head_dim = 256};
    for (int bf16 = 0; bf16 < 2; bf16++) { /* whose panels take memory, too */
        a.q.dtype = a.k.dtype = a.v.dtype = a.d_out.dtype = bf16 ? FSDP_BF16 : FSDP_F32;
        assert_true(d->kernels->attention_forward_workspace(d, &a) <= d->workspace_limit);
        assert_true(d->kernels->attention_backward_workspace(d, &a) <= d->workspace_limit);
    }
    conv2d_args c = {.batch = 512,
                     .in_channels = 512,
                     .in_h = 512,
                     .in_w = 512,
                     .out_channels = 512,
                     .kernel_h = 3,
                     .kernel_w = 3,
                     .out_h = 512,
                     .out_w = 512,
                     .stride_h = 1,
                     .stride_w = 1,
                     .padding_h = 1,
                     .padding_w = 1};
    assert_true(d->kernels->conv2d_backward_workspace(d, &c) <= d->workspace_limit);
    device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(baseline_kernels_match_the_reference),
        cmocka_unit_test(avx2_kernels_match_the_reference),
        cmocka_unit_test(avx512_kernels_match_the_reference),
        cmocka_unit_test(attention_with_fp32_products_matches_the_reference),
        cmocka_unit_test(runs_and_thread_counts_give_the_same_bits),
        cmocka_unit_test(labels_outside_the_vocabulary_are_refused_by_row),
        cmocka_unit_test(attention_shapes_that_make_no_sense_are_refused),
        cmocka_unit_test(workspaces_of_huge_shapes_stay_within_the_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
