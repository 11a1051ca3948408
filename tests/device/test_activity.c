/* Records of a device: clocks that drift are mapped, mangled names are made plain, and where a device keeps no records
 * its operations are timed with events. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "device/activity.h"

static void times_lie_between_the_readings_of_both_clocks(void **state)
{
    (void)state;
    int64_t hour = 3600LL * 1000000000;
    clock_pair begin = {.theirs = 500 * hour, .ours = 7 * hour};
    clock_pair end = {.theirs = begin.theirs + hour, .ours = begin.ours + hour + 36000}; /* 10 ns a ms */
    assert_int_equal(clock_map(begin, end, begin.theirs), begin.ours);
    assert_int_equal(clock_map(begin, end, end.theirs), end.ours);
    assert_int_equal(clock_map(begin, end, begin.theirs + hour / 2), begin.ours + hour / 2 + 18000);
    assert_int_equal(clock_map(begin, end, begin.theirs - hour / 2), begin.ours - hour / 2 - 18000);
    assert_int_equal(clock_map(begin, begin, begin.theirs + 5), begin.ours + 5); /* no time passed: no speed is known */
}

static void names_of_kernels_are_plain(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"_Z15rmsnorm_forwardPKfPfi", "rmsnorm_forward"},
        {"_Z3addILi4EEvPfi", "add"},
        {"_ZL4onlyPf", "only"},
        {"_ZN7cutlass13device_kernelINS_4gemm6kernel4GemmEEEvNT_6ParamsE", "cutlass::device_kernel"},
        {"_ZN12_GLOBAL__N_14softEPf", "soft"},
        {"_Z38ncclDevKernel_AllGather_RING_LLxxxxxxx24ncclDevKernelArgsStorageILm4096EE",
         "ncclDevKernel_AllGather_RING_LLxxxxxxx"},
        {"nvjet_tst_128x256_64x4_2x1_v_bz_TNT", "nvjet_tst_128x256_64x4_2x1_v_bz_TNT"},
        {"void add<int, 4>(float*)", "void add"},
        {"", ""},
        {"_Z", "_Z"},
        {"_Z999add", "_Z999add"}, /* longer than what is there */
        {"_ZN99999999999999999999xE", "_ZN99999999999999999999xE"},
        {"_ZN3abc", "abc"},
    };
    char out[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        activity_plain_name(cases[i][0], out, sizeof out);
        assert_string_equal(out, cases[i][1]);
    }
    char small[8];
    activity_plain_name("_ZN7cutlass13device_kernelE", small, sizeof small);
    assert_string_equal(small, "cutlass");
    activity_plain_name("cudnn_generated", small, sizeof small);
    assert_string_equal(small, "cudnn_g");
}

typedef struct heard {
    int n;
    device_activity list[16];
    char names[16][64];
} heard;

static void hear(void *context, const device_activity *a)
{
    heard *h = context;
    assert_true(h->n < 16);
    h->list[h->n] = *a;
    strncpy(h->names[h->n++], a->name, 63);
}

/* A CPU that calls its memory its own, as a GPU does, and what is recorded of its stream. */
typedef struct recorded {
    device *d;
    stream *s;
    activity_recorder *r;
    heard heard;
} recorded;

static int open_device(void **state)
{
    static recorded now;
    now = (recorded){0};
    *state = &now;
    if (device_open_cpu(CPU_GEMM_AUTO, &now.d) != FSDP_OK)
        return -1;
    now.d->own_memory = true;
    return now.d->stream_create(now.d, 0, &now.s) == FSDP_OK ? 0 : -1;
}

static int close_device(void **state)
{
    recorded *now = *state;
    now->d->stream_free(now->s);
    device_close(now->d);
    return 0;
}

static void one_operation(const char *name)
{
    HOOK(HOOK_OP, HOOK_BEGIN, name, "forward", 0, 0);
    HOOK(HOOK_WAIT, HOOK_BEGIN, "all_gather", "layers.1", 0, 0);
    HOOK(HOOK_WAIT, HOOK_END, "all_gather", "layers.1", 0, 0);
    HOOK(HOOK_OP, HOOK_END, name, "forward", 0, 0);
}

