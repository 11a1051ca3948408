/* On a GPU that the table knows: its description is the hardware's, and every workspace, cuDNN's included, is the same
 * to the byte. Skipped without a GPU, and on one that nobody has described. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "device/gpu.h"

static device *real, *described;

static void the_description_is_the_hardwares(void **state)
{
    (void)state;
    assert_int_equal(described->gpu->compute_capability, real->gpu->compute_capability);
    assert_int_equal(described->gpu->n_multiprocessors, real->gpu->n_multiprocessors);
    assert_int_equal(described->gpu->shared_bytes, real->gpu->shared_bytes);
    assert_int_equal(described->gpu->l2_bytes, real->gpu->l2_bytes);
    double ratio = (double)described->gpu->memory_bytes / (double)real->gpu->memory_bytes;
    print_message("memory: %zu described, %zu there\n", described->gpu->memory_bytes, real->gpu->memory_bytes);
    assert_true(ratio > 0.99 && ratio < 1.01);
    assert_true(described->available(described) <= real->gpu->memory_bytes);
    assert_null(described->unplanned);
}

static attention_args attention(int64_t batch, int64_t length, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                fsdp_dtype dtype)
{
    attention_args a = {.batch = batch,
                        .q_length = length,
                        .kv_length = length,
                        .q_heads = heads,
                        .kv_heads = kv_heads,
                        .head_dim = head_dim,
                        .causal = true};
    a.q_row = a.k_row = a.v_row = (heads + 2 * kv_heads) * head_dim;
    a.q.dtype = a.k.dtype = a.v.dtype = a.out.dtype = dtype;
    a.d_out.dtype = a.d_q.dtype = a.d_k.dtype = a.d_v.dtype = dtype;
    return a;
}

static void attention_takes_what_the_description_says(void **state)
{
    (void)state;
    const attention_args shapes[] = {
        attention(4, 2048, 32, 8, 64, FSDP_BF16), attention(1, 8192, 32, 8, 64, FSDP_BF16),
        attention(2, 1000, 8, 8, 128, FSDP_F16),  attention(1, 4096, 32, 8, 128, FSDP_BF16),
        attention(3, 77, 4, 4, 60, FSDP_BF16),    attention(2, 256, 4, 2, 64, FSDP_F32)};
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        attention_args a = shapes[i / 2];
        a.deterministic = i % 2;
        size_t forward = real->kernels->attention_forward_workspace(real, &a),
               backward = real->kernels->attention_backward_workspace(real, &a);
        print_message("attention %zu: %zu forward, %zu backward\n", i, forward, backward);
        assert_int_equal(described->kernels->attention_forward_workspace(described, &a), forward);
        assert_int_equal(described->kernels->attention_backward_workspace(described, &a), backward);
    }
}

static void convolution_takes_what_the_description_says(void **state)
{
    (void)state;
    for (int i = 0; i < 9; i++) {
        const int64_t batches[] = {3, 64, 32}, channels[] = {3, 64, 8}, sides[] = {9, 32, 28};
        const fsdp_dtype types[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
        conv2d_args a = {.batch = batches[i % 3], .in_channels = channels[i % 3], .out_channels = 16};
        a.in_h = a.in_w = a.out_h = a.out_w = sides[i % 3];
        a.kernel_h = a.kernel_w = 3;
        a.stride_h = a.stride_w = a.padding_h = a.padding_w = 1;
        a.x.dtype = a.weight.dtype = a.y.dtype = a.dx.dtype = a.dy.dtype = types[i / 3];
        a.d_weight.dtype = FSDP_F32;
        size_t forward = real->kernels->conv2d_forward_workspace(real, &a),
               backward = real->kernels->conv2d_backward_workspace(real, &a);
        print_message("convolution %d: %zu forward, %zu backward\n", i, forward, backward);
        assert_int_equal(described->kernels->conv2d_forward_workspace(described, &a), forward);
        assert_int_equal(described->kernels->conv2d_backward_workspace(described, &a), backward);
    }
}

/* The short name under which this GPU is described; NULL: it is not. */
static const char *name_of(const device *d)
{
    static const char *const names[] = {"h200", "h100", "a100"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(gpu_find(names[i])->name, d->gpu->name) == 0)
            return names[i];
    return NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_description_is_the_hardwares),
        cmocka_unit_test(attention_takes_what_the_description_says),
        cmocka_unit_test(convolution_takes_what_the_description_says),
    };
    if (device_open_cuda(0, &real) != FSDP_OK) {
        printf("no CUDA device: %s\n", fsdp_last_error());
        return 77;
    }
    if (!name_of(real) || device_describe(name_of(real), &described) != FSDP_OK) {
        printf("skipped: %s is not described\n", real->gpu->name);
        return 77;
    }
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    device_close(described);
    device_close(real);
    return failed;
}
