/* Communicators of groups: opened and closed with a timeout, watched while they work, aborted together. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/hash.h"
#include "comm/ctas.h"
#include "comm/nccl/backend.h"
#include "device/cuda/cuda.h"
#include "device/gpu.h"

/* Leaving waits no longer than this. */
static const double leave_seconds = 10;

/* ---- setting up ---- */

static void initialise(nccl_timed_call *e)
{
    e->result = e->api.ncclCommInitRankConfig(&e->handles[0], e->size, e->id, e->rank, &e->config);
}

/* NCCL_MAX_CTAS in the environment wins. */
static ncclConfig_t configure(const comm_config *asked)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (asked->ctas > 0)
        config.maxCTAs = asked->ctas;
    else if (asked->device->gpu->compute_capability == 90)
        config.maxCTAs = ctas_for_rate(CTAS_HOPPER_LINKS);
#ifdef NCCL_CTA_POLICY_ZERO
    if (asked->memory == FSDP_COMM_MEMORY_COPY_ENGINE)
        config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
#endif
    return config;
}

/* The first rank of a group makes its id and sends it to the others over the world's communicator. */
static fsdp_status send_id(comm_group *g, ncclUniqueId *id, char *staging)
{
    nccl_world *w = nccl_world_of(g->comm);
    nccl_group *n = g->comm->world->backend;
    FSDP_TRY(nccl_enter(g->comm));
    ncclResult_t result = w->api.ncclGroupStart();
    for (int rank = 1; rank < g->size && g->rank == 0 && result == ncclSuccess; rank++)
        result = w->api.ncclSend(staging, sizeof *id, ncclUint8, g->members[rank], n->handle, n->queue);
    if (g->rank > 0 && result == ncclSuccess)
        result = w->api.ncclRecv(staging, sizeof *id, ncclUint8, g->members[0], n->handle, n->queue);
    return nccl_end_calls(g->comm, result, "sharing an id");
}

static fsdp_status share_id(comm_group *g, ncclUniqueId *id)
{
    comm *c = g->comm;
    nccl_world *w = nccl_world_of(c);
    nccl_group *n = c->world->backend;
    device *d = c->config.device;
    struct timespec pause = {.tv_nsec = 100000};
    char *staging;
    if (g->rank == 0)
        FSDP_TRY(nccl_check(w, w->api.ncclGetUniqueId(id), "making an id"));
    FSDP_TRY(nccl_stage(c->world, sizeof *id, &staging));
    FSDP_TRY(d->copy(n->stream, staging, id, sizeof *id));
    FSDP_TRY(send_id(g, id, staging));
    FSDP_TRY(d->event_record(n->stream, n->ready));
    double deadline = clock_seconds() + c->config.timeout_seconds + NCCL_GRACE_SECONDS;
    for (bool done = false; !done; nanosleep(&pause, NULL)) {
        if (atomic_load(&c->failed))
            return engine_failure(c);
        if (clock_seconds() > deadline)
            return error_set(FSDP_ERR_TIMEOUT, "sharing the id of group %s timed out after %g s", g->name,
                             c->config.timeout_seconds);
        FSDP_TRY(cuda_event_done(n->ready, &done));
    }
    FSDP_TRY(d->copy(n->stream, id, staging, sizeof *id));
    return d->stream_synchronize(n->stream);
}

/* Every member says that it is opening the group: who is missing is named like in any collective. */
static fsdp_status announce(comm_group *g)
{
    nccl_world *w = nccl_world_of(g->comm);
    signature what = {.kind = COMM_BARRIER, .hash = hash_u64(HASH_START, (uint64_t)g->size)};
    snprintf(what.label, sizeof what.label, "opening of group %s", g->name);
    for (int i = 0; i < g->size; i++)
        what.hash = hash_u64(what.hash, (uint64_t)g->members[i]);
    FSDP_TRY(watchdog_group(w->watchdog, g->serial, g->members, g->size));
    return watchdog_call(w->watchdog, g->serial, g->members[0], 0, &what);
}

