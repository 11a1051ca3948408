/* A run's steps are all there while they are few; of many, the extremes stay, and the points are bounded. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "report/history.h"

static metrics_row row(int64_t step, double loss)
{
    metrics_row r = {.step = step, .slow_rank = -1};
    r.figures[FIGURE_LOSS] = loss;
    r.figures[FIGURE_SECONDS] = (double)step / 1000;
    r.laps[LAP_FORWARD] = 0.25F;
    return r;
}

static void add(history *h, int64_t step, double loss)
{
    metrics_row r = row(step, loss);
    history_add(h, &r);
}

/* Where `step` stands in the curves; -1: nowhere. */
static int place(const json_t *curves, int64_t step)
{
    const json_t *steps = json_object_get(curves, "step"), *one;
    size_t i;
    json_array_foreach(steps, i, one)
    {
        if (json_integer_value(one) == step)
            return (int)i;
    }
    return -1;
}

static const json_t *loss_at(const json_t *curves, int64_t step)
{
    int i = place(curves, step);
    assert_true(i >= 0);
    return json_array_get(json_object_get(curves, "loss"), (size_t)i);
}

static void assert_ascending(const json_t *curves)
{
    const json_t *steps = json_object_get(curves, "step"), *one;
    json_int_t before = -1;
    size_t i;
    json_array_foreach(steps, i, one)
    {
        assert_true(json_integer_value(one) > before);
        before = json_integer_value(one);
    }
}

static void few_steps_are_all_there(void **state)
{
    history h;
    (void)state;
    assert_int_equal(history_open(&h), FSDP_OK);
    for (int64_t i = 1; i < HISTORY_POINTS; i++)
        add(&h, i, 1.0 / (double)i);
    json_t *all = history_curves(&h, -1), *some = history_curves(&h, HISTORY_POINTS - 3);
    assert_int_equal(json_array_size(json_object_get(all, "step")), HISTORY_POINTS - 1);
    for (int64_t i = 1; i < HISTORY_POINTS; i++)
        assert_float_equal(json_real_value(loss_at(all, i)), 1.0 / (double)i, 0);
    assert_int_equal(json_array_size(json_object_get(some, "step")), 2);
    assert_int_equal(h.edition, 0);
    json_decref(all);
    json_decref(some);
    history_close(&h);
}

static void of_many_steps_the_extremes_stay(void **state)
{
    enum { STEPS = 300000 };
    history h;
    (void)state;
    assert_int_equal(history_open(&h), FSDP_OK);
    for (int64_t i = 1; i <= STEPS; i++)
        add(&h, i, i == 77777 ? 9.0 : i == 123456 ? NAN : i == 200001 ? -4.0 : 1 + 0.01 * (double)(i % 7));
    json_t *all = history_curves(&h, -1), *times = history_times(&h);
    size_t n = json_array_size(json_object_get(all, "step"));
    assert_true(n <= HISTORY_POINTS && n >= HISTORY_POINTS / 4);
    assert_ascending(all);
    assert_float_equal(json_real_value(loss_at(all, 77777)), 9, 0);
    assert_true(json_is_null(loss_at(all, 123456)));
    assert_float_equal(json_real_value(loss_at(all, 200001)), -4, 0);
    assert_int_equal(h.n_steps, STEPS);
    /* The newest step is no extreme, and still where the curves end. */
    json_t *newest = history_newest(&h);
    history_end(&h, all);
    history_end(&h, all);
    assert_ascending(all);
    assert_int_equal(place(all, STEPS), (int)json_array_size(json_object_get(all, "step")) - 1);
    assert_float_equal(json_real_value(loss_at(all, STEPS)), 1 + 0.01 * (double)(STEPS % 7), 1e-12);
    assert_float_equal(json_real_value(json_object_get(newest, "seconds")), STEPS / 1000.0, 0);
    json_decref(newest);
    /* Laps are means over all steps of a stretch. */
    const json_t *forward = json_object_get(json_array_get(json_object_get(times, "laps"), LAP_FORWARD), "values"),
                 *one;
    assert_true(json_array_size(forward) <= 200 && json_array_size(forward) >= 50);
    size_t i;
    json_array_foreach(forward, i, one) assert_float_equal(json_real_value(one), 0.25, 1e-9);
    json_decref(all);
    json_decref(times);
    history_close(&h);
}

static void a_copy_follows(void **state)
{
    history h, copy;
    (void)state;
    assert_int_equal(history_open(&h), FSDP_OK);
    assert_int_equal(history_open(&copy), FSDP_OK);
    for (int64_t i = 1, next = 1; i <= 30000; i++) {
        add(&h, i, (double)((i * 7919) % 1000));
        if (i != next)
            continue;
        next = next * 3 / 2 + 1;
        history_copy(&copy, &h);
        json_t *a = history_curves(&h, -1), *b = history_curves(&copy, -1), *c = history_times(&h),
               *d = history_times(&copy);
        assert_true(json_equal(a, b) && json_equal(c, d));
        json_decref(a);
        json_decref(b);
        json_decref(c);
        json_decref(d);
    }
    history_close(&h);
    history_close(&copy);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_steps_are_all_there),
        cmocka_unit_test(of_many_steps_the_extremes_stay),
        cmocka_unit_test(a_copy_follows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
