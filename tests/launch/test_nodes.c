/* Several launchers as one job: who they are to each other, what happens when one fails, dies, comes back or is
 * interrupted. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/scratch.h"
#include "comm/ports.h"
#include "launch/support_launched.h"
#include "meet/secret.h"

static fsdp_launch_config nodes(int least, int most, int node, const char *endpoint)
{
    fsdp_launch_config config = ranks(2);
    config.min_nodes = least, config.max_nodes = most, config.node = node, config.endpoint = endpoint;
    config.join_timeout_seconds = 20;
    return config;
}

/* "127.0.0.1:PORT" with a port that is free just now. */
static const char *free_endpoint(void)
{
    static char text[64];
    if (!secret_can_prove())
        skip(); /* launchers are then not joined */
    snprintf(text, sizeof text, "127.0.0.1:%d", free_port());
    return text;
}

/* The kernel's table of sockets has one that listens at the port. */
static bool is_listening(const char *table, unsigned port)
{
    enum { LISTEN = 0x0A };
    char line[256];
    unsigned local, state;
    bool found = false;
    FILE *file = fopen(table, "re");
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "%*d: %*[0-9A-F]:%x %*[0-9A-F]:%*x %x", &local, &state) == 2 && local == port &&
                state == LISTEN;
    if (file)
        fclose(file);
    return found;
}

/* Until a launcher has opened the store at this endpoint. */
static void wait_listening(const char *at)
{
    unsigned port = (unsigned)atoi(strrchr(at, ':') + 1);
    double deadline = clock_seconds() + 60;
    while (!is_listening("/proc/net/tcp", port) && !is_listening("/proc/net/tcp6", port)) {
        if (clock_seconds() > deadline)
            fail_msg("nobody listens at %s", at);
        pause_seconds(0.01);
    }
}

static launched other;

/* Two launchers at once; `current` is the first, `other` the second. `hosts`: the first has the store when the second
 * starts; otherwise either may open it. */
static void run_pair(fsdp_launch_config first, fsdp_launch_config second, bool hosts, const char *script)
{
    current.text[0] = other.text[0] = 0;
    launch(&current, first, script);
    if (hosts)
        wait_listening(first.endpoint);
    launch(&other, second, script);
    join(&current);
    join(&other);
}

static void ranks_of_a_second_node_count_on(void **state)
{
    (void)state;
    fsdp_launch_config config = ranks(2);
    config.min_nodes = config.max_nodes = 2, config.node = 1;
    launched *l = run(config, "true");
    assert_int_equal(l->exit_code, 2); /* no endpoint */
    const char *at = free_endpoint();
    for (int turned = 0; turned < 2; turned++) {
        run_pair(nodes(2, 2, turned, at), nodes(2, 2, !turned, at), true,
                 "echo r=$RANK l=$LOCAL_RANK w=$WORLD_SIZE g=$GROUP_RANK/$GROUP_WORLD_SIZE m=$MASTER_ADDR");
        assert_int_equal(current.exit_code, 0);
        assert_int_equal(other.exit_code, 0);
        assert_has(turned ? &other : &current, "[rank 1] r=1 l=1 w=4 g=0/2 m=127.0.0.1\n");
        assert_has(turned ? &current : &other, "[rank 2] r=2 l=0 w=4 g=1/2 m=127.0.0.1\n");
    }
}

static void launchers_that_contradict_each_other_are_named(void **state)
{
    (void)state;
    const char *at = free_endpoint();
    fsdp_launch_config alone = nodes(2, 2, 0, at);
    alone.join_timeout_seconds = 5; /* of which it waits to the end; the second must come before */
    run_pair(alone, nodes(2, 3, 1, at), true, "true");
    assert_int_equal(other.exit_code, 2);
    assert_has(&other, "was started with --nnodes 2:3, but this job has 2:2");
    alone.endpoint = at = free_endpoint();
    run_pair(alone, nodes(2, 2, 0, at), true, "true");
    assert_has(&other, "both call themselves node 0");
    assert_int_equal(current.exit_code, 1);
    assert_has(&current, "1 of 2 nodes came within 5 s");
}

static void a_wrong_secret_is_refused_and_named_on_both_sides(void **state)
{
    (void)state;
    fsdp_launch_config config = nodes(2, 2, 0, free_endpoint());
    config.join_timeout_seconds = 5;
    current.text[0] = other.text[0] = 0;
    setenv("FSDP_RDZV_SECRET", "right", 1);
    launch(&current, config, "true");
    wait_listening(config.endpoint);
    setenv("FSDP_RDZV_SECRET", "wrong", 1);
    config.node = 1;
    launch(&other, config, "true");
    unsetenv("FSDP_RDZV_SECRET");
    join(&other);
    join(&current);
    assert_int_equal(other.exit_code, 1);
    assert_has(&other, "refused us: our secret is not this job's");
    assert_has(&current, "does not know the job's secret");
    assert_has(&current, "1 of 2 nodes came within 5 s");
}

/* Rank 3 fails once rank 0, on the other node, has spoken in this try. */
static void a_failure_on_one_node_restarts_all_and_the_last_ends_all(void **state)
{
    setenv("SPOKEN", *state, 1);
    const char *at = free_endpoint();
    fsdp_launch_config first = nodes(2, 2, 0, at), second = nodes(2, 2, 1, at);
    first.max_restarts = second.max_restarts = 1;
    double start = clock_seconds();
    run_pair(first, second, false,
             "echo try $FSDP_RESTART_COUNT round $FSDP_RDZV_ROUND; : > $SPOKEN/$FSDP_RESTART_COUNT.$RANK; "
             "[ $RANK != 3 ] && exec sleep 60; "
             "until [ -e $SPOKEN/$FSDP_RESTART_COUNT.0 ]; do sleep 0.05; done; exit 7");
    unsetenv("SPOKEN");
    assert_true(clock_seconds() - start < 20); /* ranks are not left to sleep */
    assert_int_equal(current.exit_code, 7);
    assert_int_equal(other.exit_code, 7);
    assert_has(&current, "[rank 0] try 1 round 1");
    assert_has(&current, "ended with status 7; starting all ranks again (1 of 1)");
    assert_has(&current, "message: rank 3 (process ");
    assert_null(strstr(current.text, "try 2"));
}