static fsdp_status connect_group(comm_group *g, nccl_group *n)
{
    comm *c = g->comm;
    nccl_world *w = nccl_world_of(c);
    nccl_timed_call *e = nccl_timed_call_new(c, initialise);
    if (!e)
        return error_set(FSDP_ERR_MEMORY, "no memory for communication group %s", g->name);
    e->id = w->id;
    e->config = configure(&c->config);
    e->size = g->size;
    e->rank = g->rank;
    if (g->slot > 0) {
        fsdp_status status = share_id(g, &e->id);
        if (status != FSDP_OK) {
            free(e);
            return status;
        }
    }
    if (!nccl_timed_call_run(e, c->config.timeout_seconds + NCCL_GRACE_SECONDS, &c->failed))
        return atomic_load(&c->failed)
                   ? engine_failure(c)
                   : error_set(FSDP_ERR_TIMEOUT,
                               "NCCL did not connect the %d ranks of group %s within %g s, although all came: can they "
                               "reach each other (NCCL_SOCKET_IFNAME, firewalls)? NCCL_DEBUG=INFO tells more",
                               g->size, g->name, c->config.timeout_seconds);
    n->handle = e->handles[0];
    fsdp_status status = nccl_check(w, e->result, "setting up a group");
    if (status != FSDP_OK)
        n->handle = NULL;
    free(e);
    return status;
}

static fsdp_status start_watchdog(comm *c)
{
    nccl_world *w = nccl_world_of(c);
    if (w->rolling)
        return FSDP_OK;
    FSDP_TRY(watchdog_begin(w->watchdog));
    w->rolling = true;
    return FSDP_OK;
}

static void group_free(comm *c, nccl_group *n);

fsdp_status nccl_group_open(comm_group *g)
{
    comm *c = g->comm;
    nccl_world *w = nccl_world_of(c);
    device *d = c->config.device;
    nccl_group *n = calloc(1, sizeof *n);
    fsdp_status status = FSDP_OK;
    if (!n)
        return error_set(FSDP_ERR_MEMORY, "no memory for communication group %s", g->name);
    snprintf(n->name, sizeof n->name, "%s", g->name);
    TRY_OR(fail, d->stream_create(d, 1, &n->stream));
    n->queue = cuda_stream_handle(n->stream);
    TRY_OR(fail, d->event_create(d, &n->ready));
    for (int i = 0; i < NCCL_EVENTS; i++)
        TRY_OR(fail, d->event_create(d, &n->done[i]));
    TRY_OR(fail, start_watchdog(c));
    TRY_OR(fail, announce(g));
    TRY_OR(fail, connect_group(g, n));
    g->lacking = !nccl_register_all(c, n);
    g->backend = n;
    pthread_mutex_lock(&w->lock);
    n->next = w->groups;
    w->groups = n;
    pthread_mutex_unlock(&w->lock);
    return FSDP_OK;
fail:
    group_free(c, n);
    return status;
}

/* ---- giving up ---- */

static void destroy(nccl_timed_call *e)
{
    e->result = e->api.ncclCommDestroy(e->handles[0]);
}

static void abort_all(nccl_timed_call *e)
{
    for (int i = 0; i < e->n_handles; i++)
        e->result = e->api.ncclCommAbort(e->handles[i]);
}

static void run_and_forget(nccl_timed_call *e)
{
    if (nccl_timed_call_run(e, leave_seconds, NULL))
        free(e);
}

/* A communicator with nothing under way is destroyed; one that still waits for a peer is aborted. */
static void disconnect(comm *c, nccl_group *n)
{
    bool idle = n->enqueued == 0;
    if (!idle && cuda_event_done(n->done[n->enqueued % NCCL_EVENTS], &idle) != FSDP_OK)
        idle = false;
    nccl_timed_call *e = nccl_timed_call_new(c, idle ? destroy : abort_all);
    if (!e)
        return;
    e->handles[0] = n->handle;
    e->n_handles = 1;
    n->handle = NULL;
    run_and_forget(e);
}

