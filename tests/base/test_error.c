/* What base/error promises: messages that name the rank, survive being widened, and never overflow. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/error.h"

static void message_is_empty_before_the_first_failure(void **state)
{
    (void)state;
    assert_string_equal(fsdp_last_error(), "");
}

static void setting_returns_the_status_and_keeps_the_text(void **state)
{
    (void)state;
    assert_int_equal(error_set(FSDP_ERR_INPUT, "%s: field %d", "a.json", 3), FSDP_ERR_INPUT);
    assert_string_equal(fsdp_last_error(), "a.json: field 3");
}

static void errno_is_put_behind_and_left_as_it_was(void **state)
{
    (void)state;
    errno = ENOENT;
    assert_int_equal(error_set_errno(FSDP_ERR_IO, "x.bin"), FSDP_ERR_IO);
    assert_string_equal(fsdp_last_error(), "x.bin: No such file or directory");
    assert_int_equal(errno, ENOENT);
}

static void rank_comes_first_also_after_a_prefix(void **state)
{
    (void)state;
    error_set_rank(3, 4);
    error_set(FSDP_ERR_TIMEOUT, "timed out");
    assert_string_equal(fsdp_last_error(), "rank 3: timed out");
    assert_int_equal(error_prefix(FSDP_ERR_TIMEOUT, "unit %s: ", "layers.7"), FSDP_ERR_TIMEOUT);
    assert_string_equal(fsdp_last_error(), "rank 3: unit layers.7: timed out");
    error_set_rank(0, 1);
    error_set(FSDP_ERR_TIMEOUT, "alone");
    assert_string_equal(fsdp_last_error(), "alone");
}

static void the_present_message_may_be_an_argument(void **state)
{
    (void)state;
    error_set(FSDP_ERR_IO, "inner");
    error_set(FSDP_ERR_IO, "outer (%s)", fsdp_last_error());
    assert_string_equal(fsdp_last_error(), "outer (inner)");
    error_prefix(FSDP_ERR_IO, "[%s] ", fsdp_last_error());
    assert_string_equal(fsdp_last_error(), "[outer (inner)] outer (inner)");
}

static void overlong_messages_are_cut_and_say_so(void **state)
{
    (void)state;
    char text[20000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    error_set(FSDP_ERR_INPUT, "%s", text);
    for (int i = 0; i < 3; i++)
        error_prefix(FSDP_ERR_INPUT, "%.6000s", text);
    size_t length = strlen(fsdp_last_error());
    assert_true(length < sizeof text);
    assert_string_equal(fsdp_last_error() + length - 3, "...");
}

/* Names in messages come from files, and a file may hold anything. */
static void control_characters_do_not_reach_the_terminal(void **state)
{
    (void)state;
    error_set(FSDP_ERR_INPUT, "tensor %s: bad", "a\033[2J\rfsdp: all is well\nb\x7f\x9b");
    assert_string_equal(fsdp_last_error(), "tensor a\\x1b[2J\\x0dfsdp: all is well\\x0ab\\x7f\\x9b: bad");
    error_prefix(FSDP_ERR_INPUT, "%s: ", "x\ny");
    assert_string_equal(fsdp_last_error(), "x\\x0ay: tensor a\\x1b[2J\\x0dfsdp: all is well\\x0ab\\x7f\\x9b: bad");
    errno = ENOENT;
    error_set_errno(FSDP_ERR_IO, "%s", "\tx");
    assert_string_equal(fsdp_last_error(), "\\x09x: No such file or directory");
}

static void *fail_elsewhere(void *unused)
{
    error_set(FSDP_ERR_IO, "other thread");
    return unused;
}

static void threads_do_not_see_each_others_messages(void **state)
{
    (void)state;
    error_set(FSDP_ERR_INPUT, "this thread");
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, NULL), 0);
    pthread_join(thread, NULL);
    assert_string_equal(fsdp_last_error(), "this thread");
}

static void every_status_has_a_name_and_an_exit_code(void **state)
{
    (void)state;
    for (int s = FSDP_OK; s <= FSDP_ERR_DEVICE; s++) {
        assert_string_not_equal(fsdp_status_name((fsdp_status)s), "unknown");
        bool asked_wrongly = s == FSDP_ERR_INPUT || s == FSDP_ERR_UNSUPPORTED;
        assert_int_equal(fsdp_exit_code((fsdp_status)s), s == FSDP_OK ? 0 : asked_wrongly ? 2 : 1);
    }
    assert_string_equal(fsdp_status_name(FSDP_ERR_TIMEOUT), "timeout");
    assert_string_equal(fsdp_status_name((fsdp_status)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(message_is_empty_before_the_first_failure),
        cmocka_unit_test(setting_returns_the_status_and_keeps_the_text),
        cmocka_unit_test(errno_is_put_behind_and_left_as_it_was),
        cmocka_unit_test(rank_comes_first_also_after_a_prefix),
        cmocka_unit_test(the_present_message_may_be_an_argument),
        cmocka_unit_test(overlong_messages_are_cut_and_say_so),
        cmocka_unit_test(control_characters_do_not_reach_the_terminal),
        cmocka_unit_test(threads_do_not_see_each_others_messages),
        cmocka_unit_test(every_status_has_a_name_and_an_exit_code),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
