/* NUMA nodes of GPUs from the kernel, those of cores from hwloc, and which cores follow for each rank. Binding itself
 * is left to process.c. */
#include "launch/numa.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef FSDP_WITH_HWLOC
#include <hwloc.h>
#endif

#include "base/error.h"
#include "base/host/environment.h"

/* ---- GPUs ---- */

enum { MAX_GPUS = 64, BUS_BYTES = 32, PATH_BYTES = 512 };

typedef char bus_name[BUS_BYTES]; /* "0000:18:00.0" */

static int compare_buses(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* In the order of the bus, which is CUDA's where all are of one kind. */
static int list_gpus(const char *root, bus_name *out)
{
    char path[PATH_BYTES];
    int n = 0;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus", root);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && n < MAX_GPUS && (entry = readdir(folder));)
        if (strchr(entry->d_name, ':') && strlen(entry->d_name) < BUS_BYTES)
            memcpy(out[n++], entry->d_name, strlen(entry->d_name) + 1);
    if (folder)
        closedir(folder);
    qsort(out, (size_t)n, sizeof *out, compare_buses);
    return n;
}

/* Whether the driver knows the GPU by an id that begins so: CUDA takes shortened ones. */
static bool has_uuid(const char *root, const char *bus, const char *id, size_t n)
{
    char path[PATH_BYTES], line[256], uuid[128];
    bool found = false;
    snprintf(path, sizeof path, "%s/proc/driver/nvidia/gpus/%.31s/information", root, bus);
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "GPU UUID: %127s", uuid) == 1 && strncmp(uuid, id, n) == 0;
    if (file)
        fclose(file);
    return found;
}

/* Which of the n GPUs the list of visible ones has at `index`; -1: none, or not one of these. */
static int find_visible(const char *root, const bus_name *gpus, int n, const char *visible, int index)
{
    for (; index > 0 && visible; index--) {
        visible = strchr(visible, ',');
        visible = visible ? visible + 1 : NULL;
    }
    if (!visible)
        return -1;
    char *end;
    long number = strtol(visible, &end, 10);
    size_t length = strcspn(visible, ",");
    if (end != visible)
        return number >= 0 && number < n ? (int)number : -1;
    for (int i = 0; i < n && length > 4; i++)
        if (has_uuid(root, gpus[i], visible, length))
            return i;
    return -1;
}

int numa_node_of_gpu(const char *root, const char *visible, int index)
{
    bus_name gpus[MAX_GPUS];
    char path[PATH_BYTES];
    int n = list_gpus(root, gpus), gpu = visible ? find_visible(root, gpus, n, visible, index) : index, node = -1;
    if (gpu < 0 || gpu >= n)
        return -1;
    snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%.31s/numa_node", root, gpus[gpu]);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%d", &node) != 1)
        node = -1;
    if (file)
        fclose(file);
    return node;
}

/* ---- dividing ---- */

static const numa_core *find_on_node(const numa_core *cores, int n, int node)
{
    for (int i = 0; i < n; i++)
        if (cores[i].node == node)
            return &cores[i];
    return NULL;
}

static int node_of_rank(const numa_core *cores, int n, const int *near, int n_ranks, int rank)
{
    return near[rank] >= 0 ? near[rank] : cores[(long)rank * n / n_ranks].node;
}

/* Numbers the values of one field among the cores of a node, in the order in which they come; *of (n) is -1 for the
 * cores of other nodes. */
static int number_groups(const numa_core *cores, int n, int node, bool by_cache, int *of)
{
    int n_groups = 0;
    for (int i = 0; i < n; i++) {
        of[i] = cores[i].node == node ? n_groups : -1;
        for (int k = 0; k < i && of[i] == n_groups; k++)
            if (of[k] >= 0 && (by_cache ? cores[k].cache == cores[i].cache : cores[k].physical == cores[i].physical))
                of[i] = of[k];
        n_groups += of[i] == n_groups;
    }
    return n_groups;
}

/* Physical cores or caches of the node: the k-th part of those for `sharing` ranks. */
static fsdp_status take_groups(const numa_core *cores, int n, int node, bool by_cache, int k, int sharing,
                               cpu_set_t *out)
{
    int *of = calloc((size_t)n, sizeof *of);
    if (!of)
        return error_set(FSDP_ERR_MEMORY, "no memory for a list of %d cores", n);
    int groups = number_groups(cores, n, node, by_cache, of);
    int first = by_cache ? k % groups : (int)((long)k * groups / sharing);
    int end = by_cache ? first + 1 : (int)((long)(k + 1) * groups / sharing);
    for (int i = 0; i < n; i++)
        if (of[i] >= first && of[i] < end)
            CPU_SET(cores[i].id, out);
    free(of);
    if (!by_cache && groups < sharing)
        return error_set(FSDP_ERR_INPUT,
                         "--numa_binding exclusive: NUMA node %d has %d cores for %d ranks; start fewer ranks, or "
                         "say node",
                         node, groups, sharing);
    return FSDP_OK;
}

