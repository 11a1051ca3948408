/* Traces: what hooks report becomes complete events in the right rows, within bounded memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>

#include "base/record/hooks.h"
#include "base/record/memory_use.h"
#include "base/json.h"
#include "observe/trace_file.h"
#include "temporary.h"

enum { RANK = 3 };

static json_t *written(trace *t, const char *folder)
{
    char *path = file_join(folder, "trace.json");
    json_t *array;
    trace_file *f;
    trace_event events[5]; /* several chunks, as they come from other ranks */
    size_t at = 0, n;
    trace_stop(t);
    assert_int_equal(trace_file_create(path, &f), FSDP_OK);
    while ((n = trace_take(t, &at, events, 5)) > 0)
        trace_file_add(f, RANK, 0, events, n);
    assert_int_equal(trace_file_close(f), FSDP_OK);
    assert_int_equal(json_read_file(path, &array), FSDP_OK);
    assert_true(json_is_array(array));
    free(path);
    return array;
}

static const char *text_of(const json_t *event, const char *key)
{
    const char *text = json_string_value(json_object_get(event, key));
    return text ? text : "";
}

/* The event of this name, NULL when there is none. */
static const json_t *find(const json_t *array, const char *phase, const char *name)
{
    size_t i;
    const json_t *event;
    json_array_foreach(array, i, event)
    {
        if (strcmp(text_of(event, "ph"), phase) == 0 && strcmp(text_of(event, "name"), name) == 0)
            return event;
    }
    return NULL;
}

static double number(const json_t *event, const char *key)
{
    return json_number_value(json_object_get(event, key));
}

/* What the trace says of itself: how many events it holds, or had to drop. */
static int64_t told(const json_t *array, const char *key)
{
    return (int64_t)number(json_object_get(find(array, "M", "trace"), "args"), key);
}

static void nested_work_becomes_nested_complete_events(void **state)
{
    trace *t;
    assert_int_equal(trace_start(0, NULL, &t), FSDP_OK);
    HOOK(HOOK_PHASE, HOOK_BEGIN, "forward", NULL, 0, 0);
    HOOK(HOOK_OP, HOOK_BEGIN, "linear", "forward", 0, 0);
    HOOK(HOOK_OP, HOOK_END, "linear", "forward", 0, 0);
    HOOK(HOOK_PHASE, HOOK_END, "forward", NULL, 0, 0);
    HOOK(HOOK_COLLECTIVE, HOOK_BEGIN, "all_gather", "layers.\"7\"", 4096, 1);
    HOOK(HOOK_COLLECTIVE, HOOK_END, "all_gather", "layers.\"7\"", 4096, 1);
    HOOK(HOOK_UNIT, HOOK_INSTANT, "layers.7", "FULL", 0, 1);
    trace_stop(t);
    HOOK(HOOK_OP, HOOK_INSTANT, "unheard", NULL, 0, 0);
    json_t *array = written(t, *state);
    assert_int_equal(told(array, "events"), 4);
    const json_t *phase = find(array, "X", "forward"), *op = find(array, "X", "linear");
    const json_t *gather = find(array, "X", "all_gather");
    assert_non_null(phase);
    assert_non_null(op);
    assert_non_null(gather);
    assert_non_null(find(array, "i", "layers.7"));
    assert_null(find(array, "i", "unheard"));
    assert_int_equal(number(phase, "pid"), 3);
    assert_true(number(phase, "ts") <= number(op, "ts"));
    assert_true(number(op, "ts") + number(op, "dur") <= number(phase, "ts") + number(phase, "dur") + 0.002);
    assert_int_equal(number(phase, "tid"), number(op, "tid"));
    assert_int_not_equal(number(gather, "tid"), number(op, "tid"));
    assert_string_equal(text_of(json_object_get(gather, "args"), "detail"), "layers.\"7\"");
    assert_int_equal(number(json_object_get(gather, "args"), "bytes"), 4096);
    json_decref(array);
    trace_free(t);
}

static void memory_is_a_running_sum(void **state)
{
    trace *t;
    assert_int_equal(trace_start(0, NULL, &t), FSDP_OK);
    HOOK(HOOK_MEMORY_USE, HOOK_INSTANT, "host", NULL, 1000, 0);
    HOOK(HOOK_MEMORY_USE, HOOK_INSTANT, "host", NULL, 500, 0);
    HOOK(HOOK_MEMORY_USE, HOOK_INSTANT, "host", NULL, -1000, 0);
    json_t *array = written(t, *state);
    int64_t sums[3];
    int n = 0;
    size_t i;
    const json_t *event;
    json_array_foreach(array, i, event)
    {
        if (strcmp(text_of(event, "ph"), "C") == 0)
            sums[n++] = (int64_t)number(json_object_get(event, "args"), "bytes");
    }
    assert_int_equal(n, 3);
    assert_int_equal(sums[0], 1000);
    assert_int_equal(sums[1], 1500);
    assert_int_equal(sums[2], 500);
    json_decref(array);
    trace_free(t);
}

static void a_full_ring_keeps_the_newest(void **state)
{
    trace *t;
    assert_int_equal(trace_start(4, NULL, &t), FSDP_OK);
    for (int i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof name, "op%d", i);
        HOOK(HOOK_OP, HOOK_BEGIN, name, NULL, 0, 0);
        HOOK(HOOK_OP, HOOK_END, name, NULL, 0, 0);
    }
    json_t *array = written(t, *state);
    assert_int_equal(told(array, "events"), 4);
    assert_int_equal(told(array, "dropped"), 6);
    assert_null(find(array, "X", "op5"));
    assert_non_null(find(array, "X", "op6"));
    assert_non_null(find(array, "X", "op9"));
    json_decref(array);
    trace_free(t);
}

