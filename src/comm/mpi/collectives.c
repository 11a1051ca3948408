/* Collectives out of messages between pairs of ranks: parts travel as they are, sums are made where they are needed,
 * over ranks in order, by the same loops as in shared memory, so the bits are the same. */
#include "comm/mpi/backend.h"

#include "comm/reduce.h"

enum { SMALL_BYTES = 4096 };

static char *element(buffer b, int64_t index)
{
    return (char *)b.p + index * (int64_t)fsdp_dtype_size(b.dtype);
}

static int64_t clamp(int64_t n, int64_t most)
{
    return n < 0 ? 0 : n < most ? n : most;
}

/* Every rank's signature to every rank; compared with the group's first rank, as in shared memory. */
static fsdp_status meet(comm_request *r)
{
    comm_group *g = r->group;
    mpi_world *w = mpi_world_of(g->comm);
    signature *all = w->inbox;
    signature_make(r, &w->outgoing);
    for (int step = 1; step < g->size; step++) {
        int to = (g->rank + step) % g->size, from = (g->rank + g->size - step) % g->size;
        FSDP_TRY(mpi_post_receive(r, MPI_PHASE_SIGNATURE, from, &all[from], sizeof *all));
        FSDP_TRY(mpi_post_send(r, MPI_PHASE_SIGNATURE, to, &w->outgoing, sizeof w->outgoing));
    }
    FSDP_TRY(mpi_wait_posted(r, &w->outgoing));
    all[g->rank] = w->outgoing;
    for (int rank = 0; rank < g->size; rank++)
        w->places[g->members[rank]] = all[rank];
    for (int rank = 1; rank < g->size; rank++)
        if (all[rank].hash != all[0].hash)
            return signature_mismatch(&all[rank], g->members[rank], &all[0], g->members[0]);
    return FSDP_OK;
}

static fsdp_status gather(comm_request *r, const signature *s)
{
    comm_group *g = r->group;
    for (int i = 0; i < r->op.n_spans; i++) {
        const comm_span *p = &r->op.spans[i];
        size_t size = fsdp_dtype_size(p->send.dtype), mine = (size_t)span_count(p, g->rank) * size;
        for (int step = 1; step < g->size; step++) {
            int to = (g->rank + step) % g->size, from = (g->rank + g->size - step) % g->size;
            FSDP_TRY(mpi_post_receive(r, MPI_PHASE_DATA, from, element(p->recv, span_offset(p, from)),
                                      (size_t)span_count(p, from) * size));
            FSDP_TRY(mpi_post_send(r, MPI_PHASE_DATA, to, p->send.p, mine));
        }
        if (mine)
            copy_bytes(element(p->recv, span_offset(p, g->rank)), p->send.p, mine, false, 1);
    }
    return mpi_wait_posted(r, s);
}

/* One turn of a sum: every rank sends each rank r its stretches[r], and sums its own, peers' out of the scratch memory
 * (where each has room for `most` elements), into sum->out, which may be our own stretch of send. */
static fsdp_status sum_stretches(comm_request *r, const signature *s, const comm_span *p, int64_t most,
                                 reduce_args *sum)
{
    comm_group *g = r->group;
    mpi_world *w = mpi_world_of(g->comm);
    const mpi_stretch *of = w->stretches, *mine = &of[g->rank];
    size_t size = fsdp_dtype_size(p->send.dtype);
    for (int step = 1; step < g->size; step++) {
        int to = (g->rank + step) % g->size, from = (g->rank + g->size - step) % g->size;
        char *place = w->scratch + (size_t)(from * most) * size;
        w->sources[from] = place;
        FSDP_TRY(mpi_post_receive(r, MPI_PHASE_DATA, from, place, (size_t)mine->n * size));
        FSDP_TRY(mpi_post_send(r, MPI_PHASE_DATA, to, element(p->send, of[to].at), (size_t)of[to].n * size));
    }
    FSDP_TRY(mpi_wait_posted(r, s));
    w->sources[g->rank] = element(p->send, mine->at);
    sum->reduction = r->op.reduction;
    sum->n_sources = g->size;
    sum->sources = w->sources;
    sum->from = p->send.dtype;
    sum->n = mine->n;
    if (mine->n > 0)
        reduce_ordered(sum);
    return FSDP_OK;
}

