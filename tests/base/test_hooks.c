/* Events and log lines reach those who listen, and nobody else. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/record/hooks.h"
#include "base/log.h"

typedef struct record {
    int n_events;
    hook_event last;
    char name[32];
} record;

static void remember(void *context, const hook_event *event)
{
    record *r = context;
    r->n_events++;
    r->last = *event;
    snprintf(r->name, sizeof r->name, "%s", event->name);
}

static int n_evaluated;

static int64_t evaluate(void)
{
    return ++n_evaluated;
}

static void nothing_is_evaluated_when_nobody_listens(void **state)
{
    (void)state;
    assert_false(hooks_enabled);
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "weights", NULL, evaluate(), 0);
    assert_int_equal(n_evaluated, 0);
}

static void listeners_hear_events_until_they_are_removed(void **state)
{
    (void)state;
    record a = {0}, b = {0};
    assert_int_equal(hooks_add(remember, &a), FSDP_OK);
    assert_int_equal(hooks_add(remember, &b), FSDP_OK);
    assert_true(hooks_enabled);
    int64_t before = clock_nanoseconds();
    HOOK(HOOK_COLLECTIVE, HOOK_BEGIN, "all_gather", "layers.3", 4096, 1);
    assert_int_equal(a.n_events, 1);
    assert_int_equal(b.n_events, 1);
    assert_int_equal(a.last.kind, HOOK_COLLECTIVE);
    assert_int_equal(a.last.moment, HOOK_BEGIN);
    assert_string_equal(a.name, "all_gather");
    assert_string_equal(a.last.detail, "layers.3");
    assert_int_equal(a.last.bytes, 4096);
    assert_int_equal(a.last.lane, 1);
    assert_true(a.last.time_ns >= before && a.last.time_ns <= clock_nanoseconds());
    hooks_remove(remember, &a);
    HOOK(HOOK_OP, HOOK_INSTANT, "linear.forward", NULL, 0, 0);
    assert_int_equal(a.n_events, 1);
    assert_int_equal(b.n_events, 2);
    hooks_remove(remember, &b);
    hooks_remove(remember, &b);
    assert_false(hooks_enabled);
}

static atomic_bool reporting;

static void *report_all_the_time(void *context)
{
    (void)context;
    while (atomic_load(&reporting))
        HOOK(HOOK_COLLECTIVE, HOOK_INSTANT, "all_gather", NULL, 1, 1);
    return NULL;
}

static void add_bytes(void *context, const hook_event *event)
{
    *(int64_t *)context += event->bytes;
}

/* The first gathers of a step run on a thread of their own while who watched the step before goes. */
static void listeners_come_and_go_while_a_thread_reports(void **state)
{
    (void)state;
    pthread_t thread;
    int64_t all = 0;
    atomic_store(&reporting, true);
    assert_int_equal(pthread_create(&thread, NULL, report_all_the_time, NULL), 0);
    for (int i = 0; i < 2000; i++) {
        int64_t *mine = calloc(2, sizeof *mine);
        assert_int_equal(hooks_add(add_bytes, &mine[0]), FSDP_OK);
        assert_int_equal(hooks_add_kind(HOOK_COLLECTIVE, add_bytes, &mine[1]), FSDP_OK);
        hooks_remove(add_bytes, &mine[0]);
        hooks_remove(add_bytes, &mine[1]);
        all += mine[0] + mine[1];
        free(mine);
    }
    while (all == 0) { /* on one core the thread may not have run meanwhile */
        assert_int_equal(hooks_add(add_bytes, &all), FSDP_OK);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        hooks_remove(add_bytes, &all);
    }
    atomic_store(&reporting, false);
    pthread_join(thread, NULL);
    assert_false(hooks_enabled);
}

static void one_listener_too_many_is_refused(void **state)
{
    (void)state;
    record records[17] = {0};
    for (int i = 0; i < 16; i++)
        assert_int_equal(hooks_add(remember, &records[i]), FSDP_OK);
    assert_int_equal(hooks_add(remember, &records[16]), FSDP_ERR_STATE);
    assert_non_null(strstr(fsdp_last_error(), "16 listeners"));
    for (int i = 0; i < 17; i++)
        hooks_remove(remember, &records[i]);
    assert_false(hooks_enabled);
}

typedef struct lines {
    int count;
    fsdp_log_level level;
    char last[64];
} lines;

static void collect(void *context, fsdp_log_level level, const char *line)
{
    lines *l = context;
    l->count++;
    l->level = level;
    snprintf(l->last, sizeof l->last, "%s", line);
}

static void lines_reach_the_sink_from_the_level_asked_for(void **state)
{
    (void)state;
    lines l = {0};
    log_write(FSDP_LOG_ERROR, "dropped: there is no sink");
    fsdp_log_set_sink(collect, &l, FSDP_LOG_INFO);
    log_write(FSDP_LOG_DEBUG, "dropped");
    assert_int_equal(l.count, 0);
    log_write(FSDP_LOG_WARNING, "step %d", 3);
    assert_int_equal(l.count, 1);
    assert_int_equal(l.level, FSDP_LOG_WARNING);
    assert_string_equal(l.last, "step 3");
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_DEBUG);
    log_write(FSDP_LOG_ERROR, "dropped");
    assert_int_equal(l.count, 1);
}

static void *write_lines(void *unused)
{
    for (int i = 0; i < 1000; i++)
        log_write(FSDP_LOG_INFO, "line %d", i);
    return unused;
}

static void lines_of_several_threads_come_one_at_a_time(void **state)
{
    (void)state;
    lines l = {0};
    pthread_t threads[4];
    fsdp_log_set_sink(collect, &l, FSDP_LOG_INFO);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, write_lines, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_INFO);
    assert_int_equal(l.count, 4000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_evaluated_when_nobody_listens),
        cmocka_unit_test(listeners_hear_events_until_they_are_removed),
        cmocka_unit_test(listeners_come_and_go_while_a_thread_reports),
        cmocka_unit_test(one_listener_too_many_is_refused),
        cmocka_unit_test(lines_reach_the_sink_from_the_level_asked_for),
        cmocka_unit_test(lines_of_several_threads_come_one_at_a_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