static void group_free(comm *c, nccl_group *n)
{
    nccl_world *w = nccl_world_of(c);
    device *d = c->config.device;
    if (n->handle)
        nccl_deregister_all(c, n);
    pthread_mutex_lock(&w->lock);
    for (nccl_group **link = &w->groups; *link; link = &(*link)->next)
        if (*link == n) {
            *link = n->next;
            break;
        }
    pthread_mutex_unlock(&w->lock);
    if (n->handle)
        disconnect(c, n);
    while (n->registrations) { /* of an aborted communicator: gone with it */
        nccl_registration *next = n->registrations->next;
        free(n->registrations);
        n->registrations = next;
    }
    for (int i = 0; i < NCCL_EVENTS; i++)
        d->event_free(n->done[i]);
    d->event_free(n->ready);
    staging_free(d, &n->staging);
    if (n->stream)
        d->stream_free(n->stream);
    free(n);
}

void nccl_group_close(comm_group *g)
{
    if (!g->backend)
        return;
    if (!atomic_load(&g->comm->failed))
        (void)watchdog_free_group(nccl_world_of(g->comm)->watchdog, g->serial, g->members[0], g->started + 1);
    group_free(g->comm, g->backend);
    g->backend = NULL;
}

/* Whoever is inside a call gets a moment to come out; one that hangs there is freed by the abort itself. */
void nccl_abort_groups(comm *c)
{
    nccl_world *w = nccl_world_of(c);
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 1;
    bool locked = pthread_mutex_timedlock(&w->calls, &until) == 0;
    nccl_timed_call *e = nccl_timed_call_new(c, abort_all);
    pthread_mutex_lock(&w->lock);
    for (nccl_group *n = w->groups; n; n = n->next) {
        if (e && n->handle)
            e->handles[e->n_handles++] = n->handle;
        n->handle = NULL;
    }
    w->groups = NULL;
    pthread_mutex_unlock(&w->lock);
    if (locked)
        pthread_mutex_unlock(&w->calls);
    if (e)
        run_and_forget(e);
}

/* ---- watching ---- */

/* What keeps the group's oldest unfinished collective, if it is over time. Under the lock. */
static bool is_late(comm *c, nccl_group *n, char *text, size_t bytes)
{
    while (n->finished != n->enqueued) {
        int place = (int)((n->finished + 1) % NCCL_EVENTS);
        bool reused = n->enqueued - n->finished > NCCL_EVENTS, done = false;
        if (!reused && cuda_event_done(n->done[place], &done) != FSDP_OK)
            done = true; /* the device itself failed: whoever waits for it is told */
        if (!reused && !done) {
            char what[256];
            if (n->begun[place] == 0)
                n->begun[place] = clock_seconds();
            if (clock_seconds() - n->begun[place] < c->config.timeout_seconds + NCCL_GRACE_SECONDS)
                return false;
            snprintf(text, bytes,
                     "%s (step %lld) timed out after %g s, although no rank was found missing: the network between the "
                     "ranks, the device, or rank 0, which compares what they call, is stuck",
                     signature_text(&n->names[place], what, sizeof what), (long long)n->names[place].step,
                     c->config.timeout_seconds);
            return true;
        }
        n->finished++;
    }
    return false;
}

fsdp_status nccl_examine_groups(comm *c, char *text, size_t bytes)
{
    nccl_world *w = nccl_world_of(c);
    fsdp_status status = FSDP_OK;
    pthread_mutex_lock(&w->lock);
    for (nccl_group *n = w->groups; n && status == FSDP_OK; n = n->next) {
        ncclResult_t result = ncclSuccess;
        if (w->api.ncclCommGetAsyncError(n->handle, &result) == ncclSuccess && result != ncclSuccess &&
            result != ncclInProgress) {
            snprintf(text, bytes, "NCCL reports on group %s: %s", n->name, w->api.ncclGetErrorString(result));
            status = FSDP_ERR_PEER;
        } else if (is_late(c, n, text, bytes)) {
            status = FSDP_ERR_TIMEOUT;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

fsdp_status nccl_stage(comm_group *g, size_t bytes, char **out)
{
    nccl_group *n = g->backend;
    device *d = g->comm->config.device;
    if (bytes > n->staging.bytes) {
        FSDP_TRY(nccl_wait_host(g, n->enqueued));
        FSDP_TRY(staging_grow(d, n->stream, &n->staging, bytes));
    }
    *out = n->staging.start;
    return FSDP_OK;
}
