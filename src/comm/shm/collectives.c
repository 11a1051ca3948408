/* Collectives on data in shared memory: gathers copy straight from peers' memory, reductions sum straight out of it, in
 * rank order. Data elsewhere is left to staged.c. The protocol is described in control.h. */
#include <string.h>

#include "comm/reduce.h"
#include "comm/shm/collectives.h"

/* Past this the caches do not keep the result anyway, and writing around them saves reading it first. */
enum { STREAMING_BYTES = 4 << 20, REDUCE_ELEMENTS = 128 << 10 };

static const shm_location nothing = {.region = SHM_NOTHING};

/* Bytes of a span that peers may read on this rank. */
static size_t sent_bytes(const comm_request *r, const comm_span *p)
{
    const comm_group *g = r->group;
    int64_t n = r->kind == COMM_REDUCE_SCATTER ? span_offset(p, g->size) : span_count(p, g->rank);
    return (size_t)n * fsdp_dtype_size(p->send.dtype);
}

fsdp_status shm_announce(comm_request *r, comm_group *near, const signature *s)
{
    shm_channel *mine = channel_of(near, near->rank);
    shm_card *card = &mine->cards[r->sequence % COMM_IN_FLIGHT];
    for (int rank = 0; r->sequence > COMM_IN_FLIGHT && rank < near->size; rank++)
        if (rank != near->rank) /* the card that lies there was of a collective that every rank must be done with */
            FSDP_TRY(shm_wait(near, s, rank, &channel_of(near, rank)->done, r->sequence - COMM_IN_FLIGHT));
    card->signature = *s;
    for (int i = 0; i < r->op.n_spans; i++) {
        size_t bytes = sent_bytes(r, &r->op.spans[i]);
        card->send[i] = bytes ? shm_locate(near->comm, r->op.spans[i].send.p, bytes) : nothing;
    }
    shm_set_place(near->comm, s);
    shm_publish(mine, &mine->arrived, r->sequence);
    return FSDP_OK;
}

fsdp_status shm_start(comm_request *r)
{
    signature s;
    signature_make(r, &s);
    return shm_announce(r, r->group, &s);
}

/* Every rank compares with the group's first rank, so every rank says the same. */
fsdp_status shm_meet(comm_group *near, uint32_t sequence, const signature *s)
{
    for (int rank = 0; rank < near->size; rank++)
        if (rank != near->rank)
            FSDP_TRY(shm_wait(near, s, rank, &channel_of(near, rank)->arrived, sequence));
    const signature *first = &channel_of(near, 0)->cards[sequence % COMM_IN_FLIGHT].signature;
    for (int rank = 1; rank < near->size; rank++) {
        const signature *other = &channel_of(near, rank)->cards[sequence % COMM_IN_FLIGHT].signature;
        if (other->hash != first->hash)
            return signature_mismatch(other, near->members[rank], first, near->members[0]);
    }
    return FSDP_OK;
}

static bool all_in_shared_memory(const comm_request *r)
{
    for (int rank = 0; rank < r->group->size; rank++)
        for (int i = 0; i < r->op.n_spans; i++)
            if (shm_card_of(r, rank)->send[i].region == SHM_ELSEWHERE)
                return false;
    return true;
}

static const char *sent_by(const comm_request *r, int rank, int span)
{
    return shm_address(r->group->comm, r->group->members[rank], shm_card_of(r, rank)->send[span]);
}

static size_t total_bytes(const comm_request *r)
{
    size_t bytes = 0;
    for (int i = 0; i < r->op.n_spans; i++)
        bytes += (size_t)span_offset(&r->op.spans[i], r->group->size) * fsdp_dtype_size(r->op.spans[i].send.dtype);
    return bytes;
}

/* Own parts first, then those of the next rank, and so on around: at any time every peer is read by another rank. */
static void gather(comm_request *r)
{
    comm_group *g = r->group;
    bool streaming = total_bytes(r) >= STREAMING_BYTES;
    for (int step = 0; step < g->size; step++) {
        int rank = (g->rank + step) % g->size;
        for (int i = 0; i < r->op.n_spans; i++) {
            const comm_span *p = &r->op.spans[i];
            size_t size = fsdp_dtype_size(p->send.dtype), n = (size_t)span_count(p, rank);
            if (n == 0)
                continue;
            copy_bytes((char *)p->recv.p + (size_t)span_offset(p, rank) * size,
                       step == 0 ? p->send.p : sent_by(r, rank, i), n * size, streaming, g->comm->workers);
        }
    }
}

