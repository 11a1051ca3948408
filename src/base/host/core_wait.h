/* How long the threads that compute, the calling one and its OpenMP team, were ready to run and had no core: the system
 * counts it for each thread (/proc/self/task/N/schedstat). Another program on the core shows here, and so does a limit
 * of CPU time; sleep, a slow disk and slow arithmetic do not. Threads that help (loader, watchdog) are left out: on a
 * machine without cores to spare they wait for those that compute. */
#ifndef BASE_HOST_CORE_WAIT_H
#define BASE_HOST_CORE_WAIT_H

#include <stdint.h>
#include <sys/types.h>

#include <fsdp/status.h>

typedef struct core_wait core_wait;

fsdp_status core_wait_open(core_wait **out); /* the caller closes *out */
void core_wait_close(core_wait *w);          /* NULL is legal */

/* Seconds since the last call, of these threads together; below 0: the system does not count them. On the same thread
 * each time. */
double core_wait_take(core_wait *w);

/* What was last seen of another process's first thread. Zeroes to begin with. */
typedef struct core_watch {
    pid_t process;
    int64_t ran, waited, unseen; /* nanoseconds; the system counts a wait when it has ended: until then it is unseen */
    double looked;
} core_watch;

/* Microseconds in all that it was ready to run and had no core, with the wait that it may be in, as far as that was
 * seen: by two looks, or more. 0: the process is gone, or the system does not count. */
int64_t core_watch_look(core_watch *w, pid_t process);

/* The system's letter for what a process does: R runs or is ready to, T is stopped, t is traced; 0: it is gone. */
char core_wait_state(pid_t process);

#endif
