/* What the files of the NCCL backend share. Every group has a communicator, a stream of its own ahead of the compute
 * stream, and a ring of events; collectives are enqueued at once, and whoever needs the result waits for the event: a
 * stream on the device, or the host. Sums run in NCCL's order, not in rank order; those of 16-bit values go past it
 * (direct.h). What ranks call is compared beside NCCL, by the watchdog (watchdog.h), whose thread also looks after the
 * communicators: a different call is known within tens of milliseconds, which may be after NCCL has run it (a size too
 * many on one side) and always ends the comm.
 *
 * Threads: the caller's enqueues; the watchdog's looks at events and asynchronous errors, and aborts. NCCL's calls that
 * may wait for peers (setting up and giving up a communicator) run as timed calls on threads of their own, so that a
 * timeout ends the wait for them whatever NCCL does. */
#ifndef COMM_NCCL_BACKEND_H
#define COMM_NCCL_BACKEND_H

#include <nccl.h>

#include "comm/engine.h"
#include "comm/watch/watchdog.h"
#include "comm/signature.h"

#define NCCL_FUNCTIONS(X)                                                                                              \
    X(ncclGetVersion)                                                                                                  \
    X(ncclGetUniqueId)                                                                                                 \
    X(ncclCommInitRankConfig)                                                                                          \
    X(ncclCommDestroy)                                                                                                 \
    X(ncclCommAbort)                                                                                                   \
    X(ncclCommGetAsyncError)                                                                                           \
    X(ncclGetErrorString)                                                                                              \
    X(ncclGetLastError)                                                                                                \
    X(ncclGroupStart)                                                                                                  \
    X(ncclGroupEnd)                                                                                                    \
    X(ncclSend)                                                                                                        \
    X(ncclRecv)                                                                                                        \
    X(ncclAllGather)                                                                                                   \
    X(ncclReduceScatter)                                                                                               \
    X(ncclReduce)                                                                                                      \
    X(ncclAllReduce)                                                                                                   \
    X(ncclBroadcast)

/* NULL where the library is older than they are (2.19). */
#define NCCL_NEWER_FUNCTIONS(X)                                                                                        \
    X(ncclCommRegister)                                                                                                \
    X(ncclCommDeregister)                                                                                              \
    X(ncclMemAlloc)                                                                                                    \
    X(ncclMemFree)

#define NCCL_FUNCTION(name) __typeof__(&name) name;
typedef struct nccl_api {
    NCCL_FUNCTIONS(NCCL_FUNCTION)
    NCCL_NEWER_FUNCTIONS(NCCL_FUNCTION)
    /* Of NCCL 2.27, written out because the header may be older. A window is a pointer. */
    ncclResult_t (*ncclCommWindowRegister)(ncclComm_t comm, void *start, size_t bytes, void **window, int flags);
    ncclResult_t (*ncclCommWindowDeregister)(ncclComm_t comm, void *window);
} nccl_api;

/* Versions as ncclGetVersion gives them. */
enum { NCCL_OLDEST = 21800, NCCL_WITH_WINDOWS = 22700, NCCL_WITH_COPY_ENGINES = 22800 };

/* NCCL's own memory comes in pages of the GPU. */
#define NCCL_PAGE ((size_t)2 << 20)

/* Collectives of a group whose end can be told apart. Older ones are done when a newer one is: one stream. */
enum { NCCL_EVENTS = 64 };

/* NCCL notices a peer's end before the reason is known: for this long, the watchdog's message is preferred.
 */
#define NCCL_GRACE_SECONDS 2.0

/* Memory of comm_allocate, and what a communicator knows it by. */
typedef struct nccl_memory {
    struct nccl_memory *next;
    void *start;
    size_t bytes;
    bool own;  /* NCCL's, for windows */
    bool even; /* as many bytes on all ranks, as a window needs */
} nccl_memory;

typedef struct nccl_registration {
    struct nccl_registration *next;
    const void *start;
    void *handle;
} nccl_registration;

