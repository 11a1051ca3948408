/* Collectives over groups of ranks: one interface, and behind it self (one rank), shm (processes of one host, which
 * read each other's memory), mpi and ucx (many hosts), nccl (GPUs), and emulate (a world that is not there, timed).
 *
 * Rules that hold for every backend:
 * - All ranks of a group call the same collectives on it in the same order, with the same unit, step, dtypes and
 *   counts. A rank that does otherwise is named on every rank at once (FSDP_ERR_PEER), nothing hangs.
 * - Collectives of one comm run in the order in which this rank started them, also across groups.
 * - Sums run over ranks 0, 1, ... n-1 of the group in that order, in fp32 (fp64 for fp64, integers exactly), starting
 *   with rank 0's value, whatever the backend, the sizes and the number of spans: the same bits as a serial loop.
 *   (nccl does so with bf16 and fp16, unless comm_config leaves them to the library; the rest it sums in an order of
 *   its own.)
 * - Every wait ends: with the result, at the timeout (FSDP_ERR_TIMEOUT, naming who did not arrive and where it was
 *   last), or when a peer failed, left or aborted (FSDP_ERR_PEER, with that rank and its message). After a failure the
 *   comm is unusable: all its calls return that failure; comm_close is still owed and does not wait.
 * - A comm and its groups are used by one thread at a time. */
#ifndef COMM_COMM_H
#define COMM_COMM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <fsdp/dtype.h>
#include <fsdp/kinds.h>
#include <fsdp/status.h>

#include "base/host/job.h"
#include "device/device.h"

typedef struct comm comm;
typedef struct comm_group comm_group;

/* ---- This rank's connection to the world ---- */

typedef enum comm_progress {
    COMM_PROGRESS_AUTO,   /* a thread if this rank has a core to spare besides those it computes on (shm, ucx), or
                             computes on   several, so that waiting for the network takes little of them (mpi) */
    COMM_PROGRESS_THREAD, /* a thread runs collectives while the caller computes */
    COMM_PROGRESS_INLINE, /* collectives run inside comm_wait, in the order they were started */
} comm_progress;

typedef struct comm_config {
    size_t size;
    const char *backend; /* "self", "shm", "mpi", "ucx", "nccl", "emulate:LINKS" (emulate/links.h); NULL: self for one
                            rank, nccl between GPUs, shm on one host, mpi under mpirun, else ucx (or mpi, in a build
                            without) */
    job job;             /* who we are; mpi takes rank and size from MPI itself, which must agree with a launcher's */
    double timeout_seconds; /* of every single wait */
    comm_progress progress;
    size_t staging_bytes;    /* shm, ucx: per rank, for data that does not lie in comm_allocate memory; mpi, ucx, nccl,
                                emulate: for parts of peers that wait to be summed; 0: what is good for the backend */
    device *device;          /* where comm_allocate takes memory from (self, mpi, nccl); borrowed; NULL: host memory */
    int ctas;                /* nccl, emulate: the most blocks of a collective, up to COMM_MAX_CTAS; 0: see ctas.h */
    fsdp_comm_memory memory; /* nccl, emulate: of comm_allocate */
    fsdp_reduce_accumulation accumulation; /* nccl, emulate on a GPU: of bf16 and fp16 sums; others have fp32's */
} comm_config;

enum { COMM_MAX_CTAS = 64 }; /* NCCL's channels */

#define COMM_CONFIG_INIT                                                                                               \
    {                                                                                                                  \
        .size = sizeof(comm_config), .timeout_seconds = 600                                                            \
    }

/* Returns when all ranks have met, or fails naming those that did not come. The caller owns *out. */
fsdp_status comm_open(const comm_config *config, comm **out);

/* Bytes that comm_open takes on each rank and reports as memory, before anything is allocated or sent. Not counted: a
 * few kB of lists, and what MPI, UCX and NCCL take for themselves. */
size_t comm_overhead(const comm_config *config);
/* Device memory that the backend's library takes for itself and nobody reports, with so many groups of several ranks,
 * the world among them: of NCCL, as measured on a GPU that the ranks share, over sockets. Over NVLink it takes buffers
 * for its peers besides. 0: none, or not known. */
size_t comm_library_bytes(const comm_config *config, int groups);
/* Bytes that comm_allocate takes and reports when it is asked for `bytes`. */
size_t comm_allocated_bytes(const comm_config *config, size_t bytes);
/* What comm_fills_directly will say. */
bool comm_will_fill_directly(const comm_config *config);

