/* Divides the cores that this process may use among its ranks. */
#ifndef LAUNCH_CORES_H
#define LAUNCH_CORES_H

#include <sched.h>

#include <fsdp/status.h>

/* The cores of this process, neighbours (threads of a core, cores of a socket) beside each other. */
typedef struct core_list {
    int *cores;
    int n;
} core_list;

fsdp_status core_list_read(core_list *out);
void core_list_sort(core_list *list); /* puts neighbours beside each other; core_list_read has done so */
void core_list_free(core_list *list);

/* Share of `rank` out of n_ranks: *first and *count of list->cores. With more ranks than cores there are no shares of
 * one's own: everybody gets all. */
void core_list_share(const core_list *list, int rank, int n_ranks, int *first, int *count);

#endif
