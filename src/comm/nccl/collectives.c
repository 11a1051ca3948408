/* Collectives as NCCL calls on a group's stream, after the work that made the data. If NCCL cannot write the result
 * directly (another type, added to what is there), it goes through staging memory, and so does host data. Of sums of
 * 16-bit values NCCL only moves the parts (direct.h). */
#include "comm/nccl/backend.h"

#include <stdio.h>
#include <time.h>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "comm/direct.h"

static ncclDataType_t type_of(fsdp_dtype dtype)
{
    static const ncclDataType_t types[] = {
        [FSDP_F32] = ncclFloat32, [FSDP_BF16] = ncclBfloat16, [FSDP_F16] = ncclFloat16, [FSDP_F64] = ncclFloat64,
        [FSDP_I32] = ncclInt32,   [FSDP_I64] = ncclInt64,     [FSDP_U8] = ncclUint8,
    };
    return types[dtype];
}

static ncclRedOp_t operator_of(fsdp_reduction reduction)
{
    static const ncclRedOp_t operators[] = {
        [FSDP_REDUCE_SUM] = ncclSum, [FSDP_REDUCE_MAX] = ncclMax, [FSDP_REDUCE_MIN] = ncclMin};
    return operators[reduction];
}

static char *element(buffer b, int64_t index)
{
    return (char *)b.p + index * (int64_t)fsdp_dtype_size(b.dtype);
}

static bool has_equal_counts(const comm_span *p, int n)
{
    for (int i = 1; p->counts && i < n; i++)
        if (p->counts[i] != p->counts[0])
            return false;
    return true;
}

/* Parts of unequal size: every rank's part is a broadcast (a sum at its owner), all in one launch. */
static ncclResult_t gather_span(const nccl_world *w, const comm_group *g, const comm_span *p)
{
    const nccl_group *n = g->backend;
    ncclDataType_t type = type_of(p->send.dtype);
    if (has_equal_counts(p, g->size))
        return w->api.ncclAllGather(p->send.p, p->recv.p, (size_t)span_count(p, 0), type, n->handle, n->queue);
    ncclResult_t result = ncclSuccess;
    for (int rank = 0; rank < g->size && result == ncclSuccess; rank++) {
        char *part = element(p->recv, span_offset(p, rank));
        if (span_count(p, rank) > 0)
            result = w->api.ncclBroadcast(rank == g->rank ? p->send.p : part, part, (size_t)span_count(p, rank), type,
                                          rank, n->handle, n->queue);
    }
    return result;
}

static ncclResult_t reduce_scatter_span(const nccl_world *w, const comm_group *g, const comm_span *p, void *to,
                                        ncclRedOp_t operator)
{
    const nccl_group *n = g->backend;
    ncclDataType_t type = type_of(p->send.dtype);
    if (has_equal_counts(p, g->size))
        return w->api.ncclReduceScatter(p->send.p, to, (size_t)span_count(p, 0), type, operator, n->handle, n->queue);
    ncclResult_t result = ncclSuccess;
    for (int rank = 0; rank < g->size && result == ncclSuccess; rank++)
        if (span_count(p, rank) > 0)
            result = w->api.ncclReduce(element(p->send, span_offset(p, rank)), to, (size_t)span_count(p, rank),
                                       type, operator, rank, n->handle, n->queue);
    return result;
}

static ncclResult_t call_span(const nccl_world *w, const comm_request *r, const comm_span *p, void *to)
{
    const comm_group *g = r->group;
    const nccl_group *n = g->backend;
    ncclDataType_t type = type_of(p->send.dtype);
    switch (r->kind) {
    case COMM_ALL_GATHER:
    case COMM_EXCHANGE:
        return gather_span(w, g, p);
    case COMM_REDUCE_SCATTER:
        return reduce_scatter_span(w, g, p, to, operator_of(r->op.reduction));
    case COMM_ALL_REDUCE:
        return w->api.ncclAllReduce(p->send.p, to, (size_t)p->count, type, operator_of(r->op.reduction), n->handle,
                                    n->queue);
    case COMM_BARRIER:
        break;
    }
    return ncclSuccess;
}

