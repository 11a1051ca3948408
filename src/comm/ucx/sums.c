/* Reductions. Each rank's part of the result goes as a sum so far from host to host, in the order of the group's ranks;
 * on each host one rank, the part's holder, adds what the ranks there have, out of shared memory. The last holder sends
 * the total to its rank. A link carries a sum once, in the dtype of sums. Where every rank of the group is on a host of
 * its own, there is nothing to add before it travels: each sends its part to whom it belongs, in its own dtype and all
 * at once, and that rank adds all in order. */
#include <string.h>

#include "comm/reduce.h"
#include "comm/ucx/backend.h"

enum { SMALL_BYTES = 4096 };

/* One turn of a reduction: stretches of a span's send, one a rank of the group. */
typedef struct turn {
    comm_request *r;
    const signature *what;
    int span;
    bool direct;     /* every near rank's send lies in shared memory; otherwise in the slots of `chunk` */
    int64_t most;    /* elements of a stretch */
    shm_chunk chunk; /* with `most` elements of room for each rank */
    char *sums;      /* (most_held, most): sums so far of the parts that this rank holds */
    char *total;     /* (most): of this rank's own stretch */
} turn;

static int64_t clamp(int64_t n, int64_t most)
{
    return n < 0 ? 0 : n < most ? n : most;
}

static const comm_span *span_of(const turn *t)
{
    return &t->r->op.spans[t->span];
}

/* Where the stretch that will be `part`'s lies in what `rank`, which is near, has. */
static const void *source(const turn *t, int rank, int part)
{
    const comm_group *g = t->r->group;
    const comm_span *p = span_of(t);
    int64_t size = (int64_t)fsdp_dtype_size(p->send.dtype);
    ucx_group *u = ucx_group_of(g);
    int64_t at = ucx_world_of(g->comm)->stretches[part].at;
    if (rank == g->rank)
        return ucx_element(p->send, at);
    if (t->direct)
        return ucx_sent_by(t->r, rank, t->span) + at * size;
    comm_request near = {.group = &u->near};
    return shm_chunk_of(&near, &t->chunk, u->place[rank]) + part * t->most * size;
}

static fsdp_status fill_slot(turn *t)
{
    comm_group *g = t->r->group;
    ucx_group *u = ucx_group_of(g);
    const comm_span *p = span_of(t);
    size_t size = fsdp_dtype_size(p->send.dtype);
    const ucx_stretch *of = ucx_world_of(g->comm)->stretches;
    comm_request near = {.group = &u->near};
    if (t->direct || u->near.size == 1)
        return FSDP_OK;
    FSDP_TRY(shm_chunk_begin(&near, t->what, true, &t->chunk));
    for (int rank = 0; rank < g->size; rank++)
        if (of[rank].n > 0)
            memcpy(t->chunk.slot + (size_t)(rank * t->most) * size, ucx_element(p->send, of[rank].at),
                   (size_t)of[rank].n * size);
    return shm_chunk_exchange(&near, t->what, &t->chunk);
}

static void empty_slot(turn *t)
{
    comm_request near = {.group = &ucx_group_of(t->r->group)->near};
    if (!t->direct && near.group->size > 1)
        shm_chunk_end(&near, &t->chunk);
}

/* Adds this run's ranks to the sum so far of `part`, the `held`-th that this rank holds, and passes it on. */
static fsdp_status add_run(turn *t, int run, int part, int held)
{
    comm_group *g = t->r->group;
    ucx_world *w = ucx_world_of(g->comm);
    const ucx_group *u = ucx_group_of(g);
    const ucx_run *own = &u->runs[run];
    fsdp_dtype from = span_of(t)->send.dtype, dtype = reduce_sum_dtype(from);
    int64_t n = w->stretches[part].n;
    size_t sum_bytes = (size_t)n * fsdp_dtype_size(dtype);
    char *sums = t->sums + (size_t)(held * t->most) * fsdp_dtype_size(dtype);
    bool last = run == u->n_runs - 1;
    if (run > 0)
        FSDP_TRY(ucx_wait_messages(t->r, t->what, w->awaited[held], w->awaited[held] + 1));
    for (int rank = own->first; rank < own->end; rank++)
        w->sources[rank - own->first] = source(t, rank, part);
    char *out = last && part == g->rank ? t->total : sums;
    reduce_ordered(&(reduce_args){.reduction = t->r->op.reduction,
                                  .n_sources = own->end - own->first,
                                  .sources = w->sources,
                                  .before = run > 0 ? sums : NULL,
                                  .from = from,
                                  .to = dtype,
                                  .n = n,
                                  .out = out,
                                  .workers = g->comm->workers});
    if (!last)
        return ucx_post_send(t->r, UCX_PHASE_CHAIN, ucx_holder(u, u->runs[run + 1].host, part), part, sums, sum_bytes);
    return part == g->rank ? FSDP_OK : ucx_post_send(t->r, UCX_PHASE_TOTAL, part, part, sums, sum_bytes);
}

