/* Collectives on data outside of shared memory: it goes through the ranks' staging areas, chunk by chunk, all ranks in
 * lockstep, in two slots, so that one is filled while the other is still being read. The sums are those of
 * collectives.c, element for element. */
#include "comm/shm/collectives.h"

#include <string.h>

#include "comm/reduce.h"

static fsdp_status wait_slot(shm_slot *slot, const signature *s)
{
    comm_group *g = slot->group;
    for (int rank = 0; g && rank < g->size; rank++)
        if (rank != g->rank)
            FSDP_TRY(shm_wait(g, s, rank, &channel_of(g, rank)->consumed, slot->chunk));
    slot->group = NULL;
    return FSDP_OK;
}

fsdp_status shm_slots_free(comm_group *g)
{
    shm_world *w = world_of(g->comm);
    signature s = {.kind = COMM_BARRIER, .label = "end of a group"};
    for (int i = 0; i < SHM_SLOTS; i++)
        if (w->slots[i].group == g)
            FSDP_TRY(wait_slot(&w->slots[i], &s));
    return FSDP_OK;
}

static char *slot_of(const shm_world *w, int world_rank, uint32_t number)
{
    return shm_staging_of(w, world_rank) + number % SHM_SLOTS * w->slot_bytes;
}

fsdp_status shm_chunk_begin(comm_request *r, const signature *s, bool fill, shm_chunk *chunk)
{
    comm_group *g = r->group;
    shm_world *w = world_of(g->comm);
    chunk->number = ++((shm_group *)g->backend)->chunks;
    chunk->slot = NULL;
    if (!fill)
        return FSDP_OK;
    shm_slot *slot = &w->slots[chunk->number % SHM_SLOTS];
    FSDP_TRY(wait_slot(slot, s));
    *slot = (shm_slot){.group = g, .chunk = chunk->number};
    chunk->slot = slot_of(w, g->comm->rank, chunk->number);
    return FSDP_OK;
}

fsdp_status shm_chunk_exchange(comm_request *r, const signature *s, const shm_chunk *chunk)
{
    comm_group *g = r->group;
    shm_channel *mine = channel_of(g, g->rank);
    shm_publish(mine, &mine->produced, chunk->number);
    for (int rank = 0; rank < g->size; rank++)
        if (rank != g->rank)
            FSDP_TRY(shm_wait(g, s, rank, &channel_of(g, rank)->produced, chunk->number));
    return FSDP_OK;
}

const char *shm_chunk_of(const comm_request *r, const shm_chunk *chunk, int rank)
{
    return slot_of(world_of(r->group->comm), r->group->members[rank], chunk->number);
}

void shm_chunk_end(comm_request *r, const shm_chunk *chunk)
{
    shm_channel *mine = channel_of(r->group, r->group->rank);
    shm_publish(mine, &mine->consumed, chunk->number);
}

void shm_reduce(const comm_request *r, const comm_span *p, int n_sources, const void *const *sources, fsdp_dtype from,
                int64_t n, void *out, bool streaming)
{
    reduce_ordered(&(reduce_args){.reduction = r->op.reduction,
                                  .n_sources = n_sources,
                                  .sources = sources,
                                  .from = from,
                                  .to = p->recv.dtype,
                                  .n = n,
                                  .out = out,
                                  .add = p->add,
                                  .streaming = streaming,
                                  .workers = r->group->comm->workers});
}

static char *element(buffer b, int64_t index)
{
    return (char *)b.p + index * (int64_t)fsdp_dtype_size(b.dtype);
}