typedef struct nccl_group {
    struct nccl_group *next; /* of the world's list, under its lock */
    char name[32];
    ncclComm_t handle; /* NULL once aborted */
    stream *stream;
    void *queue; /* the stream as NCCL knows it */
    event *ready, *done[NCCL_EVENTS];
    device_staging staging; /* for sums that change type or are added, values that wait to be summed, and host data */
    nccl_registration *registrations;
    /* What the watch looks at, under the world's lock. */
    uint32_t enqueued, finished; /* sequence numbers */
    double begun[NCCL_EVENTS];
    signature names[NCCL_EVENTS];
} nccl_group;

/* In comm.state. */
typedef struct nccl_world {
    void *library;
    nccl_api api;
    int version;
    watchdog *watchdog;
    bool rolling;
    ncclUniqueId id; /* of the world */
    nccl_memory *memories;
    bool said_unregistered;
    pthread_mutex_t calls; /* held while NCCL works on a communicator, so that an abort does not free it meanwhile */
    pthread_mutex_t lock;
    nccl_group *groups;   /* those that can be watched and aborted */
    double trouble_since; /* watchdog's thread: NCCL reports an error whose reason is not known yet */
    atomic_bool aborted;
    atomic_bool told; /* the failure came from a peer: every rank knows */
} nccl_world;

static inline nccl_world *nccl_world_of(const comm *c)
{
    return c->state;
}

/* FSDP_OK, or FSDP_ERR_PEER with `what` and NCCL's words. */
fsdp_status nccl_check(const nccl_world *w, ncclResult_t result, const char *what);

/* Around calls on a communicator: fails, without entering, once the comm has failed. */
fsdp_status nccl_enter(comm *c);
void nccl_leave(comm *c);
/* Ends a group of calls (ncclGroupStart), of which the last gave `result`, and leaves. */
fsdp_status nccl_end_calls(comm *c, ncclResult_t result, const char *what);

/* Until what is enqueued on the group is done, for the host; with the timeout, and woken by an abort. */
fsdp_status nccl_wait_host(comm_group *g, uint32_t sequence);

/* group.c */
fsdp_status nccl_group_open(comm_group *g);
void nccl_group_close(comm_group *g);
/* At least `bytes` of g's staging memory; grows only while nothing runs. */
fsdp_status nccl_stage(comm_group *g, size_t bytes, char **out);
/* The first group whose communicator reports an error, or whose collective does not end: what and why. */
fsdp_status nccl_examine_groups(comm *c, char *text, size_t bytes);
/* Aborts all communicators: kernels that wait for a peer return, so nothing hangs on the device either. */
void nccl_abort_groups(comm *c);

/* memory.c */
fsdp_status nccl_allocate(comm *c, size_t bytes, void **out);
void nccl_release(comm *c, void *memory);
void nccl_release_all(comm *c);
bool nccl_register_all(comm *c, nccl_group *n);   /* all memory there is, on a new group; false: not all of it */
void nccl_group_settle(comm_group *g);            /* a rank could not: registered nowhere */
void nccl_deregister_all(comm *c, nccl_group *n); /* before its communicator goes */

fsdp_status nccl_run(comm_request *r); /* collectives.c */

/* timed_call.c: a call that may wait for peers, on a thread of its own. */
typedef struct nccl_timed_call {
    void (*run)(struct nccl_timed_call *e);
    device *device;
    nccl_api api;
    ncclUniqueId id;
    int size, rank;
    ncclConfig_t config;
    void *start, *window; /* memory to register, and what came of it */
    size_t bytes;
    ncclComm_t handles[COMM_MAX_GROUPS + 1];
    int n_handles;
    ncclResult_t result;
    atomic_int state;
} nccl_timed_call;

nccl_timed_call *nccl_timed_call_new(const comm *c, void (*run)(nccl_timed_call *e)); /* NULL: no memory */

/* Runs it and waits for its end, for the seconds given, or until `watched` becomes true (may be NULL). True: it has
 * ended, and e is the caller's to free(). False: it was left behind, and frees itself when it ends. */
bool nccl_timed_call_run(nccl_timed_call *e, double seconds, const atomic_bool *watched);

#endif
