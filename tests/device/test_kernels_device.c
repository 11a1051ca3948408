/* The CPU device around its kernels: memory and what is reported of it, copies, events, refusals. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/record/hooks.h"
#include "base/host/threads.h"
#include "device/cpu/cpu_device.h"

static device *opened;
static stream *queue;

static int open_device(void **state)
{
    (void)state;
    threads_set(2, 1);
    if (device_open_cpu(CPU_GEMM_AUTO, &opened) != FSDP_OK)
        return -1;
    return opened->stream_create(opened, 0, &queue) == FSDP_OK ? 0 : -1;
}

static int close_device(void **state)
{
    (void)state;
    opened->stream_free(queue);
    device_close(opened);
    return 0;
}

static const size_t block_sizes[] = {0, 1, 255, 257, 4097, (2 << 20) - 1, 2 << 20, (2 << 20) + 1, (5 << 20) + 12345};

static void memory_of_any_size_is_aligned_and_writable(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof block_sizes / sizeof block_sizes[0]; i++) {
        for (int kind = MEMORY_DEVICE; kind <= MEMORY_HOST; kind++) {
            void *p = NULL;
            assert_int_equal(opened->allocate(opened, (memory_kind)kind, block_sizes[i], &p), FSDP_OK);
            assert_non_null(p);
            assert_int_equal((uintptr_t)p % 256, 0);
            memset(p, 0xA5, block_sizes[i]);
            opened->release(opened, (memory_kind)kind, p, block_sizes[i]);
        }
    }
    opened->release(opened, MEMORY_DEVICE, NULL, 10);
}

static void more_memory_than_there_is_is_refused_with_its_size(void **state)
{
    (void)state;
    void *p = &p;
    assert_int_equal(opened->allocate(opened, MEMORY_DEVICE, (size_t)1 << 60, &p), FSDP_ERR_MEMORY);
    assert_null(p);
    assert_non_null(strstr(fsdp_last_error(), "MiB of device memory"));
    assert_int_equal(opened->allocate(opened, MEMORY_DEVICE, SIZE_MAX - 5, &p), FSDP_ERR_MEMORY);
    assert_null(p);
}

static void count_memory(void *context, const hook_event *seen_event)
{
    int64_t *seen = context;
    if (seen_event->kind == HOOK_MEMORY) {
        seen[0] += seen_event->bytes;
        seen[1] = seen_event->bytes > seen[1] ? seen_event->bytes : seen[1];
    }
}

static void every_block_is_reported_when_taken_and_given_back(void **state)
{
    (void)state;
    int64_t seen[2] = {0};
    void *small = NULL, *large = NULL;
    assert_int_equal(hooks_add(count_memory, seen), FSDP_OK);
    assert_int_equal(opened->allocate(opened, MEMORY_DEVICE, 1000, &small), FSDP_OK);
    assert_int_equal(opened->allocate(opened, MEMORY_HOST, 3000000, &large), FSDP_OK);
    assert_int_equal(seen[0], 3001000);
    assert_int_equal(seen[1], 3000000);
    opened->release(opened, MEMORY_DEVICE, small, 1000);
    opened->release(opened, MEMORY_HOST, large, 3000000);
    assert_int_equal(seen[0], 0);
    hooks_remove(count_memory, seen);
}

static void copies_and_zeroes_touch_exactly_their_bytes(void **state)
{
    (void)state;
    const size_t sizes[] = {0, 1, 4095, 262144, 262145, 1000003};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t n = sizes[i];
        unsigned char *from = malloc(n + 2), *to = malloc(n + 2);
        for (size_t j = 0; j < n + 2; j++)
            from[j] = (unsigned char)(j * 31 + 7);
        memset(to, 0xEE, n + 2);
        assert_int_equal(opened->copy(queue, to + 1, from + 1, n), FSDP_OK);
        assert_memory_equal(to + 1, from + 1, n);
        assert_int_equal(to[0], 0xEE);
        assert_int_equal(to[n + 1], 0xEE);
        assert_int_equal(opened->zero(queue, to + 1, n), FSDP_OK);
        for (size_t j = 1; j <= n; j++)
            assert_int_equal(to[j], 0);
        assert_int_equal(to[0], 0xEE);
        assert_int_equal(to[n + 1], 0xEE);
        free(from);
        free(to);
    }
}

static void events_tell_the_time_between_them(void **state)
{
    (void)state;
    event *from = NULL, *to = NULL;
    double milliseconds = -1.0;
    assert_int_equal(opened->event_create(opened, &from), FSDP_OK);
    assert_int_equal(opened->event_create(opened, &to), FSDP_OK);
    assert_int_equal(opened->event_record(queue, from), FSDP_OK);
    assert_int_equal(opened->event_elapsed(from, to, &milliseconds), FSDP_ERR_STATE);
    assert_int_equal(opened->stream_wait(queue, from), FSDP_OK);
    assert_int_equal(opened->event_record(queue, to), FSDP_OK);
    assert_int_equal(opened->event_elapsed(from, to, &milliseconds), FSDP_OK);
    assert_true(milliseconds >= 0.0 && milliseconds < 60000.0);
    assert_int_equal(opened->stream_synchronize(queue), FSDP_OK);
    opened->event_free(from);
    opened->event_free(to);
    opened->event_free(NULL);
    opened->stream_free(NULL);
}

static void the_description_names_kernels_and_products(void **state)
{
    (void)state;
    assert_string_equal(opened->name, "cpu");
    assert_non_null(strstr(opened->description, cpu_level_name(cpu_best_level())));
    assert_non_null(strstr(opened->description, "2 threads"));
    assert_null(opened->graph_begin);
    assert_null(opened->autotune_export);
    assert_null(opened->autotune_import);
}

static void no_entry_of_the_table_is_missing(void **state)
{
    (void)state;
    const void *const *entries = (const void *const *)opened->kernels;
    for (size_t i = 0; i < sizeof(kernel_table) / sizeof(void *); i++)
        assert_non_null(entries[i]);
}

static void a_level_the_processor_lacks_is_refused(void **state)
{
    (void)state;
    device *d = opened;
    if (cpu_best_level() + 1 == SIMD_LEVEL_COUNT)
        skip();
    assert_int_equal(device_open_cpu_level(CPU_GEMM_AUTO, (simd_level)(cpu_best_level() + 1), &d),
                     FSDP_ERR_UNSUPPORTED);
    assert_null(d);
}

#ifndef FSDP_WITH_CUDA
static void cuda_without_cuda_says_how_to_get_it(void **state)
{
    (void)state;
    device *d = opened;
    assert_int_equal(device_open_cuda(1, &d), FSDP_ERR_UNSUPPORTED);
    assert_null(d);
    assert_non_null(strstr(fsdp_last_error(), "cuda:1"));
    assert_non_null(strstr(fsdp_last_error(), "FSDP_CUDA=ON"));
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_of_any_size_is_aligned_and_writable),
        cmocka_unit_test(more_memory_than_there_is_is_refused_with_its_size),
        cmocka_unit_test(every_block_is_reported_when_taken_and_given_back),
        cmocka_unit_test(copies_and_zeroes_touch_exactly_their_bytes),
        cmocka_unit_test(events_tell_the_time_between_them),
        cmocka_unit_test(the_description_names_kernels_and_products),
        cmocka_unit_test(no_entry_of_the_table_is_missing),
        cmocka_unit_test(a_level_the_processor_lacks_is_refused),
#ifndef FSDP_WITH_CUDA
        cmocka_unit_test(cuda_without_cuda_says_how_to_get_it),
#endif
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