static bool is_reduction(const comm_request *r)
{
    return r->kind == COMM_REDUCE_SCATTER || r->kind == COMM_ALL_REDUCE;
}

/* A sum by NCCL that cannot go where it belongs. */
static bool is_indirect(const comm_request *r, const comm_span *p)
{
    return is_reduction(r) && !direct_is(r, p) && (p->add || p->send.dtype != p->recv.dtype);
}

/* Elements that the result has on this rank. */
static int64_t result_count(const comm_request *r, const comm_span *p)
{
    return r->kind == COMM_REDUCE_SCATTER ? span_count(p, r->group->rank) : p->count;
}

static size_t result_bytes(const comm_request *r, const comm_span *p)
{
    return is_indirect(r, p) ? round_up((size_t)result_count(r, p) * fsdp_dtype_size(p->send.dtype), 256) : 0;
}

/* Room for all indirect results, and then, behind them, for one direct sum after the other. */
static size_t staging_bytes(const comm_request *r, const comm_span *spans)
{
    size_t results = 0, direct = 0;
    for (int i = 0; i < r->op.n_spans; i++) {
        const comm_span *p = &spans[i];
        size_t sums = direct_is(r, p)
                          ? direct_staging_bytes(&r->group->comm->config, r->kind, r->group->size, result_count(r, p))
                          : 0;
        results += result_bytes(r, p);
        direct = sums > direct ? sums : direct;
    }
    return results + direct;
}

/* recv (+)= what was staged, in recv's type. */
static fsdp_status finish_span(const comm_request *r, const comm_span *p, void *staged)
{
    const nccl_group *n = r->group->backend;
    device *d = r->group->comm->config.device;
    axpby_args a = {.n = result_count(r, p), .alpha = 1, .a = {staged, p->send.dtype}, .out = p->recv};
    if (p->add) {
        a.b = p->recv;
        a.beta = 1;
    }
    return a.n > 0 ? d->kernels->axpby(n->stream, &a) : FSDP_OK;
}

/* ---- direct sums ---- */

static ncclResult_t exchange_parts(const nccl_world *w, const direct_sum *d, int64_t round, void *staging)
{
    const comm_group *g = d->group;
    const nccl_group *n = g->backend;
    ncclDataType_t type = type_of(d->span->send.dtype);
    direct_part mine = direct_part_of(d, round, g->rank);
    ncclResult_t result = ncclSuccess;
    for (int peer = 0; peer < g->size && result == ncclSuccess; peer++) {
        direct_part theirs = direct_part_of(d, round, peer);
        if (peer != g->rank && theirs.n > 0)
            result = w->api.ncclSend(element(d->span->send, theirs.first), (size_t)theirs.n, type, peer, n->handle,
                                     n->queue);
        if (peer != g->rank && mine.n > 0 && result == ncclSuccess)
            result = w->api.ncclRecv(direct_slot(d, staging, peer), (size_t)mine.n, type, peer, n->handle, n->queue);
    }
    return result;
}

static fsdp_status scatter_parts(void *context, const direct_sum *d, int64_t round, void *staging)
{
    comm *c = d->group->comm;
    nccl_world *w = context;
    FSDP_TRY(nccl_enter(c));
    ncclResult_t result = w->api.ncclGroupStart();
    if (result == ncclSuccess)
        result = exchange_parts(w, d, round, staging);
    return nccl_end_calls(c, result, "the parts of a sum");
}

