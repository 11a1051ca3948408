/* Memory of comm_allocate on GPUs: the device's own, so that the plan counts it exactly, and registered with every
 * communicator, so that NCCL reads and writes it without copies of its own where the network and the links allow it.
 * Where they do not, collectives work all the same. Memory is registered on all ranks of a communicator or on none:
 * NCCL takes what one rank has for what all have.
 *
 * Symmetric memory is NCCL's own (pages that peers and the switch can map) and registered as windows, by all ranks of a
 * communicator together. Of a window, NCCL reads peers' parts at the offset at which this rank has them: the gathered
 * side of a gather, the full side of a reduction, which lie alike on all ranks because layouts are the same. */
#include "comm/nccl/backend.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/checked.h"
#include "base/error.h"
#include "base/log.h"
#include "device/cuda/cuda_device.h"

/* Registering is for speed alone: that it does not work is worth a line, once. */
static void say_unregistered(nccl_world *w, const nccl_group *n, const char *why)
{
    if (!w->said_unregistered)
        log_write(FSDP_LOG_DEBUG, "NCCL does not register memory with group %s: %s; going on without", n->name, why);
    w->said_unregistered = true;
}

static bool is_symmetric(const comm *c)
{
    return c->config.memory != FSDP_COMM_MEMORY_PLAIN;
}

/* NCCL_WIN_COLL_SYMMETRIC, which an older header lacks. */
enum { SYMMETRIC_WINDOW = 1 };

static void make_window(nccl_timed_call *e)
{
    e->result = e->api.ncclCommWindowRegister(e->handles[0], e->start, e->bytes, &e->window, SYMMETRIC_WINDOW);
}

/* Waits for the group's other ranks, so it is a timed call. */
static ncclResult_t register_window(comm *c, const nccl_group *n, const nccl_memory *m, void **window)
{
    nccl_timed_call *e = nccl_timed_call_new(c, make_window);
    if (!e)
        return ncclSystemError;
    e->handles[0] = n->handle;
    e->start = m->start;
    e->bytes = m->bytes;
    if (!nccl_timed_call_run(e, c->config.timeout_seconds + NCCL_GRACE_SECONDS, &c->failed))
        return ncclInternalError;
    ncclResult_t result = e->result;
    *window = e->window;
    free(e);
    return result;
}

static bool register_on(comm *c, nccl_group *n, const nccl_memory *m)
{
    nccl_world *w = nccl_world_of(c);
    if (m->own && !m->even) {
        say_unregistered(w, n, "ranks differ in its size");
        return false;
    }
    if (!w->api.ncclCommRegister || !w->api.ncclCommDeregister) {
        say_unregistered(w, n, "the library is older than 2.19");
        return false;
    }
    nccl_registration *r = calloc(1, sizeof *r);
    if (!r || nccl_enter(c) != FSDP_OK) {
        free(r);
        return false;
    }
    ncclResult_t result = m->own ? register_window(c, n, m, &r->handle)
                                 : w->api.ncclCommRegister(n->handle, m->start, m->bytes, &r->handle);
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
            (is_symmetric(c) ? w->api.ncclCommWindowDeregister : w->api.ncclCommDeregister)(n->handle, r->handle);
            nccl_leave(c);
        }
        *link = r->next;
        free(r);
    }
}

bool nccl_register_all(comm *c, nccl_group *n)
{
    bool all = true;
    for (const nccl_memory *m = nccl_world_of(c)->memories; m; m = m->next)
        if (m->own ? m->even : all) /* peers wait for this rank's part of a window */
            all = register_on(c, n, m) && all;
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

static fsdp_status take_own(comm *c, nccl_memory *m)
{
    nccl_world *w = nccl_world_of(c);
    FSDP_TRY(cuda_enter((const cuda_device *)c->config.device));
    if (w->api.ncclMemAlloc(&m->start, m->bytes) != ncclSuccess)
        return error_set(FSDP_ERR_MEMORY, "NCCL could not allocate %.1f MiB of symmetric memory: %s",
                         (double)m->bytes / (1 << 20), w->api.ncclGetLastError(NULL));
    HOOK(HOOK_MEMORY, HOOK_INSTANT, "cuda", NULL, (int64_t)m->bytes, 0);
    return FSDP_OK;
}

static void give_back(comm *c, nccl_memory *m)
{
    device *d = c->config.device;
    if (m->own) {
        (void)nccl_world_of(c)->api.ncclMemFree(m->start);
        HOOK(HOOK_MEMORY, HOOK_INSTANT, "cuda", NULL, -(int64_t)m->bytes, 0);
    } else {
        d->release(d, MEMORY_DEVICE, m->start, m->bytes);
    }
    free(m);
}

static fsdp_status take(comm *c, size_t bytes, nccl_memory **out)
{
    nccl_world *w = nccl_world_of(c);
    device *d = c->config.device;
    nccl_memory *m = calloc(1, sizeof *m);
    if (!m)
        return error_set(FSDP_ERR_MEMORY, "no memory to keep track of %zu bytes", bytes);
    m->own = is_symmetric(c);
    m->bytes = m->own ? round_up(bytes, NCCL_PAGE) : bytes;
    fsdp_status status = m->own ? take_own(c, m) : d->allocate(d, MEMORY_DEVICE, bytes, &m->start);
    if (status != FSDP_OK) {
        free(m);
        return status;
    }
    m->next = w->memories;
    w->memories = m;
    *out = m;
    return FSDP_OK;
}

/* Every rank learns whether all have their memory, and whether all have as much. */
static fsdp_status agree_on_memory(comm *c, fsdp_status own, size_t bytes, bool *even)
{
    char text[512] = "";
    int64_t least[3] = {own == FSDP_OK, (int64_t)bytes, -(int64_t)bytes};
    if (own != FSDP_OK)
        snprintf(text, sizeof text, "%s", engine_error_text(c));
    fsdp_status status = comm_all_reduce_i64(c->world, "memory", 0, FSDP_REDUCE_MIN, least, 3);
    *even = least[1] == -least[2];
    if (own != FSDP_OK)
        return error_set(own, "%s", text);
    if (status == FSDP_OK && !least[0])
        return error_set(FSDP_ERR_PEER, "another rank could not allocate device memory for collectives");
    return status;
}

/* With all groups, on all ranks or on none. m may be NULL: this rank has none. */
static fsdp_status register_everywhere(comm *c, const nccl_memory *m)
{
    int64_t registered = 1;
    for (comm_group *g = c->groups; g && m; g = g->next)
        if (g->backend && (registered || m->own)) /* peers wait for this rank's part of a window */
            registered = register_on(c, g->backend, m) && registered;
    FSDP_TRY(comm_all_reduce_i64(c->world, "registered memory", 0, FSDP_REDUCE_MIN, &registered, 1));
    for (comm_group *g = c->groups; g && m && !registered; g = g->next)
        if (g->backend) {
            say_unregistered(nccl_world_of(c), g->backend, "not every rank could");
            deregister_on(c, g->backend, m->start);
        }
    return FSDP_OK;
}

fsdp_status nccl_allocate(comm *c, size_t bytes, void **out)
{
    nccl_memory *m = NULL;
    bool even = false;
    fsdp_status own = bytes ? take(c, bytes, &m) : FSDP_OK;
    fsdp_status status = agree_on_memory(c, own, bytes, &even);
    if (m)
        m->even = even;
    if (status == FSDP_OK)
        status = register_everywhere(c, m);
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
    give_back(c, m);
}

void nccl_release_all(comm *c)
{
    while (nccl_world_of(c)->memories)
        nccl_release(c, nccl_world_of(c)->memories->start);
}
