/* GPUs that are not here: described devices have the traits and the workspaces that plans ask for, and compute nothing.
 * That they are those of the hardware is test_cuda_described's claim. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "device/gpu.h"

static device *described(const char *name)
{
    device *dev;
    assert_int_equal(device_describe(name, &dev), FSDP_OK);
    return dev;
}

static void known_gpus_have_their_traits(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int capability, multiprocessors;
        double gib;
    } rows[] = {{"h200", 90, 132, 139}, {"h100", 90, 132, 79}, {"a100", 80, 108, 79}, {"H200", 90, 132, 139}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        device *d = described(rows[i].name);
        assert_string_equal(d->name, "cuda");
        assert_true(d->own_memory && d->halves && d->gpu);
        assert_int_equal(d->gpu->compute_capability, rows[i].capability);
        assert_int_equal(d->gpu->n_multiprocessors, rows[i].multiprocessors);
        double gib = (double)d->available(d) / (1 << 30), whole = (double)d->gpu->memory_bytes / (1 << 30);
        assert_true(whole > rows[i].gib && whole < rows[i].gib + 1.5 && gib < whole - 1 && gib > 0.95 * whole);
        device_close(d);
    }
}

static void workspaces_follow_from_the_numbers(void **state)
{
    (void)state;
    device *large = described("h200"), *small = described("a100");
    gemm_args product = {.m = 64, .n = 64, .k = 64, .batch = 1};
    assert_int_equal(large->kernels->gemm_workspace(large, &product), large->workspace_limit);
    rmsnorm_args norm = {.rows = 100000, .columns = 256};
    assert_int_equal(large->kernels->rmsnorm_backward_workspace(large, &norm), 4 * 132 * 256 * sizeof(float));
    assert_int_equal(small->kernels->rmsnorm_backward_workspace(small, &norm), 4 * 108 * 256 * sizeof(float));
    layernorm_args layer = {.rows = 3, .columns = 256};
    assert_int_equal(large->kernels->layernorm_backward_workspace(large, &layer), 2 * 3 * 256 * sizeof(float));
    device_close(large);
    device_close(small);
}

static void nothing_is_computed_and_nobody_is_told_otherwise(void **state)
{
    (void)state;
    device *d = described("h100"), *none;
    void *memory;
    stream *s;
    assert_int_equal(d->allocate(d, MEMORY_DEVICE, 64, &memory), FSDP_ERR_UNSUPPORTED);
    assert_non_null(strstr(fsdp_last_error(), "only described"));
    assert_int_equal(d->stream_create(d, 0, &s), FSDP_ERR_UNSUPPORTED);
    device_close(d);
    assert_int_equal(device_describe("b9000", &none), FSDP_ERR_INPUT);
    assert_non_null(strstr(fsdp_last_error(), "h200, h100 and a100"));
    assert_false(device_is_described("cuda") || device_is_described("cpu") || device_is_described(NULL));
}

/* A build without CUDA does not know what cuDNN takes, and says so. */
static void what_is_not_planned_is_said(void **state)
{
    (void)state;
    device *d = described("h200");
#ifdef FSDP_WITH_CUDA
    assert_true(!d->unplanned || strstr(d->unplanned, "cuDNN"));
#else
    assert_non_null(d->unplanned);
    assert_non_null(strstr(d->unplanned, "built without CUDA"));
#endif
    device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_gpus_have_their_traits),
        cmocka_unit_test(workspaces_follow_from_the_numbers),
        cmocka_unit_test(nothing_is_computed_and_nobody_is_told_otherwise),
        cmocka_unit_test(what_is_not_planned_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
