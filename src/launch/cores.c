/* Which cores there are, in an order in which neighbours share caches, and who gets which. */
#include "launch/cores.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"

typedef struct core {
    int id, socket, physical;
} core;

/* A number out of the system's description of a core; 0 where there is none. */
static int read_topology(int id, const char *what)
{
    char path[128];
    int value = 0;
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/%s", id, what);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    if (fscanf(file, "%d", &value) != 1)
        value = 0;
    fclose(file);
    return value;
}

static int compare_cores(const void *a, const void *b)
{
    const core *x = a, *y = b;
    if (x->socket != y->socket)
        return x->socket < y->socket ? -1 : 1;
    if (x->physical != y->physical)
        return x->physical < y->physical ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

fsdp_status core_list_read(core_list *out)
{
    cpu_set_t set;
    *out = (core_list){0};
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return FSDP_OK; /* more cores than the set holds: ranks then stay on all of them */
    int n = CPU_COUNT(&set), at = 0;
    core *cores = calloc((size_t)n, sizeof *cores);
    out->cores = calloc((size_t)n, sizeof *out->cores);
    if (!cores || !out->cores) {
        free(cores);
        core_list_free(out);
        return error_set(FSDP_ERR_MEMORY, "no memory for a list of %d cores", n);
    }
    for (int id = 0; id < CPU_SETSIZE && at < n; id++)
        if (CPU_ISSET(id, &set))
            cores[at++] = (core){id, read_topology(id, "physical_package_id"), read_topology(id, "core_id")};
    qsort(cores, (size_t)at, sizeof *cores, compare_cores);
    for (int i = 0; i < at; i++)
        out->cores[i] = cores[i].id;
    out->n = at;
    free(cores);
    return FSDP_OK;
}

void core_list_free(core_list *list)
{
    free(list->cores);
    *list = (core_list){0};
}

void core_list_share(const core_list *list, int rank, int n_ranks, int *first, int *count)
{
    if (n_ranks > list->n) {
        *first = 0;
        *count = list->n;
        return;
    }
    *first = (int)((long)rank * list->n / n_ranks);
    *count = (int)((long)(rank + 1) * list->n / n_ranks) - *first;
}
