/* What the files of the NCCL backend share. Every group has a communicator, a stream of its own and a ring of events;
 * collectives are enqueued at once, and whoever needs the result waits for the event: a stream on the device, or the
 * host. Sums run in NCCL's order, not in rank order, and calls are not compared between ranks: a rank that calls
 * something else ends in the timeout, which names the collective. */
#ifndef COMM_NCCL_WORLD_H
#define COMM_NCCL_WORLD_H

#include <nccl.h>

#include "comm/engine.h"
#include "comm/nccl_meet.h"
#include "comm/signature.h"

#define NCCL_FUNCTIONS(X)                                                                                              \
    X(ncclGetVersion)                                                                                                  \
    X(ncclGetUniqueId)                                                                                                 \
    X(ncclCommInitRank)                                                                                                \
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

#define NCCL_FUNCTION(name) __typeof__(&name) name;
typedef struct nccl_api {
    NCCL_FUNCTIONS(NCCL_FUNCTION)
} nccl_api;

/* Collectives of a group whose end can be told apart. Older ones are done when a newer one is: one stream. */
enum { NCCL_EVENTS = 64 };

typedef struct nccl_group {
    struct nccl_group *next; /* of the world's list, under its lock */
    char name[32];
    ncclComm_t handle;
    stream *stream;
    void *queue; /* the stream as NCCL knows it */
    event *ready, *done[NCCL_EVENTS];
    char *staging; /* device memory for sums that change type or are added, and for host data */
    size_t staging_bytes;
    /* What the watch looks at, under the world's lock. */
    uint32_t enqueued, finished; /* sequence numbers */
    double begun[NCCL_EVENTS];
    signature names[NCCL_EVENTS];
} nccl_group;

/* In comm.state. */
typedef struct nccl_world {
    void *library;
    nccl_api api;
    meeting *meeting;
    ncclUniqueId id; /* of the world */
    pthread_mutex_t lock;
    nccl_group *groups; /* those that can be watched and aborted */
    pthread_t watch;
    bool watching;
    atomic_bool stop, aborted;
    atomic_bool told; /* the failure came from a peer: everybody knows */
} nccl_world;

static inline nccl_world *nccl_world_of(const comm *c)
{
    return c->state;
}

/* FSDP_OK, or FSDP_ERR_PEER with `what` and NCCL's words. */
fsdp_status nccl_check(const nccl_world *w, ncclResult_t result, const char *what);

/* At least `bytes` of g's staging memory; grows only while nothing runs. */
fsdp_status nccl_stage(comm_group *g, size_t bytes, char **out);

fsdp_status nccl_run(comm_request *r); /* nccl_collectives.c */

/* Until what is enqueued on the group is done, for the host; with the timeout, and woken by an abort. */
fsdp_status nccl_wait_host(comm_group *g, uint32_t sequence);

#endif
