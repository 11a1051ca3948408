/* The overlap meter on made-up events: collectives and waits are added up apart, and counted from the last look on. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <time.h>

#include "base/record/hooks.h"
#include "observe/overlap.h"

static void pass(long milliseconds)
{
    struct timespec time = {.tv_nsec = milliseconds * 1000000};
    nanosleep(&time, NULL);
}

/* 4 ms of a collective, of which somebody waits for the last 2. */
static void collect(void)
{
    HOOK(HOOK_COLLECTIVE, HOOK_BEGIN, "all_gather", "layers.1", 64, 1);
    pass(2);
    HOOK(HOOK_WAIT, HOOK_BEGIN, "all_gather", "layers.1", 0, 0);
    pass(2);
    HOOK(HOOK_COLLECTIVE, HOOK_END, "all_gather", "layers.1", 0, 1);
    HOOK(HOOK_WAIT, HOOK_END, "all_gather", "layers.1", 0, 0);
}

static void collectives_and_waits_are_added_up_apart(void **state)
{
    (void)state;
    overlap_meter *m;
    assert_int_equal(overlap_meter_start(&m), FSDP_OK);
    collect();
    collect();
    HOOK(HOOK_OP, HOOK_BEGIN, "linear.forward", NULL, 0, 0); /* of no concern */
    HOOK(HOOK_OP, HOOK_END, "linear.forward", NULL, 0, 0);
    overlap_times t = overlap_meter_take(m);
    assert_true(t.communication_ns >= 8000000);
    assert_true(t.exposed_ns >= 4000000 && t.exposed_ns < t.communication_ns);
    t = overlap_meter_take(m);
    assert_int_equal(t.communication_ns, 0);
    assert_int_equal(t.exposed_ns, 0);
    overlap_meter_free(m);
}

static void what_began_before_the_meter_is_not_counted(void **state)
{
    (void)state;
    overlap_meter *m;
    assert_int_equal(overlap_meter_start(&m), FSDP_OK);
    HOOK(HOOK_COLLECTIVE, HOOK_END, "all_gather", NULL, 0, 1);
    HOOK(HOOK_WAIT, HOOK_END, "all_gather", NULL, 0, 0);
    overlap_times t = overlap_meter_take(m);
    assert_int_equal(t.communication_ns, 0);
    assert_int_equal(t.exposed_ns, 0);
    overlap_meter_free(m);
    overlap_meter_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_and_waits_are_added_up_apart),
        cmocka_unit_test(what_began_before_the_meter_is_not_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