static fsdp_status gather_span(comm_request *r, const signature *s, const comm_span *p)
{
    comm_group *g = r->group;
    int64_t size = (int64_t)fsdp_dtype_size(p->send.dtype), most = (int64_t)world_of(g->comm)->slot_bytes / size;
    for (int64_t start = 0; start < span_largest(p, g->size); start += most) {
        int64_t n = shm_clamp(span_count(p, g->rank) - start, most);
        shm_chunk chunk;
        FSDP_TRY(shm_chunk_begin(r, s, n > 0, &chunk));
        if (n > 0) {
            memcpy(chunk.slot, element(p->send, start), (size_t)(n * size));
            copy_bytes(element(p->recv, span_offset(p, g->rank) + start), element(p->send, start), (size_t)(n * size),
                       false, 1);
        }
        FSDP_TRY(shm_chunk_exchange(r, s, &chunk));
        for (int step = 1; step < g->size; step++) {
            int rank = (g->rank + step) % g->size;
            int64_t theirs = shm_clamp(span_count(p, rank) - start, most);
            if (theirs > 0)
                memcpy(element(p->recv, span_offset(p, rank) + start), shm_chunk_of(r, &chunk, rank),
                       (size_t)(theirs * size));
        }
        shm_chunk_end(r, &chunk);
    }
    return FSDP_OK;
}

/* A slot holds, for every rank, the same stretch of the part that it will sum. In place, recv is our own part of send:
 * the stretch is written after it was put into the slot. */
static fsdp_status reduce_scatter_span(comm_request *r, const signature *s, const comm_span *p)
{
    comm_group *g = r->group;
    const void *sources[SHM_MAX_RANKS];
    int64_t size = (int64_t)fsdp_dtype_size(p->send.dtype);
    int64_t most = (int64_t)world_of(g->comm)->slot_bytes / size / g->size;
    for (int64_t start = 0; start < span_largest(p, g->size); start += most) {
        shm_chunk chunk;
        FSDP_TRY(shm_chunk_begin(r, s, true, &chunk));
        for (int rank = 0; rank < g->size; rank++) {
            int64_t n = shm_clamp(span_count(p, rank) - start, most);
            if (n > 0)
                memcpy(chunk.slot + rank * most * size, element(p->send, span_offset(p, rank) + start),
                       (size_t)(n * size));
        }
        FSDP_TRY(shm_chunk_exchange(r, s, &chunk));
        for (int rank = 0; rank < g->size; rank++)
            sources[rank] = shm_chunk_of(r, &chunk, rank) + g->rank * most * size;
        int64_t n = shm_clamp(span_count(p, g->rank) - start, most);
        if (n > 0)
            shm_reduce(r, p, g->size, sources, p->send.dtype, n, element(p->recv, start), false);
        shm_chunk_end(r, &chunk);
    }
    return FSDP_OK;
}

/* Every rank sums everything: the fastest way for the few numbers that usually come here. */
static fsdp_status all_reduce_span(comm_request *r, const signature *s, const comm_span *p)
{
    comm_group *g = r->group;
    const void *sources[SHM_MAX_RANKS];
    int64_t size = (int64_t)fsdp_dtype_size(p->send.dtype), most = (int64_t)world_of(g->comm)->slot_bytes / size;
    for (int64_t start = 0; start < p->count; start += most) {
        int64_t n = shm_clamp(p->count - start, most);
        shm_chunk chunk;
        FSDP_TRY(shm_chunk_begin(r, s, true, &chunk));
        memcpy(chunk.slot, element(p->send, start), (size_t)(n * size));
        FSDP_TRY(shm_chunk_exchange(r, s, &chunk));
        for (int rank = 0; rank < g->size; rank++)
            sources[rank] = shm_chunk_of(r, &chunk, rank);
        shm_reduce(r, p, g->size, sources, p->send.dtype, n, element(p->recv, start), false);
        shm_chunk_end(r, &chunk);
    }
    return FSDP_OK;
}

fsdp_status shm_run_staged(comm_request *r, const signature *s)
{
    for (int i = 0; i < r->op.n_spans; i++) {
        const comm_span *p = &r->op.spans[i];
        switch (r->kind) {
        case COMM_REDUCE_SCATTER:
            FSDP_TRY(reduce_scatter_span(r, s, p));
            break;
        case COMM_ALL_REDUCE:
            FSDP_TRY(all_reduce_span(r, s, p));
            break;
        default:
            FSDP_TRY(gather_span(r, s, p));
        }
    }
    return FSDP_OK;
}
