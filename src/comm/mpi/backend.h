/* What the files of the MPI backend share. Collectives are made of point-to-point messages, so that the order of every
 * sum is ours, every wait can end, and a rank that is late is known by number. Needs MPI_THREAD_SERIALIZED: a thread
 * that calls MPI holds the lock. */
#ifndef COMM_MPI_BACKEND_H
#define COMM_MPI_BACKEND_H

#include <mpi.h>

#include "comm/engine.h"
#include "comm/signature.h"

/* Elements at .. at+n of a buffer. */
typedef struct mpi_stretch {
    int64_t at, n;
} mpi_stretch;

/* Kept in comm.state. All arrays that messages read or write are here, because messages outlive a failed collective. */
typedef struct mpi_world {
    MPI_Comm messages, aborts;               /* copies of the world: collectives; failures */
    bool opened, initialized_here, reported; /* reported: the scratch memory, to whoever counts */
    pthread_mutex_t lock;
    signature *places; /* (world_size) the last collective we have heard of from each rank */
    signature *inbox, outgoing;
    MPI_Request *requests; /* messages under way; the rank of the world each is from or to */
    int *peers;
    bool *receives;
    int n_requests, capacity;
    const void **sources;   /* (world_size) of a sum */
    mpi_stretch *stretches; /* (world_size) what each rank sums in this turn */
    char *scratch;          /* staging_bytes, for parts of peers that wait to be summed */
    size_t scratch_bytes;
    int abort_rank;
    char abort_text[1024];
} mpi_world;

static inline mpi_world *mpi_world_of(const comm *c)
{
    return c->state;
}

enum mpi_phase { MPI_PHASE_SIGNATURE, MPI_PHASE_DATA, MPI_PHASE_SUMS, MPI_PHASES };

/* Posts a message of a collective; waits for none. `rank` is of the group. Any size; 0 bytes post nothing. */
fsdp_status mpi_post_send(comm_request *r, enum mpi_phase phase, int rank, const void *data, size_t bytes);
fsdp_status mpi_post_receive(comm_request *r, enum mpi_phase phase, int rank, void *data, size_t bytes);
/* Until all posted messages are done. */
fsdp_status mpi_wait_posted(comm_request *r, const signature *s);

fsdp_status mpi_run(comm_request *r); /* collectives.c */

#endif
