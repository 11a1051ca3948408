/* One launcher: what its ranks are told, what comes out, how all of it ends. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/scratch.h"
#include "launch/cores.h"
#include "launch/support_launched.h"

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

/* As torchrun has it: each rank sees one GPU, its own, and is number 0 there. */
static void virtual_local_ranks_see_their_own_gpu(void **state)
{
    (void)state;
    fsdp_launch_config c = ranks(3);
    c.virtual_local_rank = true;
    unsetenv("CUDA_VISIBLE_DEVICES");
    launched *l = run(c, "echo r=$RANK l=$LOCAL_RANK lw=$LOCAL_WORLD_SIZE gpu=$CUDA_VISIBLE_DEVICES");
    assert_has(l, "r=0 l=0 lw=3 gpu=0\n");
    assert_has(l, "r=2 l=0 lw=3 gpu=2\n");
    setenv("CUDA_VISIBLE_DEVICES", "GPU-12ab,7,3", 1);
    l = run(c, "echo r=$RANK l=$LOCAL_RANK gpu=$CUDA_VISIBLE_DEVICES");
    assert_has(l, "r=0 l=0 gpu=GPU-12ab\n");
    assert_has(l, "r=1 l=0 gpu=7\n");
    assert_has(l, "r=2 l=0 gpu=3\n");
    setenv("CUDA_VISIBLE_DEVICES", "", 1); /* all GPUs are hidden, and stay so */
    l = run(c, "echo r=$RANK l=$LOCAL_RANK gpu=${CUDA_VISIBLE_DEVICES-none}.");
    assert_int_equal(l->exit_code, 0);
    for (int rank = 0; rank < 3; rank++) {
        char line[32];
        snprintf(line, sizeof line, "r=%d l=0 gpu=.\n", rank);
        assert_has(l, line);
    }
    setenv("CUDA_VISIBLE_DEVICES", "7,3", 1);
    l = run(c, "echo started");
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(l->exit_code, 2);
    assert_has(l, "has 2 GPUs for 3 ranks");
    assert_null(strstr(l->text, "started"));
}

