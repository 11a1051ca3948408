/* PyTorch's variables: each is named once, with what does the same here, to the one who would have read it. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host/torch_variables.h"
#include "base/log.h"

static char said[4096];
static int n_said;

static void take(void *context, fsdp_log_level level, const char *line)
{
    (void)context, (void)level;
    snprintf(said, sizeof said, "%s", line);
    n_said++;
}

static const char *check(torch_reader reader)
{
    said[0] = 0;
    n_said = 0;
    fsdp_log_set_sink(take, NULL, FSDP_LOG_INFO);
    torch_variables_check(reader);
    fsdp_log_set_sink(NULL, NULL, FSDP_LOG_INFO);
    return said;
}

static void nothing_is_said_where_nothing_is_set(void **state)
{
    (void)state;
    clearenv();
    setenv("NCCL_DEBUG", "INFO", 1); /* NCCL's own, which it reads */
    setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
    setenv("NCCL_TIMEOUT", "30", 1); /* taken over */
    setenv("TORCHELASTIC_RUN_ID", "job", 1);
    setenv("TORCH_HOME", "/tmp", 1);
    setenv("FSDP_FLIGHT_DIR", "/tmp", 1); /* ours */
    check(TORCH_RANK);
    assert_int_equal(n_said, 0);
    check(TORCH_LAUNCHER);
    assert_int_equal(n_said, 0);
}

static void each_is_named_to_its_reader_in_one_line(void **state)
{
    (void)state;
    clearenv();
    setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL", 1);
    setenv("TORCH_NCCL_SOMETHING_NEW", "1", 1);
    setenv("NCCL_ASYNC_ERROR_HANDLING", "1", 1);
    setenv("FSDP_SHARDING_STRATEGY", "1", 1);
    setenv("TORCHELASTIC_HEALTH_CHECK_PORT", "1", 1);
    const char *line = check(TORCH_RANK);
    assert_int_equal(n_said, 1);
    assert_non_null(strstr(line, "TORCH_DISTRIBUTED_DEBUG (calls are always compared)"));
    assert_non_null(strstr(line, "TORCH_NCCL_SOMETHING_NEW (no effect)"));
    assert_non_null(strstr(line, "NCCL_ASYNC_ERROR_HANDLING (a failure always ends all ranks)"));
    assert_non_null(strstr(line, "FSDP_SHARDING_STRATEGY (--sharding_strategy)"));
    assert_null(strstr(line, "TORCHELASTIC"));
    line = check(TORCH_LAUNCHER);
    assert_int_equal(n_said, 1);
    assert_string_equal(strstr(line, "here: "),
                        "here: TORCHELASTIC_HEALTH_CHECK_PORT (`fsdp train --metrics_port PORT`)");
}

static void the_watchdog_is_missed_only_without_our_launcher(void **state)
{
    (void)state;
    clearenv();
    setenv("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "600", 1);
    assert_non_null(strstr(check(TORCH_RANK), "fsdp run --watchdog"));
    setenv("FSDP_RDZV_ENDPOINT", "127.0.0.1:1", 1);
    check(TORCH_RANK);
    assert_int_equal(n_said, 0);
    check(TORCH_LAUNCHER);
    assert_int_equal(n_said, 0);
}

/* However many and however long: one line, whole words, and how many are missing. */
static void many_are_counted_and_long_ones_do_no_harm(void **state)
{
    (void)state;
    clearenv();
    char name[600] = "TORCH_NCCL_";
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "TORCH_NCCL_X%03d", i);
        setenv(name, "1", 1);
    }
    memset(name + 11, 'L', 500);
    name[511] = 0;
    setenv(name, "1", 1);
    const char *line = check(TORCH_RANK);
    assert_int_equal(n_said, 1);
    int shown = 0, more = 0;
    for (const char *at = line; (at = strstr(at, "(no effect)")); at++)
        shown++;
    const char *rest = strstr(line, ", and ");
    assert_non_null(rest);
    assert_int_equal(sscanf(rest, ", and %d more", &more), 1);
    assert_int_equal(shown + more, 301);
    assert_true(shown > 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_said_where_nothing_is_set),
        cmocka_unit_test(each_is_named_to_its_reader_in_one_line),
        cmocka_unit_test(the_watchdog_is_missed_only_without_our_launcher),
        cmocka_unit_test(many_are_counted_and_long_ones_do_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