static void *operate(void *name)
{
    one_operation(name);
    return NULL;
}

static void a_device_that_shares_host_memory_needs_no_recorder(void **state)
{
    recorded *now = *state;
    now->d->own_memory = false;
    assert_int_equal(activity_start(now->d, now->s, &now->r), FSDP_OK);
    assert_null(now->r); /* the host's clock says it all */
    assert_int_equal(activity_stop(NULL, hear, &now->heard), FSDP_OK);
}

/* The CPU's events have the host's clock, so that the times are known. */
static void operations_are_timed_with_events_where_there_are_no_records(void **state)
{
    recorded *now = *state;
    heard *h = &now->heard;
    int64_t begun = clock_nanoseconds();
    assert_int_equal(activity_start(now->d, now->s, &now->r), FSDP_OK);
    assert_false(activity_has_records(now->r));
    assert_non_null(strstr(activity_source(now->r), "events"));
    one_operation("linear");
    pthread_t other; /* has a stream of its own */
    static char name[] = "saved";
    pthread_create(&other, NULL, operate, name);
    pthread_join(other, NULL);
    HOOK(HOOK_OP, HOOK_BEGIN, "offload", "forward", 0, 2); /* of another lane */
    HOOK(HOOK_OP, HOOK_END, "offload", "forward", 0, 2);
    HOOK(HOOK_OP, HOOK_BEGIN, "not ended", "forward", 0, 0);
    int64_t margin = clock_nanoseconds() - begun; /* how exactly the zero is known */
    assert_int_equal(activity_stop(now->r, hear, h), FSDP_OK);
    assert_false(hooks_enabled);
    assert_int_equal(h->n, 2);
    assert_string_equal(h->names[0], "linear.forward");
    assert_string_equal(h->names[1], "all_gather");
    assert_int_equal(h->list[0].kind, ACTIVITY_KERNEL);
    assert_int_equal(h->list[1].kind, ACTIVITY_WAIT);
    for (int i = 0; i < 2; i++) {
        const device_activity *a = &h->list[i];
        assert_true(a->begin_ns <= a->end_ns);
        assert_true(a->begin_ns >= begun - margin && a->end_ns <= clock_nanoseconds() + margin);
        assert_true(a->launched_ns >= begun);
    }
    assert_true(h->list[0].begin_ns <= h->list[1].begin_ns && h->list[1].end_ns <= h->list[0].end_ns);
}

/* Of a device that failed: nothing of the stream is asked. */
static void a_recording_is_dropped_without_waiting(void **state)
{
    recorded *now = *state;
    assert_int_equal(activity_start(now->d, now->s, &now->r), FSDP_OK);
    one_operation("linear");
    now->d->stream_synchronize = NULL;
    now->d->event_elapsed = NULL;
    assert_int_equal(activity_stop(now->r, NULL, NULL), FSDP_OK);
    assert_false(hooks_enabled);
}

static fsdp_status refuse(device *d)
{
    (void)d;
    return error_set(FSDP_ERR_UNSUPPORTED, "libcupti is not here");
}

static void the_reason_for_events_is_told(void **state)
{
    recorded *now = *state;
    now->d->activity_begin = refuse;
    assert_int_equal(activity_start(now->d, now->s, &now->r), FSDP_OK);
    assert_string_equal(activity_source(now->r), "events (libcupti is not here)");
    assert_int_equal(activity_stop(now->r, hear, &now->heard), FSDP_OK);
    assert_int_equal(now->heard.n, 0);
}

#define ON_A_DEVICE(test) cmocka_unit_test_setup_teardown(test, open_device, close_device)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_lie_between_the_readings_of_both_clocks),
        cmocka_unit_test(names_of_kernels_are_plain),
        ON_A_DEVICE(a_device_that_shares_host_memory_needs_no_recorder),
        ON_A_DEVICE(operations_are_timed_with_events_where_there_are_no_records),
        ON_A_DEVICE(a_recording_is_dropped_without_waiting),
        ON_A_DEVICE(the_reason_for_events_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
