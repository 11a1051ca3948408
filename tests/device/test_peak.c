/* What a device could do: makers' figures by name, whole words only, and rates measured on the CPU. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>

#include "base/record/hooks.h"
#include "base/host/threads.h"
#include "device/peak.h"

static double peak_of(const char *name, fsdp_dtype dtype)
{
    device d = {.name = "cuda", .own_memory = true};
    snprintf(d.description, sizeof d.description, "%s (compute capability 9.0, A100 L4 H200), cuBLASLt", name);
    return peak_tflops(&d, dtype);
}

static void gpus_are_known_by_whole_words_of_their_names(void **state)
{
    (void)state;
    assert_float_equal(peak_of("NVIDIA H200", FSDP_BF16), 989.4, 0.01);
    assert_float_equal(peak_of("NVIDIA H200", FSDP_F16), 989.4, 0.01);
    assert_float_equal(peak_of("NVIDIA H200", FSDP_F32), 66.9, 0.01);
    assert_float_equal(peak_of("NVIDIA H100 80GB HBM3", FSDP_BF16), 989.4, 0.01);
    assert_float_equal(peak_of("NVIDIA H100 PCIe", FSDP_BF16), 756, 0.01);
    assert_float_equal(peak_of("NVIDIA A100-SXM4-80GB", FSDP_BF16), 312, 0.01);
    assert_float_equal(peak_of("NVIDIA L40S", FSDP_BF16), 362, 0.01);
    assert_float_equal(peak_of("NVIDIA L40", FSDP_BF16), 181, 0.01);
    assert_float_equal(peak_of("NVIDIA L4", FSDP_BF16), 121, 0.01);
    assert_float_equal(peak_of("NVIDIA A10G", FSDP_BF16), 70, 0.01);
    assert_float_equal(peak_of("NVIDIA GB200", FSDP_BF16), 2500, 0.01);
    assert_float_equal(peak_of("NVIDIA RTX A1000 Laptop GPU", FSDP_BF16), 0, 0); /* not an A100 */
    assert_float_equal(peak_of("NVIDIA X9000", FSDP_BF16), 0, 0);
}

static int64_t balance;

static void count_memory(void *context, const hook_event *e)
{
    (void)context;
    if (e->kind == HOOK_MEMORY)
        balance += e->bytes;
}

static void rates_of_the_cpu_are_measured_and_leave_no_memory_behind(void **state)
{
    (void)state;
    device *d;
    stream *s;
    threads_set(1, 1);
    assert_int_equal(device_open_cpu(CPU_GEMM_AUTO, &d), FSDP_OK);
    assert_int_equal(d->stream_create(d, 0, &s), FSDP_OK);
    assert_float_equal(peak_tflops(d, FSDP_F32), 0, 0);
    assert_int_equal(hooks_add_kind(HOOK_MEMORY, count_memory, NULL), FSDP_OK);
    double product = 0, copy = 0;
    assert_int_equal(peak_measure_products(d, s, FSDP_F32, &product), FSDP_OK);
    assert_true(product > 1e-4 && product < 100);
    assert_int_equal(peak_measure_products(d, s, FSDP_BF16, &product), FSDP_OK);
    assert_true(product > 1e-4 && product < 1000);
    assert_int_equal(peak_measure_copy(d, s, &copy), FSDP_OK);
    assert_true(copy > 0.1 && copy < 1e5);
    hooks_remove(count_memory, NULL);
    assert_int_equal(balance, 0);
    d->stream_free(s);
    device_close(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gpus_are_known_by_whole_words_of_their_names),
        cmocka_unit_test(rates_of_the_cpu_are_measured_and_leave_no_memory_behind),
    };
    return cmocka_run_group_tests_name("peak", tests, NULL, NULL);
}
