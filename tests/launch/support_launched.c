#include "launch/support_launched.h"

#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

static void print_log(void *context, fsdp_log_level level, const char *line)
{
    (void)context, (void)level;
    printf("log: %s\n", line);
    fflush(stdout);
}

void launch(launched *l, fsdp_launch_config config, const char *script)
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

void read_until(launched *l, const char *text)
{
    while (!text || !strstr(l->text, text)) {
        ssize_t got = read(l->output, l->text + l->bytes, sizeof l->text - 1 - l->bytes);
        if (got <= 0)
            break;
        l->bytes += (size_t)got;
        l->text[l->bytes] = 0;
    }
}

void join(launched *l)
{
    int status;
    l->text[l->bytes] = 0;
    read_until(l, NULL);
    close(l->output);
    assert_int_equal(waitpid(l->pid, &status, 0), l->pid);
    l->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

launched current;

launched *run(fsdp_launch_config config, const char *script)
{
    current.text[0] = 0;
    launch(&current, config, script);
    join(&current);
    return &current;
}

fsdp_launch_config ranks(int n)
{
    fsdp_launch_config config = FSDP_LAUNCH_CONFIG_INIT;
    config.n_ranks = n;
    config.grace_seconds = 5;
    return config;
}

void pause_seconds(double seconds)
{
    struct timespec pause = {.tv_sec = (time_t)seconds, .tv_nsec = (long)((seconds - (double)(time_t)seconds) * 1e9)};
    nanosleep(&pause, NULL);
}

bool is_alive(pid_t pid)
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

bool dies_within(pid_t pid, double seconds)
{
    double deadline = clock_seconds() + seconds;
    while (is_alive(pid) && clock_seconds() < deadline)
        pause_seconds(0.01);
    return !is_alive(pid);
}

bool is_in_set(pid_t pid, const char *set, int signal_number)
{
    char path[64], line[128];
    unsigned long long bits = 0;
    size_t n = strlen(set);
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, set, n) == 0 && line[n] == ':')
            bits = strtoull(line + n + 1, NULL, 16);
    if (file)
        fclose(file);
    return bits >> (signal_number - 1) & 1;
}

void assert_has(const launched *l, const char *text)
{
    if (!strstr(l->text, text))
        fail_msg("output lacks '%s':\n%s", text, l->text);
}

int number_after(const launched *l, const char *text)
{
    const char *at = strstr(l->text, text);
    if (!at)
        fail_msg("output lacks '%s':\n%s", text, l->text);
    return atoi(at + strlen(text));
}
