/* The same random programs with their schedule shaken: delays around collectives, copies and events, and NaN in
 * whatever has been given up. No bit may change. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "differential/support_session.h"

static session run = {.first = 1000001, .n_cases = 576, .n_variants = 2, .shaken = true, .comm_threads = true};

static void a_shaken_schedule_changes_no_bit(void **state)
{
    (void)state;
    assert_int_equal(session_run(&run), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_shaken_schedule_changes_no_bit)};
    return session_parse(&run, argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}
