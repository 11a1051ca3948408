/* What ran on a device, in a trace: on tracks of its streams, named after the operations that asked for it, in graphs
 * too; the summary counts it, and what lies under compute. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>

#include <fsdp/trace.h>

#include "base/json.h"
#include "base/record/hooks.h"
#include "observe/device_spans.h"
#include "observe/intervals.h"
#include "observe/trace_file.h"
#include "temporary.h"

static trace_event span(const char *name, const char *detail, int64_t from, int64_t to)
{
    trace_event e = {.begin_ns = from, .end_ns = to};
    snprintf(e.name, sizeof e.name, "%s", name);
    snprintf(e.detail, sizeof e.detail, "%s", detail);
    snprintf(e.where, sizeof e.where, "at %s", detail);
    return e;
}

static void add_kernel(device_spans *d, const char *name, int64_t from, int64_t launched)
{
    device_spans_add(d, &(trace_device_span){.name = name,
                                             .kind = TRACE_KERNEL,
                                             .begin_ns = from,
                                             .end_ns = from + 10,
                                             .launched_ns = launched,
                                             .stream = 7});
}

/* Two steps of the same kernels: the first was asked for operation by operation, the second is a graph. The order in
 * which records come is not that of time. */
static void kernels_of_a_graph_are_those_of_the_step_that_ran_plainly(void **state)
{
    (void)state;
    trace_event ops[] = {span("linear", "forward", 110, 120), span("norm", "forward", 120, 130),
                         span("linear", "backward", 130, 140)};
    trace_event steps[] = {span("step", "", 100, 400), span("step", "", 500, 800)};
    const trace_event *of_ops[] = {&ops[2], &ops[0], &ops[1]}, *of_steps[] = {&steps[1], &steps[0]};
    device_spans d = {.list = NULL};
    add_kernel(&d, "gemm", 750, 505);
    add_kernel(&d, "gemm", 700, 505);
    add_kernel(&d, "rows", 720, 505);
    add_kernel(&d, "gemm", 200, 111);
    add_kernel(&d, "gemm", 300, 139);
    add_kernel(&d, "rows", 250, 125);
    add_kernel(&d, "new", 760, 505);  /* the plain step has none of it */
    add_kernel(&d, "gemm", 450, 445); /* between the steps */
    add_kernel(&d, "between", 460, 0);
    device_spans_name(&d, of_ops, 3, of_steps, 2);
    static const char *const expected[] = {"linear.backward",
                                           "linear.forward",
                                           "norm.forward",
                                           "linear.forward",
                                           "linear.backward",
                                           "norm.forward",
                                           "",
                                           "",
                                           ""};
    for (size_t i = 0; i < d.n; i++)
        assert_string_equal(device_spans_at(&d, i).detail, expected[i]);
    assert_string_equal(device_spans_at(&d, 2).where, "at forward");
    device_spans_free(&d);
}

/* With another number of kernels of that name nothing is known about which is which. */
static void kernels_are_not_named_by_guessing(void **state)
{
    (void)state;
    trace_event op = span("linear", "forward", 110, 120);
    trace_event steps[] = {span("step", "", 100, 400), span("step", "", 500, 800)};
    const trace_event *of_ops[] = {&op}, *of_steps[] = {&steps[0], &steps[1]};
    device_spans d = {.list = NULL};
    add_kernel(&d, "gemm", 200, 111);
    add_kernel(&d, "gemm", 600, 505);
    add_kernel(&d, "gemm", 620, 505);
    device_spans_name(&d, of_ops, 1, of_steps, 2);
    assert_string_equal(device_spans_at(&d, 0).detail, "linear.forward");
    assert_string_equal(device_spans_at(&d, 1).detail, "");
    assert_string_equal(device_spans_at(&d, 2).detail, "");
    device_spans_free(&d);
    device_spans_name(&d, NULL, 0, NULL, 0); /* nothing ran */
}

/* Random lists against the sum over single units of time. */
static void intervals_agree_with_counting(void **state)
{
    (void)state;
    unsigned seed = 5;
    for (int round = 0; round < 300; round++) {
        enum { LENGTH = 60 };
        bool covered[2][LENGTH] = {{false}};
        intervals lists[2] = {{NULL, 0, 0}, {NULL, 0, 0}};
        for (int i = 0; i < 2; i++) {
            for (int n = rand_r(&seed) % 12; n > 0; n--) {
                int from = rand_r(&seed) % LENGTH, to = from + rand_r(&seed) % (LENGTH - from);
                assert_true(intervals_add(&lists[i], from, to));
                for (int k = from; k < to; k++)
                    covered[i][k] = true;
            }
            intervals_join(&lists[i]);
        }
        int counted[3] = {0};
        for (int k = 0; k < LENGTH; k++) {
            counted[0] += covered[0][k];
            counted[1] += covered[1][k];
            counted[2] += covered[0][k] && covered[1][k];
        }
        assert_int_equal(intervals_length(&lists[0]), counted[0]);
        assert_int_equal(intervals_length(&lists[1]), counted[1]);
        assert_int_equal(intervals_overlap(&lists[0], &lists[1]), counted[2]);
        assert_int_equal(intervals_overlap(&lists[1], &lists[0]), counted[2]);
        intervals_free(&lists[0]);
        intervals_free(&lists[1]);
    }
}

/* ---- the file and its summary ---- */

static void add_span(trace *t, const char *name, int kind, int64_t begin, int64_t microseconds, uint32_t stream,
                     int64_t launched)
{
    trace_add_device(t, &(trace_device_span){.name = name,
                                             .kind = kind,
                                             .begin_ns = begin,
                                             .end_ns = begin + 1000 * microseconds,
                                             .launched_ns = launched,
                                             .bytes = kind == TRACE_COPY ? 4096 : 0,
                                             .stream = stream});
}

