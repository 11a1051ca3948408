/* How the ranks of a group lie on hosts: who holds what for whom, and in which runs sums go over the hosts. */
#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "comm/ucx/backend.h"

int ucx_holder(const ucx_group *u, int host, int rank)
{
    int begin = u->host_begin[host], n = u->host_begin[host + 1] - begin;
    return u->on_host[begin + u->place[rank] % n];
}

/* Numbers hosts and the ranks on each; `seen` (number of the world's hosts + 1 entries) is scratch. */
static void number_hosts(const comm_group *g, ucx_group *u, int *seen)
{
    const int *hosts = ucx_world_of(g->comm)->hosts;
    for (int i = 0; i < g->comm->world_size; i++)
        seen[i] = -1;
    for (int rank = 0; rank < g->size; rank++) {
        int *number = &seen[hosts[g->members[rank]]];
        if (*number < 0)
            *number = u->n_hosts++;
        u->host[rank] = *number;
        u->place[rank] = u->host_begin[*number + 1]++;
    }
    for (int h = 0; h < u->n_hosts; h++)
        u->host_begin[h + 1] += u->host_begin[h];
    for (int rank = 0; rank < g->size; rank++)
        u->on_host[u->host_begin[u->host[rank]] + u->place[rank]] = rank;
    u->own_host = u->host[g->rank];
}

static void find_runs(const comm_group *g, ucx_group *u)
{
    for (int rank = 0; rank < g->size; rank++) {
        if (rank == 0 || u->host[rank] != u->host[rank - 1])
            u->runs[u->n_runs++] = (ucx_run){.host = u->host[rank], .first = rank};
        u->runs[u->n_runs - 1].end = rank + 1;
    }
}

/* `counts` (size entries) is scratch. */
static void count_held(const comm_group *g, ucx_group *u, int *counts)
{
    for (int h = 0; h < u->n_hosts; h++) {
        for (int rank = 0; rank < g->size; rank++)
            counts[rank] = 0;
        for (int rank = 0; rank < g->size; rank++) {
            int n = ++counts[ucx_holder(u, h, rank)];
            u->most_held = n > u->most_held ? n : u->most_held;
        }
    }
}

static void free_lists(ucx_group *u)
{
    free(u->near.members);
    free(u->runs);
    free(u->on_host);
    free(u->host_begin);
    free(u->place);
    free(u->host);
    free(u);
}

fsdp_status ucx_group_open(comm_group *g)
{
    size_t n = (size_t)g->size;
    ucx_group *u = calloc(1, sizeof *u);
    int *scratch = calloc((size_t)g->comm->world_size, sizeof *scratch);
    if (u) {
        u->host = calloc(n, sizeof *u->host);
        u->place = calloc(n, sizeof *u->place);
        u->host_begin = calloc(n + 1, sizeof *u->host_begin);
        u->on_host = calloc(n, sizeof *u->on_host);
        u->runs = calloc(n, sizeof *u->runs);
        u->near.members = calloc(n, sizeof *u->near.members);
    }
    fsdp_status status = FSDP_ERR_MEMORY;
    if (!scratch || !u || !u->host || !u->place || !u->host_begin || !u->on_host || !u->runs || !u->near.members) {
        error_set(status, "no memory for communication group %s", g->name);
    } else {
        number_hosts(g, u, scratch);
        find_runs(g, u);
        count_held(g, u, scratch);
        comm_group *near = &u->near;
        near->comm = g->comm;
        snprintf(near->name, sizeof near->name, "%s", g->name);
        near->slot = g->slot;
        near->serial = g->serial;
        near->rank = u->place[g->rank];
        for (int i = u->host_begin[u->own_host]; i < u->host_begin[u->own_host + 1]; i++)
            near->members[near->size++] = g->members[u->on_host[i]];
        status = shm_group_open(near);
    }
    free(scratch);
    if (status != FSDP_OK && u)
        free_lists(u);
    g->backend = status == FSDP_OK ? u : NULL;
    return status;
}

void ucx_group_close(comm_group *g)
{
    ucx_group *u = g->backend;
    shm_group_close(&u->near);
    free_lists(u);
}