/* Equal parts, and what the last rank has besides. */
static fsdp_status gather_sums(void *context, const direct_sum *d, int64_t round, buffer whole)
{
    const comm_group *g = d->group;
    const nccl_group *n = g->backend;
    nccl_world *w = context;
    ncclDataType_t type = type_of(whole.dtype);
    int64_t part = direct_part_of(d, round, 0).n, rest = direct_part_of(d, round, g->size - 1).n - part;
    char *tail = element(whole, part * g->size);
    FSDP_TRY(nccl_enter(g->comm));
    ncclResult_t result = w->api.ncclGroupStart();
    if (result == ncclSuccess && part > 0)
        result = w->api.ncclAllGather(element(whole, part * g->rank), whole.p, (size_t)part, type, n->handle, n->queue);
    if (result == ncclSuccess && rest > 0)
        result = w->api.ncclBroadcast(tail, tail, (size_t)rest, type, g->size - 1, n->handle, n->queue);
    return nccl_end_calls(g->comm, result, "the gather of a sum");
}

/* Everything in one launch but for direct sums, which follow one by one. `staging`: room after the host data. */
static fsdp_status enqueue(comm_request *r, const comm_span *spans, char *staging)
{
    nccl_world *w = nccl_world_of(r->group->comm);
    const nccl_group *n = r->group->backend;
    FSDP_TRY(nccl_enter(r->group->comm));
    ncclResult_t result = w->api.ncclGroupStart();
    char *at = staging;
    for (int i = 0; i < r->op.n_spans && result == ncclSuccess; i++) {
        if (!direct_is(r, &spans[i]))
            result = call_span(w, r, &spans[i], is_indirect(r, &spans[i]) ? at : spans[i].recv.p);
        at += result_bytes(r, &spans[i]);
    }
    FSDP_TRY(nccl_end_calls(r->group->comm, result, comm_kind_name(r->kind)));
    direct_carrier carrier = {.stream = n->stream, .context = w, .scatter = scatter_parts, .gather = gather_sums};
    for (int i = 0; i < r->op.n_spans; i++) {
        direct_sum sum = direct_begin(r, &spans[i]);
        if (direct_is(r, &spans[i]))
            FSDP_TRY(direct_run(&sum, &carrier, at));
    }
    at = staging;
    for (int i = 0; i < r->op.n_spans; i++) {
        if (is_indirect(r, &spans[i]))
            FSDP_TRY(finish_span(r, &spans[i], at));
        at += result_bytes(r, &spans[i]);
    }
    return FSDP_OK;
}

/* Notes the collective for the watch, and marks its end on the stream. */
static fsdp_status mark(comm_request *r)
{
    comm *c = r->group->comm;
    nccl_world *w = nccl_world_of(c);
    nccl_group *n = r->group->backend;
    int place = (int)(r->sequence % NCCL_EVENTS);
    FSDP_TRY(c->config.device->event_record(n->stream, n->done[place]));
    pthread_mutex_lock(&w->lock);
    n->enqueued = r->sequence;
    pthread_mutex_unlock(&w->lock);
    return FSDP_OK;
}

/* Before NCCL hears of it: connecting for the first collective of a kind waits for peers, too. */
static fsdp_status announce(comm_request *r)
{
    nccl_world *w = nccl_world_of(r->group->comm);
    nccl_group *n = r->group->backend;
    int place = (int)(r->sequence % NCCL_EVENTS);
    signature what;
    signature_make(r, &what);
    pthread_mutex_lock(&w->lock);
    n->begun[place] = 0; /* its clock starts when the watch first sees it at the front */
    n->names[place] = what;
    pthread_mutex_unlock(&w->lock);
    return watchdog_call(w->watchdog, r->group->serial, r->group->members[0], r->sequence, &what);
}

static fsdp_status run_on_device(comm_request *r)
{
    comm *c = r->group->comm;
    nccl_group *n = r->group->backend;
    device *d = c->config.device;
    char *staging = NULL;
    FSDP_TRY(nccl_stage(r->group, staging_bytes(r, r->op.spans), &staging));
    FSDP_TRY(d->event_record(r->op.stream, n->ready));
    FSDP_TRY(d->stream_wait(n->stream, n->ready));
    FSDP_TRY(enqueue(r, r->op.spans, staging));
    return mark(r);
}

