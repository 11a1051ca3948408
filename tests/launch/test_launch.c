/* fsdp_launch, with small shell programs as ranks: what they are told, what comes out, how all of it ends. The launcher
 * runs in a process of its own, so that signals can be sent to it and nothing of it stays in the test. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <fsdp/launch.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/ports.h"
#include "launch/cores.h"
#include "meet/secret.h"

enum { OUTPUT_BYTES = 1 << 20 };

typedef struct launched {
    pid_t pid;
    int output; /* read end: both streams of the launcher */
    char text[OUTPUT_BYTES];
    size_t bytes;
    int exit_code;
} launched;

static void print_log(void *context, fsdp_log_level level, const char *line)
{
    (void)context, (void)level;
    printf("log: %s\n", line);
    fflush(stdout);
}

/* The launcher's process prints the message of a failure behind the ranks' output and exits as `fsdp run` would. */
static void launch(launched *l, fsdp_launch_config config, const char *script)
{
    const char *command[] = {"sh", "-c", script, NULL};
    int ends[2];
    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    if (!config.command)
        config.command = command;
    l->bytes = 0;
    fflush(NULL);
    l->pid = fork();
    assert_true(l->pid >= 0);
    if (l->pid == 0) {
        int code = 99;
        dup2(ends[1], STDOUT_FILENO);
        dup2(ends[1], STDERR_FILENO);
        fsdp_log_set_sink(print_log, NULL, FSDP_LOG_INFO);
        if (fsdp_launch(&config, &code) != FSDP_OK)
            printf("message: %s\n", fsdp_last_error());
        fflush(stdout);
        _exit(code);
    }
    close(ends[1]);
    l->output = ends[0];
}

static void read_until(launched *l, const char *text)
{
    while (!text || !strstr(l->text, text)) {
        ssize_t got = read(l->output, l->text + l->bytes, sizeof l->text - 1 - l->bytes);
        if (got <= 0)
            break;
        l->bytes += (size_t)got;
        l->text[l->bytes] = 0;
    }
}

