/* Which cores there are, in an order in which neighbours share caches, and who gets which. */
#include "launch/cores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef FSDP_WITH_HWLOC
#include <hwloc.h>
#endif

#include "base/host/environment.h"
#include "base/error.h"
#include "base/log.h"

typedef struct core {
    int id, place, socket, physical; /* place: hwloc's, 0 where it was not asked */
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

/* Memory of several NUMA nodes; what one machine has in one piece needs no closer look, which takes many milliseconds.
 */
static bool has_numa(void)
{
    char words[64] = "";
    FILE *file = fopen("/sys/devices/system/node/online", "re");
    if (file && !fgets(words, sizeof words, file))
        words[0] = 0;
    if (file)
        fclose(file);
    return strpbrk(words, ",-") || environment_text("HWLOC_SYNTHETIC") || environment_text("HWLOC_XMLFILE");
}

/* hwloc's order keeps NUMA nodes, caches and cores together; without it, sockets and cores have to do. */
static void find_places(core *cores, int n)
{
#ifdef FSDP_WITH_HWLOC
    hwloc_topology_t topology;
    if (!has_numa() || hwloc_topology_init(&topology) != 0)
        return;
    bool loaded = hwloc_topology_load(topology) == 0;
    for (int i = 0; i < n && loaded; i++) {
        hwloc_obj_t found = hwloc_get_pu_obj_by_os_index(topology, (unsigned)cores[i].id);
        cores[i].place = found ? (int)found->logical_index : 0;
    }
    hwloc_topology_destroy(topology);
#else
    (void)cores, (void)n;
    if (has_numa())
        log_write(FSDP_LOG_INFO, "ranks are bound without regard to NUMA nodes: this build has no hwloc (apt install "
                                 "libhwloc-dev)");
#endif
}

static int compare_cores(const void *a, const void *b)
{
    const core *x = a, *y = b;
    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    if (x->socket != y->socket)
        return x->socket < y->socket ? -1 : 1;
    if (x->physical != y->physical)
        return x->physical < y->physical ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

void core_list_sort(core_list *list)
{
    core *cores = calloc((size_t)list->n, sizeof *cores);
    if (!cores)
        return; /* any order will do */
    for (int i = 0; i < list->n; i++) {
        int id = list->cores[i];
        cores[i] = (core){id, 0, read_topology(id, "physical_package_id"), read_topology(id, "core_id")};
    }
    find_places(cores, list->n);
    qsort(cores, (size_t)list->n, sizeof *cores, compare_cores);
    for (int i = 0; i < list->n; i++)
        list->cores[i] = cores[i].id;
    free(cores);
}

fsdp_status core_list_read(core_list *out)
{
    cpu_set_t set;
    *out = (core_list){0};
    if (sched_getaffinity(0, sizeof set, &set) < 0)
        return FSDP_OK; /* more cores than the set holds: ranks then stay on all of them */
    int n = CPU_COUNT(&set);
    out->cores = calloc((size_t)n, sizeof *out->cores);
    if (!out->cores)
        return error_set(FSDP_ERR_MEMORY, "no memory for a list of %d cores", n);
    for (int id = 0; id < CPU_SETSIZE && out->n < n; id++)
        if (CPU_ISSET(id, &set))
            out->cores[out->n++] = id;
    core_list_sort(out);
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