/* Leaves the world and frees everything, also memory of comm_allocate and groups that are still there. All ranks close;
 * a rank that still waits for one that closed gets FSDP_ERR_PEER. NULL is legal. Requests not waited for are dropped.
 */
void comm_close(comm *c);

int comm_rank(const comm *c);
int comm_world_size(const comm *c);
int comm_local_rank(const comm *c);
const char *comm_backend_name(const comm *c);
bool comm_has_progress_thread(const comm *c);
bool comm_enqueues(const comm *c); /* collectives run on the device's queue; the host only starts them */

/* Wakes every waiting rank with this rank's message; all further calls fail with it, here and there. The first abort
 * (or failure, which aborts by itself) of a job is the one that every rank reports. Callable from any thread. */
void comm_abort(comm *c, const char *message);

/* FSDP_OK while the world is whole as far as known; otherwise what comm_wait would return. Never blocks. */
fsdp_status comm_check(comm *c);

/* ---- Memory that peers reach directly ---- */

/* Collective over the world: every rank calls it, each with its own size (0 is legal, *out is then NULL). Page aligned,
 * contents undefined, on the CPU resident from the start. Collectives on buffers inside it move data without a copy in
 * between; buffers from anywhere else work too, through a staging area. Owned by the comm until comm_release. */
fsdp_status comm_allocate(comm *c, size_t bytes, void **out);
/* Whether buffers that only this rank reads are better taken from comm_allocate, too: the backend then fills them
 * without a copy of its own. */
bool comm_fills_directly(const comm *c);
void comm_release(comm *c, void *memory); /* every rank, in the same order; does not wait; NULL is legal */

/* ---- Groups ---- */

comm_group *comm_world(comm *c); /* owned by the comm */

/* Collective over the world: ranks with the same color form a group, ordered by key, then by rank. `name` is for
 * messages ("shard", "replica"); copied. At most COMM_MAX_GROUPS at a time. */
fsdp_status comm_group_split(comm *c, const char *name, int color, int key, comm_group **out);

/* Collective over the world: splits it into lists of `size` neighbouring ranks. size must divide the world. */
fsdp_status comm_group_split_neighbours(comm *c, const char *name, int size, comm_group **out);

/* The same (the shard group), and across it (the replica group: ranks with the same place in their shard group). */
fsdp_status comm_group_split_by_size(comm *c, int size, comm_group **shard, comm_group **replica);
void comm_group_free(comm_group *g); /* no request of it may be pending; NULL is legal */

int comm_group_rank(const comm_group *g);
int comm_group_size(const comm_group *g);
int comm_group_world_rank(const comm_group *g, int rank); /* rank of the group -> rank of the world */

#define COMM_MAX_GROUPS 16
#define COMM_MAX_PIECES 64
#define COMM_NAME_BYTES 64 /* longer unit names and labels are cut in messages */

/* ---- Collectives ---- */

/* One buffer of a collective that may carry several. n is the size of the group, total the sum of all counts:
 *
 *     collective       send reads         recv writes        counts
 *     all_gather       counts[rank]       total              of each rank's part
 *     reduce_scatter   total              counts[rank]       of each rank's part
 *     all_reduce       count              count              `count` only
 *
 * Parts lie in rank order, rank r's at element counts[0] + ... + counts[r-1]. In place is legal: all_gather with send
 * at its own part of recv, reduce_scatter with recv at its own part of send, the others with send == recv; any other
 * overlap is not. Gathers take any dtype, the same on both sides. Reductions take fp32, bf16, fp16 (the
 * two sides may differ), or fp64, int32, int64 (the same on both sides). */
typedef struct comm_span {
    buffer send;
    buffer recv;
    int64_t count;         /* elements of every rank */
    const int64_t *counts; /* or, when not NULL, of rank i (n entries, zeros allowed) */
    bool add;              /* reductions: recv += result (in fp32), instead of recv = result */
} comm_span;

/* What a collective is for and what it moves. unit, label, spans and counts are borrowed until comm_wait
 * (comm_wait_sent where that is called) returns. */
typedef struct comm_op {
    const char *unit;  /* "layers.7", or NULL */
    const char *label; /* without a unit: "gradient norm" */
    int64_t step;
    int n_spans;
    const comm_span *spans;
    fsdp_reduction reduction;
    stream *stream; /* the data is ready when what is enqueued here so far is done; NULL or a CPU stream: now */
} comm_op;

