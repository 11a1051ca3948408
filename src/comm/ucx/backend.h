/* What the files of the UCX backend share. Ranks of a host share memory as in comm/shm, whose files do that part; UCX
 * carries messages between hosts. Of a group's ranks on another host, each part that one rank gives goes to one rank
 * there, its holder, from whom the others read it: a byte crosses a link once per host. Sums go from host to host in
 * the order of ranks, so that their bits are those of a serial loop.
 *
 * Only the executor (engine.h) calls UCX once the comm is open. Failures travel over the meeting (watchdog.h). Whoever
 * waits for memory of its host leaves UCX alone meanwhile: all its messages are out before. */
#ifndef COMM_UCX_BACKEND_H
#define COMM_UCX_BACKEND_H

#include <ucp/api/ucp.h>

#include "comm/shm/collectives.h"
#include "comm/watch/watchdog.h"
#include "meet/meeting.h"

/* libucp is opened when it is needed: its loading installs signal handlers and costs every process milliseconds. */
#define UCX_FUNCTIONS(X)                                                                                               \
    X(ucp_config_read)                                                                                                 \
    X(ucp_config_modify)                                                                                               \
    X(ucp_config_release)                                                                                              \
    X(ucp_init_version)                                                                                                \
    X(ucp_cleanup)                                                                                                     \
    X(ucp_worker_create)                                                                                               \
    X(ucp_worker_destroy)                                                                                              \
    X(ucp_worker_get_address)                                                                                          \
    X(ucp_worker_release_address)                                                                                      \
    X(ucp_worker_get_efd)                                                                                              \
    X(ucp_worker_arm)                                                                                                  \
    X(ucp_worker_progress)                                                                                             \
    X(ucp_worker_flush_nbx)                                                                                            \
    X(ucp_ep_create)                                                                                                   \
    X(ucp_ep_close_nbx)                                                                                                \
    X(ucp_tag_send_nbx)                                                                                                \
    X(ucp_tag_recv_nbx)                                                                                                \
    X(ucp_request_check_status)                                                                                        \
    X(ucp_request_cancel)                                                                                              \
    X(ucp_request_free)

#define UCX_FUNCTION(name) __typeof__(&name) name;
typedef struct ucx_api {
    UCX_FUNCTIONS(UCX_FUNCTION)
} ucx_api;

/* A message under way; `request` is NULL once it is done. */
typedef struct ucx_message {
    void *request;
    int peer; /* rank of the world; -1: all */
    bool receives, failed;
} ucx_message;

/* What one rank of a group gives to all: where it goes on this rank. */
typedef struct ucx_part {
    char *at;
    size_t bytes;
} ucx_part;

/* Elements at .. at+n of a buffer. */
typedef struct ucx_stretch {
    int64_t at, n;
} ucx_stretch;

/* What hosts tell each other before data moves. */
typedef struct ucx_greeting {
    signature call;
    int64_t direct; /* its ranks read each other's send where it is, not through staging areas */
} ucx_greeting;

/* Where what is to be summed lies. */
typedef struct ucx_residence {
    bool near, everywhere; /* read directly: by the ranks of this host, by those of every host */
} ucx_residence;

/* Kept in comm.state. All arrays that messages read or write are here, because messages outlive a failed collective. */
typedef struct ucx_world {
    shm_world shared; /* first: comm/shm finds it in comm.state */
    int *hosts;       /* (world_size) the host of each rank, numbered in the order of their first ranks */
    ucx_api api;
    ucp_context_h context;
    ucp_worker_h worker;
    int event;              /* descriptor that is readable when something came */
    client_parts addresses; /* of every rank's worker */
    ucp_ep_h *peers;        /* (world_size) made at the first message; NULL before */
    bool *lost;             /* (world_size) its connection broke */
    ucx_message *messages;
    int n_messages, room;
    pthread_mutex_t lock; /* of places */
    signature *places;    /* (world_size) the last collective we have heard of from each rank */
    ucx_greeting *inbox, outgoing;
    ucx_part *parts;        /* (world_size) */
    ucx_stretch *stretches; /* (world_size) what each rank sums in this turn */
    const void **sources;   /* (world_size) of a sum */
    int *awaited;           /* (world_size) messages that bring sums so far */
    char *scratch;          /* sums so far, and what waits to be summed */
    size_t scratch_bytes;
    bool reported; /* the scratch memory, to whoever counts */
    watchdog *watchdog;
    atomic_bool told; /* of a failure, by the watchdog */
} ucx_world;

