/* Decides how many threads a rank computes with, and tells OpenMP. Binding threads to cores is left to the launcher. */
#include "base/host/threads.h"

#include <omp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/host/environment.h"

/* The number chosen by threads_set, 0 before: one decision per process, made at start. */
static atomic_int chosen;

/* Machines with more cores than a cpu_set_t holds refuse the small mask; ever larger ones are tried. */
int threads_cores(void)
{
    for (int capacity = CPU_SETSIZE; capacity <= 1 << 20; capacity *= 4) {
        cpu_set_t *set = CPU_ALLOC(capacity);
        if (!set)
            break;
        size_t bytes = CPU_ALLOC_SIZE(capacity);
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0)
            return count;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* OMP_NUM_THREADS may be a list, one number per nesting level ("8,2"); the first counts. 0 when unset or no number. */
static int asked_by_environment(void)
{
    const char *text = environment_text("OMP_NUM_THREADS");
    if (!text)
        return 0;
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || (*end && *end != ',') || value < 1)
        return 0;
    return value < 1 << 20 ? (int)value : 1 << 20;
}

static int policy(int requested, int local_ranks)
{
    if (requested > 0)
        return requested;
    int cores = threads_cores();
    int count = asked_by_environment();
    if (count == 0)
        count = cores / (local_ranks > 0 ? local_ranks : 1);
    if (count > cores)
        count = cores;
    return count > 0 ? count : 1;
}

int threads_set(int requested, int local_ranks)
{
    int count = policy(requested, local_ranks);
    atomic_store(&chosen, count);
    /* OpenMP keeps this per calling thread: a thread made elsewhere that runs parallel regions must say
     * num_threads(threads_count()) itself. */
    omp_set_dynamic(0);
    omp_set_num_threads(count);
    return count;
}

int threads_count(void)
{
    int count = atomic_load(&chosen);
    return count ? count : policy(0, 1);
}
