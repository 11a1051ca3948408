/* Random training programs against a naive reference, and under every strategy against each other: evaluation between
 * micro-batches, several losses, changing shapes, units that are used or not, ranks without data, frozen and tied
 * parameters, NaN, low precision, clipping, accumulation with and without synchronisation, checkpointing, offload,
 * dropout. Between settings that promise it, to the bit. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "differential/support_session.h"

static session run = {.first = 1, .n_cases = 2304, .n_variants = 3};

static void random_programs_follow_the_reference_under_every_strategy(void **state)
{
    (void)state;
    assert_int_equal(session_run(&run), 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_programs_follow_the_reference_under_every_strategy),
    };
    return session_parse(&run, argc, argv) ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}