static void join(launched *l)
{
    int status;
    l->text[l->bytes] = 0;
    read_until(l, NULL);
    close(l->output);
    assert_int_equal(waitpid(l->pid, &status, 0), l->pid);
    l->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static launched current;

static launched *run(fsdp_launch_config config, const char *script)
{
    current.text[0] = 0;
    launch(&current, config, script);
    join(&current);
    return &current;
}

static fsdp_launch_config ranks(int n)
{
    fsdp_launch_config config = FSDP_LAUNCH_CONFIG_INIT;
    config.n_ranks = n;
    config.grace_seconds = 5;
    return config;
}

static void pause_seconds(double seconds)
{
    struct timespec pause = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
}

static bool is_alive(pid_t pid)
{
    char path[64], state = 0;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    if (fscanf(file, "%*d %*s %c", &state) != 1)
        state = 0;
    fclose(file);
    return state && state != 'Z' && state != 'X';
}

static bool dies_within(pid_t pid, double seconds)
{
    double deadline = clock_seconds() + seconds;
    while (is_alive(pid) && clock_seconds() < deadline)
        pause_seconds(0.01);
    return !is_alive(pid);
}

static void assert_has(const launched *l, const char *text)
{
    if (!strstr(l->text, text))
        fail_msg("output lacks '%s':\n%s", text, l->text);
}

static int number_after(const launched *l, const char *text)
{
    const char *at = strstr(l->text, text);
    if (!at)
        fail_msg("output lacks '%s':\n%s", text, l->text);
    return atoi(at + strlen(text));
}

/* ---- what ranks are told ---- */

static void ranks_get_the_environment_of_torchrun(void **state)
{
    (void)state;
    setenv("RANK", "77", 1); /* what was there before does not shine through */
    launched *l =
        run(ranks(3), "echo r=$RANK l=$LOCAL_RANK w=$WORLD_SIZE lw=$LOCAL_WORLD_SIZE g=$GROUP_RANK "
                      "a=$MASTER_ADDR c=$FSDP_RESTART_COUNT gw=$GROUP_WORLD_SIZE rr=$ROLE_RANK rw=$ROLE_WORLD_SIZE "
                      "t=$TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS f=$FSDP_FIRST_WORLD_SIZE; "
                      "echo port=$MASTER_PORT token=$FSDP_RDZV_SECRET run=$TORCHELASTIC_RUN_ID");
    unsetenv("RANK");
    assert_int_equal(l->exit_code, 0);
    for (int rank = 0; rank < 3; rank++) {
        char line[192];
        snprintf(line, sizeof line, "[rank %d] r=%d l=%d w=3 lw=3 g=0 a=127.0.0.1 c=0 gw=1 rr=%d rw=3 t=0/0 f=3\n",
                 rank, rank, rank, rank);
        assert_has(l, line);
    }
    int port = number_after(l, "[rank 0] port=");
    assert_true(port > 1023 && port < 65536);
    assert_int_equal(port, number_after(l, "[rank 2] port="));
    char *token = strstr(l->text, "token="), first[72] = "";
    assert_int_equal(sscanf(token, "token=%71s", first), 1);
    assert_int_equal(strlen(first), 64);
    assert_non_null(strstr(strstr(token + 1, "token=") + 1, first)); /* the same for all */
}

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

static launched other;

/* Two launchers at once; `current` is the first, `other` the second, `late` seconds later. */
static void run_pair(fsdp_launch_config first, fsdp_launch_config second, double late, const char *script)
{
    current.text[0] = other.text[0] = 0;
    launch(&current, first, script);
    pause_seconds(late);
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
        run_pair(nodes(2, 2, turned, at), nodes(2, 2, !turned, at), 0.2,
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
    run_pair(nodes(2, 2, 0, at), nodes(2, 3, 1, at), 0.3, "true");
    assert_int_equal(other.exit_code, 2);
    assert_has(&other, "was started with --nnodes 2:3, but this job has 2:2");
    at = free_endpoint();
    fsdp_launch_config alone = nodes(2, 2, 0, at);
    alone.join_timeout_seconds = 1;
    run_pair(alone, nodes(2, 2, 0, at), 0.1, "true");
    assert_has(&other, "both call themselves node 0");
    assert_int_equal(current.exit_code, 1);
    assert_has(&current, "1 of 2 nodes came within 1 s");
}

static void a_wrong_secret_is_refused_and_named_on_both_sides(void **state)
{
    (void)state;
    fsdp_launch_config config = nodes(2, 2, 0, free_endpoint());
    config.join_timeout_seconds = 2;
    current.text[0] = other.text[0] = 0;
    setenv("FSDP_RDZV_SECRET", "right", 1);
    launch(&current, config, "true");
    pause_seconds(0.4);
    setenv("FSDP_RDZV_SECRET", "wrong", 1);
    config.node = 1;
    launch(&other, config, "true");
    unsetenv("FSDP_RDZV_SECRET");
    join(&other);
    join(&current);
    assert_int_equal(other.exit_code, 1);
    assert_has(&other, "refused us: our secret is not this job's");
    assert_has(&current, "does not know the job's secret");
    assert_has(&current, "1 of 2 nodes came within 2 s");
}

static void a_failure_on_one_node_restarts_all_and_the_last_ends_all(void **state)
{
    (void)state;
    const char *at = free_endpoint();
    fsdp_launch_config first = nodes(2, 2, 0, at), second = nodes(2, 2, 1, at);
    first.max_restarts = second.max_restarts = 1;
    double start = clock_seconds();
    run_pair(first, second, 0,
             "echo try $FSDP_RESTART_COUNT round $FSDP_RDZV_ROUND; [ $RANK = 3 ] && exit 7; sleep 60");
    assert_true(clock_seconds() - start < 20);
    assert_int_equal(current.exit_code, 7);
    assert_int_equal(other.exit_code, 7);
    assert_has(&current, "[rank 0] try 1 round 1");
    assert_has(&current, "ended with status 7; starting all ranks again (1 of 1)");
    assert_has(&current, "message: rank 3 (process ");
    assert_null(strstr(current.text, "try 2"));
}

/* With a node less the job goes on; when it comes back, it joins the next round. */
static void a_lost_node_is_done_without_and_joins_again(void **state)
{
    (void)state;
    const char *at = free_endpoint();
    fsdp_launch_config first = nodes(1, 2, 0, at), second = nodes(1, 2, 1, at);
    first.max_restarts = second.max_restarts = 3;
    first.last_call_seconds = second.last_call_seconds = 3;
    const char *script =
        "trap 'exit 143' TERM; echo round $FSDP_RDZV_ROUND of $WORLD_SIZE first $FSDP_FIRST_WORLD_SIZE; "
        "[ $FSDP_RDZV_ROUND = 2 ] && exit 0; while sleep 0.1; do :; done";
    current.text[0] = other.text[0] = 0;
    launch(&current, first, script);
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
    pause_seconds(0.3);
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
    pause_seconds(0.3);
    double start = clock_seconds();
    kill(current.pid, SIGINT);
    join(&current);
    assert_int_equal(current.exit_code, 130);
    assert_true(clock_seconds() - start < 20);
}

static void cores_are_shared_out_and_threads_follow(void **state)
{
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    int cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    const char *script = "echo cores=$(env -u OMP_NUM_THREADS nproc) threads=$OMP_NUM_THREADS "
                         "list=$(sed -n 's/^Cpus_allowed_list:[^0-9]*//p' /proc/self/status)";
    launched *l = run(ranks(1), script);
    assert_int_equal(number_after(l, "threads="), cores);
    if (cores >= 2) {
        l = run(ranks(2), script);
        char lists[2][256];
        int total = 0;
        for (int rank = 0; rank < 2; rank++) {
            char front[32];
            snprintf(front, sizeof front, "[rank %d] cores=", rank);
            const char *line = strstr(l->text, front);
            assert_non_null(line);
            total += atoi(line + strlen(front));
            assert_int_equal(sscanf(strstr(line, "list="), "list=%255s", lists[rank]), 1);
        }
        assert_int_equal(total, cores);
        assert_string_not_equal(lists[0], lists[1]);
    }
    l = run(ranks(cores + 1), script); /* too many for a core each: all cores, one thread */
    char wanted[64];
    snprintf(wanted, sizeof wanted, "cores=%d threads=1 ", cores);
    assert_has(l, wanted);
    setenv("OMP_NUM_THREADS", "3", 1);
    l = run(ranks(1), "echo threads=$OMP_NUM_THREADS");
    unsetenv("OMP_NUM_THREADS");
    assert_has(l, "threads=3\n");
}

/* The order of cores is hwloc's, here of a machine that is made up: even cores lie in one NUMA node, odd in the other.
 */
static void cores_are_taken_in_the_order_of_numa_nodes(void **state)
{
    (void)state;
#ifndef FSDP_WITH_HWLOC
    skip();
#endif
    int ids[] = {0, 1, 2, 3}, wanted[] = {0, 2, 1, 3};
    core_list list = {ids, 4};
    setenv("HWLOC_SYNTHETIC", "numa:2 core:2 pu:1(indexes=0,2,1,3)", 1);
    core_list_sort(&list);
    unsetenv("HWLOC_SYNTHETIC");
    assert_memory_equal(ids, wanted, sizeof ids);
}

static void rank_0_alone_reads_the_input(void **state)
{
    (void)state;
    int ends[2], kept = dup(STDIN_FILENO);
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "hello\n", 6), 6);
    close(ends[1]);
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    launched *l = run(ranks(2), "read word; echo got=$word");
    dup2(kept, STDIN_FILENO);
    close(kept);
    assert_has(l, "[rank 0] got=hello\n");
    assert_has(l, "[rank 1] got=\n");
}

