/* The thread policy and the environment it reads. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <omp.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/host/environment.h"
#include "base/host/threads.h"

static int default_share(int local_ranks)
{
    int share = threads_cores() / local_ranks;
    return share > 0 ? share : 1;
}

static void cores_are_those_of_the_affinity_mask(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(threads_cores(), CPU_COUNT(&before));
    int first = 0;
    while (!CPU_ISSET(first, &before))
        first++;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(threads_cores(), 1);
    unsetenv("OMP_NUM_THREADS");
    assert_int_equal(threads_set(0, 1), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void the_default_is_the_ranks_share(void **state)
{
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    for (int ranks = 1; ranks <= 64; ranks *= 2) {
        assert_int_equal(threads_set(0, ranks), default_share(ranks));
        assert_int_equal(threads_count(), default_share(ranks));
        assert_int_equal(omp_get_max_threads(), default_share(ranks));
    }
    assert_int_equal(threads_set(0, 0), threads_cores());
}

static void the_environment_wins_over_the_share_but_not_over_the_cores(void **state)
{
    (void)state;
    setenv("OMP_NUM_THREADS", "1", 1);
    assert_int_equal(threads_set(0, 1), 1);
    setenv("OMP_NUM_THREADS", "1,4", 1);
    assert_int_equal(threads_set(0, 1), 1);
    setenv("OMP_NUM_THREADS", "100000", 1);
    assert_int_equal(threads_set(0, 1), threads_cores());
    static const char *const nonsense[] = {"", "many", "0", "-3", "2x"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        setenv("OMP_NUM_THREADS", nonsense[i], 1);
        assert_int_equal(threads_set(0, 1), threads_cores());
    }
    unsetenv("OMP_NUM_THREADS");
}

static void an_explicit_request_wins_over_everything(void **state)
{
    (void)state;
    setenv("OMP_NUM_THREADS", "1", 1);
    assert_int_equal(threads_set(threads_cores() + 3, 8), threads_cores() + 3);
    assert_int_equal(threads_count(), threads_cores() + 3);
    unsetenv("OMP_NUM_THREADS");
    threads_set(0, 1);
}

static void numbers_and_text_are_read_from_the_environment(void **state)
{
    (void)state;
    int64_t value = 5;
    setenv("FSDP_TEST_VARIABLE", "-12", 1);
    assert_true(environment_int("FSDP_TEST_VARIABLE", &value));
    assert_int_equal(value, -12);
    assert_string_equal(environment_text("FSDP_TEST_VARIABLE"), "-12");
    static const char *const nonsense[] = {"", "1.5", "12 ", "x", "99999999999999999999"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        setenv("FSDP_TEST_VARIABLE", nonsense[i], 1);
        assert_false(environment_int("FSDP_TEST_VARIABLE", &value));
    }
    assert_int_equal(value, -12);
    setenv("FSDP_TEST_VARIABLE", "", 1);
    assert_null(environment_text("FSDP_TEST_VARIABLE"));
    unsetenv("FSDP_TEST_VARIABLE");
    assert_null(environment_text("FSDP_TEST_VARIABLE"));
}

static void the_clock_never_goes_back(void **state)
{
    (void)state;
    int64_t last = clock_nanoseconds();
    double seconds = clock_seconds();
    for (int i = 0; i < 100000; i++) {
        int64_t now = clock_nanoseconds();
        assert_true(now >= last);
        last = now;
    }
    assert_true(clock_seconds() > seconds && clock_seconds() < seconds + 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_are_those_of_the_affinity_mask),
        cmocka_unit_test(the_default_is_the_ranks_share),
        cmocka_unit_test(the_environment_wins_over_the_share_but_not_over_the_cores),
        cmocka_unit_test(an_explicit_request_wins_over_everything),
        cmocka_unit_test(numbers_and_text_are_read_from_the_environment),
        cmocka_unit_test(the_clock_never_goes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