/* Elements of send and recv on this rank. */
static int64_t send_count(const comm_request *r, const comm_span *p)
{
    return r->kind == COMM_REDUCE_SCATTER                           ? span_offset(p, r->group->size)
           : r->kind == COMM_ALL_GATHER || r->kind == COMM_EXCHANGE ? span_count(p, r->group->rank)
                                                                    : p->count;
}

static int64_t recv_count(const comm_request *r, const comm_span *p)
{
    return r->kind == COMM_ALL_GATHER || r->kind == COMM_EXCHANGE ? span_offset(p, r->group->size) : result_count(r, p);
}

/* Host data: up, through the collective, down again, and waited for. */
static fsdp_status run_on_host(comm_request *r)
{
    comm *c = r->group->comm;
    nccl_group *n = r->group->backend;
    device *d = c->config.device;
    comm_span spans[COMM_MAX_PIECES];
    size_t bytes = 256 + staging_bytes(r, r->op.spans);
    char *staging;
    for (int i = 0; i < r->op.n_spans; i++) {
        const comm_span *p = &r->op.spans[i];
        bytes += round_up((size_t)send_count(r, p) * fsdp_dtype_size(p->send.dtype), 256) +
                 round_up((size_t)recv_count(r, p) * fsdp_dtype_size(p->recv.dtype), 256);
    }
    FSDP_TRY(nccl_stage(r->group, bytes, &staging));
    if (r->kind == COMM_BARRIER) { /* a sum of nothing in particular */
        comm_span one = {.send = {staging, FSDP_I32}, .recv = {staging, FSDP_I32}, .count = 1};
        comm_request sum = {.op = {.n_spans = 1, .spans = &one}, .kind = COMM_ALL_REDUCE, .group = r->group};
        FSDP_TRY(enqueue(&sum, &one, staging));
        FSDP_TRY(mark(r));
        return nccl_wait_host(r->group, r->sequence);
    }
    for (int i = 0; i < r->op.n_spans; i++) {
        comm_span *p = &spans[i];
        *p = r->op.spans[i];
        size_t send = (size_t)send_count(r, p) * fsdp_dtype_size(p->send.dtype);
        size_t recv = (size_t)recv_count(r, p) * fsdp_dtype_size(p->recv.dtype);
        p->send.p = staging;
        staging += round_up(send, 256);
        p->recv.p = staging;
        staging += round_up(recv, 256);
        FSDP_TRY(d->copy(n->stream, p->send.p, r->op.spans[i].send.p, send));
        if (p->add)
            FSDP_TRY(d->copy(n->stream, p->recv.p, r->op.spans[i].recv.p, recv));
    }
    FSDP_TRY(enqueue(r, spans, staging));
    FSDP_TRY(mark(r));
    FSDP_TRY(nccl_wait_host(r->group, r->sequence));
    for (int i = 0; i < r->op.n_spans; i++)
        FSDP_TRY(d->copy(n->stream, r->op.spans[i].recv.p, spans[i].recv.p,
                         (size_t)recv_count(r, &spans[i]) * fsdp_dtype_size(spans[i].recv.dtype)));
    return d->stream_synchronize(n->stream);
}

/* An error of NCCL's is mostly another rank's doing, of which word is on its way. */
static fsdp_status await_word(comm *c, fsdp_status status)
{
    char text[WATCHDOG_TEXT_BYTES];
    struct timespec pause = {.tv_nsec = 5000000};
    double deadline = clock_seconds() + NCCL_GRACE_SECONDS;
    snprintf(text, sizeof text, "%s", engine_error_text(c));
    while (!atomic_load(&c->failed) && clock_seconds() < deadline)
        nanosleep(&pause, NULL);
    return atomic_load(&c->failed) ? engine_failure(c) : error_set(status, "%s", text);
}

fsdp_status nccl_run(comm_request *r)
{
    FSDP_TRY(announce(r));
    fsdp_status status = r->op.stream ? run_on_device(r) : run_on_host(r);
    return status == FSDP_ERR_PEER ? await_word(r->group->comm, status) : status;
}