static fsdp_status reduce_scatter_span(comm_request *r, const signature *s, const comm_span *p)
{
    comm_group *g = r->group;
    mpi_world *w = mpi_world_of(g->comm);
    int64_t most = (int64_t)w->scratch_bytes / g->size / (int64_t)fsdp_dtype_size(p->send.dtype);
    for (int64_t start = 0; start < span_largest(p, g->size); start += most) {
        for (int rank = 0; rank < g->size; rank++)
            w->stretches[rank] = (mpi_stretch){span_offset(p, rank) + start, clamp(span_count(p, rank) - start, most)};
        reduce_args sum = {.to = p->recv.dtype, .out = element(p->recv, start), .add = p->add};
        FSDP_TRY(sum_stretches(r, s, p, most, &sum));
    }
    return FSDP_OK;
}

static void give_sums(const comm_span *p, const void *sums, fsdp_dtype dtype, mpi_stretch to)
{
    const void *sources[] = {sums};
    if (to.n > 0)
        reduce_ordered(&(reduce_args){.n_sources = 1,
                                      .sources = sources,
                                      .from = dtype,
                                      .to = p->recv.dtype,
                                      .n = to.n,
                                      .out = element(p->recv, to.at),
                                      .add = p->add});
}

/* Each rank sums its share of a chunk, then all exchange their sums. Scratch memory: parts of peers in the first half,
 * sums in the second. In place is safe: what peers need of send is sent before recv is written. */
static fsdp_status all_reduce_span(comm_request *r, const signature *s, const comm_span *p)
{
    comm_group *g = r->group;
    mpi_world *w = mpi_world_of(g->comm);
    fsdp_dtype dtype = reduce_sum_dtype(p->send.dtype);
    int64_t sum_size = (int64_t)fsdp_dtype_size(dtype), share = (p->count + g->size - 1) / g->size;
    int64_t most = (int64_t)w->scratch_bytes / 2 / g->size / sum_size;
    char *sums = w->scratch + w->scratch_bytes / 2;
    share = share < most ? share : most;
    for (int64_t start = 0; start < p->count; start += share * g->size) {
        for (int rank = 0; rank < g->size; rank++)
            w->stretches[rank] = (mpi_stretch){start + rank * share, clamp(p->count - start - rank * share, share)};
        reduce_args sum = {.to = dtype, .out = sums + g->rank * share * sum_size};
        FSDP_TRY(sum_stretches(r, s, p, most, &sum));
        for (int step = 1; step < g->size; step++) {
            int to = (g->rank + step) % g->size, from = (g->rank + g->size - step) % g->size;
            FSDP_TRY(mpi_post_receive(r, MPI_PHASE_SUMS, from, sums + from * share * sum_size,
                                      (size_t)(w->stretches[from].n * sum_size)));
            FSDP_TRY(mpi_post_send(r, MPI_PHASE_SUMS, to, sums + g->rank * share * sum_size,
                                   (size_t)(w->stretches[g->rank].n * sum_size)));
        }
        FSDP_TRY(mpi_wait_posted(r, s));
        for (int rank = 0; rank < g->size; rank++)
            give_sums(p, sums + rank * share * sum_size, dtype, w->stretches[rank]);
    }
    return FSDP_OK;
}

/* A few numbers: every rank sends all, every rank sums all. One exchange instead of two. */
static fsdp_status all_reduce_small(comm_request *r, const signature *s, const comm_span *p)
{
    mpi_world *w = mpi_world_of(r->group->comm);
    for (int rank = 0; rank < r->group->size; rank++)
        w->stretches[rank] = (mpi_stretch){0, p->count};
    reduce_args sum = {.to = p->recv.dtype, .out = p->recv.p, .add = p->add};
    return sum_stretches(r, s, p, p->count, &sum);
}

static fsdp_status run_span(comm_request *r, const signature *s, const comm_span *p)
{
    mpi_world *w = mpi_world_of(r->group->comm);
    size_t bytes = (size_t)p->count * fsdp_dtype_size(p->send.dtype);
    if (r->kind == COMM_REDUCE_SCATTER)
        return reduce_scatter_span(r, s, p);
    if (bytes <= SMALL_BYTES && bytes <= w->scratch_bytes / (size_t)r->group->size)
        return all_reduce_small(r, s, p);
    return all_reduce_span(r, s, p);
}

fsdp_status mpi_run(comm_request *r)
{
    const signature *s = &mpi_world_of(r->group->comm)->outgoing;
    FSDP_TRY(meet(r));
    if (r->kind == COMM_BARRIER)
        return FSDP_OK;
    if (r->kind == COMM_ALL_GATHER || r->kind == COMM_EXCHANGE)
        return gather(r, s);
    for (int i = 0; i < r->op.n_spans; i++)
        FSDP_TRY(run_span(r, s, &r->op.spans[i]));
    return FSDP_OK;
}
