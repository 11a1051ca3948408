/* Memory of comm_allocate on GPUs: the device's own, so that the plan counts it exactly, and registered with every
 * communicator, so that NCCL reads and writes it without copies of its own where the network and the links allow it.
 * Where they do not, collectives work all the same. Memory is registered on all ranks of a communicator or on none:
 * NCCL takes what one rank has for what all have. */
#include "comm/nccl/backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"

/* Registering is for speed alone: that it does not work is worth a line, once. */
static void say_unregistered(nccl_world *w, const nccl_group *n, const char *why)
{
    if (!w->said_unregistered)
        log_write(FSDP_LOG_DEBUG, "NCCL does not register memory with group %s: %s; going on without", n->name, why);
    w->said_unregistered = true;
}

static bool register_on(comm *c, nccl_group *n, const nccl_memory *m)
{
    nccl_world *w = nccl_world_of(c);
    if (!w->api.ncclCommRegister || !w->api.ncclCommDeregister) {
        say_unregistered(w, n, "the library is older than 2.19");
        return false;
    }
    nccl_registration *r = calloc(1, sizeof *r);
    if (!r || nccl_enter(c) != FSDP_OK) {
        free(r);
        return false;
    }
    ncclResult_t result = w->api.ncclCommRegister(n->handle, m->start, m->bytes, &r->handle);
    nccl_leave(c);
    if (result != ncclSuccess || !r->handle) {
        say_unregistered(w, n, result == ncclSuccess ? "it is turned off" : w->api.ncclGetErrorString(result));
        free(r);
        return false;
    }
    r->start = m->start;
    r->next = n->registrations;
    n->registrations = r;
    return true;
}

/* NULL: all of the group's. */
static void deregister_on(comm *c, nccl_group *n, const void *start)
{
    nccl_world *w = nccl_world_of(c);
    for (nccl_registration **link = &n->registrations; *link;) {
        nccl_registration *r = *link;
        if (start && r->start != start) {
            link = &r->next;
            continue;
        }
        if (nccl_enter(c) == FSDP_OK) {
            w->api.ncclCommDeregister(n->handle, r->handle);
            nccl_leave(c);
        }
        *link = r->next;
        free(r);
    }
}

bool nccl_register_all(comm *c, nccl_group *n)
{
    bool all = true;
    for (const nccl_memory *m = nccl_world_of(c)->memories; m && all; m = m->next)
        all = register_on(c, n, m);
    return all;
}

void nccl_group_settle(comm_group *g)
{
    say_unregistered(nccl_world_of(g->comm), g->backend, "not every rank could");
    deregister_on(g->comm, g->backend, NULL);
}

void nccl_deregister_all(comm *c, nccl_group *n)
{
    deregister_on(c, n, NULL);
}

static fsdp_status take(comm *c, size_t bytes, nccl_memory **out)
{
    nccl_world *w = nccl_world_of(c);
    device *d = c->config.device;
    nccl_memory *m = calloc(1, sizeof *m);
    if (!m)
        return error_set(FSDP_ERR_MEMORY, "no memory to keep track of %zu bytes", bytes);
    fsdp_status status = d->allocate(d, MEMORY_DEVICE, bytes, &m->start);
    if (status != FSDP_OK) {
        free(m);
        return status;
    }
    m->bytes = bytes;
    m->next = w->memories;
    w->memories = m;
    *out = m;
    return FSDP_OK;
}

/* Every rank learns whether all have their memory, and whether all could register it everywhere. */
static fsdp_status agree_on_memory(comm *c, fsdp_status own, int64_t *registered)
{
    char text[512] = "";
    int64_t worst[2] = {own == FSDP_OK, *registered};
    if (own != FSDP_OK)
        snprintf(text, sizeof text, "%s", engine_error_text(c));
    fsdp_status status = comm_all_reduce_i64(c->world, "memory", 0, FSDP_REDUCE_MIN, worst, 2);
    *registered = worst[1];
    if (own != FSDP_OK)
        return error_set(own, "%s", text);
    if (status == FSDP_OK && !worst[0])
        return error_set(FSDP_ERR_PEER, "another rank could not allocate device memory for collectives");
    return status;
}

fsdp_status nccl_allocate(comm *c, size_t bytes, void **out)
{
    nccl_memory *m = NULL;
    int64_t registered = 1;
    fsdp_status own = bytes ? take(c, bytes, &m) : FSDP_OK;
    for (comm_group *g = c->groups; g && m && registered; g = g->next)
        if (g->backend)
            registered = register_on(c, g->backend, m);
    fsdp_status status = agree_on_memory(c, own, &registered);
    for (comm_group *g = c->groups; g && m && !registered; g = g->next)
        if (g->backend) {
            say_unregistered(nccl_world_of(c), g->backend, "not every rank could");
            deregister_on(c, g->backend, m->start);
        }
    if (status != FSDP_OK) {
        nccl_release(c, m ? m->start : NULL);
        return status;
    }
    *out = m ? m->start : NULL;
    return FSDP_OK;
}

/* What is still enqueued may use it: the wait for that ends with it, or with the comm's failure. */
void nccl_release(comm *c, void *memory)
{
    nccl_world *w = nccl_world_of(c);
    device *d = c->config.device;
    nccl_memory **link = &w->memories;
    while (*link && (*link)->start != memory)
        link = &(*link)->next;
    nccl_memory *m = *link;
    if (!m)
        return;
    for (comm_group *g = c->groups; g; g = g->next) {
        nccl_group *n = g->backend;
        if (!n || !n->registrations)
            continue;
        (void)nccl_wait_host(g, n->enqueued);
        deregister_on(c, n, memory);
    }
    *link = m->next;
    d->release(d, MEMORY_DEVICE, m->start, m->bytes);
    free(m);
}

void nccl_release_all(comm *c)
{
    while (nccl_world_of(c)->memories)
        nccl_release(c, nccl_world_of(c)->memories->start);
}
