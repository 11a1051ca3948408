/* How many threads a rank computes with. OpenMP does the work; this decides the number, once, at start:
 * an explicit request (--threads), else OMP_NUM_THREADS, else the rank's share of the cores it may run on. */
#ifndef BASE_HOST_THREADS_H
#define BASE_HOST_THREADS_H

/* More would not help; OpenMP keeps tables of them on its stack and crashes when there are too many. */
enum { THREADS_MAX = 4096 };

/* Cores in this process's affinity mask. */
int threads_cores(void);

/* Applies the policy (`requested` 0: not asked for) and returns the number chosen, at least 1 and never more than
 * the cores unless asked for explicitly. `local_ranks` share the machine. */
int threads_set(int requested, int local_ranks);
int threads_count(void);

#endif
