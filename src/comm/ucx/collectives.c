/* Runs a collective: all ranks meet, within the host through shared memory, then with one rank of every other host;
 * then the data moves. Groups within a host are left to comm/shm altogether. */
#include "comm/reduce.h"
#include "comm/ucx/backend.h"

/* The near ranks have called the same, so one of them speaks for its host: to each rank of another host, the one whose
 * number here is that rank's there. Compared with the group's first host, by all. */
static fsdp_status meet_hosts(comm_request *r, const signature *s, ucx_residence *direct)
{
    comm_group *g = r->group;
    const ucx_group *u = ucx_group_of(g);
    ucx_world *w = ucx_world_of(g->comm);
    ucx_greeting *all = w->inbox;
    w->outgoing.direct = direct->near;
    for (int rank = 0; rank < g->size; rank++)
        if (u->host[rank] != u->own_host && ucx_holder(u, u->own_host, rank) == g->rank)
            FSDP_TRY(ucx_post_send(r, UCX_PHASE_SIGNATURE, rank, 0, &w->outgoing, sizeof w->outgoing));
    for (int h = 0; h < u->n_hosts; h++)
        if (h != u->own_host)
            FSDP_TRY(ucx_post_receive(r, UCX_PHASE_SIGNATURE, ucx_holder(u, h, g->rank), 0, &all[h], sizeof all[h]));
    FSDP_TRY(ucx_wait_posted(r, s));
    all[u->own_host] = w->outgoing;
    direct->everywhere = true;
    for (int h = 0; h < u->n_hosts; h++)
        direct->everywhere &= all[h].direct != 0;
    pthread_mutex_lock(&w->lock);
    for (int rank = 0; rank < g->size; rank++)
        w->places[g->members[rank]] = all[u->host[rank]].call;
    pthread_mutex_unlock(&w->lock);
    for (int h = 1; h < u->n_hosts; h++)
        if (all[h].call.hash != all[0].call.hash)
            return signature_mismatch(&all[h].call, g->members[ucx_holder(u, h, g->rank)], &all[0].call,
                                      g->members[ucx_holder(u, 0, g->rank)]);
    return FSDP_OK;
}

const char *ucx_sent_by(const comm_request *r, int rank, int span)
{
    ucx_group *u = ucx_group_of(r->group);
    comm_request near = {.group = &u->near, .sequence = r->sequence};
    return shm_address(r->group->comm, r->group->members[rank], shm_card_of(&near, u->place[rank])->send[span]);
}

/* Whether near ranks can read each other's send where it is. */
static bool all_in_shared_memory(const comm_request *r)
{
    ucx_group *u = ucx_group_of(r->group);
    comm_request near = {.group = &u->near, .sequence = r->sequence};
    for (int rank = 0; u->near.size > 1 && rank < u->near.size; rank++)
        for (int i = 0; i < r->op.n_spans; i++)
            if (shm_card_of(&near, rank)->send[i].region == SHM_ELSEWHERE)
                return false;
    return true;
}

/* The parts of a gather. */
static void find_parts(const comm_request *r, const comm_span *p)
{
    const comm_group *g = r->group;
    ucx_world *w = ucx_world_of(g->comm);
    size_t size = fsdp_dtype_size(p->recv.dtype);
    int64_t offset = 0;
    for (int rank = 0; rank < g->size; rank++) {
        int64_t n = span_count(p, rank);
        w->parts[rank] = (ucx_part){ucx_element(p->recv, offset), (size_t)n * size};
        offset += n;
    }
}

static fsdp_status gather(comm_request *r, const signature *s, bool direct)
{
    comm_group *g = r->group;
    ucx_group *u = ucx_group_of(g);
    ucx_world *w = ucx_world_of(g->comm);
    for (int i = 0; i < r->op.n_spans; i++) {
        find_parts(r, &r->op.spans[i]);
        copy_bytes(w->parts[g->rank].at, r->op.spans[i].send.p, w->parts[g->rank].bytes, false, g->comm->workers);
        FSDP_TRY(ucx_post_parts(r, w->parts));
    }
    for (int i = 0; direct && i < r->op.n_spans; i++) {
        find_parts(r, &r->op.spans[i]);
        for (int step = 1; step < u->near.size; step++) {
            int rank = u->on_host[u->host_begin[u->own_host] + (u->near.rank + step) % u->near.size];
            if (w->parts[rank].bytes)
                copy_bytes(w->parts[rank].at, ucx_sent_by(r, rank, i), w->parts[rank].bytes, false, g->comm->workers);
        }
    }
    FSDP_TRY(ucx_wait_posted(r, s));
    for (int i = 0; i < r->op.n_spans; i++) {
        find_parts(r, &r->op.spans[i]);
        FSDP_TRY(ucx_share_parts(r, s, w->parts, direct));
    }
    return FSDP_OK;
}

static fsdp_status move(comm_request *r, const signature *s, ucx_residence direct)
{
    switch (r->kind) {
    case COMM_REDUCE_SCATTER:
        return ucx_reduce_scatter(r, s, direct);
    case COMM_ALL_REDUCE:
        return ucx_all_reduce(r, s, direct);
    case COMM_BARRIER:
        return FSDP_OK;
    default:
        return gather(r, s, direct.near);
    }
}

fsdp_status ucx_run_collective(comm_request *r)
{
    ucx_group *u = ucx_group_of(r->group);
    signature *s = &ucx_world_of(r->group->comm)->outgoing.call;
    signature_make(r, s);
    FSDP_TRY(shm_announce(r, &u->near, s));
    if (u->n_hosts == 1) {
        comm_request near = {.op = r->op, .kind = r->kind, .group = &u->near, .sequence = r->sequence};
        return shm_run(&near);
    }
    FSDP_TRY(shm_meet(&u->near, r->sequence, s));
    ucx_residence direct = {.near = all_in_shared_memory(r)};
    FSDP_TRY(meet_hosts(r, s, &direct));
    FSDP_TRY(move(r, s, direct));
    shm_channel *mine = channel_of(&u->near, u->near.rank);
    shm_publish(mine, &mine->done, r->sequence);
    return FSDP_OK;
}

bool ucx_is_sent(const comm_request *r)
{
    comm_request near = {.group = &ucx_group_of(r->group)->near, .sequence = r->sequence};
    return shm_is_sent(&near);
}

fsdp_status ucx_wait_sent(comm_request *r)
{
    comm_request near = {.op = r->op, .kind = r->kind, .group = &ucx_group_of(r->group)->near, .sequence = r->sequence};
    return shm_wait_sent(&near);
}
