/* What collectives on shared memory and those through the staging area have in common: cards, chunks, sums. */
#ifndef COMM_SHM_COLLECTIVES_H
#define COMM_SHM_COLLECTIVES_H

#include "comm/shm/control.h"

/* Values of shm_location.region that are no region. */
enum { SHM_ELSEWHERE = -1, SHM_NOTHING = -2 };

/* What `rank` announced for this collective. */
static inline const shm_card *shm_card_of(const comm_request *r, int rank)
{
    return &channel_of(r->group, rank)->cards[r->sequence % COMM_IN_FLIGHT];
}

/* The two halves of a meeting, for collectives whose group is larger than `near`, those of its ranks that share memory:
 * says what this rank does and where its data lies; waits for the others and compares. */
fsdp_status shm_announce(comm_request *r, comm_group *near, const signature *s);
fsdp_status shm_meet(comm_group *near, uint32_t sequence, const signature *s);

static inline int64_t shm_clamp(int64_t n, int64_t most)
{
    return n < 0 ? 0 : n < most ? n : most;
}

/* A turn in lockstep: begin (the slot is ours to fill), exchange (every rank has filled theirs), read, end. Every
 * member of the group makes the same turns. */
typedef struct shm_chunk {
    uint32_t number;
    char *slot; /* NULL unless `fill` was asked for */
} shm_chunk;

fsdp_status shm_chunk_begin(comm_request *r, const signature *s, bool fill, shm_chunk *chunk);
fsdp_status shm_chunk_exchange(comm_request *r, const signature *s, const shm_chunk *chunk);
const char *shm_chunk_of(const comm_request *r, const shm_chunk *chunk, int rank); /* rank's slot */
void shm_chunk_end(comm_request *r, const shm_chunk *chunk);

/* recv of a span from n_sources, in order. */
void shm_reduce(const comm_request *r, const comm_span *p, int n_sources, const void *const *sources, fsdp_dtype from,
                int64_t n, void *out, bool streaming);

fsdp_status shm_run_staged(comm_request *r, const signature *s);

#endif
