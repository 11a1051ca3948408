/* The NCCL backend's coming and going: the library, communicators of groups, the watch that turns silence and errors
 * into failures of this rank, and aborts. What is enqueued is left to nccl_collectives.c. */
#include "comm/nccl_world.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "device/cuda/cuda.h"

enum { WATCH_MILLISECONDS = 100, OLDEST_VERSION = 21800 };

fsdp_status nccl_check(const nccl_world *w, ncclResult_t result, const char *what)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return FSDP_OK;
    const char *detail = w->api.ncclGetLastError(NULL);
    return error_set(FSDP_ERR_PEER, "NCCL could not run %s: %s%s%.500s", what, w->api.ncclGetErrorString(result),
                     detail && *detail ? ": " : "", detail ? detail : "");
}

static fsdp_status open_library(nccl_world *w)
{
    int version = 0;
    const char *missing = NULL;
    w->library = cuda_open_library("libnccl.so.2");
    if (!w->library)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "libnccl.so.2 was not found; install NCCL or name its folder in FSDP_CUDA_LIBRARIES");
#define FIND(name)                                                                                                     \
    {                                                                                                                  \
        void *symbol = dlsym(w->library, #name);                                                                       \
        if (!symbol)                                                                                                   \
            missing = #name;                                                                                           \
        memcpy(&w->api.name, &symbol, sizeof symbol);                                                                  \
    }
    NCCL_FUNCTIONS(FIND)
#undef FIND
    if (missing || w->api.ncclGetVersion(&version) != ncclSuccess || version < OLDEST_VERSION)
        return error_set(FSDP_ERR_UNSUPPORTED, "libnccl.so.2 is too old (%d, no %s); NCCL 2.18 or newer is needed",
                         version, missing ? missing : "suitable version");
    return FSDP_OK;
}

/* ---- the watch ---- */

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
            if (clock_seconds() - n->begun[place] < c->config.timeout_seconds)
                return false;
            snprintf(text, bytes, "%s timed out after %g s (step %lld): a peer is late, or called something else",
                     signature_text(&n->names[place], what, sizeof what), c->config.timeout_seconds,
                     (long long)n->names[place].step);
            return true;
        }
        n->finished++;
    }
    return false;
}

/* The first group that is in trouble. */
static fsdp_status examine_groups(comm *c, char *text, size_t bytes)
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

static void *watch_main(void *argument)
{
    comm *c = argument;
    nccl_world *w = nccl_world_of(c);
    while (!atomic_load(&w->stop) && !atomic_load(&c->failed)) {
        char text[MEET_TEXT_BYTES], full[MEET_TEXT_BYTES + 64];
        int rank = 0;
        if (meeting_listen(w->meeting, WATCH_MILLISECONDS, &rank, text)) {
            atomic_store(&w->told, true);
            snprintf(full, sizeof full, "stopped because rank %d failed: %s", rank, text);
            engine_fail(c, FSDP_ERR_PEER, full);
            break;
        }
        fsdp_status status = examine_groups(c, text, sizeof text);
        if (status != FSDP_OK)
            engine_fail(c, status, text);
    }
    return NULL;
}

/* ---- opening ---- */

static fsdp_status nccl_open(comm *c)
{
    nccl_world *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(FSDP_ERR_MEMORY, "no memory to start NCCL");
    c->state = w;
    pthread_mutex_init(&w->lock, NULL);
    if (!c->config.device || strcmp(c->config.device->name, "cuda") != 0)
        return error_set(FSDP_ERR_INPUT, "backend nccl is for --device cuda; use shm or mpi between CPUs");
    FSDP_TRY(open_library(w));
    if (c->rank == 0)
        FSDP_TRY(nccl_check(w, w->api.ncclGetUniqueId(&w->id), "making an id"));
    return meeting_open(&c->config.job, c->config.timeout_seconds, &w->id, &w->meeting);
}

/* Started with the first group: before it there is nothing to watch. */
static fsdp_status start_watch(comm *c)
{
    nccl_world *w = nccl_world_of(c);
    if (w->watching)
        return FSDP_OK;
    int error = pthread_create(&w->watch, NULL, watch_main, c);
    if (error)
        return error_set(FSDP_ERR_MEMORY, "cannot start the thread that watches NCCL: %s", strerror(error));
    w->watching = true;
    return FSDP_OK;
}

/* The first rank of a group makes its id and sends it to the others over the world's communicator. */
static fsdp_status share_id(comm_group *g, ncclUniqueId *id)
{
    nccl_world *w = nccl_world_of(g->comm);
    comm_group *world = g->comm->world;
    nccl_group *n = world->backend;
    device *d = g->comm->config.device;
    char *staging;
    if (g->rank == 0)
        FSDP_TRY(nccl_check(w, w->api.ncclGetUniqueId(id), "making an id"));
    FSDP_TRY(nccl_stage(world, sizeof *id, &staging));
    FSDP_TRY(d->copy(n->stream, staging, id, sizeof *id));
    ncclResult_t result = w->api.ncclGroupStart();
    for (int rank = 1; rank < g->size && g->rank == 0 && result == ncclSuccess; rank++)
        result = w->api.ncclSend(staging, sizeof *id, ncclUint8, g->members[rank], n->handle, n->queue);
    if (g->rank > 0 && result == ncclSuccess)
        result = w->api.ncclRecv(staging, sizeof *id, ncclUint8, g->members[0], n->handle, n->queue);
    ncclResult_t ended = w->api.ncclGroupEnd();
    FSDP_TRY(nccl_check(w, result == ncclSuccess ? ended : result, "sharing an id"));
    FSDP_TRY(d->copy(n->stream, id, staging, sizeof *id));
    return d->stream_synchronize(n->stream);
}

