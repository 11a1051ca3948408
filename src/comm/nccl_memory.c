/* Memory of comm_allocate on GPUs: the device's own, so that the plan counts it exactly, and registered with every
 * communicator, so that NCCL reads and writes it without copies of its own where the network and the links allow it.
 * Where they do not, collectives work all the same. */
#include "comm/nccl_world.h"

#include <stdlib.h>

#include "base/error.h"
#include "base/log.h"

/* Registering is for speed alone: that it does not work is worth a line, once. */
static void say_unregistered(nccl_world *w, const nccl_group *n, const char *why)
{
    if (!w->said_unregistered)
        log_write(LOG_DEBUG, "NCCL does not register memory with group %s: %s; going on without", n->name, why);
    w->said_unregistered = true;
}

static void register_on(comm *c, nccl_group *n, const nccl_memory *m)
{
    nccl_world *w = nccl_world_of(c);
    if (!w->api.ncclCommRegister || !w->api.ncclCommDeregister) {
        say_unregistered(w, n, "the library is older than 2.19");
        return;
    }
    nccl_registration *r = calloc(1, sizeof *r);
    if (!r || nccl_enter(c) != FSDP_OK) {
        free(r);
        return;
    }
    ncclResult_t result = w->api.ncclCommRegister(n->handle, m->start, m->bytes, &r->handle);
    nccl_leave(c);
    if (result != ncclSuccess || !r->handle) {
        say_unregistered(w, n, result == ncclSuccess ? "it is turned off" : w->api.ncclGetErrorString(result));
        free(r);
        return;
    }
    r->start = m->start;
    r->next = n->registrations;
    n->registrations = r;
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

void nccl_register_all(comm *c, nccl_group *n)
{
    for (const nccl_memory *m = nccl_world_of(c)->memories; m; m = m->next)
        register_on(c, n, m);
}

void nccl_deregister_all(comm *c, nccl_group *n)
{
    deregister_on(c, n, NULL);
}

fsdp_status nccl_allocate(comm *c, size_t bytes, void **out)
{
    nccl_world *w = nccl_world_of(c);
    device *d = c->config.device;
    if (bytes == 0)
        return FSDP_OK;
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
    for (comm_group *g = c->groups; g; g = g->next)
        if (g->backend)
            register_on(c, g->backend, m);
    *out = m->start;
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
