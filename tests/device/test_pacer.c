/* The thread that answers a device in time; threads of this test stand in for streams. Upper bounds on times hold in
 * one of several tries: a loaded machine may be late, a wrong pacer always is. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "device/pacer.h"

enum { TRIES = 20 };

typedef struct paced {
    void *memory;
    pacer *pacer;
} paced;

static paced open_pacer(void)
{
    paced p = {.memory = aligned_alloc(PACER_STRIDE, pacer_bytes)};
    memset(p.memory, 0, pacer_bytes);
    assert_int_equal(pacer_open(p.memory, &p.pacer), FSDP_OK);
    return p;
}

static void close_pacer(paced *p)
{
    pacer_close(p->pacer);
    free(p->memory);
}

static void pause_for(double seconds)
{
    nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL);
}

/* As a stream does; how long it took, -1 where no answer came in 20 s. */
static double ask(_Atomic uint32_t *word, double seconds, bool follows)
{
    double begun = clock_seconds();
    atomic_store(word, pacer_request(seconds, follows));
    while (atomic_load(word) != 0) {
        if (clock_seconds() - begun > 20)
            return -1;
        pause_for(20e-6);
    }
    return clock_seconds() - begun;
}

static double ask_expected(paced *p, _Atomic uint32_t *word, double seconds, bool follows)
{
    pacer_expect(p->pacer, 1);
    return ask(word, seconds, follows);
}

static void answers_come_when_the_time_has_passed(void **state)
{
    (void)state;
    static const double durations[] = {0, 100e-6, 1e-3, 20e-3};
    paced p = open_pacer();
    _Atomic uint32_t *word = pacer_take(p.pacer);
    for (size_t i = 0; i < sizeof durations / sizeof *durations; i++) {
        double shortest = 1e9;
        for (int k = 0; k < TRIES; k++) {
            double took = ask_expected(&p, word, durations[i], false);
            assert_true(took >= durations[i]);
            shortest = took < shortest ? took : shortest;
        }
        assert_true(shortest < durations[i] + 5e-3);
    }
    close_pacer(&p);
}

/* Time that was lost between two requests is made up for: the move as a whole takes as long as it should. */
static void what_follows_counts_from_when_the_request_before_was_due(void **state)
{
    (void)state;
    paced p = open_pacer();
    _Atomic uint32_t *word = pacer_take(p.pacer);
    double shortest = 1e9;
    for (int k = 0; k < TRIES && shortest > 20e-3; k++) {
        assert_true(ask_expected(&p, word, 1e-3, false) >= 1e-3);
        pause_for(60e-3);
        double took = ask_expected(&p, word, 40e-3, true);
        assert_true(took >= 0);
        shortest = took < shortest ? took : shortest;
    }
    assert_true(shortest <= 20e-3);

    double begun = clock_seconds();
    pacer_expect(p.pacer, 10);
    for (int i = 0; i < 10; i++)
        assert_true(ask(word, 2e-3, i > 0) >= 0);
    assert_true(clock_seconds() - begun >= 20e-3);
    close_pacer(&p);
}

typedef struct asking {
    paced *p;
    unsigned seed;
    int early, lost;
} asking;

static void *ask_at_random(void *context)
{
    asking *a = context;
    for (int round = 0; round < 8; round++) {
        _Atomic uint32_t *word = pacer_take(a->p->pacer);
        int n = 1 + rand_r(&a->seed) % 4;
        pacer_expect(a->p->pacer, n);
        for (int i = 0; i < n; i++) {
            double seconds = rand_r(&a->seed) % 3000 * 1e-6, took = ask(word, seconds, i > 0 && i % 2);
            a->early += i % 2 == 0 && took >= 0 && took < seconds;
            a->lost += took < 0;
        }
        pacer_give_back(a->p->pacer, word);
    }
    return NULL;
}

static void many_wait_at_a_time(void **state)
{
    (void)state;
    enum { THREADS = 8 };
    paced p = open_pacer();
    pthread_t threads[THREADS];
    asking each[THREADS];
    for (int i = 0; i < THREADS; i++) {
        each[i] = (asking){.p = &p, .seed = (unsigned)i + 1};
        assert_int_equal(pthread_create(&threads[i], NULL, ask_at_random, &each[i]), 0);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(each[i].early, 0);
        assert_int_equal(each[i].lost, 0);
    }
    close_pacer(&p);
}

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void it_costs_nothing_while_nothing_is_expected(void **state)
{
    (void)state;
    paced p = open_pacer();
    _Atomic uint32_t *word = pacer_take(p.pacer);
    assert_true(ask_expected(&p, word, 1e-3, false) >= 1e-3);
    double begun = processor_seconds();
    pause_for(0.3);
    double idle = processor_seconds() - begun;
    assert_true(idle < 0.05);
    assert_true(ask_expected(&p, word, 1e-3, false) >= 1e-3); /* and it wakes up again */
    close_pacer(&p);
}

static void waiters_are_limited_and_come_back(void **state)
{
    (void)state;
    paced p = open_pacer();
    _Atomic uint32_t *words[PACER_WAITERS];
    for (int i = 0; i < PACER_WAITERS; i++) {
        words[i] = pacer_take(p.pacer);
        assert_non_null(words[i]);
        for (int k = 0; k < i; k++)
            assert_ptr_not_equal(words[i], words[k]);
    }
    assert_null(pacer_take(p.pacer));
    pacer_give_back(p.pacer, words[17]);
    assert_ptr_equal(pacer_take(p.pacer), words[17]);
    assert_true(ask_expected(&p, words[PACER_WAITERS - 1], 1e-4, false) >= 1e-4);
    close_pacer(&p);
}

static void requests_hold_a_second_at_most(void **state)
{
    (void)state;
    assert_int_equal(pacer_request(5, false), pacer_request(PACER_MAX_SECONDS, false));
    assert_int_not_equal(pacer_request(0.999, false), pacer_request(PACER_MAX_SECONDS, false));
    assert_int_not_equal(pacer_request(0, false), 0);
    assert_int_not_equal(pacer_request(0, true), 0);
    assert_int_equal(pacer_request(-1, false), pacer_request(0, false));
}

/* As after an error of the device: what was expected never comes. */
static void it_ends_with_requests_that_never_come(void **state)
{
    (void)state;
    paced p = open_pacer();
    (void)pacer_take(p.pacer);
    pacer_expect(p.pacer, 3);
    pause_for(1e-3);
    close_pacer(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_come_when_the_time_has_passed),
        cmocka_unit_test(what_follows_counts_from_when_the_request_before_was_due),
        cmocka_unit_test(many_wait_at_a_time),
        cmocka_unit_test(it_costs_nothing_while_nothing_is_expected),
        cmocka_unit_test(waiters_are_limited_and_come_back),
        cmocka_unit_test(requests_hold_a_second_at_most),
        cmocka_unit_test(it_ends_with_requests_that_never_come),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
