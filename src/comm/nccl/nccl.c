/* The NCCL backend's coming and going: the library, the meeting with the other ranks, failures and the end. Groups are
 * left to group.c, memory to memory.c, what is enqueued to collectives.c. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/error.h"
#include "comm/nccl/backend.h"
#include "device/cuda/cuda.h"
#include "device/cuda/cuda_device.h"
#include "meet/meeting.h"

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
    const char *missing = NULL;
    w->library = cuda_open_library("libnccl.so.2");
    if (!w->library)
        return error_set(FSDP_ERR_UNSUPPORTED,
                         "libnccl.so.2 was not found; install NCCL or name its folder in FSDP_CUDA_LIBRARIES");
#define FIND(name)                                                                                                     \
    {                                                                                                                  \
        void *symbol = dlsym(w->library, #name);                                                                       \
        memcpy(&w->api.name, &symbol, sizeof symbol);                                                                  \
    }
#define REQUIRE(name)                                                                                                  \
    if (!w->api.name)                                                                                                  \
        missing = #name;
    NCCL_FUNCTIONS(FIND)
    NCCL_NEWER_FUNCTIONS(FIND)
    FIND(ncclCommWindowRegister)
    FIND(ncclCommWindowDeregister)
    NCCL_FUNCTIONS(REQUIRE)
#undef FIND
#undef REQUIRE
    if (missing || w->api.ncclGetVersion(&w->version) != ncclSuccess || w->version < NCCL_OLDEST)
        return error_set(FSDP_ERR_UNSUPPORTED, "libnccl.so.2 is too old (%d, no %s); NCCL 2.18 or newer is needed",
                         w->version, missing ? missing : "suitable version");
    return FSDP_OK;
}

/* What was asked for and this library, or the header that we were built with, does not have. */
static fsdp_status check_memory(const comm_config *asked, const nccl_world *w)
{
    bool copies = asked->memory == FSDP_COMM_MEMORY_COPY_ENGINE;
    int needed = copies ? NCCL_WITH_COPY_ENGINES : NCCL_WITH_WINDOWS, version = w->version;
#ifndef NCCL_CTA_POLICY_ZERO
    if (copies && NCCL_VERSION_CODE < version)
        version = NCCL_VERSION_CODE;
#endif
    if (asked->memory == FSDP_COMM_MEMORY_PLAIN || version >= needed)
        return FSDP_OK;
    return error_set(FSDP_ERR_UNSUPPORTED, "%s memory needs NCCL %d.%d, this is %d.%d; use --comm_memory plain",
                     copies ? "copy_engine" : "symmetric", needed / 10000, needed / 100 % 100, version / 10000,
                     version / 100 % 100);
}

/* ---- what the watchdog's thread reports ---- */

static void heard_failure(void *context, fsdp_status status, const char *text)
{
    comm *c = context;
    atomic_store(&nccl_world_of(c)->told, true);
    engine_fail(c, status, text);
}

static void watch(void *context)
{
    comm *c = context;
    char text[WATCHDOG_TEXT_BYTES];
    if (atomic_load(&c->failed) || atomic_load(&c->stop))
        return;
    (void)cuda_enter((const cuda_device *)c->config.device); /* this thread asks its events, not those of GPU 0 */
    nccl_world *w = nccl_world_of(c);
    fsdp_status status = nccl_examine_groups(c, text, sizeof text);
    if (status == FSDP_ERR_PEER && w->trouble_since == 0)
        w->trouble_since = clock_seconds();
    if (status == FSDP_ERR_TIMEOUT ||
        (status == FSDP_ERR_PEER && clock_seconds() - w->trouble_since > NCCL_GRACE_SECONDS))
        engine_fail(c, status, text);
}

/* ---- opening ---- */

static fsdp_status nccl_open(comm *c)
{
    nccl_world *w = calloc(1, sizeof *w);
    if (!w)
        return error_set(FSDP_ERR_MEMORY, "no memory to start NCCL");
    c->state = w;
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->calls, NULL);
    if (!c->config.device || !c->config.device->gpu)
        return error_set(FSDP_ERR_INPUT, "backend nccl is for --device cuda; use shm, ucx or mpi between CPUs");
    FSDP_TRY(open_library(w));
    FSDP_TRY(check_memory(&c->config, w));
    if (c->rank == 0)
        FSDP_TRY(nccl_check(w, w->api.ncclGetUniqueId(&w->id), "making an id"));
    FSDP_TRY(meeting_share(c->meeting, "NCCL's id", &w->id, sizeof w->id));
    watchdog_config config = {.meeting = c->meeting,
                              .rank = c->rank,
                              .world_size = c->world_size,
                              .timeout_seconds = c->config.timeout_seconds,
                              .fail = heard_failure,
                              .tick = watch,
                              .context = c};
    return watchdog_open(&config, &w->watchdog);
}

/* ---- waiting ---- */

fsdp_status nccl_enter(comm *c)
{
    pthread_mutex_lock(&nccl_world_of(c)->calls);
    if (!atomic_load(&c->failed))
        return FSDP_OK;
    pthread_mutex_unlock(&nccl_world_of(c)->calls);
    return engine_failure(c);
}

void nccl_leave(comm *c)
{
    pthread_mutex_unlock(&nccl_world_of(c)->calls);
}

fsdp_status nccl_end_calls(comm *c, ncclResult_t result, const char *what)
{
    nccl_world *w = nccl_world_of(c);
    ncclResult_t ended = w->api.ncclGroupEnd();
    nccl_leave(c);
    return nccl_check(w, result == ncclSuccess ? ended : result, what);
}

fsdp_status nccl_wait_host(comm_group *g, uint32_t sequence)
{
    comm *c = g->comm;
    nccl_group *n = g->backend;
    struct timespec pause = {.tv_nsec = 20000};
    if (n->enqueued == 0)
        return FSDP_OK;
    for (bool done = false; !done;) { /* ends: the watchdog's thread fails the comm at the timeout */
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
        return FSDP_OK;                /* host data: run has waited */
    engine_report_wait(r, HOOK_BEGIN); /* of a stream: as long as it takes to whoever then waits for the stream */
    fsdp_status status =
        s ? d->stream_wait(s, n->done[r->sequence % NCCL_EVENTS]) : nccl_wait_host(r->group, r->sequence);
    engine_report_wait(r, HOOK_END);
    return status;
}

/* ---- the end ---- */

static void nccl_abort(comm *c, const char *message)
{
    nccl_world *w = nccl_world_of(c);
    if (!w || atomic_exchange(&w->aborted, true))
        return;
    if (w->watchdog && !atomic_load(&w->told))
        watchdog_fail(w->watchdog, FSDP_ERR_PEER, message);
    nccl_abort_groups(c);
}

static void nccl_close(comm *c)
{
    nccl_world *w = nccl_world_of(c);
    if (!w)
        return;
    nccl_release_all(c);
    watchdog_close(w->watchdog);
    pthread_mutex_destroy(&w->calls);
    pthread_mutex_destroy(&w->lock);
    free(w); /* the library stays open: its threads may still be ending */
    c->state = NULL;
}

const comm_backend comm_nccl_backend = {
    .name = "nccl",
    .enqueues = true,
    .registers = true,
    .symmetric_page = NCCL_PAGE,
    .meets = true,
    .keeps_meeting = true,
    .open = nccl_open,
    .close = nccl_close,
    .group_open = nccl_group_open,
    .group_settle = nccl_group_settle,
    .group_close = nccl_group_close,
    .run = nccl_run,
    .wait = nccl_wait,
    .allocate = nccl_allocate,
    .release = nccl_release,
    .abort = nccl_abort,
};
