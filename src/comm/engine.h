/* What the files of comm share: the comm, its groups, the table that a backend fills in, and the queue in which
 * collectives wait until the progress thread, or a caller who waits, runs them.
 *
 * Threads: the caller's thread starts collectives and waits; the executor (progress thread if there is one, else the
 * caller inside comm_wait) runs them one at a time in the order started. comm_abort may come from any thread. */
#ifndef COMM_ENGINE_H
#define COMM_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/record/hooks.h"
#include "comm/comm.h"

enum request_state { REQUEST_IDLE, REQUEST_PENDING, REQUEST_DONE, REQUEST_FAILED };

/* Collectives of one group that may be started and not yet run; starting another runs the oldest first. */
enum { COMM_IN_FLIGHT = 8 };

/* All calls but `abort` and `check` are made by one thread at a time: those marked (executor) by the thread that runs
 * collectives, the rest by the caller's thread. `abort` and `check` may come at any time from any thread. */
typedef struct comm_backend {
    const char *name;
    bool enqueues;  /* run puts work on a device's queue and returns: it is called as soon as a collective is started */
    bool registers; /* memory of allocate is known to the network: collectives write it directly, too */
    bool works;     /* run moves and sums data all the time: a thread for it wants a core of its own */
    bool meets;     /* open finds c->meeting, and c's numbers of hosts as the ranks found them there */
    bool keeps_meeting;    /* uses it as long as the comm is open */
    size_t page;           /* allocate takes whole pages of this many bytes; 0: what it is asked for */
    size_t symmetric_page; /* likewise, of memory that is not plain (comm_config); 0: the same */
    size_t (*overhead)(const comm_config *config); /* see comm_overhead; optional: nothing */
    /* Meets the other ranks; fills in c->state and, where the backend knows better than the job, c's numbers. */
    fsdp_status (*open)(comm *c);
    void (*close)(comm *c); /* leaves; must not wait for peers; legal after a failed open */
    /* The group's members are known. Not called for groups of one rank. Peers use the group when all have opened it. */
    fsdp_status (*group_open)(comm_group *g);
    /* Some rank's side of the groups of this split lacks something they can do without (g->lacking): give it up here,
     * too. Optional. */
    void (*group_settle)(comm_group *g);
    void (*group_close)(comm_group *g);
    /* Announces a collective to peers. Optional. */
    fsdp_status (*start)(comm_request *r);
    fsdp_status (*run)(comm_request *r); /* (executor) blocks until recv is complete */
    /* For backends that enqueue: later work of s, or the host when s is NULL, waits for recv. */
    fsdp_status (*wait)(comm_request *r, stream *s);
    bool (*is_sent)(const comm_request *r);    /* after run; optional: send is free when run returns */
    fsdp_status (*wait_sent)(comm_request *r); /* there when is_sent is */
    /* Collective over the world, with no collective under way; bytes may be 0. */
    fsdp_status (*allocate)(comm *c, size_t bytes, void **out);
    void (*release)(comm *c, void *memory);
    void (*abort)(comm *c, const char *message);
    fsdp_status (*check)(comm *c); /* optional */
} comm_backend;

extern const comm_backend comm_self_backend, comm_shm_backend;
extern const comm_backend comm_emulate_host_backend, comm_emulate_device_backend;
#ifdef FSDP_WITH_MPI
extern const comm_backend comm_mpi_backend;
#endif
#ifdef FSDP_WITH_UCX
extern const comm_backend comm_ucx_backend;
#endif
#ifdef FSDP_WITH_NCCL
extern const comm_backend comm_nccl_backend;
#endif

struct comm_group {
    comm *comm;
    char name[32];
    int slot;   /* 1 to COMM_MAX_GROUPS, the same on all ranks, used again once all have freed it; the world is 0 */
    int serial; /* number of the split that made it, the same on all ranks, never used again; the world is 0 */
    int rank, size;
    int *members;              /* (size) ranks of the world */
    uint32_t started;          /* collectives started; caller's thread */
    _Atomic uint32_t finished; /* collectives run; executor */
    _Atomic int64_t bytes_received;
    bool lacking;     /* set by group_open: see group_settle */
    void *backend;    /* backend's own, or NULL */
    comm_group *next; /* of the comm's list */
};