/* Both threads live at the same time: an ended thread's id may be given to the next. */
static pthread_barrier_t both_speak;

static void *speak(void *name)
{
    pthread_barrier_wait(&both_speak);
    for (int i = 0; i < 100; i++) {
        HOOK(HOOK_COLLECTIVE, HOOK_BEGIN, name, NULL, 0, 1);
        HOOK(HOOK_COLLECTIVE, HOOK_END, name, NULL, 0, 1);
    }
    pthread_barrier_wait(&both_speak);
    return NULL;
}

static void *end_only(void *name)
{
    HOOK(HOOK_COLLECTIVE, HOOK_END, name, NULL, 0, 1);
    return NULL;
}

static void threads_of_a_lane_have_rows_of_their_own(void **state)
{
    trace *t;
    pthread_t threads[2];
    static char names[2][8] = {"first", "second"};
    assert_int_equal(trace_start(0, NULL, &t), FSDP_OK);
    pthread_barrier_init(&both_speak, NULL, 2);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, speak, names[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    json_t *array = written(t, *state);
    assert_int_equal(told(array, "events"), 200);
    const json_t *first = find(array, "X", "first"), *second = find(array, "X", "second");
    assert_non_null(first);
    assert_non_null(second);
    assert_int_not_equal(number(first, "tid"), number(second, "tid"));
    pthread_barrier_destroy(&both_speak);
    json_decref(array);
    trace_free(t);
}

static void an_end_on_another_thread_closes_what_was_begun(void **state)
{
    trace *t;
    pthread_t thread;
    static char name[] = "reduce_scatter";
    assert_int_equal(trace_start(0, NULL, &t), FSDP_OK);
    HOOK(HOOK_COLLECTIVE, HOOK_END, "begun before", NULL, 0, 1);
    HOOK(HOOK_COLLECTIVE, HOOK_BEGIN, name, NULL, 0, 1);
    pthread_create(&thread, NULL, end_only, name);
    pthread_join(thread, NULL);
    json_t *array = written(t, *state);
    assert_int_equal(told(array, "events"), 1);
    json_decref(array);
    trace_free(t);
}

static void a_folder_that_is_not_there_is_named(void **state)
{
    (void)state;
    trace_file *f;
    assert_int_not_equal(trace_file_create("/nowhere/trace.json", &f), FSDP_OK);
    assert_non_null(strstr(fsdp_last_error(), "/nowhere/trace.json"));
    assert_null(f);
    trace_file_abort(NULL);
    trace_free(NULL);
}

/* A gather, the unit becoming whole, and two operations: the arrow ends at the first of them. */
static void an_arrow_leads_from_a_gather_to_its_use(void **state)
{
    trace *t;
    hook_call call = {.sequence = 41}, linear = {.where = "layers.7.up_proj [8, 64]"};
    const int64_t uses[MEMORY_USES] = {[MEMORY_OPTIMIZER] = 1000};
    assert_int_equal(trace_start(0, uses, &t), FSDP_OK);
    HOOK(HOOK_OP, HOOK_BEGIN, "before", "forward", 0, 0);
    HOOK(HOOK_OP, HOOK_END, "before", "forward", 0, 0);
    HOOK_CALL(HOOK_COLLECTIVE, HOOK_BEGIN, "all_gather", "layers.7", 4096, 1, &call);
    HOOK_CALL(HOOK_COLLECTIVE, HOOK_END, "all_gather", "layers.7", 0, 1, &call);
    HOOK(HOOK_OP, HOOK_BEGIN, "too early", "forward", 0, 0);
    HOOK(HOOK_OP, HOOK_END, "too early", "forward", 0, 0);
    HOOK(HOOK_UNIT, HOOK_INSTANT, "layers.7", "FULL", 0, 1);
    HOOK_CALL(HOOK_OP, HOOK_BEGIN, "linear", "forward", 0, 0, &linear);
    HOOK_CALL(HOOK_OP, HOOK_END, "linear", "forward", 0, 0, &linear);
    json_t *array = written(t, *state);
    const json_t *from = find(array, "s", "use"), *to = find(array, "f", "use");
    const json_t *gather = find(array, "X", "all_gather"), *op = find(array, "X", "linear");
    assert_non_null(from);
    assert_non_null(to);
    assert_true(json_is_integer(json_object_get(from, "id"))); /* Perfetto takes no text */
    assert_true(json_equal(json_object_get(from, "id"), json_object_get(to, "id")));
    assert_float_equal(number(from, "ts"), number(gather, "ts"), 0);
    assert_int_equal(number(from, "tid"), number(gather, "tid"));
    assert_float_equal(number(to, "ts"), number(op, "ts"), 0);
    assert_int_equal(number(to, "tid"), number(op, "tid"));
    assert_int_equal(number(json_object_get(gather, "args"), "number"), 41);
    assert_string_equal(text_of(json_object_get(op, "args"), "where"), "layers.7.up_proj [8, 64]");
    assert_int_equal(number(json_object_get(find(array, "C", "memory: optimizer"), "args"), "bytes"), 1000);
    json_decref(array);
    trace_free(t);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(nested_work_becomes_nested_complete_events),
        TEST(memory_is_a_running_sum),
        TEST(a_full_ring_keeps_the_newest),
        TEST(threads_of_a_lane_have_rows_of_their_own),
        TEST(an_end_on_another_thread_closes_what_was_begun),
        TEST(a_folder_that_is_not_there_is_named),
        TEST(an_arrow_leads_from_a_gather_to_its_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