/* ---- what comes out ---- */

static void lines_stay_whole(void **state)
{
    (void)state;
    /* Each line is written in two halves, by four ranks at once, on both streams. */
    launched *l = run(ranks(4), "i=0; while [ $i -lt 200 ]; do printf '%s' abcdefghij; echo klmnop $i; "
                                "printf '%s\\n' error-$i >&2; i=$((i+1)); done; printf unfinished");
    assert_int_equal(l->exit_code, 0);
    int n = 0;
    for (char *line = strtok(l->text, "\n"); line; line = strtok(NULL, "\n"), n++) {
        int rank, number;
        char word[32], end[8] = "";
        bool whole = sscanf(line, "[rank %d] abcdefghijklmnop %d%7s", &rank, &number, end) == 2 ||
                     sscanf(line, "[rank %d] error-%d%7s", &rank, &number, end) == 2 ||
                     (sscanf(line, "[rank %d] %31s", &rank, word) == 2 && strcmp(word, "unfinished") == 0);
        if (!whole)
            fail_msg("broken line: %s", line);
    }
    assert_int_equal(n, 4 * 401);
}

static void rank_0_is_plain_when_asked(void **state)
{
    (void)state;
    fsdp_launch_config config = ranks(2);
    config.plain_first = true;
    launched *l = run(config, "echo hello from $RANK");
    assert_true(strncmp(l->text, "hello from 0\n", 13) == 0 || strstr(l->text, "\nhello from 0\n"));
    assert_has(l, "[rank 1] hello from 1\n");
}