/* Every host is in turn once for each run of its ranks; a part's sum so far arrives before, except at the first. */
static fsdp_status sum_run(turn *t, int run)
{
    comm_group *g = t->r->group;
    ucx_world *w = ucx_world_of(g->comm);
    const ucx_group *u = ucx_group_of(g);
    size_t sum_size = fsdp_dtype_size(reduce_sum_dtype(span_of(t)->send.dtype));
    int first = ucx_posted(g->comm);
    for (int part = 0, held = 0; run > 0 && part < g->size; part++) {
        int64_t n = w->stretches[part].n;
        if (ucx_holder(u, u->own_host, part) != g->rank)
            continue;
        w->awaited[held] = ucx_posted(g->comm);
        if (n > 0)
            FSDP_TRY(ucx_post_receive(t->r, UCX_PHASE_CHAIN, ucx_holder(u, u->runs[run - 1].host, part), part,
                                      t->sums + (size_t)(held * t->most) * sum_size, (size_t)n * sum_size));
        held++;
    }
    for (int part = 0, held = 0; part < g->size; part++) {
        if (ucx_holder(u, u->own_host, part) != g->rank)
            continue;
        if (w->stretches[part].n > 0)
            FSDP_TRY(add_run(t, run, part, held));
        held++;
    }
    return ucx_wait_messages(t->r, t->what, first, ucx_posted(g->comm)); /* the sums are to be overwritten */
}

/* A host for each rank: what others have of this rank's stretch comes to where sums so far would lie. */
static fsdp_status take_turn_apart(turn *t)
{
    comm_group *g = t->r->group;
    ucx_world *w = ucx_world_of(g->comm);
    const comm_span *p = span_of(t);
    fsdp_dtype from = p->send.dtype, to = reduce_sum_dtype(from);
    const ucx_stretch *of = w->stretches;
    size_t size = fsdp_dtype_size(from), room = (size_t)t->most * fsdp_dtype_size(to);
    w->sources[g->rank] = ucx_element(p->send, of[g->rank].at);
    for (int step = 1; step < g->size; step++) {
        int rank = (g->rank + g->size - step) % g->size;
        char *at = t->sums + (size_t)rank * room;
        FSDP_TRY(ucx_post_receive(t->r, UCX_PHASE_CHAIN, rank, g->rank, at, (size_t)of[g->rank].n * size));
        w->sources[rank] = at;
    }
    for (int step = 1; step < g->size; step++) {
        int rank = (g->rank + step) % g->size;
        FSDP_TRY(ucx_post_send(t->r, UCX_PHASE_CHAIN, rank, rank, ucx_element(p->send, of[rank].at),
                               (size_t)of[rank].n * size));
    }
    FSDP_TRY(ucx_wait_posted(t->r, t->what));
    if (of[g->rank].n > 0)
        reduce_ordered(&(reduce_args){.reduction = t->r->op.reduction,
                                      .n_sources = g->size,
                                      .sources = w->sources,
                                      .from = from,
                                      .to = to,
                                      .n = of[g->rank].n,
                                      .out = t->total,
                                      .workers = g->comm->workers});
    return FSDP_OK;
}

/* Leaves the sum of this rank's stretch in t->total. */
static fsdp_status take_turn(turn *t)
{
    comm_group *g = t->r->group;
    const ucx_group *u = ucx_group_of(g);
    size_t bytes =
        (size_t)ucx_world_of(g->comm)->stretches[g->rank].n * fsdp_dtype_size(reduce_sum_dtype(span_of(t)->send.dtype));
    int last = ucx_holder(u, u->runs[u->n_runs - 1].host, g->rank);
    if (u->n_hosts == g->size)
        return take_turn_apart(t);
    FSDP_TRY(fill_slot(t));
    if (last != g->rank)
        FSDP_TRY(ucx_post_receive(t->r, UCX_PHASE_TOTAL, last, g->rank, t->total, bytes));
    for (int run = 0; run < u->n_runs; run++)
        if (u->runs[run].host == u->own_host)
            FSDP_TRY(sum_run(t, run));
    FSDP_TRY(ucx_wait_posted(t->r, t->what));
    empty_slot(t);
    return FSDP_OK;
}

static void give(const comm_span *p, const void *sums, int64_t at, int64_t n)
{
    const void *sources[] = {sums};
    if (n > 0)
        reduce_ordered(&(reduce_args){.n_sources = 1,
                                      .sources = sources,
                                      .from = reduce_sum_dtype(p->send.dtype),
                                      .to = p->recv.dtype,
                                      .n = n,
                                      .out = ucx_element(p->recv, at),
                                      .add = p->add});
}

/* Elements of a stretch, the same on all ranks: as many as the scratch memory has room for `n_sums` sums and, where any
 * host needs them, a slot for one of each rank. */
static int64_t longest_stretch(const comm_request *r, const comm_span *p, ucx_residence direct, int n_sums)
{
    const ucx_world *w = ucx_world_of(r->group->comm);
    size_t in_slot = w->shared.slot_bytes / fsdp_dtype_size(p->send.dtype) / (size_t)r->group->size;
    size_t in_scratch = w->scratch_bytes / fsdp_dtype_size(reduce_sum_dtype(p->send.dtype)) / (size_t)n_sums;
    return (int64_t)(in_slot < in_scratch && !direct.everywhere ? in_slot : in_scratch);
}

