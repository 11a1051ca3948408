/* Waits for a core: a thread that shares its core waits, and so does its team; a thread that sleeps waits for nobody.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

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

/* This process may use one core; returns what it could use before. */
static cpu_set_t take_one_core(void)
{
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    return before;
}

static void compute_for(double seconds)
{
    double until = clock_seconds() + seconds;
    while (clock_seconds() < until)
        ;
}

static void a_thread_that_shares_its_core_waits(void **state)
{
    core_wait *w = *state;
    pthread_t other;
    omp_set_num_threads(1);
    if (core_wait_take(w) < 0)
        skip(); /* this system does not count */
    cpu_set_t before = take_one_core();
    atomic_store(&stop, false);
    assert_int_equal(pthread_create(&other, NULL, compute, NULL), 0);
    (void)core_wait_take(w);
    compute_for(0.1);
    double working = core_wait_take(w);
    atomic_store(&stop, true);
    pthread_join(other, NULL);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_true(working > 0.01);
}

static void a_team_waits_together(void **state)
{
    core_wait *w = *state;
    cpu_set_t before = take_one_core(); /* before the team begins: its threads inherit it */
    omp_set_num_threads(3);
    if (core_wait_take(w) < 0)
        skip();
    (void)core_wait_take(w);
#pragma omp parallel
    compute_for(0.1);
    double waited = core_wait_take(w);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    omp_set_num_threads(1);
    assert_true(waited > 0.1); /* two of the three, at any time */
    assert_true(core_wait_take(w) >= 0);
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

static pid_t fork_computing(void)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            ;
    }
    return child;
}

static void other_processes_wait_too(void **state)
{
    (void)state;
    int status;
    cpu_set_t before = take_one_core();
    pid_t first = fork_computing(), second = fork_computing(); /* on one core */
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    core_watch w = {0};
    int64_t start = core_watch_look(&w, first);
    for (int i = 0; i < 200 && core_watch_look(&w, first) - start < 10000; i++)
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    bool counted = core_watch_look(&w, first) > 0;
    int64_t waited = core_watch_look(&w, first) - start;
    kill(first, SIGSTOP); /* it could not run if it had a core */
    assert_int_equal(waitpid(first, &status, WUNTRACED), first);
    start = core_watch_look(&w, first);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    int64_t stopped = core_watch_look(&w, first) - start;
    kill(first, SIGKILL);
    kill(second, SIGKILL);
    waitpid(first, NULL, 0);
    waitpid(second, NULL, 0);
    assert_int_equal(core_watch_look(&w, first), 0);
    if (!counted)
        skip();
    assert_true(waited >= 10000);
    assert_int_equal(stopped, 0);
}

/* While it waits, the system does not say so: it counts a wait when it is over. */
static void a_wait_that_has_not_ended_counts(void **state)
{
    (void)state;
    const struct sched_param none = {0};
    core_watch w = {0};
    cpu_set_t before = take_one_core();
    pid_t waiting = fork_computing(), working[2] = {fork_computing(), fork_computing()};
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_int_equal(sched_setscheduler(waiting, SCHED_IDLE, &none), 0);
    int64_t before_look = core_watch_look(&w, waiting), unseen = 0;
    for (int i = 0; i < 60; i++) {
        int64_t counted = w.waited;
        nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        int64_t seen = core_watch_look(&w, waiting);
        unseen += w.waited == counted ? seen - before_look : 0;
        before_look = seen;
    }
    bool counted = w.waited > 0;
    for (int i = 0; i < 2; i++)
        kill(working[i], SIGKILL);
    kill(waiting, SIGKILL);
    waitpid(waiting, NULL, 0);
    waitpid(working[0], NULL, 0);
    waitpid(working[1], NULL, 0);
    if (!counted)
        skip();
    assert_true(core_watch_look(&w, waiting) == 0);
    assert_true(unseen > 500000); /* of 3 s, in which it had a hundredth of the core */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_thread_that_shares_its_core_waits, open_wait, close_wait),
        cmocka_unit_test_setup_teardown(a_team_waits_together, open_wait, close_wait),
        cmocka_unit_test_setup_teardown(sleep_is_no_wait, open_wait, close_wait),
        cmocka_unit_test(other_processes_wait_too),
        cmocka_unit_test(a_wait_that_has_not_ended_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