static void long_lines_and_much_output_pass(void **state)
{
    (void)state;
    launched *l = run(ranks(2), "head -c 200000 /dev/zero | tr '\\0' x; echo end");
    assert_int_equal(l->exit_code, 0);
    size_t n = 0;
    for (size_t i = 0; i < l->bytes; i++)
        n += l->text[i] == 'x';
    assert_int_equal(n, 400000);
}

/* ---- how it ends ---- */

static void one_failure_ends_all_with_its_status(void **state)
{
    (void)state;
    double start = clock_seconds();
    launched *l = run(ranks(3), "if [ $RANK = 1 ]; then sleep 0.2; exit 7; fi; sleep 60; echo never");
    assert_int_equal(l->exit_code, 7);
    assert_has(l, "message: rank 1 (process ");
    assert_has(l, "ended with status 7");
    assert_null(strstr(l->text, "never"));
    assert_true(clock_seconds() - start < 30);
}

static void a_killed_rank_gives_128_plus_the_signal(void **state)
{
    (void)state;
    launched *l = run(ranks(2), "if [ $RANK = 0 ]; then kill -KILL $$; fi; sleep 60");
    assert_int_equal(l->exit_code, 137);
    assert_has(l, "was killed by signal 9");
}

static void ranks_that_ignore_sigterm_are_killed_after_the_grace(void **state)
{
    (void)state;
    fsdp_launch_config config = ranks(2);
    config.grace_seconds = 0.5;
    double start = clock_seconds();
    launched *l = run(config, "if [ $RANK = 0 ]; then sleep 0.3; exit 3; fi; trap '' TERM; while :; do sleep 1; done");
    double seconds = clock_seconds() - start;
    assert_int_equal(l->exit_code, 3);
    assert_true(seconds > 0.7 && seconds < 30);
}

static void an_absent_program_gives_127(void **state)
{
    (void)state;
    const char *absent[] = {"no-such-program-anywhere", NULL}, *folder[] = {"/", NULL};
    fsdp_launch_config config = ranks(2);
    config.command = absent;
    launched *l = run(config, NULL);
    assert_int_equal(l->exit_code, 127);
    assert_has(l, "no-such-program-anywhere");
    config.command = folder;
    l = run(config, NULL);
    assert_int_equal(l->exit_code, 126);
    config.n_ranks = 0;
    l = run(config, NULL);
    assert_int_equal(l->exit_code, 2);
}

static void signals_are_forwarded(void **state)
{
    (void)state;
    const char *script = "trap 'echo usr1; touched=1' USR1; trap 'echo term; exit 0' TERM; echo ready $RANK; "
                         "while :; do sleep 0.05; done";
    current.text[0] = 0;
    launch(&current, ranks(2), script);
    read_until(&current, "ready 0");
    read_until(&current, "ready 1");
    kill(current.pid, SIGUSR1);
    read_until(&current, "[rank 0] usr1");
    read_until(&current, "[rank 1] usr1");
    kill(current.pid, SIGTERM);
    join(&current);
    assert_has(&current, "[rank 0] term");
    assert_has(&current, "[rank 1] term");
    assert_int_equal(current.exit_code, 0); /* they ended well */

    current.text[0] = 0;
    launch(&current, ranks(2), "echo ready $RANK; sleep 60");
    read_until(&current, "ready 0");
    read_until(&current, "ready 1");
    kill(current.pid, SIGTERM);
    join(&current);
    assert_int_equal(current.exit_code, 143);
}

static void a_second_interrupt_ends_at_once(void **state)
{
    (void)state;
    fsdp_launch_config config = ranks(2);
    config.grace_seconds = 60;
    current.text[0] = 0;
    signal(SIGINT, SIG_DFL);
    launch(&current, config, "trap '' INT TERM; echo ready $RANK; while :; do sleep 0.2; done");
    read_until(&current, "ready 0");
    read_until(&current, "ready 1");
    kill(current.pid, SIGINT);
    pause_seconds(0.2);
    kill(current.pid, SIGINT); /* so soon, it is the same request once more */
    pause_seconds(1.0);
    assert_true(is_alive(current.pid));
    kill(current.pid, SIGINT);
    join(&current);
    assert_int_equal(current.exit_code, 137);
}