static void group_free(comm *c, nccl_group *n)
{
    nccl_world *w = nccl_world_of(c);
    device *d = c->config.device;
    pthread_mutex_lock(&w->lock);
    for (nccl_group **link = &w->groups; *link; link = &(*link)->next)
        if (*link == n) {
            *link = n->next;
            break;
        }
    pthread_mutex_unlock(&w->lock);
    if (n->handle && !atomic_load(&w->aborted))
        w->api.ncclCommDestroy(n->handle);
    for (int i = 0; i < NCCL_EVENTS; i++)
        d->event_free(n->done[i]);
    d->event_free(n->ready);
    d->release(d, MEMORY_DEVICE, n->staging, n->staging_bytes);
    if (n->stream)
        d->stream_free(n->stream);
    free(n);
}

static fsdp_status nccl_group_open(comm_group *g)
{
    comm *c = g->comm;
    nccl_world *w = nccl_world_of(c);
    device *d = c->config.device;
    ncclUniqueId id = w->id;
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
    if (g->slot > 0)
        TRY_OR(fail, share_id(g, &id));
    TRY_OR(fail, nccl_check(w, w->api.ncclCommInitRank(&n->handle, g->size, id, g->rank), "setting up a group"));
    g->backend = n;
    pthread_mutex_lock(&w->lock);
    n->next = w->groups;
    w->groups = n;
    pthread_mutex_unlock(&w->lock);
    status = start_watch(c);
    if (status == FSDP_OK)
        return FSDP_OK;
fail:
    g->backend = NULL;
    group_free(c, n);
    return status;
}

static void nccl_group_close(comm_group *g)
{
    if (g->backend)
        group_free(g->comm, g->backend);
    g->backend = NULL;
}

fsdp_status nccl_stage(comm_group *g, size_t bytes, char **out)
{
    nccl_group *n = g->backend;
    device *d = g->comm->config.device;
    if (bytes > n->staging_bytes) {
        size_t wanted = round_up(bytes, 4096);
        FSDP_TRY(nccl_wait_host(g, n->enqueued));
        FSDP_TRY(d->stream_synchronize(n->stream));
        d->release(d, MEMORY_DEVICE, n->staging, n->staging_bytes);
        n->staging = NULL;
        n->staging_bytes = 0;
        void *memory;
        FSDP_TRY(d->allocate(d, MEMORY_DEVICE, wanted, &memory));
        n->staging = memory;
        n->staging_bytes = wanted;
    }
    *out = n->staging;
    return FSDP_OK;
}

/* ---- waiting ---- */

fsdp_status nccl_wait_host(comm_group *g, uint32_t sequence)
{
    comm *c = g->comm;
    nccl_group *n = g->backend;
    struct timespec pause = {.tv_nsec = 20000};
    if (n->enqueued == 0)
        return FSDP_OK;
    for (bool done = false; !done;) { /* ends: the watch fails the comm at the timeout */
        if (atomic_load(&c->failed))
            return engine_failure(c);
        FSDP_TRY(cuda_event_done(n->done[sequence % NCCL_EVENTS], &done));
        if (!done)
            nanosleep(&pause, NULL);
    }
    return FSDP_OK;
}

static fsdp_status nccl_wait(comm_request *r, stream *s)
{
    nccl_group *n = r->group->backend;
    device *d = r->group->comm->config.device;
    if (!r->op.stream)
        return FSDP_OK; /* host data: run has waited */
    return s ? d->stream_wait(s, n->done[r->sequence % NCCL_EVENTS]) : nccl_wait_host(r->group, r->sequence);
}

/* ---- the end ---- */

/* Kernels that wait for a peer return when their communicator is aborted, so nobody hangs in the device either. */
static void nccl_abort(comm *c, const char *message)
{
    nccl_world *w = nccl_world_of(c);
    if (!w || atomic_exchange(&w->aborted, true))
        return;
    if (w->meeting && !atomic_load(&w->told))
        meeting_tell(w->meeting, message);
    pthread_mutex_lock(&w->lock);
    for (nccl_group *n = w->groups; n; n = n->next)
        w->api.ncclCommAbort(n->handle);
    w->groups = NULL;
    pthread_mutex_unlock(&w->lock);
}

static void nccl_close(comm *c)
{
    nccl_world *w = nccl_world_of(c);
    if (!w)
        return;
    atomic_store(&w->stop, true);
    if (w->watching)
        pthread_join(w->watch, NULL);
    host_release_all(c);
    meeting_close(w->meeting);
    pthread_mutex_destroy(&w->lock);
    free(w); /* the library stays open: its threads may still be ending */
    c->state = NULL;
}

const comm_backend comm_nccl_backend = {
    .name = "nccl",
    .enqueues = true,
    .open = nccl_open,
    .close = nccl_close,
    .group_open = nccl_group_open,
    .group_close = nccl_group_close,
    .run = nccl_run,
    .wait = nccl_wait,
    .allocate = host_allocate,
    .release = host_release,
    .abort = nccl_abort,
};