static fsdp_status bind_rank(fsdp_numa_binding how, const numa_core *cores, int n, const int *near, int n_ranks,
                             int rank, cpu_set_t *out)
{
    int node = node_of_rank(cores, n, near, n_ranks, rank), before = 0, sharing = 0;
    const numa_core *there = find_on_node(cores, n, node);
    CPU_ZERO(out);
    if (!there)
        return error_set(
            FSDP_ERR_INPUT,
            "--numa_binding: the GPU of local rank %d is on NUMA node %d, and this process may use no core "
            "there; leave the flag out, or allow cores of that node",
            rank, node);
    for (int i = 0; i < n_ranks; i++)
        if (node_of_rank(cores, n, near, n_ranks, i) == node)
            before += i < rank, sharing++;
    if (how == FSDP_NUMA_EXCLUSIVE || how == FSDP_NUMA_CORE_COMPLEX)
        return take_groups(cores, n, node, how == FSDP_NUMA_CORE_COMPLEX, before, sharing, out);
    for (int i = 0; i < n; i++)
        if (how == FSDP_NUMA_SOCKET ? cores[i].socket == there->socket : cores[i].node == node)
            CPU_SET(cores[i].id, out);
    return FSDP_OK;
}

fsdp_status numa_divide(fsdp_numa_binding how, const numa_core *cores, int n, const int *near, int n_ranks,
                        rank_cores *out)
{
    for (int i = 0; i < n_ranks; i++)
        FSDP_TRY(bind_rank(how, cores, n, near, n_ranks, i, &out[i].set));
    for (int i = 0; i < n_ranks; i++) {
        out[i].n_ranks = 0;
        for (int k = 0; k < n_ranks; k++)
            out[i].n_ranks += CPU_EQUAL(&out[i].set, &out[k].set);
        int share = CPU_COUNT(&out[i].set) / out[i].n_ranks;
        out[i].n_threads = share > 1 ? share : 1;
    }
    return FSDP_OK;
}

/* ---- this host ---- */

#ifdef FSDP_WITH_HWLOC

static numa_core look_at(hwloc_topology_t topology, int id)
{
    numa_core c = {.id = id, .cache = -1, .physical = -1 - id};
    hwloc_obj_t unit = hwloc_get_pu_obj_by_os_index(topology, (unsigned)id), core = unit;
    if (!unit)
        return c;
    c.node = hwloc_bitmap_first(unit->nodeset);
    c.physical = (int)unit->logical_index;
    for (hwloc_obj_t at = unit->parent; at; at = at->parent) {
        if (at->type == HWLOC_OBJ_CORE) {
            core = at;
            c.physical = (int)at->logical_index;
        } else if (at->type == HWLOC_OBJ_PACKAGE) {
            c.socket = (int)at->logical_index;
        }
        if (hwloc_obj_type_is_dcache(at->type) && !hwloc_bitmap_isincluded(at->cpuset, core->cpuset))
            c.cache = (int)at->logical_index; /* the last one is the largest */
    }
    return c;
}

static fsdp_status look_at_all(const core_list *list, numa_core *out)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return error_set(FSDP_ERR_MEMORY, "no memory to find NUMA nodes");
    bool loaded = hwloc_topology_load(topology) == 0;
    for (int i = 0; i < list->n && loaded; i++)
        out[i] = look_at(topology, list->cores[i]);
    hwloc_topology_destroy(topology);
    return loaded ? FSDP_OK : error_set(FSDP_ERR_IO, "hwloc cannot tell where the cores of this host lie");
}

#else

static fsdp_status look_at_all(const core_list *list, numa_core *out)
{
    (void)list, (void)out;
    return error_set(FSDP_ERR_INPUT, "--numa_binding: this build has no hwloc (apt install libhwloc-dev, and build "
                                     "again)");
}

#endif

fsdp_status numa_bind(fsdp_numa_binding how, const core_list *list, int n_ranks, rank_cores *out)
{
    const char *visible = environment_value("CUDA_VISIBLE_DEVICES");
    numa_core *cores = calloc((size_t)list->n + 1, sizeof *cores);
    int *near = calloc((size_t)n_ranks, sizeof *near);
    fsdp_status status = FSDP_OK;
    if (!cores || !near)
        status = error_set(FSDP_ERR_MEMORY, "no memory for a list of %d cores", list->n);
    else if (list->n == 0)
        status = error_set(FSDP_ERR_UNSUPPORTED, "--numa_binding: this host has more cores than can be bound to");
    if (status == FSDP_OK)
        status = look_at_all(list, cores);
    for (int i = 0; i < n_ranks && status == FSDP_OK; i++)
        near[i] = numa_node_of_gpu("", visible, i);
    if (status == FSDP_OK)
        status = numa_divide(how, cores, list->n, near, n_ranks, out);
    free(near);
    free(cores);
    return status;
}