static void a_request_that_comes_twice_is_passed_on_once(void **state)
{
    (void)state;
    current.text[0] = 0;
    launch(&current, ranks(1),
           "n=0; trap 'n=$((n+1))' TERM; echo ready; i=0; while [ $i -lt 12 ]; do sleep 0.05; i=$((i+1)); "
           "done; echo asked $n times");
    read_until(&current, "ready");
    for (int i = 0; i < 3; i++) {
        kill(current.pid, SIGTERM);
        pause_seconds(0.1);
    }
    join(&current);
    assert_has(&current, "asked 1 times");
}

/* Two that never pause: there is always something to read, and signals must be heard all the same. */
static void a_program_that_writes_without_pause_can_be_stopped(void **state)
{
    (void)state;
    current.text[0] = 0;
    launch(&current, ranks(2), "exec yes without pause");
    double start = clock_seconds();
    char taken[65536];
    for (bool asked = false; read(current.output, taken, sizeof taken) > 0;) {
        if (!asked && clock_seconds() - start > 0.3) {
            asked = true;
            kill(current.pid, SIGTERM);
        }
        if (clock_seconds() - start > 20) {
            kill(current.pid, SIGKILL);
            fail_msg("it went on writing after SIGTERM");
        }
    }
    join(&current);
    assert_int_equal(current.exit_code, 143);
}

static void a_job_whose_output_nobody_reads_can_be_stopped(void **state)
{
    (void)state;
    current.text[0] = 0;
    launch(&current, ranks(1), "echo rank=$$; exec yes into a full pipe");
    read_until(&current, "into a full pipe");
    pid_t rank = number_after(&current, "rank=");
    pause_seconds(0.3);
    kill(current.pid, SIGTERM);
    bool ended = dies_within(rank, 10);
    if (!ended)
        kill(current.pid, SIGKILL);
    join(&current);
    assert_true(ended);
    assert_int_equal(current.exit_code, 143);
}

/* A reader that comes late still gets all of it, when nobody asked for an end. */
static void output_waits_for_a_slow_reader(void **state)
{
    (void)state;
    current.text[0] = 0;
    launch(&current, ranks(1), "head -c 300000 /dev/zero | tr '\\0' x; echo end");
    pause_seconds(2.5);
    join(&current);
    assert_int_equal(current.exit_code, 0);
    size_t n = 0;
    for (size_t i = 0; i < current.bytes; i++)
        n += current.text[i] == 'x';
    assert_int_equal(n, 300000);
    assert_has(&current, "end\n");
}

static void a_rank_that_was_asked_to_end_is_not_started_again(void **state)
{
    (void)state;
    fsdp_launch_config config = ranks(2);
    config.max_restarts = 3;
    static const char *const scripts[] = {"echo try $FSDP_RESTART_COUNT; if [ $RANK = 1 ]; then exit 143; fi; sleep 60",
                                          "echo try $FSDP_RESTART_COUNT; kill -TERM $$; sleep 60"};
    for (int i = 0; i < 2; i++) {
        launched *l = run(config, scripts[i]);
        assert_int_equal(l->exit_code, 143);
        assert_null(strstr(l->text, "try 1"));
    }
}

static void when_the_launcher_is_killed_its_ranks_die_with_it(void **state)
{
    (void)state;
    current.text[0] = 0;
    /* The rank has a child of its own, which must go as well; both ignore what can be ignored. */
    launch(&current, ranks(2), "trap '' TERM INT HUP; sleep 60 & echo child$RANK=$!; echo rank$RANK=$$; wait");
    static const char *const names[] = {"rank0=", "rank1=", "child0=", "child1="};
    pid_t pids[4];
    for (int i = 0; i < 4; i++) {
        char text[32];
        snprintf(text, sizeof text, "%s", names[i]);
        read_until(&current, text);
    }
    pause_seconds(0.1);
    for (int i = 0; i < 4; i++) {
        pids[i] = number_after(&current, names[i]);
        assert_true(pids[i] > 1 && is_alive(pids[i]));
    }
    kill(current.pid, SIGKILL);
    for (int i = 0; i < 4; i++)
        assert_true(dies_within(pids[i], 20));
    join(&current);
    assert_int_equal(current.exit_code, 1000 + SIGKILL);
}