static void reduce_scatter(comm_request *r)
{
    comm_group *g = r->group;
    const void *sources[SHM_MAX_RANKS];
    bool streaming = total_bytes(r) / (size_t)g->size >= STREAMING_BYTES;
    for (int i = 0; i < r->op.n_spans; i++) {
        const comm_span *p = &r->op.spans[i];
        int64_t skip = span_offset(p, g->rank) * (int64_t)fsdp_dtype_size(p->send.dtype);
        if (span_count(p, g->rank) == 0)
            continue;
        for (int rank = 0; rank < g->size; rank++)
            sources[rank] = (rank == g->rank ? (const char *)p->send.p : sent_by(r, rank, i)) + skip;
        shm_reduce(r, p, g->size, sources, p->send.dtype, span_count(p, g->rank), p->recv.p, streaming);
    }
}

/* In chunks: each rank sums its share of the chunk out of every rank's memory into its staging slot, then all collect
 * the shares. Nobody overwrites recv (which may be send) in a chunk before all have summed it. */
static fsdp_status all_reduce_span(comm_request *r, const signature *s, int span)
{
    comm_group *g = r->group;
    const comm_span *p = &r->op.spans[span];
    const void *sources[SHM_MAX_RANKS];
    fsdp_dtype sum_dtype = reduce_sum_dtype(p->send.dtype);
    int64_t from_size = (int64_t)fsdp_dtype_size(p->send.dtype), sum_size = (int64_t)fsdp_dtype_size(sum_dtype);
    int64_t share = (p->count + g->size - 1) / g->size, most = (int64_t)world_of(g->comm)->slot_bytes / sum_size;
    share = (share + 15) / 16 * 16;
    most = most < REDUCE_ELEMENTS ? most : REDUCE_ELEMENTS;
    share = share < most ? share : most;
    for (int64_t start = 0; start < p->count; start += share * g->size) {
        shm_chunk chunk;
        FSDP_TRY(shm_chunk_begin(r, s, true, &chunk));
        int64_t mine = start + g->rank * share, n = shm_clamp(p->count - mine, share);
        for (int rank = 0; n > 0 && rank < g->size; rank++)
            sources[rank] = (rank == g->rank ? (const char *)p->send.p : sent_by(r, rank, span)) + mine * from_size;
        if (n > 0)
            reduce_ordered(&(reduce_args){.reduction = r->op.reduction,
                                          .n_sources = g->size,
                                          .sources = sources,
                                          .from = p->send.dtype,
                                          .to = sum_dtype,
                                          .n = n,
                                          .out = chunk.slot,
                                          .workers = g->comm->workers});
        FSDP_TRY(shm_chunk_exchange(r, s, &chunk));
        for (int rank = 0; rank < g->size; rank++) {
            int64_t at = start + rank * share;
            const void *sums[] = {shm_chunk_of(r, &chunk, rank)};
            if (at < p->count)
                reduce_ordered(&(reduce_args){.n_sources = 1,
                                              .sources = sums,
                                              .from = sum_dtype,
                                              .to = p->recv.dtype,
                                              .n = shm_clamp(p->count - at, share),
                                              .out = (char *)p->recv.p + at * (int64_t)fsdp_dtype_size(p->recv.dtype),
                                              .add = p->add,
                                              .workers = g->comm->workers});
        }
        shm_chunk_end(r, &chunk);
    }
    return FSDP_OK;
}

static fsdp_status run_direct(comm_request *r, const signature *s)
{
    switch (r->kind) {
    case COMM_ALL_GATHER:
    case COMM_EXCHANGE:
        gather(r);
        break;
    case COMM_REDUCE_SCATTER:
        reduce_scatter(r);
        break;
    case COMM_ALL_REDUCE:
        for (int i = 0; i < r->op.n_spans; i++)
            FSDP_TRY(all_reduce_span(r, s, i));
        break;
    case COMM_BARRIER:
        break;
    }
    return FSDP_OK;
}

fsdp_status shm_run(comm_request *r)
{
    comm_group *g = r->group;
    shm_channel *mine = channel_of(g, g->rank);
    const signature *s = &mine->cards[r->sequence % COMM_IN_FLIGHT].signature;
    FSDP_TRY(shm_meet(g, r->sequence, s));
    FSDP_TRY(all_in_shared_memory(r) ? run_direct(r, s) : shm_run_staged(r, s));
    shm_publish(mine, &mine->done, r->sequence);
    return FSDP_OK;
}

bool shm_is_sent(const comm_request *r)
{
    const comm_group *g = r->group;
    for (int rank = 0; rank < g->size; rank++)
        if (!reached(atomic_load(&channel_of(g, rank)->done), r->sequence))
            return false;
    return true;
}

fsdp_status shm_wait_sent(comm_request *r)
{
    comm_group *g = r->group;
    signature s;
    signature_make(r, &s);
    for (int rank = 0; rank < g->size; rank++)
        if (rank != g->rank)
            FSDP_TRY(shm_wait(g, &s, rank, &channel_of(g, rank)->done, r->sequence));
    return FSDP_OK;
}
