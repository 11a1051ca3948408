/* What a process says when it dies of a fatal signal. Each case crashes a child of its own and reads its last words. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/error.h"
#include "base/record/hooks.h"

static char said[65536];

/* Runs `die` in a child that reports crashes; returns waitpid's status, and what it said in `said`. */
static int crash(void (*die)(void))
{
    int ends[2], status;
    size_t n = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        static const int ours[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGABRT, SIGSYS};
        for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
            signal(ours[i], SIG_DFL); /* cmocka's, or a sanitizer's */
        stack_t none = {.ss_flags = SS_DISABLE};
        sigaltstack(&none, NULL);
        dup2(ends[1], STDERR_FILENO);
        error_set_rank(3, 8);
        fsdp_report_crashes();
        die();
        _exit(0);
    }
    close(ends[1]);
    for (ssize_t got; (got = read(ends[0], said + n, sizeof said - 1 - n)) > 0;)
        n += (size_t)got;
    said[n] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void assert_said(const char *text)
{
    if (!strstr(said, text))
        fail_msg("last words lack '%s':\n%s", text, said);
}

static void work(void)
{
    crash_note_step(120);
    HOOK(HOOK_UNIT, HOOK_INSTANT, "layers.7", "full", 0, 1);
    HOOK(HOOK_OP, HOOK_BEGIN, "linear", "backward", 0, 0);
}

/* An address where nothing is; not NULL, which a sanitizer would find first. */
static volatile int *volatile nowhere = (volatile int *)64;

static void read_nowhere(void)
{
    work();
    (void)*nowhere;
}

static void a_wild_pointer_is_reported_with_its_place(void **state)
{
    (void)state;
    int status = crash(read_nowhere);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_said(
        "fsdp: rank 3 of 8 died of signal 11 (SIGSEGV) at address 0x40; step 120, phase backward, last operation "
        "linear.backward, last unit layers.7\n");
    assert_said("backtrace");
    assert_said("base_test_crash");
}

static void give_up(void)
{
    HOOK(HOOK_PHASE, HOOK_BEGIN, "checkpoint", NULL, 0, 0);
    abort();
}

static void an_abort_is_reported(void **state)
{
    (void)state;
    int status = crash(give_up);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    assert_said("(SIGABRT), phase checkpoint\n");
}

static int sink;

__attribute__((noinline)) static void dive(int depth)
{
    volatile char room[4096];
    room[0] = (char)depth;
    if (depth < 1 << 30)
        dive(depth + 1);
    sink += room[0];
}

static void overflow(void)
{
    dive(0);
}

static void an_overflowing_stack_is_reported(void **state)
{
    (void)state;
    int status = crash(overflow);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_said("died of signal 11 (SIGSEGV)");
}

static void read_cut_file(void)
{
    FILE *file = tmpfile();
    char *mapped = MAP_FAILED;
    if (file && ftruncate(fileno(file), 8192) == 0)
        mapped = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fileno(file), 0);
    if (mapped != MAP_FAILED && ftruncate(fileno(file), 0) == 0)
        sink += ((volatile char *)mapped)[5000];
}

static void a_mapped_file_that_shrank_is_named_as_the_cause(void **state)
{
    (void)state;
    int status = crash(read_cut_file);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    assert_said("a mapped file was cut short");
}

static void *crash_here(void *argument)
{
    (void)argument;
    (void)*nowhere;
    return NULL;
}

static void crash_together(void)
{
    pthread_t threads[8];
    for (int i = 0; i < 8; i++)
        pthread_create(&threads[i], NULL, crash_here, NULL);
    for (int i = 0; i < 8; i++)
        pthread_join(threads[i], NULL);
}

static void threads_that_crash_together_speak_once(void **state)
{
    (void)state;
    int status = crash(crash_together);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_said("died of");
    assert_null(strstr(strstr(said, "died of") + 1, "died of"));
}

static void leave_well(void)
{
    work();
}

static void a_process_that_ends_well_says_nothing(void **state)
{
    (void)state;
    assert_int_equal(crash(leave_well), 0);
    assert_string_equal(said, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wild_pointer_is_reported_with_its_place),
        cmocka_unit_test(an_abort_is_reported),
        cmocka_unit_test(an_overflowing_stack_is_reported),
        cmocka_unit_test(a_mapped_file_that_shrank_is_named_as_the_cause),
        cmocka_unit_test(threads_that_crash_together_speak_once),
        cmocka_unit_test(a_process_that_ends_well_says_nothing),
    };
    return cmocka_run_group_tests_name("crash", tests, NULL, NULL);
}
