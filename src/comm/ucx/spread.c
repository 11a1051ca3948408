/* Gathers: every rank's part to all ranks of the group, over each link once per host. A part goes from its rank to its
 * holder on every other host; within a host, holders put what they hold into their staging areas, and all copy it from
 * there. */
#include <string.h>

#include "comm/ucx/backend.h"

fsdp_status ucx_post_parts(comm_request *r, const ucx_part *parts)
{
    comm_group *g = r->group;
    const ucx_group *u = ucx_group_of(g);
    for (int step = 1; step < g->size; step++) {
        int rank = (g->rank + g->size - step) % g->size;
        if (u->host[rank] != u->own_host && ucx_holder(u, u->own_host, rank) == g->rank)
            FSDP_TRY(ucx_post_receive(r, UCX_PHASE_PARTS, rank, rank, parts[rank].at, parts[rank].bytes));
    }
    for (int step = 1; step < u->n_hosts; step++) {
        int holder = ucx_holder(u, (u->own_host + step) % u->n_hosts, g->rank);
        FSDP_TRY(ucx_post_send(r, UCX_PHASE_PARTS, holder, g->rank, parts[g->rank].at, parts[g->rank].bytes));
    }
    return FSDP_OK;
}

/* What one rank of the host gives the others: the parts it holds, one after another. */
typedef struct row {
    const ucx_group *group;
    int n_ranks;
    const ucx_part *parts;
    bool far_only;
    int holder; /* rank of the group */
} row;

static bool is_held(const row *w, int rank)
{
    return ucx_holder(w->group, w->group->own_host, rank) == w->holder &&
           !(w->far_only && w->group->host[rank] == w->group->own_host);
}

static size_t row_bytes(const row *w)
{
    size_t bytes = 0;
    for (int rank = 0; rank < w->n_ranks; rank++)
        bytes += is_held(w, rank) ? w->parts[rank].bytes : 0;
    return bytes;
}

/* Copies bytes from .. from+room-1 of the row, as many as there are, between the parts and a slot. */
static void row_copy(const row *w, size_t from, size_t room, char *slot, bool into_slot)
{
    size_t at = 0, end = from + room;
    for (int rank = 0; rank < w->n_ranks && at < end; rank++) {
        if (!is_held(w, rank))
            continue;
        size_t bytes = w->parts[rank].bytes, low = at > from ? at : from, high = at + bytes < end ? at + bytes : end;
        if (low < high) {
            char *in_part = w->parts[rank].at + (low - at), *in_slot = slot + (low - from);
            memcpy(into_slot ? in_slot : in_part, into_slot ? in_part : in_slot, high - low);
        }
        at += bytes;
    }
}

fsdp_status ucx_share_parts(comm_request *r, const signature *s, const ucx_part *parts, bool far_only)
{
    comm_group *g = r->group;
    ucx_group *u = ucx_group_of(g);
    comm_request near = {.group = &u->near, .sequence = r->sequence};
    size_t slot_bytes = ucx_world_of(g->comm)->shared.slot_bytes, longest = 0;
    const int *ranks = &u->on_host[u->host_begin[u->own_host]];
    row own = {.group = u, .n_ranks = g->size, .parts = parts, .far_only = far_only, .holder = g->rank};
    size_t own_bytes = row_bytes(&own);
    for (int i = 0; u->near.size > 1 && i < u->near.size; i++) {
        row other = own;
        other.holder = ranks[i];
        size_t bytes = row_bytes(&other);
        longest = bytes > longest ? bytes : longest;
    }
    for (size_t from = 0; from < longest; from += slot_bytes) {
        shm_chunk chunk;
        FSDP_TRY(shm_chunk_begin(&near, s, from < own_bytes, &chunk));
        if (from < own_bytes)
            row_copy(&own, from, slot_bytes, chunk.slot, true);
        FSDP_TRY(shm_chunk_exchange(&near, s, &chunk));
        for (int step = 1; step < u->near.size; step++) {
            int i = (u->near.rank + step) % u->near.size;
            row other = own;
            other.holder = ranks[i];
            row_copy(&other, from, slot_bytes, (char *)shm_chunk_of(&near, &chunk, i), false);
        }
        shm_chunk_end(&near, &chunk);
    }
    return FSDP_OK;
}
