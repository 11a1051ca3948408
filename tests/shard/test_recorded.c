/* Recorded work: plainly once, recorded the second time, launched from then on; anew after it was forgotten; and never
 * where the device has no graphs or somebody listens to operations. A device of counters stands in for the graphs. */
#include "shard/stack.h"

#include "base/hooks.h"
#include "shard/recorded.h"

typedef struct counters {
    int works, begins, ends, launches, frees;
    fsdp_status result; /* of the work */
} counters;

static counters counted;

static fsdp_status do_work(void *context)
{
    ++((counters *)context)->works;
    return ((counters *)context)->result;
}

static fsdp_status begin(stream *s)
{
    (void)s;
    counted.begins++;
    return FSDP_OK;
}

static fsdp_status end(stream *s, graph **out)
{
    (void)s;
    counted.ends++;
    *out = (graph *)&counted;
    return FSDP_OK;
}

static fsdp_status launch(stream *s, graph *g)
{
    (void)s;
    assert_ptr_equal(g, &counted);
    counted.launches++;
    return FSDP_OK;
}

static void forget(graph *g)
{
    assert_ptr_equal(g, &counted);
    counted.frees++;
}

static device with_graphs(void)
{
    counted = (counters){.works = 0};
    return (device){.graph_begin = begin, .graph_end = end, .graph_launch = launch, .graph_free = forget};
}

static void assert_counts(int works, int begins, int launches, int frees)
{
    assert_int_equal(counted.works, works);
    assert_int_equal(counted.begins, begins);
    assert_int_equal(counted.ends, begins);
    assert_int_equal(counted.launches, launches);
    assert_int_equal(counted.frees, frees);
}

static void work_is_run_then_recorded_then_launched(void **state)
{
    (void)state;
    device d = with_graphs();
    recorded_work r = {NULL, false};
    assert_ok(recorded_run(&d, NULL, &r, do_work, &counted));
    assert_counts(1, 0, 0, 0);
    assert_ok(recorded_run(&d, NULL, &r, do_work, &counted));
    assert_counts(2, 1, 1, 0);
    for (int i = 0; i < 3; i++)
        assert_ok(recorded_run(&d, NULL, &r, do_work, &counted));
    assert_counts(2, 1, 4, 0);
    recorded_forget(&d, &r);
    assert_counts(2, 1, 4, 1);
    assert_ok(recorded_run(&d, NULL, &r, do_work, &counted));
    assert_counts(3, 1, 4, 1);
    recorded_forget(&d, &r);
    assert_counts(3, 1, 4, 1); /* there was no graph yet */
}

static void a_failure_while_recording_is_returned_and_the_recording_ended(void **state)
{
    (void)state;
    device d = with_graphs();
    recorded_work r = {NULL, true};
    counted.result = FSDP_ERR_STATE;
    assert_status(FSDP_ERR_STATE, recorded_run(&d, NULL, &r, do_work, &counted));
    assert_counts(1, 1, 0, 0);
    recorded_forget(&d, &r);
}

static void without_graphs_work_is_simply_run(void **state)
{
    (void)state;
    device d = {.graph_begin = NULL};
    recorded_work r = {NULL, false};
    counted = (counters){.works = 0};
    for (int i = 0; i < 3; i++)
        assert_ok(recorded_run(&d, NULL, &r, do_work, &counted));
    assert_counts(3, 0, 0, 0);
}

static void listen(void *context, const hook_event *e)
{
    (void)context;
    (void)e;
}

static void while_somebody_listens_to_operations_work_is_simply_run(void **state)
{
    (void)state;
    device d = with_graphs();
    recorded_work r = {NULL, true};
    assert_ok(hooks_add_kind(HOOK_OP, listen, NULL));
    assert_ok(recorded_run(&d, NULL, &r, do_work, &counted));
    assert_counts(1, 0, 0, 0);
    hooks_remove(listen, NULL);
    assert_ok(recorded_run(&d, NULL, &r, do_work, &counted));
    assert_counts(2, 1, 1, 0);
    recorded_forget(&d, &r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_is_run_then_recorded_then_launched),
        cmocka_unit_test(a_failure_while_recording_is_returned_and_the_recording_ended),
        cmocka_unit_test(without_graphs_work_is_simply_run),
        cmocka_unit_test(while_somebody_listens_to_operations_work_is_simply_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