typedef enum comm_kind {
    COMM_ALL_GATHER,
    COMM_REDUCE_SCATTER,
    COMM_ALL_REDUCE,
    COMM_BARRIER,
    COMM_EXCHANGE,
} comm_kind;

/* A collective under way. The caller provides the memory (zeroed before first use, or COMM_REQUEST_INIT), keeps it in
 * place until comm_wait, and may use it again after; starting a collective with a request under way is FSDP_ERR_STATE.
 * The fields belong to comm. */
typedef struct comm_request {
    comm_op op;
    comm_kind kind;
    comm_group *group;
    uint32_t sequence; /* of the group, from 1 */
    atomic_int state;  /* enum request_state of engine.h */
    struct comm_request *next;
    void *backend; /* nccl: its event */
} comm_request;

#define COMM_REQUEST_INIT                                                                                              \
    {                                                                                                                  \
        .sequence = 0                                                                                                  \
    }

/* These start a collective and return; on failure nothing was started. */
fsdp_status comm_all_gather(comm_group *g, const comm_op *op, comm_request *r);
fsdp_status comm_reduce_scatter(comm_group *g, const comm_op *op, comm_request *r);
fsdp_status comm_all_reduce(comm_group *g, const comm_op *op, comm_request *r);

/* recv is complete: for work enqueued on `s` from now on (NULL, or a CPU stream: for the host, now). A request that was
 * never started, or was waited for before, is fine. Of a group of one rank on a device the work is on op.stream since
 * it was started: another stream must follow that one. */
fsdp_status comm_wait(comm_request *r, stream *s);

/* send may be overwritten: every rank has read it. Waits for recv too. Call it before the optimizer writes a shard that
 * was gathered, and before a gradient buffer that was reduced is filled again. Free once a later collective of the same
 * group has been waited for on this rank and peers moved on; otherwise waits for the slowest peer. (all_reduce
 * does not need it: after its comm_wait both buffers are the caller's.) */
fsdp_status comm_wait_sent(comm_request *r, stream *s);

/* Call it before the memory of a request (or of its data) is freed without comm_wait, because something failed in
 * between: returns when it is no longer used. A comm that has failed drops the request at once; otherwise this waits
 * for the collective. Sets no error. A request that is not under way is fine. */
void comm_forget(comm_request *r);

/* Start and wait in one. */
fsdp_status comm_barrier(comm_group *g, const char *label, int64_t step);

/* Small objects, for agreement at start and on errors: every rank gives `bytes` (at most `max_bytes`, the same number
 * on all ranks, at most COMM_EXCHANGE_BYTES) and gets every rank's: all[i * max_bytes], all_bytes[i] for rank i. Host
 * memory. */
#define COMM_EXCHANGE_BYTES 65536
fsdp_status comm_exchange(comm_group *g, const char *label, const void *mine, size_t bytes, size_t max_bytes, void *all,
                          size_t *all_bytes);

/* Host scalars in place: values[i] = reduction over ranks of values[i]; sums in rank order. Start and wait in one. */
fsdp_status comm_all_reduce_f64(comm_group *g, const char *label, int64_t step, fsdp_reduction reduction,
                                double *values, int64_t n);
fsdp_status comm_all_reduce_i64(comm_group *g, const char *label, int64_t step, fsdp_reduction reduction,
                                int64_t *values, int64_t n);

/* Bytes of peers' data that this rank has received in collectives of the group so far. With n ranks: all_gather the
 * peers' parts, reduce_scatter n-1 times its own part, all_reduce 2 (n-1)/n of the buffer, in the dtype sent; but where
 * comm_sums_directly, its sums come in the dtype of recv, or in fp32 where they are added to that. */
int64_t comm_group_bytes(const comm_group *g);

/* ---- Sums between GPUs ---- */

/* Whether ranks send values of this dtype to the rank that sums them, which adds them up in fp32 (direct.h). */
bool comm_sums_directly(const comm_config *config, fsdp_dtype from);
/* Device memory that a group of so many ranks takes for such sums, and for NCCL's that change type or are added, when
 * the largest comes: a reduce_scatter of which this rank owns `numel` elements, or an all_reduce of as many. */
size_t comm_staging_bytes(const comm_config *config, comm_kind kind, int n_ranks, int64_t numel, fsdp_dtype from,
                          fsdp_dtype to, bool add);
/* The same for the largest comm_exchange in a group of so many ranks, whose values NCCL takes from the device. */
size_t comm_exchange_staging_bytes(const comm_config *config, int n_ranks);

#endif