static void cores_are_shared_out_and_threads_follow(void **state)
{
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    cpu_set_t allowed; /* may be fewer than there are */
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int cores = CPU_COUNT(&allowed);
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

static void prefixes_follow_a_template(void **state)
{
    (void)state;
    char host[128] = "", line[320];
    assert_int_equal(gethostname(host, sizeof host - 1), 0);
    fsdp_launch_config c = ranks(2);
    c.line_prefix = "${hostname}:${rank}/$local_rank ${role_name}$$ ${other} $ ${rank: ";
    launched *l = run(c, "echo word");
    snprintf(line, sizeof line, "%s:1/1 default$ ${other} $ ${rank: word\n", host);
    assert_has(l, line);
    c.line_prefix = "";
    l = run(c, "echo word");
    assert_string_equal(l->text, "word\nword\n");
    char much[4096];
    memset(much, 'x', sizeof much - 1);
    much[sizeof much - 1] = 0;
    c.line_prefix = much;
    l = run(c, "echo word");
    assert_int_equal(l->exit_code, 0);
    assert_has(l, "xxword\n");
    c.line_prefix = "[${rank}] ";
    c.plain_first = true;
    l = run(c, "echo word $RANK");
    assert_true(strncmp(l->text, "word 0\n", 7) == 0 || strstr(l->text, "\nword 0\n"));
    assert_has(l, "[1] word 1\n");
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

/* Rank 0 fails once rank 1 ignores the signal. */
static void ranks_that_ignore_sigterm_are_killed_after_the_grace(void **state)
{
    fsdp_launch_config config = ranks(2);
    config.grace_seconds = 0.5;
    setenv("READY", *state, 1);
    double start = clock_seconds();
    launched *l = run(config, "if [ $RANK = 0 ]; then until [ -e $READY/1 ]; do sleep 0.02; done; exit 3; fi; "
                              "trap '' TERM; : > $READY/1; while :; do sleep 1; done");
    double seconds = clock_seconds() - start;
    unsetenv("READY");
    assert_int_equal(l->exit_code, 3);
    assert_true(seconds > 0.5 && seconds < 30);
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

static void only_the_signals_that_were_named_are_forwarded(void **state)
{
    (void)state;
    const char *script = "trap 'echo quit; exit 0' QUIT; trap 'echo usr2' USR2; echo ready $$ $RANK; "
                         "while :; do sleep 0.05; done";
    fsdp_launch_config c = ranks(1);
    c.signals = "SIGQUIT,USR2";
    current.text[0] = 0;
    signal(SIGQUIT, SIG_DFL); /* a shell cannot trap what was ignored when it began */
    launch(&current, c, script);
    read_until(&current, " 0\n");
    kill(current.pid, SIGUSR2);
    read_until(&current, "usr2");
    kill(current.pid, SIGQUIT);
    join(&current);
    assert_has(&current, "quit");
    assert_int_equal(current.exit_code, 0);

    current.text[0] = 0;
    launch(&current, c, script); /* what is not passed on does what it does to any program */
    read_until(&current, " 0\n");
    pid_t rank = number_after(&current, "ready ");
    kill(current.pid, SIGTERM);
    join(&current);
    assert_int_equal(current.exit_code, 1000 + SIGTERM); /* killed by it */
    assert_true(dies_within(rank, 30));
    assert_null(strstr(current.text, "quit"));

    const char *bad[] = {"SIGKILL", "SIGTERM,,SIGINT", "15", "SIG", "sigterm"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        c.signals = bad[i];
        assert_int_equal(run(c, "echo started")->exit_code, 2);
        assert_has(&current, "cannot be passed on");
    }
}

/* What comes within a second is one request. A launcher that a busy machine keeps waiting may take it later than it was
 * sent: only what was taken within this time tells anything. */
static const double surely_the_same_seconds = 0.9;

/* Sends a signal and waits until the launcher has taken it, or has ended. */
static void send_and_wait(pid_t pid, int number)
{
    double deadline = clock_seconds() + 30;
    kill(pid, number);
    while (is_alive(pid) && is_in_set(pid, "ShdPnd", number) && clock_seconds() < deadline)
        pause_seconds(0.005);
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
    double first = clock_seconds();
    kill(current.pid, SIGINT);
    read_until(&current, "Ctrl-C: the ranks are asked");
    send_and_wait(current.pid, SIGINT); /* so soon, it is the same request once more */
    bool same = clock_seconds() - first < surely_the_same_seconds;
    pause_seconds(1.1);
    if (same)
        assert_true(is_alive(current.pid));
    kill(current.pid, SIGINT);
    join(&current);
    assert_int_equal(current.exit_code, 137);
}

static void a_request_that_comes_twice_is_passed_on_once(void **state)
{
    (void)state;
    bool same = false;
    fsdp_launch_config config = ranks(1);
    config.grace_seconds = 60;
    for (int i = 0; i < 10 && !same; i++) {
        current.text[0] = 0;
        launch(&current, config,
               "n=0; trap 'n=$((n+1))' TERM; echo ready; while [ $n = 0 ]; do sleep 0.05; done; i=0; "
               "while [ $i -lt 12 ]; do sleep 0.05; i=$((i+1)); done; echo asked $n times");
        read_until(&current, "ready");
        double first = clock_seconds();
        for (int k = 0; k < 3; k++) {
            send_and_wait(current.pid, SIGTERM);
            same = clock_seconds() - first < surely_the_same_seconds;
            pause_seconds(0.1);
        }
        join(&current);
    }
    if (same)
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

static void bad_input_is_not_tried_again(void **state)
{
    (void)state;
    fsdp_launch_config config = ranks(3);
    config.max_restarts = 3;
    launched *l = run(config, "echo try $FSDP_RESTART_COUNT; if [ $RANK = 1 ]; then exit 2; fi; sleep 60");
    assert_int_equal(l->exit_code, 2);
    assert_has(l, "ended with status 2; status 2 means bad input, so there is no restart");
    assert_null(strstr(l->text, "try 1"));
    /* Two that end while the launcher looks away: the one with status 1 may have lost the one whose input is bad. */
    l = run(config, "echo try $FSDP_RESTART_COUNT; family=/proc/$PPID/task/$PPID/children; "
                    "if [ $RANK = 1 ]; then while [ $(wc -w <$family) -lt 4 ]; do sleep 0.02; done; kill -STOP $PPID; "
                    "until [ $(for c in $(cat $family); do grep '(zombie)' /proc/$c/status; done | wc -l) = 2 ]; "
                    "do sleep 0.02; done; kill -CONT $PPID; sleep 60; fi; "
                    "until grep -q 'T (stopped)' /proc/$PPID/status; do sleep 0.02; done; exit $((1 + $RANK / 2))");
    assert_int_equal(l->exit_code, 2);
    assert_null(strstr(l->text, "try 1"));
    /* Nobody expected a restart. */
    config.max_restarts = 0;
    l = run(config, "exit 2");
    assert_int_equal(l->exit_code, 2);
    assert_null(strstr(l->text, "no restart"));
    /* Status 2 of a rank that we asked to end is no verdict on its input. */
    config.max_restarts = 1;
    l = run(config, "trap 'exit 2' TERM; if [ $RANK$FSDP_RESTART_COUNT = 10 ]; then exit 1; fi; "
                    "if [ $FSDP_RESTART_COUNT = 1 ]; then echo again; exit 0; fi; while :; do sleep 0.05; done");
    assert_int_equal(l->exit_code, 0);
    assert_has(l, "[rank 0] again");
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
        cmocka_unit_test(virtual_local_ranks_see_their_own_gpu),
        cmocka_unit_test(cores_are_shared_out_and_threads_follow),
        cmocka_unit_test(cores_are_taken_in_the_order_of_numa_nodes),
        cmocka_unit_test(rank_0_alone_reads_the_input),
        cmocka_unit_test(lines_stay_whole),
        cmocka_unit_test(rank_0_is_plain_when_asked),
        cmocka_unit_test(prefixes_follow_a_template),
        cmocka_unit_test(long_lines_and_much_output_pass),
        cmocka_unit_test(one_failure_ends_all_with_its_status),
        cmocka_unit_test(a_killed_rank_gives_128_plus_the_signal),
        cmocka_unit_test_setup_teardown(ranks_that_ignore_sigterm_are_killed_after_the_grace, scratch_setup,
                                        scratch_teardown),
        cmocka_unit_test(an_absent_program_gives_127),
        cmocka_unit_test(signals_are_forwarded),
        cmocka_unit_test(only_the_signals_that_were_named_are_forwarded),
        cmocka_unit_test(a_second_interrupt_ends_at_once),
        cmocka_unit_test(a_request_that_comes_twice_is_passed_on_once),
        cmocka_unit_test(a_program_that_writes_without_pause_can_be_stopped),
        cmocka_unit_test(a_job_whose_output_nobody_reads_can_be_stopped),
        cmocka_unit_test(output_waits_for_a_slow_reader),
        cmocka_unit_test(a_rank_that_was_asked_to_end_is_not_started_again),
        cmocka_unit_test(bad_input_is_not_tried_again),
        cmocka_unit_test(when_the_launcher_is_killed_its_ranks_die_with_it),
        cmocka_unit_test(children_of_ranks_do_not_outlive_them),
        cmocka_unit_test(all_ranks_are_started_again_up_to_the_limit),
        cmocka_unit_test(a_job_that_was_asked_to_end_is_not_started_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