static turn make_turn(comm_request *r, const signature *s, int span, ucx_residence direct, int n_sums)
{
    return (turn){.r = r,
                  .what = s,
                  .span = span,
                  .direct = direct.near,
                  .most = longest_stretch(r, &r->op.spans[span], direct, n_sums),
                  .sums = ucx_world_of(r->group->comm)->scratch};
}

fsdp_status ucx_reduce_scatter(comm_request *r, const signature *s, ucx_residence direct)
{
    comm_group *g = r->group;
    ucx_world *w = ucx_world_of(g->comm);
    int most_held = ucx_group_of(g)->most_held;
    for (int i = 0; i < r->op.n_spans; i++) {
        const comm_span *p = &r->op.spans[i];
        turn t = make_turn(r, s, i, direct, most_held + 1);
        int64_t largest = span_largest(p, g->size);
        t.total = t.sums + (size_t)(most_held * t.most) * fsdp_dtype_size(reduce_sum_dtype(p->send.dtype));
        for (int64_t start = 0; start < largest; start += t.most) {
            int64_t offset = 0;
            for (int rank = 0; rank < g->size; offset += span_count(p, rank++))
                w->stretches[rank] = (ucx_stretch){offset + start, clamp(span_count(p, rank) - start, t.most)};
            FSDP_TRY(take_turn(&t));
            give(p, t.total, start, w->stretches[g->rank].n);
        }
    }
    return FSDP_OK;
}

/* Each rank gets the total of its share of a stretch of the span, then all ranks get all totals. In place is safe:
 * nobody writes recv before every rank's share is summed. */
static fsdp_status all_reduce_span(comm_request *r, const signature *s, int span, ucx_residence direct)
{
    comm_group *g = r->group;
    ucx_world *w = ucx_world_of(g->comm);
    const comm_span *p = &r->op.spans[span];
    int most_held = ucx_group_of(g)->most_held;
    turn t = make_turn(r, s, span, direct, most_held + g->size);
    size_t sum_size = fsdp_dtype_size(reduce_sum_dtype(p->send.dtype));
    char *totals = t.sums + (size_t)(most_held * t.most) * sum_size;
    int64_t share = clamp((p->count + g->size - 1) / g->size, t.most);
    t.total = totals + (size_t)(g->rank * share) * sum_size;
    for (int64_t start = 0; start < p->count; start += share * g->size) {
        for (int rank = 0; rank < g->size; rank++) {
            int64_t at = start + rank * share, n = clamp(p->count - at, share);
            w->stretches[rank] = (ucx_stretch){at, n};
            w->parts[rank] = (ucx_part){totals + (size_t)(rank * share) * sum_size, (size_t)n * sum_size};
        }
        FSDP_TRY(take_turn(&t));
        FSDP_TRY(ucx_post_parts(r, w->parts));
        FSDP_TRY(ucx_wait_posted(r, s));
        FSDP_TRY(ucx_share_parts(r, s, w->parts, false));
        for (int rank = 0; rank < g->size; rank++)
            give(p, w->parts[rank].at, w->stretches[rank].at, w->stretches[rank].n);
    }
    return FSDP_OK;
}

/* A few numbers: every rank gives all, every rank sums all. */
static fsdp_status all_reduce_small(comm_request *r, const signature *s, const comm_span *p, size_t bytes)
{
    comm_group *g = r->group;
    ucx_world *w = ucx_world_of(g->comm);
    for (int rank = 0; rank < g->size; rank++) {
        w->parts[rank] = (ucx_part){w->scratch + (size_t)rank * bytes, bytes};
        w->sources[rank] = w->parts[rank].at;
    }
    memcpy(w->parts[g->rank].at, p->send.p, bytes);
    FSDP_TRY(ucx_post_parts(r, w->parts));
    FSDP_TRY(ucx_wait_posted(r, s));
    FSDP_TRY(ucx_share_parts(r, s, w->parts, false));
    reduce_ordered(&(reduce_args){.reduction = r->op.reduction,
                                  .n_sources = g->size,
                                  .sources = w->sources,
                                  .from = p->send.dtype,
                                  .to = p->recv.dtype,
                                  .n = p->count,
                                  .out = p->recv.p,
                                  .add = p->add});
    return FSDP_OK;
}

fsdp_status ucx_all_reduce(comm_request *r, const signature *s, ucx_residence direct)
{
    for (int i = 0; i < r->op.n_spans; i++) {
        const comm_span *p = &r->op.spans[i];
        size_t bytes = (size_t)p->count * fsdp_dtype_size(p->send.dtype);
        bool small =
            bytes <= SMALL_BYTES && bytes * (size_t)r->group->size <= ucx_world_of(r->group->comm)->scratch_bytes;
        if (bytes == 0)
            continue;
        FSDP_TRY(small ? all_reduce_small(r, s, p, bytes) : all_reduce_span(r, s, i, direct));
    }
    return FSDP_OK;
}