static int64_t moments[2];

static void note_operation(void *context, const hook_event *e)
{
    (void)context;
    if (e->kind == HOOK_OP)
        moments[e->moment == HOOK_END] = e->time_ns;
}

static char *write_trace(trace *t, const char *folder)
{
    char *path = file_join(folder, "trace.json");
    trace_file *f;
    trace_event events[5];
    size_t at = 0, n;
    assert_int_equal(trace_file_create(path, &f), FSDP_OK);
    while ((n = trace_take(t, &at, events, 5)) > 0)
        trace_file_add(f, 0, 0, events, n);
    assert_int_equal(trace_file_close(f), FSDP_OK);
    return path;
}

static const json_t *find(const json_t *array, const char *name)
{
    size_t i;
    const json_t *e;
    json_array_foreach(array, i, e)
    {
        const char *own = json_string_value(json_object_get(e, "name"));
        if (own && strcmp(own, name) == 0)
            return e;
    }
    return NULL;
}

/* Of 100 us that a sum over ranks takes on its stream, a kernel computes beside it for 60. */
static void the_summary_counts_what_ran_on_the_device(void **state)
{
    trace *t;
    hook_call linear = {.where = "layers.7.up_proj [8, 64]"};
    assert_int_equal(trace_start(0, NULL, &t), FSDP_OK);
    assert_int_equal(hooks_add(note_operation, NULL), FSDP_OK);
    HOOK(HOOK_PHASE, HOOK_BEGIN, "step", NULL, 0, 0);
    HOOK_CALL(HOOK_OP, HOOK_BEGIN, "linear", "forward", 0, 0, &linear);
    HOOK_CALL(HOOK_OP, HOOK_END, "linear", "forward", 0, 0, &linear);
    struct timespec pause = {.tv_nsec = 1000000};
    nanosleep(&pause, NULL);
    HOOK(HOOK_PHASE, HOOK_END, "step", NULL, 0, 0);
    hooks_remove(note_operation, NULL);
    trace_stop(t);
    int64_t zero = moments[1], launched = moments[0] + (moments[1] - moments[0]) / 2;
    add_span(t, "ncclDevKernel_SendRecv", TRACE_KERNEL, zero, 90, 19, 0);
    add_span(t, "sum_parts", TRACE_KERNEL, zero + 90000, 10, 19, 0);
    add_span(t, "gemm_\"bf16\"", TRACE_KERNEL, zero + 40000, 80, 7, launched);
    add_span(t, "copy to the host", TRACE_COPY, zero + 200000, 20, 7, 0);
    char *path = write_trace(t, *state), *text;
    json_t *array;
    assert_int_equal(json_read_file(path, &array), FSDP_OK);
    const json_t *gemm = find(array, "gemm_\"bf16\""), *args = json_object_get(gemm, "args");
    assert_string_equal(json_string_value(json_object_get(gemm, "cat")), "kernel");
    assert_string_equal(json_string_value(json_object_get(args, "detail")), "linear.forward");
    assert_string_equal(json_string_value(json_object_get(args, "where")), "layers.7.up_proj [8, 64]");
    assert_float_equal(json_number_value(json_object_get(gemm, "dur")), 80, 0.01);
    char *whole = json_dumps(array, 0);
    assert_non_null(strstr(whole, "\"stream 7\""));
    assert_non_null(strstr(whole, "\"stream 19\""));
    free(whole);
    json_decref(array);
    const char *files[] = {path};
    if (fsdp_trace_summary(files, 1, &text) != FSDP_OK)
        fail_msg("%s", fsdp_last_error());
    print_message("%s", text);
    assert_non_null(strstr(text, "device busy: 0.140 ms a step"));
    assert_non_null(strstr(text, "exposed communication: 0.040 ms a step"));
    assert_non_null(strstr(text, "hidden under compute: 60.0% of 0.100 ms"));
    assert_non_null(strstr(text, "operation linear.forward"));
    assert_non_null(strstr(text, "kernel ncclDevKernel_SendRecv"));
    assert_non_null(strstr(text, "device copy to the host"));
    const char *op = strstr(text, "operation linear.forward");
    double ms;
    assert_int_equal(sscanf(op, "operation linear.forward %lf", &ms), 1);
    assert_float_equal(ms, 0.08, 0.0005); /* the kernel's, not the host's */
    free(text);
    free(path);
    trace_free(t);
}

static void operations_may_be_left_out_from_a_step_on(void **state)
{
    (void)state;
    trace *t;
    trace_event events[16];
    size_t at = 0;
    assert_int_equal(trace_start(0, NULL, &t), FSDP_OK);
    HOOK(HOOK_OP, HOOK_INSTANT, "heard", NULL, 0, 0);
    assert_int_equal(trace_skip_operations(t), FSDP_OK);
    assert_int_equal(hooks_kinds >> HOOK_OP & 1, 0); /* so that steps may be recorded */
    HOOK(HOOK_OP, HOOK_INSTANT, "not heard", NULL, 0, 0);
    HOOK(HOOK_PHASE, HOOK_INSTANT, "heard, too", NULL, 0, 0);
    trace_stop(t);
    assert_false(hooks_enabled);
    assert_int_equal(trace_take(t, &at, events, 16), 4); /* the trace, a row, two events */
    assert_string_equal(events[3].name, "heard, too");
    trace_free(t);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_of_a_graph_are_those_of_the_step_that_ran_plainly),
        cmocka_unit_test(kernels_are_not_named_by_guessing),
        cmocka_unit_test(intervals_agree_with_counting),
        TEST(the_summary_counts_what_ran_on_the_device),
        cmocka_unit_test(operations_may_be_left_out_from_a_step_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
