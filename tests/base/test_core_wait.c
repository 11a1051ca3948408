/* Waits for a core: two threads that compute on one core wait for each other; a thread that sleeps waits for nobody. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#include "base/clock.h"
#include "base/host/core_wait.h"

static atomic_bool stop;

static void *compute(void *context)
{
    (void)context;
    while (!atomic_load(&stop))
        ;
    return NULL;
}

static int open_wait(void **state)
{
    core_wait *w;
    if (core_wait_open(&w) != FSDP_OK)
        return -1;
    *state = w;
    return 0;
}

static int close_wait(void **state)
{
    core_wait_close(*state);
    return 0;
}

static void threads_that_share_a_core_wait_for_each_other(void **state)
{
    core_wait *w = *state;
    cpu_set_t before, one;
    pthread_t other;
    if (core_wait_take(w) < 0)
        skip(); /* this system does not count */
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    atomic_store(&stop, false);
    assert_int_equal(pthread_create(&other, NULL, compute, NULL), 0);
    double waited = core_wait_take(w), until = clock_seconds() + 0.1; /* the second call: it finds the thread */
    while (clock_seconds() < until)
        ;
    waited += core_wait_take(w);
    assert_true(waited > 0.01); /* one of the two, nearly all the time */
    atomic_store(&stop, true);
    pthread_join(other, NULL);
    assert_true(core_wait_take(w) >= 0); /* of the one that is left */
    assert_true(core_wait_take(w) >= 0);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

static void sleep_is_no_wait(void **state)
{
    core_wait *w = *state;
    double least = 1;
    if (core_wait_take(w) < 0)
        skip();
    for (int i = 0; i < 10; i++) { /* others may want the core when it wakes, not every time for so long */
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        double waited = core_wait_take(w);
        least = waited < least ? waited : least;
    }
    assert_true(least >= 0 && least < 0.04);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(threads_that_share_a_core_wait_for_each_other, open_wait, close_wait),
        cmocka_unit_test_setup_teardown(sleep_is_no_wait, open_wait, close_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
