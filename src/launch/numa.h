/* Binds ranks to cores near their GPUs, or near their share of the cores where they have none: fsdp_numa_binding. */
#ifndef LAUNCH_NUMA_H
#define LAUNCH_NUMA_H

#include <fsdp/launch.h>

#include "launch/cores.h"

/* Where a core lies. Numbers are only compared with each other. */
typedef struct numa_core {
    int id, node, socket, cache, physical; /* cache: the largest that it shares with other cores; -1: none */
} numa_core;

/* The cores of one rank. */
typedef struct rank_cores {
    cpu_set_t set;
    int n_ranks;   /* that have this set, with this one */
    int n_threads; /* its part of the set */
} rank_cores;

/* For n_ranks ranks of this host. FSDP_ERR_INPUT when a rank would have no core. */
fsdp_status numa_bind(fsdp_numa_binding how, const core_list *list, int n_ranks, rank_cores *out);

/* The same, of cores that were looked at. `near` (n_ranks): the NUMA node of each rank's GPU; -1: it has none. */
fsdp_status numa_divide(fsdp_numa_binding how, const numa_core *cores, int n, const int *near, int n_ranks,
                        rank_cores *out);

/* The NUMA node of a GPU as a rank counts them; -1: nobody knows. `root`: "" or a folder with proc and sys. `visible`:
 * CUDA_VISIBLE_DEVICES, or NULL. */
int numa_node_of_gpu(const char *root, const char *visible, int index);

#endif
