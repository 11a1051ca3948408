/* Adopts orphans as a child subreaper does, and asks the kernel who our children are. */
#include "launch/strays.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"

/* Those that we may not kill, or that hang in the kernel, are left alone after this. */
static const double patience_seconds = 3;

static bool append(pid_t **list, int *n, pid_t pid)
{
    pid_t *longer = realloc(*list, (size_t)(*n + 1) * sizeof **list);
    if (!longer)
        return false;
    longer[(*n)++] = pid;
    *list = longer;
    return true;
}

/* The children of all our threads. False: the kernel does not say, or there is no memory. */
static bool list_children(pid_t **list, int *n)
{
    DIR *threads = opendir("/proc/self/task");
    bool complete = threads != NULL;
    *list = NULL;
    *n = 0;
    for (const struct dirent *entry; complete && (entry = readdir(threads));) {
        char path[300];
        int pid;
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/children", entry->d_name);
        FILE *file = fopen(path, "re");
        while (file && complete && fscanf(file, "%d", &pid) == 1)
            complete = append(list, n, pid);
        complete = complete && file;
        if (file)
            fclose(file);
    }
    if (threads)
        closedir(threads);
    return complete;
}

static bool contains(const pid_t *list, int n, pid_t pid)
{
    for (int i = 0; i < n; i++)
        if (list[i] == pid)
            return true;
    return false;
}

void strays_begin(strays *s)
{
    int before = 0;
    *s = (strays){0};
    if (!list_children(&s->others, &s->n_others) || prctl(PR_GET_CHILD_SUBREAPER, &before) < 0)
        return;
    s->before = before != 0;
    s->adopts = prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
}

/* One turn over those that are there; how many. Killing one hands us its children, for the next turn. */
static int end_turn(const strays *s)
{
    pid_t *children;
    int n, found = 0;
    if (list_children(&children, &n))
        for (int i = 0; i < n; i++) {
            if (contains(s->others, s->n_others, children[i]))
                continue;
            kill(children[i], SIGKILL);
            waitpid(children[i], NULL, WNOHANG);
            found++;
        }
    free(children);
    return found;
}

void strays_end(const strays *s)
{
    double end = clock_seconds() + patience_seconds;
    while (s->adopts && end_turn(s) > 0 && clock_seconds() < end)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

void strays_free(strays *s)
{
    if (s->adopts && !s->before)
        prctl(PR_SET_CHILD_SUBREAPER, 0);
    free(s->others);
    *s = (strays){0};
}
