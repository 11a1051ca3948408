/* The shared memory backend: what its files share, and the page through which ranks see each other.
 *
 * The protocol. Each rank has a channel per group, written by itself and read by its peers:
 *   arrived   the last collective announced: its card (what it is, where the data lies) may be read, and the data too
 *   done      the last collective whose data from peers this rank has finished reading
 *   produced  the last chunk put into its staging area
 *   consumed  the last chunk it has finished reading from its peers
 * All four only grow (modulo 2^32). A collective on data in shared memory is: announce, wait until all have arrived,
 * compare cards, read from peers, done. The owner may overwrite what it sent once all peers are done. Data elsewhere
 * goes through the staging area in chunks, in lockstep: produce, wait until all have produced, read, consume; a slot of
 * the staging area is filled again once all have consumed the chunk that was in it. Waits are on futexes, in short
 * slices: between two of them a waiter looks for aborts, ends of processes and the clock. */
#ifndef COMM_SHM_CONTROL_H
#define COMM_SHM_CONTROL_H

#include <stdatomic.h>

#include "comm/engine.h"
#include "comm/signature.h"

/* Where data lies in its owner's shared memory; region -1: elsewhere. */
typedef struct shm_location {
    int64_t region, offset;
} shm_location;

typedef struct shm_card {
    signature signature;
    shm_location send[COMM_MAX_PIECES];
} shm_card;

typedef _Atomic uint32_t shm_word;

typedef struct shm_channel {
    _Alignas(64) shm_word arrived;
    shm_word produced;
    _Alignas(64) shm_word done;
    shm_word consumed;
    _Alignas(64) shm_word waiters;  /* sleeping on any of the words */
    shm_card cards[COMM_IN_FLIGHT]; /* card of collective s at s % COMM_IN_FLIGHT */
} shm_channel;

enum shm_rank_state { SHM_RANK_HERE = 1, SHM_RANK_LEFT = 2 };

typedef struct shm_rank {
    _Alignas(64) _Atomic uint32_t state;
    _Atomic int32_t waiting_for; /* rank of the world plus 1; 0: not waiting */
    shm_word place_version;      /* odd while `place` changes */
    signature place;             /* the last collective announced, in any group */
    shm_channel channels[COMM_MAX_GROUPS + 1];
} shm_rank;

enum shm_abort_state { SHM_ABORT_NONE, SHM_ABORT_WRITING, SHM_ABORT_SET };

typedef struct shm_control {
    _Atomic uint32_t abort_state;
    int32_t abort_rank;
    char abort_text[1024];
} shm_control;

/* What a rank brings when it comes, followed by its staging area: a file of its own, so that each pays for its own
 * memory and has it near. */
typedef struct shm_share {
    shm_rank rank;
    shm_control control; /* the first rank's is every rank's */
} shm_share;

/* One call of comm_allocate: every rank's memory, mapped here. */
typedef struct shm_region {
    int64_t id;
    size_t *bytes; /* (world_size) */
    char **start;  /* (world_size); NULL when that rank asked for nothing */
    struct shm_region *next;
} shm_region;

/* A slot of our staging area, and the chunk that lies in it until all members of the group have consumed it. */
typedef struct shm_slot {
    comm_group *group;
    uint32_t chunk;
} shm_slot;

enum { SHM_SLOTS = 2, SHM_MAX_RANKS = 256 };

/* Kept in comm.state, also by ucx, whose own state begins with it: then only ranks of this host are near. */
typedef struct shm_world {
    bool *near;                     /* (world_size) ranks that share memory with this one, itself among them */
    int first;                      /* the lowest of them */
    shm_share **shares;             /* (world_size), NULL where not mapped, all of it before they are */
    size_t share_bytes, slot_bytes; /* of a share with its staging area, of a slot of that */
    shm_slot slots[SHM_SLOTS];
    int *pids;   /* (world_size) */
    int *pidfds; /* (world_size), -1 where unknown */
    shm_region *regions;
    int64_t n_regions;
    bool spin; /* cores enough that a peer runs while we look */
} shm_world;

/* Kept in comm_group.backend. */
typedef struct shm_group {
    uint32_t chunks; /* chunks of all collectives so far: the same number on all members */
} shm_group;

static inline shm_world *world_of(const comm *c)
{
    return c->state;
}

static inline shm_rank *shm_rank_of(const shm_world *w, int world_rank)
{
    return &w->shares[world_rank]->rank;
}

static inline shm_control *shm_control_of(const shm_world *w)
{
    return &w->shares[w->first]->control;
}

/* Staging areas begin on a page of their own. */
enum { SHM_PAGE = 4096, SHM_SHARE_BYTES = (sizeof(shm_share) + SHM_PAGE - 1) / SHM_PAGE * SHM_PAGE };

static inline char *shm_staging_of(const shm_world *w, int world_rank)
{
    return (char *)w->shares[world_rank] + SHM_SHARE_BYTES;
}

static inline shm_channel *channel_of(const comm_group *g, int rank)
{
    return &shm_rank_of(world_of(g->comm), g->members[rank])->channels[g->slot];
}

/* True when a counter has come to `target` or past it; right also across the wrap at 2^32. */
static inline bool reached(uint32_t counter, uint32_t target)
{
    return (int32_t)(counter - target) >= 0;
}

/* shm.c: joins the ranks that are near (NULL: all), with c->state zeroed; what it made is freed by shm_leave, which is
 * legal after a failure. Needs c->meeting, at which all ranks of the world take part. */
fsdp_status shm_join(comm *c, const bool *near);
void shm_leave(comm *c);
size_t shm_overhead(const comm_config *config);
fsdp_status shm_group_open(comm_group *g);
void shm_group_close(comm_group *g);

/* wait.c */
void shm_publish(shm_channel *mine, shm_word *word, uint32_t value);
/* Until word of `rank` (of g) has come to `target`. r: the collective, for messages. */
fsdp_status shm_wait(comm_group *g, const signature *s, int rank, shm_word *word, uint32_t target);
void shm_abort(comm *c, const char *message);
fsdp_status shm_check(comm *c);
void shm_set_place(comm *c, const signature *s);

/* memory.c */
fsdp_status shm_allocate(comm *c, size_t bytes, void **out);
void shm_release(comm *c, void *memory);
void shm_release_all(comm *c);
/* Opens the file that a rank, which must keep it open meanwhile, knows as descriptor `theirs`: it must be our own
 * user's and have the size that was announced, since reading past its end would be a fatal signal. */
fsdp_status shm_open_file(const comm *c, int world_rank, int theirs, size_t bytes, int *out);
shm_location shm_locate(const comm *c, const void *data, size_t bytes);
const char *shm_address(const comm *c, int world_rank, shm_location where);

/* collectives.c */
fsdp_status shm_start(comm_request *r);
fsdp_status shm_run(comm_request *r);
bool shm_is_sent(const comm_request *r);
fsdp_status shm_wait_sent(comm_request *r);
fsdp_status shm_slots_free(comm_group *g); /* waits until no peer reads chunks of this group in our staging area */

#endif