static void bad_input_on_one_node_ends_all_with_its_status(void **state)
{
    (void)state;
    const char *at = free_endpoint();
    fsdp_launch_config first = nodes(2, 2, 0, at), second = nodes(2, 2, 1, at);
    first.max_restarts = second.max_restarts = 3;
    run_pair(first, second, false, "echo try $FSDP_RESTART_COUNT; [ $RANK = 3 ] && exit 2; sleep 60");
    assert_int_equal(current.exit_code, 2);
    assert_int_equal(other.exit_code, 2);
    assert_has(&current, "ended with status 2; status 2 means bad input, so there is no restart");
    assert_null(strstr(current.text, "try 1"));
}

/* With a node less the job goes on; when it comes back, it joins the next round. */
static void a_lost_node_is_done_without_and_joins_again(void **state)
{
    (void)state;
    const char *at = free_endpoint();
    fsdp_launch_config first = nodes(1, 2, 0, at), second = nodes(1, 2, 1, at);
    first.max_restarts = second.max_restarts = 3;
    first.last_call_seconds = second.last_call_seconds = 20; /* nobody waits so long: both come */
    const char *script =
        "trap 'exit 143' TERM; echo round $FSDP_RDZV_ROUND of $WORLD_SIZE first $FSDP_FIRST_WORLD_SIZE; "
        "[ $FSDP_RDZV_ROUND = 2 ] && exit 0; while sleep 0.1; do :; done";
    current.text[0] = other.text[0] = 0;
    launch(&current, first, script);
    wait_listening(at);
    launch(&other, second, script);
    read_until(&other, "round 0 of 4 first 4");
    read_until(&current, "round 0 of 4 first 4");
    kill(other.pid, SIGKILL);
    join(&other);
    read_until(&current, "[rank 1] round 1 of 2 first 4");
    assert_has(&current, "is gone: its launcher died");
    launch(&other, second, script);
    join(&other);
    join(&current);
    assert_int_equal(current.exit_code, 0);
    assert_int_equal(other.exit_code, 0);
    assert_has(&other, "round 2 of 4 first 4");
    assert_has(&current, "going on with 2 nodes");
}

/* The launcher that holds the store is one like any other. */
static void a_store_that_died_is_opened_again(void **state)
{
    (void)state;
    const char *at = free_endpoint();
    fsdp_launch_config first = nodes(2, 2, 0, at), second = nodes(2, 2, 1, at);
    first.max_restarts = second.max_restarts = 3;
    const char *script =
        "echo try $FSDP_RESTART_COUNT in round $FSDP_RDZV_ROUND; [ $FSDP_RDZV_ROUND -ge 1 ] && exit 0; exec sleep 60";
    current.text[0] = other.text[0] = 0;
    launch(&current, first, script);
    wait_listening(at);
    launch(&other, second, script);
    read_until(&other, "in round 0");
    read_until(&current, "in round 0");
    kill(current.pid, SIGKILL);
    join(&current);
    current.text[0] = 0;
    launch(&current, first, script);
    join(&current);
    join(&other);
    assert_int_equal(current.exit_code, 0);
    assert_int_equal(other.exit_code, 0);
    assert_has(&other, "try 1 in round 1");
}

static void an_interrupt_of_one_launcher_ends_all(void **state)
{
    (void)state;
    const char *at = free_endpoint();
    fsdp_launch_config first = nodes(2, 2, 0, at), second = nodes(2, 2, 1, at);
    first.max_restarts = second.max_restarts = 3;
    const char *script = "trap 'echo saved; exit 143' TERM; echo begun; while sleep 0.1; do :; done";
    current.text[0] = other.text[0] = 0;
    launch(&current, first, script);
    launch(&other, second, script);
    read_until(&other, "begun");
    read_until(&current, "begun");
    kill(other.pid, SIGTERM);
    join(&other);
    join(&current);
    assert_int_equal(other.exit_code, 143);
    assert_int_equal(current.exit_code, 143);
    assert_has(&current, "saved");
}

static void a_launcher_that_waits_for_others_can_be_stopped(void **state)
{
    (void)state;
    current.text[0] = 0;
    fsdp_launch_config config = nodes(2, 2, 1, free_endpoint());
    launch(&current, config, "true");
    wait_listening(config.endpoint); /* by then it takes signals */
    double start = clock_seconds();
    kill(current.pid, SIGINT);
    join(&current);
    assert_int_equal(current.exit_code, 130);
    assert_true(clock_seconds() - start < 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_of_a_second_node_count_on),
        cmocka_unit_test(launchers_that_contradict_each_other_are_named),
        cmocka_unit_test(a_wrong_secret_is_refused_and_named_on_both_sides),
        cmocka_unit_test_setup_teardown(a_failure_on_one_node_restarts_all_and_the_last_ends_all, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test(bad_input_on_one_node_ends_all_with_its_status),
        cmocka_unit_test(a_lost_node_is_done_without_and_joins_again),
        cmocka_unit_test(a_store_that_died_is_opened_again),
        cmocka_unit_test(an_interrupt_of_one_launcher_ends_all),
        cmocka_unit_test(a_launcher_that_waits_for_others_can_be_stopped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