struct comm {
    const comm_backend *backend;
    comm_config config;
    int rank, world_size, local_rank, local_world_size, node, n_nodes;
    comm_group *world, *groups; /* all groups, the world among them */
    struct meeting *meeting;    /* where this rank met the others; NULL: nowhere, or left again */
    int n_splits;
    bool said_cost;               /* of direct sums between hosts (direct.h) */
    uint32_t slots_taken;         /* bit s: slot s */
    void *state;                  /* the backend's */
    struct host_memory *memories; /* of host_allocate */

    /* The queue, and the failure that ended this comm; all under `lock`. `failed` is a copy to read without it. */
    pthread_mutex_t lock;
    pthread_cond_t work, progress; /* something to run; something was run */
    comm_request *head, *tail;
    atomic_bool stop; /* closing: backends end their waits */
    bool has_thread;
    int workers; /* threads that may share the work of a collective: those that compute, where the caller runs it */
    pthread_t thread;
    atomic_bool failed;
    fsdp_status failure;
    char failure_text[1024]; /* without "rank N: " in front */
};

/* Queue. */
fsdp_status engine_open(comm *c, bool thread);
void engine_close(comm *c); /* ends the thread; what is still queued is dropped as failed */
void engine_free(comm *c);  /* after the backend was closed, whose threads may fail the comm until then */
fsdp_status engine_start(comm_group *g, comm_kind kind, const comm_op *op, comm_request *r);
fsdp_status engine_wait(comm_request *r);
void engine_await(comm_request *r);                                 /* until it is done, or has failed */
fsdp_status engine_drain(comm *c);                                  /* runs, or waits for, everything started so far */
void engine_report_wait(const comm_request *r, hook_moment moment); /* the caller's thread begins or ends a wait */

/* Failure. engine_fail keeps the first (text without the rank in front), tells the peers and returns what
 * engine_failure returns: the failure as this thread's error. */
fsdp_status engine_fail(comm *c, fsdp_status status, const char *text);
fsdp_status engine_failure(comm *c);
/* This thread's last error without "rank N: " in front, for passing on. */
const char *engine_error_text(const comm *c);

/* Checks what can be checked on this rank alone. */
fsdp_status request_validate(const comm_group *g, comm_kind kind, const comm_op *op);

/* Shapes of a span. */
static inline int64_t span_count(const comm_span *p, int rank)
{
    return p->counts ? p->counts[rank] : p->count;
}

int64_t span_offset(const comm_span *p, int rank); /* elements before rank's part */
int64_t span_largest(const comm_span *p, int n_ranks);
int64_t request_received(const comm_request *r); /* bytes; see comm_group_bytes */
const char *comm_kind_name(comm_kind kind);

/* Runs a collective of a group of one rank. */
fsdp_status self_run(comm_request *r);
/* Whether that puts it on the caller's stream: it must then happen before the caller enqueues anything else there. */
bool self_enqueues(const comm_request *r);

/* Device memory of a group for data on its way, which grows with the largest collective, in whole pages. */
enum { COMM_STAGING_PAGE = 4096 };
typedef struct device_staging {
    char *start;
    size_t bytes;
} device_staging;

/* At least `bytes`. Only what is on s may still use it. */
fsdp_status staging_grow(device *d, stream *s, device_staging *m, size_t bytes);
void staging_free(device *d, device_staging *m); /* nothing uses it any more */

/* Memory for backends without any of their own: from config.device, else straight from the system. Nothing collective
 * about it. */
fsdp_status host_allocate(comm *c, size_t bytes, void **out);
void host_release(comm *c, void *memory);
void host_release_all(comm *c);

#endif