/* Neighbouring ranks of a group that are on one host. */
typedef struct ucx_run {
    int host, first, end;
} ucx_run;

/* Kept in comm_group.backend. Hosts are numbered within the group, in the order of their first ranks there. */
typedef struct ucx_group {
    comm_group near; /* the group's ranks on this host, in its order: what comm/shm works on */
    int n_hosts, own_host;
    int *host, *place;         /* (size) each rank's host, and its number there */
    int *host_begin, *on_host; /* (n_hosts + 1), (size): ranks of host h are on_host[host_begin[h]], ... */
    ucx_run *runs;
    int n_runs;
    int most_held; /* parts of a group's ranks that one rank holds for its host, at most */
} ucx_group;

static inline ucx_world *ucx_world_of(const comm *c)
{
    return c->state;
}

static inline ucx_group *ucx_group_of(const comm_group *g)
{
    return g->backend;
}

static inline char *ucx_element(buffer b, int64_t index)
{
    return (char *)b.p + index * (int64_t)fsdp_dtype_size(b.dtype);
}

/* library.c */
fsdp_status ucx_open_library(ucx_api *api);

/* group.c */
fsdp_status ucx_group_open(comm_group *g);
void ucx_group_close(comm_group *g);
/* The rank that holds the part of `rank` on `host`; that rank itself on its own. All three are of the group. */
int ucx_holder(const ucx_group *u, int host, int rank);

/* messages.c. `rank` is of the group, `part` tells messages between two ranks apart. */
enum ucx_phase { UCX_PHASE_SIGNATURE, UCX_PHASE_PARTS, UCX_PHASE_CHAIN, UCX_PHASE_TOTAL };
fsdp_status ucx_messages_open(comm *c);
void ucx_messages_close(comm *c);
/* Post a message; wait for none. Any size; 0 bytes post nothing. */
fsdp_status ucx_post_send(comm_request *r, enum ucx_phase phase, int rank, int part, const void *data, size_t bytes);
fsdp_status ucx_post_receive(comm_request *r, enum ucx_phase phase, int rank, int part, void *data, size_t bytes);
int ucx_posted(const comm *c); /* messages since the last ucx_wait_posted: the number of the next */
/* Until messages first .. end-1 are done, and until all are, and all that was sent has left this process. */
fsdp_status ucx_wait_messages(comm_request *r, const signature *s, int first, int end);
fsdp_status ucx_wait_posted(comm_request *r, const signature *s);

/* spread.c: every rank's part, which it has in place, to all ranks: between hosts (posts messages, for the caller to
 * wait for), then within the host, where parts of near ranks may be left out. */
fsdp_status ucx_post_parts(comm_request *r, const ucx_part *parts);
fsdp_status ucx_share_parts(comm_request *r, const signature *s, const ucx_part *parts, bool far_only);

/* sums.c */
fsdp_status ucx_reduce_scatter(comm_request *r, const signature *s, ucx_residence direct);
fsdp_status ucx_all_reduce(comm_request *r, const signature *s, ucx_residence direct);

/* collectives.c */
fsdp_status ucx_run_collective(comm_request *r);
bool ucx_is_sent(const comm_request *r);
fsdp_status ucx_wait_sent(comm_request *r);
/* Where `rank`, which is near, has what it sends in a span, for collectives whose data all lies in shared memory. */
const char *ucx_sent_by(const comm_request *r, int rank, int span);

#endif