static void children_of_ranks_do_not_outlive_them(void **state)
{
    (void)state;
    double start = clock_seconds();
    launched *l = run(ranks(1), "sleep 60 & echo child=$!; exit 0");
    assert_int_equal(l->exit_code, 0);
    assert_true(clock_seconds() - start < 30);
    assert_true(dies_within(number_after(l, "child="), 20));
}

static void all_ranks_are_started_again_up_to_the_limit(void **state)
{
    (void)state;
    fsdp_launch_config config = ranks(2);
    config.max_restarts = 2;
    const char *script = "echo try $FSDP_RESTART_COUNT round $FSDP_RDZV_ROUND; "
                         "if [ $RANK = 1 ] && [ $FSDP_RESTART_COUNT -lt 2 ]; then exit 5; fi; sleep 0.1";
    launched *l = run(config, script);
    assert_int_equal(l->exit_code, 0);
    assert_has(l, "[rank 1] try 2");
    assert_has(l, "ended with status 5; starting all ranks again (1 of 2)");
    assert_has(l, "try 2 round 2");
    config.max_restarts = 1;
    l = run(config, script);
    assert_int_equal(l->exit_code, 5);
    assert_null(strstr(l->text, "try 2"));
}

static void a_job_that_was_asked_to_end_is_not_started_again(void **state)
{
    (void)state;
    fsdp_launch_config config = ranks(2);
    config.max_restarts = 3;
    current.text[0] = 0;
    launch(&current, config, "echo try $FSDP_RESTART_COUNT; sleep 60");
    read_until(&current, "[rank 0] try 0");
    read_until(&current, "[rank 1] try 0");
    kill(current.pid, SIGTERM);
    join(&current);
    assert_int_equal(current.exit_code, 143);
    assert_null(strstr(current.text, "try 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_get_the_environment_of_torchrun),
        cmocka_unit_test(ranks_of_a_second_node_count_on),
        cmocka_unit_test(launchers_that_contradict_each_other_are_named),
        cmocka_unit_test(a_wrong_secret_is_refused_and_named_on_both_sides),
        cmocka_unit_test(a_failure_on_one_node_restarts_all_and_the_last_ends_all),
        cmocka_unit_test(a_lost_node_is_done_without_and_joins_again),
        cmocka_unit_test(a_store_that_died_is_opened_again),
        cmocka_unit_test(an_interrupt_of_one_launcher_ends_all),
        cmocka_unit_test(a_launcher_that_waits_for_others_can_be_stopped),
        cmocka_unit_test(cores_are_shared_out_and_threads_follow),
        cmocka_unit_test(cores_are_taken_in_the_order_of_numa_nodes),
        cmocka_unit_test(rank_0_alone_reads_the_input),
        cmocka_unit_test(lines_stay_whole),
        cmocka_unit_test(rank_0_is_plain_when_asked),
        cmocka_unit_test(long_lines_and_much_output_pass),
        cmocka_unit_test(one_failure_ends_all_with_its_status),
        cmocka_unit_test(a_killed_rank_gives_128_plus_the_signal),
        cmocka_unit_test(ranks_that_ignore_sigterm_are_killed_after_the_grace),
        cmocka_unit_test(an_absent_program_gives_127),
        cmocka_unit_test(signals_are_forwarded),
        cmocka_unit_test(a_second_interrupt_ends_at_once),
        cmocka_unit_test(a_request_that_comes_twice_is_passed_on_once),
        cmocka_unit_test(a_program_that_writes_without_pause_can_be_stopped),
        cmocka_unit_test(a_job_whose_output_nobody_reads_can_be_stopped),
        cmocka_unit_test(output_waits_for_a_slow_reader),
        cmocka_unit_test(a_rank_that_was_asked_to_end_is_not_started_again),
        cmocka_unit_test(when_the_launcher_is_killed_its_ranks_die_with_it),
        cmocka_unit_test(children_of_ranks_do_not_outlive_them),
        cmocka_unit_test(all_ranks_are_started_again_up_to_the_limit),
        cmocka_unit_test(a_job_that_was_asked_to_end_is_not_started_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
