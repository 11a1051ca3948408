/* Keeps the counters open: reading one takes a microsecond, opening it ten times as long. */
#include "base/host/core_wait.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"

enum { MOST_THREADS = 256 };

typedef struct counter {
    long thread;
    int fd;
    int64_t nanoseconds; /* when it was last read */
} counter;

struct core_wait {
    uint64_t takes;
    int n;
    counter counters[MOST_THREADS];
};

fsdp_status core_wait_open(core_wait **out)
{
    *out = calloc(1, sizeof **out);
    return *out ? FSDP_OK : error_set(FSDP_ERR_MEMORY, "out of memory to count waits for a core");
}

void core_wait_close(core_wait *w)
{
    for (int i = 0; w && i < w->n; i++)
        close(w->counters[i].fd);
    free(w);
}

/* Nanoseconds on a core and on a queue. False: the thread has ended. */
static bool read_times(int fd, int64_t *ran, int64_t *waited)
{
    char text[96];
    long long times[2] = {0, 0};
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0)
        return false;
    text[n] = 0;
    if (sscanf(text, "%lld %lld", &times[0], &times[1]) != 2)
        times[0] = times[1] = 0;
    *ran = times[0];
    *waited = times[1];
    return true;
}

static bool read_counter(const counter *c, int64_t *nanoseconds)
{
    int64_t ran;
    return read_times(c->fd, &ran, nanoseconds);
}

static bool read_process(pid_t process, int64_t *ran, int64_t *waited)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)process);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool there = fd >= 0 && read_times(fd, ran, waited);
    if (fd >= 0)
        close(fd);
    return there;
}

char core_wait_state(pid_t process)
{
    char path[64], words[256] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)process);
    FILE *file = fopen(path, "re");
    const char *name = file && fgets(words, sizeof words, file) ? strrchr(words, ')') : NULL;
    if (file)
        fclose(file);
    return name && strlen(name) > 2 ? name[2] : 0;
}

int64_t core_watch_look(core_watch *w, pid_t process)
{
    int64_t ran, waited;
    double now = clock_seconds();
    if (!read_process(process, &ran, &waited))
        return 0;
    if (w->process != process)
        *w = (core_watch){.process = process, .ran = -1};
    if (waited > w->waited) /* now the system has counted it */
        w->unseen -= w->unseen < waited - w->waited ? w->unseen : waited - w->waited;
    else if (ran > 0 && ran == w->ran && core_wait_state(process) == 'R')
        w->unseen += (int64_t)((now - w->looked) * 1e9);
    w->ran = ran;
    w->waited = waited;
    w->looked = now;
    return (waited + w->unseen) / 1000;
}

static bool is_known(const core_wait *w, long thread)
{
    for (int i = 0; i < w->n; i++)
        if (w->counters[i].thread == thread)
            return true;
    return false;
}

static void add_thread(core_wait *w, long thread)
{
    char path[64];
    counter c = {.thread = thread};
    if (w->n == MOST_THREADS || is_known(w, thread))
        return;
    snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", thread);
    c.fd = open(path, O_RDONLY | O_CLOEXEC);
    if (c.fd >= 0 && read_counter(&c, &c.nanoseconds))
        w->counters[w->n++] = c;
    else if (c.fd >= 0)
        close(c.fd);
}

/* OpenMP keeps the threads of a team for the next one. */
static void find_threads(core_wait *w)
{
#pragma omp parallel
    {
        long thread = syscall(SYS_gettid);
#pragma omp critical
        add_thread(w, thread);
    }
}

double core_wait_take(core_wait *w)
{
    int64_t sum = 0, now;
    for (int i = 0; i < w->n; i++) {
        counter *c = &w->counters[i];
        if (read_counter(c, &now)) {
            sum += now - c->nanoseconds;
            c->nanoseconds = now;
        } else {
            close(c->fd);
            *c = w->counters[--w->n];
            i--;
        }
    }
    w->takes++;
    if ((w->takes & (w->takes - 1)) == 0) /* now and then: the team may have changed */
        find_threads(w);
    return w->n > 0 ? (double)sum * 1e-9 : -1;
}
