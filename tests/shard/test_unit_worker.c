/* The worker: units in the order given, those not ready passed over, every failure and every wait told with the unit's
 * name. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <string.h>

#include "base/error.h"
#include "shard/offload/worker.h"

enum { UNITS = 5 };

static char names[UNITS][8] = {"zero", "one", "two", "three", "four"};

static layout *five_units(void)
{
    static layout_unit units[UNITS];
    static layout l = {.n_units = UNITS, .units = units};
    for (int i = 0; i < UNITS; i++)
        units[i].name = names[i];
    return &l;
}

/* What the work does and what it saw; shared with the worker's thread. */
typedef struct watch {
    pthread_mutex_t lock;
    int order[2 * UNITS], n;
    bool held[UNITS]; /* not ready */
    int failing;      /* -1: none */
} watch;

static fsdp_status is_ready(void *context, int index, bool *ready)
{
    watch *w = context;
    pthread_mutex_lock(&w->lock);
    *ready = !w->held[index];
    pthread_mutex_unlock(&w->lock);
    return FSDP_OK;
}

static fsdp_status note(void *context, int index)
{
    watch *w = context;
    pthread_mutex_lock(&w->lock);
    w->order[w->n++] = index;
    bool fails = index == w->failing;
    pthread_mutex_unlock(&w->lock);
    return fails ? error_set(FSDP_ERR_IO, "a disk on fire") : FSDP_OK;
}

static void set_held(watch *w, int index, bool held)
{
    pthread_mutex_lock(&w->lock);
    w->held[index] = held;
    pthread_mutex_unlock(&w->lock);
}

static watch new_watch(void)
{
    return (watch){.lock = PTHREAD_MUTEX_INITIALIZER, .failing = -1};
}

static void units_are_worked_through_in_the_order_given(void **state)
{
    (void)state;
    unit_worker *worker;
    watch w = new_watch();
    const unit_work work = {is_ready, note, &w};
    const int first[] = {3, 0, 4}, second[] = {1, 2};
    assert_int_equal(unit_worker_create(five_units(), 10, &worker), FSDP_OK);
    assert_int_equal(unit_worker_wait(worker, -1), FSDP_OK); /* nothing was given */
    assert_int_equal(unit_worker_give(worker, &work, first, 3), FSDP_OK);
    assert_int_equal(unit_worker_wait(worker, 1), FSDP_OK); /* not given: done */
    assert_int_equal(unit_worker_give(worker, &work, second, 2), FSDP_OK);
    assert_int_equal(unit_worker_wait(worker, -1), FSDP_OK);
    const int expected[] = {3, 0, 4, 1, 2};
    assert_int_equal(w.n, 5);
    assert_memory_equal(w.order, expected, sizeof expected);
    unit_worker_free(worker);
    unit_worker_free(NULL);
}

static void a_unit_that_is_not_ready_lets_the_others_pass(void **state)
{
    (void)state;
    unit_worker *worker;
    watch w = new_watch();
    const unit_work work = {is_ready, note, &w};
    const int order[] = {2, 0, 1};
    w.held[2] = true;
    assert_int_equal(unit_worker_create(five_units(), 10, &worker), FSDP_OK);
    assert_int_equal(unit_worker_give(worker, &work, order, 3), FSDP_OK);
    assert_int_equal(unit_worker_wait(worker, 0), FSDP_OK);
    assert_int_equal(unit_worker_wait(worker, 1), FSDP_OK);
    set_held(&w, 2, false);
    assert_int_equal(unit_worker_wait(worker, 2), FSDP_OK);
    const int expected[] = {0, 1, 2};
    assert_memory_equal(w.order, expected, sizeof expected);
    unit_worker_free(worker);
}

static void a_failure_names_its_unit_and_is_told_to_everyone_after(void **state)
{
    (void)state;
    unit_worker *worker;
    watch w = new_watch();
    const unit_work work = {is_ready, note, &w};
    const int order[] = {0, 3, 4};
    w.failing = 3;
    assert_int_equal(unit_worker_create(five_units(), 10, &worker), FSDP_OK);
    assert_int_equal(unit_worker_give(worker, &work, order, 3), FSDP_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(unit_worker_wait(worker, 4), FSDP_ERR_IO);
        assert_non_null(strstr(fsdp_last_error(), "unit three"));
        assert_non_null(strstr(fsdp_last_error(), "a disk on fire"));
    }
    assert_int_equal(unit_worker_give(worker, &work, order, 1), FSDP_ERR_IO);
    assert_int_equal(w.n, 2); /* nothing is done behind it */
    unit_worker_free(worker);
}

static void units_are_added_and_withdrawn_one_by_one(void **state)
{
    (void)state;
    unit_worker *worker;
    watch w = new_watch();
    const unit_work work = {is_ready, note, &w};
    w.held[1] = w.held[3] = true;
    assert_int_equal(unit_worker_create(five_units(), 10, &worker), FSDP_OK);
    assert_false(unit_worker_withdraw(worker, 2)); /* not given */
    for (int i = 0; i < 4; i++)
        assert_int_equal(unit_worker_add(worker, &work, i), FSDP_OK);
    assert_int_equal(unit_worker_wait(worker, 0), FSDP_OK);
    assert_int_equal(unit_worker_wait(worker, 2), FSDP_OK);
    assert_false(unit_worker_withdraw(worker, 2)); /* done */
    assert_true(unit_worker_withdraw(worker, 1));
    assert_int_equal(unit_worker_wait(worker, 1), FSDP_OK); /* no longer the worker's */
    set_held(&w, 3, false);
    assert_int_equal(unit_worker_wait(worker, -1), FSDP_OK);
    set_held(&w, 1, false);
    assert_int_equal(unit_worker_add(worker, &work, 1), FSDP_OK); /* and again */
    assert_int_equal(unit_worker_wait(worker, -1), FSDP_OK);
    const int expected[] = {0, 2, 3, 1};
    assert_int_equal(w.n, 4);
    assert_memory_equal(w.order, expected, sizeof expected);
    set_held(&w, 4, true);
    assert_int_equal(unit_worker_add(worker, &work, 4), FSDP_OK);
    assert_true(unit_worker_withdraw(worker, 4)); /* the only one that it waits for */
    assert_int_equal(unit_worker_wait(worker, -1), FSDP_OK);
    unit_worker_free(worker);
}

static void every_wait_ends(void **state)
{
    (void)state;
    unit_worker *worker;
    watch w = new_watch();
    const unit_work work = {is_ready, note, &w};
    const int order[] = {1};
    w.held[1] = true;
    assert_int_equal(unit_worker_create(five_units(), 0.05, &worker), FSDP_OK);
    assert_int_equal(unit_worker_give(worker, &work, order, 1), FSDP_OK);
    assert_int_equal(unit_worker_wait(worker, 1), FSDP_ERR_TIMEOUT);
    assert_non_null(strstr(fsdp_last_error(), "unit one"));
    assert_int_equal(unit_worker_wait(worker, -1), FSDP_ERR_TIMEOUT);
    unit_worker_free(worker); /* with a unit that never comes */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_worked_through_in_the_order_given),
        cmocka_unit_test(a_unit_that_is_not_ready_lets_the_others_pass),
        cmocka_unit_test(a_failure_names_its_unit_and_is_told_to_everyone_after),
        cmocka_unit_test(units_are_added_and_withdrawn_one_by_one),
        cmocka_unit_test(every_wait_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
