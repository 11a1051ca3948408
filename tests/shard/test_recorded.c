/* Recorded work: plainly once, recorded the second time, launched from then on, apart for everything that it depends
 * on; anew after it failed or was forgotten; and never where the device has no graphs or somebody listens to
 * operations. A device of counters stands in for the graphs. */
#include "shard/stack.h"

#include "base/error.h"
#include "base/record/hooks.h"
#include "shard/step/recorded.h"

typedef struct counters {
    int works, begins, ends, launches, frees;
    fsdp_status result; /* of the work */
} counters;

static counters counted;

static fsdp_status do_work(const void *fixed, const void *facts)
{
    (void)facts;
    assert_ptr_equal(fixed, &counted);
    counted.works++;
    return counted.result;
}

/* Work that does one of several things. */
static fsdp_status run_number(device *d, recorded_work *r, int number)
{
    return recorded_run(d, NULL, r, do_work, &counted, (recorded_facts){&number, sizeof number});
}

static fsdp_status run(device *d, recorded_work *r)
{
    return run_number(d, r, 0);
}

static recorded_work ran_once(device *d)
{
    recorded_work r = {.oldest = 0};
    assert_ok(run(d, &r));
    counted.works = 0;
    return r;
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
    recorded_work r = {.oldest = 0};
    assert_ok(run(&d, &r));
    assert_counts(1, 0, 0, 0);
    assert_ok(run(&d, &r));
    assert_counts(2, 1, 1, 0);
    for (int i = 0; i < 3; i++)
        assert_ok(run(&d, &r));
    assert_counts(2, 1, 4, 0);
    recorded_forget(&d, &r);
    assert_counts(2, 1, 4, 1);
    assert_ok(run(&d, &r));
    assert_counts(3, 1, 4, 1);
    recorded_forget(&d, &r);
    assert_counts(3, 1, 4, 1); /* there was no graph yet */
}

static void work_that_fails_while_it_is_recorded_is_forgotten(void **state)
{
    (void)state;
    device d = with_graphs();
    recorded_work r = ran_once(&d);
    counted.result = FSDP_ERR_STATE;
    assert_status(FSDP_ERR_STATE, run(&d, &r));
    assert_counts(1, 1, 0, 1); /* the recording is ended, and not kept */
    counted.result = FSDP_OK;
    assert_ok(run(&d, &r));
    assert_counts(2, 1, 0, 1); /* plainly again */
    assert_ok(run(&d, &r));
    assert_counts(3, 2, 1, 1);
    recorded_forget(&d, &r);
}

static void work_that_fails_plainly_is_not_recorded_next(void **state)
{
    (void)state;
    device d = with_graphs();
    recorded_work r = {.oldest = 0};
    counted.result = FSDP_ERR_STATE;
    assert_status(FSDP_ERR_STATE, run(&d, &r));
    counted.result = FSDP_OK;
    assert_ok(run(&d, &r));
    assert_counts(2, 0, 0, 0);
}

static fsdp_status fail_to_launch(stream *s, graph *g)
{
    (void)s;
    (void)g;
    return error_set(FSDP_ERR_DEVICE, "launching");
}

static void a_graph_that_cannot_be_launched_is_forgotten(void **state)
{
    (void)state;
    device d = with_graphs();
    recorded_work r = ran_once(&d);
    d.graph_launch = fail_to_launch;
    assert_status(FSDP_ERR_DEVICE, run(&d, &r));
    assert_counts(1, 1, 0, 1);
}

static void what_differs_is_recorded_apart(void **state)
{
    (void)state;
    device d = with_graphs();
    recorded_work r = {.oldest = 0};
    for (int round = 0; round < 3; round++) {
        for (int number = 0; number < RECORDED_MAX; number++)
            assert_ok(run_number(&d, &r, number));
    }
    assert_counts(2 * RECORDED_MAX, RECORDED_MAX, 2 * RECORDED_MAX, 0);
    assert_ok(run_number(&d, &r, RECORDED_MAX)); /* one more than there are places: the oldest goes */
    assert_counts(2 * RECORDED_MAX + 1, RECORDED_MAX, 2 * RECORDED_MAX, 1);
    assert_ok(run_number(&d, &r, 1));
    assert_counts(2 * RECORDED_MAX + 1, RECORDED_MAX, 2 * RECORDED_MAX + 1, 1);
    assert_ok(run_number(&d, &r, 0));
    assert_counts(2 * RECORDED_MAX + 2, RECORDED_MAX, 2 * RECORDED_MAX + 1, 2);
    recorded_forget(&d, &r);
}

static void without_graphs_work_is_simply_run(void **state)
{
    (void)state;
    device d = {.graph_begin = NULL};
    recorded_work r = {.oldest = 0};
    counted = (counters){.works = 0};
    for (int i = 0; i < 3; i++)
        assert_ok(run(&d, &r));
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
    recorded_work r = ran_once(&d);
    assert_ok(hooks_add_kind(HOOK_OP, listen, NULL));
    assert_ok(run(&d, &r));
    assert_counts(1, 0, 0, 0);
    hooks_remove(listen, NULL);
    assert_ok(run(&d, &r));
    assert_counts(2, 1, 1, 0);
    recorded_forget(&d, &r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(work_is_run_then_recorded_then_launched),
        cmocka_unit_test(work_that_fails_while_it_is_recorded_is_forgotten),
        cmocka_unit_test(work_that_fails_plainly_is_not_recorded_next),
        cmocka_unit_test(a_graph_that_cannot_be_launched_is_forgotten),
        cmocka_unit_test(what_differs_is_recorded_apart),
        cmocka_unit_test(without_graphs_work_is_simply_run),
        cmocka_unit_test(while_somebody_listens_to_operations_work_is_simply_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
